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
from feddrop.errors import ConfigError, FeddropError, RunError
from feddrop.simulation.run import Run, resume, run
from feddrop.storage.checkpoints import seal, unseal

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
    assert names == {"config.toml", "run.json", "metrics.jsonl", "devices", "checkpoints", "report.html"}
    assert 2 <= len(list((tmp_path / "run" / "checkpoints").iterdir())) <= 3  # the last two, and the best
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
        RunConfig.from_toml("", ["rounds=2", "data.devices=4", "method.level=unit"]),
        tmp_path / "own",
        model=tiny,
        dataset=small,
    )
    assert len(records) == 2
    assert all(torch.equal(a, b) for a, b in zip(before, tiny.parameters(), strict=True))
    with pytest.raises(RunError, match=r"feddrop.resume\(folder, model=..., dataset=...\)"):
        resume(tmp_path / "own")
    with pytest.raises(RunError, match=r"feddrop.resume\(folder, dataset=...\)"):
        resume(tmp_path / "own", model=tiny)
    page = (tmp_path / "own" / "report.html").read_text()
    assert f"{type(tiny).__name__} on {small.name}" in page
    assert "with custom network and data" in page
    assert "feddrop run config.toml" not in page


def test_folders_that_cannot_be_used(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    with pytest.raises(RunError, match="not empty"):
        Run(RunConfig(), tmp_path / "full")
    assert (tmp_path / "full" / "thesis.tex").read_text() == "mine"
    with pytest.raises(RunError, match="not a run folder"):
        resume(tmp_path / "nothing")
    with pytest.raises(RunError, match="is a file"):
        Run(RunConfig(), tmp_path / "full" / "thesis.tex")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rate=1.2", "rate is 1.2"),
        ("model.name=resnet", "resnet"),
        ("method.layers=['conv9']", "conv9"),
        ("radio.deadline_s=0.001", "deadline"),
        ("execution.torch_device=abacus", "execution.torch_device is 'abacus'"),
        ("execution.torch_device=cuda:77", "cannot compute on here"),
        ("execution.torch_device=hpu", "cannot compute on here"),
        ("execution.torch_device=meta", "cannot compute on here"),
    ],
)
def test_a_mistake_leaves_the_folder_free(tmp_path, setting, message):
    with pytest.raises(FeddropError, match=message):
        Run(RunConfig.from_toml("", [*SMALL, setting]), tmp_path / "run")
    next(iter(Run(RunConfig.from_toml("", SMALL), tmp_path / "run")))


def test_one_writer_at_a_time(tmp_path):
    config = RunConfig.from_toml("", SMALL)
    first = Run(config, tmp_path / "run")
    second = Run(config, tmp_path / "run", resume=True)
    rounds = iter(first)
    next(rounds)
    with pytest.raises(RunError, match="another process is at work"):
        resume(tmp_path / "run")
    with pytest.raises(RunError, match="another process is at work"):
        next(iter(second))
    rounds.close()
    with pytest.raises(RunError, match="was modified by another process"):
        next(iter(second))
    assert [record["round"] for record in resume(tmp_path / "run")] == [1, 2, 3, 4]


def test_a_run_does_not_write_into_the_folder_of_another(tmp_path):
    """The folder would hold the configuration of one, and the rounds of the other."""
    first = Run(RunConfig.from_toml("", [*SMALL, "seed=1"]), tmp_path / "run")
    second = Run(RunConfig.from_toml("", [*SMALL, "seed=2"]), tmp_path / "run", overwrite=True)
    with pytest.raises(RunError, match="was modified by another process"):
        next(iter(first))
    assert next(iter(second)).round == 1


class Heard:
    def on_end(self, run):
        self.round = run.round


@pytest.mark.parametrize("method", ["feddrop", "feddst"])
def test_a_round_that_fails_leaves_the_run_as_it_was(tmp_path, method):
    """Whatever fails before it is saved: callbacks hear of the rounds that are, and the loop may go on."""
    moving = ["method.readjust_every=1", "method.readjust_until=1.0"] if method == "feddst" else []
    config = RunConfig.from_toml("", [*SMALL, f"method={method}", *moving, "server.optimizer=fedavgm"])
    run(config, tmp_path / "whole", metrics={"one": lambda *_: torch.ones(())})
    calls, heard = [], Heard()

    def one(*_):
        calls.append(0)
        if len(calls) == 5:  # tried before the run; then the last round, tested for the first time
            raise KeyboardInterrupt
        return torch.ones(())

    job = Run(config, tmp_path / "failed", metrics={"one": one}, callbacks=[heard])
    with pytest.raises(KeyboardInterrupt):
        list(job)
    assert (job.round, heard.round, len(job.records)) == (3, 3, 3)
    assert [record.round for record in job] == [4]
    same_end(tmp_path / "whole", tmp_path / "failed")


