"""FedDD, FedRTS, PerFedMask, magnitude pruning and random units against slow references and worked-out values."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import nn

from feddrop import wire
from feddrop.allocation.differential import differential_rates
from feddrop.config import RunConfig, Train, method_named
from feddrop.errors import ConfigError, FrameError
from feddrop.methods import build_method
from feddrop.methods.method import Setup
from feddrop.methods.perfedmask import spread, unevenness
from feddrop.seeds import derive, generator
from feddrop.simulation.device import Device
from feddrop.simulation.exchange import pull, push
from feddrop.simulation.run import Run
from feddrop.subnets import parameters
from feddrop.subnets.masks import kept_count
from support.simulation import answered, few, method_of, rounds_of, task_for

TRAIN = Train(lr=0.1, batch_size=16)


def test_the_pin_of_the_program():
    size, samples, loss = np.array([1, 1, 2]), np.array([10, 20, 30]), np.array([1, 0.5, 2])
    cost = samples / 60 * size / 4 * loss
    found = differential_rates(size=size, cost=cost, compute_s=[0.2, 0.5, 0.3], link_s=[1, 3, 2])
    np.testing.assert_allclose(found.rate, [0.057143, 0.785714, 0.578571], atol=5e-7)
    assert (found.seconds, found.value) == pytest.approx((1.142857, 2.116071), abs=5e-7)


def test_the_program_is_solved_as_by_a_general_solver():
    draw = np.random.default_rng(0)
    for case in range(100):
        most = 8 if case < 60 else 200
        n, keep, delta = int(draw.integers(1, most)), draw.uniform(0.2, 1), float(draw.choice([0, 0.1, 3, 10]))
        u, b, q = draw.uniform(0.2, 3, n), draw.uniform(0, 1, n), draw.uniform(0.1, 4, n)
        c = draw.uniform(0, 1, n) * draw.integers(0, 2, n)
        found = differential_rates(size=u, cost=c, compute_s=b, link_s=q, keep=keep, delta=delta)
        known = linprog(
            np.append(delta * c, 1),
            A_ub=np.c_[-np.diag(q), -np.ones(n)],
            b_ub=-(b + q),
            A_eq=[np.append(u, 0)],
            b_eq=[(1 - keep) * u.sum()],
            bounds=[(0, 0.9)] * n + [(0, None)],
        )
        assert found.value == pytest.approx(known.fun, rel=1e-12, abs=1e-12)
        assert u @ (1 - found.rate) == pytest.approx(keep * u.sum())
        assert (b + (1 - found.rate) * q <= found.seconds + 1e-9).all()
    with pytest.raises(ConfigError, match=r"at least 0\.1"):
        differential_rates(size=1, cost=[1], compute_s=0, link_s=1, keep=0.05)


def test_feddd_sends_the_best_channels_and_continues_with_its_own_weights(tiny, digits):
    """Four rounds of one device, by hand: what it starts from, which channels it sends, and what they hold."""
    task = task_for(tiny, few(digits), "feddd", train=TRAIN, rates=(0.4,) * 3, broadcast_every=3)
    method, device = method_of(task), Device(task)
    params, state, memory, own = parameters.from_model(tiny), {}, b"", None
    for round_ in (1, 2, 3, 4):
        (job,) = method.plan(state, params, round_, {1: 0.4}, 7)
        subnet = method.cut(job)
        whole = all(piece.index is None for piece in subnet.values())
        assert whole == (round_ in (1, 3))  # it has no mask yet; a broadcast
        frame, memory = answered(device, method, params, job, memory)
        update = pull(method, frame, job, subnet)
        start = {name: value.clone() for name, value in params.items()}
        if not whole:
            for name, piece in subnet.items():
                if piece.index is not None:
                    start[name] = own[name].clone()
                    start[name].view(-1)[piece.index] = params[name].view(-1)[piece.index]
        net, plain = task_for(tiny, few(digits), "fedavg", train=TRAIN), replace(job, rate=0.0, payload={}, asks={})
        plain = replace(plain, remembered=frozenset())
        full, _ = answered(Device(net), method_of(net), start, plain)
        moved = wire.decode(wire.parse(full), method_of(net).cut(plain))
        own = {name: start[name] + moved[name].reshape(start[name].shape) for name in start}
        for name in parameters.weights(tiny):
            before, after = start[name].double(), own[name].double()
            score = [
                (after[o] - before[o]).abs().sum() * after[o].abs().sum() / (before[o].abs().sum() + 1e-12)
                for o in range(len(before))
            ]
            kept = max(1, math.floor(len(score) * 0.6 + 0.5))
            best = sorted(sorted(range(len(score)), key=lambda o: (-float(score[o]), o))[:kept])
            width = before[0].numel()
            assert update.subnet[name].index.tolist() == [o * width + at for o in best for at in range(width)]
            bias = name.replace("weight", "bias")
            assert update.subnet[bias].index.tolist() == best
            torch.testing.assert_close(update.values[name], own[name].view(-1)[update.subnet[name].index])
        values = {name: v - params[name].view(-1)[update.subnet[name].index] if update.subnet[name].index is not None
                  else v - params[name].view(-1) for name, v in update.values.items()}  # fmt: skip
        params, state = method.merge(state, params, iter([(job, replace(update, values=values))]))


def test_feddd_is_federated_averaging_to_the_bit_at_rate_0(tiny, digits):
    ends = []
    for name in ("fedavg", "feddd"):
        *_, last = rounds_of(task_for(tiny, few(digits), name, train=TRAIN, rates=(0.0,) * 3), 3)
        ends.append(last.params)
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_feddd_refuses_more_channels_and_waits_if_it_forgot(tiny, digits, tmp_path):
    task = task_for(tiny, few(digits), "feddd", rates=(0.4,) * 3)
    method, params = method_of(task), parameters.from_model(tiny)
    (job,) = method.plan({}, params, 1, {0: 0.4}, 7)
    with pytest.raises(FrameError, match="expected at most"):
        method.answer(job, {"channels": torch.ones(job.asks["channels"].shape, dtype=torch.bool)})
    frame, _ = answered(Device(task), method, params, job)
    update = pull(method, frame, job, method.cut(job))
    _, state = method.merge({}, params, iter([(job, update)]))
    (job,) = method.plan(state, params, 2, {0: 0.4}, 7)
    reply = Device(task).handle(push(params, method.cut(job), replace(job, remembered=frozenset())), b"")
    assert "waits for the next broadcast" in reply.error
    config = RunConfig.from_toml("method = 'feddd'\nrate = 0.4\ntrain = { compress = 0.5 }\ndata = { devices = 3 }")
    with pytest.raises(ConfigError, match="choose what they send"):
        Run(config, tmp_path / "run", model=tiny, dataset=few(digits))


def test_fedrts_counts_votes_and_draws_as_a_loop_over_weights_does(tiny, digits):
    settings = {"adjust_every": 2, "adjust_until": 1.0, "alpha": 0.6}
    task = task_for(tiny, few(digits), "fedrts", train=TRAIN, rates=(0.5,) * 3, **settings)
    method, device = method_of(task), Device(task)
    params = parameters.from_model(tiny)
    state = method.init(params)
    names, moved = list(parameters.weights(tiny)), 0
    for round_ in (1, 2, 3, 4):
        before = method.settle(state, params)
        jobs = method.plan(state, before, round_, dict.fromkeys(range(3), 0.5), 7)
        jobs = [replace(job, remembered=frozenset()) for job in jobs]
        updates = [(job, pull(method, answered(device, method, before, job)[0], job, method.cut(job))) for job in jobs]
        after, found = method.merge(state, before, iter(updates))
        total = sum(update.weight for _, update in updates)
        mask = dict(zip(names, state["mask"].split([params[n].numel() for n in names]), strict=True))
        share = 0.6 / 2 * (1 + math.cos(math.pi * round_ / 4))
        gains, losses = [], []
        averaged = {n: before[n].view(-1) + sum(u.weight / total * _full(u, n) for _, u in updates) for n in names}
        at = 0
        for name in names:
            active = mask[name].tolist()
            count = sum(active)
            k = min(len(active) - count, math.floor(count * share + 1e-9))

            def core(weights, active=active, count=count, k=k):
                order = sorted((i for i in range(len(active)) if active[i]), key=lambda i: (-abs(float(weights[i])), i))
                return set(order[: count - k])

            server = core(averaged[name])
            owns = [core(before[name].view(-1) + _full(u, name)) for _, u in updates]
            for i, on in enumerate(active):
                a, b = float(state["gains"][at + i]), float(state["losses"][at + i])
                if on or round_ % 2 == 0:
                    listed = [bool(u.payload["listed"][at + i]) if not on else i in own for (_, u), own in zip(updates, owns, strict=True)]  # fmt: skip  # noqa: E501
                    x = 0.5 * ((i in server) if on else 0.5)
                    x += 0.5 * sum(u.weight / total * vote for (_, u), vote in zip(updates, listed, strict=True))
                    a, b = a + 10 * x, b + 10 * (1 - x)
                gains.append(a)
                losses.append(b)
            at += len(active)
        torch.testing.assert_close(found["gains"], torch.tensor(gains), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(found["losses"], torch.tensor(losses), rtol=1e-5, atol=1e-4)
        if round_ % 2 == 0:
            drawn = generator(derive(0, "betas", round_)).beta(
                found["gains"].numpy().astype(np.float64), found["losses"].numpy().astype(np.float64)
            )
            at = 0
            for name in names:
                part, count = drawn[at : at + params[name].numel()], int(mask[name].sum())
                new = found["mask"][at : at + len(part)]
                assert set(np.flatnonzero(new.numpy())) == set(np.argsort(-part, kind="stable")[:count])
                at += len(part)
        moved += int(found["moved"])
        assert all((after[n].view(-1)[~m] == 0).all() for n, m in zip(names, found["mask"].split([params[n].numel() for n in names]), strict=True))  # fmt: skip  # noqa: E501
        params, state = after, found
    assert moved > 0


def _full(update, name):
    piece, full = update.subnet[name], torch.zeros(math.prod(update.subnet[name].shape))
    full[torch.arange(len(full)) if piece.index is None else torch.from_numpy(piece.index)] = update.values[name]
    return full


def test_fedrts_refuses_votes_for_active_or_too_many_weights(tiny, digits):
    task = task_for(tiny, few(digits), "fedrts", rates=(0.5,) * 3, adjust_every=1, adjust_until=1.0)
    method, params = method_of(task), parameters.from_model(tiny)
    (job,) = method.plan(method.init(params), params, 1, {0: 0.5}, 7)
    for listed in (job.payload["mask"], ~job.payload["mask"]):
        with pytest.raises(FrameError, match="to grow; expected at most"):
            method.answer(job, {"listed": listed})


def test_layers_are_spread_nearly_as_the_best_of_all_choices():
    """Against all choices that respect the capacities; docs/rivals.md has these numbers."""
    draw = np.random.default_rng(0)
    optimal, fewer, over, over_free = 0, 0, [], []
    for case in range(200):
        devices = int(draw.integers(2, 5))
        counts = draw.integers(1, 40, int(draw.integers(3, 5 if devices == 4 else 6))).tolist()
        shares = draw.uniform(0.15, 1, devices).round(2).tolist()
        shares = shares if case % 4 else shares[:1] * devices
        limits = [max(min(counts), math.floor(share * sum(counts) + 1e-9)) for share in shares]
        found = spread(counts, shares)
        assert (found @ counts <= limits).all()
        value, covered = unevenness(found, counts, shares), found.any(axis=0).sum()
        values, covers = _all_choices(np.array(counts), limits, np.array(shares))
        best, free = values[covers >= covered].min(), values.min()
        assert value >= best - 1e-9
        optimal += value <= best + 1e-9
        fewer += covers[values <= free + 1e-9].max() < covered
        over.append(_excess(value, best))
        over_free.append(_excess(value, free))
    assert (optimal, fewer) == (195, 147)
    assert (np.mean(over), np.max(over)) == pytest.approx((0.0021, 0.218), abs=5e-4)
    assert np.median(over_free) == pytest.approx(0.290, abs=5e-4)


def _excess(value, best):
    return 0.0 if value <= best + 1e-9 else value / best - 1


def _all_choices(counts, limits, shares):
    """Return the objective of every choice, and how many layers it trains."""
    rows = np.array(list(itertools.product([0, 1], repeat=len(counts))))
    able = [rows[(rows @ counts <= limit) & rows.any(axis=1)] for limit in limits]
    each = np.array(list(itertools.product(*(range(len(some)) for some in able))))
    choices = np.stack([some[each[:, n]] for n, some in enumerate(able)], axis=1)
    parts = choices / np.maximum(choices.sum(axis=1, keepdims=True), 1)
    left = np.maximum(shares * counts.sum() - choices @ counts, 0)
    values = (counts.sum() * parts.max(axis=2) - parts @ counts + left).sum(axis=1)
    return values, choices.any(axis=1).sum(axis=1)


def test_perfedmask_trains_and_sends_the_layers_of_the_job(tiny, digits):
    task = task_for(tiny, few(digits), "perfedmask", train=replace(TRAIN, weight_decay=0.1), rates=(0.0, 0.5, 0.8))
    method, device = method_of(task), Device(task)
    params = parameters.from_model(tiny)
    jobs = method.plan({}, params, 1, {0: 0.0, 1: 0.5, 2: 0.8}, 7)
    layers = task.setup.blueprint().layers
    for job in jobs:
        frame, _ = answered(device, method, params, job)
        update = pull(method, frame, job, method.cut(job))
        held = {layer for layer, one in zip(layers, job.payload["layers"].tolist(), strict=True) if one}
        assert held
        for name, piece in update.subnet.items():
            layer = name.rpartition(".")[0]
            assert piece.size == (math.prod(piece.shape) if layer in held or layer not in layers else 0)
            assert not piece.size or update.values[name].any() or "running" in name
        most = wire.frame_bytes(method.sizes(job.rate).answered, "float32")
        assert len(frame) <= most
    assert jobs[0].payload["layers"].all()
    assert all(p.requires_grad for p in task.setup.model.parameters())


@pytest.mark.parametrize("rule", ["delta", "holders"])
def test_pruning_keeps_the_largest_weights_of_every_layer(tiny, digits, rule):
    task = task_for(tiny, few(digits), "pruning", train=TRAIN, rates=(0.7, 0.4, 0.0), rule=rule)
    method, params = method_of(task), parameters.from_model(tiny)
    updates = []
    for job in method.plan({}, params, 1, {0: 0.7, 1: 0.4, 2: 0.0}, 7):
        subnet = method.cut(job)
        for name in parameters.weights(tiny):
            kept = kept_count(params[name].numel(), 1 - job.rate)
            order = sorted(range(params[name].numel()), key=lambda i: (-abs(float(params[name].view(-1)[i])), i))
            index = subnet[name].index
            assert sorted(order[:kept]) == (list(range(len(order))) if index is None else index.tolist())
            assert subnet[name].scale == 1.0
        frame, _ = answered(Device(task), method, params, job)
        updates.append((job, pull(method, frame, job, subnet)))
    merged, _ = method.merge({}, params, iter(updates))
    weights = [update.weight for _, update in updates]
    for name in parameters.weights(tiny):
        steps = torch.stack([_full(update, name) for _, update in updates])
        ones = [replace(u, values={name: torch.ones(u.subnet[name].size)}) for _, u in updates]
        held = torch.stack([_full(one, name) for one in ones])
        share = torch.tensor(weights)[:, None] * (torch.ones_like(held) if rule == "delta" else held)
        step = (torch.tensor(weights)[:, None] * steps).sum(0) / share.sum(0)
        torch.testing.assert_close(merged[name].view(-1), params[name].view(-1) + step, rtol=1e-4, atol=1e-6)


def test_random_units_of_caldas_and_wen():
    first = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    net = nn.Sequential(*first, nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    setup = Setup(model=net, example=torch.zeros(1, 1, 8, 8), rounds=3)
    caldas, wen = (build_method(method_named(name), setup) for name in ("caldas", "wen"))
    params = parameters.from_model(net)
    drawn = set()
    for device in range(4):
        (job,) = caldas.plan({}, params, 1, {device: 0.5}, 7)
        pieces = caldas.cut(job)
        assert all(isinstance(piece.scale, float) and piece.scale == 1.0 for piece in pieces.values())
        assert pieces["0.weight"].sub_shape[0] < 8
        assert pieces["4.weight"].sub_shape == (pieces["6.weight"].sub_shape[1], 4 * pieces["0.weight"].sub_shape[0])
        drawn.add(tuple(pieces["4.bias"].index.tolist()))
        pieces = wen.cut(job)
        assert pieces["0.weight"].index is None
        assert pieces["4.weight"].sub_shape[0] < 16
        assert np.max(pieces["6.weight"].scale) > 1.0
    assert len(drawn) > 1
    assert caldas.sizes(0.5).kept == {name: piece.size for name, piece in caldas.cut(job).items()}


CELL = """
rounds = 6
data = { devices = 3 }
radio = { scheme = "common", bandwidth_hz = 4e4, deadline_s = 0.3, energy_budget_j = inf }
"""


@pytest.mark.parametrize(
    ("method", "deadline"),
    [
        ("{ name = 'feddst', readjust_every = 2, alpha = 0.3 }", 0.3),
        ("{ name = 'fedrts', adjust_every = 2 }", 0.3),
        ("{ name = 'prunefl', first_rounds = 1, first_adjust_every = 1, adjust_every = 2 }", 0.45),
    ],
)
def test_one_mask_in_a_cell_has_one_rate_and_meets_every_deadline(tmp_path, tiny, digits, method, deadline):
    config = RunConfig.from_toml(CELL + f"method = {method}", [f"radio.deadline_s={deadline}"])
    run = Run(config, tmp_path / "run", model=tiny, dataset=few(digits))
    records = list(run)
    rate = run.prepared.task.setup.rates[0]
    assert 0 < rate < 0.9
    assert all(record.latency_s <= deadline and record.energy_j > 0 for record in records)
    if "prunefl" in method:
        assert all(record.metrics["density"] <= 1 - rate + 0.02 for record in records)
    else:
        assert {round(record.mean_rate, 9) for record in records} == {round(rate, 9)}
        assert any(record.metrics["mask_moved"] for record in records)
    for _ in Run(config, tmp_path / "stopped", model=tiny, dataset=few(digits)):
        break
    again = Run(config, tmp_path / "stopped", model=tiny, dataset=few(digits), resume=True)
    list(again)
    assert all(torch.equal(run.params[name], again.params[name]) for name in run.params)


def test_one_mask_refuses_schemes_with_a_rate_per_device():
    for name, words in (("feddst", '"common" or "fixed"'), ("prunefl", '"common"')):
        config = RunConfig.from_toml(f"method = '{name}'\nradio = {{ scheme = 'equal' }}")
        with pytest.raises(ConfigError, match=f"train the same network. Set radio.scheme to {words}"):
            Run(config, "nowhere")
