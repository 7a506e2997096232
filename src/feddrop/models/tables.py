"""A network for tables: a multilayer perceptron."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from feddrop.errors import ConfigError

MLP = 64


def mlp(*, num_classes: int, input_shape: Sequence[int], hidden: Sequence[int] = (MLP, MLP)) -> nn.Sequential:
    """Multilayer perceptron: linear layers ``fc1``, ``fc2``, ... with ReLUs between.

    Args:
        num_classes: number of outputs: classes, or regression targets.
        input_shape: shape of one sample, which is flattened.
        hidden: widths of the hidden layers.
    """
    widths = (math.prod(input_shape), *hidden, num_classes)
    if min(widths) < 1:
        raise ConfigError(f"mlp: the layers have widths {widths}; each must be at least 1.")
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for i, (before, after) in enumerate(pairwise(widths), 1):
        layers[f"fc{i}"] = nn.Linear(before, after)
        if i < len(widths) - 1:
            layers[f"act{i}"] = nn.ReLU()
    return nn.Sequential(layers)