def lose_checkpoints(folder):
    for path in (folder / "checkpoints").iterdir():
        path.unlink()


def rewrite_checkpoint(folder, change):
    """Write another checkpoint in its place, sealed as ours are."""
    path = sorted((folder / "checkpoints").iterdir())[-1]
    tensors, notes = unseal(path.read_bytes())
    path.write_bytes(seal(change(tensors), notes))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_checkpoints, "no checkpoint that can be read"),
        (lambda f: rewrite_checkpoint(f, lambda t: {"other/x": torch.zeros(1)}), "another network"),
        (lambda f: rewrite_checkpoint(f, lambda t: {k: v.long() for k, v in t.items()}), "another network"),
        (lambda f: rewrite_checkpoint(f, lambda t: {k: v[:1].clone() for k, v in t.items()}), "another network"),
        (lambda f: (f / "run.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "metrics.jsonl").write_text("5\n6\n"), "does not hold rounds 1 to 2"),
        (lambda f: (f / "config.toml").write_bytes(b"\xff"), "not UTF-8"),
    ],
)
def test_a_damaged_folder_says_so_and_loses_nothing(tmp_path, damage, message):
    for record in Run(RunConfig.from_toml("", SMALL), tmp_path / "run"):
        if record["round"] == 2:
            break
    damage(tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(FeddropError, match=message):
        resume(tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_checkpoint_without_a_part_of_the_methods_state_is_refused(tmp_path):
    run(RunConfig.from_toml("", [*SMALL, "method=feddst"]), tmp_path)
    rewrite_checkpoint(tmp_path, lambda tensors: {k: v for k, v in tensors.items() if k != "state/mask"})
    with pytest.raises(RunError, match=r"lacks the method's state: mask\. Resume with --back 1"):
        resume(tmp_path)
    resume(tmp_path, back=1)


def test_files_are_found_from_the_configuration_and_from_anywhere_later(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "rates.json").write_text("[0.1, 0.2, 0.3]")
    (tmp_path / "a" / "c.toml").write_text(
        "rate = 'rates.json'\n[radio]\nscheme = 'fixed'\ndevices_csv = 'devices.csv'\n"
    )
    (tmp_path / "a" / "devices.csv").write_text("budget_j\n50\n60\n70\n")
    monkeypatch.chdir(tmp_path)
    config = RunConfig.from_file("a/c.toml", [s for s in SMALL if "rate=" not in s])
    next(iter(Run(config, "run")))
    monkeypatch.chdir(tmp_path / "a")
    assert [d["rate"] for d in resume(tmp_path / "run")[-1]["devices"]] == [0.1, 0.2, 0.3]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["budget_j"] == [50.0, 60.0, 70.0]
    run(RunConfig.from_toml("", [*SMALL, "rate=rates.json"]), "here")  # --set counts from here
    monkeypatch.chdir(tmp_path)
    assert len(resume("a/here")) == 4


def test_a_run_is_resumed_with_the_configuration_of_its_start(tmp_path, monkeypatch):
    """Also where that names a file by a relative name; and fewer rounds than are done are no way back."""
    (tmp_path / "rates.json").write_text("[0.1, 0.2, 0.3]")
    monkeypatch.chdir(tmp_path)
    config = RunConfig.from_toml("", [*SMALL, "rate=rates.json"])
    next(iter(Run(config, "run")))
    assert len(list(Run(config, "run", resume=True))) == 3
    before = (tmp_path / "run" / "config.toml").read_text()
    (tmp_path / "run" / "config.toml").write_text(before.replace("rounds = 4", "rounds = 2"))
    with pytest.raises(RunError, match="run holds 4 rounds, but rounds is 2"):
        resume("run")
    with pytest.raises(ConfigError, match="resume and overwrite are mutually exclusive"):
        Run(config, "run", resume=True, overwrite=True)
    with pytest.raises(ConfigError, match=r"config is 'run.toml'; it must be a feddrop.RunConfig"):
        run("run.toml", "new")


def test_seed_decides_everything(tmp_path):
    first = run(RunConfig.from_toml("", [*SMALL, "rounds=1"]), tmp_path / "a")
    again = run(RunConfig.from_toml("", [*SMALL, "rounds=1"]), tmp_path / "b")
    other = run(RunConfig.from_toml("", [*SMALL, "rounds=1", "seed=1"]), tmp_path / "c")
    assert first[0]["train_loss"] == again[0]["train_loss"] != other[0]["train_loss"]
