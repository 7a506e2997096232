"""The examples do what they say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from feddrop.allocation import allocate
from feddrop.config import METHODS, RunConfig
from feddrop.radio.files import load
from feddrop.report import read_log
from feddrop.simulation.preparation import prepare
from feddrop.simulation.run import run
from feddrop.sweeps.comparison import read_comparison

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_configurations_are_valid():
    assert RunConfig.from_file(EXAMPLES / "digits.toml").radio is not None


def test_the_first_comparison_warns_of_nothing():
    for name, arm in read_comparison(EXAMPLES / "compare_methods.toml")[0].items():
        assert (name, prepare(arm.config, arm).warnings) == (name, ())


def test_a_city_street(tmp_path):
    small = ["rounds=2", "data.train_limit=200", "radio.deadline_s=0.1"]
    records = run(RunConfig.from_file(EXAMPLES / "urban.toml", small), tmp_path / "run")
    devices = [device for record in records for device in record.devices if device.took_part]
    assert all(device.latency_s <= 0.1 and device.dtype for device in devices)
    problem, _, method, policy, *_ = load(EXAMPLES / "urban_cell.toml")
    found = allocate(problem, method, policy=policy)
    assert 0.2 < found.rate[found.active].mean() < 0.6


def test_dtypes_are_compared(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import compare_dtypes

    (cell, settings), *_ = compare_dtypes.CELLS.items()
    monkeypatch.setattr(compare_dtypes, "CELLS", {cell: settings})
    monkeypatch.setattr(compare_dtypes, "DTYPES", ("float32", "auto"))
    monkeypatch.setattr(compare_dtypes, "SMALL", ["data.train_limit=100"])
    head, _, plain, auto = compare_dtypes.rows(rounds=1, seeds=1)
    assert head.count("|") == plain.count("|") == auto.count("|")
    assert float(auto.split("|")[4]) < float(plain.split("|")[4])  # less is dropped


@pytest.mark.slow
def test_custom_network_and_data(tmp_path):
    command = [sys.executable, EXAMPLES / "custom_network.py", tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "round 10" in done.stdout
    assert (tmp_path / "run" / "report.html").exists()
    run = read_log(tmp_path / "run")
    assert run.accuracy[0] > 0.85
    assert 0.2 < run.mean_rate < 0.6
    assert (run.by_round["latency_s"] <= 0.1).all()


def test_methods_on_equal_terms(tmp_path, monkeypatch, capsys):
    """Every method has a row; two of them are run, for six rounds."""
    spec = importlib.util.spec_from_file_location("compare_methods", EXAMPLES / "compare_methods.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert {method.name for method, *_ in script.ROWS.values()} == set(METHODS)
    rows = {"PruneFL": script.ROWS["PruneFL"], "FjORD": script.ROWS["FjORD"]}
    monkeypatch.setattr(script, "ROWS", rows)
    monkeypatch.setattr("sys.argv", ["compare_methods.py", str(tmp_path), "--rounds", "6", "--seeds", "1"])
    script.main()
    first = capsys.readouterr().out.splitlines()
    assert [line.count("|") for line in first] == [6] * 4
    script.main()  # finished runs are reused
    assert capsys.readouterr().out.splitlines() == first


def test_a_run_is_animated(tmp_path, monkeypatch):
    """The picture has a disc per device and a label per round; a run without a radio is refused."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import animate_run

    run(RunConfig.from_file(EXAMPLES / "digits.toml", ["rounds=2", "data.train_limit=200"]), tmp_path / "run")
    monkeypatch.setattr("sys.argv", ["animate_run.py", str(tmp_path / "run"), "--out", str(tmp_path / "cell.svg")])
    animate_run.main()
    drawn = (tmp_path / "cell.svg").read_text()
    assert drawn.count('class="subnet"') == 10
    assert drawn.count("% accuracy") == 2
    run(RunConfig.from_toml("data = { devices = 2, train_limit = 60 }", ["rounds=1"]), tmp_path / "plain")
    monkeypatch.setattr("sys.argv", ["animate_run.py", str(tmp_path / "plain")])
    with pytest.raises(SystemExit, match="needs a run with"):
        animate_run.main()
