"""Measure the variance law: how a subnet's gradient differs from the full network's, as a function of the rate.

Lemma 1 bounds g(ŵ), the gradient at the masked parameters ŵ = w∘m. A device cannot compute it, since it has only the
kept parameters; it sends m∘g(ŵ), the gradient of F(w∘m) by the chain rule. Both are measured.

To first order in m - 1, both are linear in the mask: g(ŵ) - g = H(w∘(m-1)) and m∘g(ŵ) - g = (m-1)∘g + H(w∘(m-1)). The
elements of a Bernoulli mask are independent with variance v = γ/(1-γ), so the mean square is v·E‖H(w∘z)‖² with random
signs z, and v·E‖z∘g + H(w∘z)‖². These are the *first-order predictions*, without Lemma 1's Cauchy-Schwarz step. They
are not exact for small rates, which make drops rare, not small; they hold where the loss is smooth, each dropped weight
has little effect, and few are dropped together.

At the unit level, a fraction sqrt(1-γ) of the units is kept, a unit's value is scaled by 1/sqrt(1-γ), and all weights
that read it share one mask element. So v = 1/sqrt(1-γ) - 1.

With importance draws, weight j is kept with probability q_j = min(1, |w_j|/τ) and scaled by 1/q_j. Its element has the
variance 1/q_j - 1, Lemma 1's ‖w‖² γ/(1-γ) becomes V(1-γ) (:mod:`feddrop.subnets.importance`), and the directions of
the first-order prediction depend on the rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from feddrop.errors import ConfigError, one_of
from feddrop.seeds import derive, philox_words
from feddrop.subnets.blueprint import Blueprint
from feddrop.subnets.importance import Magnitudes, probabilities
from feddrop.subnets.masks import check_rate, kept_positions
from feddrop.subnets.units import Axis
from feddrop.theory.bounds import Floats, odds, unit_odds
from feddrop.theory.estimators import Estimate, EstimatePoint, Tick, mean_of, no_tick, signs

NAMES = {"weight": "weight level", "unit": "unit level", "importance": "importance draws"}
"""Kinds of masks: weights or units, kept with equal probability, or weights kept by their magnitude."""
KINDS = tuple(NAMES)
_BLOCKS = 8  # sums from which the bias is estimated; memory does not grow with the number of masks


class Masks:
    """Bernoulli masks (eq. Eq:DropoutMask) of one kind, as vectors ``[P]`` that multiply all parameters.

    At the weight level they equal those of :func:`feddrop.subnets.cut.cutter` for the same seed and
    ``count="bernoulli"``. At the unit level, a fraction √(1-γ) of each layer's units is kept, as in the paper; the
    cutter keeps slightly fewer to reach the size 1-γ. Biases are kept. At the unit level, the mask applies to the
    weights that read a unit; those that produce a dropped unit then have no effect and no gradient. Importance draws
    have one threshold τ for the network.
    """

    def __init__(self, point: EstimatePoint, level: str) -> None:
        blueprint = Blueprint(point.model, point.input_shape)
        self._point, self.level = point, one_of("level", level, KINDS)
        self._readers: dict[str, tuple[Axis, ...]] = {}
        if level != "unit":
            self.sizes = {name: math.prod(blueprint.shapes[name]) for name in blueprint.weights}
            self._dropped = point.join({name: point.w.new_ones(size) for name, size in self.sizes.items()}) > 0
            if level == "importance":
                self._magnitudes = Magnitudes(point.w[self._dropped].cpu().numpy())
        else:
            self.sizes = dict(blueprint.units.groups)
            readers = {n: tuple(a for a in axes if a.role == "in") for n, axes in blueprint.units.axes.items()}
            self._readers = {name: axes for name, axes in readers.items() if axes and name in point.shapes}

    def variance(self, rate: float | Floats) -> Floats:
        """Return the variance v of a mask element, of importance draws V(1-γ)/G²; same shape as ``rate``."""
        if self.level == "importance":
            keep = self._magnitudes.size * (1.0 - np.asarray(rate, np.float64))
            found = [self._magnitudes.variance(count) for count in keep.ravel().tolist()]
            return np.reshape(found, keep.shape) / float(self._point.w.square().sum())
        return unit_odds(rate) if self.level == "unit" else odds(rate)

    def _q(self, rate: float) -> Floats:
        """Return the probabilities of an importance draw, ``[P]``; 1 for parameters that are never dropped."""
        q = np.ones(len(self._point.w))
        chosen = self._dropped.cpu().numpy()
        weights = self._point.w[self._dropped].cpu().numpy()
        found = probabilities(weights, self._magnitudes.threshold(len(weights) * (1.0 - check_rate(rate))))
        q[chosen] = np.where(weights == 0.0, 1.0, found)  # a weight of 0 adds nothing, kept or not
        return q

    def draw(self, seed: int, rate: float) -> Tensor:
        """Draw a mask m, ``[P]``, of mean 1."""
        if self.level == "importance":
            q = self._q(rate)
            chosen = philox_words(derive(seed, "importance"), len(q)) < q * 2.0**32
            return torch.from_numpy(chosen / q).to(self._point.w)
        keep = 1.0 - check_rate(rate)
        keep = math.sqrt(keep) if self.level == "unit" else keep
        values = {}
        for name, size in self.sizes.items():
            values[name] = self._point.w.new_ones(size)
            kept = kept_positions(seed, name, size, keep, "bernoulli")
            if kept is not None:
                values[name].zero_()[torch.from_numpy(kept)] = 1.0 / keep
        if self.level == "weight":
            return 1 + self._point.join({name: m - 1 for name, m in values.items()})
        blank = {name: self._point.w.new_ones(shape) for name, shape in self._point.shapes.items()}
        for name, axes in self._readers.items():
            for axis in axes:
                blank[name] = blank[name] * self._along(name, axis, values)
        return self._point.join(blank)

    def direction(self, seed: int, rate: float) -> Tensor:
        """Draw z, ``[P]``, such that m - 1 has v times its covariance; 0 for parameters never dropped.

        Uniform masks have random signs z, at any rate.
        """
        if self.level == "importance":
            q = self._q(rate)
            spread = torch.from_numpy(np.sqrt((1.0 / q - 1.0) / self.variance(rate))).to(self._point.w)
            return spread * signs(derive(seed, "importance"), len(q), self._point.w)
        values = {name: signs(derive(seed, name), size, self._point.w) for name, size in self.sizes.items()}
        if self.level == "weight":
            return self._point.join(values)
        zero, readers = self._point.w.new_zeros(()), self._readers.items()
        return self._point.join({n: sum((self._along(n, a, values) for a in axes), zero) for n, axes in readers})

    def _along(self, name: str, axis: Axis, values: Mapping[str, Tensor]) -> Tensor:
        """Expand the values of a group's units along the dimension of a tensor that reads them."""
        shape = self._point.shapes[name]
        along = [1] * len(shape)
        along[axis.dim] = -1
        return values[axis.group].repeat_interleave(axis.block).repeat(axis.repeats).view(along).expand(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Mean squared distance from the full network's gradient by rate; arrays ``[R]``.

    Attributes:
        measured: mean over masks.
        error: its standard error.
        predicted: the first-order prediction.
        predicted_error: its standard error.
        bias_sq: squared distance of the *mean* from the full network's gradient; Lemma 1 assumes 0.
        bias_sq_error: its standard error.
    """

    measured: Floats
    error: Floats
    predicted: Floats
    predicted_error: Floats
    bias_sq: Floats
    bias_sq_error: Floats

    @property
    def ratio(self) -> Floats:
        """Measured over predicted, ``[R]``."""
        return self.measured / self.predicted

    @property
    def ratio_error(self) -> Floats:
        """Standard error of the ratio, ``[R]``."""
        return self.ratio * np.hypot(self.error / self.measured, self.predicted_error / self.predicted)

    def holds(self, tolerance: float = 0.2) -> slice | None:
        """Return the longest run of adjacent rates at which the prediction holds within ``tolerance``.

        At each of them, the ratio differs from 1 by at most the tolerance plus one standard error.
        """
        fine = np.abs(self.ratio - 1) <= tolerance + self.ratio_error
        edges = np.flatnonzero(np.diff(np.concatenate(([False], fine, [False])).astype(int)))
        runs = [slice(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]
        return max(runs, key=lambda run: run.stop - run.start, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """The variance law of one kind of masks.

    Attributes:
        level: one of KINDS.
        rates: γ, ``[R]``.
        variance: v, the variance of a mask element, ``[R]``; of importance draws V(1-γ)/G².
        variance_at: v at any rate.
        gradient: curve of g(ŵ), which Lemma 1 bounds.
        update: curve of m∘g(ŵ), which a device sends.
    """

    level: str
    rates: Floats
    variance: Floats
    variance_at: Callable[[Floats], Floats]
    gradient: Curve
    update: Curve

    def sent(self, rate: Floats) -> Floats:
        """Return the measured variance of updates at any rate ``[...]``; inf above the measured rates.

        Its ratio to γ/(1-γ) is interpolated over log(γ/(1-γ)), and constant below the measured rates.
        """
        known, wanted = odds(self.rates), odds(rate)
        with np.errstate(divide="ignore"):  # log 0 = -inf lies below the measured rates
            ratio = np.interp(np.log(wanted), np.log(known), self.update.measured / known)
        return np.where(wanted <= known[-1], ratio * wanted, np.inf)


def measure_law(
    point: EstimatePoint,
    level: str,
    rates: Sequence[float],
    *,
    seed: int,
    masks: int = 24,
    probes: int = 24,
    tick: Tick = no_tick,
) -> Law:
    """Measure the variance law of one kind of masks.

    Args:
        point: network and batch.
        level: ``"weight"``, ``"unit"`` or ``"importance"``.
        rates: γ, increasing, in (0, 1).
        seed: seed of masks and probes.
        masks: number of masks per rate, at least 2.
        probes: number of random vectors for the first-order prediction, at least 2; of importance draws, per rate.
        tick: called after every gradient and every Hessian-vector product.
    """
    grid = np.array(rates, np.float64)
    if not len(grid) or grid[0] <= 0 or grid[-1] >= 1 or (np.diff(grid) <= 0).any():
        raise ConfigError(f"rates is {tuple(rates)}; it must be an increasing list of rates in (0, 1).")
    if masks < 2 or probes < 2:
        raise ConfigError(f"masks is {masks} and probes is {probes}; both must be at least 2.")
    draws, full = Masks(point, level), point.gradient()
    rows: tuple[list[_Row], list[_Row]] = ([], [])
    factors: tuple[Estimate, Estimate] | None = None
    for rate in grid.tolist():
        if factors is None or level == "importance":
            factors = _factors(point, draws, full, rate, seed=seed, probes=probes, tick=tick)
        spreads = _Spread(point.w, masks), _Spread(point.w, masks)
        for i in range(masks):
            m = draws.draw(derive(seed, "mask", repr(rate), i), rate)
            gradient = point.gradient(point.w * m)
            for spread, vector in zip(spreads, (gradient - full, m * gradient - full), strict=True):
                spread.add(vector)
            tick()
        for row, spread, factor in zip(rows, spreads, factors, strict=True):
            row.append((spread.mean_square(), spread.squared_mean(), factor))
    variance = draws.variance(grid)
    sides = [_curve(row, variance) for row in rows]
    return Law(
        level=level, rates=grid, variance=variance, variance_at=draws.variance, gradient=sides[0], update=sides[1]
    )


_Row = tuple[Estimate, Estimate, Estimate]  # at one rate: mean square, squared mean, first order at v = 1


def _factors(
    point: EstimatePoint, draws: Masks, full: Tensor, rate: float, *, seed: int, probes: int, tick: Tick
) -> tuple[Estimate, Estimate]:
    """Return the first-order predictions of g(ŵ) and m∘g(ŵ) at v = 1."""
    found: tuple[list[float], list[float]] = ([], [])
    for i in range(probes):
        z = draws.direction(derive(seed, "direction", i), rate)
        moved = point.hessian_times(point.w * z)
        for squares, vector in zip(found, (moved, moved + z * full), strict=True):
            squares.append(float(vector.square().sum()))
        tick()
    return mean_of(found[0]), mean_of(found[1])


class _Spread:
    """The mean square of random vectors and the square of their mean, without storing them."""

    def __init__(self, like: Tensor, count: int) -> None:
        self._sums = like.new_zeros(min(_BLOCKS, count), len(like))
        self._squares: list[float] = []

    def add(self, vector: Tensor) -> None:
        self._sums[len(self._squares) % len(self._sums)] += vector
        self._squares.append(float(vector.square().sum()))

    def mean_square(self) -> Estimate:
        return mean_of(self._squares)

    def squared_mean(self) -> Estimate:
        """Estimate ‖E d‖² without bias from products of different blocks' means; the error is from the jackknife."""
        blocks = len(self._sums)
        counts = np.bincount(np.arange(len(self._squares)) % blocks)
        means = self._sums / torch.from_numpy(counts).to(self._sums)[:, None]
        products = (means @ means.T).double().numpy()
        np.fill_diagonal(products, 0.0)
        total, rows = products.sum(), products.sum(1)
        value = total / (blocks * (blocks - 1))
        if blocks == 2:
            return Estimate(float(value), math.nan)
        without = (total - 2 * rows) / ((blocks - 1) * (blocks - 2))
        return Estimate(float(value), float(np.sqrt((blocks - 1) / blocks * np.square(without - without.mean()).sum())))


def _curve(rows: list[_Row], variance: Floats) -> Curve:
    table = np.array(rows)  # [R, 3, value and error]
    return Curve(
        measured=table[:, 0, 0],
        error=table[:, 0, 1],
        predicted=table[:, 2, 0] * variance,
        predicted_error=table[:, 2, 1] * variance,
        bias_sq=table[:, 1, 0],
        bias_sq_error=table[:, 1, 1],
    )
