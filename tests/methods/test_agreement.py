"""Gradient masked averaging: the pins, its limits, and every method inside."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from feddrop.config import METHODS, RunConfig, Server
from feddrop.methods import build_method, build_run_method
from feddrop.methods.agreement import AGREEMENT, Votes
from feddrop.methods.method import Job, Setup, Update
from feddrop.simulation.run import Run
from feddrop.subnets.piece import Piece
from support.simulation import few, rounds_of, task_for

PIN = torch.tensor([[1.0, 1, -1, 0], [2, -1, -1, 0], [3, 1, -1, 1], [-1, 1, 1, 1]])
"""Changes of four devices (rows) for four entries; the agreement is 0.5 in every column."""
SETTINGS = {
    "feddst": {"alpha": 0.3, "readjust_every": 2},
    "prunefl": {"first_rounds": 0, "adjust_every": 2},
}


def step(changes, held=None, threshold=0.6):
    """Merge changes of one tensor of four entries with FedDrop's mean over holders; return the step."""
    model = nn.Linear(4, 1, bias=False)
    setup = Setup(model=model, example=torch.zeros(1, 4), rounds=1, server=Server(agreement=threshold))
    method = build_run_method(partial(build_method, METHODS["feddrop"](rule="holders")), setup)
    params = {"weight": torch.zeros(1, 4)}
    updates = []
    for device, change in enumerate(changes):
        index = torch.arange(4) if held is None else held[device].nonzero().flatten()
        piece = Piece(shape=(1, 4), index=index.numpy(), sub_shape=(1, 4))
        update = Update(
            device=device, num_samples=1, loss=0.0, subnet={"weight": piece}, values={"weight": change[index]}
        )
        updates.append((Job(round=1, device=device, seed=1, rate=0.0), update))
    after, state = method.merge(method.init(params), params, iter(updates))
    return after["weight"].flatten(), float(state[AGREEMENT])


def test_the_pin_of_four_devices():
    found, agreement = step(PIN)
    assert found.tolist() == pytest.approx([0.625, 0.25, -0.25, 0.25])
    assert agreement == pytest.approx(0.5)


def test_entries_that_a_device_does_not_hold_are_no_disagreement():
    held = torch.ones(4, 4, dtype=torch.bool)
    held[:2, 3] = False
    found, agreement = step(PIN, held)
    assert found.tolist() == pytest.approx([0.625, 0.25, -0.25, 1.0])
    assert agreement == pytest.approx((3 * 0.5 + 1) / 4)


def test_one_holder_agrees_with_itself_and_seven_of_ten_agree_by_two_fifths():
    held = torch.tensor([[True, True, False, False], [True, False, True, False]])
    found, _ = step(torch.tensor([[1.0, -2, 0, 0], [-1.0, 0, 3, 0]]), held)
    assert found.tolist() == [0.0, -2.0, 3.0, 0.0]
    votes = Votes({"w": torch.zeros(1)})
    update = partial(Update, num_samples=1, loss=0.0, subnet={"w": Piece(shape=(1,), sub_shape=(1,))})
    signs = [1.0] * 7 + [-1.0] * 3
    assert (
        len(list(votes.counted((None, update(device=k, values={"w": torch.tensor([s])})) for k, s in enumerate(signs))))
        == 10
    )
    assert float(votes.agreement("w")) == pytest.approx(0.4)
    assert float(votes.mask("w", 0.4)) == 1.0  # at the threshold the entry is kept
    assert float(votes.mask("w", 0.5)) == pytest.approx(0.4)


def test_a_threshold_that_all_reach_changes_no_bit(tiny, digits):
    plain = task_for(tiny, few(digits), "feddrop", rates=(0.4,) * 3)
    masked = task_for(tiny, few(digits), "feddrop", rates=(0.4,) * 3, server=Server(agreement=1e-9))
    masked = replace(masked, factory=partial(build_run_method, masked.factory))
    (*_, one), (*_, two) = rounds_of(plain, 2), rounds_of(masked, 2)
    assert all(torch.equal(one.params[name], two.params[name]) for name in one.params)
    assert 0 < float(two.state[AGREEMENT]) < 1


@pytest.mark.parametrize("name", METHODS)
def test_it_goes_around_every_method_and_damps_its_steps(name, tiny, digits):
    task = task_for(tiny, few(digits), name, server=Server(agreement=1.0), **SETTINGS.get(name, {}))
    plain = replace(task, setup=replace(task.setup, server=Server()))
    task = replace(task, factory=partial(build_run_method, task.factory))
    damped, free = list(rounds_of(task, 2)), list(rounds_of(plain, 2))
    start = dict(tiny.named_parameters())
    assert all(value.isfinite().all() for value in damped[-1].params.values())
    steps = [
        sum(float((one.params[n] - p).detach().abs().sum()) for n, p in start.items()) for one in (damped[0], free[0])
    ]
    if name not in ("feddst",):  # whose first step sets pruned weights to zero, which is no disagreement
        assert steps[0] < steps[1]


def test_statistics_of_norms_are_not_damped(digits):
    net = nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    both = []
    for server in (Server(), Server(agreement=1.0)):
        task = task_for(net, few(digits), "fedavg", server=server)
        (result,) = rounds_of(replace(task, factory=partial(build_run_method, task.factory)), 1)
        both.append(result.params)
    assert torch.equal(both[0]["2.running_mean"], both[1]["2.running_mean"])
    assert not torch.equal(both[0]["1.weight"], both[1]["1.weight"])


@pytest.mark.parametrize("optimizer", ["average", "fedadam"])
def test_stopped_and_resumed_is_never_stopped(tmp_path, tiny, digits, optimizer):
    text = (
        f"rounds = 3\nrate = 0.4\ndata = {{ devices = 3 }}\nserver = {{ agreement = 0.5, optimizer = '{optimizer}' }}"
    )
    config = RunConfig.from_toml(text)
    never = Run(config, tmp_path / "never", model=tiny, dataset=few(digits))
    assert all(0 < record.metrics[AGREEMENT] < 1 for record in never)
    next(iter(Run(config, tmp_path / "stopped", model=tiny, dataset=few(digits))))
    again = Run(config, tmp_path / "stopped", model=tiny, dataset=few(digits), resume=True)
    list(again)
    assert all(torch.equal(never.params[name], again.params[name]) for name in never.params)
    assert torch.equal(never.state[AGREEMENT], again.state[AGREEMENT])
