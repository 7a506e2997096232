"""The optimum of rate, share, power and clock by one Newton iteration on the price and all devices at once.

:mod:`feddrop.allocation.exact_power` finds the price of the band by an outer iteration, and at every price how fast
each device hurries by an inner one: safe, whatever the problem. Here both take their steps together. With q the unknown
of a device (:mod:`feddrop.allocation.pace`) and l = log μ,

    gap_k(q_k, l) = log D_k - log E_k = 0,       Σ 1/r_k(q_k, l) = 1,
    r_k = clip(sqrt(μ/(w slope_k)), r at which D_k = 1, r at which D_k = 1/(1-θ))

every equation but the last has one q alone, so that a step costs a pass over the devices. Devices at full speed have no
q: their shares have closed forms (:class:`_FullSpeed`), so that Newton's method meets no kink there. It settles in five
passes or so. Where it does not, or the band is not what is scarce, there is no answer from here: the safe solver gives
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np

from feddrop.allocation.exact import sum_of
from feddrop.allocation.pace import MARGIN, Needs, chosen, hurry, needs
from feddrop.allocation.power import PowerProblem
from feddrop.allocation.problem import BLOCK, BoolArray, FloatArray, part_of, total
from feddrop.allocation.roots import BAND
from feddrop.allocation.solution import Allocation, Status, finish

_PASSES = 24
_SETTLED = 2.0**-21
"""Of the last step; the error after it is its square."""

_LEFT = 2.0**-42
"""Of the step that would come next: if it is longer, the last one led over a kink."""

_LONGEST, _FLAT = 1.5, 1e-9
"""The longest step of q; and a slope that is none: there clock, power and share stay as they are."""

_FARTHEST, _LOST = 3.0, 15.0
"""The longest step of log μ; and how far from the first guess it may get: beyond, the band is no limit or too small."""

_NOBODY = 1e-200

_BLOCK = BLOCK // 2
"""Fewer devices than elsewhere: a pass has more arrays, and they should stay in the cache together."""


class _FullSpeed(NamedTuple):
    """Devices with clock and power at their highest: these stay there, if the price lets them.

    There D - E = r tilt - rest. At κ = 1 the deadline alone decides; as κ falls r moves until D = E, and where κ would
    fall below what both limits are worth, hurrying less is better. All ``[..., block]``.

    Attributes:
        alone: 1/share asked for at a price of 1 where the deadline alone decides.
        eased: the same at the lowest κ at which full speed is best.
        least: the smallest 1/share that is of use: nothing is dropped.
        most: the largest 1/share with which the deadline is met.
        tied: 1/share at which D = E.
        tilt: how much faster D grows with 1/share than E.
        rest: by how much more of the budget than of the deadline computing takes.
    """

    alone: FloatArray
    eased: FloatArray
    least: FloatArray
    most: FloatArray
    tied: FloatArray
    tilt: FloatArray
    rest: FloatArray

    def at(self, root: FloatArray) -> tuple[BoolArray, FloatArray, BoolArray]:
        """Who stays at full speed at the price root²; 1/share that he asks for; whether that moves with the price."""
        wish = root * self.alone
        r = np.minimum(np.maximum(wish, self.least), self.most)
        alone = r * self.tilt >= self.rest
        eased = np.minimum(np.maximum(root * self.eased, self.least), self.most)
        held = alone | (eased * self.tilt >= self.rest)
        return held, np.where(alone, r, self.tied), alone & (r == wish)


@dataclass(slots=True)
class _Block:
    """Devices of a block, where they stand: q, and after a pass all the rest.

    A device without a part counts as one at full speed that asks for nothing.

    Attributes:
        cap: 1/(1-θ).
        q: the unknown of each device.
        top: the highest q; above it clock and power are at their highest, and Newton's method could not go on.
        step: by which q would move at the same price; ``trust`` is as long as it may be.
        follows: how q moves with log μ.
        r: 1/share.
        held: who is at full speed.
        tau: part of the deadline to compute, of the others.
        x: their spectral efficiency.
        bend: how fast d log λ / d q changes.
        off: the longest step of a device, before it is cut.
    """

    part: PowerProblem
    needs: Needs
    full: _FullSpeed
    cap: FloatArray
    weight: FloatArray
    top: FloatArray
    q: FloatArray
    step: FloatArray
    follows: FloatArray
    r: FloatArray
    tau: FloatArray
    x: FloatArray
    bend: FloatArray
    held: BoolArray
    trust: FloatArray
    off: FloatArray

    def look(self, log_price: FloatArray) -> FloatArray:
        """Work out share and step of every device at a price.

        Returns:
            Over devices, ``[3, ..., 1]``: shares; how they change by the devices' own steps; how they fall with log μ.
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
        # Who is at full speed does not move.
        slope = np.where(held, -np.inf, h.per_q * np.minimum(turns, -_FLAT))
        step = np.log(energy * per_d) / slope
        self.off = np.maximum.reduce(np.abs(step), axis=-1, keepdims=True)
        self.step, self.trust = _cut(step, self.step, self.trust, _LONGEST)
        ask = np.where(np.where(held, held_free, free), 0.5, 0.0)
        self.follows = -tilt * ask / slope
        self.held, self.r = held, np.where(held, held_r, r)
        self.tau, self.x, self.bend = tau, h.x, h.bend
        share = 1.0 / self.r
        along = share * h.per_q * turns_r
        return np.array([total(share), total(-along * self.step), total(share * ask + along * self.follows)])

    def move(self, log_price: FloatArray) -> None:
        """Take the step that goes with one of the price: as long in log λ as Newton's, which is not as long in q."""
        step = self.step + self.follows * log_price
        step = step * (1.0 - 0.5 * self.bend * step)
        here = np.where(self.held, self.top, self.q)  # whoever leaves full speed begins next to it
        self.q = np.minimum(here + np.minimum(np.maximum(step, -_LONGEST), _LONGEST), self.top)

    def chosen(self) -> tuple[FloatArray, ...] | None:
        """Share, clock and power where it stands; None if some device does not meet the deadline there."""
        c = self.needs
        tau, x = np.where(self.held, c.fast_tau, self.tau), np.where(self.held, c.fast_x, self.x)
        late = self.r * (c.down + c.up / x) + tau > self.cap * (1.0 + 1e-13)
        return None if (late & (self.r < np.inf)).any() else (1.0 / self.r, *chosen(self.part, tau, x, c))


