"""The optimum for any convex objective by a search that cannot fail: minimise Σ w_k φ(s_k) under the constraints of P1.

With a share ρ of the band, a device keeps at most s(ρ) = min(1, 1/z(ρ)) of the network, where z(ρ) is the larger left
side of C1 and C2, at the best clock and power if these are chosen.

**s is concave in ρ**, so F_k(ρ) = w_k φ(s_k(ρ)) is convex for every convex falling φ, and the problem is separable and
convex over Σ ρ_k ≤ 1. Proof: in the logarithms of ρ, clock and power, every term of both left sides is convex (a time
on the air is c/(ρ ln(1 + S)) with S proportional to the power, and to 1/ρ under subband noise; ln ln(1 + e^v) is
concave in v), hence so are log z = log max(Σ terms) and its least value over the limits of clock and power. So the
elasticity e = -d log z / d log ρ does not rise with ρ. It is at most 1, since at the same clock and power a share λ
times smaller takes at most λ times as long. Then d log(ds/dρ) / d log ρ = e - 1 + d log(e) / d log ρ ≤ 0.

At a price μ of the band, device k takes the share at which one more unit of band is worth its price,

    g_k(ρ) = -w_k φ'(s) s² (-dz/dρ) = μ,

one monotone root per device; an outer search finds the price at which the shares fill the band. Where g jumps (the two
constraints cross, or φ' jumps) or is constant (a linear objective without computation), demand jumps at the price:
shares on both sides of it are mixed to fill the band, which is optimal, too.

The dual bound Σ min_ρ (F_k(ρ) + μρ) - μ certifies the result: :attr:`Allocation.gap` is the distance to it.
:mod:`feddrop.allocation.newton` finds the same optimum faster where demand is smooth.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from feddrop.allocation.objectives import Objective
from feddrop.allocation.problem import BLOCK, GUARD, BoolArray, Curves, FloatArray, part_of, total
from feddrop.allocation.roots import BAND, narrow
from feddrop.allocation.solution import Allocation, AnyProblem, finish

_LEAST, _MOST = -690.0, 690.0  # range of the logarithms of prices that is searched
_WIDTH = 2.0**-51


def solve(problem: AnyProblem, active: BoolArray, objective: Objective) -> Allocation:
    """Return the optimal rates and shares, certified; the problem must be feasible for the active devices.

    Args:
        problem: one round or a batch of rounds.
        active: devices that take part, ``[..., num_devices]``.
        objective: φ.
    """
    with np.errstate(all="ignore"):
        market = Market(problem, active, objective)
        log_price, steps = market.clear()
        price = np.exp(log_price) * ~market.loose
        low, high = market.shares()
        room, wanted = BAND - total(low), total(high - low)
        mix = np.where(wanted > 0, np.clip(room / np.where(wanted > 0, wanted, 1.0), 0.0, 1.0), 0.0)
        share = low + mix * (high - low)
        used = total(share)
        share = share * np.where(used > 0, BAND / used, 1.0)  # unused band is split in proportion
        value, bound = total(market.costs(share)), total(market.costs(low) + price * low) - price
        gap = np.maximum(value - bound, 0.0) / np.maximum(np.abs(value), 1e-300)
    return finish(problem, share=share, active=active, iterations=steps, price=price, phi=objective, gap=gap)


class Market:
    """The shares that devices demand at a price, and the search for the price that clears the band.

    Args:
        problem: one round or a batch of rounds.
        active: devices that take part; each must be feasible with the whole band.
        objective: φ.
        absent: what it costs to leave out each device, ``[..., num_devices]``; None if that is not allowed.

    Attributes:
        loose: rounds in which the band is not scarce, ``[..., 1]``.
    """

    def __init__(
        self, problem: AnyProblem, active: BoolArray, objective: Objective, absent: FloatArray | None = None
    ) -> None:
        self._rounds, self._absent = (*problem.shape[:-1], 1), absent is not None
        weight = np.broadcast_to(objective.weights(problem.weight), problem.shape)
        least = problem.least_share(1.0 / (1.0 - problem.max_rate))
        enough = np.maximum(np.minimum(problem.least_share(np.ones(())), 1.0), least)
        self._blocks = []
        for first in range(0, problem.shape[-1], BLOCK):
            cut = slice(first, first + BLOCK)
            low, high = (np.log(np.where(active[..., cut], each[..., cut], 0.5)) for each in (least, enough))
            out = None if absent is None else absent[..., cut]
            part, here = part_of(problem, cut), active[..., cut]
            self._blocks.append(_Block(problem.curves(cut), part, here, objective, weight[..., cut], low, high, out))
        self.loose: BoolArray = np.zeros(self._rounds, np.bool_)

    def clear(self) -> tuple[FloatArray, int]:
        """Search for the price; return its logarithm, ``[..., 1]``, and the number of prices tried."""
        high = reduce(np.maximum, [np.max(block.dear[1], axis=-1, keepdims=True) for block in self._blocks])
        low = np.full(self._rounds, _LEAST + 1.0)
        if not self._absent:  # below this price, all devices with samples have enough; absence may still pay
            worths = [np.where(block.cheap[1] > _LEAST, block.cheap[1], np.inf) for block in self._blocks]
            least = reduce(np.minimum, [np.min(worth, axis=-1, keepdims=True) for worth in worths]) - 1e-9
            low = np.where(np.isfinite(least), np.maximum(least, low), low)
        high = np.maximum(np.minimum(high + 1e-9, _MOST), low + 1.0)
        steps = 0

        def over(log_price: FloatArray) -> FloatArray:
            nonlocal steps
            steps += 1
            value = np.log(sum(block.demand(log_price) for block in self._blocks) / BAND)
            for block in self._blocks:
                block.keep(value > 0)
            return np.maximum(value, _LEAST)

        f_high = over(high)
        f_low = over(low)  # last: in loose rounds, what is remembered is the demand at no price
        self.loose = f_low <= 0
        low, f_low = np.where(f_high > 0, high, low), np.where(f_high > 0, f_high, f_low)
        high, f_high = np.where(self.loose, low, high), np.where(self.loose, f_low, f_high)
        (left, _), (right, _) = narrow(over, (low, f_low), (high, f_high), width=_WIDTH)
        return 0.5 * (left + right), steps

    def shares(self) -> tuple[FloatArray, FloatArray]:
        """Return the shares just above and just below the price, ``[..., num_devices]``."""
        dear, cheap = (np.concatenate([b.shares(end) for b in self._blocks], axis=-1) for end in (True, False))
        return dear, np.where(self.loose, dear, cheap)

    def wishes(self) -> FloatArray:
        """Return the shares that devices would take at the price, whether they are in or not."""
        return np.concatenate([np.exp(block.dear[0]) for block in self._blocks], axis=-1)

    def costs(self, share: FloatArray) -> FloatArray:
        """Return w φ(s) at these shares; 0 for inactive devices."""
        starts = range(0, share.shape[-1], BLOCK)
        parts = [b.cost(share[..., i : i + BLOCK]) for i, b in zip(starts, self._blocks, strict=True)]
        return np.concatenate(parts, axis=-1)


class _Block:
    """The devices of a block.

    Attributes:
        dear: log ρ and log g at the highest price known to leave band, or at the least shares.
        cheap: the same at the lowest price known to fill it, or at enough band.
    """

    def __init__(
        self,
        curves: Curves,
        part: Any,
        active: BoolArray,
        objective: Objective,
        weight: FloatArray,
        low: FloatArray,
        high: FloatArray,
        absent: FloatArray | None,
    ) -> None:
        self._curves, self._active, self._objective, self._absent = curves, active, objective, absent
        self._weight, self._least = weight, 1.0 - part.max_rate
        self.dear, self.cheap = (low, self._log_worth(low)), (high, self._log_worth(high))
        self._dear_in = self._cheap_in = active
        self._last: tuple[Any, Any, BoolArray, FloatArray] | None = None

    def demand(self, log_price: FloatArray) -> FloatArray:
        """Return the total share demanded at a price, ``[..., 1]``."""
        (y_low, g_low), (y_high, g_high) = self.dear, self.cheap
        few, many = g_low <= log_price, g_high >= log_price

        def over(y: FloatArray) -> FloatArray:
            return self._log_worth(y) - log_price

        left = np.where(many, y_high, y_low), np.where(many, g_high, g_low) - log_price
        right = np.where(few, y_low, y_high), np.where(few, g_low, g_high) - log_price
        left, right = narrow(over, left, right, width=_WIDTH)
        share, inside = np.exp(right[0]), self._active
        if self._absent is not None:
            inside = inside & (self.cost(share) + np.exp(log_price) * share < self._absent)
        self._last = left, right, inside, log_price
        return total(np.where(inside, share, 0.0))

    def keep(self, short: BoolArray) -> None:
        """Remember the last demand: as that of too low a price where the band falls short, else of too high a one."""
        if self._last is None:
            return
        left, right, inside, log_price = self._last
        self.dear = _either(short, self.dear, (left[0], left[1] + log_price))
        self.cheap = _either(short, (right[0], right[1] + log_price), self.cheap)
        self._dear_in, self._cheap_in = np.where(short, self._dear_in, inside), np.where(short, inside, self._cheap_in)

    def shares(self, dear: bool) -> FloatArray:
        """Return the shares of devices that are in, just above or just below the price."""
        inside, y = (self._dear_in, self.dear[0]) if dear else (self._cheap_in, self.cheap[0])
        return np.where(inside, np.exp(y), 0.0)

    def cost(self, share: FloatArray) -> FloatArray:
        """Return w φ(s) of every active device."""
        sides = self._curves.sides(np.where(self._active & (share > 0), share, 1.0))
        z = reduce(np.maximum, [side.z for side in sides])
        s = np.maximum(np.minimum(GUARD / z, 1.0), self._least)
        return np.where(self._active, self._weight * self._objective.value(s), 0.0)

    def _log_worth(self, y: FloatArray) -> FloatArray:
        """Return log g at shares e^y."""
        first, *others = self._curves.sides(np.exp(y))
        z, fall = first.z, first.fall
        for side in others:
            z, fall = np.maximum(z, side.z), np.where(side.z > z, side.fall, fall)
        s = np.maximum(1.0 / np.maximum(z, 1.0), self._least)
        worth = np.log(-self._weight * self._objective.slope(s) * fall) + 2.0 * np.log(s) - y
        return np.where(np.isnan(worth), _LEAST, np.maximum(worth, _LEAST))


def _either(choose: BoolArray, first: Any, second: Any) -> Any:
    return tuple(np.where(choose, a, b) for a, b in zip(first, second, strict=True))
