"""Train what a table needs: bytes per round, learning rates, then the runs that are judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from feddrop.config import RunConfig
from reproduction.framework.store import LAST, Result, Store
from reproduction.unequal.tasks import (
    EXPONENT_SEEDS,
    EXPONENTS,
    HARD,
    IMPORTANCE,
    MIXED,
    PAPER,
    SEARCH_SEED,
    SQUARED,
    TASKS,
    VALIDATION,
    Task,
)

Sweep = Callable[[list[RunConfig]], bool]
"""Trains the runs that are not in the store yet; returns whether all of them finished."""


def bytes_per_round(task: Task, method: str, column: str, store: Store) -> float | None:
    """Return the bytes of a round, up and down, masks included; None before the pilot ran."""
    result = store.get(task.pilot(method, column))
    return None if result is None else float(np.mean(traffic(result)))


def traffic(result: Result) -> np.ndarray:
    """Return the bytes of every round, ``[rounds]``."""
    return result.values("push_bytes") + result.values("pull_bytes")


def budget(task: Task, column: str, store: Store) -> float | None:
    """Return the bytes that every method may send: those of the paper's method in ``task.rounds`` rounds."""
    each = bytes_per_round(task, PAPER, column, store)
    return None if each is None else task.rounds * each


def rounds_of(task: Task, method: str, column: str, store: Store) -> int | None:
    """Return how many rounds of a method the budget pays for, rounded; None before the pilots ran."""
    each, total = bytes_per_round(task, method, column, store), budget(task, column, store)
    return None if each is None or total is None else max(1, round(total / each))


def search_runs(task: Task, method: str, store: Store) -> dict[float, list[RunConfig]]:
    """Return the runs that choose a learning rate, by learning rate; empty before the pilots ran.

    They train at mixed rates with the same budget, hold back a share of the training samples, and use seeds of their
    own. While the best learning rate is the smallest or the largest, the next one is tried.
    """
    rounds = rounds_of(task, method, MIXED, store)
    if rounds is None:
        return {}

    def at(lr: float) -> list[RunConfig]:
        return [
            task.run(method, MIXED, rounds=rounds, lr=lr, seed=SEARCH_SEED + n, validation=VALIDATION)
            for n in range(task.search_seeds)
        ]

    runs = {lr: at(lr) for lr in task.lrs}
    while all(store.get(run) is not None for some in runs.values() for run in some):
        best = _best(runs, store)
        if best not in (min(runs), max(runs)):
            break
        further = best / 2 if best == min(runs) else best * 2
        runs[further] = at(further)
    return dict(sorted(runs.items()))


def _best(runs: dict[float, list[RunConfig]], store: Store) -> float:
    return max(runs, key=lambda lr: validated([store.get(run) for run in runs[lr]]))


def validated(results: Sequence[Result | None]) -> float:
    """Return the mean accuracy on the held-back samples at the end of runs; NaN if one was not run."""
    return float(
        np.mean([np.nan if one is None else np.nanmean(one.values("val_accuracy")[-LAST:]) for one in results])
    )


def learning_rate(task: Task, method: str, store: Store) -> float | None:
    """Return the learning rate of a method; None while its search is not finished."""
    task = TASKS[task.search] if task.search else task
    runs = search_runs(task, method, store)
    if not runs or any(store.get(run) is None for some in runs.values() for run in some):
        return None
    return _best(runs, store)


def exponent_runs(task: Task, store: Store) -> dict[str, list[RunConfig]]:
    """Return the runs that choose the exponent of importance draws, and FIARSE's; empty before the others ran.

    They train at the hard rates and hold back samples as the search for learning rates does.
    """

    def at(method: str, **settings: float) -> list[RunConfig]:
        rounds, lr = rounds_of(task, method, HARD, store), learning_rate(task, method, store)
        if rounds is None or lr is None:
            return []
        runs = [
            task.run(method, HARD, rounds=rounds, lr=lr, seed=SEARCH_SEED + n, validation=VALIDATION)
            for n in range(EXPONENT_SEEDS)
        ]
        return [replace(run, method=replace(run.method, **settings)) for run in runs]

    draws = {f"{p:g}": at(IMPORTANCE if p == 1.0 else SQUARED, exponent=p) for p in EXPONENTS}
    return {label: runs for label, runs in (draws | {"FIARSE": at("FIARSE")}).items() if runs}


def train(task: Task, columns: Sequence[str], store: Store, sweep: Sweep) -> None:
    """Train everything that the table of a task needs."""
    searched = TASKS[task.search] if task.search else task
    sweep([task.pilot(method, column) for column in columns for method in task.methods])
    sweep([searched.pilot(method, MIXED) for method in task.methods])
    while missing := [
        run
        for method in task.methods
        for some in search_runs(searched, method, store).values()
        for run in some
        if store.get(run) is None
    ]:
        if not sweep(missing):
            return
    lrs = {method: learning_rate(task, method, store) for method in task.methods}
    rounds = {(method, column): rounds_of(task, method, column, store) for method in task.methods for column in columns}
    sweep(
        [
            task.run(method, column, rounds=count, lr=lr, seed=seed)
            for column in columns
            for seed in task.seeds
            for method, lr in lrs.items()
            if lr is not None and (count := rounds[method, column]) is not None
        ]
    )
    if task is TASKS["lenet"]:
        sweep([run for runs in exponent_runs(task, store).values() for run in runs])
