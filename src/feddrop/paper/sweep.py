"""Many runs side by side over the cores: each saved after every round, each resumed where it stopped."""

from __future__ import annotations

import multiprocessing as mp
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from feddrop.config import RunConfig
from feddrop.paper.store import Result, Store, key_of

Watcher = Callable[[int, int], None]
"""Told now and then how many rounds are done, and how many there are."""


def sweep(configs: Iterable[RunConfig], store: Store, *, workers: int, watch: Watcher) -> dict[str, Result]:
    """Train every configuration that is not in the store yet, and return all results by key.

    Args:
        configs: what is needed, in order of importance; repeated ones are trained once.
        store: where results are.
        workers: runs at a time, one thread each.
        watch: is told of progress twice a second.
    """
    wanted = {key_of(config): config for config in configs}
    total = sum(config.rounds for config in wanted.values())
    missing = {key: config for key, config in wanted.items() if store.get(config) is None}
    if missing:
        context = mp.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_ignore_interrupt) as pool:
            jobs: dict[Future[None], RunConfig] = {
                pool.submit(_train, config.to_toml(), store.folder(config)): config for config in missing.values()
            }
            pending = set(jobs)
            try:
                while pending:
                    finished, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                    for job in finished:
                        job.result()
                        store.put(jobs[job])
                    watch(sum(store.rounds_done(config) for config in wanted.values()), total)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in mp.active_children():
                    process.terminate()
                raise
    watch(total, total)
    results = {key: store.get(config) for key, config in wanted.items()}
    return {key: result for key, result in results.items() if result is not None}


def _ignore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent


def _train(toml: str, folder: Path) -> None:
    """Run one configuration to its end in this process, from where it stopped."""
    from feddrop.runs import Run

    started = (folder / "config.toml").exists()
    for _ in Run(RunConfig.from_toml(toml), folder, resume=started):
        pass
