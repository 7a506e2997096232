"""Cells by name: the value of a ``[radio]`` key that is not given.

A key has the value that was given; else that of the preset; else, if ``propagation`` names a model of TR 38.901, the
value that belongs to the model; else the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from feddrop.errors import ConfigError, one_of

PAPER_NOISE_W_HZ = 1e-13
PAPER_CPU_HZ = (0.7 * 7e9, 7e9)
PAPER_TX_POWER_W = (0.3e-2, 1e-2)
PAPER_CPU_CONSTANT = (0.3e-26, 1e-26)
_THERMAL_DBM_HZ = -174.0


class Site(NamedTuple):
    """A site as the evaluations of TR 38.901 assume it.

    Attributes:
        base_height_m: height of the base station.
        device_height_m: height of the devices.
        min_distance_m: smallest distance of a device.
        radius_m: radius of the disc: half the distance between sites; indoors, half the width of the hall.
        power_w_hz: transmit power of the base station, in W/Hz.
    """

    base_height_m: float
    device_height_m: float
    min_distance_m: float
    radius_m: float
    power_w_hz: float


_INDOOR = Site(3.0, 1.0, 0.0, 25.0, 10**2.4 / 1e3 / 20e6)
SITES: dict[str, Site] = {
    "uma": Site(25.0, 1.5, 35.0, 250.0, 10**4.4 / 1e3 / 20e6),
    "umi": Site(10.0, 1.5, 10.0, 100.0, 10**3.3 / 1e3 / 20e6),
    "inh-mixed": _INDOOR,
    "inh-open": _INDOOR,
    "rma": Site(35.0, 1.5, 35.0, 866.0, 10**4.6 / 1e3 / 10e6),
}
"""Sites by the name of their propagation model."""


def noise_density(figure_db: float) -> float:
    """Return the noise in W/Hz of a receiver with this noise figure: -174 dBm/Hz plus the figure."""
    return float(10.0 ** ((_THERMAL_DBM_HZ + figure_db - 30.0) / 10.0))


class _OfPreset:
    def __repr__(self) -> str:
        return "that of the preset"


OF_PRESET: Any = _OfPreset()
"""The default of a key that presets have a value for."""

_PAPER: dict[str, Any] = {
    "policy": "error",
    "bandwidth_hz": 10e6,
    "deadline_s": 8.0,
    "energy_budget_j": math.inf,
    "downlink_power_w": 1.0,
    "base_power_w": 0.0,
    "noise": "density",
    "noise_w_hz": PAPER_NOISE_W_HZ,
    "noise_figure_db": (),
    "flop_per_cycle": 16.0,
    "kappa": 10.0,
    "propagation": "",
    "carrier_hz": 0.0,
    "radius_m": 0.0,
    "min_distance_m": 0.0,
    "base_height_m": 0.0,
    "device_height_m": 0.0,
    "antenna_gain_db": 0.0,
    "indoor_share": 0.0,
    "devices": "paper",
    "cpu_hz": PAPER_CPU_HZ,
    "tx_power_w": PAPER_TX_POWER_W,
    "cpu_constant": PAPER_CPU_CONSTANT,
}
_WORLD = {"policy": "leave-out", "noise": "subband", "noise_figure_db": (5.0, 7.0), "bandwidth_hz": 10e6}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "urban-macro": _WORLD | {"propagation": "uma", "devices": "phone", "indoor_share": 0.8, "deadline_s": 0.5},
    "urban-micro": _WORLD | {"propagation": "umi", "devices": "phone", "indoor_share": 0.8, "deadline_s": 0.3},
    "indoor": _WORLD | {"propagation": "inh-mixed", "devices": "board", "deadline_s": 0.15},
}

SITE = ("carrier_hz", "radius_m", "min_distance_m", "base_height_m", "device_height_m", "antenna_gain_db")
"""Keys that say where devices are; 0 where there is no model of propagation."""


def resolve(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all keys that presets have a value for.

    Args:
        values: by key; ``OF_PRESET`` where nothing was given.
    """
    preset = PRESETS[one_of("radio.preset", values["preset"], PRESETS)]
    given = {key: values[key] for key in _PAPER if values[key] is not OF_PRESET}
    own = {key: value for key, value in preset.items() if value != _PAPER[key]}
    if own and not any(key not in given or given[key] == value for key, value in own.items()):
        raise ConfigError(
            f"radio.preset is {values['preset']!r}, which has no effect: every key of it is given otherwise. Remove "
            "the preset, or those keys."
        )
    measured = values["gains_csv"] or values["gains_array"]
    model = given.get("propagation", "" if measured else preset.get("propagation", ""))
    if model != preset.get("propagation"):  # buildings belong to the preset's own model
        preset = {key: value for key, value in preset.items() if key != "indoor_share"}
    found = _PAPER | preset | given | {"propagation": model}
    layers = _of_kinds(found) | (_of_model(found, bool(values["distances_m"])) if model else {})
    found = _PAPER | layers | preset | given | {"propagation": model}
    return found | _noise(found, given) | _power(found, given)


def _of_kinds(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that the kind of a device decides: they are empty then."""
    if found["devices"] == "paper":
        return {}
    ranges: dict[str, Any] = dict.fromkeys(("cpu_hz", "tx_power_w", "cpu_constant"), ())
    return ranges | {"flop_per_cycle": 0.0, "energy_budget_j": 0.0}


def _of_model(found: Mapping[str, Any], distances: bool) -> dict[str, Any]:
    """Return what goes with a model of propagation."""
    site = SITES[one_of("radio.propagation", found["propagation"], SITES)]
    return {
        "carrier_hz": 3.5e9,
        "radius_m": 0.0 if distances else site.radius_m,
        "min_distance_m": 0.0 if distances else site.min_distance_m,
        "base_height_m": site.base_height_m,
        "device_height_m": site.device_height_m,
        "antenna_gain_db": 8.0,
        "kappa": "drawn",
        "noise_figure_db": (5.0, 7.0),
        "base_power_w": site.power_w_hz * found["bandwidth_hz"],
    }


def _noise(found: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return density and figures: whichever was given decides, and they must not contradict each other."""
    figures = found["noise_figure_db"]
    if not figures or ("noise_w_hz" in given and "noise_figure_db" not in given):
        return {"noise_figure_db": ()}
    if len(figures) != 2 or not all(0 <= figure <= 100 for figure in figures):
        raise ConfigError(
            f"radio.noise_figure_db is {list(figures)}; it must be two numbers of dB from 0 to 100: of the base "
            "station, of a device."
        )
    if found["noise"] == "literal":
        raise ConfigError('radio.noise is "literal", which takes noise_w_hz in W; leave out radio.noise_figure_db.')
    density = noise_density(figures[0])
    if "noise_w_hz" in given and not math.isclose(float(given["noise_w_hz"]), density, rel_tol=1e-9):
        raise ConfigError(
            f"radio.noise_w_hz is {given['noise_w_hz']:g} and radio.noise_figure_db {list(figures)}, which makes "
            f"{density:.4g}; give one of them."
        )
    return {"noise_w_hz": density}


def _power(found: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the base station's power: 0 where the power to each device was given instead."""
    if "downlink_power_w" not in given or found["base_power_w"] == 0.0:
        return {}
    if "base_power_w" not in given:
        return {"base_power_w": 0.0}
    if given["downlink_power_w"] != _PAPER["downlink_power_w"]:
        raise ConfigError(
            "radio.base_power_w and radio.downlink_power_w are both given; the first is split over the devices, the "
            "second is for each. Give one of them."
        )
    return {}
