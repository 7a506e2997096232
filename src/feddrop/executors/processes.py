"""Devices over worker processes that share one copy of the data."""

from __future__ import annotations

import multiprocessing as mp
import pickle
import signal
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from feddrop.device import TEST_CHUNK, Device, Reply, Samples, Task
from feddrop.errors import RunError
from feddrop.executors.serial import means
from feddrop.params import Params
from feddrop.rounds import Parcel


class Processes:
    """Runs devices over worker processes that share one copy of the data."""

    def __init__(self, task: Task, workers: int, *, timeout_s: float = 600.0) -> None:
        if workers < 1:
            raise RunError(f"workers is {workers}; at least 1 is needed.")
        context = mp.get_context("spawn")  # fork is unsafe beside threads and CUDA
        self._links: list[Connection] = []
        self._test_count = len(task.samples.test_y)
        with tempfile.TemporaryDirectory(prefix="feddrop-") as folder:
            _write(task.samples, Path(folder))
            # Pickled here, by value: multiprocessing's own pickler would make workers share the network's weights; and
            # into a file: a worker that dies while it starts would leave us writing into its pipe for ever.
            (Path(folder) / "task").write_bytes(_pickled(replace(task, samples=Samples(*[torch.empty(0)] * 4))))
            for _ in range(workers):
                ours, theirs = context.Pipe()
                context.Process(target=_work, args=(theirs, folder), daemon=True).start()
                theirs.close()
                self._links.append(ours)
            for link in self._links:
                self._receive(link)  # ready: the files are mapped and may go

    def compute(self, parcels: Iterable[Parcel]) -> Iterator[Reply]:
        """Let devices train wherever a worker is free; replies come in order, at most two a worker held."""
        return (Reply(*reply) for reply in self._spread(("handle", (one.frame, one.memory)) for one in parcels))

    def evaluate(self, params: Params) -> dict[str, float]:
        """Return the mean loss and every measure on the test set, its chunks spread over the workers."""
        for link in self._links:
            self._send(link, ("load", {name: tensor.numpy() for name, tensor in params.items()}))
        for link in self._links:
            self._receive(link)
        starts = range(0, self._test_count, TEST_CHUNK)
        return means(self._spread(("evaluate", start) for start in starts))

    def close(self) -> None:
        """Let the workers end."""
        for link in self._links:
            link.close()
        self._links = []

    def _spread(self, calls: Iterable[tuple[str, Any]]) -> Iterator[Any]:
        source = iter(calls)
        idle = list(self._links)
        busy: dict[Connection, int] = {}
        ready: dict[int, Any] = {}
        sent = due = 0
        while True:
            while idle and sent - due < 2 * len(self._links):
                call = next(source, None)
                if call is None:
                    break
                link = idle.pop()
                self._send(link, call)
                busy[link], sent = sent, sent + 1
            while due in ready:
                yield ready.pop(due)
                due += 1
                if idle:
                    break  # give the free worker something before the next result is worked on
            else:
                if not busy:
                    return
                for done in wait(list(busy)):
                    link = cast(Connection, done)
                    ready[busy.pop(link)] = self._receive(link)
                    idle.append(link)

    def _send(self, link: Connection, call: tuple[str, Any]) -> None:
        try:
            link.send(call)
        except OSError:
            raise RunError(_DEAD) from None

    def _receive(self, link: Connection) -> Any:
        try:
            good, value = link.recv()
        except (EOFError, OSError):
            raise RunError(_DEAD) from None
        if not good:
            raise RunError(f"a worker process failed:\n{value}")
        return value


_DEAD = (
    "a worker process died (killed, or out of memory). Finished rounds are saved: resume the run, with fewer workers "
    "if memory is short. If it died at the start: a script must guard what it runs by `if __name__ == '__main__':`."
)


def _pickled(task: Task) -> bytes:
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise RunError(
            f"the network or loss cannot be sent to worker processes: {error}. Define its classes and functions at the "
            'top level of a module, or use execution.executor = "serial".'
        ) from None


def _work(link: Connection, folder: str) -> None:
    """Serve one worker process until the server closes the link."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends the round first
    try:
        task: Task = pickle.loads((Path(folder) / "task").read_bytes())  # noqa: S301 -- from our own parent process
        device = Device(replace(task, samples=_read(Path(folder))))
        link.send((True, None))
        while True:
            name, argument = link.recv()
            value: Any = None
            if name == "handle":
                value = tuple(device.handle(*argument))
            elif name == "load":
                device.load({n: torch.from_numpy(a) for n, a in argument.items()})
            else:
                value = device.evaluate(argument)
            link.send((True, value))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception:
        link.send((False, traceback.format_exc()))


def _write(samples: Samples, folder: Path) -> None:
    """Write the samples as files; several inputs are numbered."""
    for name, given in samples._asdict().items():
        many = given if isinstance(given, tuple) else (given,)
        for i, tensor in enumerate(many):
            np.save(folder / (f"{name}.{i}" if isinstance(given, tuple) else name), tensor.numpy())


def _read(folder: Path) -> Samples:
    """Map what :func:`_write` wrote, copy on write: nothing that a worker does changes another's data."""

    def mapped(path: Path) -> Tensor:
        return torch.from_numpy(np.load(path, mmap_mode="c"))

    found: list[Any] = []
    for name in Samples._fields:
        single = folder / f"{name}.npy"
        many = sorted(folder.glob(f"{name}.*.npy"), key=lambda path: int(path.suffixes[-2][1:]))
        found.append(mapped(single) if single.exists() else tuple(map(mapped, many)))
    return Samples(*found)
