"""A Ray worker: the actor on the cluster, and the server's side that starts it, waits for it and stops it."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from feddrop.errors import FeddropError, RunError
from feddrop.executors.cluster import Cluster
from feddrop.executors.pool import START_S, WorkerLostError, result

TICK_S = 0.5
_SAME = ("feddrop", "torch")
"""Packages whose versions must be equal on all machines: other versions may give other bits."""
_ADVICE = "Install the same packages on every machine of the cluster."


class Actor:
    """What runs on the cluster: it builds a function and answers calls with it."""

    def start(self, path: list[str], wanted: dict[str, str], build: bytes, *arguments: Any) -> Any:
        """Build the function, searching the server's module path as well; errors are returned, not raised."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.path += [folder for folder in path if folder not in sys.path]
        if (here := versions()) != wanted:
            return False, f"{socket.gethostname()} has {here}, but the run was started with {wanted}."
        try:
            self._function = pickle.loads(build)(*arguments)  # noqa: S301 -- from the server that started us
        except FeddropError as error:
            return False, error
        except Exception as error:
            return False, f"{type(error).__name__}: {error}."
        return True, os.getpid()

    def call(self, *call: Any) -> Any:
        """Answer a call."""
        try:
            return True, self._function(*call)
        except Exception:
            return False, traceback.format_exc()


class ActorWorker:
    """An actor as the server sees it; see :class:`feddrop.executors.pool.Worker`.

    ``build`` holds a function that builds the function answering calls, and its arguments.
    """

    def __init__(
        self, cluster: Cluster, build: tuple[Any, ...], timeout_s: float, *, cpus: float, gpus: float = 0.0
    ) -> None:
        self.ready = False
        self.generation = self.failures = 0
        self.pid = 0
        self.cluster, self._ray, self._build, self._timeout_s = cluster, cluster.ray, build, timeout_s
        self._class = cluster.ray.remote(Actor).options(
            num_cpus=0 if cluster.own else cpus, num_gpus=gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )
        self._actor: Any = None
        self.answer: Any = None
        self._left = math.inf
        self._late = False

    @property
    def running(self) -> bool:
        """Whether the worker was started and has not been stopped since."""
        return self._actor is not None

    def start(self) -> None:
        """Start or restart the worker; it answers when it is ready."""
        self.end()
        build, *arguments = self._build
        path = [folder or str(Path.cwd()) for folder in sys.path]
        with self.cluster.reached():
            self._actor = self._class.remote()
            self.answer = self._actor.start.remote(path, versions(), pickle.dumps(build), *arguments)
        self.generation += 1
        self._left = START_S

    def send(self, *call: Any, times: int = 1) -> None:
        """Send a call, which may take this many times the timeout. If the worker is gone, :meth:`receive` raises."""
        with self.cluster.reached():
            self.answer = self._actor.call.remote(*call)
        self._left = self._timeout_s * times

    def receive(self) -> Any:
        """Receive an answer: WorkerLostError if the worker is gone, RunError if the call failed."""
        errors = self._ray.exceptions
        try:
            while not self._late and not self._ray.wait([self.answer], timeout=TICK_S)[0]:
                self.tick(TICK_S)
            if self._late:
                raise self._lost("")
            good, value = self._ray.get(self.answer)
        except errors.RayTaskError as error:
            good, value = False, str(error)
        except errors.RayError as error:
            raise self._lost(str(error)) from None
        if good and not self.ready:
            self.pid = value
        return result(self, good, value, _ADVICE)

    def end(self) -> None:
        """Kill the worker, even if it hangs."""
        if self._actor is not None and self._ray.is_initialized() and not self.cluster.lost:
            with contextlib.suppress(Exception):  # it may be gone with its machine
                self._ray.kill(self._actor)
        self._actor = self.answer = None
        self.ready = self._late = False
        self._left = math.inf

    def tick(self, seconds: float) -> bool:
        """Advance the timeout; if it has expired, kill the worker and return True."""
        self._left -= seconds
        if self._left <= 0 and not self._late:
            self._late = True
            with contextlib.suppress(Exception):
                self._ray.kill(self._actor)
        return self._late

    def _lost(self, message: str) -> Exception:
        """Return the error to raise, from the message of Ray's own error."""
        self.failures += not self.ready
        if self._late and not self.ready:
            reason = f"found no free place on the Ray cluster, or took longer than {START_S:g} s to start"
        elif self._late:
            reason = f"took longer than execution.timeout_s = {self._timeout_s:g}"
        elif "ModuleNotFoundError" in message or "No module named" in message:
            return RunError("feddrop is not installed on every machine of the Ray cluster. Install it there.")
        elif "node" in message and ("died" in message or "dead" in message) and "process has died" not in message:
            return WorkerLostError("was lost with its machine")
        elif "memory" in message and "OOM killer" not in message:
            return WorkerLostError("was stopped by Ray because its machine ran short of memory")
        else:
            return WorkerLostError("died (killed, perhaps for lack of memory, or ended by the code it ran)")
        return WorkerLostError(f"{reason} and was stopped", late=True)


def wait(workers: Sequence[ActorWorker], timeout_s: float | None) -> list[ActorWorker]:
    """Wait until one of the workers has answered, has died or has timed out.

    Time counts in ticks, and only while the server waits, so that an answer not yet collected never times out.
    """
    if not workers:
        return []
    refs = {worker.answer: worker for worker in workers}
    ray, end = workers[0].cluster.ray, math.inf if timeout_s is None else time.monotonic() + timeout_s
    while True:
        step = max(0.0, min(TICK_S, end - time.monotonic()))
        with workers[0].cluster.reached():
            found = ray.wait(list(refs), num_returns=1, timeout=step)[0]
        if found:
            return [refs[found[0]]]
        late = [worker for worker in workers if worker.tick(step)]
        if late or time.monotonic() >= end:
            return late


def versions() -> dict[str, str]:
    """Return the versions that must be equal on all machines."""
    found = dict.fromkeys(_SAME, "none")
    for name in _SAME:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
