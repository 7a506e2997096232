"""FjORD against a plain loop: explicit slices, statistics of every width by hand, a merge from wide to narrow."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import feddrop
from feddrop.config import FjORD, RunConfig, Train
from feddrop.data import from_arrays
from feddrop.errors import ConfigError, FrameError, RunError
from feddrop.methods.fjord import _Fjord, network_at
from feddrop.methods.method import Setup
from feddrop.seeds import derive, permutation, philox_words
from feddrop.simulation.device import Device
from feddrop.simulation.exchange import pull
from feddrop.simulation.run import Run, run
from feddrop.subnets import parameters
from support.simulation import Typed, answered, few, method_of, rewritten, rounds_of, task_for

TRAIN = Train(lr=0.1, momentum=0.9, batch_size=16)
WIDTHS = (0.25, 0.5, 0.75, 1.0)
RATES = (0.0, 0.3, 0.75)
"""Widths 1, 0.75 (√0.7 = 0.84) and 0.5."""


def count(units, width):
    return max(1, int(units * width + 0.5))


def plainly(model, x, y, parts, *, distill, rounds, seed):
    """Train linear 12, norm, ReLU, linear 7, ReLU, linear 10 at the width that every minibatch draws."""
    w = [p.detach().clone() for p in model.parameters()]
    stats = [(torch.zeros(count(12, p)), torch.ones(count(12, p))) for p in WIDTHS]
    tops = [max(i for i, p in enumerate(WIDTHS) if p <= (1 - rate) ** 0.5 + 1e-9) for rate in RATES]

    def block(number):
        one, two = count(12, WIDTHS[number]), count(7, WIDTHS[number])
        a, b, every = slice(0, one), slice(0, two), slice(None)
        return [(a, every), (a,), (a,), (a,), (b, a), (b,), (every, b), (every,)]

    def outputs(theta, number, own, batch):
        w1, b1, scale, shift, w2, b2, w3, b3 = (p[s] for p, s in zip(theta, block(number), strict=True))
        mean, var = own[number]
        h = nn.functional.batch_norm(x[batch] @ w1.T + b1, mean, var, scale, shift, training=True, momentum=0.1)
        return torch.relu(torch.relu(h) @ w2.T + b2) @ w3.T + b3

    for t in range(1, rounds + 1):
        ends, steps = [], []
        for k, (part, top) in enumerate(zip(parts, tops, strict=True)):
            theta = [p[s].clone().requires_grad_(True) for p, s in zip(w, block(top), strict=True)]
            own, velocity = [(m.clone(), v.clone()) for m, v in stats], [torch.zeros_like(p) for p in theta]
            drawn, job = [0] * len(WIDTHS), derive(seed, "device", t, k)
            order = permutation(derive(job, "order", 0), len(part))
            for i, batch in enumerate(torch.split(part[torch.from_numpy(order)], TRAIN.batch_size)):
                choices = top if distill and top else top + 1
                number = int(philox_words(derive(derive(job, "width"), i), 1)[0]) * choices >> 32
                drawn[number] += 1
                if distill and top:
                    drawn[top] += 1
                    wide = outputs(theta, top, own, batch)
                    narrow = outputs(theta, number, own, batch)
                    teacher = wide.detach().softmax(1)
                    loss = nn.functional.cross_entropy(wide, y[batch])
                    loss = loss - (teacher * narrow.log_softmax(1)).sum(1).mean()
                else:
                    loss = nn.functional.cross_entropy(outputs(theta, number, own, batch), y[batch])
                gradients = torch.autograd.grad(loss, theta)
                with torch.no_grad():
                    for p, v, g in zip(theta, velocity, gradients, strict=True):
                        v.mul_(TRAIN.momentum).add_(g)
                        p -= TRAIN.lr * v
            ends.append((len(part), [p.detach() for p in theta], own))
            steps.append(drawn)
        new = [p.clone() for p in w]
        for number in reversed(range(len(WIDTHS))):  # from wide to narrow, each block by those who hold it
            holders = [end for end, top in zip(ends, tops, strict=True) if top >= number]
            total = sum(n for n, _, _ in holders)
            for i, s in enumerate(block(number)):
                new[i][s] = sum(n * theta[i][s] for n, theta, _ in holders) / total
            taught = [end for end, drawn in zip(ends, steps, strict=True) if drawn[number]]
            if taught:
                total = sum(n for n, _, _ in taught)
                stats[number] = tuple(sum(n * own[number][j] for n, _, own in taught) / total for j in (0, 1))
        w = new
    return w, stats, [sum(drawn) for drawn in zip(*steps, strict=True)]


def flat(digits):
    x, test = digits.train_x[:150].flatten(1), digits.test_x[:60].flatten(1)
    return from_arrays(x, digits.train_y[:150], test, digits.test_y[:60])


def perceptron():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(256, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 10)
    )


@pytest.mark.parametrize("distill", [False, True])
def test_rounds_are_those_of_a_plain_loop(digits, distill):
    model, data = perceptron(), flat(digits)
    parts = list(torch.arange(150).split([70, 50, 30]))
    expected, stats, steps = plainly(model, data.train_x, data.train_y, parts, distill=distill, rounds=3, seed=11)
    own = {"widths": WIDTHS, "distill": distill}
    task = task_for(model, data, "fjord", rates=RATES, rounds=3, train=TRAIN, parts=parts, **own)
    *_, last = rounds_of(task, seed=11)
    for (name, _), twin in zip(model.named_parameters(), expected, strict=True):
        torch.testing.assert_close(last.params[name], twin, rtol=2e-3, atol=2e-4)
    for number, (mean, var) in enumerate(stats[:-1]):
        got = last.state[f"statistics/{number}"]
        torch.testing.assert_close(got, torch.cat([mean, var]), rtol=2e-3, atol=2e-4)
    torch.testing.assert_close(last.params["1.running_mean"], stats[-1][0], rtol=2e-3, atol=2e-4)
    torch.testing.assert_close(last.params["1.running_var"], stats[-1][1], rtol=2e-3, atol=2e-4)
    assert last.state["steps"].tolist() == steps
    assert min(steps) > 0


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-5), (torch.float16, 0.1)])
def test_networks_of_any_float_type_learn_like_that_of_float32(digits, dtype, near):
    data, own = flat(digits), {"rates": RATES, "rounds": 2, "train": TRAIN, "widths": WIDTHS}
    *_, usual = rounds_of(task_for(Typed(perceptron(), torch.float32), data, "fjord", **own))
    *_, last = rounds_of(task_for(Typed(perceptron(), dtype), data, "fjord", **own))
    for found, twin in ((last.params, usual.params), (last.state, usual.state)):
        for name, value in twin.items():
            torch.testing.assert_close(found[name].to(value.dtype), value, rtol=near, atol=near)


@pytest.mark.parametrize(("rate", "width"), [(0.0, 1.0), (0.4, 0.75), (0.75, 0.5), (0.76, 0.25), (0.99, 0.25)])
def test_the_widest_width_of_a_rate(rate, width):
    assert WIDTHS[FjORD(widths=WIDTHS).widest(rate)] == width


def test_widths_are_drawn_evenly(tiny, digits):
    method = method_of(task_for(tiny, few(digits), "fjord", widths=WIDTHS))
    task = task_for(tiny, few(digits), "fjord", widths=WIDTHS, train=replace(TRAIN, batch_size=1, epochs=2))
    device, whole = Device(replace(task, parts=[torch.arange(150)] * 3)), parameters.from_model(tiny)
    (job,) = method.plan(method.init(whole), whole, 1, {0: 0.0}, 7)
    task.setup.model.norm1.eval()
    frame, _ = answered(device, method, whole, job)
    steps = pull(method, frame, job, method.cut(job)).payload["steps"].tolist()
    assert sum(steps) == 298  # batch norm cannot train on one sample: a lone one joins the minibatch before it
    assert 45 < min(steps) <= max(steps) < 105


def test_every_width_is_a_network_with_its_own_statistics(tmp_path, digits):
    """Behind a layer that reads fewer units activations are others than those of the full width, and so known."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(256, 40), nn.ReLU(), nn.Linear(40, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 10)
    )
    toml = """
    rounds = 8
    rate = 0.0
    eval_every = 8
    data = { devices = 3 }
    train = { lr = 0.2, batch_size = 16, epochs = 2 }
    method = { name = "fjord", widths = [0.3, 0.6, 1.0] }
    """
    config = RunConfig.from_toml(toml)
    data = from_arrays(digits.train_x[:600].flatten(1), digits.train_y[:600], digits.test_x.flatten(1), digits.test_y)
    job = Run(config, tmp_path / "run", model=model, dataset=data)
    *_, last = job
    setup, own = job.prepared.task.setup, config.method

    def network(state, width):
        net = network_at(setup, own, job.params, state, own.widths.index(width))
        assert net[0].out_features == count(40, width)
        return net

    def right(net):
        with torch.no_grad():
            return float((net(data.test_x).argmax(1) == data.test_y).float().mean())

    def apart(net):
        """How far the statistics are from those of the activations that the norm meets at this width."""
        with torch.no_grad():
            met = net[:3](data.train_x)
        return float((net[3].running_mean - met.mean(0)).norm() + (net[3].running_var - met.var(0)).norm())

    assert right(network(job.state, 1.0)) == pytest.approx(last.test_accuracy)
    assert right(network(job.state, 0.3)) > 0.75
    assert apart(network(job.state, 0.3)) < 0.75 * apart(network({}, 0.3))
    sizes = [job.model(rate)[0].out_features for rate in (0.0, 0.5, 0.9)]
    assert sizes == [count(40, width) for width in (1.0, 0.6, 0.3)]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_narrow_widths_of_a_recurrent_layer_are_its_first_units(kind):
    """A minibatch at a width runs the network of that width, gates included, and only its weights get gradients."""

    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = kind(4, 10, 2, batch_first=True, bidirectional=True), nn.Linear(20, 3)

        def forward(self, x):
            return self.out(self.rnn(x)[0][:, -1])

    torch.manual_seed(0)
    config = FjORD(widths=(0.4, 1.0))
    setup = Setup(model=Rows(), example=torch.zeros(1, 5, 4), rounds=1)
    fjord, x = _Fjord(setup, config), torch.randn(6, 5, 4)
    out = fjord._outputs(setup.model, 0, 1, x)
    small = network_at(setup, config, parameters.from_model(setup.model), {}, 0)
    assert small.rnn.hidden_size == 4
    torch.testing.assert_close(out, small(x))
    out.sum().backward()
    gradient = setup.model.rnn.weight_hh_l1.grad.unflatten(0, (-1, 10))
    assert gradient[:, :4, :4].count_nonzero() == gradient.count_nonzero() > 0


