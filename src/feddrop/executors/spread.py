"""Devices on a pool of workers: what :class:`Processes` and :class:`Ray` share, on the server and in the worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from feddrop.errors import RunError
from feddrop.executors.executor import DeviceTask, Parcel, Reply
from feddrop.executors.pool import Pool, Worker
from feddrop.executors.serial import means
from feddrop.subnets.parameters import Params


class Spread:
    """Runs devices on a pool of workers, each of which answers calls with a :class:`DeviceCalls`."""

    def __init__(self, pool: Pool[Any], test_starts: range) -> None:
        self._pool, self._test_starts = pool, test_starts

    def compute(self, parcels: Iterable[Parcel]) -> Iterator[Reply]:
        """Let devices train on whichever worker is free; yield replies in order, holding at most two per worker."""

        def message(_: Worker, parcel: Parcel) -> tuple[Any, ...]:
            return "handle", parcel.frame, parcel.memory

        def given_up(parcel: Parcel, reason: str) -> tuple[bytes, bytes, str]:
            return b"", parcel.memory, f"its worker process {reason}"

        return (Reply(*reply) for reply in self._pool.in_order(parcels, message, given_up))

    def evaluate(self, params: Params) -> dict[str, float]:
        """Return the mean loss and every measure on the test set, whose chunks are spread over the workers."""
        values = self._shared({name: tensor.numpy() for name, tensor in params.items()})
        loaded: dict[Worker, int] = {}

        def message(worker: Worker, start: int) -> tuple[Any, ...]:
            knows = loaded.get(worker) == worker.generation
            loaded[worker] = worker.generation
            return "evaluate", start, None if knows else values

        def given_up(_: int, reason: str) -> Any:
            saved = "Finished rounds are saved: resume the run, with fewer workers if memory is short."
            raise RunError(f"the network cannot be evaluated: a worker process {reason}. {saved}")

        return means(self._pool.in_order(self._test_starts, message, given_up))

    def _shared(self, values: dict[str, Any]) -> Any:
        """Return values in the form in which they are sent to several workers."""
        return values


class DeviceCalls:
    """What a worker does: act as each device in turn, and evaluate chunks of the test set."""

    def __init__(self, task: DeviceTask) -> None:
        self._device = task.start()

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Answer a call of :class:`Spread`."""
        return tuple(self._device.handle(*arguments)) if name == "handle" else self._evaluate(*arguments)

    def _evaluate(self, start: int, values: dict[str, Any] | None) -> tuple[dict[str, float], int]:
        if values is not None:
            self._device.load({name: torch.tensor(array) for name, array in values.items()})
        return self._device.evaluate(start)
