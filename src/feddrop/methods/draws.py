"""How federated dropout draws subnets: uniformly, or by importance.

A uniform draw follows from the seed. An importance draw depends on weights that the device does not have, so its mask
travels: at most one bit per weight, and one τ per layer (or one in all) at the weight level; the factors of all units,
0 for dropped ones, at the unit level. Probabilities never travel: values are scaled by 1/q before they are sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from feddrop.config import FedDrop
from feddrop.errors import FrameError
from feddrop.methods.method import Job, Sizes
from feddrop.seeds import derive
from feddrop.subnets.blueprint import Blueprint
from feddrop.subnets.cut import cutter, kept_sizes, layer_rates, unit_shares
from feddrop.subnets.importance import Magnitudes, draw, probabilities
from feddrop.subnets.masks import kept_count
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Piece, Subnet, full_piece, full_subnet
from feddrop.subnets.units import unit_pieces
from feddrop.wire.sections import sections_bytes

SizesAt = Callable[[float], Sizes] | None


class Draw(Protocol):
    """How the subnet of a job is drawn.

    Attributes:
        sizes: the size of a subnet at a rate; None if it is not known in advance.
    """

    sizes: SizesAt

    def plan(self, params: Params, jobs: list[Job]) -> list[Job]:
        """Add what a device cannot regenerate from its seed."""
        ...

    def cut(self, job: Job) -> Subnet:
        """Return the subnet of a job, at the server and at the device."""
        ...

    def variance(self, params: Params, rate: float) -> float:
        """Return E‖ŵ-w‖²/‖w‖² over the draws at a rate."""
        ...


def draw_for(blueprint: Blueprint, config: FedDrop) -> Draw:
    """Return the draw that the settings name."""
    if config.draw == "uniform":
        return UniformDraw(blueprint, config)
    return (ImportantUnits if config.level == "unit" else ImportantWeights)(blueprint, config)


class UniformDraw:
    """Every weight or unit is kept with the same probability; the seed decides which."""

    def __init__(self, blueprint: Blueprint, config: FedDrop) -> None:
        self._cut = cutter(blueprint, config)
        promised = config.count == "exact" and not (config.level == "unit" and config.layer_rates)
        self.sizes: SizesAt = (lambda rate: Sizes(kept=kept_sizes(blueprint, config, rate))) if promised else None

    def plan(self, params: Params, jobs: list[Job]) -> list[Job]:  # noqa: ARG002
        """Return the jobs unchanged: their subnets follow from their seeds."""
        return jobs

    def cut(self, job: Job) -> Subnet:
        """Return the subnet of a job."""
        return self._cut(derive(job.seed, "mask"), job.rate)

    def variance(self, params: Params, rate: float) -> float:  # noqa: ARG002
        """Return γ/(1-γ) (Lemma 1)."""
        return rate / (1.0 - rate)


class ImportantWeights:
    """Weights are kept with probability q_j = min(1, |w_j|/τ)^p."""

    def __init__(self, blueprint: Blueprint, config: FedDrop) -> None:
        self._exponent = config.exponent
        self._shapes, self._by_layer = blueprint.shapes, config.threshold == "layer"
        self._rate_of = layer_rates(blueprint, config)
        able = blueprint.weights | blueprint.biases if config.biases else blueprint.weights
        self._layer_of = {name: layer for name, layer in able.items() if self._rate_of(layer, 0.5) > 0.0}
        self._bits = sum(math.prod(self._shapes[name]) for name in self._layer_of)
        self._sorted: tuple[Params | None, dict[str, Magnitudes]] = (None, {})
        self._sent = {"mask": ("bool", (self._bits,)), "threshold": ("float32", (self._thresholds,))}
        self.sizes: SizesAt = None
        if self._by_layer:
            self.sizes = lambda rate: self._sizes(kept_sizes(blueprint, config, rate))

    def _sizes(self, kept: dict[str, int]) -> Sizes:
        marked = sum(kept[name] for name in self._layer_of)
        return Sizes(kept=kept, push_bytes=sections_bytes(self._sent, {"mask": marked}))

    @property
    def _thresholds(self) -> int:
        return len(self._layer_of) if self._by_layer else 1

    def plan(self, params: Params, jobs: list[Job]) -> list[Job]:
        """Draw the mask of every job."""
        return [replace(job, payload=self._payload(params, job)) if self._drops(job.rate) else job for job in jobs]

    def _drops(self, rate: float) -> bool:
        return any(self._rate_of(layer, rate) > 0.0 for layer in self._layer_of.values())

    def _payload(self, params: Params, job: Job) -> dict[str, torch.Tensor]:
        thresholds, masks = [], []
        seed = derive(job.seed, "mask")
        for name, (threshold, _) in self._levels(params, job.rate).items():
            thresholds.append(threshold)
            q = probabilities(params[name].numpy().reshape(-1), threshold, self._exponent)
            mask = np.zeros(q.size, bool)
            mask[draw(seed, name, q)] = True
            masks.append(mask)
        shown = thresholds if self._by_layer else thresholds[:1]
        return {"mask": torch.from_numpy(np.concatenate(masks)), "threshold": torch.tensor(shown, dtype=torch.float32)}

    def _levels(self, params: Params, rate: float) -> dict[str, tuple[float, float]]:
        """Return τ and V of every tensor at a rate; τ as float32, so that server and device agree."""
        if self._by_layer:
            return {
                name: _level(self._magnitudes(params, name, (name,)), self._rate_of(layer, rate))
                for name, layer in self._layer_of.items()
            }
        return dict.fromkeys(self._layer_of, _level(self._magnitudes(params, "", tuple(self._layer_of)), rate))

    def _magnitudes(self, params: Params, key: str, names: tuple[str, ...]) -> Magnitudes:
        """Return sorted magnitudes of tensors; the network of the last call is remembered, for all jobs of a round."""
        if self._sorted[0] is not params:
            self._sorted = (params, {})
        known = self._sorted[1]
        if key not in known:
            values = np.concatenate([params[name].numpy().reshape(-1) for name in names])
            known[key] = Magnitudes(values, self._exponent)
        return known[key]

    def cut(self, job: Job) -> Subnet:
        """Return the subnet of a job: what its mask keeps."""
        if not self._drops(job.rate):
            return full_subnet(self._shapes)
        mask, thresholds = job.payload.get("mask"), job.payload.get("threshold")
        if mask is None or thresholds is None or mask.shape != (self._bits,) or thresholds.shape != (self._thresholds,):
            raise FrameError(f"device {job.device}: expected a mask of {self._bits} bits and its thresholds.")
        flat, floors = (
            mask.numpy(),
            thresholds.tolist() if self._by_layer else thresholds.tolist() * len(self._layer_of),
        )
        pieces, at, number = {}, 0, 0
        for name, shape in self._shapes.items():
            if name not in self._layer_of:
                pieces[name] = full_piece(shape)
                continue
            part = flat[at : at + math.prod(shape)]
            index = None if part.all() else np.flatnonzero(part)
            pieces[name] = Piece(shape=shape, index=index, sub_shape=shape, floor=floors[number])
            at, number = at + math.prod(shape), number + 1
        return pieces

    def variance(self, params: Params, rate: float) -> float:
        """Return E‖ŵ-w‖²/‖w‖² over the weights that may be dropped."""
        levels = self._levels(params, rate)
        total = sum(float(params[name].double().square().sum()) for name in levels)
        found = sum(v for _, v in levels.values()) if self._by_layer else next(iter(levels.values()))[1]
        return found / total if total else 0.0


class ImportantUnits:
    """Units are kept with probability q_u = min(1, n_u/τ)^p, where n_u is their norm over all tensors of their group.

    What reads a unit is scaled by τ/n_u = q_u^(-1/p). With p = 1 it is unbiased; with p = 2, its mean square over
    draws is kept instead. We read that as the reason why p = 2 trains better at unequal rates; it is not measured.
    """

    def __init__(self, blueprint: Blueprint, config: FedDrop) -> None:
        self._exponent = config.exponent
        self._blueprint, self._graph = blueprint, blueprint.units
        self._rate_of = layer_rates(blueprint, config)
        self._sent = {"units": ("float32", (sum(self._graph.groups.values()),))}
        self.sizes: SizesAt = None
        if not config.layer_rates:
            push_bytes = sections_bytes(self._sent)
            self.sizes = lambda rate: Sizes(kept=kept_sizes(blueprint, config, rate), push_bytes=push_bytes)

    def plan(self, params: Params, jobs: list[Job]) -> list[Job]:
        """Draw the units of every job."""
        norms = self._norms(params)
        return [replace(job, payload=self._payload(norms, job)) if self._drops(job.rate) else job for job in jobs]

    def _drops(self, rate: float) -> bool:
        return any(share < 1.0 for share in self._shares(rate).values())

    def _shares(self, rate: float) -> dict[str, float]:
        rates = {layer: self._rate_of(layer, rate) for layer in self._blueprint.layers}
        return unit_shares(self._blueprint, self._graph, rates)

    def _norms(self, params: Params) -> dict[str, npt.NDArray[np.float64]]:
        """Return the norm of every unit over all tensors that follow its group."""
        squares = {group: np.zeros(units) for group, units in self._graph.groups.items()}
        for name, axes in self._graph.axes.items():
            if name not in self._blueprint.weights:
                continue
            values = params[name].numpy().astype(np.float64) ** 2
            for axis in axes:
                others = tuple(dim for dim in range(values.ndim) if dim != axis.dim)
                sums = values.sum(axis=others).reshape(axis.repeats, -1, axis.block).sum(axis=2)
                squares[axis.group] += sums.sum(axis=0)
        return {group: np.sqrt(found) for group, found in squares.items()}

    def _payload(self, norms: Mapping[str, npt.NDArray[np.float64]], job: Job) -> dict[str, torch.Tensor]:
        factors = []
        for group, share in self._shares(job.rate).items():
            kept, norm = kept_count(len(norms[group]), share), norms[group]
            norm = norm if np.count_nonzero(norm) >= kept else np.ones_like(norm)
            q = probabilities(norm, Magnitudes(norm, self._exponent).threshold(kept), self._exponent)
            chosen = draw(derive(job.seed, "mask"), group, q)
            factor = np.zeros(len(q), np.float32)
            factor[chosen] = 1.0 / q[chosen] ** (1.0 / self._exponent)
            factors.append(factor)
        return {"units": torch.from_numpy(np.concatenate(factors))}

    def cut(self, job: Job) -> Subnet:
        """Return the subnet of a job: a smaller dense network."""
        if not self._drops(job.rate):
            return full_subnet(self._blueprint.shapes)
        sent = job.payload.get("units")
        if sent is None or sent.shape != self._sent["units"][1] or not bool((sent >= 0).all()):
            raise FrameError(f"device {job.device}: expected the factors of {self._sent['units'][1][0]} units.")
        ends = np.cumsum(list(self._graph.groups.values()))
        factors = dict(zip(self._graph.groups, np.split(sent.numpy(), ends[:-1]), strict=True))
        kept = {group: np.flatnonzero(factor) for group, factor in factors.items()}
        if not all(len(index) for index in kept.values()):
            raise FrameError(f"device {job.device}: a group of units is empty.")
        pieces = unit_pieces(self._graph, self._blueprint.shapes, kept)
        return {name: self._scaled(name, piece, factors, kept) for name, piece in pieces.items()}

    def _scaled(
        self,
        name: str,
        piece: Piece,
        factors: Mapping[str, npt.NDArray[np.float32]],
        kept: Mapping[str, npt.NDArray[Any]],
    ) -> Piece:
        """Return a piece whose entries are scaled by the factors of the units that they read."""
        axes = [axis for axis in self._graph.axes.get(name, ()) if axis.role == "in"]
        if not axes:
            return piece
        scale = np.ones(piece.sub_shape, np.float32)
        for axis in axes:
            along = [1] * scale.ndim
            along[axis.dim] = -1
            of_units = np.repeat(factors[axis.group][kept[axis.group]], axis.block)
            scale *= np.tile(of_units, axis.repeats).reshape(along)
        return replace(piece, scale=scale.reshape(-1))

    def variance(self, params: Params, rate: float) -> float:
        """Return the mean squared error of the units' norms; with p = 1, Σ n_u²(1/q_u - 1)/Σ n_u²."""
        found = total = 0.0
        norms, shares = self._norms(params), self._shares(rate)
        for group, norm in norms.items():
            sizes = Magnitudes(norm, self._exponent)
            found += sizes.variance(kept_count(sizes.size, shares[group]))
            total += float((norm**2).sum())
        return found / total if total else 0.0


def _level(sizes: Magnitudes, rate: float) -> tuple[float, float]:
    kept = kept_count(sizes.size, 1.0 - rate)
    return float(np.float32(sizes.threshold(kept))), sizes.variance(kept)
