"""Devices: drawn from the paper's ranges or from kinds with real-world values, and what changes from round to round.

A kind's Ω is its measured power above idle over f³ at the highest clock, with all listed cores busy. Its FLOPs per
cycle are float32 and of all these cores, as measured rather than advertised (the Jetsons' are peaks).
``docs/cells.md`` names the sources. Real power grows more slowly than f³, so Ω f³ is too low below the highest clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from feddrop.allocation.problem import FloatArray
from feddrop.config.presets import PAPER_CPU_CONSTANT, PAPER_CPU_HZ, PAPER_TX_POWER_W
from feddrop.errors import ConfigError, one_of
from feddrop.radio.tables import by_device, read_table
from feddrop.seeds import derive, generator

COLUMNS = ("cpu_hz", "tx_power_w", "cpu_constant", "budget_j", "circuit_j", "distance_m")
"""Columns of a table of devices, besides ``device``."""

Range = tuple[float, float]
Ranges = tuple[FloatArray | float, FloatArray | float]
"""Lowest and highest value, for all devices or ``[num_devices]`` each."""


class DeviceKind(NamedTuple):
    """A typical device."""

    cpu_hz: Range  # lowest and highest clock
    flop_per_cycle: float  # float32 operations per cycle of all listed cores
    cpu_constant: float  # Ω: computing takes Ω f³ watts
    tx_power_w: float  # highest transmit power
    budget_j: float  # joules per round, 1/10,000 of the battery; inf on mains
    what: str  # the device and its cores


_CLASS_3 = 0.2  # watts: 23 dBm, power class 3 of TS 38.101-1
KINDS: dict[str, DeviceKind] = {
    "phone-low": DeviceKind((0.3e9, 2.02e9), 14.0, 2.5e-28, _CLASS_3, 6.0, "Snapdragon 662 (SM6115), 4 x A73"),
    "phone-mid": DeviceKind((0.65e9, 2.32e9), 14.0, 9.4e-29, _CLASS_3, 6.0, "Snapdragon 720G (SM7125), 2 x A76"),
    "phone-high": DeviceKind((0.61e9, 2.80e9), 28.0, 2.1e-28, _CLASS_3, 6.0, "Snapdragon 8 Gen 2 (SM8550), 4 x A71x"),
    "pi-4": DeviceKind((0.6e9, 1.8e9), 13.0, 9.6e-28, _CLASS_3, np.inf, "Raspberry Pi 4, 4 x A72"),
    "pi-5": DeviceKind((1.5e9, 2.4e9), 29.0, 6.9e-28, _CLASS_3, np.inf, "Raspberry Pi 5, 4 x A76"),
    "jetson-nano": DeviceKind((0.92e9, 0.92e9), 256.0, 1.3e-26, _CLASS_3, np.inf, "Jetson Nano, its GPU"),
    "jetson-orin-nano": DeviceKind((0.625e9, 0.625e9), 2048.0, 6.1e-26, _CLASS_3, np.inf, "Jetson Orin Nano, its GPU"),
    "esp32": DeviceKind((0.08e9, 0.24e9), 0.5, 1.6e-26, 0.1, 2.7, "ESP32, Wi-Fi at 20 dBm"),
    "nordic-m33": DeviceKind((0.064e9, 0.064e9), 0.5, 3.1e-26, _CLASS_3, 2.7, "Nordic, Cortex-M33"),
}
GROUPS: dict[str, tuple[str, ...]] = {
    "phone": ("phone-low", "phone-mid", "phone-high"),
    "board": ("pi-4", "pi-5"),
    "microcontroller": ("esp32", "nordic-m33"),
}
"""Names for several kinds; each device is one of them, with equal probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamics:
    """What changes from round to round besides the fading.

    Attributes:
        min_devices: smallest number of present devices; the number and the devices are drawn in every round.
        cpu_hz: range from which each device's CPU frequency is drawn in every round.
        tx_power_w: range from which each device's transmit power is drawn in every round.
    """

    min_devices: int = 5
    cpu_hz: Ranges = PAPER_CPU_HZ
    tx_power_w: Ranges = PAPER_TX_POWER_W

    def __post_init__(self) -> None:
        for name in ("cpu_hz", "tx_power_w"):
            low, high = getattr(self, name)
            if not np.all((np.asarray(low) > 0) & (low <= np.asarray(high)) & (np.asarray(high) < np.inf)):
                raise ConfigError(f"{name} is [{low}, {high}]; it must be [lowest, highest], both positive.")


class Drawn(NamedTuple):
    """Properties of drawn devices, ``[num_devices]`` each."""

    cpu_hz: FloatArray  # f
    tx_power_w: FloatArray  # P
    cpu_constant: FloatArray  # Ω
    flop_per_cycle: FloatArray | None  # floating-point operations per cycle; None without kinds
    budget_j: FloatArray | None  # joules per round; None without kinds
    cpu_range: Ranges  # lowest and highest clock
    power_range: Ranges  # lowest and highest transmit power
    least_cpu_hz: FloatArray | float = 0.0  # the lowest clock that may be chosen; 0 without kinds


def draw_devices(
    devices: int,
    *,
    seed: int,
    cpu_hz: Range = PAPER_CPU_HZ,
    tx_power_w: Range = PAPER_TX_POWER_W,
    cpu_constant: Range = PAPER_CPU_CONSTANT,
) -> Drawn:
    """Draw CPU frequency, transmit power and CPU constant uniformly from their ranges."""
    part = generator(derive(seed, "cell")).random((devices, 3))
    return Drawn(
        cpu_hz=between(cpu_hz, part[:, 0]),
        tx_power_w=between(tx_power_w, part[:, 1]),
        cpu_constant=between(cpu_constant, part[:, 2]),
        flop_per_cycle=None,
        budget_j=None,
        cpu_range=cpu_hz,
        power_range=tx_power_w,
    )


def draw_kinds(names: Sequence[str], devices: int, *, seed: int) -> Drawn:
    """Draw the kind of each device, with equal probabilities, and return the properties of the kinds.

    Devices compute at their highest clock, where Ω was measured; in a dynamic cell, anywhere in their range.
    """
    kinds = [KINDS[kind] for name in names for kind in GROUPS.get(name, (name,))]
    which = (generator(derive(seed, "kinds")).random(devices) * len(kinds)).astype(np.int64)
    low, high = (np.array([kind.cpu_hz[end] for kind in kinds])[which] for end in (0, 1))
    power, constant, flop, budget = (
        np.array([getattr(kind, name) for kind in kinds])[which]
        for name in ("tx_power_w", "cpu_constant", "flop_per_cycle", "budget_j")
    )
    return Drawn(high, power, constant, flop, budget, (low, high), (power, power), low)


def read_devices(path: Path, devices: int) -> dict[str, FloatArray]:
    """Read a table of devices, one row per device, ordered by the column ``device`` if there is one."""
    columns, rows = read_table(path, "devices")
    for name in columns:
        one_of(f"a column of {str(path)!r}", name, ("device", *COLUMNS))
    if "device" in columns:
        rows = by_device(rows, devices, repr(str(path)))
    elif len(rows) != devices:
        raise ConfigError(f"{str(path)!r} has {len(rows)} rows for {devices} devices; give one per device.")
    return {name: np.array([row.number(name) for row in rows]) for name in columns if name != "device"}


def between(ends: Ranges, part: FloatArray) -> FloatArray:
    """Interpolate: return the values at these parts, in [0, 1), of a range."""
    return ends[0] + (ends[1] - ends[0]) * part
