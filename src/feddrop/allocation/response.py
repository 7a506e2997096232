"""How much band devices demand at a price, for any convex objective and noise that does not depend on the share.

A subnet that keeps s of the network needs the share ρ(s) = max_i α_i s/(1 - β_i s) of the band, over the deadline and
the budget. More band is worth its price μ as long as -w φ'(s) > μ ρ'(s), that is, up to the s at which

    h(s) = -φ'(s) (1 - β s)² = μ α/w

on the constraint that binds: the one with the larger α up to the kink where both need the same share, the other one
from there on. At the kink ρ' jumps, so the kink is the answer for a range of prices. h falls with s: Newton's method
in a bracket always finds the answer. The same equation in log ρ is ill-conditioned. If φ is linear or nearly so, the
worth of band hardly depends on ρ where s is small, and Newton's steps in log ρ have no bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from feddrop.allocation.objectives import Objective
from feddrop.allocation.problem import GUARD, BoolArray, FloatArray, positive, total
from feddrop.allocation.roots import Values, root

_STEP = 1e-6  # relative step in s of the differences of φ'
_BEYOND = 2.0  # shares up to this many bands are searched: a demand above the band makes it scarce
_FAINT = 1e-12
_SETTLED = 2.0**-40  # length of the last step of s


class BandDemand:
    """The demand of a block of devices as a function of σ = 1/sqrt(μ), the curve that ``exact`` searches.

    Args:
        part: the problem of the block.
        active: devices that take part, ``[..., block]``.
        objective: φ.
        weight: of the devices in the objective, ``[..., block]``.
        count: number of active devices, ``[..., 1]``.

    Attributes:
        least: the share of the smallest subnet, ``[..., block]``; inf if no share is enough.
        steep: sqrt(-w dφ/dρ)/count at equal shares, ``[..., block]``; their sum is the first guess of sqrt(μ).
    """

    def __init__(
        self, part: Any, active: BoolArray, objective: Objective, weight: FloatArray, count: FloatArray
    ) -> None:
        self._phi, shape = objective, active.shape
        deadline, budget = part.deadline_s * GUARD, positive(part.budget_j) * GUARD
        a, b = np.broadcast_to(part.comm_s / deadline, shape), part.compute_s / deadline
        c, d = part.upload_j / budget, part.compute_j / budget
        first, useful = a >= c, active & (weight > 0)
        self._alpha, self._beta = _both(first, a, c), _both(first, b, d)
        self._per = tuple(alpha / np.where(useful, weight, 1.0) for alpha in self._alpha)
        (high, low), (early, late) = self._alpha, self._beta
        self._small = np.broadcast_to(1.0 - part.max_rate, shape)
        most = np.minimum(np.minimum(1.0, 1.0 / (a / _BEYOND + b)), 1.0 / (c / _BEYOND + d))
        self._large = np.where(useful, np.maximum(most, self._small), self._small)
        kink = np.where(late > early, (high - low) / (high * late - low * early), np.inf)
        self._kink = np.minimum(np.maximum(kink, self._small), self._large)
        self._active = active
        self.least = np.where(active, np.where(most >= self._small, self._share(self._small), np.inf), 0.0)
        # What a unit of band is worth at the ends and on both sides of the kink. It falls from each to the next.
        ends = ((self._small, 0), (self._kink, 0), (self._kink, 1), (self._large, 1))
        self._worths = [self._worth(s, side) for s, side in ends]
        equal = np.minimum(1.0 / (high * count + early), 1.0 / (low * count + late))
        self._s = np.minimum(np.maximum(equal, self._small), np.sqrt(self._small * self._large))
        worth = np.where(self._s < self._kink, self._worth(self._s, 0), self._worth(self._s, 1))
        worth = np.maximum(worth, _FAINT * self._worths[0])  # φ may be flat there
        self.steep = np.where(useful & (worth < np.inf), np.sqrt(worth), 0.0) / count
        self._follows, self._log_price, self._slope = np.zeros(shape), np.zeros(()), np.full(shape, -1.0)

    def at(self, s: FloatArray, out: FloatArray) -> FloatArray:
        """Write the demand at σ = s into ``out``; return its total, ``[..., 1]``."""
        log_price = -2.0 * np.log(s)
        price = np.exp(log_price)
        starts, before, after, ends = self._worths
        early, late = price > before, price < after
        per, beta = np.where(early, *self._per), np.where(early, *self._beta)
        low, high = np.where(early, self._small, self._kink), np.where(late, self._large, self._kink)
        at_high = ~early & (~late | (ends >= price))
        guess = self._s + self._follows * (log_price - self._log_price)

        def over(kept: FloatArray) -> Values:
            slope, room = self._phi.slope(kept), 1.0 - beta * kept
            bend = (slope - self._phi.slope(kept * (1.0 - _STEP))) / (_STEP * kept)
            self._slope = (2.0 * beta * slope - bend * room) * room
            return -slope * room * room - price * per, self._slope

        ended = early & (starts <= price), at_high
        self._s = root(over, low, high, guess, tolerance=_SETTLED, ends=ended)
        moving = (self._s > low) & (self._s < high)
        self._follows, self._log_price = np.where(moving, price * per / self._slope, 0.0), log_price
        out[...] = np.where(self._active, self._share(self._s), 0.0)
        return total(out)

    def moving(self, s: FloatArray, share: FloatArray) -> FloatArray:  # noqa: ARG002
        """Return the derivative of the total in log σ, at the σ of the last demand, ``[..., 1]``."""
        side = self._s < self._kink
        rise = np.where(side, *self._alpha) / (1.0 - np.where(side, *self._beta) * self._s) ** 2
        return total(np.where(self._follows < 0, -2.0 * rise * self._follows, 0.0))

    def most(self) -> FloatArray:
        """Return the demand at a price of 0."""
        return np.where(self._active, self._share(self._large), 0.0)

    def first(self) -> FloatArray:
        """Return the σ up to which no device demands more than its least share, ``[..., 1]``."""
        starts, _, after, _ = self._worths
        worth = np.where(self._kink > self._small, starts, after)
        top: FloatArray = np.max(np.where(self._active, worth, 0.0), axis=-1, keepdims=True)
        return 1.0 / np.sqrt(top)

    def _share(self, s: FloatArray) -> FloatArray:
        """Return ρ(s)."""
        (high, low), (early, late) = self._alpha, self._beta
        return np.fmax(high * s / (1.0 - early * s), low * s / (1.0 - late * s))

    def _worth(self, s: FloatArray, side: int) -> FloatArray:
        """Return -w dφ/dρ on a side."""
        return -self._phi.slope(s) * (1.0 - self._beta[side] * s) ** 2 / self._per[side]


def _both(first: BoolArray, one: FloatArray, other: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the values of the side with the larger α, and of the other one."""
    return np.where(first, one, other), np.where(first, other, one)
