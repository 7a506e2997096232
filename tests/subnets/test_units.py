"""Unit level: the really smaller network computes what the whole one computes when nothing reads its dropped units."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from feddrop.errors import SubnetError
from feddrop.models import alexnet, lenet
from feddrop.models.flops import forward_flops
from feddrop.seeds import generator
from feddrop.subnets.trace import trace
from feddrop.subnets.units import shrink
from support.unit_oracle import assert_same, choose, cut, pieces_of, random_network, resnet


@pytest.mark.parametrize("seed", range(80))
def test_a_smaller_network_equals_the_masked_whole_one(seed):
    model, shape = random_network(seed)
    graph = assert_same(model, shape, seed)
    assert list(graph.whole) == [str(len(model) - 1)]  # the output layer, and no other


def test_random_networks_meet_every_kind_of_layer():
    """The oracle above is only as good as what it sees."""
    modules = itertools.chain.from_iterable(random_network(seed)[0].modules() for seed in range(80))
    kinds = {type(m).__name__ + ("*" if getattr(m, "groups", 1) > 1 else "") for m in modules}
    assert kinds >= {
        "Conv2d",
        "Conv2d*",
        "ConvTranspose2d",
        "BatchNorm1d",
        "BatchNorm2d",
        "GroupNorm",
        "Gate",
        "Residual",
    }
    assert kinds >= {"MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d", "Upsample", "PReLU", "Hardswish", "Flatten"}


@pytest.mark.parametrize("seed", range(0, 80, 8))
def test_pieces_are_the_positions_of_kept_units(seed):
    model, shape = random_network(seed)
    graph = trace(model, shape)
    kept = choose(graph, seed)
    for name, piece in pieces_of(model, graph, kept).items():
        mask = np.ones(piece.shape, bool)
        scale = 1.0
        for axis in graph.axes[name]:
            owner = np.arange(piece.shape[axis.dim]) // axis.block
            mask &= np.isin(owner, kept[axis.group]).reshape([-1 if d == axis.dim else 1 for d in range(mask.ndim)])
            scale *= graph.groups[axis.group] / len(kept[axis.group]) if axis.role == "in" else 1
        if graph.axes[name]:
            assert piece.index.dtype == np.int64
            np.testing.assert_array_equal(piece.index, np.flatnonzero(mask))
        else:
            assert piece.index is None
        assert math.prod(piece.sub_shape) == mask.sum() == piece.size
        assert piece.scale == pytest.approx(scale)


def test_unit_level_is_inverted_dropout_of_units():
    """With no graph in the twin: multiply activations by masks at the places a reader of the code would."""
    torch.manual_seed(0)
    model = lenet(num_classes=10, input_shape=(1, 20, 20)).double()
    graph = trace(model, (1, 20, 20))
    kept = choose(graph, 1)
    x = torch.from_numpy(generator(1).standard_normal((4, 1, 20, 20)))
    h = x
    for name, layer in model.named_children():
        if name in ("conv2", "fc1", "fc2", "fc3"):  # what reads units: just before it, drop and scale them
            group = {"conv2": "conv1", "fc1": "conv2", "fc2": "fc1", "fc3": "fc2"}[name]
            units, block = graph.groups[group], h[0].numel() // graph.groups[group]
            mask = torch.zeros(units, dtype=torch.double)
            mask[kept[group]] = units / len(kept[group])
            h = (h.reshape(len(h), units, block) * mask[:, None]).reshape(h.shape)
        h = layer(h)
    torch.testing.assert_close(cut(model, graph, kept)(x), h)


def test_layer_norm_normalises_over_the_kept_units():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 3)).double()
    nn.init.uniform_(model[1].weight)
    graph = trace(model, (5,))
    kept = np.array([0, 2, 3, 7])
    x = torch.from_numpy(generator(0).standard_normal((4, 5)))
    h = model[0](x)[:, kept]
    h = (h - h.mean(1, keepdim=True)) / (h.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    h = h * model[1].weight[kept] + model[1].bias[kept]
    expected = h @ model[2].weight[:, kept].T * 2 + model[2].bias
    torch.testing.assert_close(cut(model, graph, {"0": kept})(x), expected)


def test_norms_without_parameters_get_their_width():
    bare = (
        nn.BatchNorm2d(8, affine=False, track_running_stats=False),
        nn.GroupNorm(4, 8, affine=False),
        nn.GroupNorm(1, 8, affine=False),
        nn.LayerNorm((8, 4, 4), elementwise_affine=False),
    )
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *bare, nn.Flatten(), nn.Linear(128, 2))
    graph = trace(model, (3, 4, 4))
    assert graph.groups == {"0": 4}  # a norm group of two channels is one unit
    small = shrink(model, graph, {"0": 3})
    assert small[1].num_features == small[2].num_channels == 6
    assert (small[2].num_groups, small[3].num_groups, small[4].normalized_shape) == (3, 1, (6, 4, 4))
    assert small(torch.zeros(2, 3, 4, 4)).shape == (2, 2)


def test_attributes_agree_with_the_tensors():
    layers = (nn.Conv2d(8, 16, 3, groups=8), nn.PReLU(16), nn.ConvTranspose2d(16, 6, 2))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *layers, nn.Flatten(), nn.Linear(150, 2))
    small = shrink(model, trace(model, (3, 8, 8)), {"0": 5, "3": 2})
    depthwise = small[1]
    assert (small[0].out_channels, depthwise.in_channels, depthwise.out_channels, depthwise.groups) == (5, 5, 10, 5)
    assert (small[2].num_parameters, small[3].in_channels, small[3].out_channels) == (10, 10, 2)
    assert (small[5].in_features, small[5].out_features) == (50, 2)
    assert_same(model, (3, 8, 8))


def test_a_parameter_shared_by_two_modules_stays_shared():
    model = nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))
    model[3].weight = model[1].weight
    assert_same(model, (5,))
    small = shrink(model, trace(model, (5,)), {"0": 3})
    assert small[3].weight is small[1].weight
    assert small[3].in_features == small[3].out_features == 3


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_a_share_of_sqrt_keeps_the_rate_of_parameters_and_work(rate):
    """Wide hidden layers: 1-γ of parameters and FLOPs, but for the first and last layer, cut on one side only."""
    shape = (3, 8, 8)
    for model in (resnet(64), alexnet(num_classes=10, input_shape=shape)):
        graph = trace(model, shape)
        sizes = {group: max(1, round(math.sqrt(1 - rate) * units)) for group, units in graph.groups.items()}
        pieces = pieces_of(model, graph, {group: np.arange(size) for group, size in sizes.items()})
        held = sum(piece.size for name, piece in pieces.items() if not name.endswith(("mean", "var")))
        total = sum(p.numel() for p in model.parameters())
        small = shrink(model, graph, sizes)
        assert held == sum(p.numel() for p in small.parameters())
        assert held / total == pytest.approx(1 - rate, rel=0.03)
        assert forward_flops(small, shape) / forward_flops(model, shape) == pytest.approx(1 - rate, rel=0.1)


def test_all_units_kept_is_the_network_itself():
    model = resnet()
    graph = trace(model, (3, 8, 8))
    kept = {group: np.arange(units) for group, units in graph.groups.items()}
    for chosen in ({}, kept):
        for piece in pieces_of(model, graph, chosen).values():
            assert piece.index is None
            assert piece.scale == 1.0
            assert piece.sub_shape == piece.shape
    x = torch.from_numpy(generator(0).standard_normal((2, 3, 8, 8))).float()
    assert torch.equal(cut(model, graph, kept).eval()(x), model.eval()(x))


def test_shrinking_copies_no_parameter(monkeypatch):
    def refuse(*_):
        raise AssertionError("a whole tensor was copied")

    model = resnet()
    graph = trace(model, (3, 8, 8))
    monkeypatch.setattr(nn.Parameter, "__deepcopy__", refuse)
    monkeypatch.setattr(Tensor, "__deepcopy__", refuse)
    small = shrink(model, graph, {"0.0": 3})
    assert small[0][0].weight.shape == (3, 3, 3, 3)
    assert small[0][0].weight.requires_grad
    assert not small[0][1].training ^ model[0][1].training


def test_wrong_units_are_refused():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    graph = trace(model, (4,))
    for bad in ([], [3, 1], [1, 1], [-1, 2], [2, 8], [[1], [2]]):
        with pytest.raises(SubnetError, match=r"'0'.*0 to 7"):
            pieces_of(model, graph, {"0": np.array(bad, dtype=np.int64)})
    for size in (0, 9):
        with pytest.raises(SubnetError, match=f"{size} units"):
            shrink(model, graph, {"0": size})
    with pytest.raises(SubnetError, match=r"'fc'.*'0'"):
        shrink(model, graph, {"fc": 2})
