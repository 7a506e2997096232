"""Cutting: both levels, layer choices, sizes on the wire."""

from __future__ import annotations

import math
from collections import OrderedDict
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from feddrop.config import Subnets
from feddrop.errors import ConfigError
from feddrop.methods.masking import MaskLayout
from feddrop.methods.method import Job
from feddrop.models import alexnet, lenet
from feddrop.simulation.exchange import push
from feddrop.subnets import parameters
from feddrop.subnets.blueprint import Blueprint
from feddrop.subnets.cut import cutter, kept_sizes, kept_units
from feddrop.subnets.piece import Piece, from_device_shape, gather, scaled, scaled_values, scatter, to_device_shape


def cut_of(model, shape, **settings):
    config = Subnets(**settings)
    return cutter(Blueprint(model, shape), config)


@pytest.mark.parametrize("build", [lenet, alexnet])
@pytest.mark.parametrize("level", ["weight", "unit"])
def test_bytes_on_the_wire(build, level):
    """Must hold: (1-γ) x weights x 4 + biases x 4, within 0.1 % and 128 bytes; unit level within rounding of units."""
    model = build()
    whole = parameters.from_model(model)
    weights = sum(t.numel() for t in whole.values() if t.ndim >= 2)
    biases = sum(t.numel() for t in whole.values() if t.ndim < 2)
    cut = cut_of(model, (3, 32, 32), level=level)
    for rate in (0.0, 0.2, 0.5, 0.9):
        subnet = cut(11, rate)
        frame = push(whole, subnet, Job(round=1, device=0, seed=11, rate=rate))
        expected = (1 - rate) * weights * 4 + biases * 4
        slack = 0.001 * expected + 128
        if level == "unit":  # one unit more or less in the layer whose units are largest
            slack += 4 * largest_unit(subnet)
        assert abs(len(frame) - expected) <= slack, (rate, len(frame), expected)


