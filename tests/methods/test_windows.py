"""HeteroFL and FedRolex against a plain loop that slices weights as their papers tell it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from feddrop.config import RunConfig, Train, Windows, method_named
from feddrop.data import from_arrays
from feddrop.errors import ConfigError, SubnetError
from feddrop.methods import build_method
from feddrop.methods.method import Setup
from feddrop.methods.windows import build_fedrolex as fedrolex
from feddrop.methods.windows import build_heterofl as heterofl
from feddrop.methods.windows import window
from feddrop.seeds import derive, permutation
from feddrop.simulation.run import Run
from feddrop.subnets import parameters
from feddrop.subnets.blueprint import Blueprint
from feddrop.subnets.cut import unit_shares
from feddrop.subnets.piece import gather
from support.simulation import few, method_of, rounds_of, task_for

TRAIN = Train(lr=0.1, momentum=0.9, batch_size=16)
RATES = (0.0, 0.5, 0.75)


def test_windows_by_hand():
    assert window(0, "fc1", 8, 0.5).tolist() == [0, 1, 2, 3]
    assert window(3, "fc1", 8, 0.5).tolist() == [3, 4, 5, 6]
    assert window(6, "fc1", 8, 0.5).tolist() == [0, 1, 6, 7]
    assert window(14, "fc1", 8, 0.5).tolist() == [0, 1, 6, 7]
    assert window(5, "fc1", 8, 1.0) is None
    assert window(0, "fc1", 8, 0.01).tolist() == [0]


def plainly(model, x, y, parts, *, rolling, rounds, seed):
    """Train a perceptron with two hidden layers: explicit slices, and a mean over the holders of every entry."""
    w = [p.detach().clone() for p in model.parameters()]  # weight and bias of three layers
    plan = Blueprint(model, (x[0].numel(),))
    for t in range(1, rounds + 1):
        total, holders = [torch.zeros_like(p) for p in w], [torch.zeros_like(p) for p in w]
        for k, (part, rate) in enumerate(zip(parts, RATES, strict=True)):
            shares = unit_shares(plan, plan.units, dict.fromkeys(plan.layers, rate))
            kept = []
            for group, units in plan.units.groups.items():
                count = max(1, int(np.floor(units * shares[group] + 0.5)))
                kept.append(sorted(((t - 1 if rolling else 0) + i) % units for i in range(count)))
            (n1, n2), (one, two) = plan.units.groups.values(), kept
            everything, classes = list(range(w[0].shape[1])), list(range(w[4].shape[0]))
            slices = [np.ix_(one, everything), one, np.ix_(two, one), two, np.ix_(classes, two), classes]
            theta = [p[s].clone().requires_grad_(True) for p, s in zip(w, slices, strict=True)]
            velocity = [torch.zeros_like(p) for p in theta]
            order = permutation(derive(derive(seed, "device", t, k), "order", 0), len(part))
            for batch in torch.split(part[torch.from_numpy(order)], TRAIN.batch_size):
                h = (x[batch] @ theta[0].T + theta[1]) / (len(one) / n1)  # the scaler: divided by the width
                h = (torch.relu(h) @ theta[2].T + theta[3]) / (len(two) / n2)
                out = torch.relu(h) @ theta[4].T + theta[5]
                gradients = torch.autograd.grad(nn.functional.cross_entropy(out, y[batch]), theta)
                with torch.no_grad():
                    for p, v, g in zip(theta, velocity, gradients, strict=True):
                        v.mul_(TRAIN.momentum).add_(g)
                        p -= TRAIN.lr * v
            for s, p, sums, held in zip(slices, theta, total, holders, strict=True):
                sums[s] += len(part) * p.detach()
                held[s] += len(part)
        w = [torch.where(n > 0, s / n.clamp(min=1), p) for p, s, n in zip(w, total, holders, strict=True)]
    return w


@pytest.mark.parametrize("name", ["heterofl", "fedrolex"])
def test_rounds_are_those_of_a_plain_loop(digits, name):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(256, 12), nn.ReLU(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 10))
    data = from_arrays(
        digits.train_x[:150].flatten(1), digits.train_y[:150], digits.test_x[:9].flatten(1), digits.test_y[:9]
    )
    x, y = data.train_x, data.train_y
    parts = list(torch.arange(150).split([70, 50, 30]))
    expected = plainly(model, x, y, parts, rolling=name == "fedrolex", rounds=3, seed=11)
    *_, last = rounds_of(task_for(model, data, name, rates=RATES, rounds=3, train=TRAIN, parts=parts), seed=11)
    for value, twin in zip(last.params.values(), expected, strict=True):
        torch.testing.assert_close(value, twin, rtol=2e-4, atol=2e-5)


def test_the_whole_network_is_not_scaled(tiny, digits):
    """Hooks sit on smaller networks alone: a device without dropout and the test see the network as it is."""
    before = tiny(digits.test_x[:5])
    method = method_of(task_for(tiny, few(digits), "heterofl"))
    method.cut(method.plan({}, {}, 1, {0: 0.5}, 0)[0])
    assert torch.equal(tiny(digits.test_x[:5]), before)


class Batch:
    """One minibatch, of digits in a row."""

    def __init__(self, digits, num_samples=40):
        self.num_samples, self.x, self.y = num_samples, digits.train_x[:num_samples].flatten(1), digits.train_y
        self.y = self.y[:num_samples]

    def __iter__(self):
        yield self.x, self.y


def at_once(model, digits, name, rate):
    """Let a device train one minibatch at a rate; return what it started with, and its update."""
    method = build_method(method_named(name), Setup(model=model, example=torch.zeros(1, 256), rounds=9, train=TRAIN))
    whole = parameters.from_model(model)
    (job,) = method.plan({}, whole, 4, {0: rate}, 7)
    pieces = method.cut(job)
    values = {key: gather(whole[key], piece).reshape(piece.sub_shape) for key, piece in pieces.items()}
    return values, method.local(pieces, values, job, Batch(digits), {})[0]


@pytest.mark.parametrize("name", ["heterofl", "fedrolex"])
def test_statistics_of_norms_are_of_what_is_not_scaled(digits, name):
    """What a norm reads is as the whole network has it; FedRolex's readers of normed units divide by their share."""
    torch.manual_seed(3)
    hidden = [nn.Linear(256, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU()]
    values, update = at_once(nn.Sequential(*hidden, nn.Linear(8, 10)), digits, name, 0.75)
    batch, one, two = Batch(digits), values["0.bias"], values["3.bias"]
    first, second = (12 / len(one), 8 / len(two)) if name == "fedrolex" else (1.0, 1.0)
    assert len(one) < 8
    z = batch.x @ values["0.weight"].T + one
    h = torch.relu((z - z.mean(0)) / (z.var(0, unbiased=False) + 1e-5).sqrt()) * first
    u = h @ values["3.weight"].T + two
    g = torch.relu((u - u.mean(0)) / (u.var(0, unbiased=False) + 1e-5).sqrt()) * second
    out = g @ values["6.weight"].T + values["6.bias"]
    for norm, seen in (("1", z), ("4", u)):
        torch.testing.assert_close(update.values[f"{norm}.running_mean"], 0.1 * seen.mean(0))
        torch.testing.assert_close(update.values[f"{norm}.running_var"], 0.1 * (seen.var(0) - 1.0))
    assert update.loss == pytest.approx(float(nn.functional.cross_entropy(out, batch.y)), rel=1e-5)


@pytest.mark.parametrize(("name", "least"), [("heterofl", 0.7), ("fedrolex", 0.5)])
def test_networks_with_norms_learn_where_all_devices_drop(tmp_path, name, least):
    torch.manual_seed(0)
    hidden = [nn.Linear(1024, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()]
    config = RunConfig.from_toml(
        f"method = '{name}'\nrounds = 15\nrate = 0.75\neval_every = 15\ndata = {{ devices = 6, train_limit = 600 }}"
    )
    *_, last = Run(config, tmp_path / "run", model=nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10)))
    assert last.test_accuracy > least


