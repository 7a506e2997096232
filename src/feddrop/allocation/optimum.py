"""The exact optimum, whatever the problem: one solver per kind of problem.

Every solver takes a problem of one round or a batch of rounds, and its active devices, ``[..., num_devices]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from feddrop.allocation import convex, exact, exact_power, exact_power_subband, exact_subband
from feddrop.allocation.feasible import diagnose, everyone, settle
from feddrop.allocation.objectives import InverseKept, Objective
from feddrop.allocation.power import PowerProblem, SubbandPowerProblem
from feddrop.allocation.problem import BoolArray
from feddrop.allocation.solution import Allocation, AnyProblem
from feddrop.allocation.subband import SubbandProblem
from feddrop.errors import ConfigError, InfeasibleError, shortened

_PAPER = InverseKept()


@dataclass(frozen=True, slots=True)
class Exact:
    """The optimum of P1, or of rate, share, power and clock for a :class:`PowerProblem`, in O(num_devices).

    Attributes:
        objective: what to minimise; any convex falling cost of the kept share. Power and clock can be chosen only for
            the paper's, :class:`InverseKept`: for others the problem is not known to be convex in them.
    """

    name: ClassVar[str] = "exact"

    objective: Objective = _PAPER

    def solve(self, problem: AnyProblem, policy: str = "error") -> Allocation:
        """Find the optimum; see :meth:`feddrop.allocation.scheme.Scheme.solve`."""
        if self.objective != _PAPER:
            return self.optimum(problem, policy).allocation
        # Most problems are feasible, and the solver finds that out faster than a separate check.
        if (found := _attempt(problem, everyone(problem))) is not None:
            return found
        problem, active = settle(problem, policy)
        if isinstance(problem, SubbandProblem):
            return exact_subband.solve(problem, active)
        if isinstance(problem, SubbandPowerProblem):
            return exact_power_subband.solve(problem, active)
        if (found := _attempt(problem, active)) is None:  # only if rounding undid what was settled
            raise InfeasibleError(diagnose(problem))
        return found

    def optimum(self, problem: AnyProblem, policy: str = "error") -> convex.Optimum:
        """Find the optimum and certify it: how much at most could be gained."""
        if isinstance(problem, PowerProblem | SubbandPowerProblem):
            raise ConfigError(
                f"the objective is {shortened(self.objective)}, and the problem leaves power or clock open: only "
                "InverseKept() can choose them. Fix them, or use it."
            )
        settled, active = settle(problem, policy)
        return convex.solve(settled, active, self.objective)


def _attempt(problem: AnyProblem, active: BoolArray) -> Allocation | None:
    """Return the optimum; None if the problem is infeasible, or of a kind whose solver needs a feasible one."""
    if isinstance(problem, SubbandProblem | SubbandPowerProblem):
        return None
    return exact_power.solve(problem, active) if isinstance(problem, PowerProblem) else exact.solve(problem, active)
