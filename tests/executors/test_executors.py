"""What every executor must do: the contract, over the table of them; and what worker processes must survive."""

from __future__ import annotations

import contextlib
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import feddrop
from feddrop import wire
from feddrop.config import Execution
from feddrop.errors import ConfigError, RunError
from feddrop.executors import EXECUTORS, Processes, Reply, Serial, shared
from feddrop.executors.threads import torch_threads
from feddrop.simulation.round import Intake, run_round
from feddrop.subnets import parameters
from feddrop.wire.sections import unpack_sections
from support.executors import (
    RATES,
    assert_same,
    dropping,
    rounds_with,
    serially,
    task_for,
    two_input_task,
)


def made(name, task, **settings):
    settings |= {"address": "local"} if name == "ray" else {}
    return contextlib.closing(EXECUTORS[name](task, Execution(executor=name, **settings)))


# --- the contract


@pytest.mark.slow
@pytest.mark.parametrize("name", EXECUTORS)
def test_contract(name, tiny, digits, request):
    """One executor through all that is asked of it: bits, order, memories, failing devices, use after a break."""
    if name == "ray":
        request.getfixturevalue("own_ray")
    task = task_for(tiny, digits, partial(dropping, level="unit"))
    expected = serially(task)
    with made(name, task) as executor:
        got = rounds_with(executor, task)
        assert_same(got, expected)
        assert [record.device for record in got[1]] == [0, 1, 2, 4]
        assert all(record.pull_bytes == record.push_bytes for record in got[1])  # what goes down comes back
        assert all(not tensor.isnan().any() for tensor in got[0].values())

        frames = []  # broken off in the middle, also while parcels are made: the next round is not disturbed

        def parcels(most):
            method, whole = task.factory(task.setup), parameters.from_model(tiny)
            for job in method.plan({}, whole, 1, RATES, 1):
                if len(frames) == most:
                    raise KeyError("broken off")
                frames.append(feddrop.simulation.exchange.push(whole, method.cut(job), job))
                yield feddrop.Parcel(job.device, frames[-1])

        with contextlib.suppress(KeyError):
            list(executor.compute(parcels(3)))
        frames.clear()
        next(iter(executor.compute(parcels(len(RATES)))))  # quick devices go several per call: none may be broken here
        assert_same(rounds_with(executor, task), expected)
        executor.close()  # twice is no error
    damaged = task.samples.train_x.clone()
    damaged[60:120] = float("nan")
    sick = replace(task, samples=task.samples._replace(train_x=damaged))
    with made(name, sick) as executor:
        _, records, _, _ = rounds_with(executor, sick, rates={0: 0.1, 1: 0.1, 2: 0.1})
    assert [record.status == "ok" for record in records] == [True, False, True]
    assert "diverged" in records[1].status


@pytest.mark.slow
@pytest.mark.parametrize("name", EXECUTORS)
def test_several_inputs_metrics_and_memories(name, digits, request):
    if name == "ray":
        request.getfixturevalue("own_ray")
    task = two_input_task(digits)
    rates = dict.fromkeys(range(5), 0.5)
    expected = serially(task, rates=rates)
    assert set(expected[3]) == {"loss", "accuracy", "margin"}
    assert all(unpack_sections(m)["rounds"] == 2 for m in expected[2].values())
    assert len(expected[2]) == 5
    with made(name, task, workers=3) as executor:
        assert_same(rounds_with(executor, task, rates=rates), expected)


@pytest.mark.slow
def test_the_portable_way_to_share_gives_the_same_bits(tiny, digits, monkeypatch):
    """Where open files cannot be handed over (Windows), each worker is sent the bytes."""
    monkeypatch.setattr(shared, "BY_DESCRIPTOR", False)
    task = task_for(tiny, digits)
    with contextlib.closing(Processes(task, 1)) as pool:
        assert_same(rounds_with(pool, task), serially(task))


class Backwards:
    """An executor from outside: it computes the last device first, and gives replies in order."""

    def __init__(self, task):
        self.device, self.task, self.closed = feddrop.Device(task), task, False

    def compute(self, parcels):
        parcels = list(parcels)
        replies = [self.device.handle(one.frame, one.memory) for one in reversed(parcels)]
        return reversed(replies)

    def evaluate(self, params):
        self.device.load(params)
        return self.task.combine([self.device.evaluate(chunk) for chunk in self.task.chunks])

    def close(self):
        self.closed = True


