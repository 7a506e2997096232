"""OFDMA: whole subcarriers instead of an arbitrarily divisible band."""

from __future__ import annotations

import numpy as np

from feddrop.allocation import allocate
from feddrop.allocation.kkt import loads
from feddrop.allocation.problem import FloatArray
from feddrop.errors import InfeasibleError
from feddrop.radio.plan import Plan, SeenRound


def subcarriers(seen: SeenRound, *, count: int = 64) -> Plan:
    """Give every device a whole number of subcarriers, so that Σ w/(1-γ) is the smallest over all such splits.

    Every device starts with the fewest that meet its limits at rate θ. The rest go, one by one, to the
    device that gains most; since the cost of a device is convex in its share, this greedy order is optimal. The split
    of a divisible band bounds the loss: ``state["gap"]`` is the relative excess over it.

    Args:
        seen: the round.
        count: number of subcarriers in the band.
    """
    problem, present = seen.problem, seen.present
    least = np.where(present, problem.least_share(1.0 / (1.0 - problem.max_rate)), 0.0)
    held = np.maximum(np.ceil(count * least * (1.0 - 1e-12)), present)

    def cost(number: FloatArray) -> FloatArray:
        share = np.where(present, number, count) / count
        return np.where(present, problem.weight * np.maximum(1.0, np.maximum(*loads(problem, share))), 0.0)

    if held.sum() > count:
        raise InfeasibleError(
            f"{count} subcarriers are too few: the devices need {held.sum():.0f} at the highest rate. Raise "
            "radio.scheme_settings.count or the deadline."
        )
    for _ in range(int(count - held.sum())):
        held[np.argmax(np.where(present, cost(held) - cost(held + 1.0), -1.0))] += 1.0
    best = float(allocate(problem).objective) * float(np.sum(problem.weight * present))
    return Plan(held / count, state={"gap": np.array([cost(held).sum() / best - 1.0])})
