"""The cell page: from the tables of a cell file to the allocation of one round by every scheme.

A *state* holds the tables that ``feddrop allocate`` reads (``radio``, ``cell`` and ``model``), the chosen ``scheme``,
the ``rounds`` to train, and ``shape``: ``spread_db`` spreads the path losses of the devices, ``skew`` their samples.
``replaced`` names the scheme of a loaded file that the page does not show. A state is all that the page holds: its link
and its TOML file restore the same picture.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np

from feddrop.allocation import OBJECTIVES, POLICIES, SCHEMES, Allocation, Shortfall, allocate
from feddrop.allocation.problem import FloatArray
from feddrop.config.presets import PRESETS, SITES
from feddrop.config.radio import NOISES, PACED, WITHOUT_DROPOUT
from feddrop.errors import ConfigError, FeddropError, FeddropWarning, clean
from feddrop.explore.sliders import NAMES, as_tables
from feddrop.radio.build import place_of
from feddrop.radio.cost import cost
from feddrop.radio.files import CellFile, read_cell
from feddrop.radio.propagation import MODELS
from feddrop.schemes import channel_of, scheme_of
from feddrop.seeds import derive

SHOWN = (*(name for name in SCHEMES if name not in ("primal-dual", "fixed")), "max-min", "proportional-fair")
"""The schemes side by side. ``primal-dual`` approaches ``exact``, and ``fixed`` and others need settings."""

MOST_DEVICES = 2_000
NETWORKS = {
    "LeNet, CIFAR-100": {"parameters": 69_656, "forward_flops": 1_318_560},
    "AlexNet, CIFAR-100": {"parameters": 36_223_908, "forward_flops": 401_768_448},
}
START: dict[str, Any] = {
    "cell": {"devices": 10, "samples": 5000, "seed": 0, "round": 1},
    "model": NETWORKS["LeNet, CIFAR-100"],
    "radio": {"preset": "paper", "energy_budget_j": 300.0},
    "shape": {"spread_db": 10.0},
    "scheme": "exact",
    "rounds": 20,
}
"""The cell that the page opens with."""

# Without propagation there are no distances. The picture shows the distance at which a gain that falls with its cube,
# and is -30 dB at 100 m, would be that of the device.
NEAR_M, NEAR_GAIN, EXPONENT, DISC_M = 100.0, 1e-3, 3.0, 220.0
_FILES = ("gains_csv", "gains_array", "devices_csv")
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_ONE = Lock()


def choices() -> dict[str, Any]:
    """Return the names that the page offers."""
    words = {"presets": PRESETS, "noises": NOISES, "objectives": OBJECTIVES, "policies": POLICIES, "schemes": SHOWN}
    return {key: list(names) for key, names in words.items()} | {
        "networks": NETWORKS,
        "start": START,
        "sliders": as_tables(),
        "named": NAMES,
    }


def tables_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a state, with one value per device where its ``shape`` or its lists ask for that."""
    known = ("cell", "model", "radio", "shape")
    if not isinstance(state, Mapping) or not all(isinstance(state.get(key, {}), Mapping) for key in known):
        raise ConfigError("a state must have the tables cell, model, radio and shape.")
    found: dict[str, Any] = {key: deepcopy(dict(state.get(key, {}))) for key in ("cell", "model", "radio")}
    cell, radio, shape = found["cell"], found["radio"], state.get("shape", {})
    for key in _FILES:
        if radio.get(key):
            raise ConfigError(f"radio.{key} names a file, which the explorer does not read. Use `feddrop allocate`.")
    for key in ("scheme", "objective", "channel", "outcome"):
        if ":" in str(radio.get(key, "")):
            raise ConfigError(
                f"radio.{key} names a module, which the explorer does not import. Use `feddrop allocate`."
            )
    if radio.get("energy_budget_j") == "inf":  # JSON has no infinity
        radio["energy_budget_j"] = math.inf
    devices = cell.get("devices", 10)
    if not isinstance(devices, int) or not 1 <= devices <= MOST_DEVICES:
        raise ConfigError(f"cell.devices is {devices!r}; the explorer shows 1 to {MOST_DEVICES} devices.")
    for table, key in ((cell, "samples"), (radio, "path_loss"), (radio, "distances_m")):
        if isinstance(given := table.get(key), list) and given:
            table[key] = [given[k % len(given)] for k in range(devices)]
    part = (np.arange(devices) * _GOLDEN) % 1.0 - 0.5  # of a device, whatever the number of devices
    if (spread := _number(shape, "spread_db")) and not _placed(radio):
        base = radio.get("path_loss", NEAR_GAIN)
        base = NEAR_GAIN if isinstance(base, list) else base
        radio["path_loss"] = [float(f"{loss:.4g}") for loss in base * 10.0 ** (spread * part / 10.0)]
    if (skew := _number(shape, "skew")) > 1.0:
        mean = float(np.mean(cell.get("samples", 5000.0)))
        ratio = skew**part
        cell["samples"] = [round(value) for value in mean * ratio / ratio.mean()]
    return found


