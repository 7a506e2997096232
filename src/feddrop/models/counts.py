"""What a network costs: parameters and FLOPs, counted and never typed in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from feddrop.errors import ConfigError


def count_parameters(model: nn.Module) -> int:
    """Number of parameters of any network, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def layer_flops(model: nn.Module, input_shape: Sequence[int]) -> dict[str, int]:
    """Forward FLOPs of one sample in every convolution and linear layer: 2 x multiply-adds, biases not counted.

    One sample of zeros goes through the network, in evaluation mode, and the shapes that really occur are counted. A
    layer called twice counts twice, a layer never called counts 0; work outside such layers (norms, activations) is
    left out.

    Args:
        model: any network; it is left as it was.
        input_shape: shape of one sample, without the batch.

    Returns:
        FLOPs by layer name, in the network's order.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, _COUNTED)}
    flops = dict.fromkeys(layers, 0)

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, *, name: str) -> None:
        flops[name] += 2 * _multiply_adds(layer, inputs, output)

    modes = [(module, module.training) for module in model.modules()]
    hooks = [layer.register_forward_hook(partial(count, name=name)) for name, layer in layers.items()]
    first = next(model.parameters(), torch.empty(0))
    try:
        model.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model(torch.zeros(1, *input_shape, dtype=first.dtype, device=first.device))
    except RuntimeError as error:
        raise ConfigError(f"The network does not take a sample of shape {tuple(input_shape)}: {error}") from error
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes:
            module.training = training
    return flops


def forward_flops(model: nn.Module, input_shape: Sequence[int]) -> int:
    """Forward FLOPs of one sample: the sum of :func:`layer_flops`."""
    return sum(layer_flops(model, input_shape).values())


_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_COUNTED = (*_CONV, *_TRANSPOSED, nn.Linear)


def _multiply_adds(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> int:
    """Multiply-adds of one call: every output value (transposed: every input value) meets one slice of the weight."""
    values = inputs[0] if isinstance(layer, _TRANSPOSED) else output
    return values.numel() * int(layer.weight[0].numel())
