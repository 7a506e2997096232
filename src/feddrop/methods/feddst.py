"""FedDST, federated dynamic sparse training: one sparse network for all devices, whose mask follows what they learn.

The global mask covers every weight, output layer included; biases and norms are kept whole, and kept weights are not
rescaled. Devices train the masked network. Every few rounds each of them moves its mask: it prunes its smallest weights
and grows as many where its gradient is largest; the server then prunes the union of their masks back to the sparsity.
``docs/feddst.md`` tells what was chosen where the paper is silent. With sparsity 0 this is federated averaging.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from feddrop.config import FedDST
from feddrop.errors import FrameError, TrainingError
from feddrop.learning.batches import Inputs
from feddrop.learning.local import Loss, call_model
from feddrop.methods.masking import Floats, Mask, MaskLayout, Masks, mark_largest, mask_jobs, mask_state, apply_masks
from feddrop.methods.method import (
    Batches,
    Job,
    Memory,
    Method,
    Payload,
    Setup,
    Spec,
    State,
    Update,
    tensor_change,
    train_subnet,
)
from feddrop.subnets import parameters
from feddrop.subnets.masks import check_rate, kept_count
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Subnet, from_device_shape


def build_feddst(setup: Setup, config: FedDST) -> Method:
    """Build FedDST; its sparsity S is the rate that all devices are given."""
    sparsity = setup.one_rate("feddst")
    layout = Layout(setup.model, sparsity, config)
    rounds = setup.rounds

    def objective(outputs: Tensor, targets: Tensor) -> Tensor:
        return setup.loss(outputs.softmax(1) if config.as_released else outputs, targets)

    def init(start: Params) -> State:
        masks = {name: mark_largest(np.abs(start[name].numpy()), layout.kept[name]) for name in layout.weights}
        return mask_state(layout.joined(masks), informed=(), moved=0)

    def plan(state: State, _: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
        asks = {"mask": Spec("bool", (layout.size,))} if config.readjusts(round_, rounds) else {}
        return mask_jobs(state, round_, rates, seed, asks)

    def local(pieces: Subnet, values: Params, job: Job, batches: Batches, _: Memory) -> tuple[Update, Memory]:
        seen = _Remembering(batches)
        update = train_subnet(setup, setup.model, pieces, values, job, seen, objective)
        memory = {"mask": job.payload["mask"]}
        if not config.readjusts(job.round, rounds):
            return update, memory
        after = parameters.from_model(setup.model)  # before the gradient's forward pass, which moves norm statistics
        slopes = _gradients(setup.model, seen.last, objective)
        masks = layout.moved(after, layout.split(job.payload["mask"]), slopes, config.alpha_at(job.round, rounds))
        pieces = layout.pieces(masks)
        moved = {name: from_device_shape(tensor_change(values[name], after[name]), piece) for name, piece in pieces.items()}
        return replace(update, subnet=pieces, values=moved, payload={"mask": layout.joined(masks)}), memory

    def answer(job: Job, payload: Payload) -> Subnet:
        if "mask" not in payload:
            return layout.cut(job)
        before, after = layout.split(job.payload["mask"]), layout.split(payload["mask"])
        layout.check(before, after, config.alpha_at(job.round, rounds), job.device)
        return layout.pieces(after)

    def merge(state: State, before: Params, updates: Iterable[tuple[Job, Update]]) -> tuple[Params, State]:
        masks, informed = layout.split(state["mask"]), set(state["informed"].tolist())
        before = apply_masks(before, masks)
        mean = setup.mean_of(before, over="holders")
        readjusted, moved = False, 0
        for _, update in updates:
            for name, piece in update.subnet.items():
                mean.add(name, update.values[name], piece, update.num_samples)
            readjusted |= "mask" in update.payload
            informed.add(update.device)  # it answered, so it has the mask that it was sent
        after = {name: before[name] + step for name, step in mean.mean().items()}
        if readjusted:
            new = {name: prune(after[name].numpy(), mean.held[name].numpy(), layout.kept[name]) for name in masks}
            moved = sum(int((new[name] & ~masks[name]).sum()) for name in masks)
            if moved:
                masks, informed = new, set()
        return apply_masks(after, masks), mask_state(layout.joined(masks), informed, moved=moved)

    def settle(state: State, held: Params) -> Params:
        return apply_masks(held, layout.split(state["mask"]))

    def notes(state: State) -> dict[str, float]:
        return {"mask_moved": float(state["moved"])}

    return Method(init, plan, layout.cut, local, merge, answer=answer, settle=settle, notes=notes)


class Layout(MaskLayout):
    """A mask whose number of active weights is the same at any time.

    Attributes:
        kept: active weights of every layer.
    """

    def __init__(self, model: nn.Module, sparsity: float, config: FedDST) -> None:
        super().__init__(model)
        check_rate(sparsity, "sparsity")
        self._anywhere = config.as_released
        self._sparsities = layer_sparsities(
            self.weights, sparsity, config.layer_sparsity, as_released=config.as_released
        )
        self.kept = {
            name: kept_count(math.prod(shape), 1.0 - self._sparsities[name]) for name, shape in self.weights.items()
        }

    def survivors(self, name: str, alpha: float) -> int:
        """Return how many active weights of a layer are left when a share ``alpha`` of them is pruned."""
        return kept_count(math.prod(self.weights[name]), (1.0 - self._sparsities[name]) * (1.0 - alpha))

    def moved(self, trained_: Params, masks: Masks, slopes: Params, alpha: float) -> Masks:
        """Readjust every layer that is not dense; ``trained_`` gets the values that go with the new masks."""
        moved = dict(masks)
        for name, size in self.kept.items():
            if size == masks[name].size:
                continue
            w, g = trained_[name].numpy(), slopes[name].numpy()
            if not (np.isfinite(w).all() and np.isfinite(g).all()):
                raise TrainingError(f"{name} holds a weight or gradient that is not finite. Lower the learning rate.")
            moved[name], w[...] = readjust(
                w, masks[name], g, survivors=self.survivors(name, alpha), kept=size, anywhere=self._anywhere
            )
        return moved

    def check(self, before: Masks, after: Masks, alpha: float, device: int) -> None:
        """Raise unless a device could have moved its mask like this: as many active weights, few of them new."""
        for name, size in self.kept.items():
            new, active = int((after[name] & ~before[name]).sum()), int(after[name].sum())
            most = size - self.survivors(name, alpha)
            least = size - most if self._anywhere else size  # the released code may grow what is active already
            if not least <= active <= size or new > most:
                raise FrameError(
                    f"device {device} answered with {active} active weights of {name}, {new} of them new; {size} and "
                    f"at most {most} new ones were due."
                )


def layer_sparsities(
    shapes: Mapping[str, tuple[int, ...]], sparsity: float, how: str, *, as_released: bool = False
) -> dict[str, float]:
    """Spread a sparsity over layers, so that its mean over all weights is what was asked for.

    ``"erk"``: the density 1 - s_l is proportional to (n_in + n_out + kernel sides) / (n_in · n_out · kernel size);
    ``"er"`` leaves the kernel out of both. A layer whose density would exceed 1 is dense; the others make up for it.

    Args:
        shapes: shapes of the weights, ``[out, in, *kernel]``.
        sparsity: mean share of zeros, S.
        how: ``"erk"``, ``"er"`` or ``"uniform"``.
        as_released: scale 1 - (that ratio) to the mean S in place of the ratio itself, so layers come out nearly alike.
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


