"""What updates are folded into, one by one: means over all devices or over the holders of each entry.

The plain mean needs one tensor of room for each parameter, however many updates are added. The trimmed mean and the
median resist devices that send nonsense; they must hold all updates of a round, K times the network.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from feddrop.config.server import MEANS
from feddrop.errors import ConfigError, one_of
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Piece, scatter


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanConfig:
    """How updates are averaged.

    Attributes:
        kind: ``"mean"``, weighted by samples; ``"trimmed"``, without the smallest and the largest values of every
            entry; or ``"median"`` of every entry. The last two give every device one vote.
        trim: share of the values that is cut off at either end: at least one value of 3 and more, and none of 1 or 2,
            of which nobody can tell the wrong one.
    """

    kind: str = "mean"
    trim: float = 0.1

    def __post_init__(self) -> None:
        one_of("server.mean", self.kind, MEANS)
        if not 0.0 <= self.trim < 0.5:
            raise ConfigError(f"server.trim is {self.trim!r}; it must be a number in [0, 0.5).")


class Mean:
    """A mean of updates, entry by entry.

    Over ``"all"``, an entry that a device does not hold counts as zero; over ``"holders"``, it does not count. What
    nobody holds, or nobody with a weight, has the mean 0: no change. The robust kinds find the middle of the *holders'*
    values, and multiply it by the share of the weight that holds the entry where zeros count.

    Attributes:
        weight: of all contributors.
        held: of those that hold each entry, where that is needed.
    """

    def __init__(self, like: Params, config: MeanConfig | None = None, *, over: str) -> None:
        one_of("over", over, ("all", "holders"))
        self._config, self._over = config or MeanConfig(), over
        self._dtypes = {name: tensor.dtype for name, tensor in like.items()}
        # At least float32: sums over samples are beyond float16, which ends at 65,504.
        wide = {name: torch.promote_types(dtype, torch.float32) for name, dtype in self._dtypes.items()}
        self._total = {name: torch.zeros_like(tensor, dtype=wide[name]) for name, tensor in like.items()}
        self.held = {name: torch.zeros_like(total) for name, total in self._total.items()} if self._needs_held else {}
        self._votes: dict[str, list[tuple[Tensor, Piece]]] = {name: [] for name in like}
        self.weight = 0.0

    @property
    def _needs_held(self) -> bool:
        return self._over == "holders" or self._config.kind != "mean"

    def add(self, name: str, values: Tensor, piece: Piece, weight: float) -> None:
        """Add the flat kept values ``[size]`` of one that holds this piece; say its weight once with :meth:`count`."""
        if self._config.kind == "mean":
            self._total[name].add_(scatter(values, piece), alpha=weight)
        else:
            self._votes[name].append((values.clone(), piece))
        if self._needs_held:
            self.held[name].add_(scatter(torch.ones_like(values), piece), alpha=weight)

    def count(self, weight: float) -> None:
        """Count a contributor of this weight."""
        self.weight += weight

    def mean(self) -> Params:
        """Return the mean of what was added, in the types of the parameters."""
        return {name: value.to(self._dtypes[name]) for name, value in self._mean().items()}

    def _mean(self) -> Params:
        weight = self.weight or 1.0  # where nobody has any, totals are 0
        if self._config.kind == "mean":
            if self._over == "all":
                return {name: total / weight for name, total in self._total.items()}
            held = self.held
            return {name: total / torch.where(held[name] > 0, held[name], 1.0) for name, total in self._total.items()}
        middle = {name: self._middle(votes, self._total[name]) for name, votes in self._votes.items()}
        if self._over == "holders":
            return middle
        return {name: value * (self.held[name] / weight) for name, value in middle.items()}

    def _middle(self, votes: list[tuple[Tensor, Piece]], like: Tensor) -> Tensor:
        """Return the trimmed mean or the median of every entry over those that hold it; 0 where nobody does."""
        if not votes:
            return torch.zeros_like(like)
        # What is not held sorts to the end as infinity; only the first ``holders`` values of each entry count.
        rows = torch.stack(
            [
                torch.where(scatter(torch.ones_like(values), piece) > 0, scatter(values, piece), torch.inf)
                for values, piece in votes
            ]
        )
        rows = rows.sort(dim=0).values
        holders = (rows < torch.inf).sum(dim=0)
        cut = (holders - 1).clamp(min=0) // 2
        if self._config.kind == "trimmed":
            share = (holders * self._config.trim + 1e-9).floor().long()
            cut = cut.minimum(share.clamp(min=1 if self._config.trim else 0))
        place = torch.arange(len(rows)).reshape(-1, *[1] * like.ndim)
        counted = (place >= cut) & (place < holders - cut)
        return torch.where(counted, rows, 0.0).sum(dim=0) / counted.sum(dim=0).clamp(min=1)
