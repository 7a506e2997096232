"""PerFedMask: a device trains some layers of the full network; the others stay at their global values.

The server assigns layers such that each device trains at most a share 1-γ of the weights and the holders are spread
evenly (:func:`spread`). ``docs/rivals.md`` names its sources. With rate 0 for every device this is federated
averaging.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from feddrop.config import PerFedMask
from feddrop.errors import FrameError
from feddrop.methods.method import (
    Batches,
    Job,
    Memory,
    Method,
    Payload,
    Setup,
    Sizes,
    State,
    Update,
    plan_jobs,
    train_subnet,
)
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Piece, Subnet, full_piece
from feddrop.wire.sections import sections_bytes

Choice = npt.NDArray[np.bool_]
"""Which layers each device trains, ``[devices, layers]``."""


def build_perfedmask(setup: Setup, _: PerFedMask) -> Method:
    """Build PerFedMask."""
    it = _PerFedMask(setup)
    return Method(it.init, it.plan, it.cut, it.local, it.merge, sizes=it.sizes, answer=it.answer)


class _PerFedMask:
    """The functions of PerFedMask; its attributes never change."""

    def __init__(self, setup: Setup) -> None:
        blueprint = setup.blueprint()
        self.setup, self.shapes, self.layers = setup, blueprint.shapes, blueprint.layers
        self.layer_of = {**blueprint.weights, **blueprint.biases}
        sizes = dict.fromkeys(self.layers, 0)
        for name, layer in self.layer_of.items():
            sizes[layer] += math.prod(self.shapes[name])
        self.counts = list(sizes.values())
        self.spread = lru_cache(maxsize=4)(lambda shares: spread(self.counts, shares))

    def init(self, _: Params) -> State:
        return {}

    def plan(self, _: State, __: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
        jobs = plan_jobs(round_, rates, seed)
        choice = self.spread(tuple(1.0 - job.rate for job in jobs))
        chosen = [torch.from_numpy(row.copy()) for row in choice]
        return [replace(job, payload={"layers": row}) for job, row in zip(jobs, chosen, strict=True)]

    def cut(self, _: Job) -> Subnet:
        return {name: full_piece(shape) for name, shape in self.shapes.items()}

    def trained(self, job: Job) -> Subnet:
        """Return what a device trains and sends: its layers and what belongs to none, such as norms."""
        row = job.payload.get("layers")
        if row is None or row.shape != (len(self.layers),) or row.dtype != torch.bool:
            raise FrameError(f"device {job.device}: expected one bit for each of {len(self.layers)} layers.")
        held = {layer for layer, one in zip(self.layers, row.tolist(), strict=True) if one}
        return {
            name: full_piece(shape) if self.layer_of.get(name) in (None, *held) else _nothing(shape)
            for name, shape in self.shapes.items()
        }

    def local(self, _: Subnet, values: Params, job: Job, batches: Batches, memory: Memory) -> tuple[Update, Memory]:
        pieces, model = self.trained(job), self.setup.model
        still = [p for name, p in model.named_parameters() if p.requires_grad and not pieces[name].size]
        try:
            for parameter in still:
                parameter.requires_grad_(False)
            return train_subnet(self.setup, model, pieces, values, job, batches), memory
        finally:
            for parameter in still:
                parameter.requires_grad_(True)

    def answer(self, job: Job, _: Payload) -> Subnet:
        return self.trained(job)

    def merge(self, state: State, params: Params, updates: Iterable[tuple[Job, Update]]) -> tuple[Params, State]:
        return self.setup.average(params, updates), state

    def sizes(self, rate: float) -> Sizes:
        """Return the cost at a rate: the full network down, and up as many values as the layers may have."""
        kept = {name: math.prod(shape) for name, shape in self.shapes.items()}
        left = max(min(self.counts), _capacity(self.counts, 1.0 - rate))
        answered = dict(kept)
        for name in self.layer_of:
            answered[name] = min(kept[name], left)
            left -= answered[name]
        layers = sections_bytes({"layers": ("bool", (len(self.layers),))})
        return Sizes(kept=kept, push_bytes=layers, answered=answered)


def _nothing(shape: tuple[int, ...]) -> Piece:
    return Piece(shape=shape, index=np.empty(0, np.int64), sub_shape=shape)


def _capacity(counts: Sequence[int], share: float) -> int:
    return math.floor(share * sum(counts) + 1e-9)


def unevenness(choice: Choice, counts: Sequence[int], shares: Sequence[float]) -> float:
    """Return PerFedMask's objective, which is smallest if holders are spread evenly and no capacity is left.

    With M the choice, K_ul = M_ul / Σ_v M_vl and p_l values in layer l of N in all,

        Σ_u [ N max_l K_ul - Σ_l p_l K_ul + ε_u ],     ε_u = c_u N - Σ_l p_l M_ul.

    Args:
        choice: which layers each device trains.
        counts: p, values per layer.
        shares: c, the share of all values that each device can train.
    """
    sizes, total = np.asarray(counts, np.float64), float(sum(counts))
    parts = choice / np.maximum(choice.sum(axis=0), 1)
    left = np.maximum(np.asarray(shares) * total - choice @ sizes, 0.0)
    return float((total * parts.max(axis=1) - parts @ sizes + left).sum())


def spread(counts: Sequence[int], shares: Sequence[float]) -> Choice:
    """Assign layers to devices: greedily, then by single changes as long as they lower :func:`unevenness`.

    Devices with less capacity choose first: of the layers that fit, one with the fewest holders, the largest of them. A
    device for which no layer fits takes the smallest.

    Args:
        counts: values per layer.
        shares: the share of all values that each device can train.

    Example:
        >>> from feddrop.methods.perfedmask import spread
        >>> spread([10, 10, 20], [0.5, 0.5]).astype(int).tolist()
        [[0, 0, 1], [1, 1, 0]]
    """
    sizes = np.asarray(counts, np.int64)
    choice = np.zeros((len(shares), len(counts)), bool)
    limits = np.array([max(int(sizes.min()), _capacity(counts, share)) for share in shares])
    for device in np.argsort(limits, kind="stable").tolist():
        left = int(limits[device])
        while (able := np.flatnonzero(~choice[device] & (sizes <= left))).size:
            holders = choice.sum(axis=0)
            layer = min(able.tolist(), key=lambda at: (holders[at], -sizes[at], at))
            choice[device, layer], left = True, left - int(sizes[layer])
    return _improved(choice, sizes, limits, shares)


def _improved(
    choice: Choice, sizes: npt.NDArray[np.int64], limits: npt.NDArray[np.int64], shares: Sequence[float]
) -> Choice:
    """Take or swap single layers as long as that helps; each layer keeps a holder."""
    best, counts = unevenness(choice, sizes.tolist(), shares), sizes.tolist()
    for _ in range(_PASSES if choice.shape[0] * choice.shape[1] ** 2 <= _MOST_CHANGES else 0):
        before = best
        for device in range(len(choice)):
            for one in range(len(counts)):
                for other in range(one, len(counts)):
                    tried = choice.copy()
                    tried[device, [one, other]] ^= True
                    fits = tried[device] @ sizes <= limits[device] and tried[device].any()
                    covers = tried.any(axis=0).sum() >= choice.any(axis=0).sum()
                    if fits and covers and (value := unevenness(tried, counts, shares)) < best - 1e-9:
                        choice, best = tried, value
        if best == before:
            break
    return choice


_PASSES = 10
"""Passes over all single changes; small cases need two or three."""
_MOST_CHANGES = 20_000
"""Changes per pass, about a second; larger cases stay as the greedy choice left them."""