def largest_unit(subnet):
    """Parameters that come and go with one unit of the subnet."""
    shapes = [piece.sub_shape for name, piece in subnet.items() if name.endswith("weight")]
    out = [math.prod(shape[1:]) for shape in shapes]
    read = [math.prod(after) // before[0] for before, after in pairwise(shapes)]
    return max(a + b for a, b in zip(out, [*read, 0], strict=True))


def test_exact_count_per_layer_and_scale(tiny):
    subnet = cut_of(tiny, (1, 16, 16))(1, 0.25)
    for piece in subnet.values():
        size = math.prod(piece.shape)
        if len(piece.shape) >= 2:
            assert piece.size == math.floor(0.75 * size + 0.5)
            assert piece.scale == 1 / 0.75
        else:
            assert piece.index is None
            assert piece.scale == 1.0


def test_layers_are_masked_independently_and_by_seed(tiny):
    cut = cut_of(tiny, (1, 16, 16))
    first, again, other = cut(1, 0.5), cut(1, 0.5), cut(2, 0.5)
    assert all(np.array_equal(first[n].index, again[n].index) for n in tiny_weights(tiny))
    assert not np.array_equal(first["conv2.weight"].index, other["conv2.weight"].index)
    assert not np.array_equal(first["fc1.weight"].index, first["conv2.weight"].index[: first["fc1.weight"].size])


def tiny_weights(model):
    return [name for name, p in model.named_parameters() if p.ndim >= 2]


def test_choice_of_layers(tiny):
    whole_ones = {
        name for name, piece in cut_of(tiny, (1, 16, 16), layers="linear")(1, 0.5).items() if piece.index is None
    }
    assert {"conv1.weight", "conv2.weight"} <= whole_ones
    assert "fc1.weight" not in whole_ones
    named = cut_of(tiny, (1, 16, 16), layers=("conv2",), layer_rates={"fc2": 0.75})(1, 0.5)
    assert named["conv2.weight"].size == tiny.conv2.weight.numel() // 2
    assert named["fc2.weight"].size == tiny.fc2.weight.numel() // 4
    assert named["fc1.weight"].index is None
    with pytest.raises(ConfigError, match="Did you mean 'fc1'"):
        cut_of(tiny, (1, 16, 16), layers=("fc_1",))


@pytest.mark.parametrize(
    "settings",
    [
        {"layers": ()},
        {"layers": (), "layer_rates": {"conv": 0.0}},
        {"layers": "linear"},
        {"level": "unit", "layers": ("out",)},
        {"level": "unit", "layers": (), "layer_rates": {"out": 0.9}},
        {"level": "unit", "layers": "linear"},
    ],
)
def test_a_choice_of_layers_that_drops_nothing_is_refused(settings):
    model = nn.Sequential(OrderedDict(conv=nn.Conv2d(1, 4, 3), act=nn.ReLU(), out=nn.Conv2d(4, 3, 3)))
    with pytest.raises(ConfigError, match="which drops nothing from this network at any rate") as caught:
        cut_of(model, (1, 8, 8), **settings)
    able = "['conv']" if settings.get("level") == "unit" else "['conv', 'out']"
    assert f"Name some of {able}, or use 'all'." in str(caught.value)
    cut_of(model, (1, 8, 8), layers=(), layer_rates={"out": 0.9})


class Tied(nn.Module):
    """Two layers with one weight, and a bias each."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.out(self.b(self.a(x).relu()).relu())


def test_a_tied_weight_is_listed_once_and_goes_by_its_first_name():
    blueprint = Blueprint(Tied(), (6,))
    assert blueprint.weights == {"a.weight": "a", "out.weight": "out"}
    assert blueprint.biases == {"a.bias": "a", "b.bias": "a", "out.bias": "out"}
    for given in ({"layers": ("b",)}, {"layer_rates": {"b": 0.9}}):
        with pytest.raises(ConfigError, match=r"'b', which shares the weights of 'a'\. Name that layer"):
            cutter(blueprint, Subnets(**given))


NORMS = [nn.LayerNorm([4, 8, 8]), nn.RMSNorm([4, 8, 8]), nn.GroupNorm(2, 4), nn.BatchNorm2d(4), nn.InstanceNorm2d(4)]


@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: type(norm).__name__)
def test_norms_are_kept_whatever_their_shape(norm):
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), norm, nn.ReLU(), nn.Flatten(), nn.Linear(256, 3))
    blueprint = Blueprint(model, (1, 8, 8))
    assert list(parameters.weights(model)) == list(blueprint.weights) == ["0.weight", "4.weight"]
    subnet = cutter(blueprint, Subnets(biases=True))(1, 0.5)
    assert {name for name, piece in subnet.items() if piece.index is None} == {n for n in subnet if n.startswith("1.")}
    assert list(MaskLayout(model).weights) == ["0.weight", "4.weight"]


def test_a_layer_without_inputs_is_cut_along_with_the_others():
    class Empty(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.out = nn.Linear(6, 8), nn.Linear(8, 3)
            self.none = nn.Linear(1, 8)
            self.none.weight = nn.Parameter(torch.empty(8, 0))

        def forward(self, x):
            return self.out(self.a(x) + self.none(x[:, :0]))

    subnet = cut_of(Empty(), (6,), level="unit")(1, 0.5)
    assert subnet["none.weight"].size == 0
    assert subnet["none.bias"].size == subnet["a.bias"].size < 8


def test_a_vector_without_values_is_kept():
    net = nn.Linear(6, 4)
    net.register_parameter("none", nn.Parameter(torch.empty(0)))
    subnet = cutter(Blueprint(net, (6,)), Subnets(biases=True))(1, 0.5)
    assert {name: piece.size for name, piece in subnet.items()} == {"weight": 12, "bias": 2, "none": 0}


def test_unit_level_by_layer(tiny):
    cut = cut_of(tiny, (1, 16, 16), level="unit", layers="linear")
    subnet = cut(1, 0.75)
    assert subnet["conv1.weight"].sub_shape == (8, 1, 3, 3)
    assert subnet["fc1.weight"].sub_shape[0] < 16
    assert subnet["fc2.weight"].sub_shape == (10, subnet["fc1.weight"].sub_shape[0])


def test_coupled_layers_share_one_subset(tiny):
    subnet = cut_of(tiny, (1, 16, 16), level="unit")(5, 0.5)
    rows = {name: np.unique(subnet[name].index // (tiny.get_parameter(name)[0].numel())) for name in tiny_weights(tiny)}
    assert np.array_equal(rows["conv1.weight"], rows["conv2.weight"])  # conv1 + conv2 meet in the residual sum
    assert np.array_equal(subnet["norm1.running_mean"].index, rows["conv1.weight"])


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.3, 0.5, 0.8, 0.95])
def test_unit_size_is_the_weight_level_size(rate):
    """Wide layers, so that rounding is small: the unit-level subnet is as large as the rate says."""
    model = nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 500), nn.ReLU(), nn.Linear(500, 60))
    subnet = cut_of(model, (300,), level="unit")(1, rate)
    weights = 300 * 400 + 400 * 500 + 500 * 60
    assert sum(p.size for p in subnet.values()) == pytest.approx((1 - rate) * weights + 960, rel=0.01, abs=1000)


def test_unit_subnet_keeps_the_mean_of_what_a_unit_reads():
    """Over random subnets, the pre-activation of a kept unit has the mean of the whole network's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 40), nn.Identity(), nn.Linear(40, 3))
    whole = parameters.from_model(model)
    cut = cut_of(model, (6,), level="unit")
    x = torch.randn(6)
    outputs = []
    for seed in range(3000):
        subnet = cut(seed, 0.5)
        w = {n: to_device_shape(gather(whole[n], p) * p.scale, p) for n, p in subnet.items()}
        outputs.append(w["2.weight"] @ (w["0.weight"] @ x + w["0.bias"]) + w["2.bias"])
    got, error = torch.stack(outputs).mean(0), torch.stack(outputs).std(0) / math.sqrt(3000)
    assert ((got - model(x)).abs() < 5 * error).all()


def test_weight_masks_are_unbiased(tiny):
    """E[w * m] = w (the paper, below eq. Eq:DropoutMask)."""
    w = tiny.fc1.weight.detach()
    for count in ("exact", "bernoulli"):
        cut = cut_of(tiny, (1, 16, 16), count=count)
        total = torch.zeros_like(w)
        for seed in range(2000):
            piece = cut(seed, 0.5)["fc1.weight"]
            total += scatter(gather(w, piece) * piece.scale, piece)
        assert ((total / 2000 - w).abs() <= 6 * w.abs() / math.sqrt(2000)).all()


@pytest.mark.parametrize("level", ["weight", "unit"])
def test_pieces_go_out_and_back(tiny, level):
    subnet = cut_of(tiny, (1, 16, 16), level=level)(3, 0.6)
    for name, tensor in parameters.from_model(tiny).items():
        piece = subnet[name]
        kept = gather(tensor, piece)
        slow = [v for i, v in enumerate(tensor.flatten().tolist()) if piece.index is None or i in set(piece.index)]
        assert kept.tolist() == slow
        held = to_device_shape(kept, piece)
        assert tuple(held.shape) == piece.sub_shape
        assert torch.equal(from_device_shape(held, piece), kept)
        padded = scatter(kept, piece)
        assert torch.equal(gather(padded, piece), kept)
        assert padded.count_nonzero() == kept.count_nonzero()


def test_kept_units_match_the_pieces(tiny):
    plan = Blueprint(tiny, (1, 16, 16))
    subnet = cutter(plan, Subnets(level="unit"))(3, 0.5)
    assert kept_units(plan.units, subnet)["fc1"] == subnet["fc1.bias"].size


def test_a_higher_rate_never_leaves_more_units():
    """5 and 25 units change their counts at the same share, 0.9: which of them does so first must not hang on a bit."""
    net = nn.Sequential(
        nn.Linear(9, 2),
        nn.ReLU(),
        nn.Linear(2, 5),
        nn.ReLU(),
        nn.Linear(5, 36),
        nn.ReLU(),
        nn.Linear(36, 25),
        nn.ReLU(),
    )
    net.append(nn.Linear(25, 10))
    blueprint, config = Blueprint(net, (9,)), Subnets(level="unit")
    kept = [sum(kept_sizes(blueprint, config, 1.0 - 0.1 ** (i / 256)).values()) for i in range(257)]
    assert kept == sorted(kept, reverse=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_scaled_values_are_those_of_every_tensor_in_order(dtype):
    chance = np.random.default_rng(0)
    index = np.array([0, 3, 4, 9])
    subnet = {
        "kept": Piece(shape=(3, 4), sub_shape=(3, 4)),
        "weights": Piece(shape=(3, 4), index=index, sub_shape=(3, 4), scale=1 / 0.7),
        "units": Piece(shape=(3, 4), index=index, sub_shape=(2, 2), scale=np.array([1, 2, 3, 4.5], np.float32)),
        "raised": Piece(shape=(3, 4), index=index, sub_shape=(3, 4), floor=0.5),
        "none": Piece(shape=(0,), sub_shape=(0,)),
    }
    tensors = {name: torch.from_numpy(chance.normal(size=piece.shape)).to(dtype) for name, piece in subnet.items()}
    wanted = torch.cat([scaled(tensors[name], piece).float() for name, piece in subnet.items()])
    assert torch.equal(scaled_values(tensors, subnet), wanted)
    assert scaled_values(tensors, {}).shape == (0,)
