"""Robust means of whole updates: multi-Krum, the geometric median, centered clipping and FLTrust.

Each takes all updates of a round and returns those to merge, with another ``weight`` or other values; the
method then averages them as usual. Devices may hold different entries, so distances and norms are root mean squares
over the entries that an update holds, in the units of the network: values are divided by the scale of their piece.

All sums over entries are NumPy's, which do not depend on torch's threads: every executor gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from feddrop.config import Server
from feddrop.errors import RunError
from feddrop.learning.means import Mean
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Piece, Subnet, gather, scatter

Floats = npt.NDArray[np.float64]
Held = list[tuple[Any, Any]]
"""Jobs and updates of a round."""

STEPS = {"geometric": 10, "centered": 3}
"""Steps from the median of every entry, where both means start."""
_PART = 8192
"""Entries of a dot product; BLAS uses threads from 10,000 on."""
_SMOOTH = 1e-6
"""The smallest distance from the geometric median, relative to the median distance, that increases a weight."""


def unscaled(values: Tensor, piece: Piece) -> Tensor:
    """Return the values of a piece in the units of the network's weights."""
    if isinstance(piece.scale, float):
        return values if piece.scale == 1.0 else values / piece.scale
    return values / torch.from_numpy(piece.scale)


def unscaled_values(update: Any) -> dict[str, npt.NDArray[np.float32]]:
    """Return all values of an update in the units of the network's weights, flat."""
    found = {}
    for name, value in update.values.items():
        kept, scale = value.float().numpy().reshape(-1), update.subnet[name].scale
        found[name] = kept if isinstance(scale, float) and scale == 1.0 else kept / scale
    return found


def size_of(unscaled: Mapping[str, npt.NDArray[np.float32]]) -> float:
    """Return the root mean square of all values of an update, given by :func:`unscaled_values`."""
    count = sum(map(len, unscaled.values()))
    return math.sqrt(sum(map(square, unscaled.values()))) / math.sqrt(max(1, count))


def norm(values: Iterable[Tensor]) -> float:
    """Return the norm of several tensors together."""
    return math.sqrt(sum(square(value.float().numpy().reshape(-1)) for value in values))


def square(values: npt.NDArray[np.float32]) -> float:
    """Return the sum of the squares of a vector, in parts that BLAS does not spread over threads.

    Beside busy workers threads would wait for each other, and the sum would depend on their number.
    """
    return sum(float(part.dot(part)) for at in range(0, len(values), _PART) for part in (values[at : at + _PART],))


def krum(held: Held, hostile: int) -> set[int]:
    """Multi-Krum: return the positions of the K - f updates whose K - f - 2 nearest neighbours are nearest."""
    count = len(held)
    if count < 2 * hostile + 3:
        raise RunError(
            f"server.krum is {hostile}, which needs at least {2 * hostile + 3} updates per round, but there are "
            f"{count}. Lower it, or let more devices take part."
        )
    apart = distances([(update.subnet, update.values) for _, update in held])
    scores = np.sort(apart, axis=1)[:, 1 : count - hostile - 1].sum(axis=1)
    return set(np.argsort(scores, kind="stable")[: count - hostile].tolist())


