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
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from feddrop.config.methods import LEVELS
from feddrop.errors import ConfigError, one_of
from feddrop.seeds import derive
from feddrop.subnets.blueprint import Blueprint
from feddrop.subnets.masks import check_rate, kept_positions
from feddrop.subnets.units import Axis
from feddrop.theory.bounds import Floats, odds, unit_odds
from feddrop.theory.estimators import Estimate, EstimatePoint, Tick, mean_of, no_tick, signs

_BLOCKS = 8  # sums from which the bias is estimated; memory does not grow with the number of masks


class Masks:
    """Bernoulli masks (eq. Eq:DropoutMask) of one level, as vectors ``[P]`` that multiply all parameters.

    At the weight level they equal those of :func:`feddrop.subnets.cut.cutter` for the same seed and
    ``count="bernoulli"``. At the unit level, a fraction √(1-γ) of each layer's units is kept, as in the paper; the
    cutter keeps slightly fewer to reach the size 1-γ. Biases are kept. At the unit level, the mask applies to the
    weights that read a unit; those that produce a dropped unit then have no effect and no gradient.
    """

    def __init__(self, point: EstimatePoint, level: str) -> None:
        blueprint = Blueprint(point.model, point.input_shape)
        self._point, self.level = point, one_of("level", level, LEVELS)
        self._readers: dict[str, tuple[Axis, ...]] = {}
        if level == "weight":
            self.sizes = {name: math.prod(blueprint.shapes[name]) for name in blueprint.weights}
        else:
            self.sizes = dict(blueprint.units.groups)
            readers = {n: tuple(a for a in axes if a.role == "in") for n, axes in blueprint.units.axes.items()}
            self._readers = {name: axes for name, axes in readers.items() if axes and name in point.shapes}

    def variance(self, rate: float | Floats) -> Floats:
        """Return the variance v of a mask element; same shape as ``rate``."""
        return unit_odds(rate) if self.level == "unit" else odds(rate)

    def draw(self, seed: int, rate: float) -> Tensor:
        """Draw a mask m, ``[P]``, of mean 1."""
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

    def direction(self, seed: int) -> Tensor:
        """Draw signs z, ``[P]``, such that m - 1 has v times their covariance; 0 for parameters never dropped."""
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
        factor: the first-order prediction at v = 1.
        predicted: the first-order prediction.
        bias_sq: squared distance of the *mean* from the full network's gradient; Lemma 1 assumes 0.
        bias_sq_error: its standard error.
    """

    measured: Floats
    error: Floats
    factor: Estimate
    predicted: Floats
    bias_sq: Floats
    bias_sq_error: Floats

    @property
    def ratio(self) -> Floats:
        """Measured over predicted, ``[R]``."""
        return self.measured / self.predicted

    @property
    def ratio_error(self) -> Floats:
        """Standard error of the ratio, ``[R]``."""
        return self.ratio * np.hypot(self.error / self.measured, self.factor.error / self.factor.value)

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
    """The variance law of one level.

    Attributes:
        level: ``"weight"`` or ``"unit"``.
        rates: γ, ``[R]``.
        variance: v, the variance of a mask element, ``[R]``.
        gradient: curve of g(ŵ), which Lemma 1 bounds.
        update: curve of m∘g(ŵ), which a device sends.
    """

    level: str
    rates: Floats
    variance: Floats
    gradient: Curve
    update: Curve

    def sent(self, rate: Floats) -> Floats:
        """Return the measured variance of updates at any rate ``[...]``; inf above the measured rates.

        Its ratio to γ/(1-γ) is interpolated over log(γ/(1-γ)), and constant below the measured rates.
        """
        known, wanted = odds(self.rates), odds(rate)
        with np.errstate(divide="ignore"):  # log 0 = -inf lies below the measured rates
            factor = np.interp(np.log(wanted), np.log(known), self.update.measured / known)
        return np.where(wanted <= known[-1], factor * wanted, np.inf)


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
    """Measure the variance law at one level.

    Args:
        point: network and batch.
        level: ``"weight"`` or ``"unit"``.
        rates: γ, increasing, in (0, 1).
        seed: seed of masks and probes.
        masks: number of masks per rate, at least 2.
        probes: number of random vectors for the first-order prediction, at least 2.
        tick: called after every gradient and every Hessian-vector product.
    """
    grid = np.array(rates, np.float64)
    if not len(grid) or grid[0] <= 0 or grid[-1] >= 1 or (np.diff(grid) <= 0).any():
        raise ConfigError(f"rates is {tuple(rates)}; it must be an increasing list of rates in (0, 1).")
    if masks < 2 or probes < 2:
        raise ConfigError(f"masks is {masks} and probes is {probes}; both must be at least 2.")
    draws, full = Masks(point, level), point.gradient()
    predictions: tuple[list[float], list[float]] = ([], [])
    for i in range(probes):
        z = draws.direction(derive(seed, "direction", i))
        moved = point.hessian_times(point.w * z)
        for found, vector in zip(predictions, (moved, moved + z * full), strict=True):
            found.append(float(vector.square().sum()))
        tick()
    rows: tuple[list[_Row], list[_Row]] = ([], [])
    for rate in grid.tolist():
        spreads = _Spread(point.w, masks), _Spread(point.w, masks)
        for i in range(masks):
            m = draws.draw(derive(seed, "mask", repr(rate), i), rate)
            gradient = point.gradient(point.w * m)
            for spread, vector in zip(spreads, (gradient - full, m * gradient - full), strict=True):
                spread.add(vector)
            tick()
        for row, spread in zip(rows, spreads, strict=True):
            row.append((spread.mean_square(), spread.squared_mean()))
    variance = draws.variance(grid)
    curves = [_curve(row, mean_of(found), variance) for row, found in zip(rows, predictions, strict=True)]
    return Law(level=level, rates=grid, variance=variance, gradient=curves[0], update=curves[1])


_Row = tuple[Estimate, Estimate]  # mean square and squared mean at one rate


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


def _curve(rows: list[_Row], factor: Estimate, variance: Floats) -> Curve:
    table = np.array(rows)  # [R, 2, value and error]
    return Curve(
        measured=table[:, 0, 0],
        error=table[:, 0, 1],
        factor=factor,
        predicted=factor.value * variance,
        bias_sq=table[:, 1, 0],
        bias_sq_error=table[:, 1, 1],
    )
