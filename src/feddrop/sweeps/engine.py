"""Train complete runs on workers; when a worker dies, another one resumes its run."""

from __future__ import annotations

import contextlib
import math
import multiprocessing as mp
import os
import pickle
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from feddrop.config import RunConfig
from feddrop.errors import FeddropError, RunError
from feddrop.executors import actor, worker
from feddrop.executors.cluster import Cluster
from feddrop.executors.pool import Pool
from feddrop.executors.shared import pickled
from feddrop.storage import RunFolder
from feddrop.storage.files import InUseError, locked, read_whole, write_atomically
from feddrop.sweeps.warned import Collector, collecting

TICK_S = 0.5
LOCKED_S = 60.0
"""Longest wait for a run that is still locked by a lost worker: a disconnected machine ends its processes late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepJob:
    """A run of a sweep."""

    name: str  # its name
    config: RunConfig  # its configuration
    folder: Path  # its folder
    label: str = ""  # its label in reports
    custom: Mapping[str, Any] = field(default_factory=dict)  # custom objects by argument of :func:`feddrop.run`
    until: int = 0  # the round to stop after; 0 for the last one

    @property
    def goal(self) -> int:
        """The number of rounds to train."""
        return min(self.until or self.config.rounds, self.config.rounds)


def rounds_done(job: SweepJob) -> int:
    """Return the number of recorded rounds of a run; the last one may lack its checkpoint."""
    path = job.folder / "metrics.jsonl"
    try:
        found = path.stat()
        return _lines(path, found.st_size, found.st_mtime_ns)
    except OSError:
        return 0


@lru_cache(maxsize=2**15)
def _lines(path: Path, _size: int, _mtime_ns: int) -> int:
    """Count the lines of a file; cached, since all runs are polled twice a second and few have changed."""
    return read_whole(path).count(b"\n")


def train_all(
    jobs: Sequence[SweepJob],
    *,
    workers: int | None,
    ray: str | None,
    finished: Callable[[SweepJob], object],
    failed: dict[str, str],
    tick: Callable[[], None],
) -> None:
    """Train runs in parallel, each from its last checkpoint, on processes of this machine or on the Ray at ``ray``.

    If ``workers`` is None, as many as fit are used. ``finished`` is called with each finished run, ``tick`` about twice
    a second; ``failed`` receives the reason of each failed run by name.
    """

    def message(_: Any, job: SweepJob) -> tuple[str, str, str, bytes, int]:
        custom = pickled(job.custom) if job.custom else b""
        return job.config.to_toml(), str(job.folder.absolute()), job.label, custom, job.goal

    def given_up(_: SweepJob, reason: str) -> str:
        return f"its worker process {reason}. Finished rounds are saved: repeat the command to continue."

    with _pool(jobs, workers, ray) as pool:
        for answer in pool.answers(jobs, message, given_up, ordered=False, tick_s=TICK_S):
            if answer is not None:
                job, reason = jobs[answer[0]], answer[1]
                try:
                    if not reason:
                        finished(job)
                except FeddropError as error:
                    reason = str(error)
                if reason:
                    failed[job.name] = reason
            tick()


@contextlib.contextmanager
def _pool(jobs: Sequence[SweepJob], workers: int | None, ray: str | None) -> Iterator[Pool[Any]]:
    """Start workers on this machine or on a Ray cluster."""
    needs = [_needs(job.config) for job in jobs]
    cpus, gpus = max(cpu for cpu, _ in needs), max(gpu for _, gpu in needs)
    room = max(1, (os.cpu_count() or 1) // cpus)
    if ray is None:
        count = min(workers or room, len(jobs))
        local = [worker.ProcessWorker(_trainer, _nothing, math.inf, daemon=False) for _ in range(count)]
        pool: Pool[Any] = Pool(local, worker.wait)
        end = worker.finalizer(pool, pool, lambda: None, math.inf)
        try:
            pool.start(ready=1)
            yield pool
        finally:
            end()
        return
    cluster = Cluster(ray, workers=min(workers or room, len(jobs)))
    # If this process is killed, the next one to lock the folder removes the file, as any draft.
    probe = jobs[0].folder.parent / f".ray-{secrets.token_hex(6)}.partial"
    pool = Pool([], actor.wait)
    try:
        room = room if cluster.own else max(1, cluster.seats(cpus, gpus))
        count = min(workers or room, len(jobs))
        cluster.check_room(count, cpus, gpus)
        write_atomically(probe, b"")
        build = (_trainer_seeing, str(probe.absolute()))
        seats = [actor.ActorWorker(cluster, build, math.inf, cpus=cpus, gpus=gpus) for _ in range(count)]
        pool = Pool(seats, actor.wait)
        pool.start(ready=1)
        yield pool
    finally:
        pool.end()
        probe.unlink(missing_ok=True)
        cluster.close()


def _needs(config: RunConfig) -> tuple[int, float]:
    """Return the CPUs and GPUs that a run uses."""
    execution = config.execution
    cpus = execution.threads * (execution.workers if execution.executor == "processes" else 1)
    return cpus, execution.gpus or float(execution.torch_device.startswith("cuda"))


# --- in the workers


def _nothing(_link: Connection, _pid: int) -> None:
    """Send nothing at start: each call carries its run."""


def _trainer(_: Connection) -> Callable[..., str]:
    return partial(_train, warnings=collecting())


def _trainer_seeing(probe: str) -> Callable[..., str]:
    if not Path(probe).exists():
        raise RunError(f"{socket.gethostname()} has no {Path(probe).parent}: all machines must share a sweep's folder")
    return partial(_train, warnings=collecting())


def _train(
    toml: str, folder: str, label: str = "", custom: bytes = b"", goal: int = 0, *, warnings: Collector | None = None
) -> str:
    """Train a run in this process from its last checkpoint to its goal; return the reason if it fails, else ''."""
    from feddrop.simulation.run import Run

    try:
        path = Path(folder)
        if warnings is not None:
            warnings.run = path
        _wait_for(path)
        given = pickle.loads(custom) if custom else {}  # noqa: S301 -- from the process that started us
        resume = bool(RunFolder(path).about())
        run = Run(RunConfig.from_toml(toml), path, resume=resume, label=label, report=False, **given)
        for _ in run if not goal or run.round < goal else ():
            if run.round == goal:
                break
            parent = mp.parent_process()
            if parent is not None and not parent.is_alive():
                os._exit(1)  # the sweep is gone; the round is saved
    except FeddropError as error:
        return str(error)
    except Exception as error:  # of a custom method or callback
        return f"{type(error).__name__}: {error}"
    return ""


def _wait_for(folder: Path) -> None:
    """Wait until no other process uses a folder."""
    end = time.monotonic() + LOCKED_S
    while True:
        try:
            with locked(folder):
                return
        except InUseError:
            if time.monotonic() > end:
                raise
            time.sleep(1)
