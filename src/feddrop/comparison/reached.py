"""When a run reached a target, and what it had spent by then: rounds, seconds, joules or bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


class Spent(NamedTuple):
    """What one run spent to reach a target.

    Attributes:
        until: the amount when the target was reached; infinite if it never was.
        by_end: the amount at the end of the run, a lower bound if the target was never reached.
    """

    until: float
    by_end: float


def running_mean(values: npt.ArrayLike, window: int = 1) -> FloatArray:
    """Return the mean over the last ``window`` rounds, from round ``window`` on.

    A run with fewer rounds gives one value, the mean of all.

    Args:
        values: one value per round, ``[rounds]``.
        window: rounds to average over.

    Returns:
        ``[max(1, rounds - window + 1)]``.
    """
    array = np.asarray(values, dtype=np.float64)
    window = min(window, len(array))
    return np.convolve(array, np.ones(window) / window, mode="valid")


def first_reached(values: npt.ArrayLike, target: float, window: int = 1) -> float:
    """Return the first round whose running mean is at least ``target``, or infinity.

    Args:
        values: one value per round, ``[rounds]``; higher is better.
        target: the value to reach.
        window: rounds to average over.

    Example:
        >>> first_reached([0.1, 0.4, 0.3, 0.5, 0.5], target=0.45, window=2)
        5.0
    """
    smooth = running_mean(values, window)
    reached = np.flatnonzero(smooth >= target)
    return float(reached[0] + len(np.asarray(values)) - len(smooth) + 1) if len(reached) else np.inf


def spent_until(per_round: npt.ArrayLike, reached: float) -> Spent:
    """Return what was spent up to and including a round, and by the end of the run.

    Args:
        per_round: seconds, joules or bytes of every round, ``[rounds]``.
        reached: the round in which the target was reached, counted from 1; infinite if it never was.

    Example:
        >>> spent_until([2.0, 2.0, 3.0], reached=2)
        Spent(until=4.0, by_end=7.0)
    """
    clock = np.cumsum(np.asarray(per_round, dtype=np.float64))
    return Spent(np.inf if np.isinf(reached) else float(clock[int(reached) - 1]), float(clock[-1]))