def readjust(
    weight: Floats, mask: Mask, gradient: Floats, *, survivors: int, kept: int, anywhere: bool = False
) -> tuple[Mask, Floats]:
    """Move a layer's mask, as a device does: prune the smallest weights, grow where the gradient is largest.

    Args:
        weight: trained weights.
        mask: where they are active.
        gradient: of the last minibatch, over all weights.
        survivors: active weights left by pruning.
        kept: active weights after growth.
        anywhere: whether growth may pick weights that survived, which are then zeroed (the published code).

    Returns:
        The new mask, and the weights with zeros where they are grown or not active.
    """
    stays = mark_largest(np.where(mask, np.abs(weight), np.float32(-1)), survivors) & mask
    slope = np.abs(gradient) if anywhere else np.where(stays, np.float32(-1), np.abs(gradient))
    grown = mark_largest(slope, kept - int(stays.sum()))
    return stays | grown, np.where(stays & ~grown, weight, np.float32(0))


def prune(weight: Floats, held: Floats, kept: int) -> Mask:
    """Prune the union of the devices' masks by magnitude, as the server does.

    Weights that were only grown are all zero: among them, those that most samples voted for come first.

    Args:
        weight: averaged weights.
        held: samples of the devices whose mask holds a weight.
        kept: active weights left.
    """
    union = held > 0
    return mark_largest(np.where(union, np.abs(weight), np.float32(-1)), kept, held) & union


class _Remembering:
    """Minibatches, of which the last one stays at hand."""

    def __init__(self, batches: Batches) -> None:
        self._batches, self.num_samples = batches, batches.num_samples
        self.last: tuple[Inputs, Tensor]

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        for batch in self._batches:
            self.last = batch
            yield batch


def _gradients(model: nn.Module, batch: tuple[Inputs, Tensor], loss: Loss) -> Params:
    """Return the gradient of a minibatch's loss in every weight, active or not."""
    named = {name: p for name, p in parameters.weights(model).items() if p.requires_grad}
    found = torch.autograd.grad(loss(call_model(model, batch[0]), batch[1]), list(named.values()), allow_unused=True)
    return {
        name: torch.zeros(p.shape) if g is None else g.to_dense().cpu()
        for (name, p), g in zip(named.items(), found, strict=True)
    }
