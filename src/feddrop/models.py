"""The networks of the paper.

Both networks pool *before* their activation. Tanh and ReLU are monotone, so the largest value stays the largest: the
result is the same, from a quarter of the activation work.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from feddrop.errors import ConfigError, one_of
from feddrop.seeds import derive

_LENET = ((6, 16), (120, 84))
_ALEXNET = ((64, 192, 384, 256, 256), (4096, 4096))
_ALEXNET_POOLED = (1, 2, 5)
INITS = ("torch", "he")


def lenet(
    *,
    num_classes: int = 100,
    input_shape: Sequence[int] = (3, 32, 32),
    channels: Sequence[int] = _LENET[0],
    hidden: Sequence[int] = _LENET[1],
) -> nn.Sequential:
    """LeNet-5: two 5 x 5 convolutions with 2 x 2 pools, three linear layers, tanh.

    Args:
        num_classes: number of outputs.
        input_shape: shape of one sample, ``(channels, height, width)``; at least 16 x 16 pixels.
        channels: output channels of ``conv1``, ``conv2``.
        hidden: widths of ``fc1``, ``fc2``.
    """
    colours, *pixels = _check("lenet", num_classes, input_shape, channels, hidden, widths=_LENET, smallest=16)
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
    channels: Sequence[int] = _ALEXNET[0],
    hidden: Sequence[int] = _ALEXNET[1],
) -> nn.Sequential:
    """AlexNet for small images: five 3 x 3 convolutions, 2 x 2 pools after 1, 2 and 5, three linear layers, ReLU.

    Args:
        num_classes: number of outputs.
        input_shape: shape of one sample, ``(channels, height, width)``; at least 8 x 8 pixels.
        channels: output channels of ``conv1`` to ``conv5``.
        hidden: widths of ``fc1``, ``fc2``.
    """
    colours, *pixels = _check("alexnet", num_classes, input_shape, channels, hidden, widths=_ALEXNET, smallest=8)
    height, width = (side // 2 ** len(_ALEXNET_POOLED) for side in pixels)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (before, after) in enumerate(pairwise((colours, *channels)), 1):
        layers[f"conv{i}"] = nn.Conv2d(before, after, 3, padding=1)
        if i in _ALEXNET_POOLED:
            layers[f"pool{i}"] = nn.MaxPool2d(2)
        layers[f"act{i}"] = nn.ReLU()
    return _with_head(layers, (channels[-1] * height * width, *hidden, num_classes), nn.ReLU)


def build(
    name: str, *, num_classes: int, input_shape: Sequence[int], width: float = 1.0, init: str = "torch", seed: int
) -> nn.Sequential:
    """Build a network by name, its first parameters drawn from the seed; torch's own random state is left alone.

    Args:
        name: ``"lenet"`` or ``"alexnet"``.
        num_classes: number of outputs.
        input_shape: shape of one sample, ``(channels, height, width)``.
        width: factor on every hidden width, rounded, at least 1.
        init: ``"torch"`` for torch's own first weights; ``"he"`` for He's in all layers but the last, which keeps the
            signal's size through a deep stack of ReLUs.
        seed: the run's root seed.
    """
    one_of("init", init, INITS)
    factory, (channels, hidden) = {"lenet": (lenet, _LENET), "alexnet": (alexnet, _ALEXNET)}[
        one_of("model", name, ("lenet", "alexnet"))
    ]
    if not (math.isfinite(width) and width > 0):
        raise ConfigError(f"width is {width}; it must be a positive number (1 is the network as published).")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would also reseed the accelerators, which fork_rng(devices=[]) does not restore.
        torch.default_generator.manual_seed(derive(seed, "init"))
        model = factory(
            num_classes=num_classes,
            input_shape=input_shape,
            channels=[max(1, round(width * count)) for count in channels],
            hidden=[max(1, round(width * count)) for count in hidden],
        )
        if init == "he":
            for layer in list(model)[:-1]:
                if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
                    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                    nn.init.zeros_(layer.bias)
        return model


def count_parameters(model: nn.Module) -> int:
    """Number of parameters of any network, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _with_head(
    layers: OrderedDict[str, nn.Module], widths: Sequence[int], activation: type[nn.Module]
) -> nn.Sequential:
    """Close a convolutional body with linear layers ``fc1``, ``fc2``, ...; no activation after the last."""
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
    if num_classes < 1:
        raise ConfigError(f"num_classes is {num_classes}; it must be at least 1.")
    for what, given, default in (("channels", channels, widths[0]), ("hidden", hidden, widths[1])):
        if len(given) != len(default) or min(given) < 1:
            raise ConfigError(
                f"{name}: {what} is {tuple(given)}; it must be {len(default)} positive widths, such as {default}."
            )
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ConfigError(
            f"{name}: input_shape is {tuple(input_shape)}; it must be (channels, height, width), such as (3, 32, 32)."
        )
    colours, height, width = input_shape
    if min(height, width) < smallest:
        raise ConfigError(
            f"{name}: input_shape is {tuple(input_shape)}; its pools leave nothing of images that small. "
            f"The smallest that works is ({colours}, {smallest}, {smallest}): enlarge the images."
        )
    return colours, height, width
