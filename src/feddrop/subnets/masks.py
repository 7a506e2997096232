"""Choose which weights of a tensor, or which units of a layer, a subnet keeps.

The choice is a pure function of (seed, name, count, rate): Philox words, compared as integers. Server and device call
the same function and get the same positions, so no mask is sent (paper: eq. Eq:DropoutMask and the Generation step).
"""

from __future__ import annotations

import math

import numpy as np

from feddrop.errors import ConfigError
from feddrop.seeds import derive, philox_words
from feddrop.subnets.piece import Index


def check_rate(rate: float, what: str = "rate") -> float:
    """Return the dropout rate γ if it lies in [0, 1); otherwise raise a ConfigError."""
    if not (isinstance(rate, int | float | np.integer | np.floating) and 0.0 <= rate < 1.0):
        raise ConfigError(f"{what} is {rate!r}; it must be a number in [0, 1). Use 0 to keep everything.")
    return float(rate)


def kept_count(size: int, keep: float) -> int:
    """Return the number kept of ``size`` at a share ``keep``: rounded half up, at least one."""
    return max(1, math.floor(keep * size + 0.5))


def kept_positions(seed: int, name: str, size: int, keep: float, count: str = "exact") -> Index | None:
    """Return the sorted kept positions among ``size``; None if all are kept.

    Args:
        seed: the device's seed for this round.
        name: the tensor (weight level) or the group of units (unit level).
        size: number of positions.
        keep: share to keep: 1-γ for weights, sqrt(1-γ) for units.
        count: ``"exact"`` keeps the :func:`kept_count` positions with the smallest words, ties to the lower position;
            ``"bernoulli"`` keeps each independently with probability ``keep``.
    """
    if keep >= 1.0:
        return None
    draws = philox_words(derive(seed, name), size)
    if count == "bernoulli":
        positions = np.flatnonzero(draws < int(keep * 2**32))
        return positions if len(positions) else np.array([int(draws.argmin())])
    kept = kept_count(size, keep)
    if kept == size:
        return None
    threshold = np.partition(draws, kept - 1)[kept - 1]
    positions = np.flatnonzero(draws <= threshold)
    if len(positions) > kept:  # of ties at the threshold, the later ones are dropped
        tied = np.flatnonzero(draws[positions] == threshold)
        positions = np.delete(positions, tied[kept - len(positions) :])
    return positions
