"""FedDST, federated dynamic sparse training: one sparse network for all devices, whose mask adapts to their data.

The global mask covers every weight, output layer included; biases and norms are not masked, and kept weights are not
rescaled. Devices train the masked network. Every few rounds each device moves its mask: it prunes its smallest weights
and grows as many where its gradient is largest; the server then prunes the union of their masks back to the sparsity.
``docs/feddst.md`` lists the choices that the paper leaves open. With sparsity 0 this is federated averaging.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
from torch import Tensor, nn

from feddrop.config import FedDST
from feddrop.errors import FrameError, TrainingError
from feddrop.methods.masking import Floats, Mask, Masks, apply_masks, mark_largest, mask_jobs, mask_state
from feddrop.methods.method import (
    Batches,
    Job,
    Memory,
    Method,
    Payload,
    Setup,
    Sizes,
    Spec,
    State,
    Update,
    tensor_change,
    train_subnet,
)
from feddrop.methods.sparse import LastBatch, SharedMask, SparseLayout, batch_gradients, fold_in, shared_mask_method
from feddrop.subnets import parameters
from feddrop.subnets.masks import kept_count
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Subnet, from_device_shape


def build_feddst(setup: Setup, config: FedDST) -> Method:
    """Build FedDST; its sparsity S is the rate of all devices."""
    return shared_mask_method(_FedDST(setup, config))


class _FedDST(SharedMask):
    def __init__(self, setup: Setup, config: FedDST) -> None:
        super().__init__(setup)
        self.config, self.rounds = config, setup.rounds
        self.at = cache(lambda rate: Layout(setup.model, rate, config))
        if setup.rates is not None:
            self.at(setup.one_rate("feddst"))

    def objective(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.setup.loss(outputs.softmax(1) if self.config.as_released else outputs, targets)

    def init(self, start: Params) -> State:
        return mask_state(self.at(self.setup.one_rate("feddst")).first_mask(start), informed=(), moved=0)

    def sizes(self, rate: float) -> Sizes:
        return self.at(rate).sizes(answers=bool(self.config.alpha))

    def plan(self, state: State, _: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
        asks = {"mask": Spec("bool", (self.layout.size,))} if self.config.readjusts(round_, self.rounds) else {}
        return mask_jobs(state, round_, rates, seed, asks)

    def local(self, pieces: Subnet, values: Params, job: Job, batches: Batches, _: Memory) -> tuple[Update, Memory]:
        layout, model = self.at(job.rate), self.setup.model
        seen = LastBatch(batches)
        update = train_subnet(self.setup, model, pieces, values, job, seen, self.objective)
        memory = {"mask": job.payload["mask"]}
        if not self.config.readjusts(job.round, self.rounds):
            return update, memory
        after = parameters.from_model(model)  # before the gradient's forward pass, which changes norm statistics
        slopes = batch_gradients(model, seen.last, self.objective)
        alpha = self.config.alpha_at(job.round, self.rounds)
        masks = layout.moved(after, layout.split(job.payload["mask"]), slopes, alpha)
        pieces = layout.pieces(masks)
        moved = {
            name: from_device_shape(tensor_change(values[name], after[name]), piece) for name, piece in pieces.items()
        }
        return replace(update, subnet=pieces, values=moved, payload={"mask": layout.joined(masks)}), memory

    def answer(self, job: Job, payload: Payload) -> Subnet:
        if "mask" not in payload:
            return self.layout.cut(job)
        before, after = self.layout.split(job.payload["mask"]), self.layout.split(payload["mask"])
        self.at(job.rate).check(before, after, self.config.alpha_at(job.round, self.rounds), job.device)
        return self.layout.pieces(after)

    def merge(self, state: State, before: Params, updates: Iterable[tuple[Job, Update]]) -> tuple[Params, State]:
        masks, informed, before, mean = self.opened(state, before, "holders")
        readjusted, moved = False, 0
        for _, update in fold_in(mean, informed, updates):
            readjusted |= "mask" in update.payload
        after = mean.applied_to(before)
        if readjusted:
            kept = {name: int(mask.sum()) for name, mask in masks.items()}
            new = {name: prune(after[name].numpy(), mean.held[name].numpy(), kept[name]) for name in masks}
            moved = sum(int((new[name] & ~masks[name]).sum()) for name in masks)
            if moved:
                masks, informed = new, set()
        return apply_masks(after, masks), mask_state(self.layout.joined(masks), informed, moved=moved)


class Layout(SparseLayout):
    """A mask with a constant number of active weights, which devices move."""

    def __init__(self, model: nn.Module, sparsity: float, config: FedDST) -> None:
        super().__init__(model, sparsity, config.layer_sparsity, as_released=config.as_released)
        self._anywhere = config.as_released

    def survivors(self, name: str, alpha: float) -> int:
        """Return the number of active weights left in a layer after a share ``alpha`` of them is pruned."""
        return kept_count(math.prod(self.weights[name]), (1.0 - self._sparsities[name]) * (1.0 - alpha))

    def moved(self, trained_: Params, masks: Masks, slopes: Params, alpha: float) -> Masks:
        """Readjust every layer that is not dense; the values in ``trained_`` are changed to match the new masks."""
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
        """Raise a FrameError unless a device can have moved its mask like this: as many active weights, few new."""
        for name, size in self.kept.items():
            new, active = int((after[name] & ~before[name]).sum()), int(after[name].sum())
            most = size - self.survivors(name, alpha)
            least = size - most if self._anywhere else size  # the released code may grow weights that are active
            if not least <= active <= size or new > most:
                raise FrameError(
                    f"device {device} sent a mask with {active} active weights of {name}, {new} of them new; expected "
                    f"{size}, at most {most} of them new."
                )


def readjust(
    weight: Floats, mask: Mask, gradient: Floats, *, survivors: int, kept: int, anywhere: bool = False
) -> tuple[Mask, Floats]:
    """Move a layer's mask on a device: prune the smallest weights, grow where the gradient is largest.

    Args:
        weight: trained weights.
        mask: which weights are active.
        gradient: gradient of the last minibatch, over all weights.
        survivors: number of active weights after pruning.
        kept: number of active weights after growth.
        anywhere: whether growth may pick surviving weights, which are then zeroed (as in the released code).

    Returns:
        The new mask, and the weights with zeros where they are grown or inactive.
    """
    stays = mark_largest(np.where(mask, np.abs(weight), np.float32(-1)), survivors) & mask
    slope = np.abs(gradient) if anywhere else np.where(stays, np.float32(-1), np.abs(gradient))
    grown = mark_largest(slope, kept - int(stays.sum()))
    return stays | grown, np.where(stays & ~grown, weight, np.float32(0))


def prune(weight: Floats, held: Floats, kept: int) -> Mask:
    """Prune the union of the devices' masks by magnitude at the server.

    Weights that were only grown are all zero; among them, those held by devices with more samples come first.

    Args:
        weight: averaged weights.
        held: number of samples of the devices that hold each weight.
        kept: number of active weights to keep.
    """
    union = held > 0
    return mark_largest(np.where(union, np.abs(weight), np.float32(-1)), kept, held) & union
