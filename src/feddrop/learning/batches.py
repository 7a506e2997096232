"""The minibatches of a device: any inputs, any targets."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from feddrop.config import Train
from feddrop.seeds import derive, permutation

Inputs = Tensor | tuple[Tensor, ...]

_NARROW = 16
"""Channels that a vector register holds, at most."""


class LocalBatches:
    """The minibatches of one device in one round: each epoch in a new order, drawn from the device's seed."""

    def __init__(
        self,
        x: Inputs,
        y: Tensor,
        part: Tensor,
        config: Train,
        seed: int,
        torch_device: torch.device | str = "cpu",
        *,
        lone: bool = True,
    ) -> None:
        """Take the samples ``x[part], y[part]``; nothing is copied but the batch under way.

        Batch norm cannot train on one sample: without ``lone``, one that is left over joins the minibatch before it.
        """
        self.num_samples = len(part)
        self._x, self._y, self._part, self._config, self._seed, self._device = x, y, part, config, seed, torch_device
        self._lone = lone

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        for epoch in range(self._config.epochs):
            order = permutation(derive(self._seed, "order", epoch), self.num_samples)
            batches = list(torch.split(self._part[torch.from_numpy(order)], self._config.batch_size))
            if not self._lone and len(batches) > 1 and len(batches[-1]) == 1:
                batches[-2:] = [torch.cat(batches[-2:])]
            for batch in batches:
                yield take_samples(self._x, batch, self._device), self._y[batch].to(self._device)


def take_samples(x: Inputs, index: Tensor | slice, torch_device: torch.device | str) -> Inputs:
    """Copy some samples to where they are computed with; a network that works in place never touches the data."""
    if isinstance(x, tuple):
        return tuple(_taken(one, index, torch_device) for one in x)
    return _taken(x, index, torch_device)


def _taken(x: Tensor, index: Tensor | slice, torch_device: torch.device | str) -> Tensor:
    view = x[index]
    some = channels_last(view.to(torch_device))
    return some.clone() if isinstance(index, slice) and some.data_ptr() == view.data_ptr() else some


def channels_last(x: Tensor) -> Tensor:
    """Lay images out with their channels last: the same numbers, and convolutions take up to a quarter less time."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def safe_layout(model: nn.Module, x: Inputs) -> Inputs:
    """Return inputs in the layout that a network can be trained in on a CPU.

    With channels last, oneDNN writes past its memory in the gradient of a 1 x 1 convolution with a stride, where fewer
    channels go in than a vector register holds (its issue 6035): narrow ResNets crash, or learn nonsense. A network
    that may have one, by the shapes of its weights, gets its channels first.
    """
    if not any(p.ndim == 4 and p.shape[2:] == (1, 1) and p.shape[1] < _NARROW for p in model.parameters()):
        return x
    return tuple(one.contiguous() for one in x) if isinstance(x, tuple) else x.contiguous()
