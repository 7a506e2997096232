"""Max-min fairness: maximise the smallest subnet."""

from __future__ import annotations

import numpy as np

from feddrop.allocation.kkt import loads
from feddrop.allocation.problem import FloatArray
from feddrop.radio.plan import Plan, SeenRound


def max_min(seen: SeenRound) -> Plan:
    """Let every device keep the same share s of the network, the largest for which the band is enough.

    A device that cannot keep s, even with the whole band, keeps 99 % of the most that it could: the last percent would
    take the band from all others. The least shares rise with s, so bisection finds s. Unused band is split in
    proportion to the shares.
    """
    problem, present = seen.problem, seen.present
    alone = 1.0 / np.maximum(*loads(problem, np.ones(present.shape)))  # kept with the whole band

    def needed(s: float) -> FloatArray:
        kept = np.maximum(np.minimum(s, 0.99 * alone), 1.0 - problem.max_rate)  # at the highest rate, all devices fit
        return np.where(present, problem.least_share(1.0 / kept), 0.0)

    low, high = float(1.0 - np.max(problem.max_rate)), 1.0
    while needed(high).sum() > 1.0 and high - low > 1e-12:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if needed(middle).sum() <= 1.0 else (low, middle)
    share = needed(high if needed(high).sum() <= 1.0 else low)
    return Plan(share / share.sum())
