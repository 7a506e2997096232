"""FedDD, differential dropout: devices train the full network and send the channels with the highest scores.

The score of an output channel is Σ|ΔW| · Σ|W+ΔW| / Σ|W| over its weights; its bias follows. Every few rounds a device
receives the full network; in the others, only the channels that it sent last, and it continues with its own weights
elsewhere. These weights are its memory. The server averages every entry over the devices that sent it.
``docs/rivals.md`` names its sources. With rate 0 for every device this is federated averaging.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from feddrop.config import FedDD
from feddrop.errors import FrameError
from feddrop.methods.masking import Floats, Mask, mark_largest
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
    plan_jobs,
    train_subnet,
)
from feddrop.subnets.blueprint import Blueprint
from feddrop.subnets.masks import kept_count
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Piece, Subnet, full_piece, full_subnet, gather
from feddrop.wire.sections import sections_bytes

_OWN = "own/"
"""Prefix of a device's weights in its memory."""
_LEAST = 1e-12
"""Added to Σ|W|, for channels of zeros."""


def build_feddd(setup: Setup, config: FedDD) -> Method:
    """Build FedDD; the rate of a device is the share D of the channels that it does not send."""
    it = _FedDD(setup, config)
    method = Method(it.init, it.plan, it.cut, it.local, it.merge, sizes=it.sizes, answer=it.answer, notes=it.notes)
    return method._replace(returns_weights=True)


