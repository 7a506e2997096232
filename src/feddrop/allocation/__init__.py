"""Rates and shares of a round: the paper's P1, solved exactly, by its Algorithm 1, or by simpler schemes.

``allocate(Problem(...), Exact())`` returns an :class:`Allocation`: rate, share, latency, energy and binding constraint
per device. ``allocate(PowerProblem(...))`` also chooses transmit power and clock speed.

NumPy only. :mod:`feddrop.allocation.problem` and :mod:`feddrop.allocation.power` state the problems, their constraints
and their KKT conditions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy.typing as npt

from feddrop.allocation.baselines import Common, Equal, Fixed, Ideal, NoDropout, Random
from feddrop.allocation.feasible import POLICIES, Shortfall, diagnose
from feddrop.allocation.kkt import Multipliers
from feddrop.allocation.objectives import OBJECTIVES, CustomCost, InverseKept, LinearKept, Objective, TabulatedCost
from feddrop.allocation.optimum import EXACT, Exact
from feddrop.allocation.power import PowerProblem, SubbandPowerProblem
from feddrop.allocation.primal_dual import ConstantSteps, FirstMultipliers, Pass, PrimalDual, RelativeSteps
from feddrop.allocation.problem import Problem, RoundProblem
from feddrop.allocation.scheme import Scheme
from feddrop.allocation.solution import Allocation, AnyProblem, Status, refit
from feddrop.allocation.subband import SubbandProblem
from feddrop.errors import ConfigError, one_of, shortened

__all__ = [
    "OBJECTIVES", "POLICIES", "SCHEMES", "Allocation", "AnyProblem", "Common", "ConstantSteps", "CustomCost", "Equal",
    "Exact", "FirstMultipliers", "Fixed", "Ideal", "InverseKept", "LinearKept", "Multipliers", "NoDropout",
    "Objective", "Pass", "PowerProblem", "PrimalDual", "Problem", "Random", "RelativeSteps", "Scheme", "Shortfall",
    "Status", "SubbandPowerProblem", "SubbandProblem", "TabulatedCost", "allocate", "diagnose", "refit",
    "scheme_named",
]  # fmt: skip

SCHEMES: dict[str, type[Exact | PrimalDual | Equal | Random | Common | Fixed | NoDropout | Ideal]] = {
    scheme.name: scheme for scheme in (Exact, PrimalDual, Equal, Random, Common, Fixed, NoDropout, Ideal)
}
"""The schemes by their names in TOML and on the command line."""


def allocate(
    problem: AnyProblem, scheme: Scheme | str = "exact", *, policy: str = "error", warm: Allocation | None = None
) -> Allocation:
    """Choose rates and shares for one round or a batch of rounds; power and clock too, for a :class:`PowerProblem`.

    Args:
        problem: costs, deadline and budgets. For a :class:`PowerProblem`, every scheme but :class:`PrimalDual` gives
            each device the best power and clock for its share.
        scheme: the scheme or its name. :class:`Exact` is the optimum and :class:`PrimalDual` the paper's Algorithm 1.
            :class:`Equal` splits the band equally and :class:`Random` at random, with the lowest rates for that split.
            :class:`Common` has one rate for all, :class:`Fixed` has given rates, :class:`NoDropout` has rate 0 within
            the band, and :class:`Ideal` is the paper's ideal, rate 0 regardless of the band.
        policy: what to do if no allocation meets the constraints: ``"error"``, ``"leave-out"`` the fewest devices, or
            ``"stretch"`` the deadline to the smallest feasible one.
        warm: an earlier allocation from which :class:`PrimalDual` starts instead of its ``start``; the other schemes
            ignore it.

    Raises:
        InfeasibleError: nothing meets the constraints. The message names devices and constraints, and the smallest
            feasible deadline, bandwidth and energy budget; the error holds them as a :class:`Shortfall`.

    Example:
        >>> import feddrop
        >>> cell = feddrop.Problem(weight=[0.5, 0.5], comm_s=[2.0, 8.0], compute_s=0.1, upload_j=0.0, compute_j=0.0,
        ...                        deadline_s=10.0, budget_j=float("inf"), max_rate=0.9)
        >>> found = feddrop.allocate(cell, feddrop.Exact())
        >>> found.rate.round(3).tolist(), found.share.round(3).tolist()
        ([0.0, 0.012], [0.202, 0.798])
    """
    given: Any = problem
    if not isinstance(given, RoundProblem):
        allowed = "a feddrop.Problem or feddrop.PowerProblem; Cell.problem(...) returns one"
        raise ConfigError(f"problem is {shortened(given)}; it must be {allowed}.")
    if isinstance(scheme, str):
        scheme = EXACT if scheme == "exact" else scheme_named(scheme)
    if not hasattr(scheme, "solve"):
        raise ConfigError(f"scheme is {shortened(scheme)}; it must be a name, or a scheme such as feddrop.Exact().")
    if policy not in POLICIES:
        one_of("policy", policy, POLICIES)
    if warm is not None and isinstance(scheme, PrimalDual):
        scheme = replace(scheme, start=warm)
    return scheme.solve(problem, policy)


def scheme_named(name: str, *, seed: int = 0, rate: npt.ArrayLike | None = None, objective: str = "inverse") -> Scheme:
    """Return a scheme by its name in TOML, with default settings.

    Args:
        name: a key of ``SCHEMES``.
        seed: of :class:`Random`; the other schemes ignore it.
        rate: of :class:`Fixed`, which needs one; the other schemes refuse it.
        objective: a key of ``OBJECTIVES``, of :class:`Exact`; the other schemes ignore it.
    """
    scheme = SCHEMES[one_of("scheme", name, SCHEMES)]
    if (rate is not None) != (scheme is Fixed):
        raise ConfigError(
            f"The rate is {rate}, but the scheme {name!r} takes none; leave it out, or choose the scheme 'fixed'."
            if rate is not None
            else "The scheme 'fixed' needs a rate: --rate 0.3 on the command line, Fixed(0.3) in Python."
        )
    if rate is not None:
        return Fixed(rate)
    if scheme is Exact:
        return Exact(OBJECTIVES[one_of("objective", objective, OBJECTIVES)])
    return Random(seed) if scheme is Random else scheme()  # type: ignore[call-arg]
