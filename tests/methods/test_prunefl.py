"""PruneFL against slow twins: the adjustment candidate by candidate, whole rounds in plain loops; and its traffic."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from feddrop.config import PruneFL, RunConfig, Train
from feddrop.data import from_arrays
from feddrop.errors import ConfigError, FrameError, RunError
from feddrop.methods.method import Setup
from feddrop.methods.prunefl import adjust, layer_costs
from feddrop.models import flops
from feddrop.seeds import derive, permutation
from feddrop.simulation.device import Device
from feddrop.simulation.exchange import pull
from feddrop.simulation.run import Run, run
from feddrop.subnets import parameters
from feddrop.wire.sections import unpack_sections
from support.mask_code import payload_bytes
from support.simulation import Typed, answered, few, method_of, rewritten, rounds_of, task_for

TRAIN = Train(lr=0.1, momentum=0.9, batch_size=16)


def greedily(weights, masks, scores, costs, *, others, overhead, removable, most):
    """Keep what is sure to stay; then the best candidate, one at a time, while it gains more than what is kept."""
    kept, candidates = {name: mask.copy() for name, mask in masks.items()}, []
    gain, seconds = others, overhead
    for name, mask in masks.items():
        active = sorted(map(tuple, np.argwhere(mask)), key=lambda at: (weights[name][at], tuple(-i for i in at)))
        for at in active[: int(removable * len(active))]:
            kept[name][at] = False
        for at in map(tuple, np.argwhere(~kept[name])):
            candidates.append((scores[name][at] / costs[name], name, at))
        gain += sum(scores[name][tuple(at)] for at in np.argwhere(kept[name]))
        seconds += costs[name] * kept[name].sum()
    for ratio, name, at in sorted(candidates, key=lambda one: -one[0]):
        if not ratio > gain / seconds or sum(mask.sum() for mask in kept.values()) >= most:
            break
        kept[name][at] = True
        gain, seconds = gain + scores[name][at], seconds + costs[name]
    return kept


@pytest.mark.parametrize("removable", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("most", [12, 60, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_an_adjustment_is_that_of_a_plain_loop(seed, removable, most):
    chance = np.random.default_rng(seed)
    shapes = {"a": (5, 4), "b": (6, 3, 2), "c": (3, 1)}
    weights = {name: chance.random(shape, np.float32) for name, shape in shapes.items()}
    masks = {name: chance.random(shape) < 0.6 for name, shape in shapes.items()}
    scores = {name: chance.random(shape) ** 3 for name, shape in shapes.items()}
    costs = {"a": 0.01, "b": 0.05, "c": 0.002}
    given = {"others": 0.1, "overhead": 0.5, "removable": removable, "most": most}
    got, expected = adjust(weights, masks, scores, costs, **given), greedily(weights, masks, scores, costs, **given)
    assert all(np.array_equal(got[name], expected[name]) for name in shapes)
    if removable == 0.3 and most == 1000:
        assert any((masks[name] & ~got[name]).any() for name in shapes)  # some go
        assert any((got[name] & ~masks[name]).any() for name in shapes)  # and some come


def plainly(model, x, y, parts, config, *, rounds, seed):
    """Train with plain loops: dense gradients, an explicit mask, scores that wait on the device until they are due."""
    w = {name: p.detach().clone() for name, p in model.named_parameters()}
    weights = [name for name in w if w[name].ndim == 2]
    masks = {name: torch.ones_like(w[name], dtype=torch.bool) for name in weights}
    waiting, began, net = [None] * len(parts), None, copy.deepcopy(model)
    for t in range(1, rounds + 1):
        first = t <= config.first_rounds
        began = began if began or first else t - 1
        due = t % config.first_adjust_every == 0 if first else (t - began) % config.adjust_every == 0
        devices = [config.first_device] if first else range(len(parts))
        moved, samples, sent, others = dict.fromkeys(w, 0.0), 0, dict.fromkeys(w, 0.0), 0.0
        for k in devices:
            parameters.load_into(net, w)
            named, sums = dict(net.named_parameters()), {}
            velocity = {name: torch.zeros_like(p) for name, p in named.items()}
            order = permutation(derive(derive(seed, "device", t, k), "order", 0), len(parts[k]))
            for batch in torch.split(parts[k][torch.from_numpy(order)], TRAIN.batch_size):
                loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
                gradients = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
                with torch.no_grad():
                    for name, g in gradients.items():
                        sums[name] = sums.get(name, 0.0) + g
                        velocity[name].mul_(TRAIN.momentum).add_(g * masks[name] if name in masks else g)
                        named[name].sub_(TRAIN.lr * velocity[name])
            n = len(parts[k])
            for name, p in named.items():
                moved[name] += n * (p.detach() - w[name])
                old = waiting[k][name] if waiting[k] else 0.0
                sums[name] = old + n * sums[name] ** 2
            samples += n
            waiting[k] = None if due else sums
            if due:
                sent = {name: sent[name] + sums[name].double() for name in w}
        w = {name: w[name] + moved[name] / samples for name in w}
        if due:
            others = sum(float(sent[name].sum()) for name in w if name not in masks)
            share = config.removable * (1.0 if first else 0.5 ** ((t - began) / config.half_life))
            per_sample = {name: 4 if name == weights[0] else 6 for name in weights}  # no gradient of the inputs
            costs = {
                name: 64 / config.bits_per_second + each * samples / len(devices) / config.flops_per_second
                for name, each in per_sample.items()
            }
            masks = {
                name: torch.from_numpy(mask)
                for name, mask in greedily(
                    {name: w[name].abs().numpy() for name in weights},
                    {name: mask.numpy() for name, mask in masks.items()},
                    {name: sent[name].numpy() for name in weights},
                    costs,
                    others=others,
                    overhead=config.overhead_s,
                    removable=share,
                    most=int(config.max_density * sum(mask.numel() for mask in masks.values())),
                ).items()
            }
            waiting = [None] * len(parts)
            w = {name: p * masks[name] if name in masks else p for name, p in w.items()}
    return w, masks


@pytest.mark.parametrize("density", [1.0, 0.55])
def test_rounds_are_those_of_a_plain_loop(digits, density):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(256, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 10))
    data = from_arrays(
        digits.train_x[:150].flatten(1), digits.train_y[:150], digits.test_x[:9].flatten(1), digits.test_y[:9]
    )
    parts = list(torch.arange(150).split([70, 50, 30]))
    own = {"first_rounds": 3, "first_device": 1, "first_adjust_every": 2, "adjust_every": 2, "half_life": 4.0}
    own |= {"overhead_s": 0.002, "max_density": density}
    expected, masks = plainly(model, data.train_x, data.train_y, parts, PruneFL(**own), rounds=7, seed=11)
    task = task_for(model, data, "prunefl", rates=(0.0,) * 3, rounds=7, train=TRAIN, parts=parts, **own)
    results = list(rounds_of(task, seed=11))
    joined = torch.cat([masks[name].flatten() for name in masks])
    assert torch.equal(results[-1].state["mask"], joined)
    assert 0.1 < joined.float().mean() < 0.9
    for name, value in expected.items():
        torch.testing.assert_close(results[-1].params[name], value, rtol=2e-4, atol=2e-5)
    assert [len(result.devices) for result in results] == [1] * 3 + [3] * 4
    assert [bool(result.state["pruned"]) for result in results] == [False, True, False, False, True, False, True]


# Traffic and memory


def test_scores_and_masks_travel_only_when_they_must(tiny, digits):
    """Up: scores in rounds 2 and 4. Down: the mask in round 1 and after it changed, else its digest; and the word."""
    task = task_for(tiny, few(digits), "prunefl", rates=(0.0,) * 3, first_rounds=0, adjust_every=2)
    weights = sum(p.numel() for p in parameters.weights(tiny).values())
    others = sum(w.numel() for w in parameters.from_model(tiny).values()) - weights
    bits = 12 + 4 * -(-weights // 32)  # head, dimension, name; one bit a weight
    known, due, scores = 12 + 8, 12 + 4, 4 + 4 + 8 + 4 * weights + 4 + 4 + 8 + 4
    down, up, masks = [], [], [torch.ones(weights, dtype=torch.bool)]
    for result in rounds_of(task):
        (pushed,), (pulled,) = ({getattr(d, name) for d in result.devices} for name in ("push_bytes", "pull_bytes"))
        held = 64 + 4 * (int(masks[-1].sum()) + others)
        down.append(pushed - held)
        up.append(pulled - held)
        masks.append(result.state["mask"])
    full, moved = (payload_bytes({"mask": masks[round_]}) for round_ in (0, 2))
    assert full == 12 + 12 < moved < bits  # all kept: a gap of 936, 8 + 1 + ⌈(6 + 15)/8⌉ bytes
    assert down == [full, known + due, moved, known + due]
    assert up == [0, scores, 0, scores]


def test_a_device_adds_scores_up_until_they_are_due(tiny, digits):
    task = task_for(tiny, few(digits), "prunefl", rates=(0.0,) * 3, first_rounds=0, adjust_every=3)
    method, device = method_of(task), Device(task)
    whole = parameters.from_model(tiny)
    state = method.init(whole)
    jobs = [method.plan(state, whole, round_, {0: 0.0}, 7)[0] for round_ in (1, 2, 3)]
    singles = [unpack_sections(answered(device, method, whole, job)[1]) for job in jobs[:2]]
    _, memory = answered(device, method, whole, jobs[0])
    _, memory = answered(device, method, whole, jobs[1], memory)
    known = unpack_sections(memory)
    assert torch.equal(known["scores"], singles[0]["scores"] + singles[1]["scores"])
    assert (known["scores"] > 0).float().mean() > 0.5
    frame, memory = answered(device, method, whole, jobs[2], memory)
    update = pull(method, frame, jobs[2], method.cut(jobs[2]))
    assert (update.payload["scores"] >= known["scores"]).all()
    assert set(unpack_sections(memory)) == {"mask"}
    # A device that was away while the mask moved starts anew: under the old one its weights were worth other things.
    other = replace(jobs[0], payload={"mask": jobs[0].payload["mask"].clone()})
    other.payload["mask"][:5] = False
    _, fresh = answered(device, method, whole, other)
    _, later = answered(device, method, whole, other, answered(device, method, whole, jobs[1])[1])
    assert torch.equal(unpack_sections(later)["scores"], unpack_sections(fresh)["scores"])


def test_pruned_weights_have_scores_too(tiny, digits):
    task = task_for(tiny, few(digits), "prunefl", rates=(0.0,) * 3, first_rounds=0, adjust_every=1)
    method, device = method_of(task), Device(task)
    whole = parameters.from_model(tiny)
    (job,) = method.plan(method.init(whole), whole, 1, {0: 0.0}, 7)
    job.payload["mask"][torch.arange(0, len(job.payload["mask"]), 2)] = False
    frame, _ = answered(device, method, whole, job)
    scores = pull(method, frame, job, method.cut(job)).payload["scores"]
    assert (scores[::2] > 0).float().mean() > 0.3
    spoiled = {"scores": -scores, "others": torch.zeros(1)}
    with pytest.raises(FrameError, match="device 0 sent negative scores"):
        pull(method, rewritten(frame, method.cut(job), payload=spoiled), job, method.cut(job))


def test_scores_of_a_float16_network_are_those_of_float32(digits):
    scores = []
    for dtype in (torch.float32, torch.float16):
        torch.manual_seed(3)
        net = Typed(nn.Sequential(nn.Flatten(), nn.Linear(256, 20), nn.ReLU(), nn.Linear(20, 10)), dtype)
        with torch.no_grad():
            net.net[3].weight.mul_(0.0003)  # so that gradients of the first layer are small
        task = task_for(
            net, few(digits), "prunefl", rates=(0.0,) * 3, first_rounds=0, adjust_every=1, train=replace(TRAIN, lr=1e-6)
        )
        method, device, whole = method_of(task), Device(task), parameters.from_model(net)
        (job,) = method.plan(method.init(whole), whole, 1, {0: 0.0}, 7)
        frame, _ = answered(device, method, whole, job)
        scores.append(pull(method, frame, job, method.cut(job)).payload["scores"])
    found = (scores[1] - scores[0]).norm() / scores[0].norm()
    assert found < 0.05
    small = scores[0] < scores[0].median()
    assert (scores[1][small].sum() / scores[0][small].sum()) == pytest.approx(1.0, abs=0.1)


# Stages


def test_the_first_stage_is_one_device_that_is_there(tiny, digits):
    own = {"first_rounds": 2, "first_device": 5, "first_adjust_every": 1}
    method = method_of(task_for(tiny, few(digits), "prunefl", rates=(0.0,) * 10, **own))
    whole = parameters.from_model(tiny)
    state = method.init(whole)
    chosen = [
        [job.device for job in method.plan(state, whole, 1, dict.fromkeys(there, 0.0), 7)]
        for there in ([1, 5, 9], [1, 7, 9], [1, 2])
    ]
    assert chosen == [[5], [7], [1]]


def test_a_first_stage_of_fewer_devices_than_a_round_needs_says_so(tmp_path):
    settings = ["server.min_devices=2", "data.devices=3", "data.train_limit=60", "model.width=0.2"]
    with pytest.raises(
        RunError, match=r"fewer than 2 devices .* round 1: only 1 took part\. Lower server\.min_devices"
    ):
        run(RunConfig.from_toml('method = "prunefl"', settings), tmp_path / "run")


def test_the_first_stage_ends_early_once_the_size_is_steady(tiny, digits):
    """Nothing may go, so nothing changes: after five adjustments all devices train."""
    own = {"first_rounds": 9, "first_adjust_every": 1, "removable": 0.0}
    results = list(rounds_of(task_for(tiny, few(digits), "prunefl", rates=(0.0,) * 3, rounds=12, **own), 7))
    assert [len(result.devices) for result in results] == [1] * 5 + [3] * 2
    assert int(results[-1].state["began"]) == 5


# Costs


def test_costs_are_counted_or_declared(tiny, digits):
    setup = Setup(model=tiny, example=digits.example, rounds=9, rates=(0.0,))
    counted = flops.count_flops(tiny, digits.example)
    config = PruneFL(bits_per_second=1e6, flops_per_second=1e8, layer_costs={"fc2": 0.5})
    costs = layer_costs(setup, config, counted, samples=10)
    assert costs["fc2.weight"] == 0.5
    assert costs["fc1.weight"] == pytest.approx(64e-6 + 6 * 10 / 1e8)
    assert costs["conv2.weight"] == pytest.approx(64e-6 + 6 * 64 * 10 / 1e8)  # each weight is used at 8 x 8 places


def test_a_dear_layer_loses_more(tiny, digits):
    def left(**costs):
        own = {"first_rounds": 0, "adjust_every": 1, "removable": 0.5, "layer_costs": costs}
        *_, last = rounds_of(task_for(tiny, few(digits), "prunefl", rates=(0.0,) * 3, **own))
        return int((last.params["fc1.weight"] != 0).sum()), int((last.params["conv2.weight"] != 0).sum())

    cheap, dear = left(fc1=1e-9, conv2=1e-3), left(fc1=1e-3, conv2=1e-9)
    assert cheap[0] > dear[0]
    assert cheap[1] < dear[1]


# Whole runs and refusals


def test_it_learns_while_it_shrinks(tmp_path, digits):
    toml = """
    rounds = 12
    eval_every = 12
    data = { devices = 4, train_limit = 600 }
    train = { lr = 0.05, momentum = 0.9, batch_size = 16 }
    method = { name = "prunefl", first_rounds = 2, first_adjust_every = 1, adjust_every = 3, max_density = 0.6 }
    """
    records = run(RunConfig.from_toml(toml), tmp_path / "run")
    density = [record.metrics["density"] for record in records]
    assert records[-1].test_accuracy > 0.7
    assert density[-1] <= 0.6
    assert sum(record.metrics["grown"] for record in records) > 100
    assert [len(record.devices) for record in records] == [1] * 2 + [4] * 10
    assert records[-1].devices[0].rate == pytest.approx(1 - density[-2])


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("removable = 1.0", r"method.removable is 1.0; it must be in \[0, 1\)"),
        ("max_density = 0.0", r"max_density is 0.0; it must be in \(0, 1\]"),
        ("adjust_every = 0", "at least 1"),
        ("first_rounds = -1", "at least 0"),
        ("overhead_s = 0.0", "above 0"),
        ("layer_costs = { fc1 = -1.0 }", "it must be above 0"),
    ],
)
def test_bad_settings_say_what_to_do(toml, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_toml(f"[method]\nname = 'prunefl'\n{toml}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["rounds=30", "radio.deadline_s=0.1"], r"train the same network. Set radio.scheme to \"common\""),
        (["rounds=4"], "in round 5, but the run has 4"),
        (["rounds=9", "method.first_adjust_every=2"], "only one device would train"),
        (["rounds=9", "method.first_rounds=0"], "in round 10, but the run has 9"),
        (["method.layer_costs.conv9=1.0"], "conv9"),
        (
            ["method.first_device=3", "data.devices=3"],
            "first_device is 3; it must be from 0 to 2",
        ),
    ],
)
def test_what_it_cannot_do_is_said_before_the_run(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        Run(RunConfig.from_toml("", ["method.name=prunefl", "data.train_limit=100", *settings]), tmp_path / "run")


def test_a_rate_has_no_effect(tmp_path):
    with pytest.raises(ConfigError, match="no effect on 'prunefl'"):
        Run(RunConfig.from_toml("rate = 0.5\nmethod = 'prunefl'"), tmp_path / "run")


def test_tied_weights_are_scored_and_pruned_once():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    model[2].weight = model[0].weight
    data = from_arrays(torch.randn(60, 8), torch.arange(60) % 3, torch.randn(6, 8), torch.arange(6) % 3)
    task = task_for(model, data, "prunefl", rates=(0.0,) * 3, rounds=3, first_rounds=1, adjust_every=1)
    *_, last = rounds_of(task)
    assert last.state["mask"].shape == (8 * 8 + 3 * 8,)
    assert not last.state["mask"].all()
