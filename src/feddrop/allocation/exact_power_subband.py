"""The optimum of rate, share, power and clock under subband noise.

The share has no closed form: for each device, Newton's method in log ρ finds where the marginal value of band equals
its price, with the best clock and power at every step. The outer search for the price is that of the other solvers.
"""

from __future__ import annotations

import numpy as np

from feddrop.allocation.exact_power import FREE
from feddrop.allocation.pace import pace
from feddrop.allocation.power import SubbandPowerProblem
from feddrop.allocation.problem import BoolArray, FloatArray, total
from feddrop.allocation.roots import BAND, clear, root
from feddrop.allocation.solution import Allocation, Status, finish
from feddrop.allocation.subband import NARROW

_STEP = 1e-5  # step in log ρ of the finite differences
_TOLERANCE = 2.0**-38  # length of Newton's last step in log ρ; the error after it is far smaller


def solve(problem: SubbandPowerProblem, active: BoolArray) -> Allocation:
    """Return the optimal rates, shares, powers and clocks; the problem must be feasible for the active devices."""
    ends = np.stack([np.broadcast_to(1.0 / (1.0 - problem.max_rate), problem.shape), np.ones(problem.shape)])
    low, high = np.where(active, np.log(np.minimum(problem.least_share(ends), 2.0)), NARROW)
    high = np.maximum(high, low)
    # If not all devices can have enough band, those without weight get their least share: they set no price.
    scarce = total(np.where(active, np.exp(high), 0.0)) > BAND
    high = np.where(scarce & (problem.weight <= 0), low, high)
    market = _Market(problem, active, low, high)
    with np.errstate(all="ignore"):
        least, enough = (np.where(active, np.exp(y), 0.0) for y in (low, high))
        fewest, most = total(least), total(enough)
        loose, tight = most <= BAND, fewest >= BAND
        s, passes = clear(market.demand, market.slope, market.start(tight), loose | tight)
        asked = market.demand(s)
        share = market.share * np.minimum(1.0, BAND / asked)
        share = np.where(tight, least * (BAND / fewest), share)
        share = np.where(loose, enough * (BAND / most), share)
        price = np.where(loose | (s > FREE), 0.0, 1.0 / s**2)
    return finish(
        problem,
        share=share,
        active=active,
        scheme="exact",
        status=Status.OPTIMAL,
        iterations=passes,
        price=price,
        guess=market.paced.q,
    )


class _Market:
    """The demand of the devices at a price; the last demand is the first guess at the next price."""

    def __init__(self, problem: SubbandPowerProblem, active: BoolArray, low: FloatArray, high: FloatArray) -> None:
        self.problem, self.active, self.low, self.high = problem, active, low, high
        self.log_weight = np.log(np.maximum(np.broadcast_to(problem.weight, problem.shape), 1e-200))
        self.y = np.clip(-np.log(total(active)) * np.ones(problem.shape), low, high)
        self.paced = pace(problem, np.exp(self.y))
        self.bend: FloatArray = np.full(problem.shape, -2.0)
        self.share: FloatArray = np.zeros(problem.shape)

    def worth(self, y: FloatArray) -> FloatArray:
        """Return the logarithm of -w dz/dρ at ρ = e^y."""
        self.paced = pace(self.problem, np.exp(y), guess=self.paced.q)
        return self.log_weight + np.log(self.paced.fall) - y

    def demand(self, s: FloatArray) -> FloatArray:
        """Return the total demand at the price 1/s², ``[..., 1]``."""
        level = -2.0 * np.log(s)

        def over(y: FloatArray) -> tuple[FloatArray, FloatArray]:
            value = self.worth(y)
            step = np.where(y + _STEP < self.high, _STEP, -_STEP)  # beyond, nothing is dropped and band is worth less
            self.bend = np.clip((self.worth(y + step) - value) / step, -1e3, -1e-3)
            return value - level, self.bend

        self.y = root(over, self.low, self.high, self.y, tolerance=_TOLERANCE)
        self.share = np.where(self.active, np.exp(self.y), 0.0)
        return total(self.share)

    def slope(self, _: FloatArray) -> FloatArray:
        """Return the derivative of the total in log s."""
        moving = (self.y > self.low) & (self.y < self.high)
        return total(np.where(moving, self.share * -2.0 / self.bend, 0.0))

    def start(self, tight: BoolArray) -> FloatArray:
        """Return a first s, ``[..., 1]``: as if z were α/ρ; in tight rounds, the largest s with the least shares."""
        typical = total(np.where(self.active, np.exp(0.5 * self.worth(self.y) + self.y), 0.0))
        last = np.min(np.where(self.active, np.exp(-0.5 * self.worth(self.low)), np.inf), axis=-1, keepdims=True)
        return np.where(tight, last, 1.0 / typical)