class _FedDD:
    """The functions of FedDD; its attributes never change."""

    def __init__(self, setup: Setup, config: FedDD) -> None:
        self.setup, self.config, self.channels = setup, config, ChannelLayout(setup.blueprint())
        self._spec = Spec("bool", (self.channels.total,))

    def init(self, _: Params) -> State:
        return {}

    def plan(self, state: State, _: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
        jobs = [replace(job, asks={"channels": self._spec}) for job in plan_jobs(round_, rates, seed)]
        if round_ % self.config.broadcast_every == 0:
            return jobs
        return [
            replace(job, payload={"channels": last}, remembered=frozenset({"channels"}))
            if (last := state.get(f"channels/{job.device}")) is not None
            else job
            for job in jobs
        ]

    def cut(self, job: Job) -> Subnet:
        sent = job.payload.get("channels")
        return self.channels.full if sent is None else self.channels.pieces(sent, job.device)

    def local(
        self, pieces: Subnet, values: Params, job: Job, batches: Batches, memory: Memory
    ) -> tuple[Update, Memory]:
        start = dict(self._merged(pieces, values, job, memory))
        update = train_subnet(self.setup, self.setup.model, self.channels.full, start, job, batches)
        after = {name: start[name] + update.values[name].reshape(start[name].shape) for name in start}
        chosen = self.channels.chosen(start, after, job.rate)
        subnet = self.channels.pieces(chosen, job.device)
        sent = {name: gather(after[name], piece) for name, piece in subnet.items()}
        own = {f"{_OWN}{name}": value for name, value in after.items()}
        return replace(update, subnet=subnet, values=sent, payload={"channels": chosen}), {**own, "channels": chosen}

    def _merged(self, pieces: Subnet, values: Params, job: Job, memory: Memory) -> Iterator[tuple[str, Tensor]]:
        """Yield what a device starts from: what it received, and its own weights elsewhere."""
        for name, piece in pieces.items():
            if piece.index is None:
                yield name, values[name].to("cpu")  # as its memory is
                continue
            if _OWN + name not in memory:
                raise FrameError(f"device {job.device} has forgotten its weights; it waits for the next broadcast.")
            start = memory[_OWN + name].clone()
            start.view(-1)[torch.from_numpy(piece.index)] = gather(values[name].to("cpu"), piece)
            yield name, start

    def answer(self, job: Job, payload: Payload) -> Subnet:
        return self.channels.checked(payload["channels"], job)

    def merge(self, state: State, params: Params, updates: Iterable[tuple[Job, Update]]) -> tuple[Params, State]:
        sent = dict(state)

        def seen() -> Iterator[tuple[Job, Update]]:
            for job, update in updates:
                sent[f"channels/{update.device}"] = update.payload["channels"]
                yield job, update

        return self.setup.average(params, seen()), sent

    def sizes(self, rate: float) -> Sizes:
        """Return the largest cost of a round, that of a broadcast: everything is sent down and trained."""
        kept = {name: math.prod(shape) for name, shape in self.channels.shapes.items()}
        mask = sections_bytes({"channels": self._spec})
        return Sizes(kept=kept, push_bytes=mask, pull_bytes=mask, answered=self.channels.sizes(rate))

    def notes(self, state: State) -> dict[str, float]:
        """Return the share of the channels that a device sent last, on average."""
        sent = [float(mask.double().mean()) for name, mask in sorted(state.items())]
        return {"channels_sent": sum(sent) / len(sent)} if sent else {}


class ChannelLayout:
    """The output channels of all weights: the slices along their first dimension, with the biases that follow them.

    Attributes:
        shapes: shape of every tensor.
        full: the subnet that keeps everything.
        total: number of channels.
    """

    def __init__(self, blueprint: Blueprint) -> None:
        self.shapes = blueprint.shapes
        self.full = full_subnet(self.shapes)
        self.counts = {name: self.shapes[name][0] for name in blueprint.weights}
        self.total = sum(self.counts.values())
        owner = {layer: name for name, layer in blueprint.weights.items()}
        alone = {layer for layer in owner if list(blueprint.weights.values()).count(layer) == 1}
        self._follows = {
            name: owner[layer]
            for name, layer in blueprint.biases.items()
            if layer in alone and self.shapes[name] == (self.counts[owner[layer]],)
        }

    def chosen(self, before: Params, after: Params, rate: float) -> Tensor:
        """Mark the channels with the highest scores, the same share of every layer, ``[total]``."""
        marks = [
            mark_largest(channel_scores(before[name], after[name]), kept_count(count, 1.0 - rate))
            for name, count in self.counts.items()
        ]
        return torch.from_numpy(np.concatenate(marks))

    def split(self, mask: Tensor) -> dict[str, Mask]:
        """Return the marks of every weight tensor."""
        ends = np.cumsum(list(self.counts.values()))
        return dict(zip(self.counts, np.split(mask.numpy(), ends[:-1]), strict=True))

    def pieces(self, mask: Tensor, device: int) -> Subnet:
        """Return what the marked channels hold; tensors without channels are kept."""
        if mask.shape != (self.total,) or mask.dtype != torch.bool:
            raise FrameError(f"device {device}: expected one bit for each of {self.total} channels.")
        marks = self.split(mask)
        return {
            name: self._piece(shape, marks.get(self._follows.get(name, name))) for name, shape in self.shapes.items()
        }

    def checked(self, mask: Tensor, job: Job) -> Subnet:
        """Return the pieces of a device's channels; FrameError if they are more than its rate allows."""
        pieces = self.pieces(mask, job.device)
        for name, marks in self.split(mask).items():
            count, most = int(marks.sum()), kept_count(self.counts[name], 1.0 - job.rate)
            if count > most:
                raise FrameError(f"device {job.device} sent {count} channels of {name}; expected at most {most}.")
        return pieces

    def sizes(self, rate: float) -> dict[str, int]:
        """Return the number of values sent of every tensor at a rate."""
        sizes = {}
        for name, shape in self.shapes.items():
            count = self.counts.get(self._follows.get(name, name))
            kept = 1 if count is None else kept_count(count, 1.0 - rate)
            sizes[name] = kept * (math.prod(shape) // (count or 1))
        return sizes

    def _piece(self, shape: tuple[int, ...], marks: Mask | None) -> Piece:
        if marks is None or marks.all():
            return full_piece(shape)
        width = math.prod(shape[1:])
        index = (np.flatnonzero(marks)[:, None] * width + np.arange(width)).reshape(-1)
        return Piece(shape=shape, index=index, sub_shape=shape)


def channel_scores(before: Tensor, after: Tensor) -> Floats:
    """Return Σ|ΔW| · Σ|W+ΔW| / Σ|W| of every output channel, ``[channels]``."""
    old, new = (tensor.float().reshape(len(tensor), -1).numpy().astype(np.float64) for tensor in (before, after))
    moved, size = np.abs(new - old).sum(1), np.abs(old).sum(1)
    scores: Floats = moved * np.abs(new).sum(1) / (size + _LEAST)
    return scores
