"""PruneFL: one sparse network for all devices, whose size follows from the gain and the cost of each weight.

Devices train the masked network and accumulate a score for every weight, active or not: its squared gradient. Every few
rounds they send these scores, and the server adjusts the mask: among the smallest weights of each layer and the pruned
ones, it keeps those that gain more per second than the rest of the network. In the first stage one device does this
alone, so that the others start with a network that is small already. ``docs/prunefl.md`` lists the choices that the
paper leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from feddrop.config import PruneFL
from feddrop.errors import ConfigError, FrameError
from feddrop.learning.local import Gradients
from feddrop.methods.masking import (
    Floats,
    LargestWeights,
    MaskLayout,
    Masks,
    apply_masks,
    mark_largest,
    mask_jobs,
    mask_state,
)
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
from feddrop.methods.sparse import SharedMask, fold_in, shared_mask_method
from feddrop.models import flops
from feddrop.subnets import parameters
from feddrop.subnets.masks import kept_count
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Subnet
from feddrop.wire.sections import sections_bytes

STEADY_CHANGE = 0.1
"""The first stage ends when the number of active weights changes by at most this share ..."""
STEADY_ADJUSTMENTS = 5
"""... in this many consecutive adjustments."""
BITS = 64
"""A weight is sent to the device and back, with 32 bits each."""

Doubles = npt.NDArray[np.float64]


def build_prunefl(setup: Setup, config: PruneFL) -> Method:
    """Build PruneFL.

    Example:
        >>> import feddrop
        >>> config = feddrop.RunConfig.from_toml('method = { name = "prunefl", adjust_every = 2 }', ["rounds=13"])
        >>> config.method.first_rounds
        10
    """
    for layer in config.layer_costs:
        setup.blueprint().droppable_layer(layer, "a layer of method.layer_costs")
    for problem in config.impossible(setup.rounds, len(setup.rates) if setup.rates is not None else None):
        raise ConfigError(problem)
    return shared_mask_method(_Prunefl(setup, config))


class _Prunefl(SharedMask):
    def __init__(self, setup: Setup, config: PruneFL) -> None:
        super().__init__(setup)
        self.config = config
        self._asked = {"scores": Spec("float32", (self.layout.size,)), "others": Spec("float32", (1,))}
        self._counted = cache(lambda: flops.count_flops(setup.model, setup.example))  # only the server needs it

    def init(self, start: Params) -> State:
        if self.setup.rates is None:
            raise ConfigError('a scheme sets one rate per device. In a cell, set radio.scheme = "common".')
        largest = LargestWeights(self.setup.model, by_layer=True).largest(start, self.setup.rates[0])
        mask = self.layout.joined(largest)  # dense without a cell
        return mask_state(mask, (), began=-1 if self.config.first_rounds else 0, steady=0, grown=0, pruned=0)

    def most(self, rate: float) -> int:
        """Return the largest number of active weights in a cell that demands a rate."""
        return sum(kept_count(math.prod(shape), 1.0 - rate) for shape in self.layout.weights.values())

    def sizes(self, rate: float) -> Sizes:
        """Return the largest cost at a rate.

        The mask may move to any layer, so the weights count where they cost most FLOPs. Scores of all weights are sent
        up in adjusting rounds, and their gradients are computed in every step, a third of training the dense network.
        """
        counted, shapes = self._counted(), parameters.shapes(self.setup.model)
        kept = {name: math.prod(shape) for name, shape in shapes.items()}
        left = self.most(rate)
        per_weight = {name: counted.by_weight[name].training / counted.sizes[name] for name in self.layout.weights}
        for name in sorted(per_weight, key=lambda one: -per_weight[one]):
            kept[name] = min(kept[name], left)
            left -= kept[name]
        sent = {"mask": ("bool", (self.layout.size,)), "due": ("bool", (1,))}
        return Sizes(
            kept=kept,
            push_bytes=sections_bytes(sent),
            pull_bytes=sections_bytes(self._asked),
            work=2.0 / 3.0 + counted.full.charged / (3.0 * counted.of(kept).charged),
        )

    def plan(self, state: State, _: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
        began, first = int(state["began"]), self.config.first_device
        devices = list(rates) if began >= 0 else [min(rates, key=lambda device: (device < first, device))]
        due = self.config.adjusts(round_, began)
        pruned = 1.0 - float(state["mask"].double().mean())
        jobs = mask_jobs(state, round_, dict.fromkeys(devices, pruned), seed, self._asked if due else {})
        if not due:
            return jobs
        # Only the server knows when the first stage has ended, so it asks the devices for their scores.
        return [replace(job, payload={**job.payload, "due": torch.ones(1, dtype=torch.bool)}) for job in jobs]

    def local(
        self, pieces: Subnet, values: Params, job: Job, batches: Batches, memory: Memory
    ) -> tuple[Update, Memory]:
        sums: dict[str, torch.Tensor] = {}

        def watch(gradients: Gradients) -> None:
            for name, g in gradients.items():
                wide = g.to_dense().to(torch.promote_types(g.dtype, torch.float32))  # float16 is too narrow for squares
                sums[name] = sums[name] + wide if name in sums else wide.clone()

        update = train_subnet(self.setup, self.setup.model, pieces, values, job, batches, watch=watch)
        scores, others = _scores(self.layout, sums, update.num_samples)
        mask = job.payload["mask"]
        if "scores" in memory and torch.equal(memory["mask"], mask):  # scores of another mask are discarded
            scores, others = memory["scores"] + scores, memory["others"] + others
        if "due" in job.payload:
            return replace(update, payload={"scores": scores, "others": others}), {"mask": mask}
        return update, {"mask": mask, "scores": scores, "others": others}

    def answer(self, job: Job, payload: Payload) -> Subnet:
        if any(bool((tensor < 0).any()) for tensor in payload.values()):
            raise FrameError(f"device {job.device} sent negative scores; they must be squares.")
        return self.layout.cut(job)

    def merge(self, state: State, before: Params, updates: Iterable[tuple[Job, Update]]) -> tuple[Params, State]:
        masks, informed, before, mean = self.opened(state, before, "all")
        found = _Found(np.zeros(self.layout.size))
        for job, update in fold_in(mean, informed, updates):
            found.add(job, update)
        after = mean.applied_to(before)
        adjusts = self.config.adjusts(found.round, int(state["began"])) and bool(found.scores.any())
        new = self._adjusted(after, masks, found, int(state["began"])) if adjusts else masks
        numbers = self._numbers(state, masks, new, found.round, adjusts=adjusts)
        if numbers["grown"] or numbers["pruned"]:
            masks, informed = new, set()
        return apply_masks(after, masks), mask_state(self.layout.joined(masks), informed, **numbers)

    def _adjusted(self, after: Params, masks: Masks, found: _Found, began: int) -> Masks:
        """Return the masks after an adjustment."""
        samples = found.samples / found.devices * self.setup.train.epochs
        most = math.floor(self.config.max_density * self.layout.size + 1e-9)
        return adjust(
            {name: np.abs(after[name].numpy()) for name in masks},
            masks,
            self.layout.parted(found.scores),
            layer_costs(self.setup, self.config, self._counted(), samples),
            others=found.others,
            overhead=self.config.overhead_s,
            removable=self.config.removable if began < 0 else self.config.removable_at(found.round - began),
            most=min(most, self.most(self.setup.rates[0] if self.setup.rates else 0.0)),
        )

    def _numbers(self, state: State, old: Masks, new: Masks, round_: int, *, adjusts: bool) -> dict[str, int]:
        """Return the numbers of a round for the state; ``began`` is set if the round ends the first stage."""
        began, steady = int(state["began"]), int(state["steady"])
        grown = sum(int((new[name] & ~old[name]).sum()) for name in old)
        pruned = sum(int((old[name] & ~new[name]).sum()) for name in old)
        if adjusts:
            few = abs(grown - pruned) <= STEADY_CHANGE * int(state["mask"].sum())
            steady = steady + 1 if few else 0
        if began < 0 and (round_ >= self.config.first_rounds or steady >= STEADY_ADJUSTMENTS):
            began = round_
        return {"began": began, "steady": steady, "grown": grown, "pruned": pruned}

    def notes(self, state: State) -> dict[str, float]:
        density = float(state["mask"].double().mean())
        return {"density": density, "grown": float(state["grown"]), "pruned": float(state["pruned"])}


@dataclass(slots=True)
class _Found:
    """The sums of the devices' scores and sample counts in a round."""

    scores: Doubles
    others: float = 0.0
    samples: int = 0
    devices: int = 0
    round: int = 0

    def add(self, job: Job, update: Update) -> None:
        if update.payload:
            self.scores += update.payload["scores"].numpy()
            self.others += float(update.payload["others"])
        self.samples, self.devices, self.round = self.samples + update.num_samples, self.devices + 1, job.round


