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
    worlds = re.findall(r"^\| run killed, serial, ([\w ]+) \(", done.stdout, re.MULTILINE)
    assert worlds == ["clock buffered", "clock window", "schemes that remember"]
    frames, files, clocks, disks, signals, workers, nodes = 3, 6, 1, 1, 1, 2, 2
    runs, states = len(killed) + len(worlds), len(worlds)
    assert len(rows) == frames + files + states + clocks + disks + runs + signals + workers + nodes
    assert all(injected == survived != "0" for _, injected, survived in rows), done.stdout
    assert re.findall(r"^\| (\w+) \| 10 × 5 \|", done.stdout, re.MULTILINE) == killed
