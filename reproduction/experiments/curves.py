"""Rounds to converge, read off finished runs: by seed, each against its own seed's run without dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feddrop.compare import first_reached, running_mean, spent_until
from reproduction.experiments.resources import SCHEMES, Spot, no_dropout
from reproduction.framework.experiment import Lookup, by_seed
from reproduction.framework.scales import Scale
from reproduction.framework.store import Result

SHARES = (0.5, 0.9, 0.95, 0.98)
"""Shares of the plateau: the best running mean without dropout, whether or not it is still rising."""
HALF, CONVERGED = 0, 2
"""Which of the shares is half-way, and which is what "converged" means."""
WINDOW = 5


class Reading(NamedTuple):
    """One run: the round at which each share of the plateau is reached, and what was spent until then.

    Attributes:
        rounds: infinite where a share is never reached.
        seconds: the cell's time; NaN where it is not known.
        megabytes: sent both ways by all devices.
        passes: computed by all devices, in passes over their data by the whole network: Σ (1-γ).
        rate: mean rate.
        trained: rounds that were trained; what they took in seconds, megabytes and passes follows.
        all_seconds: of all rounds.
        all_megabytes: likewise.
        all_passes: likewise.
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


class Curves(NamedTuple):
    """What one panel shows.

    Attributes:
        spots: points of the figure.
        schemes: readings by scheme, at every point, by seed; None where it was not run.
        base: readings without dropout, by seed.
        seeds: the seeds, in order.
        limit: rounds that were trained.
        base_s: seconds of a round without dropout inside the cell, on average; NaN where it is not known.
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
    """Read a run against a plateau; None if either is missing."""
    if result is None or plateau is None:
        return None
    rounds = tuple(convergence_round(result, plateau, share) for share in SHARES)
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
        all_seconds=float(seconds.sum()),
        all_megabytes=float(sent.sum()),
        all_passes=float(passes.sum()),
    )


def _until(spent: npt.NDArray[np.float64], rounds: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(spent_until(spent, r).until for r in rounds)


def curves_of(
    scale: Scale, find: Lookup, spots: list[Spot], scenario: str, whole_s: Sequence[Sequence[float]] = ()
) -> Curves:
    """Read the rounds off the runs of one scenario.

    Args:
        scale: which seeds there are, and how many rounds.
        find: finds finished runs.
        spots: points of the figure.
        scenario: which network.
        whole_s: seconds of every round without dropout inside the cell, by seed.
    """
    base = by_seed(find, no_dropout(scale, scenario), scale.seeds)
    plateaus = [None if result is None else plateau_of(result) for result in base]

    def readings(results: list[Result | None]) -> list[Reading | None]:
        return [reading(result, plateau) for result, plateau in zip(results, plateaus, strict=True)]

    plain = readings(base)
    if whole_s:
        plain = [
            r and r._replace(seconds=_until(np.array(s), r.rounds), all_seconds=float(np.sum(s)))
            for r, s in zip(plain, whole_s, strict=True)
        ]
    return Curves(
        spots=spots,
        schemes={s: [readings(by_seed(find, spot.runs[s], scale.seeds)) for spot in spots] for s in SCHEMES},
        base=plain,
        seeds=scale.seeds,
        limit=scale.settings[scenario].figure_rounds,
        base_s=float(np.mean([np.mean(s) for s in whole_s])) if whole_s else np.nan,
    )
