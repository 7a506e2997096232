"""Blocks of devices that workers merge: the same bits on every executor, and the same rules as for single updates."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

import feddrop
from feddrop.config import METHODS, Execution, Server
from feddrop.errors import ConfigError, RunError
from feddrop.executors import EXECUTORS, Processes, Serial
from feddrop.learning.guard import Guard
from feddrop.learning.means import Mean
from feddrop.methods import build_run_method
from feddrop.simulation.blocks import run_in_blocks
from feddrop.simulation.exchange import Forgetful, exchange, pull
from feddrop.simulation.round import Intake, run_round
from feddrop.simulation.untrained import Untrained
from feddrop.subnets import parameters
from feddrop.subnets.piece import scatter
from support.simulation import TRAIN, few, method_of, task_for

DEVICES, SIZE = 7, 3
IMPORTANCE = [
    ("feddrop", {"draw": "importance", **more})
    for more in ({}, {"threshold": "layer", "exponent": 2.0}, {"level": "unit"}, {"level": "unit", "exponent": 2.0})
]
LINEAR = [
    *(("feddrop", {}), ("feddrop", {"level": "unit", "rule": "holders"}), *IMPORTANCE),
    *(("feddrop", {"rule": "model", "variance_weight": 1.0}), ("pruning", {"rule": "holders"})),
    *((name, {}) for name in ("caldas", "fedavg", "fedrolex", "fiarse", "heterofl", "perfedmask", "pruning", "wen")),
]


@pytest.fixture
def small(digits):
    return few(digits)


def task_of(model, data, name="feddrop", settings=None, train=TRAIN, server=None):
    parts = list(torch.arange(len(data.train_y)).tensor_split(DEVICES))
    return task_for(
        model, data, name, rates=(0.4,) * DEVICES, parts=parts, train=train, server=server, **(settings or {})
    )


def rounds(task, executor, size=SIZE, count=2, **given):
    """Run rounds in blocks, or without; return all that may differ."""
    method, params, memories = method_of(task), parameters.from_model(task.setup.model), Forgetful()
    state, guard, untrained = method.init(params), Guard(task.setup.server, seed=5), Untrained.of(task.setup.model)
    for round_ in range(1, count + 1):
        intake = Intake(method, params, state, round_, memories=memories, guard=guard, untrained=untrained, **given)
        what = intake, executor, dict(enumerate(task.setup.rates)), 4, "float32"
        result = run_in_blocks(*what, means=task.setup.means, size=size) if size else run_round(*what)
        params, state = result.params, result.state
    devices = [replace(device, seconds=0.0) for device in result.devices]
    return params, devices, state, dict(memories), untrained.tensors(), guard.tensors()


def equal(one, two):
    """Compare nested outcomes to the bit."""
    if isinstance(one, dict):
        return list(one) == list(two) and all(equal(one[name], two[name]) for name in one)
    return torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two


def close(one, two):
    assert all(torch.allclose(one[0][name], two[0][name], rtol=1e-4, atol=1e-6) for name in one[0])


# --- what is computed


@pytest.mark.parametrize(("name", "settings"), LINEAR)
def test_blocks_give_the_network_of_single_updates_up_to_rounding(name, settings, tiny, small):
    """In one round, everything else is equal to the bit: records, marks, memories."""
    task = task_of(tiny, small, name, settings)
    with contextlib.closing(Serial(task)) as serial:
        single, blocks = rounds(task, serial, size=0, count=1), rounds(task, serial, count=1)
        assert [device.status for device in blocks[1]] == ["ok"] * DEVICES
        assert all(equal(*pair) for pair in zip(single[1:], blocks[1:], strict=True))
        close(single, blocks)
        assert not equal(parameters.from_model(tiny), blocks[0])
        assert equal(rounds(task, serial, size=DEVICES)[0], rounds(task, serial, size=0)[0])  # one block: the same sum


def test_methods_that_do_more_than_average_are_not_linear(tiny, small):
    """The table of tests covers every linear method, and the others say that they are not."""
    tasks = {name: task_of(tiny, small, name) for name in METHODS}
    long = {name: replace(task, setup=replace(task.setup, rounds=99)) for name, task in tasks.items()}
    linear = {name for name, task in long.items() if method_of(task).is_linear}
    assert linear == {name for name, _ in LINEAR}
    task = task_of(tiny, small, server=Server(agreement=0.5))
    assert not build_run_method(task.factory, task.setup).is_linear


def test_the_sum_of_sums_is_that_of_a_slow_twin(tiny, small):
    """The twin holds all updates, adds up every block by itself, then the blocks; over holders, it divides by them."""
    task = task_of(tiny, small, "heterofl")
    method, before = method_of(task), parameters.from_model(tiny)
    rates = dict(enumerate(task.setup.rates))
    with contextlib.closing(Serial(task)) as serial:
        found = rounds(task, serial, count=1)[0]
        jobs = method.plan({}, before, 1, rates, 4)
        updates = [
            pull(method, reply.frame, sent.job, sent.subnet)
            for sent, reply in exchange(method, serial, before, jobs, "float32", Forgetful())
        ]
    for name, tensor in before.items():
        sums = []
        for first in range(0, DEVICES, SIZE):
            total, held = torch.zeros_like(tensor), torch.zeros_like(tensor)
            for update in updates[first : first + SIZE]:
                values, piece = update.values[name], update.subnet[name]
                total.add_(scatter(values, piece), alpha=update.weight)
                held.add_(scatter(torch.ones_like(values), piece), alpha=update.weight)
            sums.append((total, held))
        total, held = (sum(parts[1:], parts[0]) for parts in zip(*sums, strict=True))
        assert torch.equal(found[name], tensor + total / torch.where(held > 0, held, 1.0)), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("executor", "name", "settings"),
    [*(("processes", *case) for case in LINEAR), *(("ray", *case) for case in LINEAR[:6])],
)
def test_every_executor_gives_the_same_bits(executor, name, settings, tiny, small, request):
    if executor == "ray":
        request.getfixturevalue("own_ray")
    wanted = Execution(executor=executor, address="local") if executor == "ray" else Execution(executor=executor)
    task = task_of(tiny, small, name, settings)
    with contextlib.closing(Serial(task)) as serial:
        expected = rounds(task, serial)
    with contextlib.closing(EXECUTORS[executor](task, wanted)) as pool:
        assert all(equal(*pair) for pair in zip(rounds(task, pool), expected, strict=True))


# --- what may go wrong


def test_refused_lost_and_failing_devices_are_those_of_single_updates(tiny, small):
    """One device fails, one is lost on the way, one sends an absurd update: it waits at the server."""
    task = task_of(tiny, small, server=Server(max_samples=20))
    sick = task.samples.train_x.clone()
    sick[task.parts[4]] = float("nan")
    task = replace(task, samples=task.samples._replace(train_x=sick))

    class Absurd(Serial):
        """Device 1 sends an update that is 10,000 times as large."""

        def __init__(self, task):
            super().__init__(task)
            local = self._device.method.local

            def large(subnet, values, job, batches, memory):
                update, memory = local(subnet, values, job, batches, memory)
                factor = 1e4 if job.device == 1 and job.round == 2 else 1.0
                return replace(update, values={name: factor * v for name, v in update.values.items()}), memory

            self._device.method = self._device.method._replace(local=large)

    with contextlib.closing(Absurd(task)) as executor:
        given = {"lost": {2: "faded"}, "num_samples": [len(part) for part in task.parts]}
        single, blocks = rounds(task, executor, size=0, **given), rounds(task, executor, **given)
        statuses = [device.status for device in blocks[1]]
        assert statuses == [device.status for device in single[1]] or "implausible" in statuses[1]
        assert "implausible" in statuses[1]
        assert statuses[2] == "lost: faded"
        assert "diverged" in statuses[4]
        assert [device.suspicious for device in blocks[1]] == [device.suspicious for device in single[1]]
        close(single, blocks)
        with pytest.raises(RunError, match="fewer than 7 devices"):
            rounds(task, executor, min_devices=7, count=1)
        none = rounds(task, executor, count=1, lost=dict.fromkeys(range(DEVICES), "faded"), min_devices=2)
        assert equal(none[0], parameters.from_model(tiny))
        assert {device.status for device in none[1]} == {"lost: faded", none[1][4].status}


def test_a_killed_worker_is_replaced_and_a_block_that_kills_three_is_left_out(tiny, small):
    task = task_of(tiny, small)
    with contextlib.closing(Serial(task)) as serial:
        expected = rounds(task, serial)
    with contextlib.closing(Processes(task, 1)) as pool:
        first = rounds(task, pool, count=1)
        os.kill(pool._workers[0]._process.pid, signal.SIGKILL)
        assert all(equal(*pair) for pair in zip(rounds(task, pool), expected, strict=True))
        merge = pool._pool.in_order

        def deadly(blocks, message, given_up, *, times):
            for number, part in enumerate(merge(blocks, message, given_up, times=times)):
                assert times(type("Block", (), {"jobs": range(SIZE)})) == SIZE
                yield "its worker process was killed, 3 times" if number == 1 else part

        pool._pool.in_order = deadly
        found = rounds(task, pool, count=1)
        assert [device.status == "ok" for device in found[1]] == [True] * 3 + [False] * 3 + [True]
        assert "3 times" in found[1][3].status
        assert found[1][3].kept == first[1][3].kept


# --- what is refused


def settings(text):
    base = ["rounds=2", "rate=0.4", "data.devices=4", "data.train_limit=60", "model.name=mlp", "model.width=0.1"]
    return feddrop.RunConfig.from_toml(text, [*base, "execution.merge_block=2"])


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[method]\nname = 'feddst'", "does more with its updates than average"),
        ("[server]\nagreement = 0.5", "does more with its updates than average"),
        ("[server]\nfilter = true", "server.filter needs all updates"),
        ("[server]\nclip = 2.0", "server.clip needs all updates"),
        ("[server]\nmean = 'median'", "server.mean is 'median'"),
    ],
)
def test_what_needs_all_updates_is_refused_before_the_first_round(text, wrong, tmp_path):
    with pytest.raises(ConfigError, match=wrong):
        feddrop.Run(settings(text), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_virtual_clock_is_refused(tmp_path):
    cell = "[radio]\ndeadline_s = 9.0\n[clock]\nkind = 'first'\ncount = 2"
    with pytest.raises(ConfigError, match="merges updates one by one"):
        feddrop.Run(feddrop.RunConfig.from_toml(cell, ["rounds=2", "execution.merge_block=2"]), tmp_path / "run")


def test_an_executor_without_merge_is_refused(tmp_path):
    class Plain:
        def __init__(self, task):
            self.compute, self.close = Serial(task).compute, lambda: None

    with pytest.raises(ConfigError, match=r"Plain has no method merge"):
        next(iter(feddrop.Run(settings(""), tmp_path / "run", executor=Plain)))


def test_a_method_that_is_not_linear_but_says_so_is_refused(tiny, small):
    def merge(state, params, updates):
        return params, {**state, "seen": torch.ones(len(list(updates)))}

    task = task_of(tiny, small)
    base = task.factory
    task = replace(task, factory=lambda setup: base(setup)._replace(merge=merge, linear=merge))
    with contextlib.closing(Serial(task)) as serial, pytest.raises(RunError, match="says that it is linear"):
        rounds(task, serial)


def test_a_replaced_merge_is_not_taken_for_linear(tmp_path):
    """The new merge weighs each update by all that it has seen, which no worker knows of another's block."""

    def build(setup):
        inner = feddrop.build_method(feddrop.FedDrop(), setup)

        def merge(state, params, updates):
            seen = list(updates)
            return inner.merge(state, params, [(job, replace(one, weight=len(seen))) for job, one in seen])

        return inner._replace(merge=merge)

    with pytest.raises(ConfigError, match="does more with its updates than average them"):
        next(iter(feddrop.Run(settings(""), tmp_path / "run", method=build)))


def test_a_run_resumes_to_the_bit_but_not_with_other_blocks(tmp_path):
    config = settings("[train]\ncompress = 0.5")  # devices remember what they did not send
    whole = feddrop.Run(config, tmp_path / "whole")
    list(whole)
    next(iter(feddrop.Run(config, tmp_path / "halves")))
    again = feddrop.Run(config, tmp_path / "halves", resume=True)
    list(again)
    assert equal(again.params, whole.params)
    assert [replace(one, wall_s=0.0) for one in again.records] == [replace(one, wall_s=0.0) for one in whole.records]
    with pytest.raises(RunError, match="merge_block was 2, is 1"):
        feddrop.Run(replace(config, execution=Execution(merge_block=1)), tmp_path / "halves", resume=True)


def test_sums_of_means_are_those_of_one_mean():
    like, one = {"w": torch.zeros(5, dtype=torch.float16)}, Mean({"w": torch.zeros(5)}, over="holders")
    assert Mean(like, over="all").sums().total["w"].dtype == np.float32
    one.include(one.sums())
    assert one.weight == 0
