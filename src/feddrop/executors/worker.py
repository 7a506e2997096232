"""A worker process: what runs in it, and the server's side that starts it, waits for it and stops it."""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing as mp
import multiprocessing.util
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

from feddrop.errors import RunError
from feddrop.executors.pool import START_S, Pool, WorkerLostError, result

Builder = Callable[[Connection], Callable[..., Any]]
"""Builds, in a worker process and from its link to the server, the function that answers calls; module-level."""

_CONTEXT = mp.get_context("spawn")  # fork is unsafe beside threads and CUDA
_GUARD = (
    "a worker process ended while it started. Each worker imports the main script again, so the script must guard its "
    "own code with `if __name__ == '__main__':`."
)
_ADVICE = (
    "Objects that a notebook or `__main__` defines need cloudpickle installed; otherwise define them in a module, or "
    'use execution.executor = "serial".'
)


class ProcessWorker:
    """A worker process as the server sees it; see :class:`feddrop.executors.pool.Worker`.

    Waiting is bounded: a watchdog calls :meth:`tick`, which kills a worker that has timed out; then :meth:`send` and
    :meth:`receive` return. ``hand_over(link, pid)`` sends what ``build`` reads from the link. A ``daemon`` cannot start
    processes itself.
    """

    def __init__(
        self, build: Builder, hand_over: Callable[[Connection, int], None], timeout_s: float, *, daemon: bool = True
    ) -> None:
        self.ready = False
        self.generation = self.failures = 0
        self._build, self._hand_over, self._timeout_s, self._daemon = build, hand_over, timeout_s, daemon
        self._lock = threading.Lock()
        self._left = math.inf  # seconds until it times out
        self._receiving = self._late = False
        self._link: Connection | None = None
        self._process: Any = None

    @property
    def link(self) -> Connection:
        """The link to the worker."""
        assert self._link is not None  # noqa: S101
        return self._link

    @property
    def running(self) -> bool:
        """Whether the worker was started and has not been stopped since."""
        return self._link is not None

    def start(self) -> None:
        """Start or restart the worker; it answers None when it is ready."""
        self.end()
        try:
            self._link, theirs = _CONTEXT.Pipe()
            self._process = _CONTEXT.Process(target=serve, args=(theirs, self._build), daemon=self._daemon)
            with theirs, _no_interrupts(), _main_script_exists():
                self._process.start()
        except RuntimeError:  # multiprocessing refuses: we are in a worker that imports the main script
            raise RunError(_GUARD) from None
        except OSError as error:
            raise RunError(f"cannot start a worker process: {error.strerror or error}. Use fewer workers.") from None
        self.generation += 1
        self._watched(START_S)
        with contextlib.suppress(OSError, RuntimeError):  # it is dead already; receive() reports that
            self._hand_over(self._link, self._process.pid)

    def send(self, *call: Any, times: int = 1) -> None:
        """Send a call, which may take this many times the timeout. If the worker is gone, :meth:`receive` raises."""
        self._watched(self._timeout_s * times)
        with contextlib.suppress(OSError):
            self.link.send_bytes(pickle.dumps(call))

    def receive(self) -> Any:
        """Receive an answer: WorkerLostError if the worker is gone, RunError if the call failed."""
        self._watched(self._timeout_s if self.ready else START_S, receiving=True)
        try:
            good, value = pickle.loads(self.link.recv_bytes())  # noqa: S301 -- from our own child process
        except (EOFError, OSError):
            raise self._lost() from None
        finally:
            self._watched(math.inf)
        return result(self, good, value, _ADVICE)

    def end(self) -> None:
        """Kill the worker, even if it is suspended, and wait until it is gone."""
        if self._process is not None and self._process.pid is not None:
            self._process.kill()
            self._process.join()
        with self._lock:
            if self._link is not None:
                self._link.close()
            self._link = self._process = None
            self._left, self._late = math.inf, False
        self.ready = False

    def tick(self, seconds: float) -> None:
        """Advance the timeout, in the watchdog's thread; an answer that waits to be collected stops the clock."""
        with self._lock:
            self._left -= seconds
            if self._left <= 0 and self._link is not None and (self._receiving or not self._link.poll()):
                self._late, self._left = True, math.inf
                self._process.kill()

    def _watched(self, seconds: float, *, receiving: bool = False) -> None:
        with self._lock:
            self._left, self._receiving = seconds, receiving

    def _lost(self) -> Exception:
        """Return the error to raise, from how the process ended."""
        self._process.join(1)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        code = self._process.exitcode
        self.failures += not self.ready
        if self._late:
            limit = f"execution.timeout_s = {self._timeout_s:g}" if self.ready else f"{START_S:g} s to start"
            return WorkerLostError(f"took longer than {limit} and was stopped", late=True)
        if code < 0:
            often = ", perhaps for lack of memory" if -code == getattr(signal, "SIGKILL", 0) else ""
            return WorkerLostError(f"was killed (signal {-code}{often})")
        if not self.ready:
            return RunError(_GUARD)
        return WorkerLostError(f"ended with exit code {code}")


