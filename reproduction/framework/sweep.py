"""The runs of the paper, trained where they are missing; finished ones go into the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from feddrop.config import RunConfig
from feddrop.errors import RunError
from feddrop.sweeps import SweepJob, rounds_done, train_all
from reproduction.framework.store import Store, key_of

Watcher = Callable[[int, int], None]
"""Told now and then how many rounds are done, and how many there are."""


def sweep(
    configs: Iterable[RunConfig], store: Store, *, workers: int | None, watch: Watcher, ray: str | None = None
) -> None:
    """Train every configuration that is not in the store yet.

    A run that fails does not keep the others from being trained; it is named when they are done.

    Args:
        configs: what is needed, in order of importance; repeated ones are trained once.
        store: where results go.
        workers: runs at a time, one thread each; None for as many as there is room for.
        watch: is told of progress twice a second.
        ray: None for the cores of this machine, else the address of a Ray.

    Raises:
        RunError: runs failed; it says which, and why.
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
        told = [f"{name}: {reason}" for name, reason in failed.items()]
        raise RunError("\n".join([f"{len(failed)} of {len(missing)} runs failed; the others are done.", *told]))
    watch(total, total)