def distances(updates: list[tuple[Subnet, Mapping[str, Tensor]]]) -> Floats:
    """Return the mean squared difference of every two updates over the entries that both hold, ``[K, K]``.

    Two updates without common entries are as far apart as if each were compared with zeros.
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
    apart: Floats = np.where(
        shared > 0, np.maximum(0.0, square) / np.maximum(1.0, shared), sizes[:, None] + sizes[None, :]
    )
    np.fill_diagonal(apart, 0.0)
    return apart


def geometric(held: Held, like: Params) -> Held:
    """Weigh updates as their geometric median does: by 1 / distance from it (Weiszfeld's steps, smoothed).

    The median z minimises the sum of the updates' distances from it; with 1/d_k as weights, it is their mean over the
    holders of every entry.
    """
    center, weights = _median(held, like), np.ones(len(held))
    for _ in range(STEPS["geometric"]):
        apart = _distances_from(center, held)
        weights = 1.0 / np.maximum(apart, _SMOOTH * float(np.median(apart)) + 1e-30)
        weights /= weights.mean()
        center = _moved(held, weights, {name: torch.zeros_like(value) for name, value in center.items()})
    return [(job, replace(update, weight=w)) for (job, update), w in zip(held, weights.tolist(), strict=True)]


def centered(held: Held, like: Params) -> Held:
    """Clip every update's distance from a center to the median distance; the center moves to their mean (Karimireddy).

    It starts at the median of every entry, so nothing is remembered from round to round.
    """
    center = _median(held, like)
    for step in range(STEPS["centered"]):
        apart = _distances_from(center, held)
        factors = np.minimum(1.0, float(np.quantile(apart, 0.5, method="lower")) / np.maximum(apart, 1e-30))
        if step < STEPS["centered"] - 1:
            center = _moved(held, factors, center, votes=True)
    clipped = []
    for (job, update), factor in zip(held, factors.tolist(), strict=True):
        values = {}
        for name, piece in update.subnet.items():
            middle = gather(center[name], piece)
            change = middle + factor * (unscaled(update.values[name], piece) - middle)
            values[name] = change * torch.as_tensor(piece.scale)
        clipped.append((job, replace(update, values=values, weight=1.0)))
    return clipped


def fltrust(held: Held, root: Params) -> Held:
    """Weigh updates by their cosine with the server's own update ``root``, at least 0, and limit their size.

    The limit is the size of the server's update or, if larger, the median of those with a positive cosine: the server
    trains the full network, whose updates shrink before those of subnets do.
    """
    trusts, sizes, goals = [], [], []
    for _, update in held:
        pairs = [
            (unscaled(update.values[name], piece), gather(root[name], piece)) for name, piece in update.subnet.items()
        ]
        dot = sum(float(np.dot(mine.numpy(), own.numpy())) for mine, own in pairs)
        size, own_size = (norm(side) for side in zip(*pairs, strict=True))
        count = math.sqrt(max(1, sum(len(mine) for mine, _ in pairs)))
        trusts.append(max(0.0, dot / (size * own_size)) if size * own_size > 0 else 0.0)
        sizes.append(size / count)
        goals.append(own_size / count)
    usual = [size for size, trust in zip(sizes, trusts, strict=True) if trust]
    least = float(np.quantile(usual, 0.5, method="lower")) if usual else 0.0
    trusted = []
    for (job, update), trust, size, goal in zip(held, trusts, sizes, goals, strict=True):
        factor = min(1.0, max(goal, least) / size) if size > 0 else 0.0
        values = {name: value * factor for name, value in update.values.items()}
        trusted.append((job, replace(update, values=values, weight=trust)))
    return trusted


def _median(held: Held, like: Params) -> Params:
    """Return the median of every entry over its holders."""
    names = {name for _, update in held for name in update.subnet}
    mean = Mean({name: like[name].float() for name in like if name in names}, Server(mean="median"), over="holders")
    for _, update in held:
        for name, piece in update.subnet.items():
            mean.add(name, unscaled(update.values[name], piece), piece, 1.0)
    return mean.mean()


def _distances_from(center: Params, held: Held) -> Floats:
    """Return the root mean square distance of every update from a center, over the entries that it holds."""
    found = []
    for _, update in held:
        count = sum(piece.size for piece in update.subnet.values())
        away = norm(
            unscaled(update.values[name], piece) - gather(center[name], piece) for name, piece in update.subnet.items()
        )
        found.append(away / math.sqrt(max(1, count)))
    return np.array(found)


def _moved(held: Held, weights: Floats, center: Params, *, votes: bool = False) -> Params:
    """Return a center plus the mean of the updates' distances from it, over the holders of each entry.

    The mean is weighted; with ``votes``, distances are multiplied by the weights and every holder counts the same.
    """
    moved = {}
    for name, middle in center.items():
        total, held_by = (np.zeros(middle.numel(), np.float64) for _ in range(2))
        for (_, update), weight in zip(held, weights.tolist(), strict=True):
            if name not in update.subnet:
                continue
            piece = update.subnet[name]
            at = slice(None) if piece.index is None else piece.index
            away = unscaled(update.values[name], piece) - gather(middle, piece)
            total[at] += weight * away.numpy()
            held_by[at] += 1.0 if votes else weight
        step = torch.from_numpy(total / np.where(held_by > 0, held_by, 1.0)).reshape(middle.shape)
        moved[name] = (middle + step).to(middle.dtype)
    return moved