def test_an_executor_from_outside(tmp_path, tiny, digits):
    config = feddrop.RunConfig.from_toml("", ["rounds=2", "rate=0.3", "data.devices=4", "data.train_limit=200"])
    made = []

    def factory(task):
        made.append(Backwards(task))
        return made[-1]

    own = feddrop.run(config, tmp_path / "own", executor=factory)
    serial = feddrop.run(config, tmp_path / "serial")
    assert [record["test_loss"] for record in own] == [record["test_loss"] for record in serial]
    assert made[0].closed


@pytest.mark.parametrize("keep", [slice(1), slice(0, None, 2), slice(0, 0), "twice", "unread"])
def test_an_executor_that_miscounts_is_an_error(tmp_path, tiny, digits, keep):
    """Devices had been missing from the record, and nothing said so."""

    class Miscounting(Serial):
        def compute(self, parcels):
            parcels = iter(parcels)
            if keep == "unread":
                return super().compute([next(parcels)])
            replies = list(super().compute(parcels))
            return iter(replies * 2 if keep == "twice" else replies[keep])

    config = feddrop.RunConfig.from_toml("rounds = 1\ndata = { devices = 3 }")
    small = feddrop.from_arrays(digits.train_x[:30], digits.train_y[:30], digits.test_x[:10], digits.test_y[:10])
    with pytest.raises(RunError, match=r"returned (more|fewer) replies than there are devices \(3\)"):
        feddrop.run(config, tmp_path / "run", model=tiny, dataset=small, executor=Miscounting)


@pytest.mark.slow
def test_the_page_does_what_it_says(tmp_path):
    """As one script, guard included: its workers start from it."""
    text = (Path(__file__).parents[2] / "docs" / "executors.md").read_text()
    script = tmp_path / "page.py"
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    script.write_text("\n".join([*blocks, "    print(sum(d.status != 'ok' for r in records for d in r.devices))"]))
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout.split()[-1] == "2", done.stderr  # of 20 answers


# --- devices that fail, updates one by one


def test_a_device_that_diverges_is_left_out(tiny, digits):
    """One device's data are absurd: its update is refused, the others' are merged as if it were not there."""
    task = task_for(tiny, digits)
    spoiled = digits.train_x[:300].clone()
    spoiled[60:120] = float("nan")
    sick = replace(task, samples=task.samples._replace(train_x=spoiled))
    got = serially(sick, count=1, rates={0: 0.1, 1: 0.1, 2: 0.1})
    expected = serially(sick, count=1, rates={0: 0.1, 2: 0.1})
    assert all(torch.equal(expected[0][name], got[0][name]) for name in got[0])
    with pytest.raises(RunError, match=r"train\.lr"):
        serially(sick, count=1, rates={1: 0.1})


def test_updates_are_folded_in_as_they_arrive(tiny, digits):
    """The server never holds more than one update: each is merged before the next device is computed."""
    task = task_for(tiny, digits)
    method = task.factory(task.setup)
    events = []

    class Watched(Serial):
        def compute(self, parcels):
            for reply in super().compute(parcels):
                events.append("computed")
                yield reply

    def merge(state, whole, updates):
        def watched():
            for update in updates:
                yield update
                events.append("merged")

        return method.merge(state, whole, watched())

    with contextlib.closing(Watched(task)) as executor:
        whole = parameters.from_model(tiny)
        rates = {0: 0.0, 1: 0.0, 2: 0.0}
        run_round(Intake(method._replace(merge=merge), whole, {}, 1), executor, rates, seed=0)
    assert events == ["computed", "merged"] * 3


