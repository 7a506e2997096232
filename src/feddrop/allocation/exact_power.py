"""The optimum of rate, share, power and clock, for noise that does not depend on the share.

At a price μ for the band, an inner Newton iteration finds each device's clock, power and demand; an outer one finds the
price at which the shares fill the band. :mod:`feddrop.allocation.power` states the problem and the closed forms.
Devices are processed in blocks that fit into the processor's cache, so that time and memory are linear in their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from feddrop.allocation import power_newton
from feddrop.allocation.exact import sum_of
from feddrop.allocation.feasible import FITS
from feddrop.allocation.pace import TOLERANCE, Needs, hurry, needs, pace, reach
from feddrop.allocation.power import PowerProblem
from feddrop.allocation.problem import BLOCK, BoolArray, FloatArray, part_of, total
from feddrop.allocation.roots import BAND, clear, root
from feddrop.allocation.solution import Allocation, finish

_NOBODY = 1e-200  # replaces a weight of 0: the device demands its least share, and the weight can be divided by
FREE = 1e60  # 1/sqrt(μ) above which the price counts as 0: only devices without weight would demand more band


class _State(NamedTuple):
    """Devices at a price and at a q."""

    r: FloatArray  # 1/share
    gap: FloatArray  # log D - log E
    slope: FloatArray  # its derivative in q
    r_moves: FloatArray  # d log r / d log μ, with both loads equal
    q_moves: FloatArray  # d q / d log μ, likewise


@dataclass(slots=True)
class _Block:
    """Devices of a block; ``r_low`` and ``r_high`` are 1/share at z = 1 and at z = 1/(1-θ).

    ``q``, ``q_moves`` and ``log_price`` belong to the last price and give the first guess at the next one.
    """

    needs: Needs
    full: tuple[FloatArray, ...]
    ease: tuple[FloatArray, ...] | None
    weight: FloatArray
    active: BoolArray
    r_low: FloatArray
    r_high: FloatArray
    bounds: tuple[FloatArray, FloatArray]
    q: FloatArray
    share: FloatArray
    slope: FloatArray | float = 0.0
    q_moves: FloatArray | float = 0.0
    log_price: FloatArray | float = 0.0

    def shares(self, r: FloatArray) -> FloatArray:
        """Return the shares of the active devices, 1/r."""
        return np.where(self.active, 1.0 / r, 0.0)

    def start(self) -> FloatArray:
        """Return Σ sqrt(w α), ``[..., 1]``: if z were α/ρ, its square would be the price."""
        h = hurry(self.q, self.needs)
        worth = h.on_e + (h.on_d - h.on_e) * (1.0 - 1.0 / (1.0 + h.odds))
        return total(np.where(self.active, np.sqrt(self.weight * worth), 0.0))

    def wish(self, worth: FloatArray, price: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the demanded 1/share where dz/dr is ``worth``, within the limits of the rate and without them."""
        free = np.sqrt(price / (self.weight * worth))
        return np.minimum(np.maximum(free, self.r_low), self.r_high), free

    def at(self, q: FloatArray, price: FloatArray) -> _State:
        """Return the state at this q: 1/share and the gap between the loads of deadline and energy."""
        c = self.needs
        h = hurry(q, c)
        on_d, on_e = h.on_d, h.on_e
        odd = 1.0 / (1.0 + h.odds)
        even = 1.0 - odd
        worth = even * on_d + odd * on_e
        r, wish = self.wish(worth, price)
        free = r == wish
        # Clock and power are optimal for κ, so the value of band changes with κ only.
        r_turns = free * (-0.5 * even * odd * (on_d - on_e) / worth)
        deadline, energy = r * on_d + h.tau, r * on_e + c.clock / h.tau**2
        # A second less costs λ joules, whether the clock or the radio saves it.
        change = h.d_tau - r * c.up / h.x**2 * h.d_x
        tilt = r * (on_d / deadline - on_e / energy)
        turns = tilt * r_turns + change / deadline + np.where(change < 0, h.odds * change / energy, 0.0)
        # At a higher price λ moves so that both loads stay equal, and r with it.
        moves = np.where(free, -0.5 * tilt / turns, 0.0)
        r_moves = np.where(free, 0.5 + r_turns * moves, 0.0)
        return _State(r, np.log(deadline / energy), h.per_q * turns, r_moves, moves / h.per_q)

    def ends(self, price: FloatArray) -> tuple[BoolArray, BoolArray]:
        """Return where the deadline's load is smaller even at the slowest, and larger even at full speed."""
        on_d, on_e, tau, watts = self.full
        r = self.wish(on_d, price)[0]
        late = r * on_d + tau >= r * on_e + watts
        if self.ease is None:
            return np.zeros_like(late), late
        on_d, on_e, tau, watts = self.ease
        r = self.wish(on_e, price)[0]
        return r * on_d + tau <= r * on_e + watts, late

    def demand(self, s: FloatArray) -> FloatArray:
        """Return the total demand at the price 1/s², ``[..., 1]``."""
        price = 1.0 / (s * s)
        log_price = np.log(price)
        first = self.q + np.clip(self.q_moves * (log_price - self.log_price), -1.0, 1.0)

        def gap(q: FloatArray) -> tuple[FloatArray, FloatArray]:
            found = self.at(q, price)
            return found.gap, found.slope

        ends = self.ends(price)
        self.q = root(gap, *self.bounds, first, tolerance=TOLERANCE, ends=ends)
        found = self.at(self.q, price)
        # At an end, where one load decides, λ does not move.
        alone = ends[0] | ends[1]
        free = (found.r > self.r_low) & (found.r < self.r_high)
        moves = np.where(alone, 0.5 * free, np.nan_to_num(np.clip(found.r_moves, 0.0, 4.0)))
        self.q_moves = np.where(alone, 0.0, np.nan_to_num(found.q_moves))
        self.log_price = log_price
        self.share = np.where(self.active, 1.0 / found.r, 0.0)
        self.slope = total(2.0 * moves * self.share)
        return total(self.share)


