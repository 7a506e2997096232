"""Check the allocation of rate, share, power and clock on thousands of random problems.

    python benchmarks/check_power.py            # all problems: about five minutes on one core
    python benchmarks/check_power.py 0.02       # a fiftieth of them

Every solution is checked against its constraints and the KKT conditions. Problems are solved in batches; those that are
compared with a reference are also solved alone. If the noise does not depend on the share, the reference is CVXPY with
Clarabel on the exponential-cone form, to 1e-10 or, where Clarabel does not get there, to its default of 1e-8; it must
also agree on which problems are infeasible. Under subband noise the reference is SciPy's SLSQP in log variables, the
best of four starts, which may violate a constraint by 1e-7. A family is one kind of problem under one kind of noise; it
is printed when done and again in the final table. Our solution is feasible, so a reference objective more than 1e-6
above ours means that the reference stopped early; these are counted separately.
"""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from feddrop.allocation import PowerProblem, SubbandPowerProblem, allocate, diagnose
from support.power_cases import KINDS, conic_optimum, feasible, in_logs, one_of_power, power_problems, worst_breach

DEVICES = {False: (1, 2, 3, 10, 30, 100), True: (1, 2, 3, 5, 10, 30)}
"""Numbers of devices, by whether the noise is that of the sub-band."""

COMPARED, INFEASIBLE, STARTS = {False: 40, True: 10}, 10, 4
CLOSE = 1e-6
COUNTS = ("instances", "compared", "eased", "short", "silent", "infeasible", "agreed", "solved")


@dataclass
class Family:
    """Results of one family; integers count problems, floats are the worst relative value.

    Attributes:
        instances: problems solved.
        breach: violation of a constraint.
        residual: of the KKT conditions.
        compared: problems that the reference solved.
        eased: of these, problems that it solved to 1e-8 only.
        off: difference from the reference, where it did not stop early.
        above: excess of our objective over the reference.
        short: problems where the reference stopped more than 1e-6 above ours.
        short_by: by how much.
        silent: problems without a solution from the reference.
        infeasible: further problems that we find infeasible.
        agreed: of these, problems that the reference finds infeasible too.
        solved: of these, problems that the reference solves.
    """

    instances: int = 0
    breach: float = 0.0
    residual: float = 0.0
    compared: int = 0
    eased: int = 0
    off: float = 0.0
    above: float = 0.0
    short: int = 0
    short_by: float = 0.0
    silent: int = 0
    infeasible: int = 0
    agreed: int = 0
    solved: int = 0

    def hold(self, p: PowerProblem) -> np.ndarray:
        """Solve, check constraints and KKT conditions, and return the objectives."""
        found = allocate(p)
        self.breach = max(self.breach, worst_breach(found, p))
        self.residual = max(self.residual, found.residual)
        return np.atleast_1d(found.objective)

    def compare(self, ours: float, reference: float | None, *, eased: bool) -> None:
        """Record one comparison; ``reference`` is None if it found no solution."""
        if reference is None:
            self.silent += 1
            return
        self.compared, self.eased = self.compared + 1, self.eased + eased
        gap = reference / ours - 1.0
        self.above = max(self.above, -gap)
        if gap > CLOSE:
            self.short, self.short_by = self.short + 1, max(self.short_by, gap)
        else:
            self.off = max(self.off, abs(gap))

    def __add__(self, other: Family) -> Family:
        both = zip(fields(self), astuple(self), astuple(other), strict=True)
        return Family(*(a + b if field.name in COUNTS else max(a, b) for field, a, b in both))


def clarabel(p: PowerProblem) -> tuple[float | None, bool]:
    """Return the optimum of the conic form, and whether it is only accurate to Clarabel's default of 1e-8."""
    found = conic_optimum(p)
    return (found, False) if found is not None else (conic_optimum(p, tolerance=1e-8), True)


def slsqp(p: SubbandPowerProblem, rng: np.random.Generator) -> float | None:
    """Return the best objective that SLSQP finds from several starts."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        best = min(in_logs(p, rng) for _ in range(STARTS))
    return best if np.isfinite(best) else None


def check(kind: str, size: float, *, subband: bool) -> Family:
    """Solve, check and compare the problems of one family."""
    family, rng = Family(), np.random.default_rng(0)
    for devices in DEVICES[subband]:
        count = _some(size, (30 if subband else 600) // devices + COMPARED[subband])
        p = feasible(power_problems(kind, devices, count, seed=20, subband=subband))
        if p.shape[0]:
            family.instances += p.shape[0]
            family.hold(p)
        for row in range(min(p.shape[0], _some(size, COMPARED[subband])) if not subband or devices <= 5 else 0):
            one = one_of_power(p, row)
            reference, eased = (slsqp(one, rng), False) if subband else clarabel(one)
            family.compare(family.hold(one).item(), reference, eased=eased)
        if not subband:
            refuse(family, power_problems(kind, devices, _some(size, INFEASIBLE), seed=22, load=1.3))
    return family


def refuse(family: Family, over: PowerProblem) -> None:
    """Check whether the reference agrees on infeasible problems."""
    for one in (one_of_power(over, row) for row in range(over.shape[0])):
        if diagnose(one) is not None:
            reference, _ = clarabel(one)
            family.infeasible += 1
            family.agreed += reference == np.inf
            family.solved += reference is not None and reference < np.inf


def _some(size: float, count: int) -> int:
    return max(1, round(size * count))


def line(name: str, family: Family) -> list[str]:
    """Return the cells of a family's row."""
    f = family
    return [
        name,
        f"{f.instances:,}",
        f"{f.breach:.0e}",
        f"{f.residual:.0e}",
        f"{f.compared:,}" + (f", {f.eased} to 1e-8" if f.eased else ""),
        f"{f.off:.0e}",
        f"{f.above:.0e}",
        f"{f.short}, by {f.short_by:.0e}" if f.short else "0",
        str(f.silent),
        f"{f.agreed} of {f.infeasible}" + (f", {f.solved} solved" if f.solved else "") if f.infeasible else "",
    ]


def main(size: float) -> None:
    """Print one line per finished family, then the table."""
    started = time.process_time()
    table = Table(title="Worst relative value per family")
    for column in (
        *("family", "instances", "infeasibility", "KKT residual", "compared", "difference"),
        *("ours above by", "reference stopped early", "reference failed", "agreed infeasible"),
    ):
        table.add_column(column, justify="right")
    for subband, reference in ((False, "density, Clarabel"), (True, "subband, SLSQP")):
        everything = Family()
        for kind in KINDS:
            family = check(kind, size, subband=subband)
            everything += family
            cells = line(f"{reference}: {kind}", family)
            table.add_row(*cells)
            print(" | ".join(cells), f"({time.process_time() - started:.0f} s)", flush=True)
        table.add_row(*line(f"{reference}: all", everything), style="bold", end_section=True)
    Console(width=160).print(table)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
