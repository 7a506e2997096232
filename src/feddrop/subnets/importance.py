"""Importance draws: keep entry j with probability q_j proportional to its magnitude, scaled by 1/q_j.

The draw is unbiased, E ŵ = w, and of all draws that keep s·n of n entries on average it has the least variance

    V(s) = min_q Σ w_j² (1/q_j - 1)   s.t.  Σ q_j = s n,  0 < q_j ≤ 1
         = τ Σ_{|w|<τ} |w| - Σ_{|w|<τ} w²,       q_j = min(1, |w_j|/τ),

where uniform draws have ‖w‖² γ/(1-γ) (Lemma 1 of the paper). V is convex and falling in s, with V(1) = 0 and slope
V'(s) = -n τ(s)². A kept entry with q_j < 1 is sent as w_j/q_j = τ·sign(w_j): its magnitude is raised to τ.

With an exponent p above 1, q_j = min(1, |w_j|/τ)^p, and kept entries are raised to τ as before. Small entries are then
kept less often than an unbiased draw requires: E ŵ_j = w_j (|w_j|/τ)^(p-1) for |w_j| < τ. In return, the error is
smaller where few entries are kept. As p grows, the draw becomes the choice of the largest entries.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feddrop.seeds import derive, philox_words
from feddrop.subnets.piece import Index

FloatArray = npt.NDArray[np.float64]


class Magnitudes:
    """Sorted magnitudes of n entries; answers for any number of kept entries in O(log n).

    Args:
        values: the entries, of any shape; at least one is not zero.
        exponent: p.
    """

    def __init__(self, values: npt.ArrayLike, exponent: float = 1.0) -> None:
        self._sizes: FloatArray = np.sort(np.abs(np.asarray(values, dtype=np.float64)).reshape(-1))[::-1]
        self._size, self._exponent = len(self._sizes), exponent
        self._sorted = self._sizes
        if exponent != 1.0:  # relative to the largest, so that powers do not underflow
            self._sorted = (self._sizes / (self._sizes[0] or 1.0)) ** exponent
        self._nonzero = int(np.count_nonzero(self._sorted))
        # Sums over all entries from position i on, in falling order of magnitude.
        self._tail = np.append(np.cumsum(self._sorted[::-1])[::-1], 0.0)
        self._tail_squares = np.append(np.cumsum(self._sorted[::-1] ** 2)[::-1], 0.0)

    @property
    def size(self) -> int:
        """Number of entries n."""
        return self._size

    def threshold(self, kept: float) -> float:
        """Return τ at which Σ min(1, |w_j|/τ)^p = kept; 0 if all entries that are not zero are kept for certain."""
        found = self._certain(kept)[1]
        return found if self._exponent == 1.0 else float(self._sizes[0] * found ** (1.0 / self._exponent))

    def variance(self, kept: float) -> float:
        """Return the mean squared error E‖ŵ-w‖² with s = kept/n; with p = 1, V(s)."""
        certain, threshold = self._certain(kept)
        if threshold == 0.0:
            return 0.0
        if self._exponent != 1.0:
            rest, raised = self._sizes[certain:], self.threshold(kept)
            q = probabilities(rest, raised, self._exponent)
            return float(np.sum(q * (raised - rest) ** 2 + (1.0 - q) * rest**2))
        return float(max(0.0, threshold * self._tail[certain] - self._tail_squares[certain]))

    def slope(self, kept: float) -> float:
        """Return V'(s) at s = kept/n, for p = 1."""
        return -self._size * self.threshold(kept) ** 2

    def _certain(self, kept: float) -> tuple[int, float]:
        """Return how many entries are kept for certain, and τ."""
        if kept >= self._nonzero:
            return self._nonzero, 0.0
        # With the c largest certain, τ = (sum of the others)/(kept - c); right for the least c with |w_c| < τ.
        low, high = 0, int(np.ceil(kept)) - 1
        while low < high:
            middle = (low + high) // 2
            if self._sorted[middle] * (kept - middle) < self._tail[middle]:
                high = middle
            else:
                low = middle + 1
        return low, float(self._tail[low] / (kept - low))


def probabilities(values: npt.ArrayLike, threshold: float, exponent: float = 1.0) -> FloatArray:
    """Return q_j = min(1, |w_j|/τ)^p, in the shape of the values; with τ = 0 every entry that is not zero has 1."""
    size = np.abs(np.asarray(values, dtype=np.float64))
    if exponent != 1.0 and threshold > 0.0:
        return np.minimum(size / threshold, 1.0) ** exponent
    return np.where(size >= threshold, size > 0.0, size / threshold) if threshold > 0.0 else (size > 0.0).astype(float)


def draw(seed: int, name: str, q: FloatArray) -> Index:
    """Draw positions with inclusion probabilities exactly q, ``[n]``; their number is Σ q rounded up or down.

    Systematic sampling over a random order of the uncertain entries: they are laid end to end as intervals of length
    q_j, and those that hold one of the points u, u+1, u+2, ... are kept.

    Args:
        seed: the device's seed for this round.
        name: the tensor or group.
        q: probabilities.

    Returns:
        Sorted positions.
    """
    certain = q >= 1.0
    uncertain = np.flatnonzero(~certain & (q > 0.0))
    draws = philox_words(derive(seed, name), len(uncertain) + 1)
    order = uncertain[np.argsort(draws[1:], kind="stable")]
    ends = np.cumsum(q[order])
    if len(ends) and abs(ends[-1] - round(ends[-1])) < 1e-6:
        ends[-1] = round(ends[-1])  # so that rounding errors do not change the number
    offset = int(draws[0]) / 2.0**32
    points = np.floor(ends - offset)
    kept = order[np.diff(points, prepend=np.floor(-offset)) > 0]
    return np.sort(np.concatenate([np.flatnonzero(certain), kept]))
