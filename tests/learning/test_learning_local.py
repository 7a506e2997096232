"""Local steps against torch.optim and plain loops."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

from feddrop.config import Subnets, Train
from feddrop.errors import ConfigError, TrainingError
from feddrop.learning.batches import LocalBatches, channels_last
from feddrop.learning.local import accuracy, evaluate, safe_layout, train_network
from feddrop.learning.losses import LOSSES, loss_named, measures_for
from feddrop.subnets.blueprint import Blueprint
from feddrop.subnets.cut import cutter
from feddrop.subnets.parameters import from_model, load_into
from feddrop.subnets.piece import full_piece, gather, scatter

LOSS = nn.functional.cross_entropy


def batches(digits, config, seed=0, part=None):
    part = torch.arange(100) if part is None else part
    return LocalBatches(digits.train_x, digits.train_y, part, config, seed)


OPTIMIZERS = {
    "sgd": lambda config: (
        lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=config.momentum, weight_decay=config.weight_decay)
    ),
    "adam": lambda config: lambda weights: torch.optim.Adam(weights, lr=0.05, weight_decay=config.weight_decay),
    "adamw": lambda config: lambda weights: torch.optim.AdamW(weights, lr=0.05, weight_decay=config.weight_decay),
}


def whole_subnet(model):
    return {name: full_piece(tuple(t.shape)) for name, t in from_model(model).items()}


def plainly(model, data, config):
    """Train with torch.optim, torch's own clipping, and FedProx's term in the loss."""
    optimizer = OPTIMIZERS[config.optimizer](config)(model.parameters())
    start = [p.detach().clone() for p in model.parameters()]
    model.train()
    total = count = 0
    for x, y in data:
        optimizer.zero_grad()
        loss = LOSS(model(x), y)
        pull = sum(((p - p0) ** 2).sum() for p, p0 in zip(model.parameters(), start, strict=True))
        (loss + config.proximal / 2 * pull if config.proximal else loss).backward()
        if config.clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        total, count = total + loss.item() * len(y), count + len(y)
    return total / count


@pytest.mark.parametrize("clip_norm", [0.0, 0.5])
@pytest.mark.parametrize(
    ("optimizer", "momentum", "decay"),
    [
        ("sgd", 0.0, 0.0),
        ("sgd", 0.9, 0.0),
        ("sgd", 0.0, 1e-2),
        ("sgd", 0.9, 1e-2),
        ("adam", 0.0, 0.0),
        ("adam", 0.0, 1e-2),
        ("adamw", 0.0, 0.0),
        ("adamw", 0.0, 1e-2),
    ],
)
def test_steps_are_those_of_torch_to_the_bit(tiny, digits, optimizer, momentum, decay, clip_norm):
    config = Train(
        optimizer=optimizer,
        lr=0.05,
        momentum=momentum,
        weight_decay=decay,
        clip_norm=clip_norm,
        batch_size=16,
        epochs=2,
    )
    start = from_model(tiny)
    mean = train_network(tiny, whole_subnet(tiny), batches(digits, config), config, lr=0.05, loss=LOSS)
    ours = from_model(tiny)
    load_into(tiny, start)
    assert mean == pytest.approx(plainly(tiny, batches(digits, config), config), rel=1e-6)
    assert all(torch.equal(ours[name], value) for name, value in from_model(tiny).items())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("mu", [0.1, 3.0])
def test_proximal_is_fedprox(tiny, digits, optimizer, mu):
    """The pull back to the start equals a term μ/2·‖w - w₀‖² in the loss."""
    config = Train(optimizer=optimizer, lr=0.05, proximal=mu, batch_size=16, epochs=2)
    start = from_model(tiny)
    train_network(tiny, whole_subnet(tiny), batches(digits, config), config, lr=0.05, loss=LOSS)
    ours = from_model(tiny)
    load_into(tiny, start)
    plainly(tiny, batches(digits, config), config)
    for name, value in from_model(tiny).items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-3 if optimizer != "sgd" else 1e-5)
    far = sum(float((ours[name] - w).norm()) for name, w in start.items() if not name.startswith("norm"))
    load_into(tiny, start)
    free = Train(optimizer=optimizer, lr=0.05, batch_size=16, epochs=2)
    train_network(tiny, whole_subnet(tiny), batches(digits, free), free, lr=0.05, loss=LOSS)
    free_far = sum(float((v - start[n]).norm()) for n, v in from_model(tiny).items() if not n.startswith("norm"))
    assert far < free_far


def test_a_loss_that_explodes_is_an_error(tiny, digits):
    config = Train(lr=1e6, batch_size=16)
    with pytest.raises(TrainingError, match=r"diverged\. Lower train\.lr"):
        train_network(tiny, whole_subnet(tiny), batches(digits, config), config, lr=1e6, loss=LOSS)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_dropped_weights_stay_zero_at_every_step(tiny, digits, biases, optimizer):
    momentum = 0.9 if optimizer == "sgd" else 0.0
    config = Train(optimizer=optimizer, momentum=momentum, weight_decay=0.1, batch_size=10, clip_norm=1.0, proximal=0.1)
    plan = Blueprint(tiny, (1, 16, 16))
    subnet = cutter(plan, Subnets(biases=biases))(3, 0.5)
    values = {n: scatter(gather(t, subnet[n]), subnet[n]) for n, t in from_model(tiny).items()}
    load_into(tiny, values)
    seen = []
    tiny.register_forward_pre_hook(
        lambda *_: seen.append(
            all((p[scatter(torch.ones(subnet[n].size), subnet[n]) == 0] == 0).all() for n, p in tiny.named_parameters())
        )
    )
    train_network(tiny, subnet, batches(digits, config), config, lr=0.1, loss=LOSS)
    tiny(digits.test_x[:2])
    assert len(seen) == 11
    assert all(seen)
    assert (tiny.fc1.weight != 0).float().mean() == 0.5
    assert ((tiny.fc1.bias != 0).float().mean() == 0.5) == biases
    assert (tiny.norm1.weight != 0).all()


def test_frozen_parameters_are_left_alone(tiny, digits):
    tiny.conv1.weight.requires_grad_(False)
    before = tiny.conv1.weight.clone()
    config = Train()
    train_network(tiny, whole_subnet(tiny), batches(digits, config), config, lr=0.1, loss=LOSS)
    assert torch.equal(before, tiny.conv1.weight)


def test_batches_cover_the_part_once_an_epoch_in_a_new_order(digits):
    part = torch.arange(5, 42)
    config = Train(batch_size=8, epochs=2)
    job = batches(digits, config, part=part)
    labels = [y for _, y in job]
    assert [len(y) for y in labels] == [8, 8, 8, 8, 5] * 2
    first, second = torch.cat(labels[:5]), torch.cat(labels[5:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == sorted(digits.train_y[part].tolist())
    assert not torch.equal(first, second)
    assert torch.equal(first, torch.cat([y for _, y in batches(digits, config, part=part)][:5]))


@pytest.mark.parametrize(("samples", "sizes"), [(17, [8, 9]), (18, [8, 8, 2]), (9, [9]), (1, [1]), (8, [8])])
def test_a_lone_sample_joins_the_minibatch_before_it(digits, samples, sizes):
    part = torch.arange(samples)
    config = Train(batch_size=8)
    joined = LocalBatches(digits.train_x, digits.train_y, part, config, 3, lone=False)
    assert [len(y) for _, y in joined] == sizes
    plain = LocalBatches(digits.train_x, digits.train_y, part, config, 3)
    assert torch.equal(torch.cat([x for x, _ in joined]), torch.cat([x for x, _ in plain]))


def test_evaluate_is_a_plain_loop(tiny, digits):
    split = zip(digits.test_x.split(7), digits.test_y.split(7), strict=True)
    totals, count = evaluate(tiny, split, {"loss": LOSS, "accuracy": accuracy})
    tiny.eval()
    with torch.no_grad():
        outputs = tiny(digits.test_x)
    assert count == len(digits.test_y)
    assert totals["accuracy"] == pytest.approx(float((outputs.argmax(1) == digits.test_y).sum()))
    assert totals["loss"] == pytest.approx(LOSS(outputs, digits.test_y, reduction="sum").item(), rel=1e-5)


def test_losses_by_name():
    targets = torch.tensor([1.0, 0.0, 1.0])
    outputs = torch.tensor([[0.5], [-1.0], [2.0]])
    assert float(LOSSES["mse"](outputs, targets)) == pytest.approx((0.25 + 1 + 1) / 3)  # not a table of 3 by 3
    assert float(LOSSES["l1"](outputs, targets)) == pytest.approx((0.5 + 1 + 1) / 3)
    assert float(LOSSES["bce"](outputs, targets)) == pytest.approx(
        float(nn.functional.binary_cross_entropy_with_logits(outputs.flatten(), targets))
    )
    with pytest.raises(ConfigError, match="needs equal shapes"):
        LOSSES["mse"](outputs, torch.zeros(5))
    with pytest.raises(ConfigError, match=r"returns \(2, 3, 1\) for targets \(3, 2\)"):  # positions before samples
        LOSSES["mse"](torch.zeros(2, 3, 1), torch.zeros(3, 2))
    assert float(LOSSES["mse"](torch.zeros(2, 6), torch.ones(2, 3, 2))) == 1.0
    with pytest.raises(ConfigError, match="Did you mean 'cross_entropy'"):
        loss_named("crossentropy")
    assert loss_named("torch.nn.functional:huber_loss") is nn.functional.huber_loss
    assert list(measures_for(loss_named("cross_entropy"), 3, None)) == ["accuracy"]
    (mae,) = measures_for(loss_named("mse"), 0, None).values()
    assert float(mae(outputs.flatten(), targets[:, None])) == pytest.approx((0.5 + 1 + 1) / 3)


def test_accuracy_of_targets_that_are_shares_of_classes():
    """As many samples as classes: compared with the shares themselves, a table of 3 by 3 would come out."""
    outputs = torch.tensor([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 3.0, 0.0]])
    shares = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.0, 0.1, 0.9]])
    assert float(accuracy(outputs, shares)) == float(accuracy(outputs, shares.argmax(1))) == pytest.approx(2 / 3)


def test_schedules():
    assert Train(lr=0.2).lr_at(7, 10) == 0.2
    for schedule in ("cosine", "linear"):
        config = Train(lr=0.2, schedule=schedule, lr_end=0.1)
        rates = [config.lr_at(t, 4) for t in range(1, 6)]
        assert rates[0] == pytest.approx(0.2)
        assert rates[2] == pytest.approx(0.11)
        assert rates[4] == pytest.approx(0.02)
        assert all(a > b for a, b in pairwise(rates))
        assert Train(lr=0.2, schedule=schedule).lr_at(1, 1) == 0.2


@pytest.mark.parametrize(
    "bad",
    [
        {"lr": 0},
        {"lr": float("nan")},
        {"momentum": 1},
        {"epochs": 0},
        {"schedule": "cos"},
        {"optimizer": "adm"},
        {"clip_norm": -1},
        {"proximal": float("nan")},
        {"lr_end": 0.1},
        {"momentum": 0.9, "optimizer": "adam"},
    ],
)
def test_bad_settings(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Train(**bad)


@pytest.mark.parametrize("channels", [(4, 8), (16, 32)])
def test_narrow_strided_convolutions_are_trained_as_without_onednn(channels):
    """With channels last, oneDNN's gradient of such a layer writes past its memory."""
    net = nn.Sequential(nn.Conv2d(channels[0], channels[1], 1, stride=2), nn.Flatten(), nn.Linear(channels[1] * 64, 3))
    x = torch.randn(20, channels[0], 16, 16)
    last = channels_last(x)
    assert safe_layout(net, last).is_contiguous() == (channels[0] < 16)
    assert safe_layout(net, (last, last))[1].is_contiguous() == (channels[0] < 16)
    losses = []
    for enabled in (True, False):
        twin = copy.deepcopy(net)
        with torch.backends.mkldnn.flags(enabled=enabled):
            pairs = [(last if enabled else x, torch.arange(20) % 3)] * 8
            losses.append(train_network(twin, whole_subnet(twin), pairs, Train(), lr=0.05, loss=LOSS))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
