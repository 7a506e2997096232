"""The optimum under subband noise, where a device's demand for band has no closed form.

The solver keeps the shape of :mod:`feddrop.allocation.exact`. For a price μ, every device finds, by a Newton iteration
in log ρ, the share at which more band is worth its price to the deadline alone, and the one at which it is to the
budget alone. Where the first of the two constraints is not the larger at its own share, nor the second at its own, both
hold the device together: at the kink between the two shares, where they cross. An outer Newton iteration finds the
price at which the shares fill the band.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from feddrop.allocation.problem import BoolArray, FloatArray, total
from feddrop.allocation.roots import BAND, clear, root
from feddrop.allocation.solution import Allocation, Status, finish
from feddrop.allocation.subband import NARROW, SubbandProblem, deadline_side, energy_side


def solve(problem: SubbandProblem, active: BoolArray) -> Allocation:
    """Find the optimal rates and shares; the problem must be feasible for the active devices.

    Args:
        problem: a round or a batch of rounds.
        active: devices that have a part, ``[..., num_devices]``.
    """
    low, high = (
        np.where(active, np.log(np.minimum(problem.least_share(z), 2.0)), NARROW)
        for z in (1.0 / (1.0 - problem.max_rate), np.ones(()))
    )
    weight = np.broadcast_to(problem.weight, problem.shape)
    sides = partial(deadline_side, problem), partial(energy_side, problem)
    guess = [0.5 * (low + high)] * 2

    def shares(s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Shares asked for at the price 1/s², and their derivatives in log s."""

        def worth(which: int) -> FloatArray:
            def over(x: FloatArray) -> tuple[FloatArray, FloatArray]:
                side = sides[which](np.exp(x))
                return np.log(weight * side.fall) - x + 2 * np.log(s), side.bend - 1.0

            return root(over, low, high, guess[which])

        guess[:] = by_deadline, by_energy = worth(0), worth(1)
        at_deadline, at_energy = ([side(np.exp(x)) for side in sides] for x in guess)
        first = at_deadline[0].z >= at_deadline[1].z
        both = ~first & (at_energy[0].z > at_energy[1].z)
        x = np.where(first, by_deadline, by_energy)
        if both.any():
            sign = np.where(by_deadline < by_energy, 1.0, -1.0)

            def apart(x: FloatArray) -> tuple[FloatArray, FloatArray]:
                d, e = (side(np.exp(x)) for side in sides)
                return sign * (e.z - d.z), sign * (d.fall - e.fall)

            kink = root(apart, np.minimum(*guess), np.maximum(*guess), 0.5 * (by_deadline + by_energy))
            x = np.where(both, kink, x)
        share = np.where(active, np.exp(x), 0.0)
        bend = np.where(first, at_deadline[0].bend, at_energy[1].bend)
        moving = ~both & (x > low) & (x < high)
        return share, np.where(moving, share * 2.0 / (1.0 - bend), 0.0)

    last: list[FloatArray] = []

    def demand(s: FloatArray) -> FloatArray:
        last[:] = shares(s)
        return total(last[0])

    def slope(_: FloatArray) -> FloatArray:
        return total(last[1])

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        free, least = shares(np.asarray(1e150))[0], np.where(active, np.exp(low), 0.0)
        most, fewest = total(free), total(least)
        loose, tight = most <= BAND, fewest >= BAND
        s, passes = clear(demand, slope, _start(problem, active, low, high, tight), loose | tight)
        share = shares(s)[0]
        share = np.where(tight, least * (BAND / fewest), share)
        share = np.where(loose, free * (BAND / most), share)
        price = np.where(loose, 0.0, 1.0 / s**2)
    return finish(
        problem, share=share, active=active, method="exact", status=Status.OPTIMAL, iterations=passes, price=price
    )


def _start(
    problem: SubbandProblem, active: BoolArray, low: FloatArray, high: FloatArray, tight: BoolArray
) -> FloatArray:
    """A first s, ``[..., 1]``: as if z were α/ρ, with α taken at an equal split.

    Where the round is tight, it is the last s at which everyone is at the least share.
    """
    equal = np.clip(-np.log(total(active)), low, high)

    def slope(x: FloatArray) -> FloatArray:
        return problem.weight * np.maximum(deadline_side(problem, np.exp(x)).fall, energy_side(problem, np.exp(x)).fall)

    typical = 1.0 / total(np.where(active, np.sqrt(slope(equal) * np.exp(equal)), 0.0))
    last: FloatArray = np.min(np.where(active, np.sqrt(np.exp(low) / slope(low)), np.inf), axis=-1, keepdims=True)
    return np.where(tight, last, typical)
