"""The optimum of rate, share, power and clock under subband noise.

No closed form is left for the share: a device finds by Newton's method in log ρ where more band is worth its price,
choosing clock and power anew at every step. The outer search for the price is that of the other solvers.
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

_STEP = 1e-5
"""A step in log ρ, for a slope that only steers."""

_TOLERANCE = 2.0**-38
"""Of log ρ, at Newton's last step; the error after it is far smaller."""


def solve(problem: SubbandPowerProblem, active: BoolArray) -> Allocation:
    """Find the optimal rates, shares, powers and clocks; the problem must be feasible for the active devices.

    Args:
        problem: a round or a batch of rounds.
        active: devices that have a part, ``[..., num_devices]``.
    """
    ends = np.stack([np.broadcast_to(1.0 / (1.0 - problem.max_rate), problem.shape), np.ones(problem.shape)])
    low, high = np.where(active, np.log(np.minimum(problem.least_share(ends), 2.0)), NARROW)
    high = np.maximum(high, low)
    # Where not all can have enough, who weighs nothing is content with the least: his wishes set no price.
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
    """Devices that ask for band at a price; remembers their last answers, to begin with at the next price."""

    def __init__(self, problem: SubbandPowerProblem, active: BoolArray, low: FloatArray, high: FloatArray) -> None:
        self.problem, self.active, self.low, self.high = problem, active, low, high
        self.log_weight = np.log(np.maximum(np.broadcast_to(problem.weight, problem.shape), 1e-200))
        self.y = np.clip(-np.log(total(active)) * np.ones(problem.shape), low, high)
        self.paced = pace(problem, np.exp(self.y))
        self.bend: FloatArray = np.full(problem.shape, -2.0)
        self.share: FloatArray = np.zeros(problem.shape)

    def worth(self, y: FloatArray) -> FloatArray:
        """Logarithm of -w dz/dρ at ρ = e^y."""
        self.paced = pace(self.problem, np.exp(y), guess=self.paced.q)
        return self.log_weight + np.log(self.paced.fall) - y

    def demand(self, s: FloatArray) -> FloatArray:
        """Total of the shares asked for at the price 1/s², ``[..., 1]``."""
        level = -2.0 * np.log(s)

        def over(y: FloatArray) -> tuple[FloatArray, FloatArray]:
            value = self.worth(y)
            step = np.where(y + _STEP < self.high, _STEP, -_STEP)  # beyond, nothing is dropped, and band worth less
            self.bend = np.clip((self.worth(y + step) - value) / step, -1e3, -1e-3)
            return value - level, self.bend

        self.y = root(over, self.low, self.high, self.y, tolerance=_TOLERANCE)
        self.share = np.where(self.active, np.exp(self.y), 0.0)
        return total(self.share)

    def slope(self, _: FloatArray) -> FloatArray:
        """Derivative of the total in log s."""
        moving = (self.y > self.low) & (self.y < self.high)
        return total(np.where(moving, self.share * -2.0 / self.bend, 0.0))

    def start(self, tight: BoolArray) -> FloatArray:
        """A first s, ``[..., 1]``: as if z were α/ρ; where the round is tight, the last with the least shares."""
        typical = total(np.where(self.active, np.exp(0.5 * self.worth(self.y) + self.y), 0.0))
        last = np.min(np.where(self.active, np.exp(-0.5 * self.worth(self.low)), np.inf), axis=-1, keepdims=True)
        return np.where(tight, last, 1.0 / typical)
