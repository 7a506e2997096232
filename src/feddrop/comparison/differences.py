"""Differences between two sets of runs, one per seed. Runs with the same seed share data split, channels and masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from feddrop.comparison.reached import Spent


class Differences(NamedTuple):
    """Differences by seed.

    Attributes:
        values: one per seed that can be compared.
        bounds: for each value, whether it is only a bound: the true difference is further from 0.
        ran: seeds with which both sides were run, comparable or not.
    """

    values: tuple[float, ...]
    bounds: tuple[bool, ...]
    ran: int


def matched(above: Sequence[float | None], below: Sequence[float | None]) -> tuple[float, ...]:
    """Return ``above - below`` for every seed with which both were run.

    Args:
        above: one value per seed; None where the seed was not run.
        below: likewise, seeds in the same order.

    Example:
        >>> matched([3.0, 5.0, None], [1.0, 2.0, 2.0])
        (2.0, 3.0)
    """
    return tuple(a - b for a, b in zip(above, below, strict=True) if a is not None and b is not None)


def spent_differences(more: Sequence[Spent | None], less: Sequence[Spent | None]) -> Differences:
    """Return ``more - less`` by seed, with bounds where one side never reached the target.

    A run that never reached the target would have spent at least what it spent by its end. The difference is then a
    bound, and it is kept only if it points away from 0: *at least 3 more* is evidence, *at least 3 fewer* is not. A
    seed with which neither side reached the target gives no difference.

    Args:
        more: the side that is claimed to spend more, one entry per seed; None where the seed was not run.
        less: the other side, seeds in the same order.

    Example:
        >>> spent_differences([Spent(np.inf, 40.0), Spent(12.0, 40.0)], [Spent(10.0, 40.0), Spent(9.0, 40.0)])
        Differences(values=(30.0, 3.0), bounds=(True, False), ran=2)
    """
    values, bounds, ran = [], [], 0
    for one, other in zip(more, less, strict=True):
        if one is None or other is None:
            continue
        ran += 1
        never, other_never = np.isinf(one.until), np.isinf(other.until)
        difference = (one.by_end if never else one.until) - (other.by_end if other_never else other.until)
        if np.isnan(difference) or (never and other_never):
            continue
        if (never and difference <= 0) or (other_never and difference >= 0):
            continue
        values.append(difference)
        bounds.append(bool(never or other_never))
    return Differences(tuple(values), tuple(bounds), ran)
