"""Sparsified updates: what is sent, what is remembered, and every method inside."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from feddrop import wire
from feddrop.config import METHODS, RunConfig, Server, Train
from feddrop.errors import FrameError
from feddrop.methods import build_run_method
from feddrop.methods.compression import TOP
from feddrop.simulation.device import Device
from feddrop.simulation.exchange import pull
from feddrop.simulation.run import Run
from feddrop.subnets import parameters
from feddrop.subnets.masks import kept_count
from feddrop.subnets.piece import gather, scatter
from feddrop.wire.sections import unpack_sections
from support.mask_code import payload_bytes
from support.simulation import answered, few, method_of, rewritten, rounds_of, task_for

SHARE = 0.1
TRAIN = Train(lr=0.1, batch_size=16, compress=SHARE)
SETTINGS = {
    "feddst": {"alpha": 0.3, "readjust_every": 2},
    "prunefl": {"first_rounds": 0, "adjust_every": 2},
}


def compressed(tiny, digits, name, **given):
    task = task_for(tiny, few(digits), name, train=TRAIN, **given)
    return replace(task, factory=partial(build_run_method, task.factory))


def plain(task):
    return replace(task, setup=replace(task.setup, train=replace(task.setup.train, compress=1.0)))


@pytest.mark.parametrize(("level", "rule"), [("weight", "delta"), ("unit", "holders")])
def test_the_largest_changes_are_sent_and_the_others_remembered(tiny, digits, level, rule):
    """Against a slow twin that keeps the error in plain dictionaries, for devices whose subnet is new every round."""
    task = compressed(tiny, digits, "feddrop", level=level, rule=rule)
    whole = plain(task)
    method, inner, device, twin = method_of(task), method_of(whole), Device(task), Device(whole)
    params = parameters.from_model(tiny)
    errors = {name: torch.zeros(shape) for name, shape in parameters.shapes(tiny).items()}
    memory = b""
    for round_ in (1, 2, 3):
        (job,) = method.plan({}, params, round_, {1: 0.4}, 7)
        frame, memory = answered(device, method, params, job, memory)
        other, _ = answered(twin, inner, params, job)
        subnet = inner.cut(job)
        changes = wire.decode(wire.parse(other), subnet)
        sent = method.answer(job, {TOP: wire.parse(frame).sections[TOP].tensor()})
        values = wire.decode(wire.parse(frame), sent)
        assert len(frame) == wire.frame_bytes({name: piece.size for name, piece in sent.items()}, "float32") + (
            payload_bytes({TOP: wire.parse(frame).sections[TOP].tensor()}, frozenset())
        )
        remembered = unpack_sections(memory)
        for name, piece in subnet.items():
            if name not in parameters.weights(tiny):
                assert torch.equal(values[name], changes[name])
                continue
            scale = torch.as_tensor(piece.scale)
            wanted = changes[name] / scale + gather(errors[name], piece)
            count = kept_count(piece.size, SHARE)
            order = sorted(range(piece.size), key=lambda at: (-abs(float(wanted[at])), at))[:count]
            marks = torch.zeros(piece.size, dtype=torch.bool)
            marks[order] = True
            full = scatter(torch.where(marks, wanted, 0.0), piece)
            sends = sent[name]
            torch.testing.assert_close(scatter(values[name] / torch.as_tensor(sends.scale), sends), full)
            held = scatter(torch.ones(piece.size), piece).bool()
            errors[name] = torch.where(held, scatter(torch.where(marks, 0.0, wanted), piece), errors[name])
            torch.testing.assert_close(remembered[f"error/{name}"], errors[name])


def test_nothing_is_lost_what_was_sent_and_what_is_remembered_is_all_that_was_trained(tiny, digits):
    """Over rounds on the same network: Σ sent + error = Σ change."""
    task = compressed(tiny, digits, "fedavg")
    method, inner = method_of(task), method_of(plain(task))
    params, memory = parameters.from_model(tiny), b""
    total = {name: torch.zeros(p.shape) for name, p in params.items()}
    trained = {name: torch.zeros(p.shape) for name, p in params.items()}
    for round_ in (1, 2, 3):
        (job,) = method.plan({}, params, round_, {0: 0.0}, 7)
        frame, memory = answered(Device(task), method, params, job, memory)
        sent = method.answer(job, {TOP: wire.parse(frame).sections[TOP].tensor()})
        for name, value in wire.decode(wire.parse(frame), sent).items():
            total[name] += scatter(value, sent[name])
        other, _ = answered(Device(plain(task)), inner, params, job)
        for name, value in wire.decode(wire.parse(other), inner.cut(job)).items():
            trained[name] += scatter(value, inner.cut(job)[name])
    for name, error in unpack_sections(memory).items():
        torch.testing.assert_close(total[name[6:]] + error, trained[name[6:]], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "feddd"])  # which refuses it
@pytest.mark.parametrize("mean", ["mean", "median"])
def test_it_goes_around_every_method(name, mean, tiny, digits):
    task = compressed(tiny, digits, name, server=Server(mean=mean), **SETTINGS.get(name, {}))
    for result, other in zip(rounds_of(task, 2), rounds_of(plain(task), 2), strict=True):
        assert all(value.isfinite().all() for value in result.params.values())
        for one, two in zip(result.devices, other.devices, strict=True):
            assert one.push_bytes == two.push_bytes or name in ("feddst", "prunefl", "fiarse")  # masks of other weights
            assert one.pull_bytes < 0.5 * two.pull_bytes or name in ("prunefl", "fjord")  # whose payload is large


@pytest.mark.parametrize("settings", [{}, {"level": "unit"}, {"draw": "importance", "threshold": "layer"}])
def test_sizes_bound_every_frame(tiny, digits, settings):
    task = compressed(tiny, digits, "feddrop", **settings)
    method, device = method_of(task), Device(task)
    params, last = parameters.from_model(tiny), float("inf")
    for rate in (0.0, 0.1, 0.4, 0.8, 0.95):
        (job,) = method.plan({}, params, 1, {0: rate}, 7)
        frame, _ = answered(device, method, params, job)
        promised = method.sizes(rate)
        most = wire.frame_bytes(promised.answered, "float32") + promised.pull_bytes
        assert 0.9 * most < len(frame) <= most <= last
        last = most


@pytest.mark.parametrize("wrong", ["more", "fewer", "outside"])
def test_a_device_sends_as_many_changes_as_it_must_and_only_of_its_subnet(tiny, digits, wrong):
    task = compressed(tiny, digits, "feddrop")
    method = method_of(task)
    (job,) = method.plan({}, parameters.from_model(tiny), 1, {0: 0.4}, 7)
    frame, _ = answered(Device(task), method, parameters.from_model(tiny), job)
    mask = wire.parse(frame).sections[TOP].tensor()
    sent, inner = method.answer(job, {TOP: mask}), method_of(plain(task)).cut(job)
    first = next(iter(parameters.weights(tiny)))
    inside = scatter(torch.ones(inner[first].size), inner[first]).bool().flatten()
    marked = torch.zeros_like(inside)
    marked[sent[first].index] = True
    changed = mask.clone()
    if wrong != "more":
        changed[marked.nonzero()[0]] = False
    if wrong != "fewer":
        changed[(inside & ~marked if wrong == "more" else ~inside).nonzero()[0]] = True
    assert not torch.equal(changed, mask)
    with pytest.raises(FrameError, match=f"device 0 marks .* changes of {first}"):
        method.answer(job, {TOP: changed})
    with pytest.raises(FrameError, match="returned the payload"):
        pull(method, rewritten(frame, sent, payload={}), job, method.cut(job))


def text(**given):
    return "\n".join(["seed = 3", "rounds = 4", "data = { devices = 3 }", *(f"{k} = {v}" for k, v in given.items())])


def outcome(run):
    list(run)
    return run.params, [run._disk.memories.get(device) for device in range(3)]


@pytest.mark.parametrize("name", ["feddrop", "feddst"])
def test_stopped_and_resumed_is_never_stopped(tmp_path, tiny, digits, name):
    method = "{ name = 'feddst', readjust_every = 2, alpha = 0.3 }" if name == "feddst" else f"'{name}'"
    config = RunConfig.from_toml(text(rate=0.4, train="{ compress = 0.1 }", method=method))
    never = outcome(Run(config, tmp_path / "never", model=tiny, dataset=few(digits)))
    for record in Run(config, tmp_path / "stopped", model=tiny, dataset=few(digits)):
        if record.round == 2:
            break
    again = outcome(Run(config, tmp_path / "stopped", model=tiny, dataset=few(digits), resume=True))
    assert all(torch.equal(never[0][key], again[0][key]) for key in never[0])
    assert never[1] == again[1]
    assert len(never[1][0]) > 4 * sum(p.numel() for p in tiny.parameters()) // 2


@pytest.mark.slow
def test_worker_processes_give_the_same_bits(tmp_path, tiny, digits):
    config = RunConfig.from_toml(text(rate=0.4, train="{ compress = 0.1 }", server="{ agreement = 0.5 }"))
    both = []
    for executor in ("serial", "processes"):
        chosen = replace(config, execution=replace(config.execution, executor=executor))
        both.append(outcome(Run(chosen, tmp_path / executor, model=tiny, dataset=few(digits))))
    assert all(torch.equal(both[0][0][key], both[1][0][key]) for key in both[0][0])
    assert both[0][1] == both[1][1]


def test_in_a_cell_shorter_replies_lower_the_rates_and_keep_the_deadline(tmp_path, tiny, digits):
    rates = {}
    for share in (1.0, SHARE):
        cell = "{ bandwidth_hz = 4e4, deadline_s = 0.2, energy_budget_j = inf }"
        config = RunConfig.from_toml(text(train=f"{{ compress = {share} }}", radio=cell))
        records = list(Run(config, tmp_path / str(share), model=tiny, dataset=few(digits)))
        assert all(record.latency_s <= record.deadline_s for record in records)
        rates[share] = records[0].mean_rate
    assert rates[SHARE] < rates[1.0] - 0.02


def test_values_of_a_half_precision_network_and_a_frozen_weight(digits):
    net = nn.Sequential(nn.Flatten(), nn.Linear(256, 14), nn.ReLU(), nn.Linear(14, 10))
    net[1].requires_grad_(False)
    task = task_for(net, few(digits), "fedavg", train=TRAIN)
    task = replace(task, factory=partial(build_run_method, task.factory))
    *_, last = rounds_of(task, 2, dtype="int8")
    assert torch.equal(last.params["1.weight"], net[1].weight)
    assert not torch.equal(last.params["3.weight"], net[3].weight)
