"""Runs end to end: files, resume, and a kill at any moment."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from feddrop.config import RunConfig
from feddrop.data import from_arrays
from feddrop.errors import RunError
from feddrop.runs import Run, resume, run

SMALL = ["rounds=4", "data.train_limit=200", "data.devices=3", "rate=0.3"]


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "wall_s"} for line in lines]


def last_params(folder):
    return load_file(sorted((folder / "checkpoints").glob("*.safetensors"))[-1])


def same_end(a, b):
    assert metrics(a) == metrics(b)
    one, two = last_params(a), last_params(b)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_run_leaves_what_it_says(tmp_path):
    config = RunConfig.from_toml("", SMALL)
    records = run(config, tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"config.toml", "run.json", "metrics.jsonl", "checkpoints", "report.html"}
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 2
    assert RunConfig.from_file(tmp_path / "run" / "config.toml") == config
    keys = "round train_loss test_loss test_accuracy push_bytes pull_bytes latency_s energy_j wall_s devices"
    assert all(set(keys.split()) <= set(record) for record in records)
    device = records[0]["devices"][0]
    assert {"device", "rate", "share", "samples", "push_bytes", "pull_bytes", "latency_s", "energy_j"} <= set(device)
    assert [record["round"] for record in records] == [1, 2, 3, 4]
    assert records[0]["push_bytes"] == sum(d["push_bytes"] for d in records[0]["devices"])
    assert sum(d["samples"] for d in records[0]["devices"]) == 200


def test_stopped_and_resumed_is_never_stopped(tmp_path):
    config = RunConfig.from_toml("", SMALL)
    run(config, tmp_path / "whole")
    for record in Run(config, tmp_path / "stopped"):
        if record["round"] == 2:
            break
    assert len(metrics(tmp_path / "stopped")) == 2
    resume(tmp_path / "stopped")
    same_end(tmp_path / "whole", tmp_path / "stopped")
    before = (tmp_path / "stopped" / "metrics.jsonl").read_bytes()
    resume(tmp_path / "stopped")
    assert (tmp_path / "stopped" / "metrics.jsonl").read_bytes() == before


def test_damage_of_the_last_save_costs_one_round(tmp_path):
    config = RunConfig.from_toml("", SMALL)
    run(config, tmp_path / "whole")
    folder = tmp_path / "hurt"
    for record in Run(config, folder):
        if record["round"] == 3:
            break
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "train_l')
    newest = sorted((folder / "checkpoints").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:100])
    resume(folder)
    same_end(tmp_path / "whole", folder)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_killed_at_random_moments_and_resumed(tmp_path, executor):
    settings = [*SMALL, "rounds=6", f"execution.executor={executor}"]
    config = RunConfig.from_toml("", settings)
    run(config, tmp_path / "whole")
    folder = tmp_path / "killed"
    sets = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "feddrop", "run", *sets, "--out", str(folder)]
    chance = random.Random(executor)
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        seen = len(metrics(folder)) if (folder / "metrics.jsonl").exists() else 0
        while time.monotonic() < end and process.poll() is None:
            lines = (folder / "metrics.jsonl").read_bytes().count(b"\n") if (folder / "metrics.jsonl").exists() else 0
            if lines > seen:
                break
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.wait()
        command = [sys.executable, "-m", "feddrop", "resume", str(folder)]
    assert len((folder / "metrics.jsonl").read_text().splitlines()) >= 1
    resume(folder)
    same_end(tmp_path / "whole", folder)


def test_own_model_and_data(tmp_path, tiny, digits):
    small = from_arrays(digits.train_x[:200], digits.train_y[:200], digits.test_x, digits.test_y)
    before = [p.clone() for p in tiny.parameters()]
    records = run(
        RunConfig.from_toml("", ["rounds=2", "data.devices=4", "subnet.level=unit"]),
        tmp_path / "own",
        model=tiny,
        dataset=small,
    )
    assert len(records) == 2
    assert not torch.equal(before[0], next(iter(tiny.parameters())))
    with pytest.raises(RunError, match="another"):
        resume(tmp_path / "own")


def test_folders_that_cannot_be_used(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    with pytest.raises(RunError, match="not empty"):
        Run(RunConfig(), tmp_path / "full")
    assert (tmp_path / "full" / "thesis.tex").read_text() == "mine"
    with pytest.raises(Exception, match=r"config\.toml"):
        resume(tmp_path / "nothing")


def test_seed_decides_everything(tmp_path):
    first = run(RunConfig.from_toml("", [*SMALL, "rounds=1"]), tmp_path / "a")
    again = run(RunConfig.from_toml("", [*SMALL, "rounds=1"]), tmp_path / "b")
    other = run(RunConfig.from_toml("", [*SMALL, "rounds=1", "seed=1"]), tmp_path / "c")
    assert first[0]["train_loss"] == again[0]["train_loss"] != other[0]["train_loss"]
