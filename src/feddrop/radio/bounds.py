"""Two safe bounds: a size of the full model that covers measured costs, and the smallest bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from feddrop.allocation.feasible import fits
from feddrop.errors import ConfigError
from feddrop.radio.cell import Cell, Channels


def covering(measure: Callable[[float], float], max_rate: float, *, steps: int = 256) -> float:
    """Return an almost minimal cost C of the full model with ``measure(γ) <= (1-γ) C`` for all γ in [0, θ].

    By the paper's formula, a subnet costs 1-γ of the full model. A real one costs more: a frame has a header, biases
    are not dropped, counts are rounded up. A deadline met by the formula may then be missed by measured costs; an
    allocation for C meets both.

    A finite number of measurements proves the bound, because the cost does not increase with the rate: between two
    neighbours γ < γ' it is at most ``measure(γ)``, and at least 1-γ' is kept. C exceeds the smallest bound by a factor
    of at most (1-θ)^(-1/steps), 0.9 % with 256 steps and θ = 0.9.

    Args:
        measure: bits, bytes or FLOPs of a subnet at a rate; must not increase with the rate.
        max_rate: θ.
        steps: number of measurements.
    """
    if not 0 <= max_rate < 1:
        raise ConfigError(f"max_rate is {max_rate:g}; it must be at least 0 and below 1.")
    keep = (1.0 - max_rate) ** (np.arange(steps + 1) / steps)
    costs = [measure(float(1.0 - k)) for k in keep]
    if any(later > earlier for earlier, later in pairwise(costs)):
        raise ConfigError("the measured cost increases with the rate; covering needs one that does not.")
    return float(max(np.max(np.asarray(costs[:-1]) / keep[1:]), costs[-1] / keep[-1]))


def smallest_bandwidth(cell: Cell, channels: Channels, **model: Any) -> float:
    """Return the smallest bandwidth in Hz at which a round is feasible; inf if none is.

    It is exact under every noise convention: under ``"density"`` a wider band has more noise, which the load of
    :func:`feddrop.allocation.diagnose` ignores.

    Args:
        cell: the cell; its bandwidth is ignored.
        channels: conditions of one round.
        **model: arguments of :meth:`Cell.problem` about the model.
    """

    def feasible(bandwidth_hz: float) -> bool:
        return bool(fits(replace(cell, bandwidth_hz=bandwidth_hz).problem(channels, **model)).all())

    high = cell.bandwidth_hz
    while not feasible(high):
        high *= 4.0
        if high > 1e30:
            return np.inf
    low = high
    while feasible(low) and low > 1e-30:
        low /= 4.0
    while high - low > 1e-12 * high:
        middle = float(np.sqrt(low) * np.sqrt(high))
        if not low < middle < high:
            break
        low, high = (low, middle) if feasible(middle) else (middle, high)
    return high