@pytest.mark.parametrize(
    ("name", "rates", "rounds", "unheld"),
    [("heterofl", RATES, 4, 0), ("heterofl", (0.75,), 4, 10), ("fedrolex", (0.75,), 4, 4), ("fedrolex", (0.75,), 9, 0)],
)
def test_units_that_no_window_gets_to_are_a_line(name, rates, rounds, unheld):
    model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 2))
    method = build_method(method_named(name), Setup(model=model, example=torch.zeros(1, 4), rounds=rounds, rates=rates))
    assert [line.split(" are in no device's window")[0] for line in method.notices] == (
        [f"{unheld} of 20 hidden units"] if unheld else []
    )


class Alike(nn.Module):
    """Convolutions in which all units of a layer are alike, and an output layer that reads them alike."""

    def __init__(self, *layers):
        super().__init__()
        self.layers, self.fc = nn.Sequential(*layers), nn.Linear(12, 10)
        with torch.no_grad():
            for p in self.layers.parameters():
                p.copy_(torch.rand(p[:1, :1].shape if p.ndim > 1 else 1).expand(p.shape) / p[0].numel() ** 0.5)
            self.fc.weight.copy_(self.fc.weight[:, :1].expand(10, 12))

    def forward(self, x):
        return self.fc(self.layers(x.reshape(-1, 1, 16, 16)).mean((2, 3)))


