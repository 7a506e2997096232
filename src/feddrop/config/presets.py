"""Presets of ``[radio]``: cells by name.

A setting has the value that was given; else that of the preset; else, if ``propagation`` names a model of TR 38.901,
that of the model; else the paper's. Noise is that of a device's sub-band if gains, distances, a propagation model or a
noise figure are given, because the paper's whole-band noise belongs to its own gains.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from feddrop.config.fields import FROM_PRESET, Chosen

PAPER_NOISE_W_HZ = 1e-13
PAPER_CPU_HZ = (0.7 * 7e9, 7e9)
PAPER_TX_POWER_W = (0.3e-2, 1e-2)
PAPER_CPU_CONSTANT = (0.3e-26, 1e-26)
_THERMAL_DBM_HZ = -174.0


class Site(NamedTuple):
    """A site with the evaluation parameters of TR 38.901.

    Attributes:
        base_height_m: height of the base station.
        device_height_m: height of the devices.
        min_distance_m: smallest distance of a device from the base station.
        radius_m: radius of the disc: half the inter-site distance; indoors, half the width of the hall.
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
"""Settings of the site; 0 without a propagation model."""


def chosen_by_user(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the user gave, not a preset."""
    return {key: value for key, value in values.items() if value is not FROM_PRESET and not isinstance(value, Chosen)}


def resolve(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all settings that presets have a value for."""
    given = chosen_by_user(given)
    chosen = {key: value for key, value in given.items() if key in _PAPER}
    preset = PRESETS[given["preset"]]
    measured = given["gains_csv"] or given["gains_array"]
    model = chosen.get("propagation", "" if measured else preset.get("propagation", ""))
    if model != preset.get("propagation"):  # the share of indoor devices belongs to the preset's model
        preset = {key: value for key, value in preset.items() if key != "indoor_share"}
    found = _PAPER | preset | chosen | {"propagation": model}
    layers = _of_kinds(found) | (_of_model(found, bool(given["distances_m"])) if model else {})
    found = _PAPER | layers | preset | chosen | {"propagation": model}
    figures = found["noise_figure_db"]
    if not figures or ("noise_w_hz" in chosen and "noise_figure_db" not in chosen):
        found["noise_figure_db"] = ()
    elif "noise_w_hz" not in chosen or math.isclose(found["noise_w_hz"], noise_density(figures[0]), rel_tol=1e-9):
        found["noise_w_hz"] = noise_density(figures[0])
    if "noise" not in chosen:
        physical = measured or given["distances_m"] or model or found["noise_figure_db"]
        found["noise"] = Chosen("subband" if physical else found["noise"])
    if "downlink_power_w" in chosen and "base_power_w" not in chosen:
        found["base_power_w"] = 0.0
    return found


def contradictions(given: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield one message for each contradiction between the values that were given; :func:`resolve` ``found`` others."""
    preset = PRESETS[given["preset"]].items()
    own = {
        key: value for key, value in preset if value != _PAPER[key] and key != "noise"
    }  # gains decide the noise, too
    if own and all(key in given and given[key] != value for key, value in own.items()):
        yield (
            f"radio.preset is {given['preset']!r}, which has no effect: all its values are overridden. Remove the "
            "preset, or some of these settings."
        )
    if figures := found["noise_figure_db"]:
        if len(figures) != 2:
            yield f"radio.noise_figure_db is {list(figures)}; it must be two numbers: base station, device."
        if found["noise"] == "literal":
            yield 'radio.noise is "literal", which takes radio.noise_w_hz in W. Remove radio.noise_figure_db.'
        if found["noise_w_hz"] != noise_density(figures[0]):
            yield (
                f"radio.noise_w_hz is {found['noise_w_hz']:g} and radio.noise_figure_db is {list(figures)}, which "
                f"corresponds to {noise_density(figures[0]):.4g}; give one of them."
            )
    if given.get("base_power_w") and given.get("downlink_power_w") not in (None, _PAPER["downlink_power_w"]):
        yield (
            "radio.base_power_w and radio.downlink_power_w are both given: the former is split over the devices, the "
            "latter is per device. Give one of them."
        )


def _of_kinds(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the device kind decides: they are empty or 0."""
    if found["devices"] == "paper":
        return {}
    return {"cpu_hz": (), "tx_power_w": (), "cpu_constant": (), "flop_per_cycle": 0.0, "energy_budget_j": 0.0}


def _of_model(found: Mapping[str, Any], distances: bool) -> dict[str, Any]:
    """Return the defaults of a propagation model."""
    site = SITES[found["propagation"]]
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
