"""``wire = "auto"``: how the values of every device travel, chosen so that devices keep more of the network.

Fewer bits a value cost precision; dropout costs it too. Both add noise to what a device receives and sends. Federated
dropout scales what is kept by 1/(1-γ), which makes the mean square error 1/(1-γ) - 1 of the mean square of the weights;
rounding adds q of that of the kept ones, q/(1-γ). So a device costs the bound of Lemma 2, in place of w/(1-γ),

    w (1 + q)/(1-γ)

with q = 0 for float32, 1e-7 for float16 and 5e-4 for int8 (measured on LeNet: 4e-8; 2e-5 of the weights and 1e-4 to
3e-4 of the updates): int8 costs as much as a dropout rate of 0.0005. The rule looks for the least sum:

1. Everyone sends float32; allocate.
2. Whoever drops something, or is left out, goes one step down: to float16, to int8. Where all of those are at int8
   already, everyone else goes one step down and leaves them some of the band. Allocate again.
3. Stop when nobody drops anything or all are at int8. Of all that was tried, take the fewest devices left out, then
   the earliest deadline, then the least sum; of equals the first, which is the most precise.

It is a rule and not the optimum over all 3^K choices; ``tests/test_wires.py`` compares them for small K. Payloads that
a method sends beside the values are not rounded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from feddrop.allocation import Allocation
from feddrop.errors import InfeasibleError

AUTO = "auto"
ERRORS = {"float32": 0.0, "float16": 1e-7, "int8": 5e-4}
"""Mean square error of rounding over the mean square of the values, on the safe side; most precise first."""
_STEPS = tuple(ERRORS)
_PASSES = 8
"""Passes in which devices go down one by one; then all do."""


class Tried(NamedTuple):
    """Wires, one a device, and what the allocator makes of them."""

    wires: tuple[str, ...]
    allocation: Allocation


def choose_wires(solve: Callable[[Sequence[str]], Allocation], devices: int) -> Tried:
    """Choose how each device's values travel, by the rule above.

    Args:
        solve: allocates one round for wires, one a device.
        devices: K.

    Raises:
        InfeasibleError: nothing meets the constraints, even at int8.
    """
    step, last = np.zeros(devices, dtype=np.int64), len(_STEPS) - 1
    tried: list[tuple[tuple[float, ...], Tried]] = []
    for number in itertools.count(1):
        wires, at_the_end = tuple(_STEPS[s] for s in step), bool((step == last).all())
        try:
            found = solve(wires)
        except InfeasibleError:
            if at_the_end and not tried:
                raise
            wanting = np.ones(devices, dtype=np.bool_)
        else:
            tried.append((_cost(found, wires), Tried(wires, found)))
            wanting = np.asarray(found.left_out | (found.active & (found.rate > 0)))
        if at_the_end or not wanting.any():
            break
        lower = wanting & (step < last)
        step = np.where(lower if lower.any() and number < _PASSES else step < last, step + 1, step)
    return min(tried, key=lambda one: one[0])[1]


def _cost(found: Allocation, wires: Sequence[str]) -> tuple[float, ...]:
    """Devices left out, deadline, and the sum of the rule: what is compared, in this order."""
    error = np.array([ERRORS[wire] for wire in wires])
    weight = np.where(found.active, found.problem.weight, 0.0)
    cost = weight * (1.0 + error) / np.maximum(1.0 - np.where(found.active, found.rate, 0.0), 1e-12)
    total = float(cost.sum() / max(float(weight.sum()), 1e-300))
    return float(found.left_out.sum()), float(np.max(found.problem.deadline_s)), total
