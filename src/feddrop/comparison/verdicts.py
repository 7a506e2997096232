"""How differences over seeds are judged.

A claim is tested by one or more *comparisons*, at different rates, deadlines or networks. In a comparison, runs that
share a seed give one difference, positive if it supports the claim. With n seeds, mean d and standard error e, the
margin is m = t · e, where t is the two-sided 95 % point of Student's distribution. A comparison answers

- *yes* if d > m,
- *no* if d < -m,
- *undecided* otherwise, and always with fewer than three seeds.

The spread is pooled over the comparisons of a claim with the same ``pool``: with three seeds each, two comparisons have
4 degrees of freedom and t = 2.78, one has 2 and t = 4.30. There is no correction for the number of comparisons. A
difference of counts (``step``: rounds, or the bytes and seconds of a round) is known to half a step only. Its spread is
at least that of two rounding errors, a step over √6, so that three seeds that agree by chance prove nothing.

A bound says that the true difference is further from 0. Its size depends on how long the run lasted, so it must not
count as spread. It therefore counts as at most the mean of the measured differences; with fewer than two of these, as
the smallest difference, if all point the same way. The margin is the one that this value, had it been measured, would
give. So a more favourable bound never turns *yes* into *undecided*, nor does a less favourable one *no*.

A comparison with a ``tolerance`` asks whether two things are alike: *yes* if abs(d) + m is at most the tolerance, *no*
if abs(d) - m is above it. A comparison without chance (a count of bytes, an algebraic fact) is ``certain``. An
``estimate`` from many draws instead of seeds has a margin of twice its standard error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

HOLDS, PARTLY, UNDECIDED, FAILS = "holds", "holds in part", "undecided", "does not hold"
YES, NO = "yes", "no"
REASONS = WITHIN_MARGIN, FEW_SEEDS, NOT_REACHED, NOT_RUN = "within the margin", "few seeds", "not reached", "not run"
"""Why a comparison is undecided, from the most to the least informative."""
LEAST_SEEDS = 3
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
"""Two-sided 95 % points of Student's distribution with 1, 2, ... degrees of freedom; the last is used beyond."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One test of a claim.

    Attributes:
        label: the rate, deadline or network at which the claim is tested.
        differences: one per seed, positive if it supports the claim; empty if nothing was run.
        bounds: for each difference, whether it is only a bound; empty if none is.
        unit: of the differences.
        digits: decimal places to show.
        pool: comparisons with the same pool share their spread.
        step: the unit in which both sides are counted; 0 for a measurement.
        ran: seeds with which both sides were run, comparable or not.
        tolerance: for "alike": the largest difference that counts as none.
        estimate: mean and standard error over many draws, instead of differences.
        certain: the answer, if no chance is involved.
    """

    label: str
    differences: tuple[float, ...] = ()
    bounds: tuple[bool, ...] = field(default=(), kw_only=True)
    unit: str = field(default="points", kw_only=True)
    digits: int = field(default=2, kw_only=True)
    pool: str = field(default="", kw_only=True)
    step: float = field(default=0.0, kw_only=True)
    ran: int = field(default=0, kw_only=True)
    tolerance: float | None = field(default=None, kw_only=True)
    estimate: tuple[float, float] | None = field(default=None, kw_only=True)
    certain: bool | None = field(default=None, kw_only=True)

    @property
    def sign(self) -> str:
        """``"≥"`` or ``"≤"`` if some differences are bounds; both if they point both ways."""
        pairs = zip(self.differences, self.bounds, strict=bool(self.bounds))
        return "".join(sorted({"≥" if value > 0 else "≤" for value, bound in pairs if bound}))


class Answer(NamedTuple):
    """The answer of a comparison.

    Attributes:
        comparison: what was asked.
        mean: mean difference; NaN without any.
        error: standard error of the mean, from the pooled spread; NaN with fewer than two seeds.
        margin: the least mean that counts; NaN likewise.
        says: ``"yes"``, ``"no"`` or ``"undecided"``.
    """

    comparison: Comparison
    mean: float
    error: float
    margin: float
    says: str

    @property
    def seeds(self) -> int:
        """Number of seeds compared."""
        return len(self.comparison.differences)

    @property
    def why(self) -> str:
        """Why the answer is undecided; empty otherwise."""
        if self.says != UNDECIDED:
            return ""
        if self.seeds >= LEAST_SEEDS or self.comparison.estimate is not None:
            return WITHIN_MARGIN
        ran = max(self.comparison.ran, self.seeds)
        return NOT_REACHED if ran >= LEAST_SEEDS else FEW_SEEDS if ran else NOT_RUN

    @property
    def leaning(self) -> str:
        """The side that too few seeds point to; empty if the answer is not undecided for lack of seeds."""
        if self.why != FEW_SEEDS or not self.seeds:
            return ""
        tolerance = self.comparison.tolerance
        return YES if (self.mean > 0 if tolerance is None else abs(self.mean) <= tolerance) else NO


def judge(comparisons: Sequence[Comparison]) -> tuple[Answer, ...]:
    """Answer the comparisons of one claim.

    Args:
        comparisons: those whose spread may be pooled, each with its ``pool``.

    Example:
        >>> (answer,) = judge([Comparison("rate 0.3", (1.0, 1.2, 0.9))])
        >>> answer.says
        'yes'
    """
    taken = [_Taken.of(one) for one in comparisons]
    pools = {one.pool for one in comparisons}
    freedom = {p: sum(t.freedom for c, t in zip(comparisons, taken, strict=True) if c.pool == p) for p in pools}
    squares = {p: sum(t.squares for c, t in zip(comparisons, taken, strict=True) if c.pool == p) for p in pools}
    return tuple(
        _answer(one, own.mean, squares[one.pool], freedom[one.pool])
        for one, own in zip(comparisons, taken, strict=True)
    )


def outcome(answers: Sequence[Answer]) -> str:
    """Sum up the answers to one claim.

    Returns:
        ``"holds"`` if every answer is yes; ``"does not hold"`` if one is no and none is yes; ``"holds in part"`` if
        some but not all are yes; else ``"undecided"``.
    """
    says = [answer.says for answer in answers]
    if YES not in says:
        return FAILS if NO in says else UNDECIDED
    return HOLDS if all(one == YES for one in says) else PARTLY


def reason(answers: Sequence[Answer]) -> str:
    """Return why a claim is undecided, the most informative reason; empty if it is not."""
    if outcome(answers) != UNDECIDED:
        return ""
    whys = {answer.why for answer in answers}
    return next((why for why in REASONS if why in whys), NOT_RUN)


class _Taken(NamedTuple):
    """A comparison's mean, its sum of squared deviations, and their degrees of freedom."""

    mean: float
    squares: float
    freedom: int

    @classmethod
    def of(cls, one: Comparison) -> _Taken:
        values = np.asarray(one.differences, dtype=np.float64)
        if not len(values):
            return cls(math.nan, 0.0, 0)
        if not any(one.bounds):
            return cls(float(np.mean(values)), float(np.var(values)) * len(values), len(values) - 1)
        bound = np.array(one.bounds)
        measured = values[~bound]
        same_side = bool((values > 0).all() or (values < 0).all())
        nearest = float(values[np.argmin(np.abs(values))]) if same_side else 0.0
        centre = float(measured.mean()) if len(measured) > 1 else nearest
        nearer = np.where(values > 0, np.minimum(values, max(centre, 0.0)), np.maximum(values, min(centre, 0.0)))
        values = np.where(bound, nearer, values)
        return cls(float(np.mean(values)), float(np.sum((values - centre) ** 2)), len(values) - 1)


def _answer(one: Comparison, mean: float, squares: float, freedom: int) -> Answer:
    if one.certain is not None:
        return Answer(one, math.nan, math.nan, math.nan, YES if one.certain else NO)
    if one.estimate is not None:
        mean, error = one.estimate
        return Answer(one, mean, error, 2.0 * error, _says(one, mean, 2.0 * error))
    count = len(one.differences)
    if not freedom:
        return Answer(one, mean, math.nan, math.nan, UNDECIDED)
    spread = max(math.sqrt(squares / freedom), one.step / math.sqrt(6.0))
    error = spread / math.sqrt(count) if count > 1 else math.nan
    margin = STUDENT[min(freedom, len(STUDENT)) - 1] * error
    return Answer(one, mean, error, margin, _says(one, mean, margin) if count >= LEAST_SEEDS else UNDECIDED)


def _says(one: Comparison, mean: float, margin: float) -> str:
    if one.tolerance is not None:
        if abs(mean) + margin <= one.tolerance:
            return YES
        return NO if abs(mean) - margin > one.tolerance else UNDECIDED
    if abs(mean) <= margin:
        return UNDECIDED
    return YES if mean > 0 else NO
