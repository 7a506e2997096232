"""The exact optimum, whatever the problem and the objective.

=====================================  ==============================================================================
problem and objective                  solver
=====================================  ==============================================================================
P1, any objective                      :mod:`feddrop.allocation.exact`; Σ w/s and Σ w²/s have a closed form at a price
subband noise, any objective           :mod:`feddrop.allocation.newton`, else the search of ``convex``
power and clock, Σ w/s or Σ w²/s       :mod:`feddrop.allocation.power_newton`, else the search of ``exact_power``
anything else                          :mod:`feddrop.allocation.convex`, a search that cannot fail
absence at a price                     :mod:`feddrop.allocation.scheduling`, with the solvers above
=====================================  ==============================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from feddrop.allocation import convex, exact, exact_power, newton, scheduling
from feddrop.allocation.feasible import diagnose, everyone, settle
from feddrop.allocation.objectives import PAPER, InverseKept, Objective
from feddrop.allocation.power import PowerProblem, SubbandPowerProblem
from feddrop.allocation.problem import BoolArray, Problem
from feddrop.allocation.solution import Allocation, AnyProblem, finish, objective
from feddrop.errors import ConfigError, InfeasibleError, shortened

_PROVEN, _SOUND = 1 << 16, 1e-6  # devices up to which, and residual up to which, a fast result is taken


@dataclass(frozen=True, slots=True)
class Exact:
    """The optimum of P1, or of rate, share, power and clock for a :class:`PowerProblem`, in O(num_devices).

    Attributes:
        objective: what to minimise: any convex falling cost φ of the kept share.
        absent_cost: what leaving out a device costs, per unit of its weight in the objective, a number or one per
            device: it is left out where φ and the price of its band exceed that. None to keep everyone. With a price,
            the policy for infeasible rounds does not apply.
    """

    name: ClassVar[str] = "exact"

    objective: Objective = PAPER
    absent_cost: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        if self.absent_cost is None:
            return
        try:
            fine = bool(np.all(np.asarray(self.absent_cost, dtype=np.float64) > 0))
        except (TypeError, ValueError):
            fine = False
        if not fine:
            raise ConfigError(
                f"absent_cost is {shortened(self.absent_cost)}; it must be positive, a number or one per device."
            )

    def solve(self, problem: AnyProblem, policy: str = "error") -> Allocation:
        """Find the optimum; see :meth:`feddrop.allocation.scheme.Scheme.solve`."""
        if self.absent_cost is not None:
            return scheduling.solve(problem, self.objective, np.asarray(self.absent_cost, dtype=np.float64), optimum)
        # Most problems are feasible, and the solver finds that out faster than a separate check.
        if (found := _attempt(problem, everyone(problem), self.objective)) is not None:
            return found
        return optimum(*settle(problem, policy), self.objective)


EXACT = Exact()
"""The default scheme."""


def optimum(problem: AnyProblem, active: BoolArray, phi: Objective) -> Allocation:
    """Return the optimum of a problem that is feasible for the active devices, ``[..., num_devices]``."""
    if (found := _attempt(problem, active, phi)) is not None:
        return found
    if isinstance(problem, Problem):  # only if rounding undid what was settled
        raise InfeasibleError(diagnose(problem))
    return convex.solve(problem, active, phi)


def _attempt(problem: AnyProblem, active: BoolArray, phi: Objective) -> Allocation | None:
    """Return the optimum by a fast solver; None if it is infeasible or no fast solver finds it."""
    if isinstance(problem, Problem):
        return exact.solve(problem, active, phi)
    weight = phi.weights(problem.weight)
    if isinstance(problem, PowerProblem):
        if not isinstance(phi, InverseKept) or isinstance(problem, SubbandPowerProblem):
            return None
        found = exact_power.solve(problem if phi == PAPER else replace(problem, weight=weight), active)
        if found is None or phi == PAPER:
            return found
        return replace(found, problem=problem, phi=phi, objective=objective(problem, found.rate, active, phi))
    if (fast := newton.solve(problem, active, phi, weight)) is None:
        return None
    found = finish(problem, share=fast.share, active=active, iterations=fast.passes, price=fast.price, phi=phi)
    # Newton's method knows its steps, not its error: prove the result while that costs little.
    return found if found.rate.size > _PROVEN or found.residual <= _SOUND else None
