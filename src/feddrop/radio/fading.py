"""Channel gains: Rician block fading, or a table of measured gains.

A gain is the power gain |h|² of a link. Gains stay as they are during a round and are drawn anew for the next.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feddrop.allocation.problem import FloatArray, refuse
from feddrop.errors import ConfigError
from feddrop.seeds import derive, generator


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
            refuse(f"{name} gain", gain, (gain > 0) & (gain < np.inf), "finite and positive", gain.shape)
        if self.uplink.shape != self.downlink.shape:
            raise ConfigError(
                f"uplink gains are {list(self.uplink.shape)}, downlink gains {list(self.downlink.shape)}; "
                "they must have the same shape."
            )

    def draw(self, devices: int, round: int, seed: int) -> tuple[FloatArray, FloatArray]:  # noqa: A002, ARG002
        """Uplink and downlink gains of a round, each ``[num_devices]``."""
        row = round % len(self.uplink)
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
    Rounds and devices count from 0, and every device needs a gain in every round. Round r of a run takes round r of the
    table, and begins again with round 0 after the last.
    """
    try:
        with Path(path).open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"cannot read the gains {str(path)!r}: {error}.") from None
    columns = set(rows[0]) if rows else set()
    up = next((name for name in ("uplink", "uplink_db") if name in columns), None)
    if up is None or not {"round", "device"} <= columns:
        raise ConfigError(
            f"{str(path)!r} has the columns {sorted(columns, key=str)}; "
            "it must have round, device, and uplink or uplink_db, and may have downlink or downlink_db."
        )
    down = next((name for name in ("downlink", "downlink_db") if name in columns), up)
    table: dict[tuple[int, int], tuple[float, float]] = {}
    for line, row in enumerate(rows, 2):
        try:
            place = int(row["round"]), int(row["device"])
            gains = [10 ** (float(row[c]) / 10) if c.endswith("_db") else float(row[c]) for c in (up, down)]
        except (TypeError, ValueError, OverflowError):
            raise ConfigError(f"{str(path)!r}, line {line}: {list(row.values())} are not all numbers.") from None
        if min(place) < 0:
            raise ConfigError(f"{str(path)!r}, line {line}: round {place[0]}, device {place[1]}; both count from 0.")
        if place in table:
            raise ConfigError(f"{str(path)!r}, line {line}: device {place[1]} has a gain in round {place[0]} already.")
        table[place] = gains[0], gains[1]
    rounds, devices = (1 + max(place[i] for place in table) for i in (0, 1))
    for r in range(rounds):
        for k in range(devices):
            if (r, k) not in table:
                raise ConfigError(f"{str(path)!r} has no gain of device {k} in round {r}; every device needs one.")
    both = np.array([[table[r, k] for k in range(devices)] for r in range(rounds)])
    return Measured(uplink=both[..., 0], downlink=both[..., 1])
