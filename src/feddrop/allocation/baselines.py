"""Schemes to compare the optimum with: given shares with the best rates, fixed rates, no dropout, and an ideal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from feddrop.allocation.feasible import everyone, settle
from feddrop.allocation.problem import BoolArray, FloatArray, total
from feddrop.allocation.roots import BAND
from feddrop.allocation.solution import Allocation, AnyProblem, Status, finish, objective
from feddrop.errors import ConfigError
from feddrop.seeds import generator


@dataclass(frozen=True, slots=True)
class Equal:
    """An equal split of the band over the active devices, with the lowest rates for it."""

    name: ClassVar[str] = "equal"

    def solve(self, problem: AnyProblem, policy: str = "error") -> Allocation:
        """Split the band; see :meth:`feddrop.allocation.scheme.Scheme.solve`."""
        problem, active = settle(problem, policy, equal=True)
        share = np.where(active, BAND / total(active), 0.0)
        return finish(problem, share=share, active=active, scheme=self.name, status=Status.FEASIBLE)


@dataclass(frozen=True, slots=True)
class Random:
    """The paper's bandwidth-aware scheme: random shares with the lowest rates for them.

    The shares are uniform over all splits with which every device can still meet its deadline and budget at rate θ;
    most other splits are infeasible.

    Attributes:
        seed: of the split, at least 0.
    """

    name: ClassVar[str] = "random"

    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**128:
            raise ConfigError(f"seed is {self.seed}; it must be at least 0 and below 2**128.")

    def solve(self, problem: AnyProblem, policy: str = "error") -> Allocation:
        """Draw the split; see :meth:`feddrop.allocation.scheme.Scheme.solve`."""
        problem, active = settle(problem, policy)
        least, spare = _least(problem, active)
        part = np.where(active, generator(self.seed).standard_exponential(problem.shape), 0.0)
        share = least + spare * part / total(part)
        return finish(problem, share=share, active=active, scheme=self.name, status=Status.FEASIBLE)


@dataclass(frozen=True, slots=True)
class Fixed:
    """The given rates, with shares in proportion to what each device needs at its rate.

    Attributes:
        rate: γ, a number or one per device; at most the problem's ``max_rate``.
    """

    name: ClassVar[str] = "fixed"

    rate: npt.ArrayLike

    def solve(self, problem: AnyProblem, policy: str = "error") -> Allocation:
        """Split the band; see :meth:`feddrop.allocation.scheme.Scheme.solve`."""
        return _at_rates(problem, self._rates(problem), policy, self.name, Status.FIXED)

    def _rates(self, problem: AnyProblem) -> FloatArray:
        try:
            given = np.asarray(self.rate, dtype=np.float64)
            rates = np.broadcast_to(given, problem.shape)
        except (TypeError, ValueError):
            raise ConfigError(f"The fixed rate is {self.rate!r}; it must be a number, or one per device.") from None
        caps = np.broadcast_to(problem.max_rate, problem.shape)
        for place in np.argwhere(~((rates >= 0) & (rates <= caps)))[:1]:
            where = tuple(place)
            raise ConfigError(
                f"The fixed rate of device {where[-1]} is {rates[where]:g}; it must be from 0 to max_rate, "
                f"{caps[where]:g}. Change one of them."
            )
        return given


@dataclass(frozen=True, slots=True)
class Common:
    """One rate for all devices, the lowest at which everyone meets its deadline and budget within the band."""

    name: ClassVar[str] = "common"

    def solve(self, problem: AnyProblem, policy: str = "error") -> Allocation:
        """Find the rate; see :meth:`feddrop.allocation.scheme.Scheme.solve`."""
        top = np.min(np.broadcast_to(problem.max_rate, problem.shape), axis=-1, keepdims=True)
        able, active = settle(replace(problem, max_rate=top), policy)
        able = replace(able, present=active)

        def needed(rate: FloatArray) -> FloatArray:
            return total(np.where(active, able.least_share(1.0 / (1.0 - rate)), 0.0))

        low, high = np.zeros_like(top), top
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            fits = needed(middle) <= BAND
            low, high = np.where(fits, low, middle), np.where(fits, middle, high)
        rate = np.where(needed(np.zeros_like(top)) <= BAND, 0.0, high)
        found = _at_rates(able, np.broadcast_to(rate, problem.shape), policy, self.name, Status.FIXED)
        plain = replace(found.problem, max_rate=problem.max_rate, present=problem.present)
        return replace(found, problem=plain, left_out=everyone(problem) & ~found.active, status=Status.COMMON)


_HALVINGS = 50
"""Of the range of the common rate."""


@dataclass(frozen=True, slots=True)
class NoDropout:
    """No dropout inside the cell: rate 0, with shares in proportion to what each device needs at rate 0.

    Often the band is too narrow for that. The policy then decides: with ``"stretch"`` everyone waits, and these shares
    give the shortest possible round; with ``"leave-out"`` the fewest devices are left out.
    """

    name: ClassVar[str] = "no-dropout"

    def solve(self, problem: AnyProblem, policy: str = "error") -> Allocation:
        """Split the band; see :meth:`feddrop.allocation.scheme.Scheme.solve`."""
        return _at_rates(problem, np.zeros(()), policy, self.name, Status.NO_DROPOUT)


@dataclass(frozen=True, slots=True)
class Ideal:
    """The paper's ideal without dropout, which ignores the band: rate 0, and the share that each device needs for it.

    The shares may add up to more than the band: the paper assumes "sufficient bandwidth". A device that would be late
    or over its budget with any share gets an equal one. No policy applies; the status is ``Status.IDEAL``. For no
    dropout within the band, see :class:`NoDropout`.
    """

    name: ClassVar[str] = "ideal"

    def solve(self, problem: AnyProblem, policy: str = "error") -> Allocation:  # noqa: ARG002
        """Give each device its share; see :meth:`feddrop.allocation.scheme.Scheme.solve`."""
        active = everyone(problem)
        need = problem.least_share(np.ones(()))
        even = 1.0 / total(active)
        share = np.where(active, np.where(np.isinf(need), even, np.maximum(need, even)), 0.0)
        ideal = finish(problem, share=share, active=active, scheme=self.name, status=Status.IDEAL)
        return _with_rate(ideal, np.where(active, 0.0, 1.0))


def _at_rates(problem: AnyProblem, rates: FloatArray, policy: str, scheme: str, status: Status) -> Allocation:
    """Split the band in proportion to what each device needs at its given rate."""
    max_rate = problem.max_rate
    problem, active = settle(replace(problem, max_rate=rates), policy, rate=_RATES[status])
    least, _ = _least(problem, active)
    share = least * (BAND / total(least))
    found = finish(problem, share=share, active=active, scheme=scheme, status=status)
    found = _with_rate(found, np.where(active, problem.max_rate, 1.0))
    return replace(found, problem=replace(problem, max_rate=max_rate))


_RATES = {Status.FIXED: "rate", Status.NO_DROPOUT: "no dropout"}
"""What :class:`~feddrop.allocation.feasible.Shortfall` calls the rates of a scheme."""


def _least(problem: AnyProblem, active: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return the least shares of the active devices, ``[..., num_devices]``, and the remaining band, ``[..., 1]``."""
    least = np.where(active, problem.least_share(1.0 / (1.0 - problem.max_rate)), 0.0)
    used = total(least)
    least = least * np.minimum(1.0, BAND / used)
    return least, np.maximum(BAND - used, 0.0)


def _with_rate(allocation: Allocation, rate: FloatArray) -> Allocation:
    value = objective(allocation.problem, rate, allocation.active)
    return replace(allocation, rate=rate, objective=value)
