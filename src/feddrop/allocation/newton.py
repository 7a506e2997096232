"""The optimum for any convex objective by one Newton iteration on the price and all devices together.

With y = log ρ and z the larger left side of C1 and C2, the share at which a unit of band is worth its price μ solves

    log(-w φ'(s)) + 2 log s + log(-dz/dy) - y = log μ,        s = 1/z,

between the share at which z = 1/(1-θ) and the one at which z = 1; see :mod:`feddrop.allocation.convex`. Where the two
constraints cross, the left side jumps, and the crossing is the answer for a range of prices. Every equation but that of
the band, Σ e^y = 1, has the unknown of one device only, so a step costs one pass over the devices. About seven suffice.
If the iteration does not converge, ``solve`` returns None and the safe search takes over.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from feddrop.allocation.exact import MANY, sum_of
from feddrop.allocation.kkt import P1Problem
from feddrop.allocation.objectives import InverseKept, Objective
from feddrop.allocation.problem import BLOCK, GUARD, BoolArray, Curves, FloatArray, Side, part_of, total
from feddrop.allocation.roots import BAND

_PASSES, _FIRST = 40, 3  # the most passes, and those over a block before the next one, from the price of a sample
_SETTLED = 2.0**-27  # length of the last step; the error after it is its square
_FINE = 2.0**-36  # the same for a general φ, whose slope may vanish at s = 1: Newton's steps are worse there
_LEFT = 2.0**-40  # band left after it, relative to the band
_LONGEST, _FARTHEST, _LOST = 4.0, 4.0, 60.0  # the longest steps of y and of log μ, and the farthest that log μ may go
_FLAT, _TINY, _ZERO = 1e-9, 1e-300, np.zeros(())
_JUMP = 1.0
_LOG_GUARD = float(np.log(GUARD))
_FREELY = 10  # passes before brackets are kept: few need more
_STEP = 1e-6  # relative step in s of the differences of φ'


class Found(NamedTuple):
    """Shares ``[..., num_devices]``, the price of the band ``[..., 1]``, and the number of passes."""

    share: FloatArray
    price: FloatArray
    passes: int


def solve(problem: P1Problem, active: BoolArray, objective: Objective, weight: FloatArray) -> Found | None:
    """Return the optimal shares; None if the iteration does not converge or the problem is infeasible.

    Args:
        problem: one round or a batch of rounds.
        active: devices that take part, ``[..., num_devices]``.
        objective: φ.
        weight: of the devices in the objective.
    """
    weight = np.broadcast_to(weight, problem.shape)
    count = total(active)
    with np.errstate(all="ignore"):
        blocks = []
        for first in range(0, problem.shape[-1], BLOCK):
            block = slice(first, first + BLOCK)
            part = part_of(problem, block)
            here = active[..., block]
            blocks.append(_Block(problem.curves(block), part, here, objective, weight[..., block], count))
        some = blocks[::16] if len(blocks) > MANY else blocks
        log_price = 2.0 * np.log(sum_of([block.start() for block in some]) * (len(blocks) / len(some)))
        if len(some) < len(blocks):
            if (sample := _settle(some, log_price, len(some) / len(blocks))) is None:
                return None
            log_price = sample[1]
            for each in blocks:
                each.approach(log_price)
        if (settled := _settle(blocks, log_price)) is None:
            return None
        passes, log_price, loose = settled
        share = np.concatenate([block.shares() for block in blocks], axis=-1)
        moving = np.concatenate([block.moving for block in blocks], axis=-1)
        share = _filled(share, moving & ~loose)
        return Found(share, np.where(loose, 0.0, np.exp(log_price)), passes)


def _filled(share: FloatArray, moving: BoolArray) -> FloatArray:
    """Return shares that fill the band exactly: those that follow the price make up for rounding."""
    rest = BAND - total(np.where(moving, 0.0, share))
    free = total(np.where(moving, share, 0.0))
    share = np.where(moving, share * (rest / np.where(free > 0, free, 1.0)), share)
    used = total(share)
    return share * np.where((free > 0) & (used <= BAND * (1.0 + 2.0**-50)), 1.0, BAND / used)


def _settle(blocks: list[_Block], log_price: FloatArray, part: float = 1.0) -> tuple[int, FloatArray, BoolArray] | None:
    """Take Newton steps until the blocks fill a part of the band.

    Returns:
        The number of passes, log μ, and in which rounds all devices have enough band, ``[..., 1]``; None on failure.
    """
    band, first = BAND * part, log_price
    short = _SETTLED if blocks[0].objective is None else _FINE
    change, trust = np.zeros_like(first), np.full_like(first, _FARTHEST)
    for passes in range(1, _PASSES + 1):
        ahead, falls, wanting, above = sum_of([block.look(log_price) for block in blocks])
        off = reduce(np.maximum, [block.off for block in blocks])
        loose = (wanting == 0) & (ahead <= band)
        over = np.where(loose, 0.0, np.log(ahead / band))
        settled = (off <= short) & (np.abs(over) <= _LEFT)
        if settled.all():
            return passes, log_price, loose
        if ((above == 0) & (over > _LEFT) & (off <= _SETTLED)).any():
            return None  # even the least shares do not fit
        wanted = np.where(falls > 0, over * ahead / np.maximum(falls, _TINY), np.sign(over) * _FARTHEST)
        change, trust = cut(wanted, change, trust, _FARTHEST)
        change = np.where(settled, 0.0, change)
        log_price = log_price + change
        if not (np.abs(log_price - first) <= _LOST).all():
            return None
        for block in blocks:
            block.move(change)
    return None


def cut(step: FloatArray, last: FloatArray, trust: FloatArray, longest: float) -> tuple[FloatArray, FloatArray]:
    """Return the step, cut to the trust length, and that length: half the last step if it reverses, else growing."""
    trust = np.where(step * last < 0, 0.5 * np.abs(last), np.minimum(10.0 * trust, longest))
    return np.minimum(np.maximum(step, -trust), trust), trust


class _Block:
    """The devices of a block and the state of the iteration.

    Attributes:
        off: the longest step of a device, ``[..., 1]``.
        moving: devices whose share follows the price.
    """

    def __init__(
        self,
        curves: Curves,
        part: Any,
        active: BoolArray,
        objective: Objective,
        weight: FloatArray,
        count: FloatArray,
    ) -> None:
        self.curves, self.active, self.all = curves, active, bool(active.all())
        self.objective = None if isinstance(objective, InverseKept) else objective
        self.weighty = bool((weight > 0).all())
        self.log_weight, self.log_top = np.log(weight), -np.log1p(-part.max_rate)
        self.one_sided = bool(np.isinf(part.budget_j).all())
        self.y = np.broadcast_to(-np.log(count), active.shape) + 0.0
        self.step = self.follows = np.zeros(active.shape)
        self.moving, self.off, self.looks = active, np.zeros(()), 0
        self.left = self.right = self.left_worth = self.right_worth = np.zeros(())

    def start(self) -> FloatArray:
        """Return Σ ρ sqrt(worth) at equal shares, ``[..., 1]``: if z were α/ρ, its square would be the price."""
        sides = self.curves.sides(np.exp(self.y))
        cost = self._cost(np.log(reduce(np.maximum, [side.z for side in sides])))
        loss = self.log_weight - self.y
        worth = reduce(np.fmax, [self._gain(side, loss, _ZERO, *cost)[0] for side in sides])
        return total(np.where(self.active, np.exp(0.5 * (worth + self.y)), 0.0))

    def approach(self, log_price: FloatArray) -> None:
        """Take steps at this price while the block is in the cache."""
        while self.looks < _FIRST:
            self.look(log_price)
            self.move(_ZERO)

    def look(self, log_price: FloatArray) -> FloatArray:
        """Compute the step of every device at a price.

        Returns:
            ``[4, ..., 1]``: the sum of the shares after the steps, its negative derivative in log μ, whether any device
            lacks band, and whether any has more than its least share.
        """
        sides, loss = self.curves.sides(np.exp(self.y)), self.log_weight - self.y - log_price
        late, spent = sides[0], sides[-1]
        steep = late.fall / late.z
        if self.one_sided:
            log_z = np.log(late.z)
            gain, turn = self._gain(late, loss, steep, *self._cost(log_z))
            aim, free = -gain / turn, np.asarray(True)
        else:
            other_steep, apart, log_z = (
                spent.fall / spent.z,
                np.log(late.z / spent.z),
                np.log(np.maximum(late.z, spent.z)),
            )
            cost = self._cost(log_z)
            gain, turn = self._gain(late, loss, steep, *cost)
            other_gain, other_turn = self._gain(spent, loss, other_steep, *cost)
            first, binds = steep >= other_steep, apart >= 0
            aim, other, kink = -gain / turn, -other_gain / other_turn, apart / (steep - other_steep + _TINY)
            # The steeper side binds left of the kink, the flatter one right of it.
            left, right = np.where(first, aim, other), np.where(first, other, aim)
            before = ~(left >= kink)
            aim = np.where(before, left, np.fmax(right, kink))
            free, turn = aim != kink, np.where(before == first, turn, other_turn)
            gain, steep = np.where(binds, gain, other_gain), np.where(binds, steep, other_steep)
        per = 1.0 / steep
        high = (log_z - _LOG_GUARD) * per
        low = high - self.log_top * per
        step = np.fmin(np.fmax(aim, low), high)
        self.looks += 1
        if self.looks > _FREELY:
            # What is known of the worth brackets the answer at any price: it falls with the share.
            worth = np.where(low > 0, np.inf, np.where(high < 0, -np.inf, gain + log_price))
            self._learn(worth, log_price)
            target = self.y + step
            inside = self._within(target)
            step = np.where(inside == target, step, inside - self.y)
        moving, wanting, above = (step == aim) & free, step < high, step > low
        if not (self.all and self.weighty):
            wanting = wanting & self.active & (self.log_weight > -np.inf)
            step, moving, above = np.where(self.active, step, 0.0), moving & self.active, above & self.active
        self.off = np.max(np.abs(step), axis=-1, keepdims=True)
        self.step = np.minimum(np.maximum(step, -_LONGEST), _LONGEST)
        self.follows, self.moving = moving / turn, moving
        share = self.shares()
        some = (np.any(wanting, axis=-1, keepdims=True), np.any(above, axis=-1, keepdims=True))
        return np.array([total(share), -total(share * self.follows), *some])

    def _learn(self, worth: FloatArray, log_price: FloatArray) -> None:
        """Update the bracket of the answer at this price with the worth at y."""
        y = self.y
        if self.left.ndim == 0:
            self.left, self.right = np.full(y.shape, -np.inf), np.full(y.shape, np.inf)
            self.left_worth, self.right_worth = np.full(y.shape, np.inf), np.full(y.shape, -np.inf)
        dear, cheap = self.left_worth > log_price, self.right_worth < log_price
        # A point that was left of the answer at the last price may be right of it now, and the reverse.
        left = np.where(dear, self.left, np.where(cheap, -np.inf, self.right))
        right = np.where(cheap, self.right, np.where(dear, np.inf, self.left))
        left_worth = np.where(dear, self.left_worth, np.where(cheap, np.inf, self.right_worth))
        right_worth = np.where(cheap, self.right_worth, np.where(dear, -np.inf, self.left_worth))
        up = worth > log_price
        more, less = up & (y > left), ~up & (y < right)
        self.left, self.left_worth = np.where(more, y, left), np.where(more, worth, left_worth)
        self.right, self.right_worth = np.where(less, y, right), np.where(less, worth, right_worth)

    def _within(self, target: FloatArray) -> FloatArray:
        """Return the target, or the middle of the bracket if it is far outside."""
        inside, width = np.minimum(np.maximum(target, self.left), self.right), self.right - self.left
        away = np.where(inside != self.y, inside, np.where(self.left == self.y, self.y + _JUMP, self.y - _JUMP))
        middle = np.where(np.isfinite(width), 0.5 * (self.left + self.right), away)
        # The end of the bracket is fine if it is near, but a device that is there already must move.
        beyond, rounding = np.abs(inside - target), _LEFT * np.maximum(1.0, np.abs(self.y))
        near = np.where(inside == self.y, rounding, np.maximum(rounding, 0.25 * np.fmin(width, 1.0)))
        return np.where(beyond <= near, inside, middle)

    def move(self, change: FloatArray) -> None:
        """Take the step for this change of log μ."""
        step = self.step + self.follows * change
        self.y = self.y + np.minimum(np.maximum(step, -_LONGEST), _LONGEST)

    def shares(self) -> FloatArray:
        """Return the shares after the step; 0 for inactive devices."""
        share = np.exp(self.y + self.step)
        return share if self.all else np.where(self.active, share, 0.0)

    def _cost(self, log_z: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the logarithm of -dφ/dz, and its derivative in log s; 0 and 0 for φ = 1/s = z."""
        if self.objective is None:
            return _ZERO, _ZERO
        log_s = -np.minimum(np.maximum(log_z, 0.0), self.log_top)
        s = np.exp(log_s)
        slope, before = self.objective.slope(s), self.objective.slope(s * (1.0 - _STEP))
        bends = np.minimum((1.0 - before / slope) / _STEP, 0.0)
        return np.log(-slope) + 2.0 * log_s, (2.0 + bends) * ((log_z > 0) & (log_z < self.log_top))

    def _gain(
        self, side: Side, loss: FloatArray, steep: FloatArray, log_cost: FloatArray, bends: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the logarithm of -w dφ/dρ over the price if this side binds, and its derivative in log ρ."""
        gain, turn = loss + np.log(side.fall), side.bend - 1.0
        if self.objective is None:
            return gain, turn
        return gain + log_cost, np.minimum(turn + steep * bends, -_FLAT)