def adjust(
    weights: Mapping[str, Floats],
    masks: Masks,
    scores: Mapping[str, npt.NDArray[Any]],
    costs: Mapping[str, float],
    *,
    others: float,
    overhead: float,
    removable: float,
    most: int,
) -> Masks:
    """Return the mask with the largest gain per second: weights certain to stay, and candidates that raise the gain.

    A candidate is one of a layer's smallest active weights, or a pruned weight. With sums over all weights kept,

        gain = (Σ score + others) / (Σ cost + overhead),

    candidates are added by falling score / cost, as long as this exceeds the gain of the weights kept so far.

    Args:
        weights: magnitudes of the weights, by tensor.
        masks: which weights are active.
        scores: squared gradients of the weights, by tensor.
        costs: seconds per weight, by tensor.
        others: score of the parameters that are never pruned.
        overhead: seconds per round independent of the weights.
        removable: share of a layer's active weights that are candidates.
        most: largest number of active weights, unless more are certain to stay.
    """
    stays = {}
    for name, mask in masks.items():
        active = int(mask.sum())
        sure = active - math.floor(removable * active + 1e-9)
        stays[name] = mark_largest(np.where(mask, weights[name], np.float32(-1)), sure) & mask
    kept = np.concatenate([stay.reshape(-1) for stay in stays.values()])
    score = np.concatenate([scores[name].reshape(-1) for name in masks])
    cost = np.concatenate([np.full(mask.size, costs[name]) for name, mask in masks.items()])
    candidates = np.flatnonzero(~kept)
    order = candidates[np.argsort(-(score / cost)[candidates], kind="stable")]
    # Total score and cost before each candidate.
    gain = others + score[kept].sum() + np.cumsum(score[order]) - score[order]
    seconds = overhead + cost[kept].sum() + np.cumsum(cost[order]) - cost[order]
    worth = score[order] / cost[order] > gain / seconds
    taken = len(order) if worth.all() else int(worth.argmin())
    kept[order[: min(taken, max(0, most - int(kept.sum())))]] = True
    parts = np.split(kept, np.cumsum([mask.size for mask in masks.values()])[:-1])
    return {name: part.reshape(mask.shape) for (name, mask), part in zip(masks.items(), parts, strict=True)}


def _scores(layout: MaskLayout, sums: Gradients, num_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return squares of a round's summed gradients times the samples: per weight, and in total for other parameters."""
    squares = {name: (g.cpu() ** 2 * num_samples).float() for name, g in sums.items()}
    scores = {
        name: squares[name].numpy() if name in squares else np.zeros(shape, np.float32)
        for name, shape in layout.weights.items()
    }
    others = sum(float(square.double().sum()) for name, square in squares.items() if name not in layout.weights)
    return layout.joined(scores), torch.tensor([float(others)])  # 0 if there are no others


def layer_costs(setup: Setup, config: PruneFL, counted: flops.Flops, samples: float) -> dict[str, float]:
    """Return the seconds per weight of every tensor that a device spends in a round with this many samples."""
    costs = {}
    for name, layer in setup.blueprint().weights.items():
        work = counted.by_weight[name].training / counted.sizes[name]
        seconds = BITS / config.bits_per_second + work * samples / config.flops_per_second
        costs[name] = config.layer_costs.get(layer, seconds)
    return costs
