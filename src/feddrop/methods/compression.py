"""Sparsified updates: a device sends the largest changes and remembers the rest (top-k with error feedback).

With e_k the error that device k remembers and Δ_k the change of its training, in the units of the network's weights,

    c_k = Δ_k + e_k,     sent: the largest entries of every weight tensor of c_k,     e_k = c_k - what was sent.

The server reads entries that were not sent as zeros, so the inner method averages as usual. Biases, norms and their
statistics are sent whole. ``docs/around.md`` says what is published and what is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch

from feddrop.errors import FrameError
from feddrop.learning.robust import unscaled
from feddrop.methods.masking import Mask, MaskLayout, mark_largest
from feddrop.methods.method import Batches, Job, Memory, Method, Payload, Setup, Sizes, Spec, State, Update
from feddrop.subnets.masks import kept_count
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Index, Piece, Subnet, gather
from feddrop.wire.sections import sections_bytes

TOP = "top"
"""The payload that marks the entries sent."""
_ERROR = "error/"
"""Prefix of the errors in a device's memory."""


def with_compression(method: Method, setup: Setup) -> Method:
    """Return a method whose devices send a share ``train.compress`` of their changes."""
    it, inside = _Compressed(method, setup), method.sizes
    sizes = inside and (lambda rate: it.sizes(inside(rate)))
    linear = it.merge if method.is_linear else None
    return method._replace(plan=it.plan, local=it.local, merge=it.merge, linear=linear, answer=it.answer, sizes=sizes)


class _Compressed:
    """The functions of a compressed method; its attributes never change."""

    def __init__(self, method: Method, setup: Setup) -> None:
        self.method, self.keep, self.layout = method, setup.train.compress, MaskLayout(setup.model)
        self._spec = Spec("bool", (self.layout.size,))

    def plan(self, state: State, params: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
        jobs = self.method.plan(state, params, round_, rates, seed)
        return [replace(job, asks={**job.asks, TOP: self._spec}) for job in jobs]

    def local(
        self, pieces: Subnet, values: Params, job: Job, batches: Batches, memory: Memory
    ) -> tuple[Update, Memory]:
        own = {name: tensor for name, tensor in memory.items() if not name.startswith(_ERROR)}
        update, own = self.method.local(pieces, values, job, batches, own)
        subnet, sent, masks = dict(update.subnet), dict(update.values), dict[str, Mask]()
        for name, shape in self.layout.weights.items():
            piece = subnet[name]
            error = memory.get(_ERROR + name, torch.zeros(shape)).clone()
            change = unscaled(update.values[name].float(), piece) + gather(error, piece)
            marks = mark_largest(np.abs(change.numpy()), self.count(piece.size))
            subnet[name], at = thinned(piece, marks), _positions(piece)
            masks[name] = np.zeros(error.numel(), bool)
            masks[name][at[marks]] = True
            chosen = change[torch.from_numpy(marks)]
            sent[name] = chosen * torch.as_tensor(subnet[name].scale)
            error.numpy().reshape(-1)[at] = np.where(marks, np.float32(0), change.numpy())
            own[_ERROR + name] = error
        payload = {**update.payload, TOP: self.layout.joined(masks)}
        return replace(update, subnet=subnet, values=sent, payload=payload), own

    def count(self, size: int) -> int:
        """Return how many of this many changes of a tensor are sent."""
        return kept_count(size, self.keep) if size else 0

    def _inner(self, job: Job, payload: Payload) -> tuple[Subnet, Payload]:
        """Return the subnet and the payload as the method inside knows them."""
        rest = {name: tensor for name, tensor in payload.items() if name != TOP}
        return self.method.answer(job, rest) if self.method.answer else self.method.cut(job), rest

    def answer(self, job: Job, payload: Payload) -> Subnet:
        subnet, masks = dict(self._inner(job, payload)[0]), self.layout.split(payload[TOP])
        for name, mask in masks.items():
            piece, flat = subnet[name], mask.reshape(-1)
            marks, due = flat[_positions(piece)], self.count(piece.size)
            if int(marks.sum()) != due or int(flat.sum()) != due:
                raise FrameError(
                    f"device {job.device} marks {int(flat.sum())} changes of {name}, {int(marks.sum())} of them in "
                    f"its subnet; expected {due}."
                )
            subnet[name] = thinned(piece, marks)
        return subnet

    def merge(self, state: State, params: Params, updates: Iterable[tuple[Job, Update]]) -> tuple[Params, State]:
        def full() -> Iterator[tuple[Job, Update]]:
            for job, update in updates:
                yield job, self._full(job, update)

        return self.method.merge(state, params, full())

    def _full(self, job: Job, update: Update) -> Update:
        """Return an update of the method's subnet, with zeros where nothing was sent."""
        (whole, rest), masks = self._inner(job, update.payload), self.layout.split(update.payload[TOP])
        subnet, values = {name: whole[name] for name in update.subnet}, dict(update.values)
        for name in self.layout.weights:
            spread = torch.zeros(subnet[name].size)
            spread[torch.from_numpy(masks[name].reshape(-1)[_positions(subnet[name])])] = update.values[name].float()
            values[name] = spread
        return replace(update, subnet=subnet, values=values, payload=rest)

    def sizes(self, found: Sizes) -> Sizes:
        up = found.answered or found.kept
        answered = {name: self.count(size) if name in self.layout.weights else size for name, size in up.items()}
        marked = sum(answered[name] for name in self.layout.weights)
        more = sections_bytes({TOP: self._spec}, {TOP: marked})
        return replace(found, answered=answered, pull_bytes=found.pull_bytes + more)


def thinned(piece: Piece, marks: Mask) -> Piece:
    """Return the marked part of a piece, as flat positions of the full tensor; ``marks`` is one bit per kept value."""
    scale = piece.scale if isinstance(piece.scale, float) else piece.scale[marks]
    return replace(piece, index=_positions(piece)[marks], sub_shape=piece.shape, scale=scale)


def _positions(piece: Piece) -> Index:
    """Return the flat positions of the values that a piece keeps."""
    return np.arange(piece.size) if piece.index is None else piece.index
