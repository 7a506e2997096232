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


@pytest.mark.slow
def test_attacks_in_small(tmp_path):
    command = [sys.executable, FOLDER / "attacks.py", "--small"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| 2 of 10: backdoor")]
    assert [len(row) for row in rows] == [6]
    assert not list(tmp_path.iterdir())


def test_check_power_counts_a_reference_that_stopped_short_apart(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    check_power = pytest.importorskip("check_power")
    family = check_power.Family()
    for reference in (1.0 + 5e-7, 1.0 + 3e-6, None, 1.0 - 2e-5):
        family.compare(1.0, reference, eased=False)
    assert (family.compared, family.short, family.silent) == (3, 1, 1)
    assert family.short_by == pytest.approx(3e-6)
    assert family.off == family.above == pytest.approx(2e-5)  # ours above the reference is never passed over
    found = check_power.check("energy", 0.001, subband=False)
    assert found.instances == found.compared + found.silent == found.infeasible == len(check_power.DEVICES[False])
    assert max(found.breach, found.above) <= 1e-8
    assert found.residual <= 1e-8
    assert found.solved == 0
