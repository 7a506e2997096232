"""The part of one tensor that a subnet keeps, and how its values are gathered and scattered.

Both levels come down to the sorted flat positions that are kept. At the weight level the device holds the full tensor
with zeros in between; at the unit level the kept positions form a smaller dense tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The part of one tensor that a subnet keeps.

    Attributes:
        shape: shape of the full tensor, at the server.
        index: sorted flat positions kept, ``[size]``; None for all.
        sub_shape: shape on the device: ``shape`` at the weight level, a smaller dense one at the unit level.
        scale: factor on the kept values: one number (1/(1-γ) at the weight level) or one per kept value, ``[size]``.
        floor: smallest magnitude of a sent value; smaller kept ones are raised to it (τ of importance draws).
        size: number of values kept and sent.
    """

    shape: tuple[int, ...]
    index: Index | None = None
    sub_shape: tuple[int, ...]
    scale: float | npt.NDArray[np.float32] = 1.0
    floor: float = 0.0
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", math.prod(self.shape) if self.index is None else len(self.index))

    def factors(self, kept: Tensor) -> Tensor | float:
        """Return the factors 1/q on kept values ``[size]`` of the full network: one number, or one per value."""
        scale = self.scale if isinstance(self.scale, float) else torch.from_numpy(self.scale).to(kept.device)
        if not self.floor:
            return scale
        magnitude = kept.abs()
        return scale * torch.where(magnitude < self.floor, self.floor / magnitude, 1.0)

    @property
    def dense(self) -> bool:
        """Whether the device holds exactly the kept values, with no zeros in between."""
        return math.prod(self.sub_shape) == self.size


Subnet = dict[str, Piece]
"""A subnet: the piece of every tensor, in the network's order."""


def full_piece(shape: tuple[int, ...]) -> Piece:
    """Return the piece that keeps all of a tensor."""
    return Piece(shape=shape, sub_shape=shape)


def full_subnet(shapes: Mapping[str, tuple[int, ...]]) -> Subnet:
    """Return the subnet that keeps all of a network with these shapes."""
    return {name: full_piece(shape) for name, shape in shapes.items()}


def positions(index: Index, where: torch.device) -> Tensor:
    """Return flat positions as a tensor; on another device than the CPU, they are copied once per job."""
    if where.type == "cpu":
        return torch.from_numpy(index)
    key = id(index), str(where)
    if key not in PLACED:
        PLACED[key] = index, torch.from_numpy(index).to(where)
    return PLACED[key][1]


PLACED: dict[tuple[int, str], tuple[Index, Tensor]] = {}
"""Positions on other devices than the CPU; a device clears it with every job. Each array is kept with its copy, so that
no other one has its identity."""


def gather(tensor: Tensor, piece: Piece) -> Tensor:
    """Return the kept values of a full tensor, flat ``[size]`` and unscaled, on its device."""
    flat = tensor.detach().reshape(-1)
    return flat if piece.index is None else torch.index_select(flat, 0, positions(piece.index, flat.device))


def scaled(tensor: Tensor, piece: Piece) -> Tensor:
    """Return the kept values of a full tensor as a device gets them, flat ``[size]``."""
    kept = gather(tensor, piece)
    factors = piece.factors(kept)
    return kept if isinstance(factors, float) and factors == 1.0 else kept * factors


def scaled_values(params: Mapping[str, Tensor], subnet: Subnet) -> Tensor:
    """Return :func:`scaled` of every tensor of a subnet, in order, as one float32 vector."""
    values, at = np.empty(sum(piece.size for piece in subnet.values()), np.float32), 0
    joined = torch.from_numpy(values)
    with np.errstate(over="ignore"):  # infinite values are refused when they are sent
        for name, piece in subnet.items():
            tensor, start, at = params[name].detach(), at, at + piece.size
            if tensor.dtype != torch.float32 or piece.floor or not isinstance(piece.scale, float):
                joined[start:at] = scaled(tensor, piece)
                continue
            full, part = tensor.numpy().reshape(-1), values[start:at]
            if piece.index is None:
                part[:] = full
            else:  # the positions are in range; "clip" avoids NumPy's slow path with range checks
                full.take(piece.index, out=part, mode="clip")
            if piece.scale != 1.0:
                np.multiply(part, piece.scale, out=part)
    return joined


def without(subnet: Subnet, names: Set[str]) -> Subnet:
    """Return a subnet without the tensors of these names."""
    return {name: piece for name, piece in subnet.items() if name not in names} if names else subnet


def scatter(values: Tensor, piece: Piece) -> Tensor:
    """Put kept values back into a tensor of the full shape, zero elsewhere (the paper's zero padding)."""
    return scatter_flat(values, piece).reshape(piece.shape)


def scatter_flat(values: Tensor, piece: Piece) -> Tensor:
    """Return :func:`scatter` as a vector; the values themselves if the piece keeps everything."""
    if piece.index is None:
        return values.reshape(-1)
    full = torch.zeros(math.prod(piece.shape), dtype=values.dtype, device=values.device)
    return full.scatter_(0, positions(piece.index, values.device), values)


def to_device_shape(values: Tensor, piece: Piece) -> Tensor:
    """Shape kept values as the device holds them: smaller and dense, or of full shape with zeros."""
    return values.reshape(piece.sub_shape) if piece.dense else scatter(values, piece)


def from_device_shape(tensor: Tensor, piece: Piece) -> Tensor:
    """Invert :func:`to_device_shape`: return flat kept values ``[size]``."""
    return tensor.detach().reshape(-1) if piece.dense else gather(tensor, piece)
