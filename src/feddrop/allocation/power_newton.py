"""The optimum of rate, share, power and clock by one Newton iteration on the price and all devices together.

:mod:`feddrop.allocation.exact_power` nests two iterations, an outer one for the price and an inner one for the devices,
which is safe for any problem. Here both take their steps together. With q the unknown of a device
(:mod:`feddrop.allocation.pace`) and l = log μ,

    gap_k(q_k, l) = log D_k - log E_k = 0,       Σ 1/r_k(q_k, l) = 1,
    r_k = clip(sqrt(μ/(w slope_k)), r at which D_k = 1, r at which D_k = 1/(1-θ))

each equation but the last has only one q, so a step costs one pass over the devices. Devices at full speed have no q:
their shares have closed forms (:class:`_FullSpeed`), so Newton's method meets no kink there. It converges in about five
passes. If it does not, or if the band is not scarce, ``solve`` returns None and the safe solver takes over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

import numpy as np

from feddrop.allocation.exact import sum_of
from feddrop.allocation.newton import cut
from feddrop.allocation.pace import MARGIN, Needs, chosen, hurry, needs
from feddrop.allocation.power import PowerProblem
from feddrop.allocation.problem import BLOCK, BoolArray, FloatArray, part_of, total
from feddrop.allocation.roots import BAND
from feddrop.allocation.solution import Allocation, finish

_PASSES = 24
_SETTLED = 2.0**-21  # length of the last step; the error after it is its square
_LEFT = 2.0**-42  # length of the step that would follow; if it is longer, the last step crossed a kink
_LONGEST, _FLAT = 1.5, 1e-9  # the longest step of q, and the slope below which clock, power and share are constant
_FARTHEST, _LOST = 3.0, 15.0  # the longest step of log μ, and its largest distance from the first guess
_NOBODY = 1e-200

_BLOCK = BLOCK // 2  # smaller blocks than elsewhere: a pass has more arrays that must fit into the cache


class _FullSpeed(NamedTuple):
    """Devices at full speed, with the highest clock and power, as long as the price keeps them there.

    At full speed D - E = r tilt - rest. At κ = 1 only the deadline binds; as κ falls, r moves until D = E; below the
    lowest κ of full speed, a slower device is better. All ``[..., block]``.
    """

    alone: FloatArray  # demanded 1/share at a price of 1 if only the deadline binds
    eased: FloatArray  # the same at the lowest κ at which full speed is best
    least: FloatArray  # the smallest useful 1/share: nothing is dropped
    most: FloatArray  # the largest 1/share with which the deadline is met
    tied: FloatArray  # 1/share at which D = E
    tilt: FloatArray  # dD/dr - dE/dr
    rest: FloatArray  # relative energy minus relative time of computing

    def at(self, root: FloatArray) -> tuple[BoolArray, FloatArray, BoolArray]:
        """Return which devices are at full speed at the price root², their 1/share, and where it follows the price."""
        wish = root * self.alone
        r = np.minimum(np.maximum(wish, self.least), self.most)
        alone = r * self.tilt >= self.rest
        eased = np.minimum(np.maximum(root * self.eased, self.least), self.most)
        held = alone | (eased * self.tilt >= self.rest)
        return held, np.where(alone, r, self.tied), alone & (r == wish)


@dataclass(slots=True)
class _Block:
    """Devices of a block and the state of the iteration: q, and after a pass all other values.

    An inactive device counts as one at full speed with a demand of 0.
    """

    part: PowerProblem
    needs: Needs
    full: _FullSpeed
    cap: FloatArray  # 1/(1-θ)
    weight: FloatArray
    top: FloatArray  # the highest q; above it clock and power are at their highest, and the slope is 0
    q: FloatArray  # the unknown of each device
    step: FloatArray  # step of q at constant price, at most ``trust``
    trust: FloatArray
    follows: FloatArray = field(init=False)  # d q / d log μ
    r: FloatArray = field(init=False)  # 1/share
    held: BoolArray = field(init=False)  # devices at full speed
    tau: FloatArray = field(init=False)  # time to compute of the others, in deadlines
    x: FloatArray = field(init=False)  # their spectral efficiency in nats
    bend: FloatArray = field(init=False)  # d log(d log λ / d q) / d q
    off: FloatArray = field(init=False)  # the longest step of a device, before it is cut

    def look(self, log_price: FloatArray) -> FloatArray:
        """Compute share and step of every device at a price.

        Returns:
            Sums over devices, ``[3, ..., 1]``: the shares, their change by the steps of q, and their negative
            derivative in log μ.
        """
        c, root = self.needs, np.exp(0.5 * log_price)
        held, held_r, held_free = self.full.at(root)
        h = hurry(self.q, c)
        on_d, on_e, tau = h.on_d, h.on_e, h.tau
        odd = 1.0 / (1.0 + h.odds)
        even = 1.0 - odd
        worth = even * on_d + odd * on_e
        wish = root / np.sqrt(self.weight * worth)
        most = (self.cap - tau) / on_d
        r = np.minimum(np.maximum(wish, (MARGIN - tau) / on_d), np.where(most > 0, most, np.inf))
        free = r == wish
        saved = c.up / h.x**2 * h.d_x
        turns_r = np.where(free, -0.5 * even * odd * (on_d - on_e) / worth, (saved - h.d_tau / r) / on_d)
        deadline, energy = r * on_d + tau, r * on_e + c.clock / tau**2
        per_d, per_e = 1.0 / deadline, 1.0 / energy
        tilt = r * (on_d * per_d - on_e * per_e)
        turns = tilt * turns_r + (h.d_tau - r * saved) * (per_d + h.odds * per_e)
        # Devices at full speed do not move.
        slope = np.where(held, -np.inf, h.per_q * np.minimum(turns, -_FLAT))
        step = np.log(energy * per_d) / slope
        self.off = np.maximum.reduce(np.abs(step), axis=-1, keepdims=True)
        self.step, self.trust = cut(step, self.step, self.trust, _LONGEST)
        ask = np.where(np.where(held, held_free, free), 0.5, 0.0)
        self.follows = -tilt * ask / slope
        self.held, self.r = held, np.where(held, held_r, r)
        self.tau, self.x, self.bend = tau, h.x, h.bend
        share = 1.0 / self.r
        along = share * h.per_q * turns_r
        return np.array([total(share), total(-along * self.step), total(share * ask + along * self.follows)])

    def move(self, log_price: FloatArray) -> None:
        """Take the step for this change of the price, with Newton's length in log λ rather than in q."""
        step = self.step + self.follows * log_price
        step = step * (1.0 - 0.5 * self.bend * step)
        here = np.where(self.held, self.top, self.q)  # a device that leaves full speed starts next to it
        self.q = np.minimum(here + np.minimum(np.maximum(step, -_LONGEST), _LONGEST), self.top)

    def chosen(self) -> tuple[FloatArray, ...] | None:
        """Return the current share, clock and power; None if a device misses its deadline."""
        c = self.needs
        tau, x = np.where(self.held, c.fast_tau, self.tau), np.where(self.held, c.fast_x, self.x)
        late = self.r * (c.down + c.up / x) + tau > self.cap * (1.0 + 1e-13)
        return None if (late & (self.r < np.inf)).any() else (1.0 / self.r, *chosen(self.part, tau, x, c))