def test_statistics_travel_beside_the_values_and_are_counted(tiny, digits):
    """8 channels, mean and variance: of every width below 1 that the device has, down and up; a narrow one's alone."""
    task = task_for(tiny, few(digits), "fjord", rates=(0.0, 0.4, 0.75), widths=WIDTHS)
    result, *_ = rounds_of(task)
    channels = [count(8, p) for p in WIDTHS]
    for top, entry in zip((3, 2, 1), result.devices, strict=True):
        values = 4 * sum(n for name, n in entry.kept.items())
        assert entry.kept["norm1.running_mean"] == (8 if top == 3 else 0)
        apart = sum(4 + 4 + 12 + 4 * 2 * channels[n] for n in range(min(top + 1, 3)))
        assert entry.push_bytes == 64 + values + apart
        assert entry.pull_bytes == 64 + values + apart + 4 + 4 + 8 + 4 * (top + 1)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda payload: {"steps": -payload["steps"]}, "device 0 .* steps at its widths"),
        (lambda payload: {"statistics/1": payload["statistics/1"] + 2e6}, "device 0 .* width 0.4 that change by 2e.06"),
        (lambda payload: {"statistics/1": payload["statistics/1"] * 3e37}, "device 0 .* that change by"),
        (
            lambda payload: {"statistics/0": -payload["statistics/0"].abs()},
            "device 0 .* width 0.2 .* smallest variance of -",
        ),
    ],
)
def test_what_cannot_be_is_refused(tiny, digits, spoil, said):
    task = task_for(tiny, few(digits), "fjord")
    method, whole = method_of(task), parameters.from_model(tiny)
    (job,) = method.plan(method.init(whole), whole, 1, {0: 0.0}, 7)
    frame, _ = answered(Device(task), method, whole, job)
    update = pull(method, frame, job, method.cut(job))
    spoiled = {**update.payload, **spoil(update.payload)}
    with pytest.raises(FrameError, match=said):
        pull(method, rewritten(frame, update.subnet, payload=spoiled), job, method.cut(job))
    with pytest.raises(FrameError, match="device 0"):
        method.answer(job, {**update.payload, "statistics/0": update.payload["statistics/0"] * torch.nan})


