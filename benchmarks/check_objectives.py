"""Check the allocator's objectives on random problems against CVXPY with Clarabel.

    python benchmarks/check_objectives.py            # 2,000 problems: several minutes on one core
    python benchmarks/check_objectives.py 60         # fewer

Every problem has 2 to 12 devices, with or without energy budgets and computation, and one of four objectives: the
paper's Σ w/s, Σ w²/s, the linear Σ w(1-s) and a convex piecewise quadratic as V(s) is tabulated. It is solved exactly,
and by Clarabel in the kept shares s and the shares ρ of the band. A row gives the worst relative difference in the
objective, how far ours is above Clarabel's, the worst violation of a constraint (relative) and the worst KKT residual.
Clarabel's own answer is accurate to about 1e-8; problems that it does not solve are counted separately.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
from rich.console import Console
from rich.table import Table

from feddrop.allocation import (
    Allocation,
    Exact,
    InverseKept,
    LinearKept,
    Objective,
    Problem,
    TabulatedCost,
    allocate,
    diagnose,
)

POINTS = np.array([0.02, 0.1, 0.25, 0.5, 0.75, 1.0])
SLOPES = np.array([-9.0, -5.0, -2.0, -0.8, -0.3, 0.0])
OBJECTIVES: dict[str, Objective] = {
    "paper": InverseKept(),
    "w²": InverseKept(squared=True),
    "linear": LinearKept(),
    "V(s), tabulated": TabulatedCost(POINTS, SLOPES),
}


@dataclass
class Worst:
    """The results of one objective; floats are the worst relative values."""

    compared: int = 0
    silent: int = 0
    off: float = 0.0
    above: float = 0.0
    breach: float = 0.0
    residual: float = 0.0


def problem(rng: np.random.Generator) -> Problem:
    """Return a random problem, feasible or not."""
    devices = int(rng.integers(2, 13))
    energy, compute = rng.random() < 0.6, rng.random() < 0.8
    tight = rng.uniform(0.2, 1.5) / devices
    return Problem(
        weight=rng.dirichlet(np.full(devices, rng.choice([0.7, 5.0]))),
        comm_s=rng.lognormal(0.0, 0.8, devices) * tight,
        compute_s=rng.uniform(0.02, 0.9, devices) if compute else 0.0,
        upload_j=rng.lognormal(0.0, 0.8, devices) * tight if energy else 0.0,
        compute_j=rng.uniform(0.02, 0.9, devices) if energy else 0.0,
        deadline_s=1.0,
        budget_j=rng.uniform(0.7, 1.5, devices) if energy else np.inf,
        max_rate=rng.choice([0.6, 0.9, 0.95]),
    )


def cost(name: str, s: cp.Variable) -> tuple[cp.Expression, list[cp.Constraint]]:
    """Return φ(s) for CVXPY; the tabulated cost is a sum over its pieces, each kept share split into steps."""
    if name in ("paper", "w²"):
        return cp.inv_pos(s), []
    if name == "linear":
        return 1 - s, []
    steps = [cp.Variable(s.shape[0]) for _ in range(len(POINTS) - 1)]
    value, rules = OBJECTIVES[name].value(POINTS[:1])[0], [s == POINTS[0] + sum(steps)]
    for step, width, low, high in zip(steps, np.diff(POINTS), SLOPES[:-1], SLOPES[1:], strict=True):
        value = value + low * step + (high - low) / (2 * width) * cp.square(step)
        rules += [step >= 0, step <= width]
    return value, rules


def reference(p: Problem, name: str) -> float | None:
    """Return the optimum by Clarabel; None if it does not solve the problem."""
    s, units = cp.Variable(p.shape[0]), cp.Variable(p.shape[0])
    share = units / p.shape[0]
    value, rules = cost(name, s)
    rules += [cp.sum(share) <= 1, units >= 0, s <= 1, s >= 1 - p.max_rate]
    for air, work, limit in ((p.comm_s, p.compute_s, p.deadline_s), (p.upload_j, p.compute_j, p.budget_j)):
        for k, (a, b, t) in enumerate(zip(*(np.broadcast_to(v, p.shape) for v in (air, work, limit)), strict=True)):
            if np.isinf(t) or a == 0:
                continue
            if b > 0:  # s (a/ρ + b) <= t, as s <= (t/b) (1 - a/(a + b ρ))
                rules.append(s[k] <= t / b * (1 - cp.inv_pos(1 + b / a * share[k])))
            else:
                rules.append(s[k] <= t / a * share[k])
    found = cp.Problem(cp.Minimize(OBJECTIVES[name].weights(p.weight) @ value), rules)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            found.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
        except cp.SolverError:
            return None
    return float(found.value) if found.status in ("optimal", "optimal_inaccurate") else None


def breach(found: Allocation) -> float:
    """Return the worst violation of a constraint, relative to it."""
    p = found.problem
    parts = (
        *(found.latency_s / p.deadline_s - 1.0, found.energy_j / p.budget_j - 1.0, found.share.sum() - 1.0),
        *(found.rate - p.max_rate, -found.rate, -found.share),
    )
    return float(max(0.0, *(np.max(part) for part in parts)))


def check(count: int, seed: int = 0) -> dict[str, Worst]:
    """Solve so many feasible problems, the four objectives in turn, and compare."""
    rng, names = np.random.default_rng(seed), list(OBJECTIVES)
    rows = {name: Worst() for name in names}
    number = 0
    while number < count:
        p = problem(rng)
        if diagnose(p) is not None:
            continue
        name = names[number % len(names)]
        number += 1
        row, ours = rows[name], allocate(p, Exact(OBJECTIVES[name]))
        row.breach, row.residual = max(row.breach, breach(ours)), max(row.residual, ours.residual)
        if (theirs := reference(p, name)) is None:
            row.silent += 1
            continue
        row.compared += 1
        scale = max(abs(theirs), float(np.sum(OBJECTIVES[name].weights(p.weight))))
        row.off = max(row.off, abs(ours.objective - theirs) / scale)
        row.above = max(row.above, (ours.objective - theirs) / scale)
    return rows


def main(count: int) -> None:
    """Print the table."""
    table = Table(title=f"{count:,} random problems, worst values; goal: difference 1e-6, violation 1e-9")
    for column in ("objective", "compared", "no answer", "difference", "ours above by", "violation", "KKT residual"):
        table.add_column(column, justify="left" if column == "objective" else "right")
    for name, w in check(count).items():
        numbers = (f"{value:.1e}" for value in (w.off, w.above, w.breach, w.residual))
        table.add_row(name, str(w.compared), str(w.silent), *numbers)
    Console(width=120).print(table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
