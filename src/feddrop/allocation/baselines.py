"""Schemes to compare with: the shares are given, the rates are the best for them; or there is no dropout at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from feddrop.allocation.feasible import everyone
from feddrop.allocation.problem import BoolArray, FloatArray, total
from feddrop.allocation.roots import BAND
from feddrop.allocation.solution import Allocation, AnyProblem, Status, finish, objective
from feddrop.seeds import generator


def equal(problem: AnyProblem, active: BoolArray) -> Allocation:
    """Split the band equally among the active devices."""
    share = np.where(active, BAND / total(active), 0.0)
    return finish(problem, share=share, active=active, method="equal", status=Status.FEASIBLE)


def random(problem: AnyProblem, active: BoolArray, *, seed: int) -> Allocation:
    """The paper's bandwidth-aware scheme: random shares, optimal rates.

    The shares are uniform over all splits with which every device can still meet its deadline and budget at rate θ: a
    split drawn without regard to that would mostly have no answer.
    """
    least, spare = _least(problem, active)
    part = np.where(active, generator(seed).standard_exponential(problem.shape), 0.0)
    share = least + spare * part / total(part)
    return finish(problem, share=share, active=active, method="random", status=Status.FEASIBLE)


def fixed(problem: AnyProblem, active: BoolArray) -> Allocation:
    """Every device at the highest rate of the problem, exactly; the band in proportion to what each needs for that."""
    least, _ = _least(problem, active)
    share = least * (BAND / total(least))
    given = finish(problem, share=share, active=active, method="fixed", status=Status.FIXED)
    rate = np.where(active, problem.max_rate, 1.0)
    return _with_rate(given, rate)


def none(problem: AnyProblem) -> Allocation:
    """The paper's ideal without dropout: rate 0, and to every present device the band that it needs for that.

    The shares may add up to more than the band there is: the paper assumes "sufficient bandwidth". A device that
    would be late or over its budget with any share gets an equal one. The status says that this is an ideal.
    """
    active = everyone(problem)
    need = problem.least_share(np.ones(()))
    even = 1.0 / total(active)
    share = np.where(active, np.where(np.isinf(need), even, np.maximum(need, even)), 0.0)
    ideal = finish(problem, share=share, active=active, method="none", status=Status.IDEAL)
    return _with_rate(ideal, np.where(active, 0.0, 1.0))


def _least(problem: AnyProblem, active: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Least shares of the active devices, and what is left of the band, ``[..., 1]``."""
    least = np.where(active, problem.least_share(1.0 / (1.0 - problem.max_rate)), 0.0)
    used = total(least)
    least = least * np.minimum(1.0, BAND / used)
    return least, np.maximum(BAND - used, 0.0)


def _with_rate(allocation: Allocation, rate: FloatArray) -> Allocation:
    value = objective(allocation.problem, rate, allocation.active)
    return replace(allocation, rate=rate, objective=value)