def _number(table: Mapping[str, Any], key: str) -> float:
    value = table.get(key, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e3:
        raise ConfigError(f"shape.{key} is {value!r}; it must be a number from 0 to 1000.")
    return float(value)


def _placed(radio: Mapping[str, Any]) -> bool:
    """Return whether path loss follows from distances."""
    preset = PRESETS.get(str(radio.get("preset", "paper")), {})
    return bool(radio.get("propagation", preset.get("propagation")) or radio.get("distances_m"))


def solve(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page shows: places, devices, and the round of every scheme."""
    with quiet() as caught:
        tables = tables_of(state)
        found = read_cell(tables, channel_of=channel_of)
        cell, channels = found.cell, found.channels
        return {
            "tables": tables | {"radio": _effective(found) | tables["radio"]},
            "notes": notes_on(state)
            + [clean(one.message) for one in caught if issubclass(one.category, FeddropWarning)],
            "places": _places(found),
            "devices": {
                "samples": cell.samples,
                "budget_j": cell.budget_j,
                "cpu_hz": channels.cpu_hz,
                "tx_power_w": channels.tx_power_w,
                "uplink_db": 10.0 * np.log10(channels.uplink),
            },
            "schemes": [
                _seen(round_of(name, found), name == state.get("scheme", "exact")) for name in schemes_of(found)
            ],
        }


def notes_on(state: Mapping[str, Any]) -> list[str]:
    """Return what saved files and copied calls say differently from the page, one sentence each."""
    notes = []
    if name := state.get("replaced"):
        notes += [
            f"The file's scheme, {clean(name)}, is not shown on this page. The optimum (exact) is shown in its place, "
            "and saved files and copied calls use it."
        ]
    if state.get("scheme", "exact") != "exact" and state.get("radio", {}).get("objective", "inverse") != "inverse":
        notes += ["Only the optimum uses this objective: saved files and copied calls of other schemes print inverse."]
    return notes


@contextmanager
def quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Collect warnings instead of printing them. One thread at a time: filters are global."""
    with _ONE, warnings.catch_warnings(record=True) as caught, np.errstate(all="ignore"):
        warnings.simplefilter("always", FeddropWarning)
        yield caught


def schemes_of(found: CellFile) -> tuple[str, ...]:
    """Return the schemes that can choose what the cell leaves open."""
    if "share" not in found.radio.control:
        return ("equal",)
    return tuple(name for name in SHOWN if name in PACED) if found.radio.chooses else SHOWN


def _effective(found: CellFile) -> dict[str, Any]:
    keys = (
        *("bandwidth_hz", "deadline_s", "energy_budget_j", "max_rate", "noise", "objective", "policy", "control"),
        *("radius_m", "propagation", "bits_per_parameter", "path_loss", "distances_m"),
    )
    values = {key: getattr(found.radio, key) for key in keys} | {"noise": found.cell.noise}
    return values | {"energy_budget_j": "inf" if math.isinf(values["energy_budget_j"]) else values["energy_budget_j"]}


def _places(found: CellFile) -> dict[str, Any]:
    """Return distances and the radius of the disc in m, and which setting a dragged device changes."""
    radio, devices = found.radio, found.cell.devices
    if place := place_of(radio):
        dropped = place.drop(devices, derive(found.table.seed, "cell"), radio.distances_m or None)
        least = max(MODELS[place.model].distance_m[0], 1.0)
        reach = max(place.radius_m or SITES[place.model].radius_m, float(dropped.distance_m.max()))
        place_words = {"sight": dropped.sight, "indoor": dropped.indoor}
        return {"moves": "distances_m", "least_m": least, "radius_m": reach, "m": dropped.distance_m} | place_words
    if radio.distances_m:
        reach = 1.25 * max(radio.distances_m)
        return {"moves": "distances_m", "least_m": reach / 100, "radius_m": reach, "m": radio.distances_m}
    loss = np.broadcast_to(np.asarray(radio.path_loss), (devices,))
    metres = NEAR_M * (loss / NEAR_GAIN) ** (-1.0 / EXPONENT)
    reach = max(DISC_M, float(metres.max()))
    return {"moves": "path_loss", "least_m": 10.0, "radius_m": reach, "m": metres, "path_loss": loss}


def round_of(name: str, found: CellFile) -> dict[str, Any]:
    """Return the allocation of a scheme, or what the cell lacks."""
    radio = found.radio
    try:
        got = allocate(
            found.problem, scheme_of(name, found, seed=found.seed, objective=radio.objective), policy=radio.policy
        )
    except FeddropError as error:  # one scheme that fails leaves the others to be seen
        return {"name": name, "lacks": _lacks(error, found, 0.0 if name in WITHOUT_DROPOUT else radio.max_rate)}
    channels, active = found.channels, got.active
    if got.cpu_hz is not None and got.tx_power_w is not None:
        clocks, powers = np.where(active, got.cpu_hz, channels.cpu_hz), np.where(active, got.tx_power_w, 1.0)
        channels = replace(channels, cpu_hz=clocks, tx_power_w=powers)
    value, kept = worth(got, radio.objective), np.asarray(1.0 - radio.max_rate)
    most = float(OBJECTIVES[radio.objective].value(kept))
    took = cost(found.cell, channels, np.where(active, got.rate, 0.0), got.share, **found.costs)
    return {
        "name": name,
        "status": got.status.value,
        "objective": value,
        "charged": value + most * int(got.left_out.sum()),  # else, leaving out more devices would look better
        "deadline_s": float(np.max(got.problem.deadline_s)),
        "rate": np.where(active, got.rate, np.nan),
        "share": got.share,
        "push_s": took.push_s,
        "compute_s": took.compute_s,
        "pull_s": took.pull_s,
        "energy_j": took.energy_j,
        "binding": [str(word) for word in got.binding],
        "left_out": int(got.left_out.sum()),
    } | ({} if got.cpu_hz is None else {"cpu_hz": got.cpu_hz, "tx_power_w": got.tx_power_w})


def _seen(scheme: dict[str, Any], chosen: bool) -> dict[str, Any]:
    """Return a scheme with the means that the table shows, and one value per device only of the chosen one."""
    if "lacks" in scheme:
        return scheme
    latency = scheme["push_s"] + scheme["compute_s"] + scheme["pull_s"]
    told = {"mean_rate": float(np.nanmean(scheme["rate"])), "latest_s": float(latency.max())}
    told |= {"total_j": float(scheme["energy_j"].sum()), "band": float(scheme["share"].sum())}
    return told | {key: value for key, value in scheme.items() if chosen or not isinstance(value, np.ndarray | list)}


def worth(got: Allocation, objective: str) -> float:
    """Return an objective at these rates, over the active devices; their weights are scaled to add up to 1."""
    weight: FloatArray = np.where(got.active, got.problem.weight, 0.0)
    measure = OBJECTIVES[objective]
    kept = np.where(got.active, 1.0 - got.rate, 1.0)
    return float(np.sum(measure.weights(weight / weight.sum()) * measure.value(kept)))


def _lacks(error: FeddropError, found: CellFile, rate: float) -> dict[str, Any]:
    """Return why a cell is infeasible, and the share of the band that each device needs at this rate."""
    short = error.args[0]
    if not isinstance(short, Shortfall):
        return {"text": str(error), "devices": []}
    keys = ("devices", "constraints", "least_share", "load", "deadline_s", "budget_j", "policies")
    enough = {key: value for key in keys if (value := getattr(short, key)) != math.inf}
    needs = found.problem.least_share(np.asarray(1.0 / (1.0 - rate)))
    return {"text": short.text(), "needs": needs} | enough | {"least_share": np.asarray(short.least_share)}
