"""Which updates of a round look suspicious: by size, by direction, by distance from the others, by claimed samples.

Of every update only its size and a sketch of 1,024 numbers are kept, so nothing has to wait and the cost of a round is
linear in its devices. Sizes and distances are per weight held; those of devices that hold fewer weights than most are
scaled down to what they are in the full network, since honest subnets at high rates change the few weights that they
hold more than others do.

A sketch sums the update's values with random signs into 1,024 buckets: inner products of
sketches estimate those of updates, with an error of about 3 % of the norms. Large tensors are sketched on a window of
32,768 values. Signs and windows follow from the run's seed and the round, which devices do not know.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from feddrop.learning import robust
from feddrop.seeds import derive
from feddrop.subnets.piece import Subnet

Floats = npt.NDArray[np.float64]
Sketch = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]

STANDS_OUT = 7.0
"""Times the median from which a size or distance is marked. Honest updates of rates from 0 to 0.9 were up to 5 times as
large; on uneven data more, so the limit grows with the spread of the round."""
IN_AGREEMENT, STANDS_OUT_THERE = 0.15, 3.0
"""A median cosine of the round's updates from which they agree, as on IID data, and the limit that is enough then."""
SPREADS = 5.0
"""Robust standard deviations from the median, in logarithms, up to which a size is not marked."""
OPPOSED, OPPOSED_SPREADS = -0.22, 2.5
"""Median cosine with the others below which an update is marked, if it is also this many deviations below theirs."""
CLAIMED = 1000.0
"""Times the median number of samples from which a claim is marked."""
KNOWN = 0.4
"""Factor on the limits of devices that were marked in the last rounds."""
A_FEW, ENOUGH = 3, 5
"""Numbers of updates from which a round's median is used, and from which their directions and spread are."""

_BUCKETS, _WINDOW = 1024, 2**15
_COMPARED = 256
"""The most updates that each one's direction is compared with."""
_ROWS, _COLUMNS = 256, 128
"""Sketches, and buckets of all sketches, that are compared at a time, in the cache of a core."""


class _Window(NamedTuple):
    """The part of a tensor that is sketched: its first value, its length, its place in the buffer; and the shape."""

    start: int
    length: int
    part: Sketch
    shape: tuple[int, ...]


class SeenPart(NamedTuple):
    """What is kept of some updates of a round; see :class:`Seen`."""

    sizes: dict[int, float]
    samples: dict[int, int]
    sketches: list[Sketch]
    shares: list[float]


