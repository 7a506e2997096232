from itertools import pairwise

import pytest
import torch
from torch import nn

from feddrop.errors import ConfigError
from feddrop.params import from_model, load_into
from feddrop.subnets.blueprint import Blueprint
from feddrop.subnets.cut import SubnetConfig, cutter
from feddrop.subnets.piece import gather, scatter, whole
from feddrop.training import LocalBatches, TrainConfig, evaluate, train

LOSS = nn.functional.cross_entropy


def batches(digits, config, seed=0, part=None):
    part = torch.arange(100) if part is None else part
    return LocalBatches(digits.train_x, digits.train_y, part, config, seed)


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 1e-2), (0.9, 1e-2)])
def test_step_is_torch_sgd_to_the_bit(tiny, digits, momentum, decay):
    config = TrainConfig(lr=0.05, momentum=momentum, weight_decay=decay, batch_size=16, epochs=2)
    start = from_model(tiny)
    pieces = {name: whole(tuple(t.shape)) for name, t in start.items()}
    mean = train(tiny, pieces, batches(digits, config), config, lr=0.05, loss=LOSS)
    ours = from_model(tiny)
    load_into(tiny, start)
    optimizer = torch.optim.SGD(tiny.parameters(), lr=0.05, momentum=momentum, weight_decay=decay)
    total = 0.0
    for x, y in batches(digits, config):
        optimizer.zero_grad()
        loss = LOSS(tiny(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)
    assert mean == pytest.approx(total / 200, rel=1e-6)
    assert all(torch.equal(ours[name], value) for name, value in from_model(tiny).items())


@pytest.mark.parametrize("biases", [False, True])
def test_dropped_weights_stay_zero_at_every_step(tiny, digits, biases):
    config = TrainConfig(lr=0.1, momentum=0.9, weight_decay=0.1, batch_size=10)
    plan = Blueprint(tiny, (1, 16, 16))
    subnet = cutter(plan, SubnetConfig(biases=biases))(3, 0.5)
    values = {n: scatter(gather(t, subnet[n]), subnet[n]) for n, t in from_model(tiny).items()}
    load_into(tiny, values)
    seen = []
    tiny.register_forward_pre_hook(
        lambda *_: seen.append(
            all((p[scatter(torch.ones(subnet[n].size), subnet[n]) == 0] == 0).all() for n, p in tiny.named_parameters())
        )
    )
    train(tiny, subnet, batches(digits, config), config, lr=0.1, loss=LOSS)
    tiny(digits.test_x[:2])
    assert len(seen) == 11
    assert all(seen)
    assert (tiny.fc1.weight != 0).float().mean() == 0.5
    assert ((tiny.fc1.bias != 0).float().mean() == 0.5) == biases
    assert (tiny.norm1.weight != 0).all()


def test_frozen_parameters_are_left_alone(tiny, digits):
    tiny.conv1.weight.requires_grad_(False)
    before = tiny.conv1.weight.clone()
    config = TrainConfig()
    pieces = {name: whole(tuple(t.shape)) for name, t in from_model(tiny).items()}
    train(tiny, pieces, batches(digits, config), config, lr=0.1, loss=LOSS)
    assert torch.equal(before, tiny.conv1.weight)


def test_batches_cover_the_part_once_an_epoch_in_a_new_order(digits):
    part = torch.arange(5, 42)
    config = TrainConfig(batch_size=8, epochs=2)
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
    config = TrainConfig(batch_size=8)
    joined = LocalBatches(digits.train_x, digits.train_y, part, config, 3, lone=False)
    assert [len(y) for _, y in joined] == sizes
    plain = LocalBatches(digits.train_x, digits.train_y, part, config, 3)
    assert torch.equal(torch.cat([x for x, _ in joined]), torch.cat([x for x, _ in plain]))


def test_evaluate_is_a_plain_loop(tiny, digits):
    total, right = evaluate(tiny, digits.test_x, digits.test_y, loss=LOSS, batch_size=7)
    tiny.eval()
    with torch.no_grad():
        outputs = tiny(digits.test_x)
    assert right == (outputs.argmax(1) == digits.test_y).sum()
    assert total == pytest.approx(LOSS(outputs, digits.test_y, reduction="sum").item(), rel=1e-5)


def test_schedules():
    assert TrainConfig(lr=0.2).lr_at(7, 10) == 0.2
    for schedule in ("cosine", "linear"):
        config = TrainConfig(lr=0.2, schedule=schedule, lr_end=0.1)
        rates = [config.lr_at(t, 4) for t in range(1, 6)]
        assert rates[0] == pytest.approx(0.2)
        assert rates[2] == pytest.approx(0.11)
        assert rates[4] == pytest.approx(0.02)
        assert all(a > b for a, b in pairwise(rates))
        assert TrainConfig(lr=0.2, schedule=schedule).lr_at(1, 1) == 0.2


@pytest.mark.parametrize("bad", [{"lr": 0}, {"lr": float("nan")}, {"momentum": 1}, {"epochs": 0}, {"schedule": "cos"}])
def test_bad_settings(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        TrainConfig(**bad)
