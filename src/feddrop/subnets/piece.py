"""What a subnet keeps of one tensor, and how its values are taken out and put back.

Both mask levels end in the same thing: the sorted flat positions that are kept. At the weight level the device holds
the whole tensor with zeros in between; at the unit level the kept positions *are* a smaller dense tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a subnet keeps of one tensor.

    Attributes:
        shape: shape of the whole tensor, at the server.
        index: sorted flat positions kept, ``[size]``; None when all are.
        sub_shape: shape on the device: ``shape`` at the weight level, a smaller dense one at the unit level.
        scale: what kept values are multiplied by (1/(1-γ) at the weight level).
    """

    shape: tuple[int, ...]
    index: Index | None = None
    sub_shape: tuple[int, ...]
    scale: float = 1.0

    @property
    def size(self) -> int:
        """Number of values kept, and so sent."""
        return math.prod(self.shape) if self.index is None else len(self.index)

    @property
    def dense(self) -> bool:
        """Whether the device holds exactly the kept values, with no zeros in between."""
        return math.prod(self.sub_shape) == self.size


Subnet = dict[str, Piece]
"""A subnet: what is kept of every tensor, in the network's order."""


def full_piece(shape: tuple[int, ...]) -> Piece:
    """Keep all of a tensor."""
    return Piece(shape=shape, sub_shape=shape)


def gather(tensor: Tensor, piece: Piece) -> Tensor:
    """Take the kept values out of a whole tensor: flat ``[size]``, unscaled."""
    flat = tensor.detach().reshape(-1)
    if piece.index is None:
        return flat
    values = np.empty(piece.size, flat.numpy().dtype)
    # The positions are ours and in range; "clip" spares NumPy's checked, buffered path.
    np.take(flat.numpy(), piece.index, out=values, mode="clip")
    return torch.from_numpy(values)


def scatter(values: Tensor, piece: Piece) -> Tensor:
    """Put kept values back into a tensor of the whole shape, zero elsewhere (the paper's zero padding)."""
    if piece.index is None:
        return values.reshape(piece.shape)
    full = np.zeros(math.prod(piece.shape), values.numpy().dtype)
    full[piece.index] = values.numpy()
    return torch.from_numpy(full).reshape(piece.shape)


def to_device_shape(values: Tensor, piece: Piece) -> Tensor:
    """Shape kept values as the device holds them: smaller and dense, or whole with zeros."""
    return values.reshape(piece.sub_shape) if piece.dense else scatter(values, piece)


def from_device_shape(tensor: Tensor, piece: Piece) -> Tensor:
    """Undo :func:`to_device_shape`: flat kept values ``[size]``."""
    return tensor.detach().reshape(-1) if piece.dense else gather(tensor, piece)
