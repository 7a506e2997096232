"""FedDD's dropout rates: a linear program over the rates D and the round time t, solved exactly.

    minimise  t + δ Σ c_n D_n
    subject to  Σ U_n (1-D_n) = A Σ U_n,   0 ≤ D_n ≤ D_max,   b_n + (1-D_n) q_n ≤ t.

For a fixed t, D_n ≥ L_n(t) = max(0, 1 - (t-b_n)/q_n); the rest of the mass (1-A) Σ U_n goes to the devices with the
smallest c_n/U_n first (a fractional knapsack). The value is convex and piecewise linear in t, so tangents at both ends
of a bracket meet at the minimum after finitely many steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feddrop.allocation.problem import FloatArray
from feddrop.errors import ConfigError

_STEPS = 200
"""The most tangents; each removes at least one piece of the value, and fewer than 20 were ever needed."""
_NEXT = 1e-13


class DifferentialRates(NamedTuple):
    """FedDD's rates D ``[num_devices]``, the round time t in seconds, and the value of the program."""

    rate: FloatArray
    seconds: float
    value: float


def differential_rates(
    *,
    size: npt.ArrayLike,
    cost: npt.ArrayLike,
    compute_s: npt.ArrayLike,
    link_s: npt.ArrayLike,
    keep: float = 0.5,
    delta: float = 3.0,
    max_rate: float = 0.9,
) -> DifferentialRates:
    """Solve FedDD's program.

    Args:
        size: U, values of each device's network.
        cost: c, what a device loses at D = 1: (share of samples)·(share of size)·(last training loss).
        compute_s: b, seconds to train.
        link_s: q, seconds to send and receive the full network.
        keep: A, share of all values that are sent.
        delta: δ, the weight of the cost against seconds.
        max_rate: D_max.

    Example:
        >>> from feddrop.allocation.differential import differential_rates
        >>> found = differential_rates(size=[1, 1], cost=[0.1, 0.2], compute_s=0.0, link_s=[1.0, 2.0], delta=0.0)
        >>> found.rate.round(3).tolist(), round(found.seconds, 3)
        ([0.333, 0.667], 0.667)
    """
    u, c, b, q = np.broadcast_arrays(*(np.asarray(x, np.float64) for x in (size, cost, compute_s, link_s)))
    if u.ndim != 1 or not ((u > 0).all() and (q > 0).all() and (c >= 0).all() and (b >= 0).all()):
        raise ConfigError("size and link_s must be above 0 and cost and compute_s at least 0, one number per device.")
    if not 0 < keep <= 1 or not 0 <= max_rate < 1:
        raise ConfigError(f"keep is {keep} and max_rate is {max_rate}; they must be in (0, 1] and [0, 1).")
    if keep < 1.0 - max_rate - 1e-12:
        raise ConfigError(f"keep is {keep:g}, but devices send at least {1.0 - max_rate:g}. Raise max_rate or keep.")
    return _Program(u, c, b, q, (1.0 - keep) * float(u.sum()), delta, max_rate).solve()


class _Program(NamedTuple):
    u: FloatArray
    c: FloatArray
    b: FloatArray
    q: FloatArray
    mass: float
    delta: float
    top: float

    def least(self, t: float) -> FloatArray:
        return np.clip(1.0 - (t - self.b) / self.q, 0.0, None)

    def first(self) -> float:
        """Return the smallest feasible t, by Newton steps from the left on the convex Σ U L(t)."""
        t = float((self.b + (1.0 - self.top) * self.q).max())
        for _ in range(_STEPS):
            low = self.least(t)
            over = float(self.u @ low) - self.mass
            slope = float((self.u / self.q)[low > 0].sum())
            if over <= _NEXT * self.mass or not slope:
                break
            t += over / slope
        return t

    def at(self, t: float) -> tuple[FloatArray, float, float]:
        """Return the rates, the value and its slope to the right at t."""
        low = self.least(t)
        rate, left = low.copy(), max(0.0, self.mass - float(self.u @ low))
        price = 0.0
        for n in np.argsort(self.c / self.u, kind="stable"):
            room = self.u[n] * (self.top - low[n])
            if room <= 0.0:
                continue
            price = float(self.c[n] / self.u[n])
            rate[n] = low[n] + min(room, left) / self.u[n]
            if room > left:
                break
            left -= room
        bound = (low > _NEXT) & (rate <= low) & (self.c >= price * self.u)  # cheaper ones stay at the top
        slope = 1.0 - self.delta * float(((self.c - price * self.u) / self.q)[bound].sum())
        return rate, t + self.delta * float(self.c @ rate), slope

    def solve(self) -> DifferentialRates:
        low, high = self.first(), max(self.first(), float((self.b + self.q).max()))
        (rate, below, down), (_, above, up) = self.at(low), self.at(high)
        if down >= 0:
            return DifferentialRates(rate, float(low), float(below))
        t = low
        for _ in range(_STEPS):
            t = min(max(low + (above - below - up * (high - low)) / (down - up), low), high)
            rate, value, slope = self.at(t)
            if value <= below + down * (t - low) + _NEXT * abs(value):
                break  # the tangents meet on the curve
            if slope < 0:
                low, below, down = t, value, slope
            else:
                high, above, up = t, value, slope
        return DifferentialRates(rate, float(t), float(value))
