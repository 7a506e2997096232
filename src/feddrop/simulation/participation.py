"""Which devices take part in a round: all of them, some drawn from the seed, or those that are available."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from feddrop.config import Participation
from feddrop.errors import ConfigError
from feddrop.radio.tables import brief, read_table
from feddrop.seeds import derive, permutation

_LAST = 2**62
"""Later than the last round of any run; tables may hold larger numbers for "until the end"."""


class Roster:
    """Chooses the devices of a round, as a function of the seed and the round alone.

    Attributes:
        most: the largest number of devices in a round.
        everyone: whether all devices take part in every round.
        start: number of the start, from 1, within :meth:`holding`; otherwise 0.
    """

    def __init__(self, config: Participation, devices: int, seed: int) -> None:
        self._devices, self._seed = devices, seed
        self._count = config.count or (max(1, math.floor(config.share * devices + 0.5)) if config.share else devices)
        self._spans = _read_spans(Path(config.availability), devices) if config.availability else None
        self.most = min(self._count, devices)
        self.everyone = self._spans is None and self._count >= devices
        self._held: npt.NDArray[np.int64] | None = None
        self.start = 0

    def first_empty_round(self, rounds: int) -> int | None:
        """Return the first of ``rounds`` rounds in which no device is available."""
        if self._spans is None:
            return None
        empty = 1
        for _, first, last in sorted(self._spans.tolist(), key=lambda span: span[1]):
            if first <= empty:
                empty = max(empty, last + 1)
        return empty if empty <= rounds else None

    @contextmanager
    def holding(self, devices: Iterable[int], start: int = 1) -> Iterator[None]:
        """Within this context, these devices take part in every round: a clock has chosen them.

        Args:
            devices: their numbers.
            start: number of the start in this round, from 1; a clock can start devices several times per round.
        """
        self._held, self.start = np.array(sorted(devices), dtype=np.int64), start
        try:
            yield
        finally:
            self._held, self.start = None, 0

    def chosen(self, round_: int, among: Sequence[int] | None = None) -> npt.NDArray[np.int64]:
        """Return the devices that take part in a round, sorted; only those ``among`` some, if these are given."""
        if self._held is not None:
            return self._held
        available = np.arange(self._devices)
        if self._spans is not None:
            device, first, last = self._spans.T
            available = np.unique(device[(first <= round_) & (round_ <= last)])
        if among is not None:
            available = np.intersect1d(available, np.asarray(among, dtype=np.int64))
        if self._count >= len(available):
            return available
        order = permutation(derive(self._seed, "participation", round_), len(available))
        return np.sort(available[order[: self._count]])


def _read_spans(path: Path, devices: int) -> npt.NDArray[np.int64]:
    """Read rows of device, first, last."""
    columns, rows = read_table(path, "availability")
    if missing := {"device", "first", "last"} - set(columns):
        raise ConfigError(f"{str(path)!r} has no column {min(missing)}; it must have the columns device, first, last.")
    spans = [(row.whole("device", 0), *(min(row.whole(name, 1), _LAST) for name in ("first", "last"))) for row in rows]
    for row, (device, first, last) in zip(rows, spans, strict=True):
        if device >= devices or first > last:
            raise ConfigError(
                f"{row.where}: device {brief(device)}, rounds {first} to {last}; devices are 0 to {devices - 1}, and "
                "the last round must not precede the first."
            )
    return np.array(spans, dtype=np.int64).reshape(-1, 3)
