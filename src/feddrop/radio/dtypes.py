"""``execution.dtype = "auto"``: choose each device's dtype so that devices keep more of the network.

Fewer bits per value cost precision, and so does dropout: both add noise to what a device receives and sends. Federated
dropout scales kept values by 1/(1-γ), so its mean square error is 1/(1-γ) - 1 of the mean square of the weights;
rounding adds a part q of the kept ones, q/(1-γ). In the bound of Lemma 2, a device then costs, instead of w/(1-γ),

    w (1 + q)/(1-γ)

with q = 0 for float32, 1e-7 for float16 and 5e-4 for int8 (measured on LeNet: 4e-8 for float16; for int8, 2e-5 of the
weights and 1e-4 to 3e-4 of the updates): int8 costs as much as a dropout rate of 0.0005. The rule minimises the sum:

1. Allocate with float32 for all devices.
2. Every device that drops something or is left out moves one step down: to float16, then to int8. If all of these use
   int8 already, all other devices move one step down, which leaves more band to them. Allocate again.
3. Stop if no device drops anything or all use int8. Of all allocations, take the one with the fewest devices left out,
   then the shortest deadline, then the smallest sum; of equal ones the first, which is the most precise.

The rule is a heuristic, not the optimum over all 3^K choices; ``tests/radio/test_dtypes.py`` compares them for small K.
Payloads that a method sends in addition to the values are not rounded.
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
"""Upper bounds of the rounding error's mean square, relative to that of the values; most precise first."""
_STEPS = tuple(ERRORS)
_PASSES = 8  # passes in which only the devices that drop something move down; then all do


class Tried(NamedTuple):
    """One dtype per device, and the allocation for them."""

    dtypes: tuple[str, ...]
    allocation: Allocation


def choose_dtypes(solve: Callable[[Sequence[str]], Allocation], devices: int) -> Tried:
    """Choose the dtype of each device by the rule above.

    Args:
        solve: allocates one round for given dtypes, one per device.
        devices: K.

    Raises:
        InfeasibleError: nothing meets the constraints, even with int8.
    """
    step, last = np.zeros(devices, dtype=np.int64), len(_STEPS) - 1
    tried: list[tuple[tuple[float, ...], Tried]] = []
    for number in itertools.count(1):
        dtypes, at_the_end = tuple(_STEPS[s] for s in step), bool((step == last).all())
        try:
            found = solve(dtypes)
        except InfeasibleError:
            if at_the_end and not tried:
                raise
            wanting = np.ones(devices, dtype=np.bool_)
        else:
            tried.append((_cost(found, dtypes), Tried(dtypes, found)))
            wanting = np.asarray(found.left_out | (found.active & (found.rate > 0)))
        if at_the_end or not wanting.any():
            break
        lower = wanting & (step < last)
        step = np.where(lower if lower.any() and number < _PASSES else step < last, step + 1, step)
    return min(tried, key=lambda one: one[0])[1]


def _cost(found: Allocation, dtypes: Sequence[str]) -> tuple[float, ...]:
    """Return devices left out, deadline and the sum of the rule, compared in this order."""
    error = np.array([ERRORS[dtype] for dtype in dtypes])
    weight = np.where(found.active, found.problem.weight, 0.0)
    cost = weight * (1.0 + error) / np.maximum(1.0 - np.where(found.active, found.rate, 0.0), 1e-12)
    total = float(cost.sum() / max(float(weight.sum()), 1e-300))
    return float(found.left_out.sum()), float(np.max(found.problem.deadline_s)), total
