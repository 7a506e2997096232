"""Networks to cut by units, and the slow oracle that a cut is compared with."""

from __future__ import annotations

import copy
import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from feddrop.seeds import generator
from feddrop.subnets.piece import Index, Subnet, gather, to_device_shape
from feddrop.subnets.trace import trace
from feddrop.subnets.units import UnitGraph, shrink, unit_pieces

Shape = tuple[int, ...]
STAGES = ("conv", "norm", "group", "act", "pool", "same", "project", "depth", "grouped", "gate", "up")


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **{n: b for n, b in model.named_buffers() if b.is_floating_point()}}


def choose(graph: UnitGraph, seed: int) -> dict[str, Index]:
    """Some units of every group, never all."""
    rng = generator(seed)
    return {g: np.sort(rng.permutation(n)[: rng.integers(1, n)]) for g, n in graph.groups.items()}


def pieces_of(model: nn.Module, graph: UnitGraph, kept: dict[str, Index]) -> Subnet:
    return unit_pieces(graph, {name: tuple(t.shape) for name, t in tensors(model).items()}, kept)


def cut(model: nn.Module, graph: UnitGraph, kept: dict[str, Index]) -> nn.Module:
    """The smaller network, loaded as a device loads it."""
    pieces = pieces_of(model, graph, kept)
    small = shrink(model, graph, {group: len(index) for group, index in kept.items()})
    params = tensors(model)
    for name, tensor in tensors(small).items():
        tensor.data.copy_(to_device_shape(gather(params[name], pieces[name]), pieces[name]) * pieces[name].scale)
    return small


def masked(model: nn.Module, graph: UnitGraph, kept: dict[str, Index]) -> nn.Module:
    """The slow oracle: the full network, in which nothing reads the dropped units, and they compute garbage."""
    twin = copy.deepcopy(model)
    noise = torch.Generator().manual_seed(0)
    for name, tensor in tensors(twin).items():
        for axis in graph.axes[name]:
            units = graph.groups[axis.group]
            view = tensor.data.transpose(0, axis.dim)
            dropped = set(range(units)) - set(kept[axis.group].tolist())
            for start in (r * units + unit for r in range(axis.repeats) for unit in dropped):
                rows = slice(start * axis.block, (start + 1) * axis.block)
                view[rows] = 0 if axis.role == "in" else torch.rand(view[rows].shape, generator=noise).double()
            if axis.role == "in":
                tensor.data.mul_(units / len(kept[axis.group]))
    return twin


def assert_same(model: nn.Module, example: Shape | Tensor, seed: int = 0) -> UnitGraph:
    """The smaller network equals its slow twin, in evaluation and in training mode."""
    model = model.double()
    graph = trace(model, example)
    kept = choose(graph, seed)
    small, twin = cut(model, graph, kept), masked(model, graph, kept)
    x = example if isinstance(example, Tensor) else torch.from_numpy(generator(seed).standard_normal((3, *example)))
    for mode in (False, True):
        out, expected = small.train(mode)(x), twin.train(mode)(x)
        assert out.abs().max() > 1e-6
        torch.testing.assert_close(out, expected, rtol=1e-8, atol=1e-10)
    for name, tensor in tensors(small).items():
        assert (tensor.shape == tensors(model)[name].shape) == (not graph.axes[name])
    return graph


class Residual(nn.Module):
    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return f.relu(self.body(x) + self.shortcut(x))


class Gate(nn.Module):
    """Squeeze and excitation: a product of coupled units."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Linear(width, 4), nn.Linear(4, width)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.excite(f.relu(self.squeeze(x.mean((2, 3))))))[:, :, None, None]


class Call(nn.Module):
    """Any function as a module."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def normed(*layers: nn.Module) -> nn.Sequential:
    """Every convolution followed by a batch norm with statistics of its own."""
    out: list[nn.Module] = []
    for layer in layers:
        out.append(layer)
        if isinstance(layer, nn.Conv2d):
            norm = nn.BatchNorm2d(layer.out_channels)
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
            out.append(norm)
    return nn.Sequential(*out)


