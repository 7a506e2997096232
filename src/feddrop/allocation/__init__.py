"""Rates and shares for a round: the paper's P1, solved exactly, by its Algorithm 1, or by simpler schemes.

``allocate(Problem(...))`` gives an :class:`Allocation`: rate, share, latency, energy and what binds, by device.
``allocate(PowerProblem(...))`` chooses transmit power and clock speed too.

NumPy only. The problems, their constraints and KKT conditions stand in :mod:`feddrop.allocation.problem` and
:mod:`feddrop.allocation.power`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from feddrop.allocation import baselines, exact, exact_power, exact_power_subband, exact_subband, primal_dual
from feddrop.allocation.feasible import POLICIES, Shortfall, diagnose, everyone, settle
from feddrop.allocation.power import PowerProblem, SubbandPowerProblem
from feddrop.allocation.problem import Problem
from feddrop.allocation.solution import Allocation, AnyProblem, Multipliers, Status, refit
from feddrop.allocation.subband import SubbandProblem
from feddrop.errors import ConfigError, InfeasibleError, one_of

__all__ = [
    "METHODS",
    "POLICIES",
    "Allocation",
    "AnyProblem",
    "Multipliers",
    "PowerProblem",
    "Problem",
    "Shortfall",
    "Status",
    "SubbandPowerProblem",
    "SubbandProblem",
    "allocate",
    "diagnose",
    "refit",
]

METHODS = ("exact", "primal-dual", "equal", "random", "none", "fixed")


def allocate(
    problem: AnyProblem,
    method: str = "exact",
    *,
    policy: str = "error",
    seed: int | None = None,
    rate: npt.ArrayLike | None = None,
    warm: Allocation | None = None,
) -> Allocation:
    """Choose rates and shares for a round, or for every round of a batch; power and clock too, if they are open.

    Args:
        problem: what the devices need, and what there is. A :class:`PowerProblem` leaves power and clock open: every
            method then gives each device the best ones for its share.
        method: ``"exact"`` is the optimum; ``"primal-dual"`` the paper's Algorithm 1; ``"equal"`` splits the band
            equally and ``"random"`` at random, with the best rates for that; ``"fixed"`` gives every device the same
            ``rate``, and the band in proportion to need; ``"none"`` is the paper's ideal without dropout.
        policy: what to do when no allocation meets the constraints: ``"error"``, ``"leave-out"`` the fewest devices, or
            ``"stretch"`` the deadline to the smallest that does.
        seed: of the random split, 0 or more; the other methods take no notice of it.
        rate: of the fixed method: a scalar or one a device; the other methods refuse it.
        warm: an earlier allocation for primal-dual to start from; the other methods take no notice of it.

    Raises:
        InfeasibleError: if nothing meets the constraints, naming devices and constraints, and the smallest deadline,
            bandwidth and energy budget that would do. It holds a :class:`Shortfall`.

    Example:
        >>> import feddrop
        >>> cell = feddrop.Problem(weight=[0.5, 0.5], comm_s=[2.0, 8.0], compute_s=0.1, upload_j=0.0, compute_j=0.0,
        ...                        deadline_s=10.0, budget_j=float("inf"), max_rate=0.9)
        >>> found = feddrop.allocate(cell)
        >>> found.rate.round(3).tolist(), found.share.round(3).tolist()
        ([0.0, 0.012], [0.202, 0.798])
    """
    _check(problem, method, policy, seed=seed, rate=rate)
    if method == "none":
        return baselines.none(problem)
    if method == "exact":
        # Mostly all is well, and the solver finds out sooner than a check before it would.
        found = _solve(problem, everyone(problem))
        if found is not None:
            return found
    max_rate = problem.max_rate
    if method == "fixed":
        problem = replace(problem, max_rate=_fixed_rate(rate, problem))
    problem, active = settle(problem, policy, equal=method == "equal", fixed=method == "fixed")
    if method == "equal":
        return baselines.equal(problem, active)
    if method == "random" and seed is not None:
        return baselines.random(problem, active, seed=seed)
    if method == "fixed":
        return replace(baselines.fixed(problem, active), problem=replace(problem, max_rate=max_rate))
    if method == "primal-dual" and isinstance(problem, Problem):
        return primal_dual.solve(problem, active, warm=warm)
    return _solve_settled(problem, active)


def _check(problem: AnyProblem, method: str, policy: str, *, seed: int | None, rate: npt.ArrayLike | None) -> None:
    """Refuse what cannot be meant."""
    if method not in METHODS or policy not in POLICIES:
        one_of("method", method, METHODS)
        one_of("policy", policy, POLICIES)
    if rate is not None and method != "fixed":
        raise ConfigError(
            f"The rate is {rate}, but the method {method!r} takes none; leave it out, or choose the method 'fixed'."
        )
    if method == "random":
        _check_seed(seed)
    if method == "primal-dual" and not isinstance(problem, Problem):
        raise ConfigError(
            "The closed forms of 'primal-dual' hold neither under subband noise nor where power and clock are chosen; "
            "use the method 'exact'."
        )


def _solve_settled(problem: AnyProblem, active: npt.NDArray[np.bool_]) -> Allocation:
    """The optimum of a problem that was made feasible."""
    if isinstance(problem, SubbandProblem):
        return exact_subband.solve(problem, active)
    if isinstance(problem, SubbandPowerProblem):
        return exact_power_subband.solve(problem, active)
    found = _solve(problem, active)
    if found is None:  # only if rounding undid what was settled
        raise InfeasibleError(diagnose(problem))
    return found


def _solve(problem: AnyProblem, active: npt.NDArray[np.bool_]) -> Allocation | None:
    """The optimum, by a solver that finds out by itself whether there is one; None if there is none, or no solver."""
    if isinstance(problem, SubbandProblem | SubbandPowerProblem):
        return None
    return exact_power.solve(problem, active) if isinstance(problem, PowerProblem) else exact.solve(problem, active)


def _check_seed(seed: int | None) -> None:
    if seed is None:
        raise ConfigError("The method 'random' needs a seed, e.g. seed=0.")
    if not 0 <= seed < 2**128:
        raise ConfigError(f"The seed is {seed}; it must be 0 or more, and below 2**128.")


def _fixed_rate(rate: npt.ArrayLike | None, problem: AnyProblem) -> npt.NDArray[np.float64]:
    if rate is None:
        raise ConfigError("The method 'fixed' needs a rate: --rate 0.3 on the command line, rate=0.3 in Python.")
    try:
        given = np.asarray(rate, dtype=np.float64)
        np.broadcast_to(given, problem.shape)
    except (TypeError, ValueError):
        raise ConfigError(f"The fixed rate is {rate}; it must be a number, or one for each device.") from None
    rates, caps = np.broadcast_to(given, problem.shape), np.broadcast_to(problem.max_rate, problem.shape)
    wrong = np.argwhere(~((rates >= 0) & (rates <= caps)))
    if len(wrong):
        where = tuple(wrong[0])
        raise ConfigError(
            f"The fixed rate of device {where[-1]} is {rates[where]:g}; it must be from 0 to max_rate, "
            f"{caps[where]:g}. Change one of them."
        )
    return given
