"""One sparse network for all devices: what such methods share, how many weights each layer keeps, and gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from feddrop.learning.batches import Inputs
from feddrop.learning.local import Loss, call_model
from feddrop.learning.means import Mean
from feddrop.methods.masking import MaskLayout, Masks, apply_masks, mark_largest
from feddrop.methods.method import Batches, Job, Method, Setup, Sizes, State, Update
from feddrop.subnets import parameters
from feddrop.subnets.masks import check_rate, kept_count
from feddrop.subnets.parameters import Params
from feddrop.wire.sections import sections_bytes


class SharedMask:
    """What methods with one mask for all devices have in common; their attributes never change."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.layout = setup, MaskLayout(setup.model)

    def opened(self, state: State, before: Params, over: str) -> tuple[Masks, set[int], Params, Mean]:
        """Return what a merge begins with: the masks, the devices that have them, the masked network, an empty mean."""
        masks = self.layout.split(state["mask"])
        before = apply_masks(before, masks)
        return masks, set(state["informed"].tolist()), before, self.setup.mean_of(before, over=over)

    def settle(self, state: State, held: Params) -> Params:
        """Mask the network after a server step."""
        return apply_masks(held, self.layout.split(state["mask"]))

    def notes(self, state: State) -> dict[str, float]:
        """Return how many weights of the mask moved in a round."""
        return {"mask_moved": float(state["moved"])}


def shared_mask_method(it: Any) -> Method:
    """Return a method from an object with its functions."""
    return Method(it.init, it.plan, it.layout.cut, it.local, it.merge, it.sizes, it.answer, it.settle, it.notes)


def fold_in(mean: Mean, informed: set[int], updates: Iterable[tuple[Job, Update]]) -> Iterator[tuple[Job, Update]]:
    """Pass updates on after adding each to the mean, and its device to those that have the mask, since it replied."""
    for job, update in updates:
        for name, piece in update.subnet.items():
            mean.add(name, update.values[name], piece, update.weight)
        mean.count(update.weight)
        informed.add(update.device)
        yield job, update


class SparseLayout(MaskLayout):
    """A mask with a constant number of active weights in every layer.

    Attributes:
        kept: number of active weights in every layer.
    """

    def __init__(self, model: nn.Module, sparsity: float, how: str, *, as_released: bool = False) -> None:
        super().__init__(model)
        check_rate(sparsity, "sparsity")
        self._sparsities = layer_sparsities(self.weights, sparsity, how, as_released=as_released)
        self.kept = {
            name: kept_count(math.prod(shape), 1.0 - self._sparsities[name]) for name, shape in self.weights.items()
        }

    def first_mask(self, start: Params) -> Tensor:
        """Return the mask of the largest weights of every layer."""
        return self.joined({name: mark_largest(np.abs(start[name].numpy()), self.kept[name]) for name in self.weights})

    def sizes(self, *, answers: bool) -> Sizes:
        """Return the largest cost of a round: the kept values, and the mask down and, if it ``answers``, up."""
        kept = {name: self.kept.get(name, math.prod(shape)) for name, shape in self._shapes.items()}
        mask = sections_bytes({"mask": ("bool", (self.size,))}, {"mask": sum(self.kept.values())})
        return Sizes(kept=kept, push_bytes=mask, pull_bytes=mask if answers else 0)


def layer_sparsities(
    shapes: Mapping[str, tuple[int, ...]], sparsity: float, how: str, *, as_released: bool = False
) -> dict[str, float]:
    """Distribute a sparsity over layers such that its mean over all weights is S.

    ``"erk"``: the density 1 - s_l is proportional to (n_in + n_out + kernel sides) / (n_in · n_out · kernel size);
    ``"er"`` ignores the kernel in both. A layer whose density would exceed 1 is dense; the others compensate.

    Args:
        shapes: shapes of the weights, ``[out, in, *kernel]``.
        sparsity: mean share of zeros, S.
        how: ``"erk"``, ``"er"`` or ``"uniform"``.
        as_released: scale 1 - ratio instead of the ratio to the mean S, which makes the layers nearly equal.
    """
    if how == "uniform":
        return dict.fromkeys(shapes, sparsity)
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    ratios = {}
    for name, shape in shapes.items():
        sides = shape if how == "erk" else shape[:2]
        ratios[name] = sum(sides) / math.prod(sides)
    if as_released:
        raw = {name: max(0.0, 1.0 - ratio) for name, ratio in ratios.items()}
        factor = sparsity * sum(sizes.values()) / max(1e-9, sum(raw[name] * sizes[name] for name in raw))
        return {name: min(1.0, factor * value) for name, value in raw.items()}
    densities = dict.fromkeys(shapes, 1.0)
    left = dict(sizes)
    while left:
        budget = (1.0 - sparsity) * sum(sizes.values()) - sum(sizes[name] for name in sizes if name not in left)
        factor = budget / sum(ratios[name] * size for name, size in left.items())
        full = [name for name in left if factor * ratios[name] > 1.0]
        if not full:
            densities |= {name: factor * ratios[name] for name in left}
            break
        for name in full:
            del left[name]
    return {name: 1.0 - density for name, density in densities.items()}


class LastBatch:
    """Minibatches that keep the last one in ``last``."""

    def __init__(self, batches: Batches) -> None:
        self._batches, self.num_samples = batches, batches.num_samples
        self.last: tuple[Inputs, Tensor]

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        for batch in self._batches:
            self.last = batch
            yield batch


def batch_gradients(model: nn.Module, batch: tuple[Inputs, Tensor], loss: Loss) -> Params:
    """Return the gradient of a minibatch's loss for every weight, active or not."""
    named = {name: p for name, p in parameters.weights(model).items() if p.requires_grad}
    found = torch.autograd.grad(loss(call_model(model, batch[0]), batch[1]), list(named.values()), allow_unused=True)
    return {
        name: torch.zeros(p.shape) if g is None else g.to_dense().cpu()
        for (name, p), g in zip(named.items(), found, strict=True)
    }
