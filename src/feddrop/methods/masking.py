"""Masks over all weights, shared by methods whose network is sparse.

A mask covers every weight, output layer included; biases, norms and frozen parameters are not masked. It is sent with
at most one bit per weight; devices that already have it get a digest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from feddrop.errors import ConfigError, FrameError
from feddrop.methods.method import Job, Sizes, Spec, State, plan_jobs
from feddrop.subnets import parameters
from feddrop.subnets.masks import kept_count
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Piece, Subnet, full_piece, full_subnet
from feddrop.wire.sections import sections_bytes

Mask = npt.NDArray[np.bool_]
Masks = Mapping[str, Mask]
Floats = npt.NDArray[np.float32]


class MaskLayout:
    """The weights that a mask covers, and how a mask becomes pieces.

    Attributes:
        weights: shape of every trainable weight, in the network's order.
        size: total number of these weights, and so bits of a mask.
    """

    def __init__(self, model: nn.Module) -> None:
        self._shapes = parameters.shapes(model)
        self.weights = {name: tuple(p.shape) for name, p in parameters.weights(model).items() if p.requires_grad}
        self.size = sum(math.prod(shape) for shape in self.weights.values())
        if not self.size:
            raise ConfigError("the network has no trainable weights, so there is nothing to mask. Use 'fedavg'.")

    def joined(self, parts: Mapping[str, npt.NDArray[Any]]) -> Tensor:
        """Concatenate the arrays of all weights, ``[size]``."""
        return torch.from_numpy(np.concatenate([parts[name].reshape(-1) for name in self.weights]))

    def parted(self, flat: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Invert :meth:`joined`."""
        ends = np.cumsum([math.prod(shape) for shape in self.weights.values()])
        parts = np.split(flat, ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.weights.items(), parts, strict=True)}

    def split(self, mask: Tensor) -> Masks:
        """Return the masks of all layers."""
        flat = mask.numpy().reshape(-1)
        if flat.size != self.size or flat.dtype != bool:
            raise FrameError(f"a mask has {flat.size} bits; expected {self.size}.")
        return self.parted(flat)

    def pieces(self, masks: Masks) -> Subnet:
        """Return the piece of every tensor."""
        return {
            name: _piece(masks[name]) if name in self.weights else full_piece(shape)
            for name, shape in self._shapes.items()
        }

    def cut(self, job: Job) -> Subnet:
        """Return the subnet that a job's mask keeps."""
        if "mask" not in job.payload:
            raise FrameError(f"device {job.device} received no mask and remembers none.")
        return self.pieces(self.split(job.payload["mask"]))


class LargestWeights(MaskLayout):
    """The largest weights at any rate, of the network or of each layer.

    Attributes:
        by_layer: whether a share 1-γ of each layer is kept, not of the network.
    """

    def __init__(self, model: nn.Module, *, by_layer: bool) -> None:
        super().__init__(model)
        self.by_layer = by_layer

    def jobs(self, held: Params, jobs: list[Job]) -> list[Job]:
        """Add the mask of its rate to every job."""
        sent = {rate: self.payload(held, rate) for rate in {job.rate for job in jobs}}
        return [replace(job, payload=sent[job.rate]) for job in jobs]

    def largest(self, held: Params, rate: float) -> Masks:
        """Mark the largest weights: a share 1-γ of the network or of each layer."""
        sizes: dict[str, Floats] = {name: np.abs(held[name].numpy()) for name in self.weights}
        if self.by_layer:
            return {name: mark_largest(size, kept_count(size.size, 1.0 - rate)) for name, size in sizes.items()}
        return self.parted(mark_largest(self.joined(sizes).numpy(), kept_count(self.size, 1.0 - rate)))

    def payload(self, held: Params, rate: float) -> dict[str, Tensor]:
        """Return the payload for a device of a given rate: its mask, or nothing if it holds all weights."""
        return {} if self._all(rate) else {"mask": self.joined(self.largest(held, rate))}

    def cut(self, job: Job) -> Subnet:
        """Return the subnet of a job."""
        return full_subnet(self._shapes) if self._all(job.rate) else super().cut(job)

    def sizes(self, rate: float) -> Sizes:
        """Return the cost of a subnet of a given rate, for thresholds per layer."""
        kept = {
            name: kept_count(math.prod(shape), 1.0 - rate) if name in self.weights else math.prod(shape)
            for name, shape in self._shapes.items()
        }
        marked = sum(kept[name] for name in self.weights)
        return Sizes(kept=kept, push_bytes=sections_bytes({"mask": ("bool", (self.size,))}, {"mask": marked}))

    def _all(self, rate: float) -> bool:
        counts = [math.prod(shape) for shape in self.weights.values()] if self.by_layer else [self.size]
        return all(kept_count(count, 1.0 - rate) == count for count in counts)


def apply_masks(dense: Params, masks: Masks) -> Params:
    """Return the parameters with zeros outside the masks."""
    zero = torch.zeros(())
    return {
        name: torch.where(torch.from_numpy(masks[name]), w, zero) if name in masks else w for name, w in dense.items()
    }


def mask_jobs(state: State, round_: int, rates: Mapping[int, float], seed: int, asks: Mapping[str, Spec]) -> list[Job]:
    """Return the jobs of a round with the state's mask; devices that are ``informed`` remember it."""
    informed = set(state["informed"].tolist())
    return [
        replace(
            job,
            payload={"mask": state["mask"]},
            remembered=frozenset({"mask"} if job.device in informed else ()),
            asks=asks,
        )
        for job in plan_jobs(round_, rates, seed)
    ]


def mask_state(mask: Tensor, informed: Iterable[int], **numbers: int) -> State:
    """Return a state: the mask, the devices that have it, and named integers."""
    return {
        "mask": mask,
        "informed": torch.tensor(sorted(informed), dtype=torch.int64),
        **{name: torch.tensor([number], dtype=torch.int64) for name, number in numbers.items()},
    }


def mark_largest(scores: Floats, count: int, then: Floats | None = None) -> Mask:
    """Mark the ``count`` largest scores; ties go to the larger ``then``, and then to the lower position."""
    flat = scores.reshape(-1)
    if count <= 0 or count >= flat.size:
        return np.full(scores.shape, count > 0)
    threshold = np.partition(flat, flat.size - count)[flat.size - count]
    chosen: Mask = flat > threshold
    tied, room = np.flatnonzero(flat == threshold), count - int(chosen.sum())
    if then is not None:
        tied = tied[mark_largest(then.reshape(-1)[tied], room)]
    chosen[tied[:room]] = True
    return chosen.reshape(scores.shape)


def _piece(mask: Mask) -> Piece:
    index = None if mask.all() else np.flatnonzero(mask)
    return Piece(shape=mask.shape, index=index, sub_shape=mask.shape)
