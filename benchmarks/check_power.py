"""Thousands of random problems of rate, share, power and clock, held against their constraints and other solvers.

    python benchmarks/check_power.py            # all of them: about five minutes of one core
    python benchmarks/check_power.py 0.02       # a fiftieth of them

Every answer is held to its constraints and to the KKT conditions, solved in a batch and, where it is compared, once
more alone. Under noise that does not depend on the share it is compared with CVXPY and Clarabel on the exponential-cone
form, to 1e-10 or, where Clarabel does not get there, to its default of 1e-8; it must also find infeasible what we do.
Under subband noise it is compared with SciPy's SLSQP in log variables, the best of four starts, which may breach a
constraint by 1e-7. A family is one kind of problem under one noise: it prints a line when it is done, and all stand in
the table at the end. A reference more than 1e-6 above ours, which is feasible, stopped short and is counted apart.
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
from power_cases import KINDS, conic_optimum, feasible, in_logs, one_of_power, power_problems, worst_breach

from feddrop.allocation import PowerProblem, SubbandPowerProblem, allocate, diagnose

DEVICES = {False: (1, 2, 3, 10, 30, 100), True: (1, 2, 3, 5, 10, 30)}
"""Numbers of devices; the keys say whether noise is that of the sub-band."""

COMPARED, INFEASIBLE, STARTS = {False: 40, True: 10}, 10, 4
CLOSE = 1e-6
COUNTS = ("instances", "compared", "eased", "short", "silent", "infeasible", "agreed", "solved")


@dataclass
class Family:
    """What was found; integers count problems, the others are the worst of all, relative.

    Attributes:
        instances: problems solved.
        breach: of a constraint.
        residual: of the KKT conditions.
        compared: those for which the reference had an answer.
        eased: those of them for which it had one to 1e-8 only.
        off: the difference to the reference, where that did not stop short.
        above: by how much ours is above it.
        short: those for which the reference stopped more than 1e-6 above ours.
        short_by: by how much.
        silent: those for which it had no answer.
        infeasible: further problems, that we find infeasible.
        agreed: those of them that the reference does, too.
        solved: those of them that it solves.
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
        """Solve; hold the answers to constraints and KKT conditions; return the objectives."""
        found = allocate(p)
        self.breach = max(self.breach, worst_breach(found, p))
        self.residual = max(self.residual, found.residual)
        return np.atleast_1d(found.objective)

    def compare(self, ours: float, reference: float | None, *, eased: bool) -> None:
        """Take one comparison into account; None if the reference had no answer."""
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
    """The optimum of the conic form; and whether only to Clarabel's default of 1e-8, not to 1e-10."""
    found = conic_optimum(p)
    return (found, False) if found is not None else (conic_optimum(p, tolerance=1e-8), True)


def slsqp(p: SubbandPowerProblem, rng: np.random.Generator) -> float | None:
    """The least that a general solver finds from several starts."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        best = min(in_logs(p, rng) for _ in range(STARTS))
    return best if np.isfinite(best) else None


def check(kind: str, size: float, *, subband: bool) -> Family:
    """Solve, hold and compare the problems of one family."""
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
    """Ask the reference about problems that ask for more than there is."""
    for one in (one_of_power(over, row) for row in range(over.shape[0])):
        if diagnose(one) is not None:
            reference, _ = clarabel(one)
            family.infeasible += 1
            family.agreed += reference == np.inf
            family.solved += reference is not None and reference < np.inf


def _some(size: float, count: int) -> int:
    return max(1, round(size * count))


def line(name: str, family: Family) -> list[str]:
    """A family as text, cell by cell."""
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
    """Print a line a family as it is done, then the table."""
    started = time.process_time()
    table = Table(title="The worst of each family, relative")
    for column in (
        *("family", "instances", "infeasibility", "KKT residual", "compared", "off by"),
        *("ours above by", "reference stopped short", "reference silent", "infeasible, too"),
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