def test_a_network_whose_full_width_nobody_trains_is_told_of(tmp_path, caplog):
    settings = ["rounds=1", "data.train_limit=100", "method.name=fjord"]
    run(RunConfig.from_toml("", [*settings, "rate=0.5"]), tmp_path / "narrow")
    assert "no device trains more than width 0.6" in caplog.text
    caplog.clear()
    run(RunConfig.from_toml("", [*settings, "rate=0.0"]), tmp_path / "full")
    assert "no device trains" not in caplog.text


@pytest.mark.parametrize("distill", [False, True])
def test_rates_from_the_cell_meet_the_deadline(tmp_path, distill):
    """Also where a minibatch is run twice: the method says so, and what is promised and charged is twice the work."""
    settings = ["rounds=2", "data.train_limit=200", "data.devices=4", "method.name=fjord", "radio.deadline_s=0.3"]
    settings += [f"method.distill={str(distill).lower()}", "radio.bits_per_parameter=32"]
    for record in Run(RunConfig.from_toml("", settings), tmp_path / "run"):
        assert record.latency_s <= 0.3
        assert max(entry.rate for entry in record.devices) > 0.05


def test_twice_the_work_costs_twice_the_compute(tmp_path):
    def first(distill):
        settings = ["rounds=1", "rate=0.0", "data.train_limit=100", "data.devices=2", "method.name=fjord"]
        settings += [f"method.distill={str(distill).lower()}", "radio.scheme=fixed", "radio.deadline_s=60"]
        job = Run(RunConfig.from_toml("", settings), tmp_path / str(distill))
        next(iter(job))
        return job.records[0].devices[0]

    plain, twice = first(False), first(True)
    assert twice.push_bytes == plain.push_bytes
    assert twice.energy_j > 1.5 * plain.energy_j


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("widths = []", "whose last one is 1"),
        ("widths = [0.5, 0.4, 1.0]", "increasing list"),
        ("widths = [0.2, 0.8]", "whose last one is 1"),
        ("widths = [0.0, 1.0]", r"\(0, 1\]"),
        ("widths = [1.0]\ndistill = true", "has no effect"),
    ],
)
def test_bad_settings_say_what_to_do(toml, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_toml(f"[method]\nname = 'fjord'\n{toml}")


def test_numbers_cannot_be_distilled(tmp_path):
    settings = ["rounds=1", "data.name=diabetes", "model.name=mlp", "method.name=fjord", "method.distill=true"]
    with pytest.raises(RunError, match="needs classes as targets"):
        feddrop.run(RunConfig.from_toml("", [*settings, "rate=0.0"]), tmp_path / "run")
