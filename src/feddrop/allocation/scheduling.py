"""Leaving devices out at a price: who takes part, and with which rates and shares.

Leaving out device k costs o_k; otherwise it costs w_k φ(s_k) and needs band:

    minimise Σ_in w_k φ(s_k) + Σ_out o_k     over the devices that are in, their rates and shares, as in P1

The choice of devices is combinatorial. At a price μ of the band, however, every device decides alone: it is in if

    c_k(μ) = min over ρ of (w_k φ(s_k(ρ)) + μ ρ)  <  o_k,

and the dual bound Σ min(c_k(μ), o_k) - μ is below the objective of every choice. Demand jumps where a device leaves, so
at the price that clears the band usually one device more or less would fill it. The solver takes the devices that are
in just above that price, allocates the band among them exactly, and then adds or removes single devices, those with the
largest |o_k - c_k| first, as long as the objective falls. ``Allocation.gap`` is the distance to the bound: what is lost
against the best choice is at most that. The loss is at most the part of one device, so it vanishes as devices grow in
number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from feddrop.allocation.convex import Market
from feddrop.allocation.feasible import FITS, everyone, settle
from feddrop.allocation.objectives import Objective
from feddrop.allocation.problem import BoolArray, FloatArray, total
from feddrop.allocation.solution import Allocation, AnyProblem
from feddrop.errors import ConfigError

_TRIES = 12  # rounds of adding or removing a device
_ROOMY = 1.0 - 2.0**-30  # load of the least shares up to which devices are added

Optimum = Callable[[AnyProblem, BoolArray, Objective], Allocation]


def solve(problem: AnyProblem, phi: Objective, absent_cost: FloatArray, optimum: Optimum) -> Allocation:
    """Choose who takes part, then rates and shares.

    Args:
        problem: one round or a batch of rounds.
        phi: φ.
        absent_cost: o_k per unit of the device's weight in the objective, a number or ``[..., num_devices]``.
        optimum: the exact allocation for given devices.
    """
    weight = np.broadcast_to(phi.weights(problem.weight), problem.shape)
    try:
        out = np.broadcast_to(absent_cost, problem.shape) * weight
    except ValueError:
        raise ConfigError(
            f"absent_cost has shape {list(absent_cost.shape)} for {problem.shape[-1]} devices; give a number or one "
            "per device."
        ) from None
    present = everyone(problem)
    with np.errstate(all="ignore"):
        least = problem.least_share(1.0 / (1.0 - problem.max_rate))
        able = present & (least <= FITS)
        if not able.any(axis=-1).all():
            settle(problem, "leave-out")  # raises: no device is feasible even alone
        market = Market(problem, able, phi, np.where(able, out, 0.0))
        log_price, _ = market.clear()
        price = np.exp(log_price) * ~market.loose
        dear, cheap = market.shares()
        gain = _gains(market, able, out, price, cheap)
        bound = total(np.where(present, out, 0.0)) - total(np.maximum(gain, 0.0)) - price
    chosen = _someone(dear > 0, able, gain)
    least = np.where(able, least, np.inf)
    found, value = _value(problem, phi, out, chosen, optimum)
    for other in (cheap > 0, *(None,) * _TRIES):
        trial = _flipped(chosen, able, gain, least, other)
        if (trial == chosen).all():
            break
        _, new_value = _value(problem, phi, out, trial, optimum)
        better = new_value < value * (1.0 - 1e-12)
        gain = np.where(better, gain, np.where(trial != chosen, 0.0, gain))  # what did not help is not tried again
        if better.any():
            chosen = np.where(better, trial, chosen)
            found, value = _value(problem, phi, out, chosen, optimum)
            gain = np.where(better & (trial != chosen), 0.0, gain)
    gap = np.maximum(value - bound, 0.0) / np.maximum(np.abs(value), 1e-300)
    return with_absence(replace(found, left_out=present & ~chosen), absent_cost, gap)


def with_absence(found: Allocation, absent_cost: npt.ArrayLike, gap: FloatArray | None) -> Allocation:
    """Return an allocation among chosen devices with the price of absence in its objective, and this gap."""
    out = np.asarray(absent_cost) * np.broadcast_to(found.phi.weights(found.problem.weight), found.problem.shape)
    value = _cost(found, out)[..., 0]
    objective = float(value) if value.ndim == 0 else value
    return replace(found, objective=objective, gap=gap, absence_priced=True)


def _gains(market: Market, able: BoolArray, out: FloatArray, price: FloatArray, share: FloatArray) -> FloatArray:
    """Return o_k - c_k at the price; -inf for devices that cannot take part."""
    asked = np.where(share > 0, share, market.wishes())
    return np.where(able, out - market.costs(asked) - price * asked, -np.inf)


def _someone(chosen: BoolArray, able: BoolArray, gain: FloatArray) -> BoolArray:
    """Return the chosen devices; in rounds without one, the device that gains most."""
    best = np.argmax(np.where(able, gain, -np.inf), axis=-1)[..., None]
    alone = np.arange(chosen.shape[-1]) == best
    return np.where(chosen.any(axis=-1, keepdims=True), chosen, alone)


def _flipped(
    chosen: BoolArray, able: BoolArray, gain: FloatArray, least: FloatArray, other: BoolArray | None
) -> BoolArray:
    """Return ``other`` where it fits, else the devices with one added or removed: the one that promises most."""
    if other is not None:
        fits = (total(np.where(other, least, 0.0)) <= _ROOMY) & other.any(axis=-1, keepdims=True)
        return np.where(fits, other, chosen)
    room = _ROOMY - total(np.where(chosen, least, 0.0))
    addable = able & ~chosen & (least <= room) & (gain != 0.0)
    removable = chosen & (total(chosen) > 1) & (gain != 0.0)
    promise = np.where(addable, gain, np.where(removable, -gain, -np.inf))
    best = np.argmax(promise, axis=-1)[..., None]
    flips = (np.arange(chosen.shape[-1]) == best) & np.isfinite(promise)
    found: BoolArray = np.not_equal(chosen, flips)
    return found


def _value(
    problem: AnyProblem, phi: Objective, out: FloatArray, chosen: BoolArray, optimum: Optimum
) -> tuple[Allocation, FloatArray]:
    """Return the exact allocation for these devices and its objective with the price of absence, ``[..., 1]``."""
    found = optimum(problem, chosen, phi)
    return found, _cost(found, out)


def _cost(found: Allocation, out: FloatArray) -> FloatArray:
    """Return Σ_in w φ + Σ_out o over the present devices, ``[..., 1]``."""
    problem, phi, chosen = found.problem, found.phi, found.active
    costs = phi.weights(problem.weight) * phi.value(np.where(chosen, 1.0 - found.rate, 1.0))
    absent = out if problem.present is None else np.where(problem.present, out, 0.0)
    return total(np.where(chosen, costs, absent))
