"""FIARSE against slow twins: masks weight by weight, whole rounds in plain loops; its traffic, and its edges."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from feddrop.config import FIARSE, RunConfig, Train
from feddrop.config.methods import THRESHOLDS
from feddrop.errors import ConfigError
from feddrop.methods import build_method
from feddrop.methods.fiarse import _large
from feddrop.methods.method import Setup
from feddrop.seeds import derive, permutation
from feddrop.simulation.device import Device
from feddrop.simulation.exchange import push
from feddrop.simulation.run import Run, run
from feddrop.subnets import parameters
from feddrop.wire import frame_bytes
from support.mask_code import payload_bytes
from support.simulation import answered, few, method_of, rounds_of, task_for

TRAIN = Train(lr=0.5, batch_size=16)
RATES = (0.0, 0.5, 0.9)


@pytest.fixture
def small(digits):
    return few(digits)


@pytest.fixture
def net():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(256, 24), nn.ReLU(), nn.Linear(24, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 10)
    )


def is_weight(name):
    return name in ("1.weight", "3.weight", "6.weight")


def largest_of(w, rate, by_layer):
    """Return the masks by sorting all weights, one by one: the larger first, then the earlier."""
    at = {name: list(np.ndindex(*w[name].shape)) for name in w if is_weight(name)}
    groups = [[name] for name in at] if by_layer else [list(at)]
    masks = {name: torch.zeros(w[name].shape, dtype=torch.bool) for name in at}
    for group in groups:
        ranked = sorted(((name, i) for name in group for i in at[name]), key=lambda one: -abs(float(w[one[0]][one[1]])))
        for name, i in ranked[: max(1, math.floor((1 - rate) * len(ranked) + 0.5))]:
            masks[name][i] = True
    return masks


def plainly(model, x, y, parts, rates, *, by_layer, rounds, seed):
    """Train with plain loops: a mask that is taken anew in every step, and gradients with respect to what it leaves."""
    w, net = {name: p.detach().clone() for name, p in model.named_parameters()}, copy.deepcopy(model)
    sunk = 0
    for t in range(1, rounds + 1):
        moved, held = ({name: torch.zeros_like(p) for name, p in w.items()} for _ in range(2))
        for k, rate in enumerate(rates):
            masks = largest_of(w, rate, by_layer)
            one = min(float(w[name][masks[name]].abs().min()) for name in masks if masks[name].any())
            own = {name: p * masks[name] if name in masks else p.clone() for name, p in w.items()}
            order = permutation(derive(derive(seed, "device", t, k), "order", 0), len(parts[k]))
            for batch in torch.split(parts[k][torch.from_numpy(order)], TRAIN.batch_size):
                leaves, factors = {}, {}
                for name, p in own.items():
                    active, factors[name] = torch.ones_like(p), torch.ones_like(p)
                    if name in masks and rate:
                        theta = float(w[name][masks[name]].abs().min()) if by_layer else one
                        active = ((p.abs() >= theta) & masks[name]).float()
                        factors[name] = active * (1 + 2 * theta * p.abs() / (p.abs() + theta) ** 2)
                        sunk += int((masks[name] & (active == 0)).sum())
                    leaves[name] = (p * active).requires_grad_()
                loss = nn.functional.cross_entropy(functional_call(net, leaves, x[batch]), y[batch])
                slopes = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
                own = {name: p - TRAIN.lr * slopes[name] * factors[name] for name, p in own.items()}
            for name, p in own.items():
                mask = masks[name].float() if name in masks else torch.ones_like(p)
                moved[name] += len(parts[k]) * mask * (p - w[name])
                held[name] += len(parts[k]) * mask
        w = {name: p + moved[name] / held[name].clamp(min=1) for name, p in w.items()}
    return w, sunk


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_rounds_are_those_of_a_plain_loop(net, small, threshold):
    task = task_for(net, small, "fiarse", rates=RATES, train=TRAIN, threshold=threshold)
    expected, sunk = plainly(
        net, small.train_x, small.train_y, task.parts, RATES, by_layer=threshold == "layer", rounds=3, seed=4
    )
    assert sunk > 100  # weights do fall below θ within a round
    *_, last = rounds_of(task, 3)
    for name, value in expected.items():
        torch.testing.assert_close(last.params[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_a_mask_is_that_of_sorting_all_weights(net, small, threshold):
    with torch.no_grad():
        net[3].weight.mul_(0.3)
        net[6].weight[:5] = 0.25  # ties
    whole = parameters.from_model(net)
    for rate in (0.2, 0.5, 0.9, 0.999):
        method = method_of(task_for(net, small, "fiarse", rates=None, threshold=threshold))
        (job,) = method.plan({}, whole, 1, {0: rate}, 7)
        masks = largest_of(whole, rate, threshold == "layer")
        for name, piece in method.cut(job).items():
            expected = masks[name].reshape(-1).nonzero()[:, 0] if name in masks else torch.arange(whole[name].numel())
            kept = np.arange(whole[name].numel()) if piece.index is None else piece.index
            assert kept.tolist() == expected.tolist()


def test_what_is_near_the_threshold_moves_faster_and_what_is_below_does_not_take_part():
    w = torch.tensor([0.1, -0.2, 0.2, -0.6, 100.0], requires_grad=True)
    large = _large(w, 0.2)
    assert large.tolist() == [0.0, w[1].item(), w[2].item(), w[3].item(), 100.0]
    (slope,) = torch.autograd.grad(large.sum(), w)
    torch.testing.assert_close(slope, torch.tensor([0.0, 1.5, 1.5, 1 + 0.24 / 0.64, 1.004]), rtol=1e-4, atol=1e-4)


def test_the_factor_of_small_weights_in_float16():
    w = torch.tensor([0.0, 1e-4, -2e-4, 1e-3], dtype=torch.float16, requires_grad=True)
    (slope,) = torch.autograd.grad(_large(w, 1e-4).sum(), w)
    torch.testing.assert_close(slope.float(), torch.tensor([0.0, 1.5, 1 + 4 / 9, 1 + 20 / 121]), rtol=1e-3, atol=1e-3)


def test_a_threshold_next_to_nothing_is_none(net, small):
    with torch.no_grad():
        net[3].weight.mul_(1e-30)
    for result in rounds_of(task_for(net, small, "fiarse", rates=RATES, train=TRAIN, threshold="layer"), 1):
        assert all(value.isfinite().all() for value in result.params.values())


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_a_mask_travels_down_in_every_round_and_never_up_nor_to_who_holds_all(net, small, threshold):
    task = task_for(net, small, "fiarse", rates=RATES, train=TRAIN, threshold=threshold)
    method, device, whole = method_of(task), Device(task), parameters.from_model(net)
    bits = 12 + (256 * 24 + 24 * 16 + 16 * 10) // 8
    for round_ in (1, 2):
        for job in method.plan({}, whole, round_, dict(enumerate(RATES)), 7):
            subnet = method.cut(job)
            values = frame_bytes({name: piece.size for name, piece in subnet.items()}, "float32")
            mask = payload_bytes(job.payload)
            assert mask == 0 if not job.rate else 0 < mask <= (0.9 * bits if job.rate > 0.7 else bits)
            assert len(push(whole, subnet, job)) == values + mask
            frame, memory = answered(device, method, whole, job)
            assert (len(frame), memory) == (values, b"")


def test_a_layer_that_keeps_nothing_is_zero_on_the_device(net, small):
    """The network in which devices train holds what the one before left there: it must not show through."""
    with torch.no_grad():
        net[3].weight.mul_(1e-6)
    rates = (0.0, 0.5, 0.5)
    task = task_for(net, small, "fiarse", rates=rates, train=TRAIN)
    method = method_of(task)
    jobs = method.plan({}, parameters.from_model(net), 1, dict(enumerate(rates)), 4)
    assert [method.cut(job)["3.weight"].size for job in jobs] == [24 * 16, 0, 0]
    expected, _ = plainly(net, small.train_x, small.train_y, task.parts, rates, by_layer=False, rounds=1, seed=4)
    (result,) = rounds_of(task, 1)
    for name, value in expected.items():
        torch.testing.assert_close(result.params[name], value, rtol=1e-4, atol=1e-5)


def test_weights_of_zero_have_no_threshold(net, small):
    """Where more than the rate drops are zero, θ is 0: nothing sinks below it, and what is held learns as it is."""
    with torch.no_grad():
        for layer in (net[1], net[3], net[6]):
            layer.weight[:, : layer.in_features * 3 // 4] = 0.0
    for threshold in THRESHOLDS:
        for result in rounds_of(task_for(net, small, "fiarse", rates=RATES, train=TRAIN, threshold=threshold), 2):
            assert all(value.isfinite().all() for value in result.params.values())


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_the_network_at_a_rate_is_what_a_device_of_that_rate_holds(net, small, threshold):
    config = FIARSE(threshold=threshold)
    setup = Setup(model=net, example=small.example, rounds=1)
    whole = {name: value + 0.01 for name, value in parameters.from_model(net).items()}
    before = parameters.from_model(net)
    masks = largest_of(whole, 0.9, threshold == "layer")
    method = build_method(config, setup)
    cut = method.at({}, whole, 1, 0.9, 0)
    for name, value in parameters.from_model(cut).items():
        assert torch.equal(value, whole[name] * masks[name] if name in masks else whole[name])
    assert all(torch.equal(value, before[name]) for name, value in parameters.from_model(net).items())
    assert not cut.training
    with pytest.raises(ConfigError, match=r"rate is 1\.0; it must be"):
        method.at({}, whole, 1, 1.0, 0)


def test_tied_weights_are_one_weight(small):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.into, self.back = nn.Linear(256, 12), nn.Linear(12, 12), nn.Linear(12, 12)
            self.back.weight = self.into.weight
            self.last = nn.Linear(12, 10)

        def forward(self, x):
            x = torch.relu(self.first(x.flatten(1)))
            return self.last(torch.relu(self.back(torch.relu(self.into(x)))))

    task = task_for(Tied(), small, "fiarse", rates=RATES, train=TRAIN)
    names = [name for name, _ in task.setup.model.named_parameters()]
    assert "back.weight" not in names
    losses = [result.devices[1].loss for result in rounds_of(task, 4)]
    assert losses[-1] < losses[0]


RUN = """
rounds = 2
data = { devices = 4 }
model = { name = "mlp" }
"""
CELL = 'radio = { deadline_s = 0.5, bandwidth_hz = 1e6, costs = "measured" }'


def test_a_radio_decides_the_rates_where_every_layer_has_its_share(tmp_path):
    config = RunConfig.from_toml(RUN + 'method = { name = "fiarse", threshold = "layer" }\n' + CELL)
    for record in Run(config, tmp_path / "run"):
        assert any(device.rate > 0 for device in record.devices)
        assert record.latency_s <= 0.5 * (1 + 1e-9)


def test_measured_costs_need_a_share_of_every_layer(tmp_path):
    config = RunConfig.from_toml(RUN + 'method = "fiarse"\n' + CELL)
    with pytest.raises(ConfigError, match="threshold"):
        run(config, tmp_path / "run")


def test_that_nobody_trains_the_smallest_weights_is_said(net, small):
    for rates, said in ((RATES, []), ((0.5, 0.75), ["no device trains more than 50% of the weights"])):
        lines = method_of(task_for(net, small, "fiarse", rates=rates)).notices
        assert [line.partition(":")[0] for line in lines] == said


def test_a_threshold_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match=r"method\.threshold is 'layers'.*Did you mean 'layer'"):
        FIARSE(threshold="layers")