@pytest.mark.parametrize("name", ["heterofl", "fedrolex"])
@pytest.mark.parametrize(("out", "groups"), [(8, 1), (8, 8), (8, 4), (16, 8)])
def test_units_that_are_all_alike_give_what_the_whole_network_gives(digits, name, out, groups):
    """Each is divided once before it is summed over, also where depthwise and grouped convolutions lie between."""
    torch.manual_seed(3)
    between = nn.Conv2d(8, out, 3, groups=groups)
    model = Alike(nn.Conv2d(1, 8, 3), nn.ReLU(), between, nn.ReLU(), nn.Conv2d(out, 12, 1))
    (_, whole), (values, cut) = (at_once(copy.deepcopy(model), digits, name, rate) for rate in (0.0, 0.5))
    assert len(values["layers.2.bias"]) < out
    assert cut.loss == pytest.approx(whole.loss, rel=1e-4)


class AlikeSequence(nn.Module):
    """A recurrent layer or attention over the rows of an image in which all units are alike."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.fc = nn.Linear(12 * (1 + getattr(layer, "bidirectional", False)), 10)
        with torch.no_grad():
            for name, p in self.named_parameters():
                if name.startswith("layer.") and "out_proj" not in name:
                    gates = p.unflatten(0, (-1, 12))[:, :1]
                    reads_units = p.ndim == 2 and ("hh" in name or "_l1" in name)
                    p.copy_(
                        (gates[..., :1] if reads_units else gates).expand(p.unflatten(0, (-1, 12)).shape).flatten(0, 1)
                    )
                elif p.ndim == 2:
                    p.copy_(p[:, :1].expand(p.shape))

    def forward(self, x):
        x = x.reshape(-1, 16, 16)
        if isinstance(self.layer, nn.MultiheadAttention):
            return self.fc(self.layer(x[..., :12], x[..., :12], x[..., :12])[0].mean(1))
        return self.fc(self.layer(x)[0][:, -1])


@pytest.mark.parametrize("name", ["heterofl", "fedrolex"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("two", [False, True])
def test_recurrent_units_that_are_all_alike_give_what_the_whole_layer_gives(digits, name, kind, two):
    torch.manual_seed(3)
    model = AlikeSequence(kind(16, 12, 2, batch_first=True, bidirectional=two))
    (_, whole), (values, cut) = (at_once(copy.deepcopy(model), digits, name, rate) for rate in (0.0, 0.5))
    assert values["layer.weight_hh_l0"].shape[1] < 12
    assert cut.loss == pytest.approx(whole.loss, rel=1e-4)


def test_heads_of_torchs_attention_are_divided_like_those_of_linear_layers(digits):
    """Queries, keys and values are each divided by the share of heads that is kept."""
    torch.manual_seed(3)
    values, update = at_once(AlikeSequence(nn.MultiheadAttention(12, 4, batch_first=True)), digits, "heterofl", 0.5)
    heads, width = len(values["layer.in_proj_bias"]) // 9, len(values["layer.out_proj.bias"])
    batch = Batch(digits)
    x = batch.x.reshape(-1, 16, 16)[..., :12]
    packed = (x @ values["layer.in_proj_weight"].T + values["layer.in_proj_bias"]) * 4 / heads
    q, k, v = packed.unflatten(-1, (3, heads, 3)).permute(2, 0, 3, 1, 4)
    h = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    h = (h @ values["layer.out_proj.weight"].T + values["layer.out_proj.bias"]).mean(1) * 12 / width
    out = h @ values["fc.weight"].T + values["fc.bias"]
    assert heads < 4
    assert width < 12
    assert update.loss == pytest.approx(float(nn.functional.cross_entropy(out, batch.y)), rel=1e-5)


class Siamese(nn.Module):
    """Two layers that share their weight and make the same units."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(256, 8), nn.Linear(256, 8, bias=False), nn.Linear(8, 10)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.out(torch.relu(self.a(x) + self.b(x.flip(1))))


