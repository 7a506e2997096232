"""Proportional fairness: the product of the kept shares of the network is as large as the cell allows."""

from __future__ import annotations

import numpy as np

from feddrop.allocation import Exact, allocate
from feddrop.allocation.problem import FloatArray
from feddrop.radio.plan import Plan, SeenRound


class LogKept:
    """The cost φ(s) = -log s; every device counts the same, however many samples it has."""

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
    """Maximise Σ log s_k: one percent more for one device weighs as much as one percent for any other."""
    return Plan(allocate(seen.problem, Exact(LogKept())).share)
