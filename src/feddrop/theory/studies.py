"""A study of a network: the constants of the bounds, the variance law, and the resulting rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from feddrop.theory.bounds import Constants, Floats, Theta, best_rate, theta
from feddrop.theory.estimators import Curvature, EstimatePoint, Slope, Tick, chunk_of, curvature, no_tick, slope
from feddrop.theory.variance import KINDS, NAMES, Curve, Law, measure_law

RATES = (0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7)
_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The theory's quantities for a network at a point on a batch."""

    loss: float  # F(w)
    slope: Slope  # gradient and its noise
    curvature: Curvature  # curvature of the loss
    weight_norm: float  # G
    laws: tuple[Law, ...]  # the variance law of each measured level
    samples: tuple[int, ...]  # |D_k|, ``[K]``, for Lemma 2
    rounds: int  # T, for Lemma 2
    notes: tuple[str, ...] = ()  # remarks for the reader

    @property
    def constants(self) -> Constants:
        """L, A, G and σ² for the bounds."""
        return Constants(
            smoothness=self.curvature.smoothness.value,
            hessian_norm=math.sqrt(self.curvature.frobenius_sq.value),
            weight_norm=self.weight_norm,
            noise=self.slope.noise.value,
        )

    def bound(self, law: Law) -> Floats:
        """Return Lemma 1's bound at the law's rates, ``[R]``: (AG)² v, which is A² V(1-γ) for importance draws."""
        constants = self.constants
        return (constants.hessian_norm * constants.weight_norm) ** 2 * law.variance

    def law(self, level: str) -> Law | None:
        """Return the law of a level; None if it was not measured."""
        return next((law for law in self.laws if law.level == level), None)

    def theta(self, law: Law | None = None, *, measured: bool = False) -> Theta:
        """Return θ from Lemma 2.

        Args:
            law: whose masks; by default those of the first law. Lemma 1 as in the paper is that of the weight level.
            measured: use the measured variance of updates instead of Lemma 1's bound, and independent devices; θ is
                then at most the largest measured rate.
        """
        return theta(
            self._constants(measured, law),
            samples=self.samples,
            grad_norm_sq=self.slope.grad_norm_sq.value,
            rounds=self.rounds,
            independent=measured,
        )

    def best_rate(self, law: Law | None = None, *, measured: bool = False) -> float:
        """Return the best uniform rate by Theorem 1 if the time of a round is proportional to 1-γ, and F* = 0.

        Args:
            law: whose masks; by default those of the first law.
            measured: use the measured variance of updates; the rate is then at most the largest measured rate.
        """
        found = best_rate(
            lambda rates: 1 - rates,
            self._constants(measured, law),
            samples=self.samples,
            loss_gap=self.loss,
            budget_s=1.0,
            max_rate=float((law or self.laws[0]).rates[-1]),
        )
        return found.rate

    def _constants(self, measured: bool, law: Law | None) -> Constants:
        if measured:
            return replace(self.constants, variance=(law or self.laws[0]).sent)
        if law is None or law.level == "weight":
            return self.constants
        scale = (self.constants.hessian_norm * self.constants.weight_norm) ** 2
        return replace(self.constants, variance=lambda rate: scale * law.variance_at(rate))

    def words(self) -> list[str]:
        """Return sentences on the validity of first order, the looseness of Lemma 1, the reliability of θ, notes."""
        said = []
        for law in self.laws:
            name = NAMES[law.level]
            said.append(f"{name}, g(ŵ): {_where(law, law.gradient)}")
            said.append(f"{name}, m∘g(ŵ): {_where(law, law.update)}")
            low = float(self.bound(law)[0] / law.gradient.measured[0])
            high = float(self.bound(law)[-1] / law.gradient.measured[-1])
            more = f", {high:,.0f} times at {law.rates[-1]:g}" if len(law.rates) > 1 else ""
            said.append(
                f"{name}: Lemma 1's bound is {low:,.0f} times the measured value at rate {law.rates[0]:g}{more}."
            )
        uniform, drawn = self.law("weight"), self.law("importance")
        if uniform is not None and drawn is not None:
            less = uniform.update.measured / drawn.update.measured
            said.append(
                f"importance draws: the variance of m∘g(ŵ) is {less[0]:.3g} times smaller than with uniform draws at "
                f"rate {drawn.rates[0]:g}, {less[-1]:.3g} times at {drawn.rates[-1]:g}; V(1-γ) promises "
                f"{uniform.variance[0] / drawn.variance[0]:.3g} and {uniform.variance[-1] / drawn.variance[-1]:.3g}."
            )
        if self.slope.grad_norm_sq.value < 2 * self.slope.grad_norm_sq.error:
            said.append("‖g‖² is not significantly above 0 on this batch, so θ is unreliable: use a larger batch.")
        return [*said, *self.notes]

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain numbers and lists."""
        constants = self.constants
        return {
            "loss": self.loss,
            "A": constants.hessian_norm,
            "A_sq": self.curvature.frobenius_sq._asdict(),
            "G": constants.weight_norm,
            "L": self.curvature.smoothness._asdict(),
            "largest_eigenvalue": self.curvature.largest._asdict(),
            "smallest_eigenvalue": self.curvature.smallest._asdict(),
            "noise": self.slope.noise._asdict(),
            "grad_norm_sq": self.slope.grad_norm_sq._asdict(),
            "samples": list(self.samples),
            "rounds": self.rounds,
            "theta": _plain_theta(self.theta()),
            "theta_measured": _plain_theta(self.theta(measured=True)),
            "best_rate": self.best_rate(),
            "best_rate_measured": self.best_rate(measured=True),
            "laws": [
                {
                    "level": law.level,
                    "theta": _plain_theta(self.theta(law)),
                    "theta_measured": _plain_theta(self.theta(law, measured=True)),
                    "rate": law.rates.tolist(),
                    "variance": law.variance.tolist(),
                    "lemma1": self.bound(law).tolist(),
                    "gradient": _plain_curve(law, law.gradient),
                    "update": _plain_curve(law, law.update),
                }
                for law in self.laws
            ],
            "words": self.words(),
        }


def work(samples: int, parameters: int, levels: Sequence[str], rates: Sequence[float], masks: int, probes: int) -> int:
    """Return how often :func:`study` calls ``tick``."""
    chunks = math.ceil(samples / chunk_of(parameters))
    directions = sum(_directions(level, probes) * (len(rates) if level == "importance" else 1) for level in levels)
    return 1 + chunks + _STEPS + probes + directions + len(levels) * len(rates) * masks


def study(
    point: EstimatePoint,
    *,
    seed: int,
    samples: npt.ArrayLike,
    rounds: int,
    levels: Sequence[str] = KINDS,
    rates: Sequence[float] = RATES,
    masks: int = 24,
    probes: int = 24,
    tick: Tick = no_tick,
) -> Study:
    """Measure the theory's quantities for a network at a point.

    Args:
        point: network and batch.
        seed: seed of masks and probes.
        samples: |D_k|, ``[K]``, for Lemma 2.
        rounds: T, for Lemma 2.
        levels: kinds of masks: ``"weight"``, ``"unit"``, ``"importance"``.
        rates: γ, increasing, in (0, 1).
        masks: number of masks per rate and level.
        probes: number of random vectors per stochastic estimate.
        tick: progress callback, called at most :func:`work` times.
    """
    laws = tuple(
        measure_law(point, level, rates, seed=seed, masks=masks, probes=_directions(level, probes), tick=tick)
        for level in levels
    )
    return Study(
        loss=float(point.value(point.w)),
        slope=slope(point, tick=tick),
        curvature=curvature(point, seed=seed, steps=_STEPS, probes=probes, tick=tick),
        weight_norm=float(point.w.norm()),
        laws=laws,
        samples=tuple(int(count) for count in np.asarray(samples)),
        rounds=rounds,
    )


def _directions(level: str, probes: int) -> int:
    """Return the number of random directions: a quarter for importance draws, which need them at every rate."""
    return max(2, probes // 4) if level == "importance" else probes


def _where(law: Law, curve: Curve, tolerance: float = 0.2) -> str:
    """Describe the rates at which a curve's first-order prediction holds within a tolerance."""
    fine = curve.holds(tolerance)
    if fine is None:
        return f"first order is off by more than {tolerance:.0%} at every rate."
    rates, ratio = law.rates, curve.ratio
    first, last = rates[fine][0], rates[fine][-1]
    said = f"first order holds within {tolerance:.0%} "
    said += f"at rate {first:g} only" if first == last else f"from rate {first:g} to {last:g}"
    if fine.start:
        said += f"; below, at {rates[fine.start - 1]:g}, the measured value is {ratio[fine.start - 1]:.2f} times it"
    if fine.stop < len(rates):
        said += f"; above, at {rates[fine.stop]:g}, the measured value is {ratio[fine.stop]:.2f} times it"
    return said + "."


def _plain_theta(found: Theta) -> dict[str, Any]:
    return {"rate": float(found.rate), "at_zero": float(found.at_zero), "decreases": bool(found.decreases)}


def _plain_curve(law: Law, curve: Curve) -> dict[str, Any]:
    fine = curve.holds()
    return {
        "measured": curve.measured.tolist(),
        "error": curve.error.tolist(),
        "predicted": curve.predicted.tolist(),
        "predicted_error": curve.predicted_error.tolist(),
        "ratio": curve.ratio.tolist(),
        "bias_sq": curve.bias_sq.tolist(),
        "bias_sq_error": [value if math.isfinite(value) else None for value in curve.bias_sq_error.tolist()],
        "first_order_holds": None if fine is None else [law.rates[fine][0], law.rates[fine][-1]],
    }
