"""One copy of the task for all workers, in a file without a name: nothing is left behind, however processes end."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from feddrop.errors import RunError
from feddrop.executors.executor import DeviceTask
from feddrop.executors.spread import DeviceCalls

BY_DESCRIPTOR = hasattr(reduction, "sendfds")
"""Whether open files can be handed to a process; elsewhere (Windows) the bytes are, and each worker has its copy."""
_ALIGNED = 64


class Place(NamedTuple):
    """Where a tensor stands in the file."""

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class SharedTask:
    """A task as bytes: every tensor of its samples as it is, then the rest, pickled.

    The file never has a name (or loses it before a byte is written), so the system frees it with the last process that
    has it open. Workers map it copy-on-write: what one of them writes, no other sees.
    """

    def __init__(self, task: DeviceTask) -> None:
        self._file: IO[bytes] = io.BytesIO()
        try:
            if BY_DESCRIPTOR:
                self._file = tempfile.TemporaryFile(prefix="feddrop-")  # noqa: SIM115 -- closed by close()
            places = over(task.samples, self._write)
            start = self._aligned()
            self._file.write(pickled((without_samples(task), places)))
            self._layout = start, self._aligned()
            self._file.flush()
        except OSError as error:
            self.close()
            raise RunError(
                f"the data cannot be shared with workers through the temporary folder: {error.strerror or error}. "
                "Free space there, name another by the environment variable TMPDIR, or use execution.executor = "
                '"serial".'
            ) from None

    def send(self, link: Connection, pid: int) -> None:
        """Hand the task to a worker."""
        link.send((BY_DESCRIPTOR, *self._layout))
        if isinstance(self._file, io.BytesIO):
            link.send_bytes(self._file.getbuffer())
        else:
            reduction.send_handle(link, self._file.fileno(), pid)

    def close(self) -> None:
        """Give the file up; workers keep what they have mapped."""
        with contextlib.suppress(OSError):  # a full disk once more
            self._file.close()

    def _write(self, tensor: Tensor) -> Place:
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        place = Place(self._aligned(), tensor.dtype, tuple(tensor.shape))
        self._file.write(flat.view(torch.uint8).numpy().data)
        return place

    def _aligned(self) -> int:
        """Fill up to the next aligned position, and return it."""
        self._file.write(bytes(-self._file.tell() % _ALIGNED))
        return self._file.tell()


def receive_task(link: Connection) -> DeviceTask:
    """Take, in a worker, what :meth:`SharedTask.send` hands out."""
    by_descriptor, start, length = link.recv()
    whole: mmap.mmap | bytearray
    if by_descriptor:
        handle = reduction.recv_handle(link)
        whole = mmap.mmap(handle, length, access=mmap.ACCESS_COPY)
        os.close(handle)
    else:
        whole = bytearray(link.recv_bytes())

    def mapped(place: Place) -> Tensor:
        if 0 in place.shape:
            return torch.empty(place.shape, dtype=place.dtype)
        count = torch.Size(place.shape).numel()
        return torch.frombuffer(whole, dtype=place.dtype, count=count, offset=place.start).reshape(place.shape)

    task, places = pickle.loads(memoryview(whole)[start:])  # noqa: S301 -- from our own parent process
    rebuilt: DeviceTask = replace(task, samples=over(places, mapped))
    return rebuilt


def device_calls(link: Connection) -> DeviceCalls:
    """Build what a worker does, from what it is handed."""
    return DeviceCalls(receive_task(link))


def without_samples(task: DeviceTask) -> DeviceTask:
    """Return a task without its data, which go another way."""
    return replace(task, samples=over(task.samples, lambda _: torch.empty(0)))


def over(samples: Any, change: Callable[[Any], Any]) -> Any:
    """Change every tensor, or place, of samples; inputs may be several."""

    def one(given: Any) -> Any:
        return tuple(map(change, given)) if type(given) is tuple else change(given)

    return type(samples)(*map(one, samples))


def pickled(what: object) -> bytes:
    """Pickle; by value what no module holds (a notebook's classes, lambdas), where cloudpickle is installed.

    Never by multiprocessing's own pickler, which would make workers share the network's weights.
    """
    try:
        return bytes(_pickler().dumps(what))
    except Exception as error:  # an object's own pickling may raise anything
        raise RunError(
            f"the network, loss, metric or method cannot be sent to worker processes: {error}. Define its classes and "
            'functions at the top level of a module, install cloudpickle, or use execution.executor = "serial".'
        ) from None


def _pickler() -> Any:
    try:
        return import_module("cloudpickle")
    except ImportError:
        return pickle
