"""The one rule by which the paper's claims are judged.

A claim is asked at one or more *points* (a rate, a deadline, a network). At a point the runs that are compared share a
seed, so that every seed gives one difference, counted positive where it is as the claim says. With n seeds, mean d and
standard error e, the margin is m = t · e, where t is the two-sided 95 % point of Student's distribution. The spread is
pooled over the points of a claim that are of one kind (``pool``): with three seeds each, two points have 4 degrees of
freedom and t = 2.78, one has 2 and t = 4.30. No correction is made for the number of points. What is counted in whole
steps (``grain``: rounds, or the bytes and seconds of a round) is known to half a step only, so that the spread of a
difference is taken as at least that of two roundings, a step over √6: three seeds that agree by chance prove nothing.

A point answers

- *yes* if d > m,
- *no* if d < -m,
- *undecided* otherwise, and always with fewer than three seeds.

A point that asks whether two things are alike (``within``) answers yes if |d| + m is at most the tolerance that is
stated, no if |d| - m is above it. A point without chance (a count of bytes, an algebraic fact) answers for certain. One
that is estimated from many draws in place of seeds (``estimate``) has twice its standard error for a margin.
An undecided point says why: *not run* without any seed, *few seeds* if fewer than three were run, *not reached* if
enough were run but fewer than three came to what is compared, *within the noise* otherwise.

A claim then

- *holds* if every point says yes,
- *does not hold* if a point says no and none says yes,
- *holds in part* if a point says yes, but not every one does,
- is *undecided* if no point says yes or no, for the best of the reasons that its points give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

HOLDS, PARTLY, UNDECIDED, FAILS = "holds", "holds in part", "undecided", "does not hold"
YES, NO = "yes", "no"
REASONS = IN_NOISE, FEW_SEEDS, NOT_REACHED, NOT_RUN = "within the noise", "few seeds", "not reached", "not run"
"""Why a point or a claim is undecided, the best reason first."""
LEAST_SEEDS = 3
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
"""Two-sided 95 % points of Student's distribution with 1, 2, ... degrees of freedom; beyond, the last is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One question that a claim is asked.

    Attributes:
        at: where: a rate, a deadline, a network.
        differences: one a seed, positive as the claim says; empty where nothing was run.
        unit: of the differences.
        digits: with which they are shown.
        pool: points of one kind, whose spread is pooled; within a claim.
        grain: the step in which both sides are counted; 0 for a measure.
        ran: seeds with which both sides were run, whether they give a difference or not.
        bound: ``"≥"`` or ``"≤"`` where a side was not reached within the rounds, so that the truth is further from 0.
        within: for "alike": the tolerance.
        estimate: mean and standard error over many draws, in place of differences by seed.
        certain: the answer, where there is no chance in it.
    """

    at: str
    differences: tuple[float, ...] = ()
    unit: str = "points"
    digits: int = 2
    pool: str = ""
    grain: float = 0.0
    ran: int = 0
    bound: str = ""
    within: float | None = None
    estimate: tuple[float, float] | None = None
    certain: bool | None = None


class Answer(NamedTuple):
    """What a point says.

    Attributes:
        point: the question.
        mean: of the differences; NaN without any.
        error: standard error of the mean, from the pooled spread; NaN with fewer than two seeds.
        margin: what the mean is held against; NaN likewise.
        says: ``"yes"``, ``"no"`` or ``"undecided"``.
    """

    point: Point
    mean: float
    error: float
    margin: float
    says: str

    @property
    def seeds(self) -> int:
        """How many seeds were compared."""
        return len(self.point.differences)

    @property
    def why(self) -> str:
        """Why the answer is undecided; empty if it is not."""
        if self.says != UNDECIDED:
            return ""
        if self.seeds >= LEAST_SEEDS or self.point.estimate is not None:
            return IN_NOISE
        ran = max(self.point.ran, self.seeds)
        return NOT_REACHED if ran >= LEAST_SEEDS else FEW_SEEDS if ran else NOT_RUN

    @property
    def leaning(self) -> str:
        """Where too few seeds point to; empty if the answer is not undecided for want of seeds, or there are none."""
        if self.why != FEW_SEEDS or not self.seeds:
            return ""
        good = abs(self.mean) <= self.point.within if self.point.within is not None else self.mean > 0
        return YES if good else NO


class Verdict(NamedTuple):
    """What became of one of the paper's claims.

    Attributes:
        claim: its name.
        answers: point by point.
        note: what else was measured, in a sentence.
    """

    claim: str
    answers: tuple[Answer, ...]
    note: str = ""

    @property
    def outcome(self) -> str:
        """Holds, holds in part, undecided or does not hold."""
        return sum_up([answer.says for answer in self.answers])


def verdict(claim: str, points: Sequence[Point], note: str = "") -> Verdict:
    """Judge a claim by its points."""
    spread = {pool: _pooled([p for p in points if p.pool == pool]) for pool in {p.pool for p in points}}
    return Verdict(claim, tuple(_answer(point, *spread[point.pool]) for point in points), note)


def sum_up(says: Sequence[str]) -> str:
    """Return the outcome of a claim from what its points say."""
    if YES not in says:
        return FAILS if NO in says else UNDECIDED
    return HOLDS if all(one == YES for one in says) else PARTLY


def reason(answers: Sequence[Answer]) -> str:
    """Return why a claim is undecided, in a word or two; empty if it is not."""
    if sum_up([answer.says for answer in answers]) != UNDECIDED:
        return ""
    whys = {answer.why for answer in answers}
    return next((why for why in REASONS if why in whys), NOT_RUN)


def matched(claimed_above: Sequence[float | None], other: Sequence[float | None]) -> tuple[float, ...]:
    """Return the differences of two rows of results by seed, where both were run."""
    return tuple(a - b for a, b in zip(claimed_above, other, strict=True) if a is not None and b is not None)


def _pooled(points: Sequence[Point]) -> tuple[float, int]:
    """Return the standard deviation over seeds, and its degrees of freedom."""
    freedom = sum(max(0, len(p.differences) - 1) for p in points)
    if not freedom:
        return math.nan, 0
    squares = sum(float(np.var(p.differences)) * len(p.differences) for p in points if p.differences)
    return math.sqrt(squares / freedom), freedom


def _answer(point: Point, spread: float, freedom: int) -> Answer:
    if point.certain is not None:
        return Answer(point, math.nan, math.nan, math.nan, YES if point.certain else NO)
    if point.estimate is not None:
        mean, error = point.estimate
        return Answer(point, mean, error, 2.0 * error, _says(point, mean, 2.0 * error))
    count = len(point.differences)
    mean = float(np.mean(point.differences)) if count else math.nan
    error = max(spread, point.grain / math.sqrt(6.0)) / math.sqrt(count) if count > 1 and freedom else math.nan
    margin = STUDENT[min(freedom, len(STUDENT)) - 1] * error if freedom else math.nan
    return Answer(point, mean, error, margin, _says(point, mean, margin) if count >= LEAST_SEEDS else UNDECIDED)


def _says(point: Point, mean: float, margin: float) -> str:
    if point.within is not None:
        if abs(mean) + margin <= point.within:
            return YES
        return NO if abs(mean) - margin > point.within else UNDECIDED
    if abs(mean) <= margin:
        return UNDECIDED
    return YES if mean > 0 else NO
