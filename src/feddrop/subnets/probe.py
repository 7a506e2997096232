"""Run a network on an example without changing it.

A twin runs in its place: modules and buffers are copied, parameters share their memory, and torch's random state is
restored. So training flags, norm statistics, gradients and the caller's random draws stay the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from feddrop.errors import ConfigError

Example = Tensor | tuple[Tensor, ...] | Sequence[int]
"""The input of a network: a batch of samples ``[N, ...]``, a tuple of batches for several inputs, or the shape of one
sample of numbers, without the batch."""


def example_inputs(model: nn.Module, example: Example, count: int) -> tuple[Tensor, ...]:
    """Return the network's inputs for ``count`` samples: the example's first one, repeated, or zeros of its shape.

    They are on the network's device, and zeros have its dtype.
    """
    first = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    given: tuple[Any, ...] = (example,) if isinstance(example, Tensor | np.ndarray) else tuple(example)
    if all(isinstance(size, int | np.integer) for size in given):
        return (torch.zeros((count, *(int(size) for size in given)), dtype=first.dtype, device=first.device),)
    if not all(isinstance(part, Tensor | np.ndarray) and part.ndim and len(part) for part in given):
        raise ConfigError(
            f"an example input is {describe_example(example)}; it must be a tensor with at least one sample, a tuple "
            "of such tensors, or the shape of one sample."
        )
    parts = [torch.as_tensor(part)[:1].detach().to(first.device) for part in given]
    return tuple(part.repeat(count, *[1] * (part.ndim - 1)) for part in parts)


def describe_example(example: Any) -> str:
    """Describe an example by its shapes, without the batch."""
    if isinstance(example, Tensor | np.ndarray):
        return f"samples of shape {tuple(example.shape[1:])}"
    if any(isinstance(part, Tensor | np.ndarray) for part in example):
        return f"samples of shape{'s' * (len(example) > 1)} " + ", ".join(
            str(tuple(part.shape[1:])) if isinstance(part, Tensor | np.ndarray) else type(part).__name__
            for part in example
        )
    return f"samples of shape {tuple(example)}"


def twin(model: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode that shares the memory of the network's parameters."""
    return structural_copy(model, lambda _, t: t.detach() if isinstance(t, nn.Parameter) else t.detach().clone()).eval()


def structural_copy(model: nn.Module, replace: Callable[[str, Tensor], Tensor]) -> nn.Module:
    """Copy a network with each parameter and buffer replaced by its name and value; shared tensors stay shared."""
    # deepcopy takes the entries of its memo as already copied, so the tensors themselves are never copied.
    memo: dict[int, object] = {}
    for name, parameter in model.named_parameters():
        memo[id(parameter)] = nn.Parameter(replace(name, parameter), parameter.requires_grad)
    for name, buffer in model.named_buffers():
        memo[id(buffer)] = replace(name, buffer)
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor):  # a plain attribute; deepcopy refuses one that carries a gradient
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(model, memo)


@contextmanager
def running(model: nn.Module, example: Example, count: int) -> Iterator[tuple[nn.Module, tuple[Tensor, ...]]]:
    """Yield a twin of a network and its inputs for ``count`` samples; then restore torch's random state."""
    copied = twin(model)
    with random_state_kept(copied):
        yield copied, example_inputs(copied, example, count)


def random_state_kept(model: nn.Module) -> AbstractContextManager[None]:
    """Return a context that restores torch's random state, on the CPU and on the network's devices."""
    gpus = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    kept: AbstractContextManager[None] = torch.random.fork_rng(devices=gpus)
    return kept


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in nested dicts, lists and tuples."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors_in(item)] if isinstance(value, list | tuple) else []
