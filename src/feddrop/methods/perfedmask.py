"""PerFedMask: a device trains some layers of the full network; the others stay at their global values.

The server assigns layers such that each device trains at most a share 1-γ of the weights and the holders are spread
evenly (:func:`spread`). ``docs/rivals.md`` names its sources. With rate 0 for every device this is federated
averaging.
"""

from __future__ import annotations

import itertools
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
from feddrop.seeds import derive, generator
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Piece, Subnet, full_piece, full_subnet
from feddrop.wire.sections import sections_bytes

Counts = npt.NDArray[np.int64]
Choice = npt.NDArray[np.bool_]
"""Which layers each device trains, ``[devices, layers]``."""


def build_perfedmask(setup: Setup, _: PerFedMask) -> Method:
    """Build PerFedMask."""
    it = _PerFedMask(setup)
    return Method(it.init, it.plan, it.cut, it.local, it.merge, sizes=it.sizes, answer=it.answer, linear=it.merge)


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
        return full_subnet(self.shapes)

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
    """Assign layers to devices such that as many layers as possible have a holder, at a low :func:`unevenness`.

    Devices choose one after another: of the layers that fit, one with the fewest holders, the largest of them; a device
    for which no layer fits takes the smallest. Then each device in turn exchanges its layers for the best set, given
    those of the others, until nothing changes. The best of several orders counts, the first from the least capacity up.

    Args:
        counts: values per layer.
        shares: the share of all values that each device can train.

    Example:
        >>> from feddrop.methods.perfedmask import spread
        >>> spread([10, 10, 20], [0.5, 0.5]).astype(int).tolist()
        [[0, 0, 1], [1, 1, 0]]
    """
    sizes, devices = np.asarray(counts, np.int64), len(shares)
    limits = np.array([max(int(sizes.min()), _capacity(counts, share)) for share in shares])
    work = devices**2 * len(_near(np.ones(len(counts), bool))) * len(counts)  # of one pass
    orders = [np.argsort(limits, kind="stable")]
    orders += [generator(derive(0, "spread", n)).permutation(devices) for n in range(min(_STARTS, _WORK // work - 1))]
    found = [_greedy(sizes, limits, order) for order in orders]
    if work <= _WORK:
        found = [_exchanged(choice, sizes, limits) for choice in found]
    return min(found, key=lambda one: (-int(one.any(axis=0).sum()), unevenness(one, counts, shares)))


def _greedy(sizes: Counts, limits: Counts, order: Counts) -> Choice:
    choice = np.zeros((len(limits), len(sizes)), bool)
    for device in order.tolist():
        left = int(limits[device])
        while (able := np.flatnonzero(~choice[device] & (sizes <= left))).size:
            holders = choice.sum(axis=0)
            layer = min(able.tolist(), key=lambda at: (holders[at], -sizes[at], at))
            choice[device, layer], left = True, left - int(sizes[layer])
    return choice


def _exchanged(choice: Choice, sizes: Counts, limits: Counts) -> Choice:
    """Give each device in turn its best layers, given those of the others; no fewer layers have a holder then."""
    for _ in range(_PASSES):
        before = choice.copy()
        for device, own in enumerate(before):
            rows = _near(own)
            rows = np.vstack([own, rows[rows.any(axis=1) & (rows @ sizes <= limits[device])]])
            others = np.delete(choice, device, axis=0)
            holders = others.sum(axis=0) + rows
            parts = 1.0 / np.maximum(holders, 1)
            most = np.where(rows, parts, 0.0).max(axis=1)
            most += np.where(others, parts[:, None, :], 0.0).max(axis=2).sum(axis=1)
            value = sizes.sum() * most - (holders > 0) @ sizes - rows @ sizes  # unevenness, up to a constant
            value[(holders > 0).sum(axis=1) < (holders[0] > 0).sum()] = np.inf
            best = int(np.argmin(value))
            if value[best] < value[0] - 1e-9:
                choice[device] = rows[best]
        if np.array_equal(choice, before):
            break
    return choice


def _near(row: Choice) -> Choice:
    """Return all sets of layers if there are few, otherwise those that differ from a set in at most two layers."""
    if len(row) <= _ALL_SETS:
        return np.array(list(itertools.product([False, True], repeat=len(row))))
    flips = np.eye(len(row), dtype=bool)
    pairs = itertools.combinations_with_replacement(flips, 2)
    near: Choice = row ^ np.array([one | other for one, other in pairs])
    return near


_ALL_SETS, _PASSES, _STARTS = 8, 10, 20
_WORK = 10_000_000
"""Numbers that the passes of all starts may compute, in 0.3 s; larger cases have fewer starts, or no passes."""
