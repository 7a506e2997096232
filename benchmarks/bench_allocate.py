"""The allocator against CVXPY with Clarabel, and its growth with the number of devices.

All solve the same problems, from arrays to shares: ours includes validation, CVXPY building the problem. CVXPY is timed
on P1 as written; on a leaner form that a specialist would write, with shares in units of 1/K and their inverses
as variables; on that form compiled once and re-solved with new numbers; and Clarabel alone on it, as it reports.
``--small`` runs quickly; its times are meaningless.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from statistics import median

import cvxpy as cp
import numpy as np
from rich.console import Console
from rich.table import Table

from feddrop.allocation import Exact, PrimalDual, Problem, SubbandProblem, allocate

DEADLINE_S, BUDGET_J, TOP = 1.3, 1.2, 10.0
SMALL = "--small" in sys.argv


def arrays(devices: int) -> dict[str, np.ndarray]:
    """Return random devices, some limited by the deadline, some by energy, some by both."""
    rng = np.random.default_rng(devices)

    def uniform(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, devices)

    return {
        "weight": uniform(0.1, 1.0) / (0.55 * devices),
        "comm_s": uniform(0.1, 1.0) * 1.5 / devices,
        "compute_s": uniform(0.1, 0.9),
        "upload_j": uniform(0.1, 1.0) * 1.5 / devices,
        "compute_j": uniform(0.1, 0.9),
    }


def ours(values: dict[str, np.ndarray], scheme: Exact | PrimalDual = Exact()) -> float:  # noqa: B008 -- immutable
    """Return the optimum, from arrays."""
    problem = Problem(
        **values, deadline_s=np.asarray(DEADLINE_S), budget_j=np.asarray(BUDGET_J), max_rate=np.asarray(0.9)
    )
    return float(allocate(problem, scheme).objective)


def as_written(devices: int, a, b, c, d, w) -> cp.Problem:
    """Return P1 for CVXPY; a and b are divided by the deadline, c and d by the budget."""
    z, share = cp.Variable(devices), cp.Variable(devices)
    deadline = cp.multiply(a, cp.inv_pos(share)) + b <= z
    energy = cp.multiply(c, cp.inv_pos(share)) + d <= z
    return cp.Problem(cp.Minimize(w @ z), [deadline, energy, z >= 1, z <= TOP, cp.sum(share) <= 1])


def leaner(devices: int, a, b, c, d, w) -> cp.Problem:
    """Return P1 with half the cones, well scaled and linear in its parameters; a and c are multiplied by K."""
    z, units, inverse = cp.Variable(devices), cp.Variable(devices), cp.Variable(devices)
    deadline, energy = cp.multiply(a, inverse) + b <= z, cp.multiply(c, inverse) + d <= z
    rules = [deadline, energy, cp.inv_pos(units) <= inverse, z >= 1, z <= TOP, cp.sum(units) <= devices]
    return cp.Problem(cp.Minimize(w @ z), rules)


def coefficients(values: dict[str, np.ndarray], scale: float) -> tuple[np.ndarray, ...]:
    """Return the coefficients of both forms; ``scale`` is the number of units in the band."""
    return (
        values["comm_s"] * scale / DEADLINE_S,
        values["compute_s"] / DEADLINE_S,
        values["upload_j"] * scale / BUDGET_J,
        values["compute_j"] / BUDGET_J,
        values["weight"],
    )


def timed(call, count: int = 1) -> float:
    """Return the seconds per call, averaged over ``count`` calls."""
    started = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started) / count


def against_cvxpy(devices: int, repeats: int) -> list[tuple[str, float, float]]:
    """Return rows of name, median seconds and relative error of the objective."""
    values = arrays(devices)
    plain, scaled = coefficients(values, 1.0), coefficients(values, float(devices))
    parameters = [cp.Parameter(devices, nonneg=True) for _ in scaled]
    compiled = leaner(devices, *parameters)
    alone = []

    def lean() -> float:
        problem = leaner(devices, *scaled)
        value = problem.solve(solver=cp.CLARABEL)
        alone.append(problem.solver_stats.solve_time)
        return value

    def again() -> float:
        for parameter, number in zip(parameters, scaled, strict=True):
            parameter.value = number
        return compiled.solve(solver=cp.CLARABEL)

    again()  # compiles
    calls = {
        "feddrop exact": lambda: ours(values),
        "feddrop primal-dual": lambda: ours(values, PrimalDual()),
        "CVXPY + Clarabel": lambda: as_written(devices, *plain).solve(solver=cp.CLARABEL),
        "CVXPY + Clarabel, leaner": lean,
        "CVXPY + Clarabel, leaner, compiled": again,
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            # A single call of ours is too short for the clock.
            times[name].append(timed(call, 50 if name == "feddrop exact" else 1))
    best = ours(values)
    rows = [(name, median(times[name]), call() / best - 1) for name, call in calls.items()]
    return [*rows, ("Clarabel alone, as it reports", median(alone), rows[3][2])]


def growth(counts: tuple[int, ...], repeats: int) -> list[tuple[float, int, float]]:
    """Return, per number of devices, the best seconds, iterations and peak bytes per device (without inputs)."""
    values = [arrays(devices) for devices in counts]
    times: list[list[float]] = [[] for _ in counts]
    for _ in range(repeats):
        for each, took in zip(values, times, strict=True):
            ours(each)  # warm the cache
            took.append(timed(lambda each=each: ours(each)))
    rows = []
    for each, took in zip(values, times, strict=True):
        problem = Problem(**each, deadline_s=np.asarray(1.3), budget_j=np.asarray(1.2), max_rate=np.asarray(0.9))
        tracemalloc.start()
        passes = allocate(problem).iterations
        rows.append((min(took), passes, tracemalloc.get_traced_memory()[1] / len(each["weight"])))
        tracemalloc.stop()
    return rows


def subband_seconds(devices: int) -> float:
    """Return the median seconds under subband noise."""
    values = arrays(devices)
    problem = SubbandProblem(
        weight=values["weight"],
        push_s=values["comm_s"],
        pull_s=values["comm_s"] * 4,
        snr_down=np.asarray(1e4),
        snr_up=np.asarray(10.0),
        tx_power_w=np.asarray(0.5),
        compute_s=values["compute_s"],
        compute_j=values["compute_j"],
        deadline_s=np.asarray(DEADLINE_S),
        budget_j=np.asarray(BUDGET_J),
        max_rate=np.asarray(0.9),
    )
    return median(timed(lambda: allocate(problem)) for _ in range(5))


def main() -> None:
    """Print both tables."""
    console = Console()
    table = Table(title="P1, from arrays to shares; target: CVXPY + Clarabel 50 x slower at K = 10, 300 x at K = 1000")
    for column in ("K", "solver", "ms", "x exact", "objective error"):
        table.add_column(column, justify="left" if column == "solver" else "right")
    for devices, repeats in ((10, 1),) if SMALL else ((10, 15), (1000, 9)):
        rows = against_cvxpy(devices, repeats)
        for name, seconds, error in rows:
            table.add_row(str(devices), name, f"{seconds * 1e3:.3f}", f"{seconds / rows[0][1]:.1f}", f"{error:.0e}")
        table.add_section()
    console.print(table)

    table = Table(title="Growth of exact; target: 10^6 takes at most 15 x as long as 10^5")
    for column in ("K", "best ms", "x previous", "iterations", "peak bytes per device"):
        table.add_column(column, justify="right")
    counts = (10, 1000) if SMALL else (10, 1000, 10**5, 10**6)
    before = 0.0
    for devices, (seconds, passes, memory) in zip(counts, growth(counts, 1 if SMALL else 9), strict=True):
        ratio = f"{seconds / before:.1f}" if before else ""
        table.add_row(f"{devices:,}", f"{seconds * 1e3:.3f}", ratio, str(passes), f"{memory:.0f}")
        before = seconds
    console.print(table)
    few, many = (1e3 * subband_seconds(devices) for devices in (10, 20 if SMALL else 1000))
    console.print(f"Subband noise, exact: K = 10 in {few:.1f} ms, K = {20 if SMALL else 1000} in {many:.0f} ms.")


if __name__ == "__main__":
    main()
