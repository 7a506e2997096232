"""The examples do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from feddrop.config import RunConfig
from feddrop.report import load_run

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_configurations_are_valid():
    assert RunConfig.from_file(EXAMPLES / "digits.toml").radio is not None


@pytest.mark.slow
def test_own_network_and_data(tmp_path):
    command = [sys.executable, EXAMPLES / "own_network.py", tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "round 10" in done.stdout
    assert (tmp_path / "run" / "report.html").exists()
    run = load_run(tmp_path / "run")
    assert run.accuracy[0] > 0.85
    assert 0.2 < run.mean_rate < 0.6
    assert (run.by_round["latency_s"] <= 0.1).all()
