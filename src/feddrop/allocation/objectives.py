"""Objectives of the allocator: what a subnet that keeps a share s = 1-γ of the network costs, φ(s).

The allocator minimises Σ w_k φ(s_k). Any φ that is convex and falling in s keeps the problem convex, since the largest
share s that meets the deadline and the budget is concave in the band (:mod:`feddrop.allocation.convex`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from feddrop.allocation.problem import FloatArray
from feddrop.errors import ConfigError


class Objective(Protocol):
    """A cost that is convex and falling in the kept share s, ``[..., num_devices]`` in (0, 1]."""

    def value(self, s: FloatArray) -> FloatArray:
        """Return φ(s)."""
        ...

    def slope(self, s: FloatArray) -> FloatArray:
        """Return φ'(s), which is not positive and does not fall."""
        ...

    def weights(self, weight: FloatArray) -> FloatArray:
        """Return the weights of the devices, from their shares of the samples."""
        ...


@dataclass(frozen=True, slots=True)
class InverseKept:
    """The paper's objective: φ(s) = 1/s = 1/(1-γ), the variance of uniform draws (Lemma 1) up to constants.

    Attributes:
        squared: weight devices by w² instead of w, as the variance of their mean does.
    """

    squared: bool = False

    def value(self, s: FloatArray) -> FloatArray:
        """Return 1/s."""
        return 1.0 / s

    def slope(self, s: FloatArray) -> FloatArray:
        """Return -1/s²."""
        return -1.0 / s**2

    def weights(self, weight: FloatArray) -> FloatArray:
        """Return w or w²."""
        return weight**2 if self.squared else weight


@dataclass(frozen=True, slots=True)
class LinearKept:
    """Adaptive pruning (Liu 2021): φ(s) = 1-s = γ, the bound for magnitude pruning.

    It leaves the worst devices at the highest rate.
    """

    def value(self, s: FloatArray) -> FloatArray:
        """Return 1-s."""
        return 1.0 - s

    def slope(self, s: FloatArray) -> FloatArray:
        """Return -1."""
        return np.full_like(s, -1.0)

    def weights(self, weight: FloatArray) -> FloatArray:
        """Return w."""
        return weight


class TabulatedCost:
    """A convex falling cost given at points, such as V(s) of importance draws, computed from the network.

    Between the points the slope is interpolated linearly, so the cost is a convex piecewise quadratic.

    Args:
        s: rising points in (0, 1], ``[points]``.
        slope: φ' at the points, not positive and not falling.
        last: φ at the last point.
    """

    def __init__(self, s: npt.ArrayLike, slope: npt.ArrayLike, last: float = 0.0) -> None:
        self._s, self._slope = np.asarray(s, dtype=np.float64), np.asarray(slope, dtype=np.float64)
        if self._s.ndim != 1 or len(self._s) < 2 or self._s.shape != self._slope.shape:
            raise ConfigError(
                f"s and slope have shapes {self._s.shape} and {self._slope.shape}; give two points or more."
            )
        if (np.diff(self._s) <= 0).any() or (np.diff(self._slope) < 0).any() or self._slope[-1] > 0:
            raise ConfigError(
                "s must rise, and the slopes must not fall nor be positive: the cost is convex and falling."
            )
        areas = np.diff(self._s) * (self._slope[1:] + self._slope[:-1]) / 2.0
        self._value = last - np.append(np.cumsum(areas[::-1])[::-1], 0.0)

    def value(self, s: FloatArray) -> FloatArray:
        """Return φ(s)."""
        at = np.clip(np.searchsorted(self._s, s, side="right") - 1, 0, len(self._s) - 2)
        step = s - self._s[at]
        return self._value[at] + step * (self._slope[at] + self.slope(s)) / 2.0

    def slope(self, s: FloatArray) -> FloatArray:
        """Return φ'(s)."""
        return np.interp(s, self._s, self._slope)

    def weights(self, weight: FloatArray) -> FloatArray:
        """Return w."""
        return weight


@dataclass(frozen=True, slots=True)
class CustomCost:
    """A user's cost, as two functions of the kept share s, ``[..., num_devices]``.

    Attributes:
        value: φ(s), convex and falling.
        slope: φ'(s).
    """

    value: Callable[[FloatArray], FloatArray]
    slope: Callable[[FloatArray], FloatArray]

    def __post_init__(self) -> None:
        s = np.linspace(0.01, 1.0, 397)
        values, slopes = np.asarray(self.value(s), dtype=np.float64), np.asarray(self.slope(s), dtype=np.float64)
        for problem in _cost_problems(s, values, slopes):
            raise ConfigError(f"the custom cost {problem}")

    def weights(self, weight: FloatArray) -> FloatArray:
        """Return w."""
        return weight


def _cost_problems(s: FloatArray, values: FloatArray, slopes: FloatArray) -> list[str]:
    """Find what is wrong with a cost on a grid."""
    if values.shape != s.shape or slopes.shape != s.shape or not (np.isfinite(values) & np.isfinite(slopes)).all():
        return ["must return one finite number per share, for its value and its slope."]
    rounding = 1e-9 * (1.0 + np.abs(slopes).max())
    secant = np.diff(values) / np.diff(s)
    if (slopes > rounding).any() or (np.diff(slopes) < -rounding).any():
        return ["must be falling and convex in the kept share: its slope is positive, or falls, somewhere in (0, 1]."]
    if (secant < slopes[:-1] - rounding).any() or (secant > slopes[1:] + rounding).any():
        return ["has a slope that is not the derivative of its value."]
    return []


def normal_weights() -> TabulatedCost:
    """Return V(s) of importance draws (:mod:`feddrop.subnets.importance`) from normally distributed weights.

    Relative to ‖w‖², as in a run. With q = min(1, |w|/τ) and w ~ N(0, 1), the kept share and the slope are

        s(τ) = E min(1, |w|/τ) = √(2/π) (1 - exp(-τ²/2))/τ + 1 - erf(τ/√2),    V'(s) = -τ².
    """
    tau = np.geomspace(1e3, 1e-3, 1000)
    tail = 1.0 - np.array([math.erf(one / math.sqrt(2.0)) for one in tau])
    s = math.sqrt(2.0 / math.pi) * -np.expm1(-(tau**2) / 2.0) / tau + tail
    return TabulatedCost(np.append(s, 1.0), np.append(-(tau**2), 0.0))


PAPER = InverseKept()
"""The paper's objective."""

OBJECTIVES: dict[str, Objective] = {
    "inverse": PAPER,
    "inverse-squared": InverseKept(squared=True),
    "linear": LinearKept(),
    "importance-normal": normal_weights(),
}
"""Objectives by their names in TOML."""
