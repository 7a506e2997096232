"""Parameters as plain dictionaries of tensors."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from feddrop.errors import ConfigError

Params = dict[str, Tensor]
"""Every parameter and every float buffer of a network, by name, on the CPU."""


NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""torch's norms with parameters; the first covers all batch and instance norms."""


_DTYPES = (torch.float16, torch.float32, torch.float64)


def weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights of a network by name, in its order; a shared weight appears once, under its first name.

    A weight has two or more dimensions and at least one value. Parameters of norms are never weights.
    """
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.ndim >= 2 and parameter.numel() and not isinstance(model.get_submodule(layer_of(name)), NORMS)
    }


def check_learnable(model: nn.Module) -> None:
    """Raise a ConfigError unless a network can be sent and trained."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        for problem in _tensor_problems(tensor):
            raise ConfigError(f"{name!r} of the network {problem}")
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError("nothing in the network can be trained: no parameter has requires_grad = True.")


def _tensor_problems(tensor: Tensor) -> Iterator[str]:
    """Find why a parameter or buffer cannot be sent and trained."""
    if is_lazy(tensor):
        yield "has no shape yet: call the network once on a sample of your data."
    sent = tensor.is_floating_point()
    if (sent or isinstance(tensor, nn.Parameter)) and tensor.dtype not in _DTYPES:
        yield (
            f"is {tensor.dtype}; parameters and float buffers must be float32, float64 or float16. Convert them where "
            "they are used; execution.dtype sets how they are sent."
        )
    if sent and not bool(torch.isfinite(tensor).all()):
        yield (
            "holds values that are not finite (inf or nan), and float buffers are sent like parameters. Use finite "
            "values; store a mask as bool, or create it in forward."
        )


def layer_of(name: str) -> str:
    """Return the name of the module that a tensor belongs to; empty for the top module."""
    return name.rpartition(".")[0]


def from_model(model: nn.Module) -> Params:
    """Copy the parameters and float buffers (norm statistics) of a network."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in _floats(model)}


def live(model: nn.Module) -> Params:
    """Return the parameters and float buffers of a network as they are: not copied, on its device."""
    return {name: tensor.detach() for name, tensor in _floats(model)}


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter and float buffer of a network."""
    return {name: tuple(tensor.shape) for name, tensor in _floats(model)}


def _floats(model: nn.Module) -> list[tuple[str, Tensor]]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return [(name, tensor) for name, tensor in named if tensor.is_floating_point()]


def frozen(model: nn.Module) -> frozenset[str]:
    """Return the names of the parameters that are not trained; every device has them from the start."""
    return frozenset(name for name, parameter in model.named_parameters() if not parameter.requires_grad)


def counters(model: nn.Module) -> Params:
    """Copy the buffers of a network that are not floats (counters, tables); they are not sent but reset every round."""
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers() if not buffer.is_floating_point()}


@torch.no_grad()
def load_into(model: nn.Module, params: Params) -> None:
    """Copy values into the parameters and buffers of a network, in place; step counters of norms are reset."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in params:
            tensor.copy_(params[name])
        elif name.endswith("num_batches_tracked"):
            tensor.zero_()


def without_negative_variances(before: Params, after: Params) -> Params:
    """Return the parameters after a merge, with norm variances that fell below 0 reset to those before it.

    A change rounded to int8 or scaled by a rate can exceed a small variance, and the norm would return NaN.
    """
    return {
        name: torch.where(tensor < 0, before[name], tensor) if is_variance(name) else tensor
        for name, tensor in after.items()
    }


def is_statistic(name: str) -> bool:
    """Return whether a tensor of this name is a running statistic of a norm."""
    return name.rpartition(".")[2] in ("running_mean", "running_var")


def is_variance(name: str) -> bool:
    """Return whether a tensor of this name is the running variance of a norm."""
    return name.rpartition(".")[2] == "running_var"


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters of a network; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())