@dataclass
class Seen:
    """What is kept of the updates of a round."""

    seed: int  # the run's root seed
    round: int  # the round
    sizes: dict[int, float] = field(default_factory=dict)  # root mean square of every update, by device
    samples: dict[int, int] = field(default_factory=dict)  # claimed samples, by device
    _sketches: list[Sketch] = field(default_factory=list)
    _shares: list[float] = field(default_factory=list)
    _windows: dict[str, _Window] = field(default_factory=dict)
    _signs: Sketch = field(default_factory=lambda: np.empty(0, np.float32))
    _buffer: Sketch = field(default_factory=lambda: np.empty(0, np.float32))

    def add(self, update: Any) -> float:
        """Keep what is needed of an update, and return its size."""
        unscaled = robust.unscaled_values(update)
        size = self.sizes[update.device] = robust.size_of(unscaled)
        self.samples[update.device] = update.num_samples
        if not self._windows.keys() >= update.subnet.keys():
            self._lay_out(update.subnet)
        held = all_ = 0
        self._buffer.fill(0.0)
        for name, piece in update.subnet.items():
            start, length, part, _ = self._windows[name]
            low, high, index = start, start + length, piece.index
            if index is None:
                part[:] = unscaled[name][low:high]
            else:
                if length < math.prod(piece.shape):
                    low, high = index.searchsorted((low, high)).tolist()
                    index = index[low:high] - start
                else:
                    low, high = 0, piece.size
                part[index] = unscaled[name][low:high]
            held += high - low
            all_ += length
        np.multiply(self._buffer, self._signs, out=self._buffer)
        sketch = self._buffer.reshape(-1, _BUCKETS).sum(axis=0)
        sketch /= np.float32(max(1, held) ** 0.5)
        self._sketches.append(sketch)
        self._shares.append(held / max(1, all_))
        return size

    def taken(self) -> SeenPart:
        """Return what was kept since the last call, and forget it."""
        part = SeenPart(self.sizes, self.samples, self._sketches, self._shares)
        self.sizes, self.samples, self._sketches, self._shares = {}, {}, [], []
        return part

    def extend(self, part: SeenPart) -> None:
        """Keep what was taken elsewhere, from updates of the same round."""
        self.sizes |= part.sizes
        self.samples |= part.samples
        self._sketches += part.sketches
        self._shares += part.shares

    def _lay_out(self, subnet: Subnet) -> None:
        """Place the windows of all tensors in one buffer with rows of one value per bucket, and draw their signs."""
        shapes = {name: window.shape for name, window in self._windows.items()}
        shapes |= {name: piece.shape for name, piece in subnet.items()}
        at, drawn = 0, list[tuple[str, int, int, Sketch]]()
        for number, (name, shape) in enumerate(shapes.items()):
            first = at + 331 * number % _BUCKETS  # spreads small tensors
            start, signs = self._window(name, shape)
            drawn.append((name, first, start, signs))
            at = -(-(first + len(signs)) // _BUCKETS) * _BUCKETS
        self._buffer, self._signs = np.zeros(at, np.float32), np.zeros(at, np.float32)
        for name, first, start, signs in drawn:
            places = slice(first, first + len(signs))
            self._signs[places] = signs
            self._windows[name] = _Window(start, len(signs), self._buffer[places], shapes[name])

    def _window(self, name: str, shape: tuple[int, ...]) -> tuple[int, Sketch]:
        """Return where a tensor's window starts, and a random sign for each of its values."""
        size = math.prod(shape)
        chance = np.random.Generator(np.random.Philox(derive(self.seed, "sketch", name, self.round)))
        start = int(chance.integers(max(1, size - _WINDOW + 1)))
        bits = np.unpackbits(np.frombuffer(chance.bytes(min(size, _WINDOW) // 8 + 1), np.uint8))
        return start, 2 * bits[: min(size, _WINDOW)].astype(np.float32) - 1

    def trusted(self, known: Collection[int]) -> list[int]:
        """Return the devices to compare with: those not marked before, if they are the majority, else all."""
        rest = [device for device in self.sizes if device not in known]
        return rest if len(rest) >= ENOUGH and 2 * len(rest) > len(self.sizes) else list(self.sizes)

    def suspicious(self, usual: float, whose: str, known: Collection[int] = ()) -> dict[int, str]:
        """Return why and how surely updates are suspicious, by device.

        Args:
            usual: the size to compare with.
            whose: whose median it is, for the text.
            known: devices that were marked before; their limits are lower, and the others are not compared with them.
        """
        devices = list(self.sizes)
        if not devices:
            return {}
        samples, shares = np.array(list(self.samples.values()), float), np.array(self._shares)
        allowance = np.minimum(1.0, np.sqrt(shares / (np.median(shares) or 1.0)))
        sizes = allowance * np.array(list(self.sizes.values()))
        easing = np.where([device in known for device in devices], KNOWN, 1.0)
        found: dict[int, list[tuple[float, str]]] = {}

        def mark(values: Floats, limit: float, text: str) -> None:
            limits = easing * limit
            for at in np.flatnonzero(values > limits):
                why = ", lowered by an earlier mark" if devices[at] in known else ""
                reason = text.format(f"{values[at]:.3g}", f"{limits[at]:.3g}{why}")
                found.setdefault(devices[at], []).append((float(values[at] / limit), reason))

        limit = STANDS_OUT
        if len(devices) >= ENOUGH:
            among = np.flatnonzero(np.isin(devices, self.trusted(known)))
            cosines = median_cosines(self._sketches, derive(self.seed, "compared", self.round), among)
            away = allowance * distances_from_others(self._sketches, among)
            usual_cosine, usual_away = float(np.median(cosines[among])), float(np.median(away[among]))
            agree = usual_cosine >= IN_AGREEMENT * float(np.median(shares))
            limit = STANDS_OUT_THERE if agree else max(STANDS_OUT, _spread_limit(sizes[among]))
            far = STANDS_OUT_THERE if agree else max(STANDS_OUT, _spread_limit(away[among]))
            mark(away / (usual_away or 1.0), far, "{} × as far from the others' median as usual (limit {})")
            lower = usual_cosine - OPPOSED_SPREADS * max(0.03, _deviation(cosines[among]))
            mark(np.where(cosines < lower, -cosines, 0.0), -OPPOSED, "cosine with the others -{} (limit -{})")
        if usual > 0:
            mark(sizes / usual, limit, "{} × as large as " + whose + " median (limit {})")
        if len(devices) >= A_FEW:
            mark(samples / (np.median(samples) or 1.0), CLAIMED, "claims {} × the median samples (limit {})")
        return {device: _verdict(reasons) for device, reasons in sorted(found.items())}


def _verdict(reasons: list[tuple[float, str]]) -> str:
    """Return how sure the marks are, by the one that exceeds its usual limit most, and why.

    A mark that an earlier one of the same device made possible, by lowering the limit, is no surer for that.
    """
    most = max(excess for excess, _ in reasons)
    sure = "almost certain" if most >= 2.0 else "likely" if most >= 1.3 else "possible"
    return f"{sure}: " + "; ".join(reason for _, reason in sorted(reasons, key=lambda one: -one[0]))


def median_cosines(sketches: Sequence[Sketch], seed: int, among: Places | None = None) -> Floats:
    """Return every update's median cosine with the others ``among`` them, or with 256 of these, drawn by the seed."""
    count, among = len(sketches), np.arange(len(sketches)) if among is None else among
    few = np.sort(among[np.random.Generator(np.random.Philox(seed)).permutation(len(among))[:_COMPARED]])
    compared, found = _unit_rows([sketches[n] for n in few]), []
    for first in range(0, count, _ROWS):
        cosines = _product(_unit_rows(sketches[first : first + _ROWS]), compared.T)
        own = np.flatnonzero((few >= first) & (few < first + len(cosines)))
        cosines[few[own] - first, own] = np.inf  # with itself: sorted to the end and not counted
        others = np.isfinite(cosines).sum(axis=1)
        cosines.sort(axis=1)
        rows = np.arange(len(cosines))
        found.append((cosines[rows, (others - 1) // 2] + cosines[rows, others // 2]) / 2)
    return np.concatenate(found)


def _unit_rows(sketches: Sequence[Sketch]) -> Sketch:
    rows = np.stack(sketches)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norms > 0, norms, 1.0))


def distances_from_others(sketches: Sequence[Sketch], among: Places | None = None) -> Floats:
    """Return every sketch's distance from the median of the others ``among`` them, at least 2, bucket by bucket.

    The median of all but one follows from the sorted values around the middle: those above the place are the others'
    own, those below it move up by one. So the sketches are the only array of their size. A sketch that
    is not among them is compared with the same median, as if it were.
    """
    compared = sketches if among is None else [sketches[n] for n in among]
    count = len(compared)
    low, high = (count - 2) // 2, (count - 1) // 2  # places of the middle among the others
    places = []
    for first in range(0, len(sketches[0]), _COLUMNS):
        columns = np.stack([row[first : first + _COLUMNS] for row in compared], axis=1)
        columns.sort(axis=1)
        places.append(columns[:, [low, low + 1, high, high + 1]])
    at_low, after_low, at_high, after_high = np.concatenate(places).T
    found = []
    for first in range(0, len(sketches), _ROWS):
        rows = np.stack(sketches[first : first + _ROWS])
        middle = (_other_end(rows, at_low, after_low) + _other_end(rows, at_high, after_high)) / 2
        found.append(np.linalg.norm(rows - middle, axis=1))
    return np.concatenate(found)


def _other_end(rows: Sketch, low: Sketch, high: Sketch) -> Sketch:
    """Return ``low`` for values above it and ``high`` for others; of the sketches compared, none is in between."""
    return low + high - np.minimum(np.maximum(rows, low), high)


def _product(left: Sketch, right: Sketch) -> Sketch:
    """Return a matrix product by torch, whose threads a run limits; those of NumPy stall beside busy workers."""
    return np.asarray(torch.from_numpy(left) @ torch.from_numpy(right))


def _deviation(values: Floats) -> float:
    """Return the standard deviation of a normal distribution with the same median absolute deviation."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _spread_limit(sizes: Floats) -> float:
    """Return how many times the median a size may be in a round whose sizes spread this much."""
    return float(np.exp(min(50.0, SPREADS * _deviation(np.log(np.maximum(sizes, 1e-30))))))
