"""FedRTS: one sparse network for all devices, whose mask is drawn by Thompson sampling.

Every weight has a Beta distribution at the server. In every round, active weights gain or lose by the votes of the
averaged network and of the devices: is the weight among the largest, those certain to stay? In adjusting rounds devices
also vote for inactive weights with large gradients; then one number is drawn from every Beta, and the largest of each
layer form the new mask. ``docs/rivals.md`` names its sources. With sparsity 0 this is federated averaging.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from feddrop.config import FedRTS
from feddrop.errors import FrameError
from feddrop.methods.masking import Masks, apply_masks, mark_largest, mask_jobs, mask_state
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
    train_subnet,
)
from feddrop.methods.sparse import LastBatch, SharedMask, SparseLayout, batch_gradients, fold_in, shared_mask_method
from feddrop.seeds import derive, generator
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Subnet, scatter

Doubles = npt.NDArray[np.float64]


def build_fedrts(setup: Setup, config: FedRTS) -> Method:
    """Build FedRTS; its sparsity is the rate of all devices."""
    return shared_mask_method(_FedRTS(setup, config))


class _FedRTS(SharedMask):
    def __init__(self, setup: Setup, config: FedRTS) -> None:
        super().__init__(setup)
        self.config = config
        self.at = cache(lambda rate: SparseLayout(setup.model, rate, config.layer_sparsity))
        if setup.rates is not None:
            self.at(setup.one_rate("fedrts"))

    def init(self, start: Params) -> State:
        mask, ones = self.at(self.setup.one_rate("fedrts")).first_mask(start), torch.ones(self.layout.size)
        return {**mask_state(mask, (), moved=0), "gains": ones, "losses": ones.clone()}

    def sizes(self, rate: float) -> Sizes:
        return self.at(rate).sizes(answers=bool(self.config.alpha))

    def plan(self, state: State, _: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
        due = self.config.adjusts(round_, self.setup.rounds)
        return mask_jobs(state, round_, rates, seed, {"listed": Spec("bool", (self.layout.size,))} if due else {})

    def replaced(self, masks: Masks, round_: int) -> dict[str, int]:
        """Return k of every layer in a round."""
        counts = {name: (int(mask.sum()), mask.size) for name, mask in masks.items()}
        rounds = self.setup.rounds
        return {name: self.config.replaced(n, size - n, round_, rounds) for name, (n, size) in counts.items()}

    def local(self, pieces: Subnet, values: Params, job: Job, batches: Batches, _: Memory) -> tuple[Update, Memory]:
        seen, memory = LastBatch(batches), {"mask": job.payload["mask"]}
        update = train_subnet(self.setup, self.setup.model, pieces, values, job, seen)
        if not self.config.adjusts(job.round, self.setup.rounds):
            return update, memory
        slopes = batch_gradients(self.setup.model, seen.last, self.setup.loss)
        masks = self.layout.split(job.payload["mask"])
        listed = {
            name: mark_largest(np.where(masks[name], np.float32(-1), np.abs(slopes[name].numpy())), count)
            for name, count in self.replaced(masks, job.round).items()
        }
        return replace(update, payload={"listed": self.layout.joined(listed)}), memory

    def answer(self, job: Job, payload: Payload) -> Subnet:
        if "listed" in payload:
            masks, listed = self.layout.split(job.payload["mask"]), self.layout.split(payload["listed"])
            for name, most in self.replaced(masks, job.round).items():
                count = int(listed[name].sum())
                if count > most or (listed[name] & masks[name]).any():
                    raise FrameError(
                        f"device {job.device} lists {count} weights of {name} to grow; expected at most {most}, all "
                        "of them inactive."
                    )
        return self.layout.cut(job)

    def merge(self, state: State, before: Params, updates: Iterable[tuple[Job, Update]]) -> tuple[Params, State]:
        masks, informed, before, mean = self.opened(state, before, "holders")
        votes, round_ = np.zeros(self.layout.size), 0
        for job, update in fold_in(mean, informed, updates):
            votes += update.weight * self._votes(before, masks, job, update)
            round_ = job.round
        total = mean.weight
        after = mean.applied_to(before)
        new = dict(state)
        if total and round_ <= self.config.last(self.setup.rounds):
            new |= self._counted(state, votes / total, self._core(after, masks, self.replaced(masks, round_)), round_)
        moved = 0
        if total and self.config.adjusts(round_, self.setup.rounds):
            drawn = self._drawn(new, masks, round_)
            moved = sum(int((drawn[name] & ~masks[name]).sum()) for name in masks)
            if moved:
                masks, informed = drawn, set()
        found = {**new, **mask_state(self.layout.joined(masks), informed, moved=moved)}
        return apply_masks(after, masks), found

    def _core(self, params: Params, masks: Masks, replaced: Mapping[str, int]) -> Masks:
        """Mark the largest active weights of every layer, all but k."""
        return {
            name: mark_largest(
                np.where(mask, np.abs(params[name].numpy()), np.float32(-1)), int(mask.sum()) - replaced[name]
            )
            & mask
            for name, mask in masks.items()
        }

    def _votes(self, before: Params, masks: Masks, job: Job, update: Update) -> Doubles:
        """Return a device's votes: its largest active weights, and the inactive ones that it lists."""
        own = {name: before[name] + scatter(update.values[name], update.subnet[name]) for name in masks}
        votes = self.layout.joined(self._core(own, masks, self.replaced(masks, job.round))).numpy().astype(np.float64)
        return votes + update.payload["listed"].numpy() if "listed" in update.payload else votes

    def _counted(self, state: State, votes: Doubles, core: Masks, round_: int) -> State:
        """Return the Beta distributions after the votes of a round; inactive weights only change if it adjusts."""
        active, weight = state["mask"].numpy(), self.config.server_weight
        server = np.where(active, self.layout.joined(core).numpy(), 0.5)
        gain = weight * server + (1.0 - weight) * votes
        counts = active | self.config.adjusts(round_, self.setup.rounds)
        found = {
            "gains": state["gains"].numpy() + self.config.votes * np.where(counts, gain, 0.0),
            "losses": state["losses"].numpy() + self.config.votes * np.where(counts, 1.0 - gain, 0.0),
        }
        return {name: torch.from_numpy(values.astype(np.float32)) for name, values in found.items()}

    def _drawn(self, state: State, masks: Masks, round_: int) -> Masks:
        """Draw from every Beta, and return the mask of the largest draws in every layer."""
        draw = generator(derive(self.setup.seed, "betas", round_))
        drawn = draw.beta(state["gains"].numpy().astype(np.float64), state["losses"].numpy().astype(np.float64))
        parts = self.layout.parted(drawn)
        return {name: mark_largest(parts[name], int(mask.sum())) for name, mask in masks.items()}