def test_both_layers_of_a_tied_weight_are_scaled(digits):
    values, update = at_once(Siamese(), digits, "heterofl", 0.5)
    batch, w, b = Batch(digits), values["a.weight"], values["a.bias"]
    h = torch.relu(batch.x @ w.T + b + batch.x.flip(1) @ w.T) * 8 / len(b)
    out = h @ values["out.weight"].T + values["out.bias"]
    assert update.loss == pytest.approx(float(nn.functional.cross_entropy(out, batch.y)), rel=1e-5)


@pytest.mark.parametrize(("optimizer", "moves"), [("average", False), ("fedavgm", True), ("fedadam", True)])
def test_what_no_device_holds_is_moved_by_momentum_alone(tmp_path, digits, optimizer, moves):
    config = RunConfig.from_toml(
        f"method = 'fedrolex'\nrounds = 2\nrate = 0.5\nserver.optimizer = '{optimizer}'\ndata.devices = 2"
    )
    data = from_arrays(digits.train_x[:40], digits.train_y[:40], digits.test_x[:9], digits.test_y[:9])
    run = Run(
        config, tmp_path / "run", dataset=data, model=nn.Sequential(nn.Flatten(), nn.Linear(256, 6), nn.Linear(6, 10))
    )
    first, second = (run.params["1.bias"].clone() for _ in run)  # unit 0 is in the first window, and not in the second
    assert bool(first[0] != second[0]) == moves
    assert first[1] != second[1]


@pytest.mark.parametrize(("key", "value"), [("level", "'weight'"), ("count", "'bernoulli'"), ("rule", "'model'")])
def test_what_is_not_a_window_of_units_is_refused(key, value):
    with pytest.raises(ConfigError, match=f"unknown key 'method.{key}'"):
        RunConfig.from_toml(f"method = {{ name = 'fedrolex', {key} = {value} }}")
    with pytest.raises(ConfigError, match="layers"):
        RunConfig.from_toml("method = { name = 'fedrolex', layers = 'odd' }")


class Bare(nn.Module):
    """A layer without a module of its own."""

    def __init__(self, units, inputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(units, inputs))

    def forward(self, x):
        return nn.functional.linear(x, self.weight)


