"""Which parameters no device has held so far."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from feddrop.errors import RunError, clean
from feddrop.subnets.piece import Subnet


class Untrained:
    """The trainable parameters that no device has held so far; tensors held in full are forgotten.

    Attributes:
        left: by name, which values are left, flat.
        total: number of all trainable parameters.
    """

    def __init__(self, left: Mapping[str, npt.NDArray[np.bool_]], total: int) -> None:
        self.left, self.total = dict(left), total

    @classmethod
    def of(cls, model: nn.Module) -> Untrained:
        """Return all trainable parameters of a network."""
        sizes = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
        return cls({name: np.ones(size, bool) for name, size in sizes.items()}, sum(sizes.values()))

    def add(self, subnet: Subnet) -> None:
        """Remove what a device holds."""
        for name in [name for name in self.left if name in subnet]:
            index = subnet[name].index
            if index is not None:
                self.left[name][index] = False
            if index is None or not self.left[name].any():
                del self.left[name]

    def only(self, left: Mapping[str, npt.NDArray[np.bool_]]) -> None:
        """Remove what is not left elsewhere either."""
        for name in list(self.left):
            if name in left:
                self.left[name] &= left[name]
            if name not in left or not self.left[name].any():
                del self.left[name]

    @property
    def share(self) -> float:
        """The share of all trainable parameters that is left."""
        return sum(int(left.sum()) for left in self.left.values()) / max(1, self.total)

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint holds: one bit per value."""
        return {name: torch.from_numpy(np.packbits(left)) for name, left in self.left.items()}

    def return_to(self, saved: Mapping[str, Tensor]) -> Untrained:
        """Return the state of a checkpoint; ``self`` is that of the start."""
        left = {}
        for name, bits in saved.items():
            size = self.left[name].size if name in self.left else -1
            if bits.dtype != torch.uint8 or bits.shape != ((size + 7) // 8,):
                raise RunError(
                    f"the untrained parameters of {clean(name)} in the checkpoint belong to another network."
                )
            left[name] = np.unpackbits(bits.numpy(), count=size).astype(bool)
        return Untrained({name: left[name] for name in self.left if name in left}, self.total)
