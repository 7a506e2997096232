import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from feddrop.training import TrainConfig
from torch import nn

from feddrop import params
from feddrop.errors import RunError
from feddrop.executors import Processes, Samples, Serial, Task
from feddrop.methods.feddrop import feddrop
from feddrop.rounds import run_round
from feddrop.subnets import frames
from feddrop.subnets.cut import SubnetConfig


def task_for(model, data, level="weight", lr=0.1):
    train = TrainConfig(batch_size=16, lr=lr)
    return Task(
        model=model,
        factory=partial(feddrop, subnet=SubnetConfig(level=level), train_config=train, rounds=3),
        samples=Samples(data.train_x[:300], data.train_y[:300], data.test_x, data.test_y),
        parts=list(torch.arange(300).split(60)),
        train=train,
    )


def rounds_with(executor, task, count=2, rates=None):
    method = task.factory(task.model, tuple(task.samples.train_x.shape[1:]))
    whole, state = params.from_model(task.model), {}
    for round_ in range(1, count + 1):
        given = rates or {0: 0.0, 1: 0.2, 2: 0.5, 4: 0.8}
        whole, state, devices = run_round(method, executor, whole, state, round_=round_, rates=given, seed=1)
    return whole, devices, executor.evaluate(whole)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["weight", "unit"])
def test_any_number_of_workers_gives_the_same_bits(tiny, digits, level):
    task = task_for(tiny, digits, level)
    serial = Serial(task)
    expected, records, score = rounds_with(serial, task)
    serial.close()
    assert [record.device for record in records] == [0, 1, 2, 4]
    assert all(record.pull_bytes == record.push_bytes for record in records)  # what goes down comes back
    for workers in (1, 3):
        pool = Processes(task, workers)
        try:
            got, pool_records, pool_score = rounds_with(pool, task)
        finally:
            pool.close()
        assert all(torch.equal(expected[name], got[name]) for name in expected)
        assert pool_score == score
        assert [r.pull_bytes for r in pool_records] == [r.pull_bytes for r in records]


@pytest.mark.slow
def test_a_killed_worker_is_a_clear_error(tiny, digits):
    task = task_for(tiny, digits)
    pool = Processes(task, 1)
    try:
        (child,) = multiprocessing.active_children()
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(RunError, match="resume"):
            rounds_with(pool, task)
    finally:
        pool.close()


def test_a_device_that_diverges_is_left_out(tiny, digits):
    """One device's data are absurd: its update is refused, the others' are merged as if it were not there."""
    task = task_for(tiny, digits)
    spoiled = digits.train_x[:300].clone()
    spoiled[60:120] = float("nan")
    serial = Serial(replace(task, samples=task.samples._replace(train_x=spoiled)))
    got, records, _ = rounds_with(serial, task, count=1, rates={0: 0.1, 1: 0.1, 2: 0.1})
    assert [record.status == "ok" for record in records] == [True, False, True]
    assert "finite" in records[1].status or "diverged" in records[1].status
    expected, _, _ = rounds_with(serial, task, count=1, rates={0: 0.1, 2: 0.1})
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    with pytest.raises(RunError, match="learning rate"):
        rounds_with(serial, task, count=1, rates={1: 0.1})
    serial.close()


def test_updates_are_folded_in_as_they_arrive(tiny, digits):
    """The server never holds more than one update: each is merged before the next device is computed."""
    task = task_for(tiny, digits)
    serial = Serial(task)
    method = task.factory(tiny, (1, 16, 16))
    events = []

    class Watched:
        def compute(self, pushed):
            for reply in serial.compute(pushed):
                events.append("computed")
                yield reply

    def merge(state, whole, updates):
        def watched():
            for update in updates:
                yield update
                events.append("merged")

        return method.merge(state, whole, watched())

    run_round(
        method._replace(merge=merge), Watched(), params.from_model(tiny), {}, round_=1, rates={0: 0, 1: 0, 2: 0}, seed=0
    )
    assert events == ["computed", "merged"] * 3
    serial.close()


class Tampered:
    """An executor whose device 1 answers with a frame that was changed on its way."""

    def __init__(self, serial, change):
        self._serial, self._change = serial, change

    def compute(self, pushed):
        for device, reply in enumerate(self._serial.compute(pushed)):
            yield reply._replace(frame=self._change(reply.frame)) if device == 1 else reply


def rewritten(frame, subnet, **header):
    """Return the same update with another header and values of 3e38, whole and with a right checksum."""
    head = replace(frames.parse(frame).header, **header)
    size = 3e38 if not header else 0.01
    return frames.encode(head, subnet, {name: torch.full((piece.size,), size) for name, piece in subnet.items()})


@pytest.mark.parametrize(("header", "reason"), [({}, "diverged"), ({"samples": 2**62}, "it has 60")])
def test_no_frame_can_overthrow_the_network(tiny, digits, header, reason):
    task = task_for(tiny, digits)
    serial = Serial(task)
    method = task.factory(tiny, (1, 16, 16))
    subnet = method.cut(method.plan({}, {}, 1, {0: 0.1, 1: 0.1, 2: 0.1}, 1)[1])
    tampered = Tampered(serial, partial(rewritten, subnet=subnet, **header))
    whole = params.from_model(tiny)
    samples = [60] * 5
    got = run_round(method, tampered, whole, {}, round_=1, rates={0: 0.1, 1: 0.1, 2: 0.1}, seed=1, samples=samples)
    assert [record.status == "ok" for record in got.devices] == [True, False, True]
    assert reason in got.devices[1].status
    without = run_round(method, serial, whole, {}, round_=1, rates={0: 0.1, 2: 0.1}, seed=1, samples=samples)
    assert all(torch.equal(without.params[name], got.params[name]) for name in whole)
    serial.close()


def test_a_device_that_fails_does_not_stop_the_others(digits):
    """Batch norm cannot train on the only sample of device 1; one that is left over joins the minibatch before it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    task = task_for(model, digits)
    left_over = 2 * task.train.batch_size + 1
    task = replace(task, parts=list(torch.arange(300).split([left_over, 1, 60, 60, 179 - left_over])))
    serial = Serial(task)
    _, records, _ = rounds_with(serial, task, rates={0: 0.1, 1: 0.1, 2: 0.1})
    assert [record.status == "ok" for record in records] == [True, False, True]
    assert records[1].status.startswith("ValueError: Expected more than 1 value per channel")
    with pytest.raises(RunError, match="no device returned a usable update in round 1: ValueError"):
        rounds_with(serial, task, rates={1: 0.1})
    serial.close()


@pytest.mark.slow
def test_workers_that_cannot_start_are_a_clear_error(tiny, digits, tmp_path):
    class Local(nn.Linear):
        pass

    with pytest.raises(RunError, match="top level of a module"):
        Processes(task_for(nn.Sequential(nn.Flatten(), Local(256, 10)), digits), 1)
    script = tmp_path / "unguarded.py"  # each worker runs the script again, and dies of it
    script.write_text(
        "import feddrop\n"
        "config = feddrop.RunConfig.from_toml('', ['execution.executor=processes', 'data.train_limit=50'])\n"
        "feddrop.run(config, 'out')\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "__name__ == '__main__'" in done.stderr
