"""Parameters as plain dictionaries of tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Params = dict[str, Tensor]
"""Every parameter and every float buffer of a network, by name, on the CPU."""


def from_model(model: nn.Module) -> Params:
    """Copy the parameters and float buffers (norm statistics) of a network."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in _floats(model)}


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter and float buffer of a network."""
    return {name: tuple(tensor.shape) for name, tensor in _floats(model)}


def _floats(model: nn.Module) -> list[tuple[str, Tensor]]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return [(name, tensor) for name, tensor in named if tensor.is_floating_point()]


@torch.no_grad()
def load_into(model: nn.Module, params: Params) -> None:
    """Copy values into the parameters and float buffers of a network, in place; step counters of norms start anew."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in params:
            tensor.copy_(params[name])
        elif name.endswith("num_batches_tracked"):
            tensor.zero_()
