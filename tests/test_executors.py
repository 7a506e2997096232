import multiprocessing
import os
import signal
from dataclasses import replace
from functools import partial

import pytest
import torch

from feddrop import params
from feddrop.errors import RunError
from feddrop.executors import Processes, Samples, Serial, Task
from feddrop.methods.feddrop import feddrop
from feddrop.rounds import run_round
from feddrop.subnets.cut import SubnetConfig
from feddrop.training import TrainConfig


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
