"""FedDST against slow twins: layer sparsities, readjustment, two whole rounds; and its traffic, byte by byte."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from feddrop.config import FedDST, RunConfig, Train
from feddrop.data import from_arrays
from feddrop.errors import ConfigError, FrameError
from feddrop.executors import Serial
from feddrop.learning.batches import LocalBatches
from feddrop.methods.feddst import Layout, prune, readjust
from feddrop.methods.feddst import build_feddst as feddst
from feddrop.methods.masking import mark_largest
from feddrop.methods.method import Setup, Update
from feddrop.methods.sparse import layer_sparsities
from feddrop.models import lenet
from feddrop.seeds import derive, permutation
from feddrop.simulation.device import Device
from feddrop.simulation.exchange import Forgetful, pull, push
from feddrop.simulation.round import Intake, run_round
from feddrop.simulation.run import Run, resume, run
from feddrop.subnets import parameters
from support.plain_dropout import update as train_plainly
from support.simulation import answered, few, method_of, rewritten
from support.simulation import task_for as simulated

TINY = {"conv1.weight": (8, 1, 3, 3), "conv2.weight": (8, 8, 3, 3), "fc1.weight": (16, 8), "fc2.weight": (10, 16)}
WEIGHTS = sum(math.prod(shape) for shape in TINY.values())
OTHERS = 8 + 4 * 8 + 8 + 16 + 10  # biases, norm parameters and norm statistics
HEAD_BYTES = 4 + 4 + 4  # the section's head, its one dimension, its name
MASK_BYTES = HEAD_BYTES + 120  # one bit for each of 936 weights, and 3 bytes that fill the last word
KNOWN_BYTES = HEAD_BYTES + 8  # a digest in place of a mask that the device remembers


# How sparse each layer is


def test_erk_by_hand():
    """Ratios 0.2 and 0.02, half of 10,100 weights left: 5,050 / (20 + 200) = 22.95 would overfill the small layer."""
    found = layer_sparsities({"small": (10, 10), "large": (100, 100)}, 0.5, "erk")
    assert found == pytest.approx({"small": 0.0, "large": 1 - 0.02 * (5050 - 100) / 200})
    conv = {"conv": (20, 10, 3, 3), "fc": (60, 40)}  # erk 36/1800 and 100/2400; er 30/200 and 100/2400
    budget = 0.1 * (1800 + 2400)
    assert layer_sparsities(conv, 0.9, "erk")["conv"] == pytest.approx(1 - 36 / 1800 * budget / (36 + 100))
    assert layer_sparsities(conv, 0.9, "er")["conv"] == pytest.approx(1 - 0.15 * budget / (0.15 * 1800 + 100))
    assert layer_sparsities(conv, 0.9, "uniform") == {"conv": 0.9, "fc": 0.9}


def test_as_released_scales_sparsities():
    found = layer_sparsities({"small": (10, 10), "large": (100, 100)}, 0.5, "erk", as_released=True)
    factor = 0.5 * 10100 / (0.8 * 100 + 0.98 * 10000)
    assert found == pytest.approx({"small": 0.8 * factor, "large": 0.98 * factor})


side = st.integers(1, 30)
shape = st.one_of(st.tuples(side, side), st.tuples(side, side, st.integers(1, 5), st.integers(1, 5)))


@given(st.lists(shape, min_size=1, max_size=6), st.floats(0, 0.99), st.sampled_from(["erk", "er", "uniform"]))
def test_sparsities_have_the_mean_asked_for(shapes, sparsity, how):
    named = {str(i): one for i, one in enumerate(shapes)}
    found = layer_sparsities(named, sparsity, how)
    sizes = {name: math.prod(one) for name, one in named.items()}
    mean = sum(found[name] * size for name, size in sizes.items()) / sum(sizes.values())
    assert mean == pytest.approx(sparsity, abs=1e-9)
    assert all(-1e-9 <= value <= 1 for value in found.values())
    if how == "uniform":
        return
    # Slow twin: densities are min(1, factor * ratio); look for the factor by halving.
    ratios = {}
    for name, one in named.items():
        sides = one if how == "erk" else one[:2]
        ratios[name] = sum(sides) / math.prod(sides)
    low, high = 0.0, 1.0 / min(ratios.values())
    for _ in range(100):
        middle = (low + high) / 2
        filled = sum(min(1.0, middle * ratios[name]) * size for name, size in sizes.items())
        low, high = (middle, high) if filled <= (1 - sparsity) * sum(sizes.values()) else (low, middle)
    for name, value in found.items():
        assert value == pytest.approx(1 - min(1.0, low * ratios[name]), abs=1e-6)


# One layer's mask


def slow_largest(scores, count, then=None):
    """Sort (score, vote, position) in plain Python."""
    votes = then if then is not None else [0.0] * len(scores)
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], -votes[i], i))
    return [i in order[: max(0, count)] for i in range(len(scores))]


numbers = st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=25), st.integers(0, 30), st.booleans())
def test_largest_is_a_sort(pairs, count, votes):
    scores, then = (np.array(column, np.float32) for column in zip(*pairs, strict=True))
    got = mark_largest(scores, count, then if votes else None)
    assert got.tolist() == slow_largest(scores.tolist(), count, then.tolist() if votes else None)


def slow_readjust(w, mask, g, survivors, kept, anywhere):
    n = len(w)
    active = [i for i in range(n) if mask[i]]
    stays = set(sorted(active, key=lambda i: (-abs(w[i]), i))[:survivors])
    candidates = [i for i in range(n) if anywhere or i not in stays]
    grown = set(sorted(candidates, key=lambda i: (-abs(g[i]), i))[: kept - len(stays)])
    return [i in stays | grown for i in range(n)], [w[i] if i in stays - grown else 0.0 for i in range(n)]


@given(
    st.lists(st.tuples(numbers, st.booleans(), numbers), min_size=2, max_size=25),
    st.floats(0, 1),
    st.booleans(),
)
def test_readjust_is_its_slow_twin(rows, alpha, anywhere):
    w, mask, g = (list(column) for column in zip(*rows, strict=True))
    w = [value if on else 0.0 for value, on in zip(w, mask, strict=True)]
    kept = sum(mask)
    survivors = math.floor(kept * (1 - alpha))
    arrays = np.array(w, np.float32), np.array(mask), np.array(g, np.float32)
    new, moved = readjust(*arrays, survivors=survivors, kept=kept, anywhere=anywhere)
    assert (new.tolist(), moved.tolist()) == slow_readjust(w, mask, g, survivors, kept, anywhere)
    if not anywhere:
        assert new.sum() == kept


def test_readjust_by_hand():
    w = np.array([3, -2, 1, 0, 0, 0], np.float32)
    mask = w != 0
    g = np.array([9, 0, 5, 1, -4, 2], np.float32)
    new, moved = readjust(w, mask, g, survivors=2, kept=3)
    assert new.tolist() == [True, True, True, False, False, False]  # the pruned weight grows back, at zero
    assert moved.tolist() == [3, -2, 0, 0, 0, 0]
    new, moved = readjust(w, mask, g, survivors=2, kept=3, anywhere=True)
    assert new.tolist() == [True, True, False, False, False, False]  # the published code picks an active weight
    assert moved.tolist() == [0, -2, 0, 0, 0, 0]  # and zeroes it


def test_prune_asks_for_votes_among_equals():
    """Weights that were only grown are zero: those that more samples hold stay."""
    w = np.array([0.5, 0, 0, 0, -0.1, 7.0], np.float32)
    held = np.array([10, 20, 30, 20, 10, 0], np.float32)
    assert prune(w, held, 3).tolist() == [True, False, True, False, True, False]
    assert prune(w, held, 4).tolist() == [True, True, True, False, True, False]
    assert prune(w, held, 6).tolist() == [True, True, True, True, True, False]  # nobody holds the last


# The method


TRAIN = Train(batch_size=16, lr=0.1, momentum=0.9, weight_decay=1e-3, epochs=2)


def task_for(model, data, *, rounds=6, sparsity=0.5, **settings):
    parts = list(torch.arange(120).split([60, 40, 20]))
    settings = {"alpha": 0.3, "readjust_every": 2, "readjust_until": 0.7, **settings}
    rates = (sparsity,) * 3
    return simulated(
        model, few(data, 120, 100), "feddst", rates=rates, rounds=rounds, train=TRAIN, parts=parts, **settings
    )


def settings_of(task):
    return task.factory.args[0]


def states_of(task, rounds=6, rates=None):
    """Run rounds in this process; yield parameters, state and what devices did."""
    serial, method, memories = Serial(task), method_of(task), Forgetful()
    whole = parameters.from_model(task.setup.model)
    state = method.init(whole)
    for round_ in range(1, rounds + 1):
        given_rates = rates(round_) if rates else dict.fromkeys(range(3), 0.5)
        intake = Intake(method, whole, state, round_, memories=memories)
        whole, state, devices = run_round(intake, serial, given_rates, seed=4)
        assert all(device.status == "ok" for device in devices)
        yield whole, state, devices
    serial.close()


def masks_of(named):
    """Cut the mask of a state or a payload into those of the layers."""
    parts = named["mask"].split([math.prod(shape) for shape in TINY.values()])
    return {name: part.reshape(TINY[name]) for name, part in zip(TINY, parts, strict=True)}


def method_for(model, *, sparsity=0.5, rounds=4, **settings):
    setup = Setup(model=model, example=torch.zeros(1, 1, 16, 16), rounds=rounds, rates=(sparsity,))
    return feddst(setup, FedDST(**settings))


def test_first_mask_is_the_largest_of_the_start(tiny):
    masks = masks_of(method_for(tiny).init(parameters.from_model(tiny)))
    sparsities = layer_sparsities(TINY, 0.5, "erk")
    assert sparsities["conv1.weight"] == 0.0 < sparsities["conv2.weight"]
    for name, one in TINY.items():
        mask, w = masks[name], dict(tiny.named_parameters())[name].detach().abs()
        assert int(mask.sum()) == math.floor((1 - sparsities[name]) * math.prod(one) + 0.5)
        if not mask.all():
            assert w[mask].min() >= w[~mask].max()
    assert sum(int(mask.sum()) for mask in masks.values()) == pytest.approx(WEIGHTS / 2, abs=2)


@pytest.mark.parametrize("layer_sparsity", ["erk", "er", "uniform"])
def test_sparsity_stays_and_the_mask_moves(tiny, digits, layer_sparsity):
    task = task_for(tiny, digits, layer_sparsity=layer_sparsity, alpha=1.0)
    counts, masks = set(), []
    for whole, state, _ in states_of(task):
        masks.append(masks_of(state))
        counts.add(tuple(int(mask.sum()) for mask in masks[-1].values()))
        for name, mask in masks[-1].items():
            assert not whole[name][~mask].any()
            assert whole[name][mask].count_nonzero() > 0
    assert len(counts) == 1
    assert sum(counts.pop()) == pytest.approx(WEIGHTS / 2, abs=2)
    moved = [sum(int((after[name] != before[name]).sum()) for name in TINY) for before, after in pairwise(masks)]
    # rounds 2 and 4 readjust, and the second moves less: α decays
    assert [count > 0 for count in moved] == [True, False, True, False, False]
    assert moved[2] < moved[0]


def slow_twin(task, rounds, seed):
    """FedDST as its paper tells it: dense masks, plain loops, one weight at a time."""
    model, settings, train, sparsity = task.setup.model, settings_of(task), task.setup.train, 0.5
    w = parameters.from_model(model)
    s = layer_sparsities(TINY, sparsity, settings.layer_sparsity, as_released=settings.as_released)
    kept = {name: math.floor((1 - s[name]) * math.prod(TINY[name]) + 0.5) for name in TINY}
    m = {name: torch.ones_like(value) for name, value in w.items()}
    for name in TINY:
        chosen = slow_largest(w[name].abs().flatten().tolist(), kept[name])
        m[name] = torch.tensor(chosen).reshape(w[name].shape).float()
    end = math.floor(settings.readjust_until * 6)
    for t in range(1, rounds + 1):
        w = {name: value * m[name] for name, value in w.items()}
        total = {name: torch.zeros_like(value) for name, value in w.items()}
        holders = {name: torch.zeros_like(value) for name, value in w.items()}
        readjusted = t % settings.readjust_every == 0 and t <= end
        for k, part in enumerate(task.parts):
            x, y = task.samples.train_x[part], task.samples.train_y[part]
            device_seed = derive(seed, "device", t, k)
            moved = train_plainly(model, w, m, x, y, train, device_seed, train.lr)
            held = dict(m)
            if readjusted:
                alpha = settings.alpha / 2 * (1 + math.cos(math.pi * (t - 1) / end))
                order = permutation(derive(device_seed, "order", train.epochs - 1), len(y))
                last = torch.from_numpy(order).split(train.batch_size)[-1]
                model.zero_grad()
                cross_entropy(model(x[last]), y[last]).backward()
                for name in TINY:
                    if kept[name] == m[name].numel():
                        continue
                    survivors = math.floor((1 - s[name]) * (1 - alpha) * m[name].numel() + 0.5)
                    trained, g = w[name] + moved[name], dict(model.named_parameters())[name].grad
                    new, values = slow_readjust(
                        dict(model.named_parameters())[name].flatten().tolist(),
                        m[name].flatten().tolist(),
                        g.flatten().tolist(),
                        survivors,
                        kept[name],
                        False,
                    )
                    held[name] = torch.tensor(new).reshape(trained.shape).float()
                    moved[name] = torch.tensor(values).reshape(trained.shape) - w[name]
            for name in w:
                total[name].add_(moved[name] * held[name], alpha=len(part))
                holders[name].add_(held[name], alpha=len(part))
        w = {name: value + total[name] / holders[name].clamp(min=1.0) for name, value in w.items()}
        if readjusted:
            for name in TINY:
                votes = holders[name].flatten().tolist()
                scores = [
                    abs(value) if vote else -1.0 for value, vote in zip(w[name].flatten().tolist(), votes, strict=True)
                ]
                chosen = slow_largest(scores, kept[name], votes)
                m[name] = torch.tensor(chosen).reshape(w[name].shape).float()
        w = {name: value * m[name] for name, value in w.items()}
    return w, m


def test_fast_path_is_the_plain_loop(tiny, digits):
    """Three rounds, the second readjusts: the same parameters and the same mask, bit for bit."""
    task = task_for(tiny, digits)
    start = {name: p.detach().clone() for name, p in tiny.state_dict().items()}
    *_, (whole, state, _) = states_of(task, rounds=3)
    tiny.load_state_dict(start)
    expected, masks = slow_twin(task, rounds=3, seed=4)
    for name in TINY:
        assert torch.equal(masks_of(state)[name].float(), masks[name]), name
    for name, value in expected.items():
        assert torch.equal(whole[name], value), name


def test_merge_is_the_mean_over_holders(tiny):
    """Brute force over every entry: weighted by samples, entries nobody held keep their value, then the mask."""
    method = method_for(tiny, sparsity=0.6, alpha=0.5, readjust_every=1)
    whole = parameters.from_model(tiny)
    state = method.init(whole)
    chance = np.random.default_rng(0)
    (job,) = method.plan(state, whole, 1, {0: 0.6}, 0)
    before = job.payload["mask"].numpy()
    updates, dense = [], []
    for device, samples in enumerate((5, 20, 7)):
        mask = before & (chance.random(before.shape) < 0.8) | (chance.random(before.shape) < 0.1)
        payload = {"mask": torch.from_numpy(mask)}
        subnet = method.cut(replace(job, device=device, payload=payload))
        values = {name: torch.from_numpy(chance.normal(size=p.size).astype(np.float32)) for name, p in subnet.items()}
        update = Update(device=device, num_samples=samples, loss=1.0, subnet=subnet, values=values, payload=payload)
        updates.append((job, update))
        dense.append((samples, subnet, values))
    after, new_state = method.merge(state, whole, iter(updates))
    for name, w in whole.items():
        flat, got = w.flatten().tolist(), after[name].flatten().tolist()
        mask = masks_of(state)[name].flatten().tolist() if name in TINY else [True] * len(flat)
        kept = masks_of(new_state)[name].flatten().tolist() if name in TINY else [1] * len(flat)
        total, holders = [0.0] * len(flat), [0] * len(flat)
        for samples, subnet, values in dense:
            index = subnet[name].index
            for position, value in zip(
                range(len(flat)) if index is None else index, values[name].tolist(), strict=True
            ):
                total[position] += samples * value
                holders[position] += samples
        for i in range(len(flat)):
            mean = (flat[i] if mask[i] else 0.0) + (total[i] / holders[i] if holders[i] else 0.0)
            assert got[i] == pytest.approx(mean if kept[i] else 0.0, abs=1e-5)
            assert holders[i] or not kept[i]


# Traffic


def extra_bytes(task, rounds=6):
    """What frames of device 0 hold beyond header and values, down and up, in every round."""
    for _, state, devices in states_of(task, rounds):
        active = int(state["mask"].sum())
        assert len({(device.push_bytes, device.pull_bytes) for device in devices}) == 1
        values = 64 + 4 * (active + OTHERS)
        yield devices[0].push_bytes - values, devices[0].pull_bytes - values


def test_masks_travel_only_when_they_are_news(tiny, digits):
    """Down: in round 1 and after a readjustment. Up: in readjustment rounds 2 and 4. One bit a weight, no more."""
    down, up = zip(*extra_bytes(task_for(tiny, digits, alpha=1.0)), strict=True)
    assert down == (MASK_BYTES, KNOWN_BYTES) * 3
    assert up == (0, MASK_BYTES, 0, MASK_BYTES, 0, 0)


def test_a_readjustment_that_moves_nothing_is_no_news(tiny, digits):
    """Devices send their masks; the union, pruned, is the old mask, so nothing has to come down again."""
    down, up = zip(*extra_bytes(task_for(tiny, digits, alpha=0.0)), strict=True)
    assert down == (MASK_BYTES, *[KNOWN_BYTES] * 5)
    assert up == (0, MASK_BYTES, 0, MASK_BYTES, 0, 0)


def test_average_overhead_is_the_papers_remark(tiny, digits):
    """M/ΔR bits a round, up and down (the paper's remark on overhead), when the mask moves to the end."""
    extra = list(extra_bytes(task_for(tiny, digits, alpha=1.0, readjust_every=3, readjust_until=1.0), rounds=6))
    padding = 8 * MASK_BYTES - WEIGHTS
    for direction in zip(*extra, strict=True):
        assert sum(8 * size - padding for size in direction if size >= MASK_BYTES) / 6 == WEIGHTS / 3


def test_a_device_that_was_away_is_sent_the_mask(tiny, digits):
    """Device 2 misses the round after the readjustment; it gets the mask when it is back, the others do not again."""

    def rates(round_):
        return dict.fromkeys((0, 1) if round_ == 3 else (0, 1, 2), 0.5)

    seen = {}
    for round_, (_, _, devices) in enumerate(
        states_of(task_for(tiny, digits, readjust_until=0.4), rates=rates), start=1
    ):
        least = min(device.push_bytes for device in devices)
        seen[round_] = {device.device: device.push_bytes - least for device in devices}
    assert seen[4] == {0: 0, 1: 0, 2: MASK_BYTES - KNOWN_BYTES}
    assert seen[5] == {0: 0, 1: 0, 2: 0}


# Whole runs

SMALL = """
seed = 3
rounds = 6
rate = 0.5
data = { devices = 3, partition = "dirichlet", alpha = 1.0 }
train = { lr = 0.1, batch_size = 16 }
method = { name = "feddst", alpha = 0.3, readjust_every = 2, readjust_until = 0.7 }
"""


@pytest.fixture(scope="module")
def small(digits):
    return few(digits, 150, 60)


def outcome(job):
    records = [{key: value for key, value in record.items() if key != "wall_s"} for record in job.records]
    return records, job.params, job.state


def same(one, two):
    assert one[0] == two[0]
    for a, b in zip(one[1:], two[1:], strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_stopped_and_resumed_is_never_stopped(tmp_path, tiny, small, stop):
    """Also right after the mask changed (round 2), when it still has to travel: the same bits and the same bytes."""
    config = RunConfig.from_toml(SMALL)
    whole = Run(config, tmp_path / "whole", model=tiny, dataset=small)
    list(whole)
    for record in Run(config, tmp_path / "stopped", model=tiny, dataset=small):
        if record["round"] == stop:
            break
    again = Run(config, tmp_path / "stopped", model=tiny, dataset=small, resume=True)
    assert len(list(again)) == 6 - stop
    same(outcome(whole), outcome(again))


def test_it_learns(tmp_path, digits):
    """Half of the weights, moving masks: seven digits of ten right, from one in ten."""
    toml = """
    rounds = 10
    rate = 0.5
    eval_every = 10
    data = { devices = 4 }
    train = { lr = 0.05, momentum = 0.9, batch_size = 16 }
    method = { name = "feddst", alpha = 0.1, readjust_every = 2 }
    """
    data = from_arrays(digits.train_x[:600], digits.train_y[:600], digits.test_x, digits.test_y)
    model = lenet(num_classes=10, input_shape=(1, 16, 16))
    job = Run(RunConfig.from_toml(toml), tmp_path / "run", model=model, dataset=data)
    *_, last = job
    assert last["test_accuracy"] > 0.7
    weights = [p for p in job.params.values() if p.ndim >= 2]
    zeros = sum(int((p == 0).sum()) for p in weights)
    assert zeros / sum(p.numel() for p in weights) == pytest.approx(0.5, abs=1e-3)
    assert last["metrics"].keys() == {"mask_moved"}


# As released


def test_as_released_alpha_does_not_decay():
    paper, released = FedDST(alpha=0.2), FedDST(alpha=0.2, as_released=True)
    assert [released.alpha_at(t, 40) for t in (1, 10, 20)] == [0.2] * 3
    assert paper.alpha_at(1, 40) == 0.2
    assert paper.alpha_at(11, 40) == pytest.approx(0.1)
    assert paper.alpha_at(20, 40) == pytest.approx(0.1 * (1 + math.cos(math.pi * 19 / 20)))
    assert [t for t in range(1, 41) if paper.readjusts(t, 40)] == [10, 20]
    assert [t for t in range(1, 41) if released.readjusts(t, 40)] == [10, 20]


def local_update(model, data, **settings):
    task = task_for(model, data, layer_sparsity="uniform", readjust_every=1, **settings)
    method, start = method_of(task), parameters.from_model(model)
    (job,) = method.plan(method.init(start), start, 1, {0: 0.5}, 0)
    masks = masks_of(job.payload)
    values = {name: w * masks[name] if name in TINY else w for name, w in start.items()}
    batches = LocalBatches(task.samples.train_x, task.samples.train_y, task.parts[0], TRAIN, job.seed)
    return method.local(method.cut(job), values, job, batches, {})[0], job


def test_as_released_zeroes_active_weights_and_softens_the_loss(tiny, digits):
    paper, job = local_update(tiny, digits)
    released, _ = local_update(tiny, digits, as_released=True)
    for (name, before), after in zip(masks_of(job.payload).items(), masks_of(paper.payload).values(), strict=True):
        assert after.sum() == before.sum(), name
    assert released.payload["mask"].sum() < job.payload["mask"].sum()
    # With outputs in [0, 1] the cross-entropy over ten classes cannot leave these bounds.
    assert math.log(1 + 9 / math.e) < released.loss < math.log(9 + math.e)
    assert paper.loss < released.loss


# What a device may answer


def test_masks_are_refused_where_none_are_due(tiny, digits):
    """A device may bring its own mask in the rounds of a readjustment, and must; in no other."""
    task = task_for(tiny, digits, readjust_every=2, readjust_until=1.0)
    method = method_of(task)
    whole = parameters.from_model(tiny)
    state = method.init(whole)
    device = Device(task)
    for round_, due in ((1, False), (2, True), (3, False)):
        (job,) = method.plan(state, whole, round_, {0: 0.5}, 7)
        frame, _ = answered(device, method, whole, job)
        update = pull(method, frame, job, method.cut(job))
        assert ("mask" in update.payload) == due
        wrong = {} if due else {"mask": job.payload["mask"]}
        with pytest.raises(FrameError, match="returned the payload"):
            pull(method, rewritten(frame, update.subnet, payload=wrong), job, method.cut(job))


@pytest.mark.parametrize("how", ["inverse", "empty", "full", "another", "too many new"])
@pytest.mark.parametrize("as_released", [False, True])
def test_a_mask_that_no_device_could_have_moved_to_is_refused(tiny, digits, how, as_released):
    task = task_for(tiny, digits, readjust_every=1, alpha=0.1, as_released=as_released)
    method = method_of(task)
    layout = Layout(tiny, 0.5, settings_of(task))
    whole = parameters.from_model(tiny)
    (job,) = method.plan(method.init(whole), whole, 1, {0: 0.5}, 7)
    frame, _ = answered(Device(task), method, whole, job)
    honest = pull(method, frame, job, method.cut(job)).payload["mask"]
    mask = job.payload["mask"].clone() if how == "too many new" else honest.clone()
    if how == "inverse":
        mask = ~mask
    elif how in ("empty", "full"):
        mask.fill_(how == "full")
    elif how == "another":
        mask = mask[torch.randperm(len(mask))]
    else:  # as many active as before in every layer, but more of them new than α allows
        split = {name: torch.from_numpy(part).reshape(-1) for name, part in layout.split(mask).items()}
        name = "fc1.weight"
        gone, new = split[name].nonzero().flatten()[:20], (~split[name]).nonzero().flatten()[:20]
        split[name][gone], split[name][new] = False, True
        mask = torch.cat(list(split.values()))
    subnet = layout.pieces(layout.split(mask))
    values = {name: torch.zeros(piece.size) for name, piece in subnet.items()}
    with pytest.raises(FrameError, match=r"device 0 sent a mask with .* active weights"):
        pull(method, rewritten(frame, subnet, values, {"mask": mask}), job, method.cut(job))


class Hostile:
    """An executor whose device 1 answers with a mask and values of its own making."""

    def __init__(self, serial, layout, mask):
        self._serial, self._layout, self._mask = serial, layout, mask

    def compute(self, parcels):
        for device, reply in enumerate(self._serial.compute(parcels)):
            if device == 1:
                subnet = self._layout.pieces(self._layout.split(self._mask))
                values = {name: torch.ones(piece.size) for name, piece in subnet.items()}
                reply = reply._replace(frame=rewritten(reply.frame, subnet, values, {"mask": self._mask}))
            yield reply


@pytest.mark.parametrize("inverse", [True, False])
def test_a_hostile_mask_changes_nothing(digits, inverse):
    """An inverse or an empty mask, on a network without biases: that device is left out, the round is the others'."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 12, bias=False), nn.ReLU(), nn.Linear(12, 10, bias=False))
    task = task_for(model, digits, readjust_every=1, alpha=0.2)
    method, serial = method_of(task), Serial(task)
    whole = parameters.from_model(model)
    state = method.init(whole)
    mask = ~state["mask"] if inverse else torch.zeros_like(state["mask"])
    hostile = Hostile(serial, Layout(model, 0.5, settings_of(task)), mask)
    rates = dict.fromkeys(range(3), 0.5)
    hurt = run_round(Intake(method, whole, state, 1), hostile, rates, seed=4)
    assert [device.status == "ok" for device in hurt.devices] == [True, False, True]
    assert "active weights" in hurt.devices[1].status
    well = run_round(Intake(method, whole, state, 1), serial, {0: 0.5, 2: 0.5}, seed=4)
    serial.close()
    assert all(torch.equal(hurt.params[name], well.params[name]) for name in whole)
    assert all(torch.equal(hurt.state[name], well.state[name]) for name in state)


def test_a_device_that_remembers_another_mask_says_so(tiny, digits):
    """A frame with a digest only, for a device that remembers nothing, or another mask."""
    task = task_for(tiny, digits, readjust_every=1, alpha=1.0)
    method, device = method_of(task), Device(task)
    whole = parameters.from_model(tiny)
    (job,) = method.plan(method.init(whole), whole, 1, {0: 0.5}, 7)
    _, memory = answered(device, method, whole, job)
    known = replace(job, remembered=frozenset({"mask"}))
    assert not device.handle(push(whole, method.cut(known), known), memory).error
    assert "remembers another tensor" in device.handle(push(whole, method.cut(known), known)).error
    other = replace(known, payload={"mask": ~job.payload["mask"]})
    assert "remembers another tensor" in device.handle(push(whole, method.cut(other), other), memory).error
    without = replace(job, payload={})
    with pytest.raises(FrameError, match="received no mask"):
        method.cut(without)


# Refusals


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("layer_sparsity = 'erkk'", "Did you mean 'erk'"),
        ("alpha = 1.5", r"method.alpha is 1.5; it must be in \[0, 1\]"),
        ("readjust_until = -0.1", "readjust_until"),
        ("readjust_every = 0", "at least 1"),
        ("level = 'unit'", "unknown key 'method.level'"),
    ],
)
def test_bad_settings_say_what_to_do(toml, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_toml(f"[method]\nname = 'feddst'\n{toml}")


def test_devices_share_one_rate(tmp_path, tiny, small):
    config = RunConfig.from_toml(SMALL, ["rate=[0.5, 0.5, 0.4]"])
    with pytest.raises(ConfigError, match="rate differs between devices"):
        run(config, tmp_path / "run", model=tiny, dataset=small)


def test_a_device_that_diverges_in_a_readjustment_is_left_out(tiny, digits):
    """Its mask does not join the union; and it has not answered, so it is sent the next mask as everybody is."""
    task = task_for(tiny, digits, readjust_every=1)
    spoiled = task.samples.train_x.clone()
    spoiled[60:100] *= 1e30
    serial = Serial(replace(task, samples=task.samples._replace(train_x=spoiled)))
    method = method_of(task)
    whole = parameters.from_model(tiny)
    state = method.init(whole)
    rates = dict.fromkeys(range(3), 0.5)
    hurt = run_round(Intake(method, whole, state, 1), serial, rates, seed=4)
    assert [device.status == "ok" for device in hurt.devices] == [True, False, True]
    del rates[1]
    well = run_round(Intake(method, whole, state, 1), serial, rates, seed=4)
    assert all(torch.equal(hurt.params[name], well.params[name]) for name in hurt.params)
    assert all(torch.equal(hurt.state[name], well.state[name]) for name in hurt.state)
    serial.close()


def test_resume_needs_no_more_than_the_folder(tmp_path):
    """The settings of the method are in the folder's own config.toml."""
    config = RunConfig.from_toml(SMALL, ["rounds=3", "data.train_limit=60"])
    for record in Run(config, tmp_path / "run"):
        if record["round"] == 2:
            break
    assert [record["round"] for record in resume(tmp_path / "run")] == [1, 2, 3]
    assert RunConfig.from_file(tmp_path / "run" / "config.toml").method == config.method
