"""The optimum for any convex objective: minimise Σ w_k φ(s_k) under the constraints of P1.

With a share ρ of the band, a device keeps at most s(ρ) = min(1, 1/z(ρ)) of the network, where z(ρ) is the larger left
side of C1 and C2. s is concave and rising in ρ, and φ is convex and falling, so F_k(ρ) = w_k φ(s_k(ρ)) is convex: the
problem is separable and convex over Σ ρ_k ≤ 1. At a price μ of the band, device k takes the share at which one more
unit of band is worth its price,

    g_k(ρ) = -w_k φ'(s) s² · fall(ρ) = μ,       fall: how fast the binding left side falls with ρ,

one monotone root per device; an outer root finds the price at which the shares fill the band. Where g jumps (a kink) or
is constant (a linear objective without computation), demand jumps at the price: shares on both sides of it are mixed to
fill the band, which is optimal, too.

The dual bound Σ min_ρ (F_k(ρ) + μρ) - μ certifies the result: the gap to it is :attr:`Optimum.gap`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from feddrop.allocation.objectives import Objective
from feddrop.allocation.problem import GUARD, BoolArray, FloatArray, total
from feddrop.allocation.roots import BAND
from feddrop.allocation.solution import Allocation, P1Problem, Status, finish, loads

_STEPS = 200
_LEAST, _MOST = -690.0, 690.0  # logarithms of the prices looked at


class Optimum(NamedTuple):
    """An allocation and how good it is.

    Attributes:
        allocation: rates and shares; its objective is Σ w_k φ(s_k).
        gap: its objective minus the dual bound, relative to the objective, ``[..., 1]``: how much could be gained.
    """

    allocation: Allocation
    gap: FloatArray


def solve(problem: P1Problem, active: BoolArray, objective: Objective, scheme: str = "exact") -> Optimum:
    """Find the optimal rates and shares; the problem must be feasible for the active devices.

    Args:
        problem: one round or a batch of rounds.
        active: devices that take part, ``[..., num_devices]``.
        objective: φ.
        scheme: name of the allocation.
    """
    with np.errstate(all="ignore"):
        demand = _Demand(problem, active, objective)
        low, high, price, steps = _clear(demand)
        room, wanted = BAND - total(low), total(high - low)
        mix = np.where(wanted > 0, np.clip(room / np.where(wanted > 0, wanted, 1.0), 0.0, 1.0), 0.0)
        share = low + mix * (high - low)
        used = total(share)
        share = share * np.where(used > 0, BAND / used, 1.0)  # what nobody needs is shared out in proportion
        found = finish(
            problem, share=share, active=active, scheme=scheme, status=Status.OPTIMAL, iterations=steps, price=price
        )
        value = total(demand.cost(found.share))
        bound = total(demand.cost(low) + price * low) - price
        gap = np.maximum(value - bound, 0.0) / np.maximum(np.abs(value), 1e-300)
    worth = value[..., 0]
    return Optimum(replace(found, objective=float(worth) if worth.ndim == 0 else worth), gap)


class _Demand:
    """The shares that devices ask for at a price."""

    def __init__(self, problem: P1Problem, active: BoolArray, objective: Objective) -> None:
        self._problem, self._active, self._objective = problem, active, objective
        self._weight = objective.weights(np.broadcast_to(problem.weight, problem.shape))
        least = problem.least_share(1.0 / (1.0 - problem.max_rate))
        enough = np.minimum(problem.least_share(np.ones(())), 1.0)
        self.least = np.where(active, np.minimum(least, 1.0), 0.0)
        self._x = np.log(np.where(active, least, 0.5)), np.log(np.where(active, np.maximum(enough, least), 0.5))
        self.worth_of_least, self.worth_of_most = (self._log_worth(x) for x in self._x)

    def kept(self, share: FloatArray) -> FloatArray:
        """Return the share s of the network that a device keeps."""
        deadline, energy = loads(self._problem, np.where(self._active, share, 1.0))
        return np.minimum(GUARD / np.maximum(deadline, energy), 1.0)

    def cost(self, share: FloatArray) -> FloatArray:
        """Return w φ(s) of every active device."""
        s = np.maximum(self.kept(share), 1.0 - self._problem.max_rate)
        return np.where(self._active, self._weight * self._objective.value(s), 0.0)

    def at(self, log_price: FloatArray) -> FloatArray:
        """Return the shares asked for, ``[..., num_devices]``."""
        low, high = self._x

        def over(x: FloatArray) -> FloatArray:
            return self._log_worth(x) - log_price

        x = falling_root(over, low, high, self.worth_of_least - log_price, self.worth_of_most - log_price)[0]
        return np.where(self._active, np.exp(x), 0.0)

    def _log_worth(self, x: FloatArray) -> FloatArray:
        """Return log g at shares exp(x)."""
        share = np.exp(x)
        deadline, energy = loads(self._problem, share)
        fall_d, fall_e = (side.fall / share for side in self._problem.curves().sides(share))
        z = np.maximum(deadline, energy)
        s = 1.0 / np.maximum(z, 1.0)
        worth = -self._weight * self._objective.slope(s) * s**2 * np.where(deadline >= energy, fall_d, fall_e)
        return np.where((worth > 0) & (z > 1.0), np.log(worth), _LEAST)


def _clear(demand: _Demand) -> tuple[FloatArray, FloatArray, FloatArray, int]:
    """Return the shares just above and just below the price that fills the band, the price, and the steps."""
    shape = (*demand.least.shape[:-1], 1)
    low = np.full(shape, _LEAST + 1.0)
    high = np.minimum(np.max(demand.worth_of_least, axis=-1, keepdims=True) + 1e-9, _MOST)
    high = np.maximum(high, low + 1.0)

    def over(log_price: FloatArray) -> FloatArray:
        return np.log(total(demand.at(log_price)) / BAND)

    f_low, f_high = over(low), over(high)
    root, below, above, steps = falling_root(over, low, high, f_low, f_high)
    loose = f_low <= 0  # even at no price the band is not full
    cheap, dear = np.where(loose, low, below), np.where(loose, low, np.where(f_high >= 0, high, above))
    price = np.where(loose, 0.0, np.exp(root))
    return demand.at(dear), demand.at(cheap), price, steps


def falling_root(
    function: Callable[[FloatArray], FloatArray],
    low: FloatArray,
    high: FloatArray,
    f_low: FloatArray,
    f_high: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray, int]:
    """Find the roots of falling functions, entry by entry; an end of the bracket where there is none.

    The Illinois variant of the secant method, with a bisection in every third step.

    Returns:
        The roots, the ends of the last brackets, and the number of steps.
    """
    shape = np.shape(f_low)
    first, last = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
    none_low, none_high = f_low <= 0, f_high >= 0
    low, high = first, last
    f_low, f_high = np.where(none_low, 1.0, f_low), np.where(none_high, -1.0, f_high)
    for step in range(1, _STEPS + 1):
        middle = 0.5 * (low + high)
        if step % 3:
            secant = low + (high - low) * (f_low / (f_low - f_high))
            middle = np.where((secant > low) & (secant < high), secant, middle)
        f = function(middle)
        up, hit = f > 0, f == 0
        f_low, f_high = np.where(up, f, 0.5 * f_low), np.where(up, 0.5 * f_high, f)
        low, high = np.where(up | hit, middle, low), np.where(up, high, middle)
        if (none_low | none_high | (high - low <= 4e-16 * (1.0 + np.abs(low)))).all():
            break
    low, high = (np.where(none_low, first, np.where(none_high, last, end)) for end in (low, high))
    return 0.5 * (low + high), low, high, step
