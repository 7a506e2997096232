"""Who takes part in a round: everyone, some drawn from the seed, or those that are there."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from feddrop.config import Participation
from feddrop.errors import ConfigError
from feddrop.radio.tables import brief, read_table
from feddrop.seeds import derive, permutation

_LAST = 2**62
"""No run has as many rounds; a table may have more to say that a device stays."""


class Roster:
    """Chooses the devices of a round; a pure function of the seed and the round."""

    def __init__(self, config: Participation, devices: int, seed: int) -> None:
        if config.count > devices:
            raise ConfigError(f"participation.count is {config.count}, but there are only {devices} devices.")
        self._devices, self._seed = devices, seed
        self._count = config.count or (max(1, math.floor(config.share * devices + 0.5)) if config.share else devices)
        self._spans = _read_spans(Path(config.availability), devices) if config.availability else None

    @property
    def most(self) -> int:
        """Devices that take part in a round at most."""
        return min(self._count, self._devices)

    @property
    def everyone(self) -> bool:
        """Whether all devices take part in every round."""
        return self._spans is None and self._count >= self._devices

    def check(self, rounds: int) -> None:
        """Refuse a table by which nobody is there in one of so many rounds: before a run, not in the middle of it."""
        if self._spans is None:
            return
        first_empty = 1
        for _, first, last in sorted(self._spans.tolist(), key=lambda span: span[1]):
            if first <= first_empty:
                first_empty = max(first_empty, last + 1)
        if first_empty <= rounds:
            raise _nobody(first_empty)

    def chosen(self, round_: int) -> npt.NDArray[np.int64]:
        """Return the devices that take part in a round, sorted."""
        there = np.arange(self._devices)
        if self._spans is not None:
            device, first, last = self._spans.T
            there = np.unique(device[(first <= round_) & (round_ <= last)])
            if not len(there):
                raise _nobody(round_)
        if self._count >= len(there):
            return there
        order = permutation(derive(self._seed, "participation", round_), len(there))
        return np.sort(there[order[: self._count]])


def _nobody(round_: int) -> ConfigError:
    return ConfigError(
        f"no device is there in round {round_}, by participation.availability. Run fewer rounds, or add rows for it "
        "and start a new run."
    )


def _read_spans(path: Path, devices: int) -> npt.NDArray[np.int64]:
    """Read rows of device, first, last."""
    columns, rows = read_table(path, "availability")
    if missing := {"device", "first", "last"} - set(columns):
        raise ConfigError(
            f"participation.availability {str(path)!r} has no column {min(missing)}; it must have the columns device, "
            "first, last."
        )
    spans = [(row.whole("device", 0), *(min(row.whole(name, 1), _LAST) for name in ("first", "last"))) for row in rows]
    for row, (device, first, last) in zip(rows, spans, strict=True):
        if device >= devices or first > last:
            raise ConfigError(
                f"{row.where}: device {brief(device)}, rounds {first} to {last}; devices are 0 to {devices - 1}, and "
                "the last round is not before the first."
            )
    return np.array(spans, dtype=np.int64).reshape(-1, 3)
