"""``make soak`` at a small size: every kind of fault is injected, survived and listed in the table."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[1] / "benchmarks" / "soak.py"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_soak():
    done = subprocess.run([sys.executable, SOAK, "--small"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| (.*?) \| ([\d,]+) \| ([\d,]+) \|", done.stdout, re.MULTILINE)
    killed = re.findall(r"^\| run killed, (\w+) ", done.stdout, re.MULTILINE)
    assert killed == ["serial", "processes"]
    assert len(rows) == 2 + 5 + 1 + len(killed) + 1 + 2  # frames, files, disks, runs, signals, workers
    assert all(injected == survived != "0" for _, injected, survived in rows), done.stdout
    assert re.findall(r"^\| (\w+) \| 10 × 5 \|", done.stdout, re.MULTILINE) == killed
