"""Joint allocation of rate, share, power and clock against CVXPY with Clarabel, and its growth with devices.

All solve the same problems, a cell where energy binds, from arrays to solution: ours includes validation, CVXPY
building the exponential-cone form. Contenders alternate, and the best time of each counts.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import cvxpy as cp
import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from feddrop.allocation import PowerProblem, allocate
from feddrop.radio import Cell
from support.power_cases import conic

SMALL = "--small" in sys.argv
MODEL = {"parameters": 69_656, "forward_flops": 1_318_560}


def cell_of(devices: int, noise: str = "density") -> PowerProblem:
    """Return the paper's devices with path losses over 10 dB, LeNet, 100 J per round; the band grows with K."""
    loss = np.exp(np.random.default_rng(devices).uniform(np.log(3e-4), np.log(3e-3), devices))
    cell = Cell.paper(devices, seed=0, bandwidth_hz=1e6 * devices, budget_j=100.0, path_loss=loss, noise=noise)
    cell = replace(cell, noise_w_hz=1e-12 / devices)
    problem = cell.problem(cell.draw(1, 0), **MODEL, choose=("power", "cpu"))
    assert isinstance(problem, PowerProblem)
    return problem


def seconds(*calls: Callable[[], object], turns: int) -> list[float]:
    """Return the best time of each call; calls alternate in turns of 0.2 s or more, so that noise affects all alike."""
    best = [np.inf] * len(calls)
    for _ in range(turns):
        for number, call in enumerate(calls):
            end = time.perf_counter() + 0.2
            while (started := time.perf_counter()) < end:
                call()
                best[number] = min(best[number], time.perf_counter() - started)
    return best


def fresh(problem: PowerProblem) -> PowerProblem:
    """Return a copy of the problem, validated again."""
    return PowerProblem(**{name: getattr(problem, name) for name in problem.numbers})


def main() -> None:
    """Print both tables."""
    console = Console()
    table = Table(title="Power and clock; target: conic form 10 x slower at K = 10, 100 x at K = 1000")
    for column in ("K", "ours, ms", "conic form, ms", "ratio", "objective difference", "KKT residual"):
        table.add_column(column, justify="right")
    for devices, turns in ((10, 1),) if SMALL else ((10, 10), (1000, 3)):
        problem = cell_of(devices)
        mine, theirs = seconds(
            lambda problem=problem: allocate(fresh(problem)),
            lambda problem=problem: conic(problem).solve(solver=cp.CLARABEL),
            turns=turns,
        )
        found, value = allocate(problem), conic(problem).solve(solver=cp.CLARABEL)
        off, residual = f"{value / found.objective - 1:.0e}", f"{found.residual:.0e}"
        table.add_row(str(devices), f"{mine * 1e3:.2f}", f"{theirs * 1e3:.0f}", f"{theirs / mine:.0f}", off, residual)
    console.print(table)

    table = Table(title="Growth; target: 10^5 takes at most 15 x as long as 10^4")
    for column in ("K", "best ms", "x previous", "iterations", "peak bytes per device"):
        table.add_column(column, justify="right")
    problems = [cell_of(devices) for devices in ((10, 100) if SMALL else (10**3, 10**4, 10**5))]
    took = seconds(*(partial(allocate, problem) for problem in problems), turns=1 if SMALL else 6)
    for problem, time_s, before in zip(problems, took, [0.0, *took], strict=False):
        tracemalloc.start()
        passes = allocate(problem).iterations
        memory = tracemalloc.get_traced_memory()[1] / problem.shape[-1]
        tracemalloc.stop()
        ratio = f"{time_s / before:.1f}" if before else ""
        table.add_row(f"{problem.shape[-1]:,}", f"{time_s * 1e3:.1f}", ratio, str(passes), f"{memory:.0f}")
    console.print(table)
    for deadline_s in (8.0, 4.0):  # ample band, scarce band
        subband = replace(cell_of(10, "subband"), deadline_s=np.asarray(deadline_s))
        (took_s,) = seconds(partial(allocate, subband), turns=1 if SMALL else 3)
        console.print(f"Subband noise, K = 10, deadline {deadline_s:g} s: {1e3 * took_s:.0f} ms.")


if __name__ == "__main__":
    main()