def wait(workers: Sequence[ProcessWorker], timeout_s: float | None) -> list[ProcessWorker]:
    """Wait until one of the workers has answered or died."""
    links = {worker.link: worker for worker in workers}
    return [links[link] for link in connection.wait(list(links), timeout_s)]  # type: ignore[index]


def finalizer(owner: object, pool: Pool[ProcessWorker], then: Callable[[], None], timeout_s: float) -> Any:
    """Watch the workers of a pool; return the function that stops them, which also runs when ``owner`` is deleted."""
    closed = threading.Event()
    # At exit, run before multiprocessing's own cleanup, which would wait forever for a suspended worker.
    end = mp.util.Finalize(owner, _end, (pool, closed, then), exitpriority=100)
    tick_s = min(1.0, timeout_s / 4)
    threading.Thread(target=watch, args=(pool.workers, closed, tick_s), name="feddrop watchdog", daemon=True).start()
    return end


def _end(pool: Pool[ProcessWorker], closed: threading.Event, then: Callable[[], None]) -> None:
    closed.set()
    pool.end()
    then()


def watch(workers: Sequence[ProcessWorker], closed: threading.Event, tick_s: float) -> None:
    """Advance worker timeouts. Time counts in ticks, so that none passes while this process is suspended (Ctrl-Z)."""
    while not closed.wait(tick_s):
        for worker in workers:
            with contextlib.suppress(OSError):  # its link was closed meanwhile
                worker.tick(tick_s)


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Start processes that ignore Ctrl-C in the terminal, which is for the server."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _main_script_exists() -> Iterator[None]:
    """Start processes that do not look for a main script that is not a file, such as one read from standard input."""
    main = sys.modules["__main__"]
    name = getattr(main, "__file__", None)
    if name is None or os.path.exists(name):  # noqa: PTH110 -- must not fail for names that are not paths
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = name


def serve(link: Connection, build: Builder) -> None:
    """Answer calls, in a worker process, until the server closes the link."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the server is gone
        try:
            function = build(link)
        except (EOFError, ConnectionResetError):
            return
        except Exception as error:
            link.send_bytes(pickle.dumps((False, f"{type(error).__name__}: {error}.")))
            return
        link.send_bytes(pickle.dumps((True, None)))
        while True:
            call = pickle.loads(link.recv_bytes())  # noqa: S301 -- from our own parent process
            try:
                answer = True, function(*call)
            except Exception:
                answer = False, traceback.format_exc()
            link.send_bytes(pickle.dumps(answer))


def _die_with_parent() -> None:
    """Let Linux kill this process when the server ends; on other systems, the closed link ends it."""
    parent = mp.parent_process()
    if sys.platform == "linux" and parent is not None:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent.pid:  # the server ended before that
            os._exit(0)
