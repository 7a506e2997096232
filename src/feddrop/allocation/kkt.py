"""The KKT conditions: the Lagrange multipliers of an allocation, which follow from the price of the band.

They depend on the price and the allocation only, not on the solver. :mod:`feddrop.allocation.problem` states the
conditions of P1, :mod:`feddrop.allocation.power` those of clock and power.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddrop.allocation.phi import log_phi
from feddrop.allocation.power import PowerProblem
from feddrop.allocation.problem import BoolArray, FloatArray, Problem, positive
from feddrop.allocation.subband import SubbandProblem

P1Problem = Problem | SubbandProblem

_TIE = 1e-11
_PACED_TIE = 1e-7  # relative difference that counts as equal when clock and power are chosen; still a violation


@dataclass(frozen=True, slots=True, kw_only=True)
class Multipliers:
    """Dimensionless Lagrange multipliers of the constraints in :mod:`feddrop.allocation.problem`.

    Those of clock and power are defined in :mod:`feddrop.allocation.power` and None if neither is chosen.

    Attributes:
        band: μ, the price of the whole band, ``[..., 1]``.
        deadline: λ, ``[..., num_devices]``.
        energy: ν, ``[..., num_devices]``.
        floor: α, of rate >= 0, ``[..., num_devices]``.
        cap: β, of rate <= θ, ``[..., num_devices]``.
        clock: η_f, of the clock's limits, ``[..., num_devices]``.
        power: η_P, of the power's limits, ``[..., num_devices]``.
    """

    band: FloatArray
    deadline: FloatArray
    energy: FloatArray
    floor: FloatArray
    cap: FloatArray
    clock: FloatArray | None = None
    power: FloatArray | None = None


def loads(problem: P1Problem, share: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the left sides of C1 and C2: the z that the deadline requires and the one that the budget requires."""
    seconds, joules = problem.air(share)
    # In place: with a million devices, new memory costs more time than the arithmetic.
    seconds += problem.compute_s
    seconds /= problem.deadline_s
    joules += problem.compute_j
    joules /= positive(problem.budget_j)
    return seconds, joules


def with_rest(
    weight: FloatArray, price: FloatArray, lam: FloatArray, nu: FloatArray, **limits: FloatArray
) -> Multipliers:
    """Return multipliers with α and β from stationarity in z."""
    rest = weight - lam - nu
    floor, cap = np.maximum(rest, 0.0), np.maximum(-rest, 0.0)
    return Multipliers(band=price, deadline=lam, energy=nu, floor=floor, cap=cap, **limits)


def fit_multipliers(problem: P1Problem, share: FloatArray, price: FloatArray, weight: FloatArray) -> Multipliers:
    """Return the multipliers that make the Lagrangian stationary at this price of the band.

    Stationarity in the share determines λ and ν: the multiplier of the binding constraint carries the whole price; if
    both constraints bind, they split it so that λ + ν = w. Stationarity in z leaves the rest to α or β. If the
    allocation is not optimal, a constraint that is not tight has a positive multiplier. ``weight`` is the derivative of
    the objective in z.
    """
    weight = np.broadcast_to(weight, problem.shape)
    deadline, energy = loads(problem, share)
    fall_d, fall_e = (side.fall / share for side in problem.curves().sides(share))
    with np.errstate(divide="ignore", invalid="ignore"):
        # A side that does not depend on the share needs no band: if it binds, it carries the full weight.
        only_d = np.where(fall_d > 0, price / fall_d, np.where(deadline > 1, weight, 0.0))
        only_e = np.where(fall_e > 0, price / fall_e, np.where(energy > 1, weight, 0.0))
        mixed = (price - weight * fall_e) / (fall_d - fall_e)
    tie = np.abs(deadline - energy) <= _TIE * deadline
    split = tie & (mixed >= 0) & (mixed <= weight)
    first = deadline >= energy
    lam = np.where(split, mixed, np.where(first, only_d, 0.0))
    nu = np.where(split, weight - mixed, np.where(first, 0.0, only_e))
    return with_rest(weight, price, lam, nu)


