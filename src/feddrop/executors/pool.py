"""Calls over workers that may be lost: the one place where a call is given out, made again, or given up.

What a worker is (a process, an actor on a cluster) and what it does (a device, a whole run) is no matter here. A worker
that hangs or dies is replaced, and what it was at is done again: the same call gives the same bits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from feddrop.errors import RunError

TRIES = 3
"""How often a call is made, each time by a fresh worker, before it is given up."""
START_S = 300.0
"""Longest time that a worker may take to start: it imports torch, maybe over a slow network."""

log = logging.getLogger("feddrop")


class WorkerLostError(Exception):
    """A worker died or was ended; the message says how.

    Attributes:
        late: whether it was ended for its time.
    """

    def __init__(self, reason: str, *, late: bool = False) -> None:
        super().__init__(reason)
        self.late = late


class Worker(Protocol):
    """A worker as the server sees it. Calls go out and answers come in one by one.

    Attributes:
        ready: whether it has started; until then its next answer says so.
        generation: how often it was started: what was sent to an earlier one is lost.
        failures: starts in a row that came to nothing.
    """

    ready: bool
    generation: int
    failures: int

    @property
    def running(self) -> bool:
        """Whether it was started, and not ended since."""
        ...

    def start(self) -> None:
        """Start it, anew if need be; it will answer when it is ready."""
        ...

    def send(self, *call: Any) -> None:
        """Send a call; that the worker is gone will show when its answer is received."""
        ...

    def receive(self) -> Any:
        """Receive an answer: WorkerLostError if there will be none, RunError if the call failed."""
        ...

    def end(self) -> None:
        """End it, whatever it is at."""
        ...


W = TypeVar("W", bound=Worker)
Message = Callable[[W, Any], tuple[Any, ...]]
"""``(worker, argument) -> call``."""
GivenUp = Callable[[Any, str], Any]
"""``(argument, reason) -> answer``."""
Answer = tuple[int, Any]
"""The number of a call, from 0, and what came back."""


@dataclass(slots=True, eq=False)
class _Call:
    number: int
    argument: Any
    tries: int = 0


class Pool(Generic[W]):
    """Workers, and the calls that go to them.

    Args:
        workers: not started yet.
        wait: ``(workers, timeout_s) -> those that can be received from``; the timeout is None for any time.
    """

    def __init__(self, workers: Sequence[W], wait: Callable[[Sequence[W], float | None], Sequence[W]]) -> None:
        self.workers, self._wait = workers, wait
        self.closed = False

    def start(self, ready: int) -> None:
        """Start all workers and wait until this many are ready; the others join when they are."""
        for worker in self.workers:
            worker.start()
        while sum(worker.ready for worker in self.workers) < ready:
            starting = [worker for worker in self.workers if not worker.ready]
            for worker in self._wait(starting, None):
                self._started(worker)

    def end(self) -> None:
        """End the workers, whatever they are at."""
        self.closed = True
        for worker in self.workers:
            worker.end()

    def in_order(self, arguments: Iterable[Any], message: Message[W], given_up: GivenUp) -> Iterator[Any]:
        """Yield the answers in the order of the arguments, at most two a worker held; see :meth:`answers`."""
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
        """Give calls to workers as they become free, and yield the answers.

        Args:
            arguments: one a call.
            message: ``(worker, argument) -> call``, made when the worker is known.
            given_up: ``(argument, reason) -> answer`` of a call that cost too many workers.
            ordered: whether answers keep the order of the arguments; else they are given as they come.
            tick_s: how often None is given where no answer comes; None for never.
        """
        if self.closed:
            raise RunError("this executor was closed. Make a new one.")
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
                if not answering:  # every free worker has something to do meanwhile
                    if due in ready:
                        given += 1
                        yield due, ready.pop(due)
                    else:
                        yield None
        finally:
            for worker in busy:  # given up in the middle: their answers belong to nobody
                worker.end()

    def _idle(self, busy: dict[W, _Call]) -> list[W]:
        for worker in self.workers:
            if not worker.running:
                worker.start()
        return [worker for worker in self.workers if worker.ready and worker not in busy]

    def _answered(self, worker: W, call: _Call, ready: dict[int, Any], given_up: GivenUp) -> bool:
        """Take an answer, or note that the call must be made again (False); too often is an answer as well."""
        try:
            ready[call.number] = worker.receive()
        except WorkerLostError as lost:
            call.tries += 1
            log.warning("a worker process %s; a new one is started.", lost)
            worker.start()
            if call.tries < TRIES:
                return False
            ready[call.number] = given_up(call.argument, f"{lost}, {TRIES} times")
        return True

    def _started(self, worker: W) -> None:
        """Take a worker's word that it has started, or start it again; others that work may wait for it for ever."""
        try:
            worker.receive()
        except WorkerLostError as lost:
            if worker.failures >= TRIES and not (lost.late and any(other.ready for other in self.workers)):
                raise RunError(
                    f"a worker process {lost} while it started, {TRIES} times in a row. Finished rounds are saved: "
                    "resume the run, with fewer workers if memory is short."
                ) from None
            log.warning("a worker process %s; it is started again.", lost)
            worker.start()
