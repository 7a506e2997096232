"""A worker on a Ray cluster, from both sides: an actor, and how the server starts it, waits for it and ends it."""

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

from feddrop.errors import RunError
from feddrop.executors.cluster import Cluster
from feddrop.executors.pool import START_S, WorkerLostError

TICK_S = 0.5
_SAME = ("feddrop", "torch")
"""Packages that must be of the same version everywhere: other versions may give other bits."""


class Seat:
    """What runs on the cluster: it builds what answers calls, and answers them."""

    def start(self, path: list[str], wanted: dict[str, str], build: bytes, *arguments: Any) -> Any:
        """Build; whatever goes wrong is an answer, too. Modules are looked for where the server finds its own."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.path += [folder for folder in path if folder not in sys.path]
        try:
            here = versions()
            if here != wanted:
                raise RunError(f"{socket.gethostname()} has {here}, and the run was started with {wanted}")
            self._answer_to = pickle.loads(build)(*arguments)  # noqa: S301 -- from the server that started us
        except Exception as error:
            return False, f"{type(error).__name__}: {error}."
        return True, os.getpid()

    def call(self, *call: Any) -> Any:
        """Answer a call."""
        try:
            return True, self._answer_to(*call)
        except Exception:
            return False, traceback.format_exc()


class ActorWorker:
    """An actor as the server sees it; see :class:`feddrop.executors.pool.Worker`.

    Args:
        cluster: where it runs.
        build: a function that builds what answers calls there, and its arguments.
        timeout_s: longest time over one call.
        cpus: that it takes.
        gpus: that it takes.
    """

    def __init__(
        self, cluster: Cluster, build: tuple[Any, ...], timeout_s: float, *, cpus: float, gpus: float = 0.0
    ) -> None:
        self.ready = False
        self.generation = self.failures = 0
        self.pid = 0
        self.cluster, self._ray, self._build, self._timeout_s = cluster, cluster.ray, build, timeout_s
        self._class = cluster.ray.remote(Seat).options(
            num_cpus=0 if cluster.own else cpus, num_gpus=gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )
        self._actor: Any = None
        self.answer: Any = None
        self._left = math.inf
        self._late = False

    @property
    def running(self) -> bool:
        """Whether it was started, and not ended since."""
        return self._actor is not None

    def start(self) -> None:
        """Start it, anew if need be; it will answer when it is ready."""
        self.end()
        build, *arguments = self._build
        path = [folder or str(Path.cwd()) for folder in sys.path]
        with self.cluster.reached():
            self._actor = self._class.remote()
            self.answer = self._actor.start.remote(path, versions(), pickle.dumps(build), *arguments)
        self.generation += 1
        self._left = START_S

    def send(self, *call: Any) -> None:
        """Send a call; that the worker is gone will show when its answer is received."""
        with self.cluster.reached():
            self.answer = self._actor.call.remote(*call)
        self._left = self._timeout_s

    def receive(self) -> Any:
        """Receive an answer.

        Raises:
            WorkerLostError: there will be none.
            RunError: the call failed.
        """
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
        if not good and not self.ready:
            raise RunError(
                f"a worker on the Ray cluster cannot rebuild the network, loss, metrics or method: {value} Install "
                "the same packages on every machine of the cluster."
            )
        if not good:
            raise RunError(f"a worker process failed:\n{value}")
        if not self.ready:
            self.pid = value
        self.ready, self.failures = True, 0
        return value

    def end(self) -> None:
        """Kill it, also where it hangs."""
        if self._actor is not None and self._ray.is_initialized() and not self.cluster.lost:
            with contextlib.suppress(Exception):  # it may be gone with its machine
                self._ray.kill(self._actor)
        self._actor = self.answer = None
        self.ready = self._late = False
        self._left = math.inf

    def tick(self, seconds: float) -> bool:
        """Count time; return whether it is over, and kill it then."""
        self._left -= seconds
        if self._left <= 0 and not self._late:
            self._late = True
            with contextlib.suppress(Exception):
                self._ray.kill(self._actor)
        return self._late

    def _lost(self, said: str) -> WorkerLostError:
        self.failures += not self.ready
        if self._late and not self.ready:
            return WorkerLostError(
                f"found no free place on the Ray cluster, or took longer than {START_S:g} s to start, and was ended",
                late=True,
            )
        if self._late:
            limit = f"execution.timeout_s = {self._timeout_s:g}"
            return WorkerLostError(f"took longer than {limit} and was ended", late=True)
        if "ModuleNotFoundError" in said or "No module named" in said:
            raise RunError("feddrop is not installed on every machine of the Ray cluster. Install it there.")
        if "node" in said and ("died" in said or "dead" in said) and "worker process has died" not in said:
            return WorkerLostError("was lost with its machine")
        if "memory" in said and "OOM killer" not in said:
            return WorkerLostError("was ended by Ray, since its machine was short of memory")
        return WorkerLostError("died (killed, as by a shortage of memory, or ended by its own code)")


def wait(workers: Sequence[ActorWorker], timeout_s: float | None) -> list[ActorWorker]:
    """Wait until an answer has come from one of these, or its end, or its time is over.

    Time counts in ticks, and only while the server waits: an answer that nobody has come for is no reason to kill.
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
    """Return the versions that must be the same everywhere."""

    def of(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "none"

    return {name: of(name) for name in _SAME}