def solve(problem: PowerProblem, active: BoolArray) -> Allocation | None:
    """Return the optimum if the band is scarce; None if this iteration does not find it.

    The noise must not depend on the share.
    """
    if np.any(problem.least_tx_power_w > 0):
        return None
    with np.errstate(all="ignore"):
        starts = range(0, problem.shape[-1], _BLOCK)
        blocks = [_block(part_of(problem, slice(i, i + _BLOCK)), active[..., i : i + _BLOCK]) for i in starts]
        if (settled := _settle(blocks)) is None:
            return None
        passes, log_price, band = settled
        found = [values for block in blocks if (values := block.chosen())]
        if len(found) < len(blocks):
            return None
        share, cpu_hz, tx_power_w = (np.concatenate(values, axis=-1) for values in zip(*found, strict=True))
        return finish(
            problem,
            share=share * np.minimum(1.0, BAND / band),
            active=active,
            iterations=passes,
            price=np.exp(log_price),
            paces=(cpu_hz, tx_power_w),
        )


def _settle(blocks: list[_Block]) -> tuple[int, FloatArray, FloatArray] | None:
    """Take Newton steps to convergence; return their number, log μ and the total share, or None on failure."""
    log_price = first = 2.0 * np.log(sum_of([total(1.0 / block.full.alone) for block in blocks]))
    change, trust, longest = np.zeros_like(first), np.full_like(first, _FARTHEST), np.full_like(first, np.inf)
    for passes in range(_PASSES + 1):
        share, steps, falls = sum_of([block.look(log_price) for block in blocks])
        off = reduce(np.maximum, [block.off for block in blocks])
        if longest.max() <= _SETTLED and np.maximum(off, np.abs(share - BAND)).max() <= _LEFT:
            return passes, log_price, share
        if np.abs(log_price - first).max() > _LOST:
            break
        # In logarithms: far from the solution, the total is closer to a power of the price than to a line.
        ahead = np.maximum(share + steps, 0.1 * share)
        wanted = np.log(ahead / BAND) * ahead / np.maximum(falls, _FLAT)
        change, trust = cut(wanted, change, trust, _FARTHEST)
        longest = np.maximum(np.abs(change), off)
        log_price = log_price + change
        for block in blocks:
            block.move(change)
    return None


def _block(part: PowerProblem, active: BoolArray) -> _Block:
    """Return the devices of a block, with q at equal weights of deadline and energy."""
    c = needs(part, part.link(np.ones(active.shape)))
    cap, weight, nothing = MARGIN / (1.0 - part.max_rate), np.maximum(part.weight, _NOBODY), np.zeros(active.shape)
    on_d, on_e, tau, spent = c.full_speed()
    tilt, rest, most = on_d - on_e, spent - tau, (cap - tau) / on_d
    full = _FullSpeed(
        alone=1.0 / np.sqrt(weight * on_d),
        eased=1.0 / np.sqrt(weight * (on_d - tilt / (1.0 + c.full_odds))),
        least=(MARGIN - tau) / on_d,
        most=np.where(most > 0, most, np.inf),
        tied=rest / tilt,
        tilt=tilt,
        rest=rest,
    )
    if not active.all():  # inactive devices stay at full speed with a demand of 0
        idle = {"alone": np.inf, "most": np.inf, "tilt": 1.0, "rest": -np.inf}
        full = full._replace(**{name: np.where(active, getattr(full, name), value) for name, value in idle.items()})
    top = c.top(passes=3) - 4e-6  # the largest error of three passes
    return _Block(
        part=part,
        needs=c,
        full=full,
        cap=cap,
        weight=weight,
        top=top,
        q=np.minimum(c.even(), top) + nothing,
        step=nothing,
        trust=np.full(active.shape, _LONGEST),
    )
