"""Devices on a pool of workers: what :class:`Processes` and :class:`Ray` share, on the server and in the worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from feddrop.errors import RunError
from feddrop.executors.executor import DeviceTask, Measured, Parcel, Reply
from feddrop.executors.pool import Pool, Worker
from feddrop.subnets.parameters import Params


class Spread:
    """Runs devices on a pool of workers, each of which answers calls with a :class:`DeviceCalls`."""

    def __init__(self, pool: Pool[Any], task: DeviceTask) -> None:
        self._pool, self._task = pool, task

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

        def message(worker: Worker, chunk: Any) -> tuple[Any, ...]:
            knows = loaded.get(worker) == worker.generation
            loaded[worker] = worker.generation
            return "evaluate", chunk, None if knows else values

        def given_up(_: Any, reason: str) -> Any:
            saved = "Finished rounds are saved: resume the run, with fewer workers if memory is short."
            raise RunError(f"the network cannot be evaluated: a worker process {reason}. {saved}")

        measured = self._pool.in_order(self._task.chunks, message, given_up)
        return self._task.combine(Measured(*one) for one in measured)

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

    def _evaluate(self, chunk: Any, values: dict[str, Any] | None) -> tuple[Any, ...]:
        if values is not None:
            self._device.load({name: torch.tensor(array) for name, array in values.items()})
        return tuple(self._device.evaluate(chunk))
