"""The optimum of P1 in a few passes over the devices.

For a fixed share, a device takes the smallest z that its constraints allow,

    z_k(ρ) = max(1, (a_k/ρ + b_k)/T0, (c_k/ρ + d_k)/E_k),

so P1 is ``min Σ w_k z_k(ρ_k)`` over the simplex: separable and convex. At a price μ for the band, a device demands
the share at which the marginal value of band equals its price. On a piece of z_k of the form α/ρ + β this is ρ =
sqrt(w_k α) s, with s = 1/sqrt(μ). From small shares to large ones, the steeper of the two constraints binds first, then
the flatter one, then neither:

    ρ_k(s) = clip(max(min(sqrt(w_k α_steep) s, kink_k), sqrt(w_k α_flat) s), least_k, enough_k)

where the two constraints cross at the share kink_k, z = 1/(1-θ) at least_k, and z = 1 at enough_k. Every ρ_k(s), and so
the total, is piecewise linear and non-decreasing in s: a safeguarded Newton iteration on ``Σ ρ_k(s) = 1`` ends on the
exact piece after a few passes.

Other objectives have their own ρ_k(s) (:mod:`feddrop.allocation.response`); the search is the same. Their demand may
jump, as that of a linear objective without computation does; the remaining band then goes to
the devices whose demand jumps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from feddrop.allocation.feasible import FITS
from feddrop.allocation.objectives import PAPER, InverseKept, Objective
from feddrop.allocation.problem import BLOCK, GUARD, BoolArray, FloatArray, Problem, part_of, positive, total
from feddrop.allocation.response import BandDemand
from feddrop.allocation.roots import BAND, Total, clear
from feddrop.allocation.solution import Allocation, finish

_SIDE, _FILLED = 2.0**-44, 2.0**-46  # relative distance to both sides of a jump, and band that may be left
MANY = 32  # with more blocks than this, which do not fit into the cache together, the search starts from a sample


class _Curve(NamedTuple):
    """The demand of each device of a block as a function of s; all ``[..., block]``."""

    steep: FloatArray
    flat: FloatArray
    kink: FloatArray
    least: FloatArray
    enough: FloatArray

    def at(self, s: FloatArray, out: FloatArray) -> FloatArray:
        """Write the demand at s into ``out``; return its total, ``[..., 1]``."""
        np.minimum(self.steep * s, self.kink, out=out)
        np.maximum(out, self.flat * s, out=out)
        np.maximum(out, self.least, out=out)
        np.minimum(out, self.enough, out=out)
        return total(out)

    def moving(self, s: FloatArray, share: FloatArray) -> FloatArray:
        """Return the derivative of the total in log s: the shares of devices not at a corner, ``[..., 1]``."""
        return total(share * ((share == self.steep * s) | (share == self.flat * s)))

    def most(self) -> FloatArray:
        """Return the demand at a price of 0."""
        at_kink = np.minimum(np.maximum(self.kink, self.least), self.enough)
        return np.where(self.steep > 0, np.where(self.flat > 0, self.enough, at_kink), self.least)

    def first(self) -> FloatArray:
        """Return the s up to which no device demands more than its least share, ``[..., 1]``."""
        return np.fmin.reduce(self.least / self.steep, axis=-1, keepdims=True)


_Demand = _Curve | BandDemand


def solve(problem: Problem, active: BoolArray, phi: Objective = PAPER) -> Allocation | None:
    """Return the optimal rates and shares; None if the problem is infeasible for the active devices."""
    share = np.empty(problem.shape)
    curves: list[_Demand] = []
    parts, sums = [], []
    weight = phi.weights(problem.weight)
    with np.errstate(all="ignore"):
        for first in range(0, problem.shape[-1], BLOCK):
            block = slice(first, first + BLOCK)
            curve = _demand(problem, active, phi, weight, block)
            curves.append(curve)
            parts.append(share[..., block])
            sums.append((total(curve.least), total(curve.most()), total(curve.steep)))
        least, most, steep = (sum_of(values) for values in zip(*sums, strict=True))
        if not (least <= FITS).all():
            return None

        # Where more band is worth nothing, the least shares are as good as any.
        loose, tight = most <= BAND, (least >= BAND) | (steep == 0)
        special = loose | tight
        some = special.any()
        start = 1 / steep
        if len(curves) > MANY:
            start = _from_sample(curves, parts, start)
        if some:
            # If the least shares already fill the band, the price is the lowest at which no device demands more.
            start = np.where(tight, reduce(np.fmin, [curve.first() for curve in curves]), start)
        s, passes = clear(*_market(curves, parts), start, special)
        if not isinstance(phi, InverseKept):
            _bridge(curves, parts, s, special)
        price = np.where(loose, 0.0, 1 / (s * s))
        if some:
            # At a price of 0, the remaining band is distributed in proportion.
            for curve, part in zip(curves, parts, strict=True):
                np.copyto(part, curve.least * (BAND / least), where=tight)
                np.copyto(part, curve.most() * (BAND / most), where=loose)
    return finish(problem, share=share, active=active, iterations=passes, price=price, phi=phi)


def _bridge(curves: list[_Demand], parts: list[FloatArray], s: FloatArray, special: BoolArray) -> None:
    """Where demand jumps at s, give the remaining band to the devices that demand it, in place."""
    left = ~special & (np.abs(BAND - sum_of([total(part) for part in parts])) > _FILLED)
    if not left.any():
        return
    ends = [[np.empty_like(part) for part in parts] for _ in range(2)]
    low, high = (
        sum_of([curve.at(s * side, part) for curve, part in zip(curves, end, strict=True)])
        for end, side in zip(ends, (1.0 - _SIDE, 1.0 + _SIDE), strict=True)
    )
    mix = np.clip((BAND - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    for part, below, above in zip(parts, *ends, strict=True):
        np.copyto(part, below + mix * (above - below), where=left)


def _market(curves: list[_Demand], parts: list[FloatArray], scale: float = 1.0) -> tuple[Total, Total]:
    """Return the total demand at s times ``scale`` and its derivative in log s; shares are written to ``parts``."""

    def demand(s: FloatArray) -> FloatArray:
        return scale * sum_of([curve.at(s, part) for curve, part in zip(curves, parts, strict=True)])

    def slope(s: FloatArray) -> FloatArray:
        return scale * sum_of([curve.moving(s, part) for curve, part in zip(curves, parts, strict=True)])

    return demand, slope


def _from_sample(curves: list[_Demand], parts: list[FloatArray], start: FloatArray) -> FloatArray:
    """Return a better first s from every sixteenth block, to save passes over all of them."""
    some, scale = curves[::16], len(curves) / len(curves[::16])
    most = scale * sum_of([total(curve.most()) for curve in some])
    least = scale * sum_of([total(curve.least) for curve in some])
    return clear(*_market(some, parts[::16], scale), start, (most <= BAND) | (least >= BAND))[0]


def sum_of(values: Sequence[FloatArray]) -> FloatArray:
    """Return the sum over blocks."""
    return values[0] if len(values) == 1 else np.add.reduce(values)


def _demand(problem: Problem, active: BoolArray, phi: Objective, weight: FloatArray, block: slice) -> _Demand:
    """Return the demand of a block of devices."""
    if not isinstance(phi, InverseKept):
        here = np.broadcast_to(weight, problem.shape)[..., block]
        return BandDemand(part_of(problem, block), active[..., block], phi, here, total(active))

    def cut(value: FloatArray) -> FloatArray:
        return value[..., block] if value.ndim and value.shape[-1] > BLOCK else value

    deadline, budget = cut(problem.deadline_s) * GUARD, positive(cut(problem.budget_j)) * GUARD
    a, b = cut(problem.comm_s) / deadline, cut(problem.compute_s) / deadline
    c, d = cut(problem.upload_j) / budget, cut(problem.compute_j) / budget
    top = 1 / (1 - cut(problem.max_rate))
    low, high = np.minimum(a, c), np.maximum(a, c)
    # The constraints cross where a/ρ + b = c/ρ + d; if at no positive share, the steeper one is always above.
    cross = (a - c) / (d - b)
    kink = np.where(cross > 0, cross, np.inf)
    # The largest 1/ρ at which z is at most a level; not positive if no share is enough. NaN from inf/inf is infeasible;
    # 0/0 is a constraint that holds at any share.
    least = 1 / np.maximum(np.minimum((top - b) / a, (top - d) / c), 0)
    enough = 1 / np.maximum(np.fmin((1 - b) / a, (1 - d) / c), 0)
    weight, present = cut(weight), active[..., block]
    curve = _Curve(np.sqrt(weight * high), np.sqrt(weight * low), kink, least, enough)
    return curve if present.all() else _Curve(*(np.where(present, values, 0.0) for values in curve))
