"""The store and the sweep: nothing is trained twice, and a killed command loses one round at most."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up import ENVIRONMENT, SETTING, SMOKE, command_line, fake, quiet

from feddrop.config import to_table
from feddrop.errors import ConfigError, RunError
from feddrop.simulation.run import Run
from reproduction.experiments import accuracy, dynamic, energy, weak
from reproduction.experiments.cells import (
    radio,
)
from reproduction.framework.store import Result, Store, key_of
from reproduction.framework.sweep import sweep
from reproduction.reproduce import reproduce, store_for


def test_a_key_is_what_decides_the_outcome():
    base = SETTING.run(rate=0.2)
    execution = replace(base.execution, executor="processes", workers=7)
    assert key_of(base) == key_of(replace(base, execution=execution))
    assert key_of(base) != key_of(replace(base, seed=1))
    assert key_of(base) != key_of(SETTING.run(rate=0.2, rule="model"))
    feddst = SETTING.run(rate=0.2, method="feddst")
    assert key_of(feddst) != key_of(SETTING.run(rate=0.2, method="feddst", feddst={"alpha": 0.5}))
    cell = radio(SETTING, deadline_s=3.0)
    assert key_of(SETTING.run(radio=cell)) == key_of(SETTING.run(radio=cell, rate=0.3))
    assert key_of(SETTING.run(radio=cell)) != key_of(SETTING.run(rate=0.3))


@pytest.mark.slow
def test_a_sweep_trains_once_resumes_and_shares(tmp_path):
    store = Store(tmp_path / "results", tmp_path / "work")
    whole, half = SETTING.run(rate=0.2), SETTING.run(rate=0.4)
    next(iter(Run(half, store.folder(half))))  # killed after its first round
    first_line = (store.folder(half) / "metrics.jsonl").read_text()
    seen = []
    sweep([whole, half, whole], store, workers=2, watch=lambda d, t: seen.append((d, t)))
    assert seen[-1] == (4, 4)
    assert (store.folder(half) / "metrics.jsonl").read_text().startswith(first_line)
    alone = Store(tmp_path / "other", tmp_path / "other-work")
    sweep([half], alone, workers=1, watch=quiet)
    assert alone.get(half).series == store.get(half).series
    stamp = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json*")}
    sweep([whole, half], store, workers=2, watch=quiet)
    assert stamp == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json*")}


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_stops_no_other(tmp_path):
    store = Store(tmp_path / "results", tmp_path / "work")
    good, hopeless = SETTING.run(rate=0.2), SETTING.run(rate=0.2)
    hopeless = replace(hopeless, train=replace(hopeless.train, lr=1e30))
    with pytest.raises(RunError, match=rf"1 of 2 runs failed(.|\n)*{key_of(hopeless)}: no device returned") as failure:
        sweep([hopeless, good], store, workers=1, watch=quiet)
    assert "Lower the learning rate" in str(failure.value)
    assert store.get(good) is not None
    assert store.get(hopeless) is None


def test_the_store_believes_nothing(tmp_path):
    store, config = Store(tmp_path / "results", tmp_path / "work"), SETTING.run(rate=0.2)
    next(iter(Run(config, store.folder(config))))
    with pytest.raises(RunError, match="does not hold rounds 1 to 2"):
        store.put(config)
    other = SETTING.run(rate=0.4)
    result = {"config": to_table(other), "version": "0", "series": {}, "wall_s": 1.0}
    path = tmp_path / "results" / f"{key_of(config)}.json"
    path.parent.mkdir()
    for text, message in ((json.dumps(result), "another configuration"), ("{", "is not a result"), ("[]", "is not")):
        path.write_text(text)
        with pytest.raises(RunError, match=message):
            store.get(config)


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_workers_do_not_outlive_a_killed_command(tmp_path, kill):
    command = command_line("weak-devices")
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    end = time.monotonic() + 120
    while time.monotonic() < end and not list(tmp_path.rglob("metrics.jsonl")):
        time.sleep(0.1)
    process.send_signal(kill)
    process.wait()
    end = time.monotonic() + 120  # a worker ends its round first
    while time.monotonic() < end and alive(process.pid):
        time.sleep(0.1)
    assert not alive(process.pid)


@pytest.mark.slow
def test_killed_and_started_again_repeats_nothing(tmp_path):
    command = command_line("energy", "weak-devices", "--out", "page")
    process = subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL, start_new_session=True
    )
    results = tmp_path / "results" / "smoke"
    end = time.monotonic() + 120
    while time.monotonic() < end and len(list(results.glob("*.json"))) < 2:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in results.glob("*.json")}
    assert len(done) >= 2
    subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, check=True, capture_output=True, timeout=300)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in done.items())
    text = (tmp_path / "page" / "paper.md").read_text()
    assert f"All {len(energy.runs(SMOKE)) + len(weak.runs(SMOKE))} training runs are finished" in text


@pytest.mark.slow
def test_runs_are_trained_on_the_device_that_is_asked_for(tmp_path):
    store = store_for("smoke", tmp_path / "results", tmp_path / "work")
    job = {"workers": 1, "watch": quiet, "making": lambda _: None}
    with pytest.raises(ConfigError, match="nowhere"):
        reproduce(["dynamic"], SMOKE, store, tmp_path / "page", torch_device="nowhere", **job)
    assert not (tmp_path / "work").exists()
    small = replace(SMOKE, target_rates=(0.4,), seeds=(0,))
    reproduce(["dynamic"], small, store, tmp_path / "page", torch_device="cpu:0", **job)  # another name of "cpu"
    config = dynamic.runs(small)[0]
    assert config.execution.torch_device == "cpu"
    assert store.get(config).config["execution"]["torch_device"] == "cpu:0"


def test_further_seeds_are_run_where_the_scale_says_so():
    runs = accuracy.runs(SMOKE)
    assert [config.rate for config in runs if config.seed == 1] == [0.2] * 8  # four rows of FedDrop, four rivals
    assert [config.seed for config in runs] == sorted(config.seed for config in runs)
    text = accuracy.make(SMOKE, lambda config: fake([0.2 + 0.02 * config.seed] * 5) if config in DROP else None).text
    assert "| LeNet, IID, FedDrop | ours | 20.00 (1) | 21.00 ± 1.00 (2) | 20.00 (1) |" in text


DROP = [config for config in accuracy.runs(SMOKE) if config.method.name == "feddrop"]


def test_committed_results_are_what_they_say():
    """Every result in the repository is the run of the configuration that it names."""
    from feddrop.config import RunConfig, from_table

    folder = Path(__file__).parents[1] / "results" / "cpu"
    for path in folder.glob("*.json"):
        result = Result(**json.loads(path.read_text()))
        config = from_table(RunConfig, result.config)
        assert key_of(config) == path.stem
        assert len(result.series["test_accuracy"]) == config.rounds
        assert np.isfinite(result.accuracy)
        if config.radio is not None and config.data.partition == "iid":  # equal weights: Jensen's inequality
            assert np.all(result.values("objective") >= 0.9999 / (1.0 - result.values("mean_rate")))
