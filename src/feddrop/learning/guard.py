"""Mark updates that stand out, and optionally clip them or leave them out.

The size of an update is the root mean square of its values, each divided by the scale of its piece, so that subnets of
different rates can be compared. Distances between updates are scaled in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from feddrop.errors import RunError
from feddrop.subnets.piece import Subnet, scatter

LARGEST = 1e6
"""The largest change of a weight that is accepted; larger ones would overflow the network."""

STANDS_OUT = 7.0
"""An update this many times larger than the median of the last round and of its own is marked as suspicious. Honest
updates of rates from 0 to 0.9 were up to 5 times as large in experiments."""
A_FEW = 3
"""The number of updates from which a round's median is used: a single one cannot move it."""

U = TypeVar("U", bound=Any)
Mark = Callable[[int, str], None]


def size_of(update: Any) -> float:
    """Return the root mean square of an update's values, in the units of the network's weights."""
    count = sum(value.numel() for value in update.values.values())
    square = sum(_norm(value, update.subnet[name].scale) ** 2 for name, value in update.values.items())
    return math.sqrt(square / max(1, count))


def _norm(values: Tensor, scale: Any) -> float:
    """Return the norm of values divided by their scale: one number, or one per value."""
    if isinstance(scale, float):
        return float(torch.linalg.vector_norm(values)) / scale
    return float(torch.linalg.vector_norm(values / torch.from_numpy(scale)))


class Guard:
    """Watches the updates of a round as they arrive.

    Attributes:
        median: median size of the last round's updates; NaN before the first. Saved with the run.
    """

    def __init__(self, *, clip: float = 0.0, krum: int = 0, median: float = math.nan) -> None:
        self.median = median
        self._clip, self._krum = clip, krum

    def watch(self, updates: Iterable[tuple[Any, U]], mark: Mark) -> Iterator[tuple[Any, U]]:
        """Pass jobs and updates on; call ``mark`` with the device and the reason if an update stands out.

        Sizes are compared with the larger of two medians, that of the last round and that of this one: if all devices
        move far at once, as when FedDST moves its masks, none stands out. So updates that may have to be clipped are
        held until all have arrived. With multi-Krum, all updates of the round are held.
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
                f"server.krum is {hostile}, which needs at least {2 * hostile + 3} updates per round, but there are "
                f"{count}. Lower it, or let more devices take part."
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

    Units are those of :func:`size_of`. Two updates without common entries are as far apart as if each were compared
    with zeros.
    """
    count = len(updates)
    square, shared, norms = np.zeros((count, count)), np.zeros((count, count)), np.zeros(count)
    for name in updates[0][0]:
        rows = torch.stack(
            [
                scatter(values[name] / torch.as_tensor(subnet[name].scale), subnet[name]).reshape(-1)
                for subnet, values in updates
            ]
        ).double()
        masks = torch.stack(
            [scatter(torch.ones(subnet[name].size), subnet[name]).reshape(-1) for subnet, _ in updates]
        ).double()
        squares = (rows * rows) @ masks.T
        square += (squares + squares.T - 2.0 * rows @ rows.T).numpy()
        shared += (masks @ masks.T).numpy()
        norms += (rows * rows).sum(dim=1).numpy()
    sizes = norms / np.maximum(1.0, np.diag(shared))
    apart: np.ndarray[Any, np.dtype[np.float64]] = np.where(
        shared > 0, np.maximum(0.0, square) / np.maximum(1.0, shared), sizes[:, None] + sizes[None, :]
    )
    np.fill_diagonal(apart, 0.0)
    return apart
