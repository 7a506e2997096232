"""Many runs side by side over the cores: each saved after every round, each resumed where it stopped."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from feddrop.config import RunConfig
from feddrop.errors import FeddropError, RunError
from feddrop.paper.store import Store, key_of

Watcher = Callable[[int, int], None]
"""Told now and then how many rounds are done, and how many there are."""


def sweep(configs: Iterable[RunConfig], store: Store, *, workers: int, watch: Watcher) -> None:
    """Train every configuration that is not in the store yet.

    A run that fails does not keep the others from being trained; it is named when they are done.

    Args:
        configs: what is needed, in order of importance; repeated ones are trained once.
        store: where results go.
        workers: runs at a time, one thread each.
        watch: is told of progress twice a second.

    Raises:
        RunError: runs failed; it says which, and why.
    """
    wanted = {key_of(config): config for config in configs}
    total = sum(config.rounds for config in wanted.values())
    missing = [config for config in wanted.values() if store.get(config) is None]
    if missing:
        failed = _train_all(missing, store, workers, lambda: watch(_done(wanted.values(), store), total))
        if failed:
            raise RunError("\n".join([f"{len(failed)} of {len(missing)} runs failed; the others are done.", *failed]))
    watch(total, total)


def _done(configs: Iterable[RunConfig], store: Store) -> int:
    return sum(store.rounds_done(config) for config in configs)


def _train_all(configs: list[RunConfig], store: Store, workers: int, tick: Callable[[], None]) -> list[str]:
    """Train these over worker processes, and return why those failed that did."""
    failed: list[str] = []
    others = set(mp.active_children())
    pool = ProcessPoolExecutor(workers, mp.get_context("spawn"), initializer=_ignore_interrupt)
    jobs: dict[Future[None], RunConfig] = {
        pool.submit(_train, config.to_toml(), store.folder(config), os.getpid()): config for config in configs
    }
    pending = set(jobs)
    try:
        while pending:
            finished, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
            for job in finished:
                try:
                    job.result()
                    store.put(jobs[job])
                except FeddropError as error:
                    failed.append(f"{store.folder(jobs[job])}: {error}")
            tick()
    except BrokenProcessPool:
        raise RunError(
            "a worker process died (killed, or out of memory). Give the command again, with fewer --workers if memory "
            "is short: it goes on from there."
        ) from None
    finally:
        pool.shutdown(wait=not pending, cancel_futures=True)
        for process in set(mp.active_children()) - others:
            process.terminate()  # stopped in the middle: the rounds that are done are saved
    return failed


def _ignore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent


def _train(toml: str, folder: Path, parent: int) -> None:
    """Run one configuration in this process from where it stopped, to its end or to that of the parent process."""
    from feddrop.runs import Run

    run = Run(RunConfig.from_toml(toml), folder, resume=(folder / "config.toml").exists())
    for _ in run:
        if os.getppid() != parent:
            os._exit(1)  # nobody waits for this pool any more; the round is saved
