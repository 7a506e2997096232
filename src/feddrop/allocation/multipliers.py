"""The Lagrange multipliers of an allocation, from the price of the band."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddrop.allocation.problem import FloatArray, Problem, positive
from feddrop.allocation.subband import SubbandProblem

P1Problem = Problem | SubbandProblem

_TIE = 1e-11


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
