"""The optimum of rate, share, power and clock by one Newton iteration on the price and all devices at once.

:mod:`feddrop.allocation.exact_power` finds the price of the band by an outer iteration, and at every price how fast
each device hurries by an inner one: safe, whatever the problem. Here both take their steps together. With q the unknown
of a device (:mod:`feddrop.allocation.pace`) and l = log μ,

    gap_k(q_k, l) = log D_k - log E_k = 0,       Σ 1/r_k(q_k, l) = 1,
    r_k = clip(sqrt(μ/(w slope_k)), r at which D_k = 1, r at which D_k = 1/(1-θ))

every equation but the last has one q alone, so that a step costs a pass over the devices. It settles in about ten.
Where it does not, or the band is not what is scarce, there is no answer from here: the safe solver gives it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np

from feddrop.allocation.pace import MARGIN, Hurry, Needs, chosen, hurry, needs
from feddrop.allocation.power import PowerProblem
from feddrop.allocation.problem import BLOCK, BoolArray, FloatArray, part_of, total
from feddrop.allocation.roots import BAND
from feddrop.allocation.solution import Allocation, Status, finish

_PASSES = 24
_SETTLED = 2.0**-26
"""Of the last step; the error after it is its square."""

_LEFT = 2.0**-38
"""Of the step that would come next: if it is longer, the last one led over a kink."""

_LONGEST, _FLAT = 1.5, 1e-9
"""The longest step of q; and a slope that is none: there clock, power and share stay as they are."""

_NOBODY = 1e-200


class _Sums(NamedTuple):
    """Over devices, ``[..., 1]``: shares; how they change by the devices' own steps; how they fall with log μ."""

    share: FloatArray
    steps: FloatArray
    falls: FloatArray

    def __add__(self, other: _Sums) -> _Sums:  # type: ignore[override]
        return _Sums(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(slots=True)
class _Block:
    """Devices of a block, where they stand: q, and after a pass 1/share and the step that each would take."""

    part: PowerProblem
    needs: Needs
    full: tuple[FloatArray, ...]
    top: FloatArray
    weight: FloatArray
    active: BoolArray
    q: FloatArray
    r: FloatArray
    load: FloatArray
    late: BoolArray
    step: FloatArray
    follows: FloatArray
    trust: FloatArray | float = 1.5
    off: FloatArray | float = np.inf

    def look(self, log_price: FloatArray) -> _Sums:
        """Work out share and step of every device at a price."""
        c, price = self.needs, np.exp(log_price)
        want, least, most, slope, rest = self.full
        # The deadline decides, even at full speed.
        self.late = late = np.minimum(np.maximum(np.sqrt(price) * want, least), most) * slope >= rest
        h = hurry(np.where(late, c.high, self.q), c)
        on_d, on_e = h.on_d, h.on_e
        odd = 1.0 / (1.0 + h.odds)
        even = 1.0 - odd
        worth = even * on_d + odd * on_e
        self.r, free = r, _ = _asked(price / (self.weight * worth), on_d, h.tau, self.top)
        saved = c.up / h.x**2 * h.d_x
        turns_r = np.where(free, -0.5 * even * odd * (on_d - on_e) / worth, (saved - h.d_tau / r) / on_d)
        self.load = deadline = r * on_d + h.tau
        energy = r * on_e + c.clock / h.tau**2
        tilt = r * (on_d / deadline - on_e / energy)
        change = h.d_tau - r * saved
        turns = np.minimum(tilt * turns_r + change * (1.0 / deadline + h.odds / energy), -_FLAT)
        ask = 0.5 * free
        step = np.log(energy / deadline) / turns
        beyond = (self.q > c.top) & ~late
        if beyond.any():
            # At full speed the gap is a line in κ, and 1-κ = 1/(1+λ): a Newton step in log λ would be too short.
            step = np.where(beyond, -np.log1p(-np.minimum(even * step, 0.99)), step)
        step = step / h.per_q
        self.trust = np.where(step * self.step < 0, 0.5 * np.abs(self.step), np.minimum(4.0 * self.trust, _LONGEST))
        self.off = np.max(np.abs(np.where(late | ~self.active, 0.0, step)), axis=-1, keepdims=True)
        step = np.minimum(np.maximum(step, -self.trust), self.trust)
        self.step, self.follows = np.where(late, 0.0, step), np.where(late, 0.0, -tilt * ask / turns / h.per_q)
        share = np.where(self.active, 1.0 / r, 0.0)
        along = share * h.per_q * turns_r
        return _Sums(total(share), total(-along * self.step), total(share * ask + along * self.follows))

    def move(self, log_price: FloatArray) -> None:
        """Take the step that goes with one of the price."""
        step = np.where(self.active, self.step + self.follows * log_price, 0.0)
        here = self.q + np.minimum(np.maximum(step, -_LONGEST), _LONGEST)
        self.q = np.minimum(np.maximum(here, self.needs.low), self.needs.high)

    def first_price(self) -> FloatArray:
        """Σ sqrt(w α), as if z were α/ρ, ``[..., 1]``."""
        h = hurry(self.q, self.needs)
        worth = h.on_e + (h.on_d - h.on_e) * (1.0 - 1.0 / (1.0 + h.odds))
        return total(np.where(self.active, np.sqrt(self.weight * worth), 0.0))

    def now(self) -> Hurry:
        """Clock and power where it stands."""
        return hurry(np.where(self.late, self.needs.high, self.q), self.needs)


def _asked(square: FloatArray, on_d: FloatArray, tau: FloatArray, top: FloatArray) -> tuple[FloatArray, BoolArray]:
    """1/share that a device asks for, and whether no limit of the rate decides it; ``square`` is μ/(w slope)."""
    wish = np.sqrt(square)
    most = (top - tau) / on_d
    r = np.minimum(np.maximum(wish, (MARGIN - tau) / on_d), np.where(most > 0, most, np.inf))
    return r, r == wish


def solve(problem: PowerProblem, active: BoolArray) -> Allocation | None:
    """Find the optimum where the band is scarce; None where this iteration does not find it.

    Args:
        problem: a round or a batch of rounds; noise must not depend on the share.
        active: devices that have a part, ``[..., num_devices]``.
    """
    if np.any(problem.least_tx_power_w > 0):
        return None
    with np.errstate(all="ignore"):
        starts = range(0, problem.shape[-1], BLOCK)
        blocks = [_block(part_of(problem, slice(i, i + BLOCK)), active[..., i : i + BLOCK]) for i in starts]
        log_price = 2.0 * np.log(np.add.reduce([block.first_price() for block in blocks]))
        passes, longest = 0, np.asarray(np.inf)
        while not (longest <= _SETTLED).all():
            if (passes := passes + 1) > _PASSES:
                return None
            sums = _sum(block.look(log_price) for block in blocks)
            # In logarithms: a total that is far off is nearer to a power of the price than to a line.
            change = np.log((sums.share + sums.steps) / BAND) * (sums.share + sums.steps) / sums.falls
            change = np.minimum(np.maximum(np.nan_to_num(change), -3.0), 3.0)
            longest = np.maximum.reduce([np.abs(change), *(np.asarray(block.off) for block in blocks)])
            log_price = log_price + change
            for block in blocks:
                block.move(change)
        sums = _sum(block.look(log_price) for block in blocks)
        fits = all((~block.active | (block.load <= block.top * (1.0 + 1e-13))).all() for block in blocks)
        off = np.maximum.reduce([np.asarray(block.off) for block in blocks])
        if not (fits and (off <= _LEFT).all() and (np.abs(sums.share - BAND) <= 1e-12).all()):
            return None
        paces = [chosen(block.part, block.now(), block.needs) for block in blocks]
        share = np.concatenate([np.where(block.active, 1.0 / block.r, 0.0) for block in blocks], axis=-1)
        return finish(
            problem,
            share=share * np.minimum(1.0, BAND / sums.share),
            active=active,
            method="exact",
            status=Status.OPTIMAL,
            iterations=passes,
            price=np.exp(log_price),
            paces=tuple(np.concatenate(values, axis=-1) for values in zip(*paces, strict=True)),
        )


def _sum(parts: Iterable[_Sums]) -> _Sums:
    return reduce(_Sums.__add__, parts)


def _block(part: PowerProblem, active: BoolArray) -> _Block:
    """The devices of a block, at first where deadline and energy weigh the same."""
    c = needs(part, part.link(np.ones(active.shape)))
    nothing = np.zeros(active.shape)
    top, weight = MARGIN / (1.0 - part.max_rate), np.maximum(part.weight, _NOBODY)
    on_d, on_e, tau, spent = c.full_speed()
    most = (top - tau) / on_d
    return _Block(
        part=part,
        needs=c,
        full=(
            1.0 / np.sqrt(weight * on_d),
            (MARGIN - tau) / on_d,
            np.where(most > 0, most, np.inf),
            on_d - on_e,
            spent - tau,
        ),
        top=top,
        weight=weight,
        active=active,
        q=np.minimum(c.even(), c.top) + nothing,
        r=nothing,
        load=nothing,
        late=np.zeros(active.shape, np.bool_),
        step=nothing,
        follows=nothing,
    )