def random_network(seed: int) -> tuple[nn.Module, Shape]:
    """Convolutions, norms, pools, residuals and gates in any order, then linear layers; the output layer is last."""
    pick = random.Random(seed)
    torch.manual_seed(seed)
    width, side = pick.choice((4, 8, 12)), pick.choice((8, 9))
    shape = (3, side, side)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=pick.random() < 0.5)]
    for _ in range(pick.randint(1, 6)):
        wider = pick.choice((4, 8, 12))
        kind = pick.choice(STAGES)
        if kind == "conv":
            layers.append(nn.Conv2d(width, wider, pick.choice((1, 3)), stride=pick.choice((1, 2)), padding=1))
            width = wider
        elif kind == "norm":
            layers += list(normed(nn.Conv2d(width, wider, 1, bias=False)))
            width = wider
        elif kind == "group":
            layers.append(nn.GroupNorm(pick.choice((2, 4)), width))
        elif kind == "act":
            layers.append(
                pick.choice((nn.ReLU(), nn.Tanh(), nn.SiLU(), nn.Hardswish(), nn.PReLU(width), nn.Dropout(0)))
            )
        elif kind == "pool":
            layers.append(pick.choice((nn.MaxPool2d(2, 1), nn.AvgPool2d(2, 1), nn.AdaptiveAvgPool2d(3))))
        elif kind == "same":
            body = normed(nn.Conv2d(width, wider, 3, padding=1), nn.ReLU(True), nn.Conv2d(wider, width, 3, padding=1))
            layers.append(Residual(body))
        elif kind == "project":
            body = normed(nn.Conv2d(width, wider, 3, 2, 1), nn.ReLU(), nn.Conv2d(wider, wider, 3, 1, 1))
            layers.append(Residual(body, normed(nn.Conv2d(width, wider, 1, 2))))
            width = wider
        elif kind == "depth":
            layers.append(nn.Conv2d(width, 2 * width, 3, padding=1, groups=width))
            width = 2 * width
        elif kind == "grouped":
            layers.append(nn.Conv2d(width, wider, 3, padding=1, groups=pick.choice((2, 4))))
            width = wider
        elif kind == "gate":
            layers.append(Gate(width))
        else:
            layers += [nn.ConvTranspose2d(width, wider, 2, 2), nn.Upsample(scale_factor=0.5, mode="bilinear")]
            width = wider
    flat = [nn.Flatten(), Call(lambda x: x.view(x.size(0), -1)), Call(lambda x: x.mean((2, 3)))]
    layers += [nn.AdaptiveMaxPool2d(2), pick.choice(flat)]
    width = nn.Sequential(*layers)(torch.zeros(2, *shape)).shape[1]
    for _ in range(pick.randint(0, 3)):
        wider = pick.choice((5, 16))
        kind = pick.choice(("linear", "norm", "residual"))
        if kind == "residual":
            layers.append(Residual(nn.Sequential(nn.Linear(width, wider), nn.Tanh(), nn.Linear(wider, width))))
        else:
            layers += [nn.Linear(width, wider), nn.BatchNorm1d(wider) if kind == "norm" else nn.ReLU()]
            width = wider
    return nn.Sequential(*layers, nn.Linear(width, 5)), shape


def resnet(width: int = 8) -> nn.Sequential:
    def block(before: int, after: int, stride: int) -> Residual:
        body = normed(nn.Conv2d(before, after, 3, stride, 1), nn.ReLU(), nn.Conv2d(after, after, 3, 1, 1))
        return Residual(body, normed(nn.Conv2d(before, after, 1, stride)) if stride > 1 else None)

    blocks = [
        block(width, width, 1),
        block(width, width, 1),
        block(width, 2 * width, 2),
        block(2 * width, 2 * width, 1),
    ]
    stem = normed(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.ReLU())
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10))
