"""Two bounds on the safe side: figures of the full model that cover measured costs, and the smallest bandwidth."""

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
    """A figure of the full model, close to the smallest, whose part 1-γ covers what a subnet costs up to rate θ.

    The paper's formula says that a subnet costs 1-γ of the full model. A real one costs more: a frame has a header,
    biases are not dropped, counts are rounded up. A deadline that is met by the formula is then missed by what is
    measured. Given the true cost as a function of the rate, this returns C with ``measure(γ) <= (1-γ) C`` for all γ
    in [0, θ]: an allocation for C meets the deadline by the measured cost too.

    The bound is proven from a finite number of measurements, since the cost does not grow with the rate: between two
    neighbours γ < γ' it is at most ``measure(γ)``, and at least 1-γ' is kept. It is over the true bound by at most
    (1-θ)^(-1/steps), 0.9 % with 256 steps and θ = 0.9.

    Args:
        measure: bits, bytes or FLOPs of a subnet at a rate; must not grow with the rate.
        max_rate: θ.
        steps: measurements.
    """
    if not 0 <= max_rate < 1:
        raise ConfigError(f"max_rate is {max_rate:g}; it must be at least 0 and below 1.")
    keep = (1.0 - max_rate) ** (np.arange(steps + 1) / steps)
    costs = [measure(float(1.0 - k)) for k in keep]
    if any(later > earlier for earlier, later in pairwise(costs)):
        raise ConfigError("the measured cost grows with the rate; covering needs one that does not.")
    return float(max(np.max(np.asarray(costs[:-1]) / keep[1:]), costs[-1] / keep[-1]))


def smallest_bandwidth(cell: Cell, channels: Channels, **model: Any) -> float:
    """Smallest bandwidth in Hz at which a round is feasible; inf if none is.

    Exact under every noise convention: under ``"density"`` a wider band lets in more noise, which the load of
    :func:`feddrop.allocation.diagnose` leaves out.

    Args:
        cell: the cell; its own bandwidth does not matter.
        channels: conditions of one round.
        **model: what :meth:`Cell.problem` is told of the model.
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
