"""Choose which weights of a tensor, or which units of a layer, a subnet keeps.

The choice is a pure function of (seed, name, count, rate): Philox words, compared as integers. Server and device call
the same function and get the same positions, so no mask is sent (paper: eq. Eq:DropoutMask and the Generation step).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from feddrop.errors import ConfigError
from feddrop.seeds import derive, philox_chunks, philox_words
from feddrop.subnets.piece import Index

_SPREADS = 4.0
"""Standard deviations from the expected threshold to either side within which words are ranked."""
_CHUNK, _FEW = 2**16, 2**11
"""Words held at a time, which stay in the cache of a core; and up to how many are partitioned as a whole."""


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
    key = derive(seed, name)
    if count == "bernoulli":
        draws = philox_words(key, size)
        positions = np.flatnonzero(draws < int(keep * 2**32))
        return positions if len(positions) else np.array([int(draws.argmin())])
    kept = kept_count(size, keep)
    return None if kept == size else smallest(key, size, kept)


def smallest(key: int, size: int, kept: int) -> Index:
    """Return the sorted positions of the ``kept`` smallest of ``size`` Philox words, ties to the lower position.

    The threshold is near ``kept/size`` of the range of words, give or take a few standard deviations of the order
    statistic. So words below that window are kept, those inside are ranked, and words are never all held or sorted.
    """
    if size <= _FEW:
        return _ranked(philox_words(key, size), kept)
    share = kept / size
    spread = _SPREADS * math.sqrt(share * (1.0 - share) / size)
    low, high = int(max(0.0, share - spread) * 2**32), min(2**32 - 1, int((share + spread) * 2**32))
    chosen, at = np.empty(size, bool), 0
    places, found = [], []
    for words in (philox_words(key, size),) if size <= _CHUNK else philox_chunks(key, size, _CHUNK):
        below = np.less(words, low, out=chosen[at : at + len(words)])
        near = np.flatnonzero((words < high) ^ below)
        found.append(words[near])
        places.append(near + at if at else near)
        at += len(words)
    ranked, missing = np.concatenate(found), kept - int(np.count_nonzero(chosen))
    if not 0 < missing <= len(ranked):  # about one draw in 10,000, unless none is missing
        return _ranked(philox_words(key, size), kept)
    chosen[np.concatenate(places)[_ranked(ranked, missing)]] = True
    return np.flatnonzero(chosen)


def _ranked(words: npt.NDArray[np.uint32], kept: int) -> Index:
    """Return the sorted positions of the ``kept`` smallest words, ties to the lower position."""
    threshold = np.partition(words, kept - 1)[kept - 1]
    positions = np.flatnonzero(words <= threshold)
    if len(positions) > kept:  # of ties at the threshold, the later ones are dropped
        tied = np.flatnonzero(words[positions] == threshold)
        positions = np.delete(positions, tied[kept - len(positions) :])
    return positions
