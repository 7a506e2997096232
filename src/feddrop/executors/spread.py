"""Devices on a pool of workers: what :class:`Processes` and :class:`Ray` share, on the server and in the worker."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from feddrop.errors import RunError
from feddrop.executors.executor import DeviceTask, Measured, Parcel, Reply
from feddrop.executors.pool import TOGETHER, Message, Pool, Worker
from feddrop.subnets.parameters import Params

TOGETHER_BYTES = 4 * 2**20


class Spread:
    """Runs devices on a pool of workers, each of which answers calls with a :class:`DeviceCalls`.

    Quick devices are sent to a worker together, as many as it trains in ``together_s`` seconds and as have
    ``TOGETHER_BYTES`` in all: every call has a cost.
    """

    def __init__(self, pool: Pool[Any], task: DeviceTask, together_s: float = 0.0) -> None:
        self._pool, self._task, self._together_s = pool, task, together_s
        self._seconds = math.inf  # recent mean per device

    def compute(self, parcels: Iterable[Parcel]) -> Iterator[Reply]:
        """Let devices train on whichever worker is free; yield replies in order, as they arrive."""
        size = 1

        def message(_: Worker, parcel: Parcel) -> tuple[Any, ...]:
            nonlocal size
            size = len(parcel.frame) + len(parcel.memory)
            return "handle", parcel.frame, parcel.memory

        def together() -> int:
            return max(1, min(int(self._together_s / self._seconds), TOGETHER_BYTES // size))

        def given_up(parcel: Parcel, reason: str) -> tuple[bytes, bytes, str]:
            return b"", parcel.memory, f"its worker process {reason}"

        for answer in self._pool.in_order(parcels, message, given_up, together):
            reply = Reply(*answer)
            if reply.seconds > 0:
                known = self._seconds if math.isfinite(self._seconds) else reply.seconds
                self._seconds = 0.8 * known + 0.2 * reply.seconds
            yield reply

    def evaluate(self, params: Params) -> dict[str, float]:
        """Return the mean loss and every measure on the test set, whose chunks are spread over the workers."""
        message = self._message("evaluate", {name: tensor.numpy() for name, tensor in params.items()})

        def given_up(_: Any, reason: str) -> Any:
            saved = "Finished rounds are saved: resume the run, with fewer workers if memory is short."
            raise RunError(f"the network cannot be evaluated: a worker process {reason}. {saved}")

        measured = self._pool.in_order(self._task.chunks, message, given_up)
        return self._task.combine(Measured(*one) for one in measured)

    def merge(self, shared: Any, blocks: Iterable[Any]) -> Iterator[Any]:
        """Let workers merge blocks; yield the parts in order, and for a block that is given up, why."""
        message = self._message("merge", shared)
        return self._pool.in_order(
            blocks, message, lambda _, reason: f"its worker process {reason}", times=lambda block: len(block.jobs)
        )

    def _message(self, name: str, values: Any) -> Message[Any]:
        """Return the function that makes calls of this name, in which every worker receives the values once."""
        values, loaded = self._shared(values), dict[Worker, int]()

        def message(worker: Worker, argument: Any) -> tuple[Any, ...]:
            knows = loaded.get(worker) == worker.generation
            loaded[worker] = worker.generation
            return name, argument, None if knows else values

        return message

    def _shared(self, values: Any) -> Any:
        """Return values in the form in which they are sent to several workers."""
        return values


class DeviceCalls:
    """What a worker does: act as each device in turn, and evaluate chunks of the test set."""

    def __init__(self, task: DeviceTask) -> None:
        self._device = task.start()

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Answer a call of :class:`Spread`."""
        if name == TOGETHER:
            return [self(*call) for call in arguments[0]]
        if name == "merge":
            return self._device.merge(*arguments)
        return tuple(self._device.handle(*arguments)) if name == "handle" else self._evaluate(*arguments)

    def _evaluate(self, chunk: Any, values: dict[str, Any] | None) -> tuple[Any, ...]:
        if values is not None:
            self._device.load({name: torch.tensor(array) for name, array in values.items()})
        return tuple(self._device.evaluate(chunk))
