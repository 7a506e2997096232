"""P1 if a device's noise is proportional to its sub-band.

Under *subband* noise the variance is density x ρB: a narrow sub-band has less noise. The data rate

    r(ρ) = B ρ log2(1 + S/ρ),        S: the signal-to-noise ratio over the whole band,

is concave in ρ. Transmission time and energy are multiples of 1/r, hence convex in ρ, so P1 stays convex.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from feddrop.allocation.problem import GUARD, FloatArray, RoundProblem, positive
from feddrop.allocation.roots import root

_LN2 = float(np.log(2.0))
NARROW, WIDE = -600.0, 60.0  # logarithms of the smallest and largest share that are searched


@dataclass(frozen=True, slots=True, kw_only=True)
class SubbandProblem(RoundProblem):
    """P1 under subband noise; the other fields are those of :class:`~feddrop.allocation.problem.RoundProblem`.

    Attributes:
        push_s: seconds to push the full model over the whole band at 1 bit/s/Hz.
        pull_s: seconds to pull the full model over the whole band at 1 bit/s/Hz.
        snr_down: signal-to-noise ratio of the downlink over the whole band.
        snr_up: signal-to-noise ratio of the uplink over the whole band.
        tx_power_w: the device's transmit power.
        compute_s: b, seconds to train the full model on the device's samples.
        compute_j: d, joules to train the full model on the device's samples.
    """

    numbers: ClassVar[tuple[str, ...]] = (
        *RoundProblem.numbers,
        *("push_s", "pull_s", "snr_down", "snr_up", "tx_power_w", "compute_s", "compute_j"),
    )

    push_s: FloatArray
    pull_s: FloatArray
    snr_down: FloatArray
    snr_up: FloatArray
    tx_power_w: FloatArray
    compute_s: FloatArray
    compute_j: FloatArray

    def air(self, share: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return transmission time in s and energy in J of the full model at these shares."""
        up = self.pull_s * link(self.snr_up, share).cost
        return self.push_s * link(self.snr_down, share).cost + up, self.tx_power_w * up

    def slopes(self, share: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the negative derivatives of the left sides of C1 and C2 in the share."""
        return deadline_side(self, share).fall / share, energy_side(self, share).fall / share

    def least_share(self, z: FloatArray, stretch: FloatArray | float = 1.0) -> FloatArray:
        """Return the smallest share with which a device trains 1/z of the model in time and budget; inf if none is."""

        def share(side: Callable[[FloatArray], Side]) -> FloatArray:
            def over(x: FloatArray) -> tuple[FloatArray, FloatArray]:
                z_here, fall, _ = side(np.exp(x))
                return np.log(z_here / (z * GUARD)), -fall / z_here

            x = root(over, np.full(self.shape, NARROW), np.full(self.shape, WIDE), np.zeros(self.shape))
            return np.where(x < WIDE, np.exp(x), np.inf)

        with np.errstate(divide="ignore", invalid="ignore"):
            return np.maximum(share(lambda rho: deadline_side(self, rho, stretch)), share(partial(energy_side, self)))


class LinkCost(NamedTuple):
    """A link of unit bandwidth and spectral efficiency over a share ρ of the band.

    ``cost`` is 1/(ρ log2(1 + S/ρ)), ``fall`` is -d log(cost) / d log ρ, and ``bend`` is d fall / d log ρ.
    """

    cost: FloatArray
    fall: FloatArray
    bend: FloatArray


def link(snr: FloatArray, share: FloatArray) -> LinkCost:
    """Return the cost of a share of the band, given the signal-to-noise ratio over the whole band."""
    q = snr / share
    log, r = np.log1p(q), q / (1.0 + q)
    # log - r cancels at low signal-to-noise ratios: use its series r²/2 + r³/3 + ...
    series = r**2 * (1 / 2 + r * (1 / 3 + r * (1 / 4 + r * (1 / 5 + r * (1 / 6 + r * (1 / 7 + r / 8))))))
    fall = np.where(r < 0.01, series, log - r) / log
    return LinkCost(_LN2 / (share * log), fall, r * (fall - r) / log)


class Side(NamedTuple):
    """The left side z of C1 or C2 at a share; ``fall`` = -dz / d log ρ and ``bend`` = d log(fall) / d log ρ."""

    z: FloatArray
    fall: FloatArray
    bend: FloatArray


def deadline_side(problem: SubbandProblem, share: FloatArray, stretch: FloatArray | float = 1.0) -> Side:
    """Return the left side of C1 at these shares, with ``stretch`` times the deadline."""
    deadline = problem.deadline_s * stretch
    down, up = link(problem.snr_down, share), link(problem.snr_up, share)
    push, pull = problem.push_s * down.cost / deadline, problem.pull_s * up.cost / deadline
    fall = push * down.fall + pull * up.fall
    bend = push * (down.bend - down.fall**2) + pull * (up.bend - up.fall**2)
    return Side(push + pull + problem.compute_s / deadline, fall, bend / fall)


def energy_side(problem: SubbandProblem, share: FloatArray) -> Side:
    """Return the left side of C2 at these shares."""
    budget = positive(problem.budget_j)
    up = link(problem.snr_up, share)
    pull = problem.tx_power_w * problem.pull_s * up.cost / budget
    return Side(pull + problem.compute_j / budget, pull * up.fall, up.bend / up.fall - up.fall)