def test_a_layer_that_cannot_be_scaled_is_refused():
    makes = nn.Sequential(Bare(6, 4), nn.ReLU(), nn.Linear(6, 2))
    reads = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), Bare(2, 6))
    for method, model in ((heterofl, makes), (fedrolex, makes), (fedrolex, reads)):
        with pytest.raises(SubnetError, match=r"used in layer '\d' \(Bare\)"):
            method(Setup(model=model, example=torch.zeros(1, 4), rounds=1), Windows())
    heterofl(Setup(model=reads, example=torch.zeros(1, 4), rounds=1), Windows())


class Pair(nn.Linear):
    """A linear layer that gives its bias apart, as some do that are spread over machines."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight), self.bias


class Gated(nn.Linear):
    """A linear layer that takes a second tensor."""

    def forward(self, x, gate):
        return super().forward(x * gate)


class Apart(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.a, self.b = (nn.Linear(4, 6), Gated(6, 2)) if norm else (Pair(4, 6), nn.Linear(6, 2))
        self.norm = norm

    def forward(self, x):
        if self.norm:
            return self.b(torch.relu(self.norm(self.a(x))), torch.ones(()))
        y, bias = self.a(x)
        return self.b(torch.relu(y + bias))


def test_a_layer_of_several_tensors_is_refused():
    plain, normed = (Setup(model=Apart(n), example=torch.zeros(1, 4), rounds=1) for n in (None, nn.BatchNorm1d(6)))
    for method in (heterofl, fedrolex):
        with pytest.raises(SubnetError, match=r"layer 'a' takes several tensors or returns a tuple"):
            method(plain, Windows())
    with pytest.raises(SubnetError, match=r"layer 'b' takes several tensors"):
        fedrolex(normed, Windows())
    heterofl(normed, Windows())  # which divides nothing there


class Around(nn.Module):
    """Uses its layers' weights without calling the layers: a hook on them would never run."""

    def __init__(self, makes, reads, norm=None):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 6), norm or nn.Identity(), nn.Linear(6, 2)
        self.makes, self.reads = makes, reads

    def forward(self, x):
        return self.use(self.reads, self.b, torch.relu(self.norm(self.use(self.makes, self.a, x))))

    @staticmethod
    def use(how, layer, x):
        if how == "functional":
            return nn.functional.linear(x, layer.weight, layer.bias)
        return layer.forward(x) if how == "forward" else layer(x)


@pytest.mark.parametrize("how", ["functional", "forward"])
def test_a_layer_that_is_not_called_as_one_is_refused(how):
    """It would be left unscaled without a word."""
    setup = Setup(model=Around(how, "call"), example=torch.zeros(1, 4), rounds=1)
    for method in (heterofl, fedrolex):
        with pytest.raises(SubnetError, match=r"'a.weight' is used in the network's forward \(Around\)"):
            method(setup, Windows())
    normed = Setup(model=Around("call", how, nn.BatchNorm1d(6)), example=torch.zeros(1, 4), rounds=1)
    with pytest.raises(SubnetError, match=r"'b.weight' is used in the network's forward"):
        fedrolex(normed, Windows())
    heterofl(normed, Windows())  # which scales nothing there
    for fine in (Around("call", "call"), Around("call", how)):  # what reads units is not scaled, but what makes them
        for method in (heterofl, fedrolex):
            method(Setup(model=fine, example=torch.zeros(1, 4), rounds=1), Windows())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heterofl", "fedrolex"])
def test_rates_from_the_cell_meet_the_deadline(tmp_path, name):
    config = RunConfig.from_toml(
        f"method = '{name}'\nrounds = 2\n"
        "data = { train_limit = 200, devices = 4 }\nradio = { deadline_s = 0.3, bits_per_parameter = 32 }"
    )
    for record in Run(config, tmp_path / name):
        assert record["latency_s"] <= 0.3
        assert max(device["rate"] for device in record["devices"]) > 0.05
