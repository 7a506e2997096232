"""The benchmarks run: each at a small size, whose times mean nothing, so that none can rot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("bench_*.py")))
def test_small(name, tmp_path):
    command = [sys.executable, FOLDER / f"{name}.py", "--small"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "┃" in done.stdout  # a table
    assert not list(tmp_path.iterdir())
