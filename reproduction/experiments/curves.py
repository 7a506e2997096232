"""Rounds to converge: every run against the run without dropout of the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feddrop.comparison import first_reached, running_mean, spent_until
from reproduction.experiments.resources import SCHEMES, Spot, no_dropout
from reproduction.framework.experiment import Lookup, by_seed, percents
from reproduction.framework.scales import Scale
from reproduction.framework.store import Result
from reproduction.framework.traced import Traced, runs_of

SHARES = (0.5, 0.9, 0.95, 0.98)
"""Shares of the plateau, which is the best running mean without dropout, even if it is still rising."""
HALF, CONVERGED = 0, 2
"""Indices of the shares that mean "half-way" and "converged"."""
WINDOW = 5


class Reading(NamedTuple):
    """One run: the rounds at which it reached each share of the plateau, and what it had spent by then.

    Attributes:
        rounds: infinite if a share was never reached.
        seconds: time in the cell; NaN if unknown.
        megabytes: sent by all devices, both ways.
        passes: computed by all devices, in passes of the full network over their data: Σ (1-γ).
        rate: mean rate.
        trained: number of rounds.
        all_seconds: total over the rounds, as are the next two.
        all_megabytes: likewise.
        all_passes: likewise.
        accuracy: at the end, in %.
    """

    rounds: tuple[float, ...]
    seconds: tuple[float, ...]
    megabytes: tuple[float, ...]
    passes: tuple[float, ...]
    rate: float
    trained: int
    all_seconds: float
    all_megabytes: float
    all_passes: float
    accuracy: float | None = None


class Curves(NamedTuple):
    """The data of one panel.

    Attributes:
        spots: points of the figure.
        schemes: readings by scheme, point and seed; None where it was not run.
        base: readings without dropout, by seed.
        seeds: the seeds, in order.
        limit: number of rounds.
        base_s: mean seconds per round without dropout in the cell; NaN if unknown.
    """

    spots: list[Spot]
    schemes: dict[str, list[list[Reading | None]]]
    base: list[Reading | None]
    seeds: tuple[int, ...]
    limit: int
    base_s: float


def convergence_round(result: Result, plateau: float, share: float) -> float:
    """Return the first round at which the running mean of test accuracy reaches a share of the plateau, or infinity."""
    return first_reached(result.values("test_accuracy"), share * plateau, WINDOW)


def plateau_of(result: Result) -> float:
    """Return the best running mean of test accuracy."""
    return float(running_mean(result.values("test_accuracy"), WINDOW).max())


def reading(result: Result | None, plateau: float | None) -> Reading | None:
    """Return the reading of a run against a plateau; None if either is missing."""
    if result is None or plateau is None:
        return None
    rounds = tuple(Traced(convergence_round(result, plateau, share), [result.key]) for share in SHARES)
    seconds = result.values("latency_s")
    sent = (result.values("push_bytes") + result.values("pull_bytes")) / 1e6
    passes = (1.0 - result.values("mean_rate")) * result.values("devices")
    return Reading(
        rounds=rounds,
        seconds=_until(seconds, rounds),
        megabytes=_until(sent, rounds),
        passes=_until(passes, rounds),
        rate=float(np.nanmean(result.values("mean_rate"))),
        trained=len(sent),
        all_seconds=Traced(float(seconds.sum()), [result.key]),
        all_megabytes=Traced(float(sent.sum()), [result.key]),
        all_passes=Traced(float(passes.sum()), [result.key]),
        accuracy=percents([result])[0],
    )


def _until(spent: npt.NDArray[np.float64], rounds: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(Traced(spent_until(spent, r).until, runs_of(r)) for r in rounds)


def curves_of(
    scale: Scale, find: Lookup, spots: list[Spot], scenario: str, full_s: Sequence[Sequence[float]] = ()
) -> Curves:
    """Return the readings of one scenario.

    Args:
        scale: the scale.
        find: looks up finished runs.
        spots: points of the figure.
        scenario: underfitting or overfitting.
        full_s: seconds of every round without dropout in the cell, by seed.
    """
    base = by_seed(find, no_dropout(scale, scenario), scale.seeds)
    plateaus = [None if result is None else plateau_of(result) for result in base]

    def readings(results: list[Result | None]) -> list[Reading | None]:
        return [reading(result, plateau) for result, plateau in zip(results, plateaus, strict=True)]

    plain = readings(base)
    if full_s:
        plain = [
            r and r._replace(seconds=_until(np.array(s), r.rounds), all_seconds=float(np.sum(s)))
            for r, s in zip(plain, full_s, strict=True)
        ]
    return Curves(
        spots=spots,
        schemes={s: [readings(by_seed(find, spot.runs[s], scale.seeds)) for spot in spots] for s in SCHEMES},
        base=plain,
        seeds=scale.seeds,
        limit=scale.settings[scenario].figure_rounds,
        base_s=float(np.mean([np.mean(s) for s in full_s])) if full_s else np.nan,
    )
