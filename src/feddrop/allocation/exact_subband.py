"""The optimum under subband noise, where a device's demand for band has no closed form.

The solver has the structure of :mod:`feddrop.allocation.exact`. At a price μ, Newton's method in log ρ finds, for each
device, the share at which the marginal value of band equals its price if only the deadline binds, and the one if only
the budget binds. If neither constraint is the larger one at its own share, both bind: at the kink between the two
shares, where they cross. An outer Newton iteration finds the price at which the shares fill the band.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from feddrop.allocation.problem import BoolArray, FloatArray, total
from feddrop.allocation.roots import BAND, clear, root
from feddrop.allocation.solution import Allocation, Status, finish
from feddrop.allocation.subband import NARROW, SubbandProblem


def deadline_side(p, x):
    return p.curves().sides(x)[0]


def energy_side(p, x):
    return p.curves().sides(x)[1]


def solve(problem: SubbandProblem, active: BoolArray) -> Allocation:
    """Return the optimal rates and shares; the problem must be feasible for the active devices."""
    low, high = (
        np.where(active, np.log(np.minimum(problem.least_share(z), 2.0)), NARROW)
        for z in (1.0 / (1.0 - problem.max_rate), np.ones(()))
    )
    market = _Market(problem, active, low, high)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        free, least = market.shares(np.asarray(1e150))[0], np.where(active, np.exp(low), 0.0)
        most, fewest = total(free), total(least)
        loose, tight = most <= BAND, fewest >= BAND
        s, passes = clear(market.demand, market.slope, _start(problem, active, low, high, tight), loose | tight)
        share = market.shares(s)[0]
        share = share * np.minimum(1.0, BAND / total(share))
        share = np.where(tight, least * (BAND / fewest), share)
        share = np.where(loose, free * (BAND / most), share)
        price = np.where(loose, 0.0, 1.0 / s**2)
    return finish(
        problem, share=share, active=active, scheme="exact", status=Status.OPTIMAL, iterations=passes, price=price
    )


class _Market:
    """The demand of the devices at a price; the last demand is the first guess at the next price."""

    def __init__(self, problem: SubbandProblem, active: BoolArray, low: FloatArray, high: FloatArray) -> None:
        self.active, self.low, self.high = active, low, high
        self.weight = np.broadcast_to(problem.weight, problem.shape)
        self.sides = partial(deadline_side, problem), partial(energy_side, problem)
        self.guess = [0.5 * (low + high)] * 2
        self.last: tuple[FloatArray, FloatArray] = (low, low)

    def shares(self, s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the demand at the price 1/s² and its derivative in log s, ``[..., num_devices]`` each."""
        self.guess[:] = by_deadline, by_energy = self._worth(0, s), self._worth(1, s)
        at_deadline, at_energy = ([side(np.exp(x)) for side in self.sides] for x in self.guess)
        first = at_deadline[0].z >= at_deadline[1].z
        both = ~first & (at_energy[0].z > at_energy[1].z)
        x = np.where(first, by_deadline, by_energy)
        if both.any():
            x = np.where(both, self._kink(by_deadline, by_energy), x)
        share = np.where(self.active, np.exp(x), 0.0)
        bend = np.where(first, at_deadline[0].bend, at_energy[1].bend)
        moving = ~both & (x > self.low) & (x < self.high)
        return share, np.where(moving, share * 2.0 / (1.0 - bend), 0.0)

    def demand(self, s: FloatArray) -> FloatArray:
        """Return the total demand at the price 1/s², ``[..., 1]``."""
        self.last = self.shares(s)
        return total(self.last[0])

    def slope(self, _: FloatArray) -> FloatArray:
        """Return the derivative of the total in log s."""
        return total(self.last[1])

    def _worth(self, which: int, s: FloatArray) -> FloatArray:
        """Return log ρ at which the value of band equals its price if only one of the two constraints binds."""

        def over(x: FloatArray) -> tuple[FloatArray, FloatArray]:
            side = self.sides[which](np.exp(x))
            return np.log(self.weight * side.fall) - x + 2 * np.log(s), side.bend - 1.0

        return root(over, self.low, self.high, self.guess[which])

    def _kink(self, by_deadline: FloatArray, by_energy: FloatArray) -> FloatArray:
        """Return log ρ at which the two constraints cross, between these."""
        sign = np.where(by_deadline < by_energy, 1.0, -1.0)

        def apart(x: FloatArray) -> tuple[FloatArray, FloatArray]:
            d, e = (side(np.exp(x)) for side in self.sides)
            return sign * (e.z - d.z), sign * (d.fall - e.fall)

        ends = np.minimum(by_deadline, by_energy), np.maximum(by_deadline, by_energy)
        return root(apart, *ends, 0.5 * (by_deadline + by_energy))


def _start(
    problem: SubbandProblem, active: BoolArray, low: FloatArray, high: FloatArray, tight: BoolArray
) -> FloatArray:
    """Return a first s, ``[..., 1]``: as if z were α/ρ, with α from an equal split.

    In tight rounds, it is the largest s at which all devices are at their least share.
    """
    equal = np.clip(-np.log(total(active)), low, high)

    def slope(x: FloatArray) -> FloatArray:
        return problem.weight * np.maximum(deadline_side(problem, np.exp(x)).fall, energy_side(problem, np.exp(x)).fall)

    typical = 1.0 / total(np.where(active, np.sqrt(slope(equal) * np.exp(equal)), 0.0))
    last: FloatArray = np.min(np.where(active, np.sqrt(np.exp(low) / slope(low)), np.inf), axis=-1, keepdims=True)
    return np.where(tight, last, typical)
