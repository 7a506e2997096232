"""The minibatches of a device, and the memory layout of their inputs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from feddrop.config import Train
from feddrop.seeds import derive, permutation

Inputs = Tensor | tuple[Tensor, ...]


class LocalBatches:
    """The minibatches of one device in one round; the order of each epoch is drawn from the device's seed.

    Batch norm cannot train on one sample: without ``lone``, a last minibatch of one joins the one before it.
    """

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
    """Copy samples to the torch device; the copy protects the data from networks that work in place."""
    if isinstance(x, tuple):
        return tuple(_taken(one, index, torch_device) for one in x)
    return _taken(x, index, torch_device)


def _taken(x: Tensor, index: Tensor | slice, torch_device: torch.device | str) -> Tensor:
    view = x[index]
    some = channels_last(view.to(torch_device))
    return some.clone() if isinstance(index, slice) and some.data_ptr() == view.data_ptr() else some


def channels_last(x: Tensor) -> Tensor:
    """Convert images to the channels-last layout, in which convolutions take up to a quarter less time."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
