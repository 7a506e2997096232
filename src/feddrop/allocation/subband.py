"""P1 if a device's noise is proportional to its sub-band.

Under *subband* noise the variance is density x ρB: a narrow sub-band has less noise. The data rate

    r(ρ) = B ρ log2(1 + S/ρ),        S: the signal-to-noise ratio over the whole band,

is concave in ρ. Transmission time and energy are multiples of 1/r, hence convex in ρ, so P1 stays convex.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from feddrop.allocation.problem import BLOCK, GUARD, Curves, FloatArray, RoundProblem, Side, part_of, positive
from feddrop.allocation.roots import Values, root

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
        up = self.pull_s * link_cost(self.snr_up, share)
        return self.push_s * link_cost(self.snr_down, share) + up, self.tx_power_w * up

    def curves(self, block: slice = slice(None), stretch: FloatArray | float = 1.0) -> Curves:
        """Return the left sides of C1 and C2 of a block, as functions of the share; ``stretch``: of the deadline."""
        part = part_of(self, block)
        deadline, budget = part.deadline_s * stretch, positive(part.budget_j)
        sent = part.tx_power_w * part.pull_s / budget
        return _Curves(
            part.push_s / deadline, part.pull_s / deadline, part.compute_s / deadline, sent, part.compute_j / budget,
            part.snr_down, part.snr_up,
        )  # fmt: skip

    @np.errstate(divide="ignore", over="ignore", invalid="ignore")
    def least_share(self, z: FloatArray, stretch: FloatArray | float = 1.0) -> FloatArray:
        """Return the smallest share with which a device trains 1/z of the model in time and budget; inf if none is."""
        level, share = np.asarray(z) * GUARD, np.empty(self.shape)
        for first in range(0, self.shape[-1], BLOCK):
            block = slice(first, first + BLOCK)
            curves, found = self.curves(block, stretch), share[..., block]
            limit = level[..., block] if level.ndim and level.shape[-1] > 1 else level

            def over(x: FloatArray, curves: Curves = curves, limit: FloatArray = limit) -> Values:
                deadline, energy = curves.sides(np.exp(x))
                late = deadline.z >= energy.z
                here = np.maximum(deadline.z, energy.z)
                return np.log(here / limit), -np.where(late, deadline.fall, energy.fall) / here

            x = root(over, np.full(found.shape, NARROW), np.full(found.shape, WIDE), np.zeros(found.shape))
            found[...] = np.where(x < WIDE, np.exp(x), np.inf)
        return share


class _Curves(NamedTuple):
    """Times and energies of both links at 1 bit/s/Hz, and of computing, in deadlines and budgets."""

    push: FloatArray
    pull: FloatArray
    compute: FloatArray
    sent: FloatArray
    worked: FloatArray
    snr_down: FloatArray
    snr_up: FloatArray

    def sides(self, share: FloatArray) -> tuple[Side, Side]:
        down, up = link(self.snr_down, share), link(self.snr_up, share)
        push, pull, sent = self.push * down.cost, self.pull * up.cost, self.sent * up.cost
        push_falls, pull_falls, sent_falls = push * down.fall, pull * up.fall, sent * up.fall
        fall, up_bend = push_falls + pull_falls, up.bend / up.fall - up.fall
        bend = (push_falls * (down.bend / down.fall - down.fall) + pull_falls * up_bend) / fall
        return Side(push + pull + self.compute, fall, bend), Side(sent + self.worked, sent_falls, up_bend)


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
    rest, low = np.asarray(log - r), r < 0.01
    if low.any():  # log - r cancels at low signal-to-noise ratios: use its series r²/2 + r³/3 + ...
        few = np.asarray(r)[low]
        parts = 1 / 2 + few * (1 / 3 + few * (1 / 4 + few * (1 / 5 + few * (1 / 6 + few * (1 / 7 + few / 8)))))
        rest[low] = few * few * parts
    fall = rest / log
    return LinkCost(_LN2 / (share * log), fall, r * (fall - r) / log)


def link_cost(snr: FloatArray, share: FloatArray) -> FloatArray:
    """Return ``link(snr, share).cost``."""
    return _LN2 / (share * np.log1p(snr / share))
