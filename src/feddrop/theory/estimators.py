"""Measure curvature, gradient noise and norms of a network at one point on one batch.

The Hessian is never formed, only multiplied with vectors by differentiating twice. Every estimate has an error.

The values are local: the paper's A, L and G hold for all parameters, the measured ones at this point on these samples.
So a bound with these values is an estimate, not a guarantee.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from feddrop.errors import ConfigError
from feddrop.learning.local import Loss
from feddrop.seeds import derive, philox_words

Tick = Callable[[], None]  # called after every gradient and every Hessian-vector product, to show progress


def no_tick() -> None:
    """Show nothing."""


class Estimate(NamedTuple):
    """A value and its error: the standard error, or a bound for eigenvalues."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ± {self.error:.1g}"


def mean_of(draws: list[float]) -> Estimate:
    """Return the mean of independent draws with its standard error."""
    values = np.array(draws)
    return Estimate(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))))


def signs(seed: int, count: int, like: Tensor) -> Tensor:
    """Draw ``[count]`` random signs ±1 (Rademacher) with the dtype and device of ``like``."""
    bits = np.unpackbits(philox_words(seed, -(-count // 32)).view(np.uint8), count=count)
    return torch.from_numpy(bits).to(like) * 2 - 1


class EstimatePoint:
    """A network at a point w, and a batch: the loss F, its gradient anywhere and its Hessian at w.

    All parameters together are one flat vector ``[P]``, in the network's order. The network is copied and put into
    evaluation mode; the copy computes in ``dtype``.

    Attributes:
        model: the copy.
        w: the parameters, ``[P]``.
        shapes: their tensors' names and shapes.
        samples: samples in the batch.
        input_shape: shape of one sample.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        loss: Loss = nn.functional.cross_entropy,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if len(x) < 2 or len(x) != len(y):
            raise ConfigError(f"the batch has {len(x)} samples and {len(y)} labels; it needs two or more of both.")
        self.model = copy.deepcopy(model).eval().to(dtype)
        self._x, self._y, self._loss = x.to(dtype), y, loss
        named = dict(self.model.named_parameters())
        self.shapes = {name: tuple(p.shape) for name, p in named.items()}
        self._sizes = [p.numel() for p in named.values()]
        self.w = torch.cat([p.detach().reshape(-1) for p in named.values()])
        self.samples, self.input_shape = len(x), tuple(x.shape[1:])
        self._graph: tuple[Tensor, Tensor] | None = None

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """View a flat vector ``[P]`` as the network's tensors."""
        parts = torch.split(flat, self._sizes)
        return {name: part.view(shape) for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)}

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Undo :meth:`split`; missing tensors are zero."""
        parts = [tensors.get(name, self.w.new_zeros(shape)) for name, shape in self.shapes.items()]
        return torch.cat([part.reshape(-1) for part in parts])

    def value(self, w: Tensor) -> Tensor:
        """Return the loss F(w) over the batch."""
        return self._loss(functional_call(self.model, self.split(w), (self._x,)), self._y)

    def gradient(self, w: Tensor | None = None) -> Tensor:
        """Return the gradient g(w), ``[P]``; at the point itself by default."""
        w = (self.w if w is None else w).detach().requires_grad_()
        return torch.autograd.grad(self.value(w), w)[0]

    def hessian_times(self, v: Tensor) -> Tensor:
        """Return H v, ``[P]``, where H is the Hessian at the point. The graph of the gradient is cached."""
        if self._graph is None:
            w = self.w.clone().requires_grad_()
            self._graph = w, torch.autograd.grad(self.value(w), w, create_graph=True)[0]
        w, gradient = self._graph
        return torch.autograd.grad(gradient, w, v, retain_graph=True)[0]

    def sample_gradients(self, chunk: int) -> Iterator[Tensor]:
        """Yield the gradients of single samples at the point, ``[<= chunk, P]`` at a time."""

        def value(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self._loss(functional_call(self.model, self.split(w), (x[None],)), y[None])

        each = vmap(grad(value), in_dims=(None, 0, 0))
        for x, y in zip(torch.split(self._x, chunk), torch.split(self._y, chunk), strict=True):
            yield each(self.w, x, y)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """The gradient at a point, estimated from the batch.

    Attributes:
        grad_norm_sq: ‖g(w)‖², corrected for the noise of the batch; may be negative if g is small.
        noise: σ², the variance of the gradient of one sample (Assumption 6).
    """

    grad_norm_sq: Estimate
    noise: Estimate


def chunk_of(parameters: int) -> int:
    """Return the number of gradients to hold at a time: at most 2²⁵ values (128 MiB in float32), but at least one."""
    return max(1, min(32, 2**25 // parameters))


def slope(point: EstimatePoint, *, chunk: int | None = None, tick: Tick = no_tick) -> Slope:
    """Measure the gradient's norm and the noise of single samples, ``chunk`` of them at a time."""
    mean, count = point.gradient(), point.samples
    tick()
    spread, along = [], []
    for gradients in point.sample_gradients(chunk or chunk_of(len(point.w))):
        along += (2 * (gradients @ mean)).tolist()
        # In place, since a chunk of a large network takes much memory.
        spread += (gradients.sub_(mean).square_().sum(1) * count / (count - 1)).tolist()
        del gradients
        tick()
    noise = mean_of(spread)
    norm_sq = float(mean.square().sum()) - noise.value / count
    return Slope(grad_norm_sq=Estimate(norm_sq, mean_of(along).error), noise=noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curvature:
    """The Hessian at a point.

    Attributes:
        largest: its largest eigenvalue; the true one is at least ``value``, and an eigenvalue lies within ``error``.
        smallest: its smallest eigenvalue; likewise, at most ``value``.
        frobenius_sq: its squared Frobenius norm, A² of Assumption 1.
    """

    largest: Estimate
    smallest: Estimate
    frobenius_sq: Estimate

    @property
    def smoothness(self) -> Estimate:
        """L of Assumption 5: the largest eigenvalue in magnitude."""
        low = Estimate(-self.smallest.value, self.smallest.error)
        return max(self.largest, low, key=lambda estimate: estimate.value)


def curvature(point: EstimatePoint, *, seed: int, steps: int = 20, probes: int = 16, tick: Tick = no_tick) -> Curvature:
    """Measure the Hessian by ``steps + probes`` products with vectors.

    Lanczos with full reorthogonalisation finds the ends of the spectrum; the residual of a Ritz value bounds the
    distance to the nearest eigenvalue. For the Frobenius norm, let Q be the orthonormal Lanczos vectors:
    ‖H‖² = ‖HQ‖² + ‖H(I - QQᵀ)‖². The first term is known and contains the few large eigenvalues that would make
    Hutchinson's estimator noisy; the second is E‖H(I - QQᵀ)v‖² over random signs v.

    Args:
        point: network and batch.
        seed: seed of the start vector and the probes.
        steps: Lanczos steps, and number of vectors ``[P]`` in memory.
        probes: number of random vectors, at least 2.
        tick: called after every product.
    """
    if steps < 1 or probes < 2:
        raise ConfigError(f"steps is {steps} and probes is {probes}; they must be at least 1 and 2.")
    size = len(point.w)
    basis = point.w.new_zeros(min(steps, size), size)
    basis[0] = signs(derive(seed, "lanczos"), size, point.w) / math.sqrt(size)
    diagonal: list[float] = []
    beside: list[float] = []
    known = 0.0
    for j, q in enumerate(basis):
        product = point.hessian_times(q)
        tick()
        known += float(product.square().sum())
        diagonal.append(float(q @ product))
        rest = product
        for _ in range(2):  # twice is enough in any precision
            rest = rest - basis[: j + 1].T @ (basis[: j + 1] @ rest)
        beside.append(float(rest.norm()))
        if beside[-1] <= 1e-6 * math.sqrt(known) or j + 1 == len(basis):
            basis = basis[: j + 1]
            break
        basis[j + 1] = rest / beside[-1]
    ritz, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1))
    rounding = torch.finfo(point.w.dtype).eps * np.abs(ritz).max()
    residual = beside[-1] * np.abs(vectors[-1]) + rounding
    draws = []
    for i in range(probes):
        v = signs(derive(seed, "probe", i), size, point.w)
        draws.append(float(point.hessian_times(v - basis.T @ (basis @ v)).square().sum()))
        tick()
    rest_sq = mean_of(draws)
    return Curvature(
        largest=Estimate(float(ritz[-1]), float(residual[-1])),
        smallest=Estimate(float(ritz[0]), float(residual[0])),
        frobenius_sq=Estimate(known + rest_sq.value, rest_sq.error),
    )
