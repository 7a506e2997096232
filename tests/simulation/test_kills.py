"""A run that is killed at any call to the file system, torn writes included, ends with the bits of one never killed.

The training is a toy, so that every point can be tried; ``test_runs.py`` kills real ones at random moments.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import stat
from functools import partial
from pathlib import Path

import pytest
import torch

from feddrop.config import RunConfig
from feddrop.errors import RunError
from feddrop.storage import DeviceRecord, RoundRecord, RunFolder, load_run
from feddrop.storage.checkpoints import load_checkpoint

ROUNDS = 4
CALLS = ("open", "mkdir", "fsync", "replace", "unlink", "rmdir", "truncate")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def train(folder: Path, overwrite: bool = False, until: int = ROUNDS) -> None:
    """A method that mixes parameters, memories and the round in every bit; it starts, resumes or overwrites."""
    disk, config, facts = RunFolder(folder), RunConfig(rounds=ROUNDS), {"parameters": 4}
    weights, done = torch.linspace(-1, 1, 4), 0
    with disk.locked():
        if overwrite:
            disk.begin(config, facts, overwrite=True)
        elif (folder / "run.json").exists():
            if found := disk.reopen(disk.config(), facts):
                weights, done = found.groups["params"]["w"], found.round
        else:
            disk.begin(config, facts)
        for round_ in range(done + 1, until + 1):
            for device in (round_ % 3, 5):
                memory = torch.frombuffer(bytearray(disk.memories.get(device) or bytes(16)), dtype=torch.float32)
                weights = torch.sin(weights * 1.7 + memory + device)
                disk.memories.put(round_, device, (weights * round_).numpy().tobytes())
            score = 1.0 if round_ == 1 else 0.5  # the first is the best: it stays, with its memories
            record = RoundRecord(round=round_, test_accuracy=score, devices=(DeviceRecord(device=5),))
            disk.save(record, {"params": {"w": weights}})


def outcome(folder: Path) -> tuple[bytes, bytes, list[str], list[str]]:
    """Everything that a run leaves, to the bit; names too, so that nothing is left over."""
    found = load_checkpoint(folder / "checkpoints")
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    disk = RunFolder(folder)
    with disk.locked():
        disk.reopen(disk.config(), {"parameters": 4})
    memories = [str(disk.memories.get(device)) for device in range(6)]
    return found.groups["params"]["w"].numpy().tobytes(), (folder / "metrics.jsonl").read_bytes(), names, memories


def killed(folder: Path, at: int, torn: bool, **how) -> bool:
    """Train in a child that is killed at its n-th call (``at``); return whether it was, or ended before."""
    child = os.fork()
    if not child:
        count = 0

        def counted(name, call):
            def wrapped(*args, **kwargs):
                nonlocal count
                count += 1
                if count == at:
                    if torn and name == "fsync":  # what was not on disk yet is lost
                        size = os.fstat(args[0]).st_size
                        if not stat.S_ISDIR(os.fstat(args[0]).st_mode):
                            os.ftruncate(args[0], max(0, size - 7))
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **kwargs)

            return wrapped

        code = 1
        try:
            for name in CALLS:
                setattr(os, name, counted(name, getattr(os, name)))
            train(folder, **how)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder)
    return outcome(folder)


@pytest.mark.slow
def test_killed_at_every_call(tmp_path, whole):
    at, points = 1, 0
    while True:
        folder = tmp_path / "run"
        if not killed(folder, at, torn=True):
            break
        points += 1
        train(folder)
        assert outcome(folder) == whole, f"killed at call {at}"
        shutil.rmtree(folder)
        at += 1
    assert points > 80
    assert outcome(folder) == whole


@pytest.mark.slow
def test_killed_at_every_call_while_overwriting(tmp_path, whole):
    """The folder resumes, to the run of before or the new one, or says to overwrite again; that always does.

    Calls after the new run's first round are those of any run.
    """
    old, seen = tmp_path / "old", set()
    train(old)
    for at in itertools.count(1):
        for again in (train, partial(train, overwrite=True)):
            folder = tmp_path / "run"
            shutil.copytree(old, folder)
            if not killed(folder, at, torn=True, overwrite=True, until=1):
                train(folder)
                assert outcome(folder) == whole
                assert {"resumed", "overwritten"} <= seen
                return
            if "overwriting" in json.loads((folder / "run.json").read_text()):
                for use in (train, load_run, lambda folder: RunFolder(folder).check_free()):
                    with pytest.raises(RunError, match=r"was being overwritten.*with overwrite=True"):
                        use(folder)
                train(folder, overwrite=True)
                seen.add("overwritten")
            else:
                again(folder)
                seen.add("resumed")
            assert outcome(folder) == whole, f"killed at call {at}"
            shutil.rmtree(folder)


@pytest.mark.slow
def test_killed_again_and_again_while_resuming(tmp_path, whole):
    """Each part is killed a few calls on, at steps that meet every kind of call; what was won is never lost."""
    for step in (37, 45):
        folder = tmp_path / f"run{step}"
        for again in range(30):
            if not killed(folder, step + again % 7, torn=bool(again % 2)):
                break
        else:
            pytest.fail("the run never came to its end")
        assert outcome(folder) == whole
