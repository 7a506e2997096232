"""The allocator against CVXPY with Clarabel, and its growth with the number of devices.

All solve the same problems, from arrays to shares: ours includes validation, CVXPY building the problem. CVXPY is timed
on P1 as written; on a leaner form that a specialist would write, with shares in units of 1/K and their inverses
as variables; on that form compiled once and re-solved with new numbers; and Clarabel alone on it, as it reports.
Subband noise and other objectives are timed beside the closed form of the paper's problem, all on scarce bands. All
times are CPU times, so that other programs disturb them less.

``--small`` runs quickly; its times are meaningless. ``--against OTHER/src`` compares the closed form with that of
another version of the package, in alternating processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from statistics import median

import cvxpy as cp
import numpy as np
from rich.console import Console
from rich.table import Table

import feddrop
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
    """Return the CPU seconds per call, averaged over ``count`` calls."""
    started = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - started) / count


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


def density(devices: int) -> Problem:
    """Return the problem of :func:`arrays`."""
    limits = {"deadline_s": DEADLINE_S, "budget_j": BUDGET_J, "max_rate": 0.9}
    return Problem(**arrays(devices), **{name: np.asarray(value) for name, value in limits.items()})


def subband(devices: int) -> SubbandProblem:
    """Return similar devices under subband noise: signals 1 to 30 times the noise at an equal share, a scarce band."""
    values, rng = arrays(devices), np.random.default_rng(1)
    return SubbandProblem(
        weight=values["weight"],
        push_s=values["comm_s"],
        pull_s=values["comm_s"] * 3,
        snr_down=1e4 / devices * rng.uniform(0.3, 3.0, devices),
        snr_up=10.0 / devices * rng.uniform(0.1, 3.0, devices),
        tx_power_w=rng.uniform(0.2, 0.6, devices),
        compute_s=values["compute_s"],
        compute_j=values["compute_j"],
        deadline_s=np.asarray(DEADLINE_S),
        budget_j=np.asarray(BUDGET_J),
        max_rate=np.asarray(0.9),
    )


def beside_exact(devices: int, turns: int) -> list[tuple[str, float, float, float]]:
    """Return rows of name, best seconds, KKT residual and peak bytes per device (without inputs)."""
    from feddrop.allocation import LinearKept, TabulatedCost  # other versions may lack them

    flat, noisy = density(devices), subband(devices)
    points = np.linspace(0.05, 1.0, 300)
    variance = Exact(TabulatedCost(points, -((1.0 - points) ** 2) - 0.01))
    calls = {
        "density, paper's objective": (flat, Exact()),
        "density, V(s) tabulated": (flat, variance),
        "density, linear": (flat, Exact(LinearKept())),
        "subband, paper's objective": (noisy, Exact()),
        "subband, V(s) tabulated": (noisy, variance),
        "subband, linear": (noisy, Exact(LinearKept())),
        "density, absence at a price": (flat, Exact(absent_cost=1.05)),
    }
    best = dict.fromkeys(calls, np.inf)
    for _ in range(turns):
        for name, (problem, scheme) in calls.items():
            best[name] = min(best[name], timed(lambda p=problem, s=scheme: allocate(p, s)))
    rows = []
    for name, (problem, scheme) in calls.items():
        tracemalloc.start()
        found = allocate(problem, scheme)
        memory = tracemalloc.get_traced_memory()[1] / devices
        tracemalloc.stop()
        rows.append((name, best[name], found.residual, memory))
    return rows


def closed_form() -> list[float]:
    """Return the best seconds of the closed form at 10, 1,000 and 10^5 devices."""
    best = []
    for devices, repeats in ((10, 500), (1000, 300), (10**5, 30)):
        values = arrays(devices)
        best.append(min(timed(lambda values=values: ours(values)) for _ in range(repeats)))
    return best


def against(other: str) -> Table:
    """Compare the closed form with that of another version; processes alternate, and the best times count."""
    source = str(Path(feddrop.__file__).parents[1])
    times: dict[str, list[list[float]]] = {source: [], other: []}
    for _ in range(4):
        for path, found in times.items():
            command = [sys.executable, __file__, "--closed-form"]
            env = {**os.environ, "PYTHONPATH": path}
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
            found.append(json.loads(done.stdout))
    here, there = (np.min(times[path], axis=0) for path in (source, other))
    table = Table(title=f"Closed form, against {other}")
    for column in ("K", "ms", "other, ms", "ratio"):
        table.add_column(column, justify="right")
    for devices, mine, theirs in zip((10, 1000, 10**5), here, there, strict=True):
        table.add_row(f"{devices:,}", f"{mine * 1e3:.3f}", f"{theirs * 1e3:.3f}", f"{mine / theirs:.2f}")
    return table


def main() -> None:
    """Print both tables."""
    console = Console(width=120)
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

    table = Table(title="Beside the closed form; target: subband noise at most 10 x density at 10^6")
    for column in ("K", "problem", "best ms", "x first", "x previous K", "KKT residual", "peak bytes per device"):
        table.add_column(column, justify="left" if column == "problem" else "right")
    earlier: dict[str, float] = {}
    for devices, turns in ((10, 1), (100, 1)) if SMALL else ((10**5, 7), (10**6, 4)):
        rows = beside_exact(devices, turns)
        for name, seconds, residual, memory in rows:
            ratio = f"{seconds / earlier[name]:.1f}" if name in earlier else ""
            first = f"{seconds / rows[0][1]:.1f}"
            cells = (f"{seconds * 1e3:.1f}", first, ratio, f"{residual:.0e}", f"{memory:.0f}")
            table.add_row(f"{devices:,}", name, *cells)
            earlier[name] = seconds
        table.add_section()
    console.print(table)


if __name__ == "__main__":
    if "--closed-form" in sys.argv:
        print(json.dumps(closed_form()))
    elif "--against" in sys.argv:
        Console().print(against(sys.argv[sys.argv.index("--against") + 1]))
    else:
        main()
