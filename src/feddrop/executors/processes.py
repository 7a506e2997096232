"""Devices over worker processes that share one copy of the data.

A worker that hangs is killed when its time is over; one that was killed, or died, is started anew, and what it was at
is done again: the same frame and memory give the same bits.
"""

from __future__ import annotations

import logging
import math
import multiprocessing as mp
import multiprocessing.util
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from feddrop.device import TEST_CHUNK, Reply, Task
from feddrop.errors import RunError
from feddrop.executors.serial import means
from feddrop.executors.shared import SharedTask
from feddrop.executors.worker import Worker, WorkerLostError, watch
from feddrop.params import Params
from feddrop.rounds import Parcel

TRIES = 3
"""How often a device is tried, each time with a fresh worker, before a round goes on without it."""

log = logging.getLogger("feddrop")


@dataclass(slots=True, eq=False)
class _Call:
    """Something for a worker to do; answers are given in the order of the numbers."""

    number: int
    argument: Any
    tries: int = 0


class Processes:
    """Runs devices over worker processes that share one copy of the data.

    Args:
        task: what devices need to know.
        workers: worker processes.
        timeout_s: longest time that a worker may take over one device.
    """

    def __init__(self, task: Task, workers: int, *, timeout_s: float = math.inf) -> None:
        if workers < 1:
            raise RunError(f"workers is {workers}; at least 1 is needed.")
        if mp.current_process().daemon:
            raise RunError('a worker process cannot have workers of its own. Use execution.executor = "serial".')
        self._test_count = len(task.samples.test_y)
        shared = SharedTask(task)
        self._workers = [Worker(shared, timeout_s) for _ in range(workers)]
        closed = threading.Event()
        # At exit this must come before multiprocessing's own end, which waits for a stopped worker for ever.
        self._end = mp.util.Finalize(self, _end, (self._workers, closed, shared), exitpriority=100)
        tick_s = min(1.0, timeout_s / 4)
        threading.Thread(
            target=watch, args=(self._workers, closed, tick_s), name="feddrop watchdog", daemon=True
        ).start()
        try:
            for worker in self._workers:
                worker.start()
            while starting := [worker for worker in self._workers if not worker.ready]:
                self._started(starting[0])
        except BaseException:
            self.close()
            raise

    def compute(self, parcels: Iterable[Parcel]) -> Iterator[Reply]:
        """Let devices train wherever a worker is free; replies come in order, at most two a worker held."""

        def message(_: Worker, parcel: Parcel) -> bytes:
            return pickle.dumps(("handle", parcel.frame, parcel.memory))

        def given_up(parcel: Parcel, reason: str) -> tuple[bytes, bytes, str]:
            return b"", parcel.memory, f"its worker process {reason}, {TRIES} times"

        return (Reply(*reply) for reply in self._spread(parcels, message, given_up))

    def evaluate(self, params: Params) -> dict[str, float]:
        """Return the mean loss and every measure on the test set, its chunks spread over the workers."""
        values = {name: tensor.numpy() for name, tensor in params.items()}
        loaded: dict[Worker, int] = {}

        def message(worker: Worker, start: int) -> bytes:
            knows = loaded.get(worker) == worker.generation
            loaded[worker] = worker.generation
            return pickle.dumps(("evaluate", start, None if knows else values))

        def given_up(_: int, reason: str) -> Any:
            raise RunError(
                f"the network cannot be evaluated: a worker process {reason}, {TRIES} times. Finished rounds are "
                "saved: resume the run, with fewer workers if memory is short."
            )

        return means(self._spread(range(0, self._test_count, TEST_CHUNK), message, given_up))

    def close(self) -> None:
        """End the workers, whatever they are at."""
        self._end()

    def _spread(
        self,
        arguments: Iterable[Any],
        message: Callable[[Worker, Any], bytes],
        given_up: Callable[[Any, str], Any],
    ) -> Iterator[Any]:
        """Give calls to workers as they become free, and yield the answers in order."""
        if not self._end.still_active():
            raise RunError("this executor was closed. Make a new one.")
        source = (_Call(number, argument) for number, argument in enumerate(arguments))
        again: deque[_Call] = deque()
        busy: dict[Worker, _Call] = {}
        ready: dict[int, Any] = {}
        sent = due = 0
        exhausted = False
        try:
            while True:
                for worker in self._idle(busy):
                    call = again.popleft() if again else None
                    if call is None and sent - due < 2 * len(self._workers):
                        call = next(source, None)
                        exhausted = call is None
                        sent += not exhausted
                    if call is None:
                        break
                    busy[worker] = call
                    worker.send(message(worker, call.argument))
                if exhausted and due == sent:
                    return
                waited = {w.link: w for w in self._workers if w in busy or not w.ready}
                answering = wait(list(waited), timeout=0 if due in ready else None)
                for worker in (waited[link] for link in answering):  # type: ignore[index]
                    call = busy.pop(worker, None)
                    if call is None:
                        self._started(worker)
                    elif not self._answered(worker, call, ready, given_up):
                        again.append(call)
                if not answering and due in ready:  # every free worker has something to do meanwhile
                    yield ready.pop(due)
                    due += 1
        finally:
            for worker in busy:  # given up in the middle: their answers belong to nobody
                worker.end()

    def _idle(self, busy: dict[Worker, _Call]) -> list[Worker]:
        for worker in self._workers:
            if not worker.running:
                worker.start()
        return [worker for worker in self._workers if worker.ready and worker not in busy]

    def _answered(
        self, worker: Worker, call: _Call, ready: dict[int, Any], given_up: Callable[[Any, str], Any]
    ) -> bool:
        """Take an answer, or note that the call must be made again (False); too often is an answer as well."""
        try:
            ready[call.number] = worker.receive()
        except WorkerLostError as lost:
            call.tries += 1
            log.warning("a worker process %s; a new one is started.", lost)
            worker.start()
            if call.tries < TRIES:
                return False
            ready[call.number] = given_up(call.argument, str(lost))
        return True

    def _started(self, worker: Worker) -> None:
        """Take a worker's word that it has started, or start it again."""
        try:
            worker.receive()
        except WorkerLostError as lost:
            if worker.failures >= TRIES:
                raise RunError(
                    f"a worker process {lost} while it started, {TRIES} times in a row. Finished rounds are saved: "
                    "resume the run, with fewer workers if memory is short."
                ) from None
            worker.start()


def _end(workers: list[Worker], closed: threading.Event, shared: SharedTask) -> None:
    closed.set()
    for worker in workers:
        worker.end()
    shared.close()
