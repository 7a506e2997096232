"""Compare runs over seeds: what counts as one experiment and as reached, differences by seed, and verdicts. No torch.

1. :func:`identity` determines which runs are seeds of one experiment.
2. :func:`first_reached` and :func:`spent_until` find when a run reached a target, and what it had spent by then.
3. :func:`matched` and :func:`spent_differences` subtract two sets of runs seed by seed.
4. :func:`judge` says whether the differences exceed their margin, :func:`outcome` sums up several comparisons.

Example:
    >>> from feddrop.comparison import Comparison, judge, matched
    >>> ours, theirs = [71.0, 72.5, 71.5], [69.0, 70.0, 69.0]  # accuracy in %, one value per seed
    >>> (answer,) = judge([Comparison("rate 0.3", matched(ours, theirs))])
    >>> print(f"{answer.mean:.2f} ± {answer.margin:.2f}: {answer.says}")
    2.33 ± 0.72: yes
"""

from feddrop.comparison.differences import Differences, matched, spent_differences
from feddrop.comparison.identity import Identity, identity, identity_of
from feddrop.comparison.reached import Spent, first_reached, running_mean, spent_until
from feddrop.comparison.verdicts import (
    FAILS,
    FEW_SEEDS,
    HOLDS,
    LEAST_SEEDS,
    NO,
    NOT_REACHED,
    NOT_RUN,
    PARTLY,
    REASONS,
    UNDECIDED,
    WITHIN_MARGIN,
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
    "LEAST_SEEDS",
    "NO",
    "NOT_REACHED",
    "NOT_RUN",
    "PARTLY",
    "REASONS",
    "UNDECIDED",
    "WITHIN_MARGIN",
    "YES",
    "Answer",
    "Comparison",
    "Differences",
    "Identity",
    "Spent",
    "first_reached",
    "identity",
    "identity_of",
    "judge",
    "matched",
    "outcome",
    "reason",
    "running_mean",
    "spent_differences",
    "spent_until",
]
