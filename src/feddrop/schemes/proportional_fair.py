"""Proportional fairness: maximise the product of the kept shares of the network."""

from __future__ import annotations

import numpy as np

from feddrop.allocation import Exact, allocate
from feddrop.allocation.problem import FloatArray
from feddrop.radio.plan import Plan, SeenRound


class LogKept:
    """The cost φ(s) = -log s; every device counts the same, regardless of its number of samples."""

    def value(self, s: FloatArray) -> FloatArray:
        """Return -log s."""
        return -np.log(s)

    def slope(self, s: FloatArray) -> FloatArray:
        """Return -1/s."""
        return -1.0 / s

    def weights(self, weight: FloatArray) -> FloatArray:
        """Return 1 for every device."""
        return np.ones_like(weight)


def proportional_fair(seen: SeenRound) -> Plan:
    """Maximise Σ log s_k: a gain of one percent counts the same for every device."""
    return Plan(allocate(seen.problem, Exact(LogKept())).share)
