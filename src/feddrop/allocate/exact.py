"""The optimum of P1 in a handful of passes over the devices.

With the share fixed, a device takes the smallest z that its constraints allow,

    z_k(ρ) = max(1, (a_k/ρ + b_k)/T0, (c_k/ρ + d_k)/E_k),

so P1 is ``min Σ w_k z_k(ρ_k)`` over the simplex: separable and convex. Facing a price μ for the band, a device asks
for the share at which one more bit of band is worth its price. On a piece of z_k of the form α/ρ + β that is ρ =
sqrt(w_k α) s, with s = 1/sqrt(μ). Seen from small shares to large, the device is held by the steeper of its two
constraints, then by the flatter one, then by neither:

    ρ_k(s) = clip(max(min(sqrt(w_k α_steep) s, kink_k), sqrt(w_k α_flat) s), least_k, enough_k)

where kink_k is the share at which the two constraints ask for the same z, least_k the one at which z = 1/(1-θ), and
enough_k the one at which z = 1. Every ρ_k(s), and so the total, is piecewise linear in s and never falls: a
safeguarded Newton iteration on ``Σ ρ_k(s) = 1`` ends in a handful of passes, on the exact piece.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

import numpy as np

from feddrop.allocate.allocation import Allocation, Status, finish
from feddrop.allocate.problem import GUARD, BoolArray, FloatArray, Problem, positive, total
from feddrop.allocate.roots import BAND, clear

_BLOCK = 1 << 14
"""Devices are taken in blocks whose arrays stay in the processor's cache."""


class _Curve(NamedTuple):
    """How the share that each device of a block asks for grows with s; all ``[..., block]``."""

    steep: FloatArray
    flat: FloatArray
    kink: FloatArray
    least: FloatArray
    enough: FloatArray

    def at(self, s: FloatArray, out: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Write the shares asked for into ``out``; return their total and its derivative in log s, ``[..., 1]``."""
        first, second = self.steep * s, self.flat * s
        np.minimum(first, self.kink, out=out)
        np.maximum(out, second, out=out)
        np.maximum(out, self.least, out=out)
        np.minimum(out, self.enough, out=out)
        moving = (out == first) | (out == second)
        return total(out), total(out * moving)

    def most(self) -> FloatArray:
        """The shares asked for when the band costs nothing."""
        at_kink = np.minimum(np.maximum(self.kink, self.least), self.enough)
        return np.where(self.steep > 0, np.where(self.flat > 0, self.enough, at_kink), self.least)


def solve(problem: Problem, active: BoolArray) -> Allocation:
    """Find the optimal rates and shares; the problem must be feasible for the active devices.

    Args:
        problem: a round or a batch of rounds.
        active: devices that have a part, ``[..., num_devices]``.
    """
    share = np.empty(problem.shape)
    blocks = [slice(i, i + _BLOCK) for i in range(0, problem.shape[-1], _BLOCK)]
    parts = [share[..., block] for block in blocks]

    def demand(s: FloatArray) -> tuple[FloatArray, FloatArray]:
        pieces = [curve.at(s, part) for curve, part in zip(curves, parts, strict=True)]
        return sum_of(piece[0] for piece in pieces), sum_of(piece[1] for piece in pieces)

    with np.errstate(all="ignore"):
        curves = [_curve(problem, active, block) for block in blocks]
        most = sum_of(total(curve.most()) for curve in curves)
        least = sum_of(total(curve.least) for curve in curves)
        steep = sum_of(total(curve.steep) for curve in curves)
        loose, tight = most <= BAND, least >= BAND
        # Below this s everyone is at the least share.
        floor = np.fmin.reduce([np.fmin.reduce(c.least / c.steep, axis=-1, keepdims=True) for c in curves])
        start = np.where(tight, floor, np.fmax(floor, 1 / steep))
        s, passes = clear(demand, start, loose | tight)
        # Where the band costs nothing, what is left of it is shared out in proportion.
        if (loose | tight).any():
            for curve, part in zip(curves, parts, strict=True):
                np.copyto(part, curve.least * (BAND / least), where=tight)
                np.copyto(part, curve.most() * (BAND / most), where=loose)
        price = np.where(loose, 0.0, 1 / s**2)
    return finish(
        problem, share=share, active=active, method="exact", status=Status.OPTIMAL, iterations=passes, price=price
    )


def sum_of(values: Iterable[FloatArray]) -> FloatArray:
    """Sum over blocks."""
    return reduce(np.add, values)


def _curve(problem: Problem, active: BoolArray, block: slice) -> _Curve:
    def cut(value: FloatArray) -> FloatArray:
        return value[..., block] if value.ndim and value.shape[-1] > 1 else value

    deadline, budget = cut(problem.deadline_s) * GUARD, cut(positive(problem.budget_j)) * GUARD
    a, b = cut(problem.comm_s) / deadline, cut(problem.compute_s) / deadline
    c, d = cut(problem.upload_j) / budget, cut(problem.compute_j) / budget
    top = 1 / (1 - cut(problem.max_rate))
    low, high = np.minimum(a, c), np.maximum(a, c)
    first = a >= c
    # How much more the flatter constraint asks for when the band is no obstacle.
    extra = np.where(first, d - b, b - d)
    kink = np.where(extra > 0, (high - low) / extra, np.inf)
    most = np.maximum(b, d)
    least = np.where(most < top, np.maximum(a / (top - b), c / (top - d)), np.inf)
    enough = np.where(most < 1, np.maximum(a / (1 - b), c / (1 - d)), np.inf)
    weight, here = cut(problem.weight), active[..., block]
    curve = _Curve(np.sqrt(weight * high), np.sqrt(weight * low), kink, least, enough)
    return curve if here.all() else _Curve(*(np.where(here, values, 0.0) for values in curve))
