"""One copy of the task for all workers, in an unnamed file: nothing is left behind, however processes end."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import tempfile
from collections.abc import Callable
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
"""Whether open files can be passed to a process; otherwise (Windows) each worker is sent its copy of the bytes."""
_ALIGNMENT = 64


class TensorSpan(NamedTuple):
    """Where a tensor lies in the file."""

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class SharedTask:
    """A task as bytes: the raw tensors of its samples, then the rest, pickled.

    The file has no name (or loses it before a byte is written), so the system frees it with the last process that has
    it open. Workers map it copy-on-write, so that no worker sees what another one writes.
    """

    def __init__(self, task: DeviceTask) -> None:
        self._file: IO[bytes] = io.BytesIO()
        try:
            if BY_DESCRIPTOR:
                self._file = tempfile.TemporaryFile(prefix="feddrop-")  # noqa: SIM115 -- closed by close()
            spans = over(task.samples, self._write)
            start = self._align()
            self._file.write(pickled((without_samples(task), spans)))
            self._layout = start, self._align()
            self._file.flush()
        except OSError as error:
            self.close()
            raise RunError(
                f"cannot share the data with workers through the temporary folder: {error.strerror or error}. Free "
                'space there, set TMPDIR to another folder, or use execution.executor = "serial".'
            ) from None

    def send(self, link: Connection, pid: int) -> None:
        """Send the task to a worker."""
        link.send((BY_DESCRIPTOR, *self._layout))
        if isinstance(self._file, io.BytesIO):
            link.send_bytes(self._file.getbuffer())
        else:
            reduction.send_handle(link, self._file.fileno(), pid)

    def close(self) -> None:
        """Close the file; workers keep what they have mapped."""
        with contextlib.suppress(OSError):  # flushing to a full disk
            self._file.close()

    def _write(self, tensor: Tensor) -> TensorSpan:
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        span = TensorSpan(self._align(), tensor.dtype, tuple(tensor.shape))
        self._file.write(flat.view(torch.uint8).numpy().data)
        return span

    def _align(self) -> int:
        """Pad to the next aligned position and return it."""
        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        return self._file.tell()


def receive_task(link: Connection) -> DeviceTask:
    """Receive, in a worker, what :meth:`SharedTask.send` sends."""
    by_descriptor, start, length = link.recv()
    content: mmap.mmap | bytearray
    if by_descriptor:
        handle = reduction.recv_handle(link)
        content = mmap.mmap(handle, length, access=mmap.ACCESS_COPY)
        os.close(handle)
    else:
        content = bytearray(link.recv_bytes())

    def mapped(span: TensorSpan) -> Tensor:
        if 0 in span.shape:
            return torch.empty(span.shape, dtype=span.dtype)
        count = torch.Size(span.shape).numel()
        return torch.frombuffer(content, dtype=span.dtype, count=count, offset=span.start).reshape(span.shape)

    task, spans = pickle.loads(memoryview(content)[start:])  # noqa: S301 -- from our own parent process
    rebuilt: DeviceTask = task.for_worker(over(spans, mapped))
    return rebuilt


def device_calls(link: Connection) -> DeviceCalls:
    """Build, in a worker process, the function that answers calls."""
    return DeviceCalls(receive_task(link))


def without_samples(task: DeviceTask) -> DeviceTask:
    """Return a task without its data, which are sent separately."""
    return task.for_worker(over(task.samples, lambda _: torch.empty(0)))


def over(samples: Any, change: Callable[[Any], Any]) -> Any:
    """Apply a function to every entry of samples; the inputs may be a tuple."""

    def one(given: Any) -> Any:
        return tuple(map(change, given)) if type(given) is tuple else change(given)

    return type(samples)(*map(one, samples))


def pickled(what: object) -> bytes:
    """Pickle an object; with cloudpickle, if installed, by value what no module defines (notebook classes, lambdas).

    Multiprocessing's own pickler would make workers share the network's weights.
    """
    try:
        try:
            pickler = import_module("cloudpickle")
        except ImportError:
            pickler = pickle
        return bytes(pickler.dumps(what))
    except Exception as error:  # pickling runs the object's code, which may raise anything
        raise RunError(
            f"the network, loss, metric or method cannot be sent to worker processes: {error}. Define its classes and "
            'functions at the top level of a module, install cloudpickle, or use execution.executor = "serial".'
        ) from None
