"""Networks for images: LeNet and AlexNet, as in the paper, and ResNet-18.

LeNet and AlexNet pool *before* the activation. Tanh and ReLU are monotone, so the result is the same with a quarter of
the activations.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from feddrop.config.model import NORMS
from feddrop.errors import ConfigError, one_of

LENET = ((6, 16), (120, 84))
ALEXNET = ((64, 192, 384, 256, 256), (4096, 4096))
RESNET18 = (64, 128, 256, 512)
_ALEXNET_POOLED = (1, 2, 5)


def lenet(
    *,
    num_classes: int = 100,
    input_shape: Sequence[int] = (3, 32, 32),
    channels: Sequence[int] = LENET[0],
    hidden: Sequence[int] = LENET[1],
) -> nn.Sequential:
    """LeNet-5: two 5 x 5 convolutions with 2 x 2 pools, three linear layers, tanh.

    Args:
        num_classes: number of outputs.
        input_shape: shape of one sample, ``(channels, height, width)``; at least 16 x 16 pixels.
        channels: output channels of ``conv1``, ``conv2``.
        hidden: widths of ``fc1``, ``fc2``.

    Example:
        >>> import feddrop
        >>> sum(p.numel() for p in feddrop.lenet().parameters())
        69656
    """
    colours, *pixels = _check("lenet", num_classes, input_shape, channels, hidden, widths=LENET, smallest=16)
    height, width = (((side - 4) // 2 - 4) // 2 for side in pixels)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (before, after) in enumerate(pairwise((colours, *channels)), 1):
        layers[f"conv{i}"] = nn.Conv2d(before, after, 5)
        layers[f"pool{i}"] = nn.MaxPool2d(2)
        layers[f"act{i}"] = nn.Tanh()
    return _with_head(layers, (channels[-1] * height * width, *hidden, num_classes), nn.Tanh)


def alexnet(
    *,
    num_classes: int = 100,
    input_shape: Sequence[int] = (3, 32, 32),
    channels: Sequence[int] = ALEXNET[0],
    hidden: Sequence[int] = ALEXNET[1],
) -> nn.Sequential:
    """AlexNet for small images: five 3 x 3 convolutions, 2 x 2 pools after 1, 2 and 5, three linear layers, ReLU.

    Args:
        num_classes: number of outputs.
        input_shape: shape of one sample, ``(channels, height, width)``; at least 8 x 8 pixels.
        channels: output channels of ``conv1`` to ``conv5``.
        hidden: widths of ``fc1``, ``fc2``.
    """
    colours, *pixels = _check("alexnet", num_classes, input_shape, channels, hidden, widths=ALEXNET, smallest=8)
    height, width = (side // 2 ** len(_ALEXNET_POOLED) for side in pixels)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (before, after) in enumerate(pairwise((colours, *channels)), 1):
        layers[f"conv{i}"] = nn.Conv2d(before, after, 3, padding=1)
        if i in _ALEXNET_POOLED:
            layers[f"pool{i}"] = nn.MaxPool2d(2)
        layers[f"act{i}"] = nn.ReLU()
    return _with_head(layers, (channels[-1] * height * width, *hidden, num_classes), nn.ReLU)


class Block(nn.Module):
    """Two 3 x 3 convolutions with norms and a shortcut: the identity, or a 1 x 1 convolution if the size changes."""

    def __init__(self, before: int, after: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = _norm(norm, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = _norm(norm, after)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), _norm(norm, after))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[N, before, H, W]`` to ``[N, after, H / stride, W / stride]``."""
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(inner)) + self.short(x))


def resnet18(
    *,
    num_classes: int = 100,
    input_shape: Sequence[int] = (3, 32, 32),
    channels: Sequence[int] = RESNET18,
    norm: str = "batch",
) -> nn.Sequential:
    """ResNet-18 for small images: a 3 x 3 stem without pooling, four stages of two blocks, a mean, one linear layer.

    Args:
        num_classes: number of outputs.
        input_shape: shape of one sample, ``(channels, height, width)``; at least 8 x 8 pixels, or 16 x 16 with the norm
            ``"static"``.
        channels: channels of the four stages.
        norm: ``"batch"``; ``"group"`` (groups of four channels or more, no statistics); or ``"static"``: batch norm
            without running statistics, which uses those of the batch in evaluation too.
    """
    one_of("norm", norm, NORMS)
    least = 16 if norm == "static" else 8  # statistics of one sample need more than one pixel in the last stage
    colours, *_ = _check("resnet18", num_classes, input_shape, channels, (), widths=(RESNET18, ()), smallest=least)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv1"] = nn.Conv2d(colours, channels[0], 3, padding=1, bias=False)
    layers["norm1"] = _norm(norm, channels[0])
    layers["act1"] = nn.ReLU()
    for stage, (before, after) in enumerate(pairwise((channels[0], *channels)), 1):
        layers[f"stage{stage}"] = nn.Sequential(
            Block(before, after, 1 if stage == 1 else 2, norm), Block(after, after, 1, norm)
        )
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(channels[-1], num_classes)
    return nn.Sequential(layers)


def _norm(norm: str, channels: int) -> nn.Module:
    if norm == "group":
        most = min(32, max(1, channels // 4))
        return nn.GroupNorm(next(count for count in range(most, 0, -1) if channels % count == 0), channels)
    return nn.BatchNorm2d(channels, track_running_stats=norm == "batch")


def _with_head(
    layers: OrderedDict[str, nn.Module], widths: Sequence[int], activation: type[nn.Module]
) -> nn.Sequential:
    """Append linear layers ``fc1``, ``fc2``, ... to a convolutional body; there is no activation after the last."""
    layers["flatten"] = nn.Flatten()
    last = len(widths) - 1
    for i, (before, after) in enumerate(pairwise(widths), 1):
        layers[f"fc{i}"] = nn.Linear(before, after)
        if i < last:
            layers[f"fc_act{i}"] = activation()
    return nn.Sequential(layers)


def _check(
    name: str,
    num_classes: int,
    input_shape: Sequence[int],
    channels: Sequence[int],
    hidden: Sequence[int],
    *,
    widths: tuple[tuple[int, ...], tuple[int, ...]],
    smallest: int,
) -> tuple[int, int, int]:
    """Check a network's arguments and return its input shape ``(channels, height, width)``."""
    for what, given, allowed, fits in (
        ("num_classes", num_classes, "at least 1", num_classes >= 1),
        ("channels", channels, f"{len(widths[0])} positive widths, such as {widths[0]}", _fit(channels, widths[0])),
        ("hidden", hidden, f"{len(widths[1])} positive widths, such as {widths[1]}", _fit(hidden, widths[1])),
        (
            "input_shape",
            input_shape,
            f"(channels, height, width), at least (1, {smallest}, {smallest}); enlarge smaller images",
            len(input_shape) == 3 and input_shape[0] >= 1 and min(input_shape[1:]) >= smallest,
        ),
    ):
        if not fits:
            raise ConfigError(f"{name}: {what} is {given}; it must be {allowed}.")
    colours, height, width = input_shape
    return colours, height, width


def _fit(given: Sequence[int], default: Sequence[int]) -> bool:
    return len(given) == len(default) and all(count >= 1 for count in given)
