"""Train the runs that are missing from the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from feddrop.config import RunConfig
from feddrop.errors import RunError
from feddrop.sweeps import SweepJob, rounds_done, train_all
from reproduction.framework.store import Store, key_of

Watcher = Callable[[int, int], None]
"""Progress callback: rounds done, rounds in total."""


def sweep(
    configs: Iterable[RunConfig], store: Store, *, workers: int | None, watch: Watcher, ray: str | None = None
) -> None:
    """Train every configuration that is not in the store yet.

    A run that fails does not stop the others; it is reported at the end.

    Args:
        configs: the runs, most important first; duplicates are trained once.
        store: where results are stored.
        workers: runs to train at the same time, one thread each; None for as many as fit.
        watch: called with the progress twice a second.
        ray: address of a Ray cluster; None to use the cores of this machine.

    Raises:
        RunError: runs failed; the message lists them with their errors.
    """
    wanted = {key_of(config): config for config in configs}
    total = sum(config.rounds for config in wanted.values())
    missing = {
        str(store.folder(config)): SweepJob(name=str(store.folder(config)), config=config, folder=store.folder(config))
        for config in wanted.values()
        if store.get(config) is None
    }
    found = total - sum(job.config.rounds for job in missing.values())
    failed: dict[str, str] = {}
    if missing:
        train_all(
            list(missing.values()),
            workers=workers,
            ray=ray,
            finished=lambda job: store.put(job.config),
            failed=failed,
            tick=lambda: watch(found + sum(map(rounds_done, missing.values())), total),
        )
    if failed:
        errors = [f"{name}: {reason}" for name, reason in failed.items()]
        raise RunError("\n".join([f"{len(failed)} of {len(missing)} runs failed; the others are done.", *errors]))
    watch(total, total)