def solve(problem: PowerProblem, active: BoolArray) -> Allocation | None:
    """Return the optimum by the fast iteration or, if that fails, by the safe one; None if infeasible."""
    return power_newton.solve(problem, active) or solve_safely(problem, active)


def solve_safely(problem: PowerProblem, active: BoolArray) -> Allocation | None:
    """Return the optimal rates, shares, powers and clocks; None if infeasible for the active devices."""
    with np.errstate(all="ignore"):
        starts = range(0, problem.shape[-1], BLOCK)
        parts = [part_of(problem, slice(first, first + BLOCK)) for first in starts]
        blocks = [_block(part, active[..., i : i + BLOCK]) for i, part in zip(starts, parts, strict=True)]
        least = [block.shares(block.r_high) for block in blocks]
        fewest = sum_of([total(each) for each in least])
        if not (fewest <= FITS).all():
            return None
        # If not all devices can have enough band, those without weight get their least share: they set no price.
        scarce = sum_of([total(block.shares(block.r_low)) for block in blocks]) > BAND
        for block in blocks:
            block.r_low = np.where(scarce & (block.weight <= _NOBODY), block.r_high, block.r_low)
        most = [block.shares(block.r_low) for block in blocks]
        enough = sum_of([total(each) for each in most])
        loose, tight = enough <= BAND, fewest >= BAND
        start = 1.0 / sum_of([block.start() for block in blocks])
        if tight.any():
            last = [_last(block, part) for block, part in zip(blocks, parts, strict=True)]
            start = np.where(tight, np.minimum.reduce(last), start)
        s, passes = clear(
            lambda s: sum_of([block.demand(s) for block in blocks]),
            lambda _: sum_of([np.asarray(block.slope) for block in blocks]),
            start,
            loose | tight,
        )
        share = np.concatenate([block.share for block in blocks], axis=-1)
        share = share * np.minimum(1.0, BAND / total(share))
        share = np.where(tight, np.concatenate(least, axis=-1) * (BAND / fewest), share)
        share = np.where(loose, np.concatenate(most, axis=-1) * (BAND / enough), share)
        price = np.where(loose | (s > FREE), 0.0, 1.0 / (s * s))
    guess = np.concatenate([block.q for block in blocks], axis=-1)
    return finish(problem, share=share, active=active, iterations=passes, price=price, guess=guess)


def _block(part: PowerProblem, active: BoolArray) -> _Block:
    """Return the devices of a block, with q midway between its values at the least share and at enough."""
    shape = active.shape
    object.__setattr__(part, "shape", shape)
    c = needs(part, part.link(np.ones(shape)))
    tops = np.broadcast_to(1.0 / (1.0 - part.max_rate), shape)
    (r_high, r_low), (q_high, q_low) = reach(part, np.stack([tops, np.ones(shape)]), c=c)
    r_high = np.where(active, r_high, 1.0)
    r_low = np.where(active, np.minimum(r_low, r_high), 1.0)
    return _Block(
        needs=c,
        full=c.full_speed(),
        ease=c.at_ease(),
        weight=np.maximum(part.weight, _NOBODY),
        active=active,
        r_low=r_low,
        r_high=r_high,
        bounds=c.bounds(),
        q=0.5 * (q_high + q_low),
        share=1.0 / r_high,
    )


def _last(block: _Block, part: PowerProblem) -> FloatArray:
    """Return the largest s at which all devices of a block are at their least share, ``[..., 1]``."""
    share = 1.0 / block.r_high
    worth = block.weight * pace(part, share).fall / share
    last: FloatArray = np.min(np.where(block.active, 1.0 / np.sqrt(worth), np.inf), axis=-1, keepdims=True)
    return last
