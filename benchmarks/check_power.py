"""Thousands of random problems of rate, share, power and clock, held against their constraints and other solvers.

    python benchmarks/check_power.py            # all of them: some minutes
    python benchmarks/check_power.py 0.02       # a fiftieth of them

Every answer is held to its constraints and to the KKT conditions; under noise that does not depend on the share, to
CVXPY with Clarabel on the exponential-cone form, which must also find infeasible what we do; under subband noise, to
SciPy's SLSQP in log variables from several starts.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from feddrop.allocation import allocate, diagnose
from power_cases import KINDS, conic_optimum, feasible, in_logs, one_of_power, power_problems, worst_breach

DEVICES = (1, 2, 3, 10, 30, 100)


def ours(size: float, *, subband: bool) -> str:
    """Feasible, and optimal by the KKT conditions."""
    count, breach, residual, bindings = 0, 0.0, 0.0, set()
    for kind in KINDS:
        for devices in DEVICES[: 5 if subband else 6]:
            p = power_problems(
                kind, devices, _some(size, (600 if not subband else 30) // devices + 10), seed=20, subband=subband
            )
            found = allocate(p := feasible(p))
            count += p.shape[0]
            breach, residual = max(breach, worst_breach(found, p)), max(residual, found.residual)
            bindings |= set(found.binding.ravel().tolist())
    return (
        f"{count:,} feasible: worst breach {breach:.1e}, worst KKT residual {residual:.1e}; held by {sorted(bindings)}"
    )


def against_clarabel(size: float) -> str:
    """The same objective as the conic solver's, and infeasible where it says so."""
    ours, theirs, gave_up, refused, sure = [], [], 0, 0, 0
    for kind in KINDS:
        for devices in DEVICES:
            p = power_problems(kind, devices, _some(size, 10), seed=21)
            for row, value in enumerate(np.atleast_1d(allocate(p).objective)):
                reference = conic_optimum(one_of_power(p, row))
                gave_up += reference is None
                if reference is not None:
                    ours.append(value)
                    theirs.append(reference)
            over = power_problems(kind, devices, _some(size, 3), seed=22, load=1.3)
            for one in (one_of_power(over, row) for row in range(over.shape[0])):
                if diagnose(one) is not None:
                    reference = conic_optimum(one)
                    refused += reference is not None
                    sure += reference == np.inf
    gap = np.array(ours) / np.array(theirs) - 1.0
    return (
        f"{gap.size:,} compared with Clarabel: ours above its optimum by at most {gap.max():.1e}; within 1e-6 in "
        f"{np.sum(np.abs(gap) <= 1e-6)}, in the others it stopped up to {-gap.min():.1e} above ours ({gave_up} it gave "
        f"up on); {sure} of {refused} that we find infeasible it does, too"
    )


def against_slsqp(size: float) -> str:
    """Under subband noise no start of a general solver ends lower."""
    rng, compared, lower, off = np.random.default_rng(0), 0, 0.0, 0.0
    for kind in KINDS:
        for devices in (1, 2, 3, 5):
            p = power_problems(kind, devices, _some(size, 3), seed=23, subband=True)
            found = np.atleast_1d(allocate(p := feasible(p)).objective)
            for row, value in enumerate(found):
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    best = min(in_logs(one_of_power(p, row), rng) for _ in range(4))
                if np.isfinite(best):
                    compared += 1
                    lower, off = max(lower, value / best - 1.0), max(off, abs(best / value - 1.0))
    return (
        f"{compared} compared with SLSQP, 4 starts each: ours is above by at most {lower:.1e}, off by at most {off:.1e}"
    )


def _some(size: float, count: int) -> int:
    return max(1, round(size * count))


def main(size: float) -> None:
    """Print a line a check."""
    for name, check in {
        "noise as density": lambda: ours(size, subband=False),
        "subband noise": lambda: ours(size, subband=True),
        "a conic solver": lambda: against_clarabel(size),
        "a general solver": lambda: against_slsqp(size),
    }.items():
        started = time.perf_counter()
        print(f"{name}: {check()} ({time.perf_counter() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
