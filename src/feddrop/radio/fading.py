"""Channel gains: Rician block fading, or a table of measured gains.

A gain is the power gain |h|² of a link. Gains stay as they are during a round and are drawn anew for the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feddrop.allocation.problem import FloatArray, refuse
from feddrop.errors import ConfigError
from feddrop.radio.tables import Row, read_table
from feddrop.seeds import derive, generator

_MOST = 1e30
"""No gain is anywhere near; a table that has more is in other units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rician:
    """Rician fading: a line of sight of constant power, and scattered paths.

    h = sqrt(path_loss) (sqrt(κ/(κ+1)) + sqrt(1/(κ+1)) n) with n complex normal of variance 1, so that the mean of
    |h|² is the path loss.

    Attributes:
        kappa: κ, power of the line of sight over that of the scattered paths; 0 is Rayleigh fading.
        path_loss: mean power gain, a scalar or ``[num_devices]``.
    """

    kappa: float = 10.0
    path_loss: FloatArray | float = 1e-3

    def __post_init__(self) -> None:
        loss = np.asarray(self.path_loss, dtype=np.float64)
        object.__setattr__(self, "path_loss", loss)
        refuse("path_loss", loss, (loss > 0) & (loss < np.inf), "finite and positive", (loss.size,))
        if not 0 <= self.kappa < np.inf:
            raise ConfigError(f"kappa is {self.kappa:g}; it must be 0 or more, and finite.")

    def draw(self, devices: int, round: int, seed: int) -> tuple[FloatArray, FloatArray]:  # noqa: A002
        """Uplink and downlink gains of a round, each ``[num_devices]``; further devices change nobody's."""
        normal = generator(derive(seed, "fading", round)).standard_normal((devices, 2, 2)) / np.sqrt(2)
        sight, scattered = np.sqrt(self.kappa / (self.kappa + 1)), np.sqrt(1 / (self.kappa + 1))
        gain = (sight + scattered * normal[..., 0]) ** 2 + (scattered * normal[..., 1]) ** 2
        return self.path_loss * gain[:, 0], self.path_loss * gain[:, 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measured gains, used in turn: after the last round of the table comes its first.

    Attributes:
        uplink: power gains, ``[num_rounds, num_devices]``.
        downlink: power gains, ``[num_rounds, num_devices]``.
    """

    uplink: FloatArray
    downlink: FloatArray

    def __post_init__(self) -> None:
        for name in ("uplink", "downlink"):
            gain = np.asarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, gain)
            if gain.ndim != 2 or gain.size == 0:
                raise ConfigError(f"{name} gains have shape {list(gain.shape)}; they must be [rounds, devices].")
            good = (gain > 0) & (gain < _MOST)
            refuse(f"{name} gain", gain, good, f"positive and below {_MOST:g}", gain.shape, first_round=1)
        if self.uplink.shape != self.downlink.shape:
            raise ConfigError(
                f"uplink gains are {list(self.uplink.shape)}, downlink gains {list(self.downlink.shape)}; "
                "they must have the same shape."
            )

    def draw(self, devices: int, round: int, seed: int) -> tuple[FloatArray, FloatArray]:  # noqa: A002, ARG002
        """Uplink and downlink gains of a round, each ``[num_devices]``; rounds count from 1."""
        if round < 1:
            raise ConfigError(f"the round is {round}; rounds count from 1, and the first takes the first gains.")
        row = (round - 1) % len(self.uplink)
        return self.uplink[row, :devices], self.downlink[row, :devices]


Fading = Rician | Measured


def path_loss(
    distances_m: FloatArray, *, exponent: float, reference_m: float = 1.0, at_reference: float = 1e-3
) -> FloatArray:
    """Mean power gain by distance: ``at_reference`` x (distance / ``reference_m``)^-``exponent``, ``[num_devices]``."""
    distances = np.asarray(distances_m, dtype=np.float64)
    refuse("distances_m", distances, (distances > 0) & (distances < np.inf), "finite and positive", distances.shape)
    return at_reference * (distances / reference_m) ** -exponent


def read_gains(path: str | Path) -> Measured:
    """Read measured gains from a CSV file.

    Its columns are ``round``, ``device``, ``uplink`` and ``downlink``, the last two as power gains |h|²; or
    ``uplink_db`` and ``downlink_db`` in decibels. Without a downlink column, it is taken to be as good as the uplink.
    Rows may come in any order; every device needs a gain in every round. Rounds count from 1, as those of a run do, and
    devices from 0. Round r of a run takes round r of the table, and begins again with round 1 after the last.
    """
    columns, rows = read_table(path, "gains")
    up = next((name for name in ("uplink", "uplink_db") if name in columns), None)
    if up is None or not {"round", "device"} <= set(columns) or not rows:
        raise ConfigError(
            f"{str(path)!r} has the columns {columns} and {len(rows)} rows; "
            "it must have round, device, and uplink or uplink_db, may have downlink or downlink_db, and a row a gain."
        )
    down = next((name for name in ("downlink", "downlink_db") if name in columns), up)
    table: dict[tuple[int, int], tuple[float, float]] = {}
    for row in rows:
        place = row.whole("round", 1), row.whole("device", 0)
        if place in table:
            raise ConfigError(f"{row.where}: device {place[1]} has a gain in round {place[0]} already.")
        table[place] = _gain(row, up), _gain(row, down)
    devices = 1 + max(device for _, device in table)
    rounds = max(number for number, _ in table)
    for place in ((r, k) for r in range(1, rounds + 1) for k in range(devices)):
        if place not in table:  # found within as many looks as there are rows, whatever numbers they hold
            raise ConfigError(
                f"{str(path)!r} has no gain of device {place[1]} in round {place[0]}; every device needs one in every "
                "round. Rounds count from 1, devices from 0."
            )
    both = np.array([[table[r, k] for k in range(devices)] for r in range(1, rounds + 1)])
    return Measured(uplink=both[..., 0], downlink=both[..., 1])


def _gain(row: Row, column: str) -> float:
    value = row.number(column)
    if not column.endswith("_db"):
        return value
    return float(10.0 ** (min(value, 3000.0) / 10.0))  # no float is larger; the rest is refused later
