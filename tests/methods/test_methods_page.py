"""The method of docs/methods.md, taken from the page: one file that does all that a built-in one does."""

from __future__ import annotations

import importlib
import subprocess
import sys
from functools import partial

import pytest
import torch

import feddrop
from feddrop.executors import EXECUTORS
from feddrop.wire.sections import sections_bytes
from support.pages import ROOT, blocks

PAGE = ROOT / "docs" / "methods.md"
SMALL = """
seed = 3
rounds = 4
rate = 0.4
data = { devices = 3, train_limit = 150 }
model = { width = 0.3 }
"""
NAMED = SMALL + 'method = { name = "mine:rounded", grain = 0.01 }'


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (source, *_) = (block.text for block in blocks(PAGE, "python"))
    assert len(source.splitlines()) <= 40
    (tmp_path / "mine.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("mine", None)
    yield importlib.import_module("mine")
    sys.modules.pop("mine", None)


def outcome(run):
    """All that a run ends with, what its devices remember included."""
    list(run)
    return run.params, run.state, [run._disk.memories.get(device) for device in range(3)]


def same(one, two):
    assert all(torch.equal(one[part][name], two[part][name]) for part in (0, 1) for name in one[part])
    assert one[2] == two[2]


def test_given_and_named_it_is_the_same_and_resumes_to_the_bit(mine):
    named = feddrop.RunConfig.from_toml(NAMED)
    never = outcome(feddrop.Run(named, "never"))
    same(
        never,
        outcome(feddrop.Run(feddrop.RunConfig.from_toml(SMALL), "given", method=partial(mine.rounded, grain=0.01))),
    )
    for record in feddrop.Run(named, "stopped"):
        if record.round == 2:
            break
    feddrop.resume("stopped")
    same(never, outcome(feddrop.Run(named, "stopped", resume=True)))
    assert all(never[2])  # every device owes something
    assert float(never[1]["lost"]) > 0
    other = outcome(feddrop.Run(feddrop.RunConfig.from_toml(NAMED, ["method.grain=0.1"]), "coarse"))
    assert float(other[1]["lost"]) > float(never[1]["lost"])


@pytest.mark.slow
@pytest.mark.parametrize("executor", [name for name in EXECUTORS if name != "serial"])
def test_it_runs_under_every_executor(mine, executor):
    if executor == "ray":
        pytest.importorskip("ray")
    ends = [
        outcome(feddrop.Run(feddrop.RunConfig.from_toml(NAMED, [f"execution.executor={name}"]), f"by-{name}"))
        for name in ("serial", executor)
    ]
    same(*ends)


@pytest.mark.parametrize("level", ["weight", "unit"])
def test_it_takes_the_radio_and_its_payload_is_counted(mine, level):
    settings = [f"method.level={level}", "radio.deadline_s=0.15", "radio.bits_per_parameter=32"]
    text = NAMED.replace("rate = 0.4\n", "").replace("width = 0.3", "width = 1.0")
    records = feddrop.run(feddrop.RunConfig.from_toml(text, settings), "radio")
    for record in records:
        assert record.latency_s <= 0.15
        assert max(entry.rate for entry in record.devices) > 0.05
        assert all(entry.pull_bytes == entry.push_bytes + 16 for entry in record.devices)
        assert record.metrics["lost"] > 0
    assert sections_bytes({"lost": ("float32", (1,))}) == 16


def test_what_it_does_not_take_is_an_error_before_the_run(mine):
    with pytest.raises(feddrop.ConfigError, match="does not take the settings"):
        feddrop.run(feddrop.RunConfig.from_toml('method = { name = "mine:rounded", grains = 2 }'), "run")
    with pytest.raises(feddrop.ConfigError, match="cannot be imported"):
        feddrop.run(feddrop.RunConfig.from_toml('method = "mine:squared"'), "run")


@pytest.mark.slow
def test_the_command_line_finds_it_in_the_current_folder(mine, tmp_path):
    (tmp_path / "my.toml").write_text(NAMED)
    call = "import sys; sys.path.remove(''); from feddrop.cli import main; main()"
    command = [sys.executable, "-c", call, "run", "my.toml", "--rounds", "1", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert feddrop.load_run(tmp_path / "run").rounds[0].metrics["lost"] > 0
