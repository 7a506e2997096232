"""Compare runs over seeds: what counts as reached, differences by seed, and verdicts. NumPy only.

1. :func:`first_reached` and :func:`spent_until` read off a run when it reached a target and what it had spent by then.
2. :func:`matched` and :func:`spent_differences` subtract two sets of runs seed by seed.
3. :func:`judge` says whether the differences exceed the noise, :func:`outcome` sums up several comparisons.

Example:
    >>> from feddrop.compare import Comparison, judge, matched
    >>> ours, theirs = [71.0, 72.5, 71.5], [69.0, 70.0, 69.0]  # accuracy in %, one value per seed
    >>> (answer,) = judge([Comparison("rate 0.3", matched(ours, theirs))])
    >>> print(f"{answer.mean:.2f} ± {answer.margin:.2f}: {answer.says}")
    2.33 ± 0.72: yes
"""

from feddrop.compare.differences import Differences, matched, spent_differences
from feddrop.compare.reached import Spent, first_reached, running_mean, spent_until
from feddrop.compare.verdicts import (
    FAILS,
    FEW_SEEDS,
    HOLDS,
    IN_NOISE,
    LEAST_SEEDS,
    NO,
    NOT_REACHED,
    NOT_RUN,
    PARTLY,
    REASONS,
    UNDECIDED,
    YES,
    Answer,
    Comparison,
    judge,
    outcome,
    reason,
)

__all__ = [
    "FAILS",
    "FEW_SEEDS",
    "HOLDS",
    "IN_NOISE",
    "LEAST_SEEDS",
    "NO",
    "NOT_REACHED",
    "NOT_RUN",
    "PARTLY",
    "REASONS",
    "UNDECIDED",
    "YES",
    "Answer",
    "Comparison",
    "Differences",
    "Spent",
    "first_reached",
    "judge",
    "matched",
    "outcome",
    "reason",
    "running_mean",
    "spent_differences",
    "spent_until",
]
