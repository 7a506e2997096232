"""Devices one after another, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from feddrop.executors.executor import DeviceTask, Parcel, Reply
from feddrop.subnets.parameters import Params


class Serial:
    """Runs devices one after another, in this process.

    Args:
        task: what the device side needs to know.

    Example:
        >>> import feddrop
        >>> config = feddrop.RunConfig(rounds=1, data=feddrop.Data("digits", devices=2, train_limit=60))
        >>> len(feddrop.run(config, "runs/serial", executor=feddrop.Serial))
        1
    """

    def __init__(self, task: DeviceTask) -> None:
        self._threads = torch.get_num_threads()
        self._task, self._device = task, task.start()

    def compute(self, parcels: Iterable[Parcel]) -> Iterator[Reply]:
        """Let devices train, in order."""
        return (self._device.handle(parcel.frame, parcel.memory) for parcel in parcels)

    def merge(self, shared: Any, blocks: Iterable[Any]) -> Iterator[Any]:
        """Merge blocks, in order."""
        return (self._device.merge(block, shared) for block in blocks)

    def evaluate(self, params: Params) -> dict[str, float]:
        """Return the mean loss and every measure on the test set."""
        self._device.load(params)
        return self._task.combine(self._device.evaluate(chunk) for chunk in self._task.chunks)

    def close(self) -> None:
        """Restore the thread count."""
        torch.set_num_threads(self._threads)
