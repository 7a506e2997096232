"""One mask for all devices, over every weight: what methods with a sparse network of their own share.

The mask covers every weight, output layer included; biases, norms and what is frozen are kept whole. It
travels as one bit a weight to devices that do not know it yet; those that do are sent a digest.
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
from feddrop.methods.method import Job, Spec, State, plan_jobs
from feddrop.subnets import parameters
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Piece, Subnet, full_piece

Mask = npt.NDArray[np.bool_]
Masks = Mapping[str, Mask]
Floats = npt.NDArray[np.float32]


class MaskLayout:
    """Which weights a mask covers, and how a mask becomes pieces.

    Attributes:
        weights: shape of every weight that is learned, in the network's order.
        size: weights in all, and so bits of a mask.
    """

    def __init__(self, model: nn.Module) -> None:
        self._shapes = parameters.shapes(model)
        self.weights = {name: tuple(p.shape) for name, p in parameters.weights(model).items() if p.requires_grad}
        self.size = sum(math.prod(shape) for shape in self.weights.values())
        if not self.size:
            raise ConfigError("the network has no weights that are learned, and so nothing to mask. Use 'fedavg'.")

    def joined(self, parts: Mapping[str, npt.NDArray[Any]]) -> Tensor:
        """Write the arrays of all weights one after another, ``[size]``."""
        return torch.from_numpy(np.concatenate([parts[name].reshape(-1) for name in self.weights]))

    def parted(self, flat: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Undo :meth:`joined`."""
        ends = np.cumsum([math.prod(shape) for shape in self.weights.values()])
        parts = np.split(flat, ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.weights.items(), parts, strict=True)}

    def split(self, mask: Tensor) -> Masks:
        """Return the masks of all layers."""
        flat = mask.numpy().reshape(-1)
        if flat.size != self.size or flat.dtype != bool:
            raise FrameError(f"a mask of {flat.size} bits; {self.size} were expected.")
        return self.parted(flat)

    def pieces(self, masks: Masks) -> Subnet:
        """Return what is kept of every tensor."""
        return {
            name: _piece(masks[name]) if name in self.weights else full_piece(shape) for name, shape in self._shapes.items()
        }

    def cut(self, job: Job) -> Subnet:
        """Return the subnet of a job: what its mask keeps."""
        if "mask" not in job.payload:
            raise FrameError(f"device {job.device} was sent no mask, and remembers none.")
        return self.pieces(self.split(job.payload["mask"]))


def apply_masks(dense: Params, masks: Masks) -> Params:
    """Return parameters with zeros where a mask has them."""
    zero = torch.zeros(())
    return {
        name: torch.where(torch.from_numpy(masks[name]), w, zero) if name in masks else w for name, w in dense.items()
    }


def mask_jobs(state: State, round_: int, rates: Mapping[int, float], seed: int, asks: Mapping[str, Spec]) -> list[Job]:
    """Return the jobs of a round: the state's mask, or a digest of it for those devices that are ``informed``."""
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
    """Return what is remembered: the mask, the devices that know it, and whole numbers by name."""
    return {
        "mask": mask,
        "informed": torch.tensor(sorted(informed), dtype=torch.int64),
        **{name: torch.tensor([number], dtype=torch.int64) for name, number in numbers.items()},
    }


def mark_largest(scores: Floats, count: int, then: Floats | None = None) -> Mask:
    """Mark the ``count`` largest scores; ties go to the larger ``then``, and after that to the lower position."""
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
