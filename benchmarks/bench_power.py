"""Rate, share, power and clock together beside CVXPY with Clarabel, and how the solver grows with devices.

The same problems, a cell where energy binds, from arrays to the answer: ours with its checks, CVXPY with building the
exponential-cone form. Seconds are those of the processor, at best: other programs count less than by the clock.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cvxpy as cp
import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from feddrop.allocation import PowerProblem, allocate
from feddrop.radio import Cell
from power_cases import conic

SMALL = "--small" in sys.argv
MODEL = {"parameters": 69_656, "forward_flops": 1_318_560}


def cell_of(devices: int, noise: str = "density") -> PowerProblem:
    """The paper's devices with path losses over 10 dB, LeNet, 100 J a round; band and noise grow with their number."""
    loss = np.exp(np.random.default_rng(devices).uniform(np.log(3e-4), np.log(3e-3), devices))
    cell = Cell.paper(devices, seed=0, bandwidth_hz=1e6 * devices, budget_j=100.0, path_loss=loss, noise=noise)
    cell = replace(cell, noise_w_hz=1e-12 / devices)
    problem = cell.problem(cell.draw(1, 0), **MODEL, choose=("power", "cpu"))
    assert isinstance(problem, PowerProblem)
    return problem


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Processor seconds of one call, at best."""
    took = []
    for _ in range(repeats):
        started = time.process_time()
        call()
        took.append(time.process_time() - started)
    return min(took)


def fresh(problem: PowerProblem) -> PowerProblem:
    """The same problem, checked anew."""
    return PowerProblem(**{name: getattr(problem, name) for name in problem.numbers})


def main() -> None:
    """Print both tables."""
    console = Console()
    table = Table(title="Power and clock; target: the conic form 10 x at K = 10, 100 x at K = 1000")
    for column in ("K", "ours, ms", "conic form, ms", "x", "objective off by", "KKT residual"):
        table.add_column(column, justify="right")
    for devices, repeats in ((10, 1),) if SMALL else ((10, 8), (1000, 3)):
        problem = cell_of(devices)
        mine = seconds(lambda problem=problem: allocate(fresh(problem)), 10 * repeats)
        theirs = seconds(lambda problem=problem: conic(problem).solve(solver=cp.CLARABEL), repeats)
        found, value = allocate(problem), conic(problem).solve(solver=cp.CLARABEL)
        off, residual = f"{value / found.objective - 1:.0e}", f"{found.residual:.0e}"
        table.add_row(str(devices), f"{mine * 1e3:.2f}", f"{theirs * 1e3:.0f}", f"{theirs / mine:.0f}", off, residual)
    console.print(table)

    table = Table(title="Growth; target: 10^5 takes at most 15 x as long as 10^4")
    for column in ("K", "ms at best", "x previous", "passes", "peak bytes a device"):
        table.add_column(column, justify="right")
    before = 0.0
    for devices in (10, 100) if SMALL else (10**3, 10**4, 10**5):
        problem = cell_of(devices)
        took = seconds(lambda problem=problem: allocate(problem), 1 if SMALL else 5)
        tracemalloc.start()
        passes = allocate(problem).iterations
        memory = tracemalloc.get_traced_memory()[1] / devices
        tracemalloc.stop()
        ratio = f"{took / before:.1f}" if before else ""
        table.add_row(f"{devices:,}", f"{took * 1e3:.1f}", ratio, str(passes), f"{memory:.0f}")
        before = took
    console.print(table)
    subband = cell_of(10, "subband")
    console.print(f"Subband noise: K = 10 in {1e3 * seconds(lambda: allocate(subband), 1 if SMALL else 3):.0f} ms.")


if __name__ == "__main__":
    main()