def test_a_device_that_fails_does_not_stop_the_others(digits):
    """Batch norm cannot train on the only sample of device 1; one that is left over joins the minibatch before it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    task = task_for(model, digits)
    left_over = 2 * task.setup.train.batch_size + 1
    task = replace(task, parts=list(torch.arange(300).split([left_over, 1, 60, 60, 179 - left_over])))
    _, records, _, _ = serially(task, rates={0: 0.1, 1: 0.1, 2: 0.1})
    assert [record.status == "ok" for record in records] == [True, False, True]
    assert records[1].status.startswith("ValueError: Expected more than 1 value per channel")
    with pytest.raises(RunError, match="no device returned a usable update in round 1: ValueError"):
        serially(task, rates={1: 0.1})


def test_an_error_of_many_devices_names_a_few_reasons(tiny, digits):
    class Silent(Serial):
        def compute(self, parcels):
            return (Reply(error=f"device {parcel.device} is away") for parcel in parcels)

    task = task_for(tiny, digits)
    method, rates = task.factory(task.setup), dict.fromkeys(range(40), 0.1)
    with contextlib.closing(Silent(task)) as executor, pytest.raises(RunError, match=r"and 35 other reasons\.$"):
        run_round(Intake(method, parameters.from_model(tiny), {}, 1), executor, rates, seed=0)


class Tampered(Serial):
    """An executor whose second device answers with a frame that was changed on its way."""

    def __init__(self, task, change):
        super().__init__(task)
        self._change = change

    def compute(self, parcels):
        for number, reply in enumerate(super().compute(parcels)):
            yield reply._replace(frame=self._change(reply.frame)) if number == 1 else reply


def rewritten(frame, subnet, payload=None, **header):
    """Return the same update with another header, or values of 3e38, whole and with a right checksum."""
    head = replace(wire.parse(frame).header, **header)
    size = 0.01 if header else 3e38
    values = {name: torch.full((piece.size,), size) for name, piece in subnet.items()}
    return wire.encode(head, subnet, values, payload or {})


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({}, "diverged"),
        ({"num_samples": 2**62}, "expected 60"),
        ({"payload": {"x" * 60_000: torch.zeros(1)}}, "returned the payload {'xxx"),
    ],
)
def test_no_frame_can_overthrow_the_network(tiny, digits, header, reason):
    task = task_for(tiny, digits)
    method, whole = task.factory(task.setup), parameters.from_model(tiny)
    subnet = method.cut(method.plan({}, whole, 1, {0: 0.1, 1: 0.1, 2: 0.1}, 1)[1])

    def once(executor, rates):
        return run_round(Intake(method, whole, {}, 1, num_samples=[60] * 5), executor, rates, seed=1)

    with contextlib.closing(Tampered(task, partial(rewritten, subnet=subnet, **header))) as tampered:
        got = once(tampered, {0: 0.1, 1: 0.1, 2: 0.1})
    with contextlib.closing(Serial(task)) as serial:
        without = once(serial, {0: 0.1, 2: 0.1})
    assert [record.status == "ok" for record in got.devices] == [True, False, True]
    assert reason in got.devices[1].status
    assert len(got.devices[1].status) < 300  # a record is no place for what others write
    assert all(torch.equal(without.params[name], got.params[name]) for name in whole)


# --- settings


@pytest.mark.parametrize(
    "setting", ["threads=99999999999", "threads=0", "workers=1e9", "workers=0", "timeout_s=0", "timeout_s=nan"]
)
def test_settings_out_of_range_are_clear_errors(setting):
    with pytest.raises(ConfigError, match=rf"execution\.{setting.partition('=')[0]}"):
        feddrop.RunConfig.from_toml("", [f"execution.{setting}"])


def test_numpy_numbers_are_numbers():
    config = Execution(workers=np.int64(3), threads=np.uint8(2), timeout_s=np.float32(5))
    assert (config.workers, config.threads, config.timeout_s) == (3, 2, 5.0)
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(ConfigError, match="whole"):
        Execution(workers=2.5)


def test_the_server_merges_with_the_threads_of_a_device_and_restores_those_of_the_program(tmp_path):
    seen, before = [], torch.get_num_threads()

    def watching(setup):
        method = feddrop.build_method(feddrop.FedDrop(), setup)

        def merge(*given):
            seen.append(torch.get_num_threads())
            return method.merge(*given)

        return method._replace(merge=merge)

    torch.set_num_threads(3)
    try:
        data, where = feddrop.Data("digits", devices=2, train_limit=40), feddrop.Execution(threads=2)
        config = feddrop.RunConfig(rounds=2, data=data, execution=where)
        for _ in feddrop.Run(config, tmp_path / "run", method=watching, executor=Untouched):
            seen.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert seen == [2, 3, 2, 3]


class Untouched(Serial):
    """Trains in the server's process, as if elsewhere: with its own threads, and the server's restored."""

    def __init__(self, task):
        with torch_threads(1):
            super().__init__(task)

    def close(self):
        pass


def test_no_more_workers_than_can_be_busy(tiny, digits, monkeypatch):
    started = []
    monkeypatch.setattr("feddrop.executors.Processes", lambda task, workers, **_: started.append(workers))
    monkeypatch.setattr("feddrop.executors.Ray", lambda task, workers, **_: started.append(workers))
    task = task_for(tiny, digits, dropping)
    most = max(len(task.parts), len(task.chunks))
    for name in ("processes", "ray"):
        for workers in (2, 1024):
            EXECUTORS[name](task, Execution(executor=name, workers=workers))
    assert started == [2, most, 2, most]
