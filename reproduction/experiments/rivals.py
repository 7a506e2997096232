"""Rivals of the joint optimum of rate, share, power and clock.

- :func:`at_part`: the paper's problem, every device at the same fraction of its highest power and clock;
- :func:`alternate`: one block of variables at a time, until nothing changes;
- ``allocate(problem, Equal())``: equal shares, with the best rate, power and clock for each.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from feddrop.allocation.feasible import diagnose, everyone
from feddrop.allocation.kkt import P1Problem
from feddrop.allocation.objectives import PAPER
from feddrop.allocation.optimum import optimum
from feddrop.allocation.power import PowerProblem
from feddrop.allocation.problem import BoolArray, FloatArray, total
from feddrop.allocation.roots import BAND
from feddrop.allocation.solution import Allocation, Status, finish
from feddrop.errors import ConfigError, InfeasibleError

_STILL = 1e-10
"""Relative decrease of the objective below which an iteration counts as converged."""


def at_part(problem: PowerProblem, part: float = 1.0) -> Allocation:
    """Solve the paper's problem: optimal rates and shares, power and clock at ``part`` of their highest.

    Values that are fixed or have a higher lower limit stay at that limit.

    Args:
        problem: one round, or a batch of rounds.
        part: above 0, at most 1.

    Raises:
        InfeasibleError: no rates and shares meet the constraints at this power and clock.

    Example:
        >>> import feddrop
        >>> from reproduction.experiments.rivals import at_part
        >>> cell = feddrop.Cell.paper(devices=3, seed=0, deadline_s=4.0, budget_j=60.0)
        >>> open_ = cell.problem(cell.draw(1, seed=0), parameters=69_656, forward_flops=1_318_560,
        ...                      choose=("power", "cpu"))
        >>> [round(float(found.objective), 3) for found in (at_part(open_), feddrop.allocate(open_))]
        [5.271, 1.0]
    """
    if not 0 < part <= 1:
        raise ConfigError(f"part is {part:g}; it must be above 0 and at most 1.")
    cpu_hz = np.broadcast_to(np.maximum(part * problem.cpu_hz, problem.least_cpu_hz), problem.shape)
    tx_power_w = np.broadcast_to(np.maximum(part * problem.tx_power_w, problem.least_tx_power_w), problem.shape)
    found = _paper(problem.at(cpu_hz, tx_power_w), everyone(problem))
    return _of(problem, found, cpu_hz, tx_power_w, f"at {part:g} of power and clock")


def alternate(problem: PowerProblem, *, limit: int = 200) -> Allocation:
    """Optimise rate and share, then rate, power and clock, in turn until neither lowers the objective.

    This is the usual approach to such problems. It starts at full power and clock or, if that is infeasible, with equal
    shares. Each step is solved exactly, so the objective never rises. It still stops short of the optimum: for given
    shares, power and clock make both deadline and energy tight, and from there neither block alone can improve.

    Args:
        problem: one round.
        limit: largest number of iterations.

    Returns:
        The allocation; ``history`` has iteration and objective, ``[iterations, 2]``.

    Raises:
        InfeasibleError: there is no feasible starting point.
    """
    if len(problem.shape) != 1:
        raise ConfigError(f"alternate takes one round; this problem has shape {list(problem.shape)}.")
    active = everyone(problem)
    try:
        best = at_part(problem)
    except InfeasibleError:
        if (why := diagnose(problem, equal=True)) is not None:
            raise InfeasibleError(why) from None
        best = _paced(problem, np.where(active, BAND / total(active), 0.0), active)
    history = [float(best.objective)]
    for _ in range(limit):
        paced = _paced(problem, best.share, active)
        cpu_hz, tx_power_w = _chosen(paced, problem)
        split = _of(problem, _paper(problem.at(cpu_hz, tx_power_w), active), cpu_hz, tx_power_w, "alternating")
        best = min(best, paced, split, key=lambda found: float(found.objective))
        history.append(float(best.objective))
        if history[-1] > history[-2] * (1.0 - _STILL):
            break
    turns = np.column_stack([np.arange(len(history)), history])
    return replace(best, scheme="alternating", iterations=len(history) - 1, history=turns, status=Status.FEASIBLE)


def _paper(fixed: P1Problem, active: BoolArray) -> Allocation:
    """Return the optimum of the paper's problem."""
    if (why := diagnose(fixed)) is not None:
        raise InfeasibleError(why)
    return optimum(fixed, active, PAPER)


def _paced(problem: PowerProblem, share: FloatArray, active: BoolArray) -> Allocation:
    """Return the best rates, powers and clocks for given shares."""
    return finish(problem, share=share, active=active, scheme="alternating", status=Status.FEASIBLE)


def _chosen(found: Allocation, problem: PowerProblem) -> tuple[FloatArray, FloatArray]:
    """Return clocks and powers, positive also for inactive devices."""
    clock, power = (np.asarray(values, dtype=np.float64) for values in (found.cpu_hz, found.tx_power_w))
    return np.where(found.active, clock, problem.cpu_hz), np.where(found.active, power, problem.tx_power_w)


def _of(
    problem: PowerProblem, found: Allocation, cpu_hz: FloatArray, tx_power_w: FloatArray, scheme: str
) -> Allocation:
    """Return a solution of the paper's problem as one of the joint problem, without its price."""
    return replace(
        found,
        problem=problem,
        scheme=scheme,
        status=Status.FEASIBLE,
        price=None,
        cpu_hz=np.where(found.active, cpu_hz, 0.0),
        tx_power_w=np.where(found.active, tx_power_w, 0.0),
    )