def solve(problem: PowerProblem, active: BoolArray) -> Allocation | None:
    """Find the optimum where the band is scarce; None where this iteration does not find it.

    Args:
        problem: a round or a batch of rounds; noise must not depend on the share.
        active: devices that have a part, ``[..., num_devices]``.
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
            scheme="exact",
            status=Status.OPTIMAL,
            iterations=passes,
            price=np.exp(log_price),
            paces=(cpu_hz, tx_power_w),
        )


def _settle(blocks: list[_Block]) -> tuple[int, FloatArray, FloatArray] | None:
    """Take Newton steps until nothing moves; return how many, log μ and the total share, or None where that fails."""
    log_price = first = 2.0 * np.log(sum_of([total(1.0 / block.full.alone) for block in blocks]))
    change, trust, longest = np.zeros_like(first), np.full_like(first, _FARTHEST), np.full_like(first, np.inf)
    for passes in range(_PASSES + 1):
        share, steps, falls = sum_of([block.look(log_price) for block in blocks])
        off = reduce(np.maximum, [block.off for block in blocks])
        if longest.max() <= _SETTLED and np.maximum(off, np.abs(share - BAND)).max() <= _LEFT:
            return passes, log_price, share
        if np.abs(log_price - first).max() > _LOST:
            break
        # In logarithms: a total that is far off is nearer to a power of the price than to a line.
        ahead = np.maximum(share + steps, 0.1 * share)
        wanted = np.log(ahead / BAND) * ahead / np.maximum(falls, _FLAT)
        change, trust = _cut(wanted, change, trust, _FARTHEST)
        longest = np.maximum(np.abs(change), off)
        log_price = log_price + change
        for block in blocks:
            block.move(change)
    return None


def _cut(step: FloatArray, last: FloatArray, trust: FloatArray, longest: float) -> tuple[FloatArray, FloatArray]:
    """Cut a step to what can be trusted: half of the last where it turns back, else more each time; and return both."""
    trust = np.where(step * last < 0, 0.5 * np.abs(last), np.minimum(10.0 * trust, longest))
    return np.minimum(np.maximum(step, -trust), trust), trust


def _block(part: PowerProblem, active: BoolArray) -> _Block:
    """The devices of a block, at first where deadline and energy weigh the same."""
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
    if not active.all():  # who has no part stays at full speed and asks for nothing
        nobody = {"alone": np.inf, "most": np.inf, "tilt": 1.0, "rest": -np.inf}
        full = full._replace(**{name: np.where(active, getattr(full, name), value) for name, value in nobody.items()})
    top = c.top(passes=3) - 4e-6  # so much it may be above the true one
    return _Block(
        part=part,
        needs=c,
        full=full,
        cap=cap,
        weight=weight,
        top=top,
        q=np.minimum(c.even(), top) + nothing,
        step=nothing,
        follows=nothing,
        r=nothing,
        tau=nothing,
        x=nothing,
        bend=nothing,
        held=np.zeros(active.shape, np.bool_),
        trust=np.full(active.shape, _LONGEST),
        off=nothing,
    )
