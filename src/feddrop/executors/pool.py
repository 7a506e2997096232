"""A pool of workers that may be lost: the one place where calls are assigned, retried and given up.

The pool does not know what a worker is (a process or an actor on a cluster) or what it does (a device or a full run).
A worker that hangs or dies is replaced and its call repeated: the same call gives the same bits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from feddrop.errors import FeddropError, RunError

TRIES = 3
"""Attempts per call, each on a fresh worker, before it is given up."""
START_S = 300.0
"""Longest time a worker may take to start: it imports torch, perhaps over a slow network."""

log = logging.getLogger("feddrop")


class WorkerLostError(Exception):
    """A worker died or was stopped, if ``late`` because it took too long; the message says how."""

    def __init__(self, reason: str, *, late: bool = False) -> None:
        super().__init__(reason)
        self.late = late


class Worker(Protocol):
    """A worker as the server sees it. It answers one call at a time.

    Attributes:
        ready: whether it has started; until then, its next answer reports the start.
        generation: how often it was started; what was sent to an earlier generation is lost.
        failures: failed starts in a row.
    """

    ready: bool
    generation: int
    failures: int

    @property
    def running(self) -> bool:
        """Whether the worker was started and has not been stopped since."""

    def start(self) -> None:
        """Start or restart the worker; it answers when it is ready."""

    def send(self, *call: Any) -> None:
        """Send a call. If the worker is gone, :meth:`receive` raises."""

    def receive(self) -> Any:
        """Receive an answer: WorkerLostError if the worker is gone, RunError if the call failed."""

    def end(self) -> None:
        """Stop the worker, even mid-call."""


W = TypeVar("W", bound=Worker)
Message = Callable[[W, Any], tuple[Any, ...]]
"""``(worker, argument) -> call``."""
GivenUp = Callable[[Any, str], Any]
"""``(argument, reason) -> answer``."""
Answer = tuple[int, Any]
"""The number of a call, from 0, and its result."""


@dataclass(slots=True, eq=False)
class _Call:
    number: int
    argument: Any
    tries: int = 0


class Pool(Generic[W]):
    """Workers, and the calls made on them.

    Args:
        workers: not started yet.
        wait: ``(workers, timeout_s) -> workers that have answered or died``; a timeout of None waits for ever.
    """

    def __init__(self, workers: Sequence[W], wait: Callable[[Sequence[W], float | None], Sequence[W]]) -> None:
        self.workers, self._wait = workers, wait
        self.closed = False

    def start(self, ready: int) -> None:
        """Start all workers and wait until this many are ready; the others join when they are."""
        if not self.workers:
            raise RunError("the number of workers is 0; it must be at least 1.")
        for worker in self.workers:
            worker.start()
        while sum(worker.ready for worker in self.workers) < ready:
            starting = [worker for worker in self.workers if not worker.ready]
            for worker in self._wait(starting, None):
                self._started(worker)

    def end(self) -> None:
        """Stop the workers, even mid-call."""
        self.closed = True
        for worker in self.workers:
            worker.end()

    def in_order(self, arguments: Iterable[Any], message: Message[W], given_up: GivenUp) -> Iterator[Any]:
        """Yield answers in the order of the arguments, holding at most two per worker; see :meth:`answers`."""
        return (answer[1] for answer in self.answers(arguments, message, given_up) if answer is not None)

    def answers(
        self,
        arguments: Iterable[Any],
        message: Message[W],
        given_up: GivenUp,
        *,
        ordered: bool = True,
        tick_s: float | None = None,
    ) -> Iterator[Answer | None]:
        """Assign calls to workers as they become free, and yield the answers.

        Args:
            arguments: one per call.
            message: ``(worker, argument) -> call``, evaluated when the call is assigned.
            given_up: ``(argument, reason) -> answer``, for a call whose every attempt lost its worker.
            ordered: whether answers keep the order of the arguments; otherwise they are yielded as they arrive.
            tick_s: seconds without an answer after which None is yielded; None for never.
        """
        if self.closed:
            raise RunError("this executor is closed. Create a new one.")
        source = (_Call(number, argument) for number, argument in enumerate(arguments))
        again: deque[_Call] = deque()
        busy: dict[W, _Call] = {}
        ready: dict[int, Any] = {}
        sent = given = 0
        exhausted = False
        try:
            while True:
                for worker in self._idle(busy):
                    call = again.popleft() if again else None
                    if call is None and sent - given < 2 * len(self.workers):
                        call = next(source, None)
                        exhausted = call is None
                        sent += not exhausted
                    if call is None:
                        break
                    busy[worker] = call
                    worker.send(*message(worker, call.argument))
                if exhausted and given == sent:
                    return
                due = given if ordered else next(iter(ready), -1)
                waited = [worker for worker in self.workers if worker in busy or not worker.ready]
                answering = self._wait(waited, 0 if due in ready else tick_s)
                for worker in answering:
                    call = busy.pop(worker, None)
                    if call is None:
                        self._started(worker)
                    elif not self._answered(worker, call, ready, given_up):
                        again.append(call)
                if not answering:  # every free worker is busy again, so there is time to yield
                    if due in ready:
                        given += 1
                        yield due, ready.pop(due)
                    else:
                        yield None
        finally:
            for worker in busy:  # abandoned midway: their answers must not reach the next caller
                worker.end()

    def _idle(self, busy: dict[W, _Call]) -> list[W]:
        for worker in self.workers:
            if not worker.running:
                worker.start()
        return [worker for worker in self.workers if worker.ready and worker not in busy]

    def _answered(self, worker: W, call: _Call, ready: dict[int, Any], given_up: GivenUp) -> bool:
        """Store the answer to a call, or that it was given up; return False if the call must be repeated."""
        try:
            ready[call.number] = worker.receive()
        except WorkerLostError as lost:
            call.tries += 1
            log.warning("a worker process %s; starting a new one.", lost)
            worker.start()
            if call.tries < TRIES:
                return False
            ready[call.number] = given_up(call.argument, f"{lost}, {TRIES} times")
        return True

    def _started(self, worker: W) -> None:
        """Receive a worker's report that it has started, or restart it; without limit while others are ready."""
        try:
            worker.receive()
        except WorkerLostError as lost:
            if worker.failures >= TRIES and not (lost.late and any(other.ready for other in self.workers)):
                saved = "Finished rounds are saved: resume the run, with fewer workers if memory is short."
                raise RunError(f"a worker process {lost} while it started, {TRIES} times in a row. {saved}") from None
            log.warning("a worker process %s; restarting it.", lost)
            worker.start()


def result(worker: Worker, good: bool, value: Any, advice: str) -> Any:
    """Note that a worker has answered, and return the value of its answer.

    If the call failed, or the worker could not start, a RunError with ``advice`` is raised.
    """
    if isinstance(value, FeddropError):  # it says what to do
        raise value
    if not good:
        failed = f"failed:\n{value}"
        start_failed = f"cannot rebuild the network, loss, metrics or method: {value} {advice}"
        raise RunError(f"a worker process {failed if worker.ready else start_failed}")
    worker.ready, worker.failures = True, 0
    return value
