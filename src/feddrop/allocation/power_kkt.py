"""How far rate, share, power and clock are from optimal: the KKT conditions of :mod:`feddrop.allocation.power`.

The multipliers follow from the price of the band and the allocation only, independently of the solver.
"""

from __future__ import annotations

import numpy as np

from feddrop.allocation.phi import log_phi
from feddrop.allocation.power import PowerProblem
from feddrop.allocation.problem import BoolArray, FloatArray, positive

_TIE = 1e-7  # relative difference that counts as equal when multipliers are chosen; it still counts as a violation


def fit(
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
        tie = np.abs(deadline - energy) <= _TIE * deadline
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
    return (value < most * (1.0 - _TIE)) & (value > least * (1.0 + _TIE))
