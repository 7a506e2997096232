"""One device against all: updates that stand out are marked, and on demand clipped or left out.

The size of an update is the root mean square of its values, each divided by the scale that its piece was sent with, so
that subnets of all rates can be compared; so is the distance of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import Any, TypeVar

import numpy as np
import torch

from feddrop.errors import RunError
from feddrop.subnets.piece import Subnet, scatter

LARGEST = 1e6
"""No honest update changes a weight by more; what is larger would overflow the network of all."""

STANDS_OUT = 7.0
"""An update so many times larger than the median of the last round, and of its own, is marked as suspicious; honest
ones of rates from 0 to 0.9 were seen to be up to 5 times as large."""
A_FEW = 3
"""Updates from which on their median says what is usual in a round: one of them cannot move it."""

U = TypeVar("U", bound=Any)
Mark = Callable[[int, str], None]


def size_of(update: Any) -> float:
    """Return the root mean square over all values of an update, in the units of the network's weights."""
    count = sum(value.numel() for value in update.values.values())
    square = sum(
        (float(torch.linalg.vector_norm(value)) / update.subnet[name].scale) ** 2
        for name, value in update.values.items()
    )
    return math.sqrt(square / max(1, count))


class Guard:
    """Watches the updates of a round as they come.

    Attributes:
        median: the median size of the last round's updates; NaN before the first. Saved with the run.
    """

    def __init__(self, *, clip: float = 0.0, krum: int = 0, median: float = math.nan) -> None:
        self.median = median
        self._clip, self._krum = clip, krum

    def watch(self, updates: Iterable[tuple[Any, U]], mark: Mark) -> Iterator[tuple[Any, U]]:
        """Pass updates on, with their jobs; ``mark`` is told the device and what is wrong with its update.

        What is usual is the larger of two medians, that of the last round and that of this one: where all devices move
        far at once, as when FedDST moves its masks, nobody stands out. So what may have to be clipped is held until all
        have come. A round of which some are to be left out is held whole.
        """
        sizes: dict[int, float] = {}
        late: list[tuple[Any, U]] = []
        last = self.median
        for job, update in self._closest(list(updates), mark) if self._krum else updates:
            size = sizes[update.device] = size_of(update)
            if self._clip and not size <= self._clip * last:
                late.append((job, update))
            else:
                yield job, update
        self.median = median(sizes.values()) if sizes else self.median
        usual, whose = self.median, "round's"
        if last >= (usual if len(sizes) >= A_FEW else 0.0):
            usual, whose = last, "last round's"
        for job, update in late:
            times = sizes[update.device] / usual if usual > 0 else 1.0
            if times > self._clip:
                sizes.pop(update.device)  # marked already
                mark(update.device, f"{times:.3g} × as large as the {whose} median; clipped to {self._clip:g} ×")
                factor = self._clip / times
                update = replace(update, values={name: value * factor for name, value in update.values.items()})
            yield job, update
        for device, size in sizes.items():
            if size > STANDS_OUT * usual > 0:
                mark(device, f"{size / usual:.3g} × as large as the {whose} median")

    def _closest(self, held: list[tuple[Any, U]], mark: Mark) -> list[tuple[Any, U]]:
        """Multi-Krum: keep the K - f updates whose K - f - 2 nearest neighbours are nearest."""
        count, hostile = len(held), self._krum
        if count < 2 * hostile + 3:
            raise RunError(
                f"server.krum is {hostile}, which needs at least {2 * hostile + 3} updates a round; there are {count}. "
                "Lower it, or let more devices take part."
            )
        apart = distances([(update.subnet, update.values) for _, update in held])
        scores = np.sort(apart, axis=1)[:, 1 : count - hostile - 1].sum(axis=1)
        kept = set(np.argsort(scores, kind="stable")[: count - hostile].tolist())
        for row, (_, update) in enumerate(held):
            if row not in kept:
                mark(update.device, "far from the other updates; left out by multi-Krum")
        return [one for row, one in enumerate(held) if row in kept]


def distances(updates: list[tuple[Subnet, Mapping[str, torch.Tensor]]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the mean squared difference of every two updates over the entries that both hold, ``[K, K]``.

    It is in the units of the network's weights, as :func:`size_of` is. Two that share nothing are as far apart as their
    sizes say, as if the other's values were zero.
    """
    count = len(updates)
    square, shared, own = np.zeros((count, count)), np.zeros((count, count)), np.zeros(count)
    for name in updates[0][0]:
        rows = torch.stack(
            [scatter(values[name] / subnet[name].scale, subnet[name]).reshape(-1) for subnet, values in updates]
        ).double()
        masks = torch.stack(
            [scatter(torch.ones(subnet[name].size), subnet[name]).reshape(-1) for subnet, _ in updates]
        ).double()
        squares = (rows * rows) @ masks.T
        square += (squares + squares.T - 2.0 * rows @ rows.T).numpy()
        shared += (masks @ masks.T).numpy()
        own += (rows * rows).sum(dim=1).numpy()
    sizes = own / np.maximum(1.0, np.diag(shared))
    apart: np.ndarray[Any, np.dtype[np.float64]] = np.where(
        shared > 0, np.maximum(0.0, square) / np.maximum(1.0, shared), sizes[:, None] + sizes[None, :]
    )
    np.fill_diagonal(apart, 0.0)
    return apart
