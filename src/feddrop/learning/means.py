"""Means of updates, over all devices or over the holders of each entry; updates are added one by one.

The plain mean holds one tensor per parameter, however many updates are added. The trimmed mean and the median resist
hostile devices but must hold all updates of a round, K times the network. Means of whole updates, such as the geometric
median, are in :mod:`feddrop.learning.robust`; here they are weighted means like the plain one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from feddrop.config import Server
from feddrop.config.server import BY_ENTRY
from feddrop.errors import one_of
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Piece, scatter, scatter_flat

USUAL = 3.0
"""Values of entries with few holders are clipped to this multiple of the usual size of the tensor's values."""


Arrays = Mapping[str, npt.NDArray[np.floating]]


class Sums(NamedTuple):
    """What a plain mean holds: weighted sums, the weights of the holders if needed, and that of all contributors."""

    total: Arrays
    held: Arrays
    weight: float


class Mean:
    """A mean of updates, entry by entry, of the kind ``server.mean``.

    Over ``"all"``, an entry that a device does not hold counts as zero; over ``"holders"``, it does not count. Entries
    without holders, or without weight, have the mean 0: no change. The trimmed mean and the median give every device
    one vote: they take the middle of the *holders'* values and, over ``"all"``, multiply it by the holders' share of
    the weight. An entry that too few devices hold to outvote the f hostile ones that the mean allows for, fewer than
    2f + 1, is the middle of values that are clipped; f is the number of devices cut, and for the median less than half.

    Attributes:
        weight: total weight of all contributors.
        held: total weight of the holders of each entry, if needed.
    """

    def __init__(self, like: Params, config: Server | None = None, *, over: str) -> None:
        one_of("over", over, ("all", "holders"))
        self._config, self._over = config or Server(), over
        self._by_entry = self._config.mean in BY_ENTRY
        self._dtypes = {name: tensor.dtype for name, tensor in like.items()}
        # At least float32: sums over samples exceed float16's limit of 65,504.
        wide = {name: torch.promote_types(dtype, torch.float32) for name, dtype in self._dtypes.items()}
        self._total = {name: torch.zeros_like(tensor, dtype=wide[name]) for name, tensor in like.items()}
        self.held = {name: torch.zeros_like(total) for name, total in self._total.items()} if self._needs_held else {}
        self._votes: dict[str, list[tuple[Tensor, Piece]]] = {name: [] for name in like}
        self.weight = 0.0

    @property
    def _needs_held(self) -> bool:
        return self._over == "holders" or self._by_entry

    def add(self, name: str, values: Tensor, piece: Piece, weight: float) -> None:
        """Add a contributor's flat kept values ``[size]`` of this piece; call :meth:`count` once per contributor."""
        if self._by_entry:
            self._votes[name].append((values.clone(), piece))
        else:
            self._total[name].view(-1).add_(scatter_flat(values, piece), alpha=weight)
        if self._needs_held:
            self.held[name].view(-1).add_(scatter_flat(torch.ones_like(values), piece), alpha=weight)

    def count(self, weight: float) -> None:
        """Count a contributor with this weight."""
        self.weight += weight

    def sums(self) -> Sums:
        """Return what a plain mean holds, not copied."""
        total, held = ({name: t.numpy() for name, t in tensors.items()} for tensors in (self._total, self.held))
        return Sums(total, held, self.weight)

    def include(self, sums: Sums) -> None:
        """Add the sums of another plain mean over the same parameters."""
        for mine, other in ((self._total, sums.total), (self.held, sums.held)):
            for name, tensor in mine.items():
                np.add(tensor.numpy(), other[name], out=tensor.numpy())
        self.weight += sums.weight

    def mean(self) -> Params:
        """Return the mean of all values added, in the dtypes of the parameters."""
        return {name: value.to(self._dtypes[name]) for name, value in self._mean().items()}

    def applied_to(self, params: Params) -> Params:
        """Return a network that was changed by the mean."""
        return {name: params[name] + step for name, step in self.mean().items()}

    def _mean(self) -> Params:
        weight = self.weight or 1.0  # without weight, totals are 0
        if not self._by_entry:
            if self._over == "all":
                return {name: total / weight for name, total in self._total.items()}
            held = self.held
            return {name: total / torch.where(held[name] > 0, held[name], 1.0) for name, total in self._total.items()}
        middle = {name: self._middle(votes, self._total[name]) for name, votes in self._votes.items()}
        if self._over == "holders":
            return middle
        return {name: value * (self.held[name] / weight) for name, value in middle.items()}

    def _middle(self, votes: list[tuple[Tensor, Piece]], like: Tensor) -> Tensor:
        """Return the trimmed mean or the median of every entry over its holders; 0 without holders."""
        if not votes:
            return torch.zeros_like(like)
        # Missing values sort to the end as infinity; only the first ``holders`` values of each entry count.
        rows = torch.stack(
            [
                torch.where(scatter(torch.ones_like(values), piece) > 0, scatter(values, piece), torch.inf)
                for values, piece in votes
            ]
        )
        rows = rows.sort(dim=0).values
        holders, hostile = (rows < torch.inf).sum(dim=0), self._hostile(len(votes))
        limit = USUAL * _usual_size(votes)
        rows = torch.where(holders <= 2 * hostile, rows.clamp(-limit, limit), rows)
        cut = ((holders - 1).clamp(min=0) // 2).clamp(max=hostile)
        place = torch.arange(len(rows)).reshape(-1, *[1] * like.ndim)
        counted = (place >= cut) & (place < holders - cut)
        return torch.where(counted, rows, 0.0).sum(dim=0) / counted.sum(dim=0).clamp(min=1)

    def _hostile(self, count: int) -> int:
        """Return how many of this many devices may be hostile: those cut at either end."""
        most = (count - 1) // 2
        if self._config.mean == "median":
            return most
        return min(most, max(1, int(count * self._config.trim + 1e-9))) if self._config.trim else 0


def _usual_size(votes: list[tuple[Tensor, Piece]]) -> float:
    """Return the median over the devices of the root mean square of what they sent; of two, the smaller."""
    sizes = [float(np.linalg.norm(v.float().numpy())) / v.numel() ** 0.5 for v, _ in votes if v.numel()]
    return float(np.quantile(sizes, 0.5, method="lower")) if sizes else 0.0


class Means:
    """The means that the merge of a method opens, one after another.

    A merge that uses its updates only through its means can be split: its means over a part of the updates are kept,
    and another merge, over the rest, starts from their sums.

    Attributes:
        count: how many were opened so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._opened, self._start = list[Mean](), deque[Sums]()
        self._kept = False

    def open(self, mean: Mean) -> Mean:
        """Return a mean that a merge opens, with the sums that it starts from."""
        self.count += 1
        if self._start:
            mean.include(self._start.popleft())
        if self._kept:
            self._opened.append(mean)
        return mean

    @contextmanager
    def kept(self, start: Sequence[Sums] = ()) -> Iterator[list[Mean]]:
        """Keep the means that are opened in this context; the first ones start from these sums."""
        self._kept, self._opened, self._start = True, [], deque(start)
        try:
            yield self._opened
        finally:
            self._kept, self._opened, self._start = False, [], deque()
