"""Parameters as plain dictionaries of tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from feddrop.errors import ConfigError

Params = dict[str, Tensor]
"""Every parameter and every float buffer of a network, by name, on the CPU."""


NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""torch's norms with parameters; batch and instance norms of all kinds are the first."""


_DTYPES = (torch.float16, torch.float32, torch.float64)


def weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights of a network, by name, in its order; one that is shared appears once, by its first name.

    A weight is a matrix or more. Vectors (biases) are not, nor is what holds no values, and norms hold none, whatever
    their shape.
    """
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.ndim >= 2 and parameter.numel() and not isinstance(model.get_submodule(layer_of(name)), NORMS)
    }


def check_learnable(model: nn.Module) -> None:
    """Raise unless a network can be sent and learned: its parameters are real, and all that travels is finite."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ConfigError(
                f"{name!r} of the network has no shape yet: call the network once on a sample of your data."
            )
        travels = tensor.is_floating_point()
        if (travels or isinstance(tensor, nn.Parameter)) and tensor.dtype not in _DTYPES:
            raise ConfigError(
                f"{name!r} of the network is {tensor.dtype}; parameters and float buffers must be float32, float64 or "
                "float16. Keep them so, and convert them where they are used; execution.dtype says how they travel."
            )
        if travels and not bool(torch.isfinite(tensor).all()):
            raise ConfigError(
                f"{name!r} of the network holds values that are not finite (inf or nan), and float buffers travel like "
                "parameters. Give it finite values; of a mask make a bool, or build it in forward."
            )
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError("nothing of the network can be learned: no parameter has requires_grad = True.")


def layer_of(name: str) -> str:
    """Return the name of the module that a tensor belongs to; empty for the network itself."""
    return name.rpartition(".")[0]


def from_model(model: nn.Module) -> Params:
    """Copy the parameters and float buffers (norm statistics) of a network."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in _floats(model)}


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter and float buffer of a network."""
    return {name: tuple(tensor.shape) for name, tensor in _floats(model)}


def _floats(model: nn.Module) -> list[tuple[str, Tensor]]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return [(name, tensor) for name, tensor in named if tensor.is_floating_point()]


def counters(model: nn.Module) -> Params:
    """Copy the buffers of a network that are no floats (counters, tables): they do not travel, so rounds begin anew."""
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers() if not buffer.is_floating_point()}


@torch.no_grad()
def load_into(model: nn.Module, params: Params) -> None:
    """Copy values into the parameters and buffers of a network, in place; step counters of norms start anew."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in params:
            tensor.copy_(params[name])
        elif name.endswith("num_batches_tracked"):
            tensor.zero_()


def without_negative_variances(before: Params, after: Params) -> Params:
    """Return the parameters after a merge, where a norm's variance that fell below 0 stays as it was before.

    Nothing guards it from that: a change that int8 rounds or a rate scales may take more from a small variance than
    there is of it, and a norm would give NaN.
    """
    return {
        name: torch.where(tensor < 0, before[name], tensor) if is_variance(name) else tensor
        for name, tensor in after.items()
    }


def is_statistic(name: str) -> bool:
    """Tell whether a tensor of this name is what a norm remembers of activations."""
    return name.rpartition(".")[2] in ("running_mean", "running_var")


def is_variance(name: str) -> bool:
    """Tell whether a tensor of this name is the variance that a norm remembers."""
    return name.rpartition(".")[2] == "running_var"


def count_parameters(model: nn.Module) -> int:
    """Number of parameters of any network, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