def fit_paced(
    problem: PowerProblem,
    share: FloatArray,
    cpu_hz: FloatArray,
    tx_power_w: FloatArray,
    price: FloatArray,
    weight: FloatArray,
) -> tuple[FloatArray, ...]:
    """Return the multipliers of deadline, energy, clock and power that fit the price and the allocation.

    A clock or power between its limits determines the joules that a second is worth, and so how deadline and energy
    split the weight. If both are at a limit, the price does. If the allocation is not optimal, a constraint that is
    not tight has a nonzero multiplier, or a multiplier has the wrong sign. ``weight`` is the derivative of the
    objective in z.

    Returns:
        λ_D, λ_E, η_f, η_P, each of the problem's shape.
    """
    p = problem
    with np.errstate(all="ignore"):
        air = p.link(share)
        x = np.log1p(tx_power_w / air.noise_w)
        pull_s, pull_j = air.pull(x)
        compute_s, compute_j = p.cycles / cpu_hz, p.cpu_constant * p.cycles * cpu_hz**2
        seconds, joules = air.down_s + compute_s + pull_s, compute_j + pull_j
        deadline, energy = seconds / p.deadline_s, joules / positive(p.budget_j)
        fall_s, fall_j = air.falls(x)
        on_d, on_e = fall_s / p.deadline_s, fall_j / positive(p.budget_j)
        odds_per_w = p.deadline_s / positive(p.budget_j)
        by_clock = 2.0 * p.cpu_constant * cpu_hz**3 * odds_per_w
        by_power = air.noise_w * np.exp(log_phi(x)) * odds_per_w
        turns = _between(cpu_hz, p.least_cpu_hz, p.cpu_hz) & (p.cycles * p.cpu_constant > 0)
        shifts = _between(tx_power_w, p.least_tx_power_w, p.tx_power_w)
        odds = np.where(turns, by_clock, by_power)
        split = (price * share / weight - on_e) / (on_d - on_e)
        split = np.clip(np.where(np.isfinite(split), split, 1.0), 0.0, 1.0)
        tie = np.abs(deadline - energy) <= _PACED_TIE * deadline
        limited = np.where(tie, split, np.where(deadline > energy, 1.0, 0.0))
        part = np.where(turns | shifts, 1.0 - 1.0 / (1.0 + odds), limited)
        whole = price * share / (part * on_d + (1.0 - part) * on_e)
        on_deadline, on_energy = part * whole, (1.0 - part) * whole
        keep = -np.expm1(-x) / x
        clock = on_deadline * compute_s / p.deadline_s - 2.0 * on_energy * compute_j / positive(p.budget_j)
        power = on_deadline * pull_s * keep / p.deadline_s - on_energy * pull_j * (1.0 - keep) / positive(p.budget_j)
    return on_deadline, on_energy, clock, power


def limits_off(
    problem: PowerProblem, cpu_hz: FloatArray, tx_power_w: FloatArray, clock: FloatArray, power: FloatArray
) -> FloatArray:
    """Return the largest violation of the conditions on clock and power, per device, in units of the weight."""

    def off(value: FloatArray, least: FloatArray, most: FloatArray, multiplier: FloatArray) -> FloatArray:
        upper = value > 0.5 * (least + most)
        slack = np.abs(value - np.where(upper, most, least)) / most
        at_limit = np.maximum(np.where(upper, -multiplier, multiplier), np.abs(multiplier) * slack)
        found = np.where(_between(value, least, most), np.abs(multiplier), at_limit)
        return np.where(least >= most, 0.0, found)

    by_clock = off(cpu_hz, problem.least_cpu_hz, problem.cpu_hz, clock)
    by_power = off(tx_power_w, problem.least_tx_power_w, problem.tx_power_w, power)
    return np.maximum(by_clock, by_power)


def _between(value: FloatArray, least: FloatArray, most: FloatArray) -> BoolArray:
    """Return whether a value is strictly between its limits, up to rounding."""
    return (value < most * (1.0 - _PACED_TIE)) & (value > least * (1.0 + _PACED_TIE))
