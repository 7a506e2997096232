"""What updates are folded into, one by one: running weighted means. Shared by every method."""

from __future__ import annotations

import torch
from torch import Tensor

from feddrop.params import Params
from feddrop.subnets.piece import Piece, scatter


class WeightedMean:
    """A running weighted mean of parameters: one tensor of room for each, however many are added."""

    def __init__(self, like: Params) -> None:
        self.total = {name: torch.zeros_like(tensor) for name, tensor in like.items()}
        self.weight = 0.0

    def add(self, name: str, tensor: Tensor, weight: float) -> None:
        """Add ``weight * tensor``; say the weight itself once, with :meth:`count`."""
        self.total[name].add_(tensor, alpha=weight)

    def count(self, weight: float) -> None:
        """Count a contributor of this weight."""
        self.weight += weight

    def mean(self) -> Params:
        """Return the mean over what was counted."""
        return {name: total / self.weight for name, total in self.total.items()}


class HoldersMean:
    """A running weighted mean of changes, each entry over those that hold it; what nobody holds stays as it is.

    Attributes:
        held: summed weights of those that hold each entry.
    """

    def __init__(self, like: Params) -> None:
        self._moved = {name: torch.zeros_like(tensor) for name, tensor in like.items()}
        self.held = {name: torch.zeros_like(tensor) for name, tensor in like.items()}

    def add(self, name: str, change: Tensor, piece: Piece, weight: float) -> None:
        """Add a change, flat kept values ``[size]``, of one that holds this piece; its weight is 1 or more."""
        self._moved[name].add_(scatter(change, piece), alpha=weight)
        self.held[name].add_(scatter(torch.ones_like(change), piece), alpha=weight)

    def added_to(self, before: Params) -> Params:
        """Return these parameters with the mean change added."""
        return {name: w + self._moved[name] / self.held[name].clamp(min=1.0) for name, w in before.items()}
