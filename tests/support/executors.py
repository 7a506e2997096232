"""A small task for executors, and rounds over it."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import torch
from torch import nn

from feddrop.config import FedDrop, Train
from feddrop.executors import Serial
from feddrop.learning.local import accuracy
from feddrop.methods import build_method
from feddrop.methods.method import Setup
from feddrop.simulation.device import Samples, Task
from feddrop.simulation.exchange import Forgetful
from feddrop.simulation.round import Intake, run_round
from feddrop.subnets import parameters

RATES = {0: 0.0, 1: 0.2, 2: 0.5, 4: 0.8}


class TwoInputs(nn.Module):
    """Takes two halves of a picture, works in place, and draws random numbers, even in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.upper, self.lower, self.out = nn.Linear(128, 8), nn.Linear(128, 8), nn.Linear(8, 10)

    def forward(self, upper, lower):
        upper.mul_(0.5)  # in place: without a copy, this would change the shared data
        return self.out(nn.functional.dropout(torch.relu(self.upper(upper) + self.lower(lower)), 0.1))


def margin(outputs, targets):
    """A custom metric."""
    top = outputs.topk(2, dim=1).values
    return (top[:, 0] - top[:, 1]).mean()


def remembering(setup):
    """Importance draws whose devices count their rounds in their memory, and remember what they were sent."""
    base = build_method(FedDrop(draw="importance"), setup)

    def local(subnet, values, job, batches, memory):
        update, _ = base.local(subnet, values, job, batches, memory)
        first = next(iter(values.values())).reshape(-1)[:5].clone()
        return update, {"rounds": memory.get("rounds", torch.zeros(1, dtype=torch.int64)) + 1, "first": first}

    return base._replace(local=local)


def dropping(setup, level="weight"):
    return build_method(FedDrop(level=level), setup)


def task_for(model, data, factory=dropping, **given):
    setup = Setup(model=model, example=data.train_x[:1], rounds=3, train=Train(batch_size=16, lr=0.1))
    samples = Samples(data.train_x[:300], data.train_y[:300], data.test_x, data.test_y)
    task = Task(
        setup=setup,
        factory=factory,
        samples=samples,
        parts=list(torch.arange(300).split(60)),
        measures={"accuracy": accuracy},
    )
    return replace(task, **given)


def two_input_task(data):
    def halves(x):
        flat = x.reshape(len(x), 256)
        return flat[:, :128].clone(), flat[:, 128:].clone()

    samples = Samples(halves(data.train_x[:300]), data.train_y[:300], halves(data.test_x), data.test_y)
    task = task_for(TwoInputs(), data, remembering)
    setup = replace(task.setup, example=tuple(half[:1] for half in samples.train_x))
    return replace(task, setup=setup, samples=samples, measures={"accuracy": accuracy, "margin": margin})


def rounds_with(executor, task, count=2, rates=None, hook=None):
    """Run rounds, and return all that may differ: parameters, records, memories, measures."""
    method = task.factory(task.setup)
    whole, memories = parameters.from_model(task.setup.model), Forgetful()
    state, devices = method.init(whole), []
    for round_ in range(1, count + 1):
        if hook:
            hook(round_)
        intake = Intake(method, whole, state, round_, memories=memories)
        whole, state, devices = run_round(intake, executor, rates or RATES, seed=1)
    records = [replace(device, seconds=0.0) for device in devices]
    return whole, records, dict(memories), executor.evaluate(whole)


def assert_same(one, two):
    assert one[1:] == two[1:]
    assert list(one[0]) == list(two[0])
    assert all(torch.equal(one[0][name], two[0][name]) for name in one[0])


def serially(task, **given):
    with contextlib.closing(Serial(task)) as serial:
        return rounds_with(serial, task, **given)
