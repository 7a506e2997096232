"""A pool of workers that may be lost: the one place where calls are assigned, retried and given up.

The pool does not know what a worker is (a process or an actor on a cluster) or what it does (a device or a full run).
A worker that hangs or dies is replaced and its call repeated: the same call gives the same bits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
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

    def send(self, *call: Any, times: int = 1) -> None:
        """Send a call, which may take this many times the timeout. If the worker is gone, :meth:`receive` raises."""

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


TOGETHER = "together"
"""The name of a call that holds a list of calls; its answer is the list of their answers."""


class Pool(Generic[W]):
    """Workers, and the calls made on them.

    Args:
        workers: not started yet.
        wait: ``(workers, timeout_s) -> workers that have answered or died``; a timeout of None waits forever.
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

    def in_order(
        self,
        arguments: Iterable[Any],
        message: Message[W],
        given_up: GivenUp,
        together: Callable[[], int] | None = None,
        times: Callable[[Any], int] = lambda _: 1,
    ) -> Iterator[Any]:
        """Yield answers in the order of the arguments, holding those of two calls per worker; see :meth:`answers`."""
        answers = self.answers(arguments, message, given_up, together=together, times=times)
        return (answer[1] for answer in answers if answer is not None)

    def answers(
        self,
        arguments: Iterable[Any],
        message: Message[W],
        given_up: GivenUp,
        *,
        ordered: bool = True,
        tick_s: float | None = None,
        together: Callable[[], int] | None = None,
        times: Callable[[Any], int] = lambda _: 1,
    ) -> Iterator[Answer | None]:
        """Assign calls to workers as they become free, and yield the answers.

        Args:
            arguments: one per call.
            message: ``(worker, argument) -> call``, evaluated when the call is assigned.
            given_up: ``(argument, reason) -> answer``, for a call whose every attempt lost its worker.
            ordered: whether answers keep the order of the arguments; otherwise they are yielded as they arrive.
            tick_s: seconds without an answer after which None is yielded; None for never.
            together: how many calls to send a worker at once, evaluated each time; one if None. If the worker is lost,
                they are repeated one by one.
            times: how many times the timeout a call may take.
        """
        if self.closed:
            raise RunError("this executor is closed. Create a new one.")
        source = (_Call(number, argument) for number, argument in enumerate(arguments))
        again, busy, ready = deque[_Call](), dict[W, list[_Call]](), dict[int, Any]()
        sent, given, exhausted = 0, 0, False
        try:
            while True:
                for worker in self._idle(busy):
                    most = together() if together else 1
                    calls = [again.popleft()] if again else []
                    if not calls and sent - given < 2 * len(self.workers) * most:
                        calls = list(islice(source, most))
                        exhausted = len(calls) < most
                        sent += len(calls)
                    if not calls:
                        break
                    busy[worker] = calls
                    _send(worker, [(message(worker, call.argument), times(call.argument)) for call in calls])
                if exhausted and given == sent:
                    return
                due = given if ordered else next(iter(ready), -1)
                waited = [worker for worker in self.workers if worker in busy or not worker.ready]
                answering = self._wait(waited, 0 if due in ready else tick_s)
                for worker in answering:
                    if worker in busy:
                        again += self._answered(worker, busy.pop(worker), ready, given_up)
                    else:
                        self._started(worker)
                if not answering:  # every free worker is busy again, so there is time to yield
                    if due in ready:
                        given += 1
                        yield due, ready.pop(due)
                    else:
                        yield None
        finally:
            for worker in busy:  # abandoned midway: their answers must not reach the next caller
                worker.end()

    def _idle(self, busy: dict[W, list[_Call]]) -> list[W]:
        for worker in self.workers:
            if not worker.running:
                worker.start()
        return [worker for worker in self.workers if worker.ready and worker not in busy]

    def _answered(self, worker: W, calls: list[_Call], ready: dict[int, Any], given_up: GivenUp) -> list[_Call]:
        """Store the answers to calls, or that they were given up; return those that must be repeated."""
        try:
            answer = worker.receive()
        except WorkerLostError as lost:
            log.warning("a worker process %s; starting a new one.", lost)
            worker.start()
            for call in calls:
                call.tries += 1
                if call.tries == TRIES:
                    ready[call.number] = given_up(call.argument, f"{lost}, {TRIES} times")
            return [call for call in calls if call.tries < TRIES]
        answers = [answer] if len(calls) == 1 else answer
        ready |= {call.number: one for call, one in zip(calls, answers, strict=True)}
        return []

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


def _send(worker: Worker, messages: Sequence[tuple[tuple[Any, ...], int]]) -> None:
    """Send messages, each with how many times the timeout it may take, in one call."""
    calls = [call for call, _ in messages]
    worker.send(*(calls[0] if len(calls) == 1 else (TOGETHER, calls)), times=sum(times for _, times in messages))


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
