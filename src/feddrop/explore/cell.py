"""The cell page: from the tables of a cell file to what every scheme makes of one round.

A *state* is what ``feddrop allocate`` reads, the tables ``radio``, ``cell`` and ``model``, plus ``scheme``, the scheme
looked at, ``rounds`` to train, and ``shape``: ``spread_db`` spreads the path losses of the devices, ``skew`` their
samples. A state is all that the page holds: its link and its TOML file restore the same picture.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np
import tomli_w

from feddrop.allocation import OBJECTIVES, POLICIES, SCHEMES, Allocation, Shortfall, allocate
from feddrop.allocation.problem import FloatArray
from feddrop.config.parsing import parse_toml
from feddrop.config.presets import PRESETS, SITES
from feddrop.config.radio import NOISES, PACED, WITHOUT_DROPOUT
from feddrop.errors import ConfigError, FeddropWarning, InfeasibleError, RunError, clean, one_of
from feddrop.explore.sliders import NAMES, as_tables
from feddrop.radio.bounds import smallest_bandwidth
from feddrop.radio.build import place_of
from feddrop.radio.cost import cost
from feddrop.radio.files import CellFile, read_cell
from feddrop.radio.propagation import MODELS
from feddrop.schemes import SCHEME_TABLE, channel_of, scheme_of
from feddrop.seeds import derive

SHOWN = (*(name for name in SCHEMES if name not in ("primal-dual", "fixed")), "max-min", "proportional-fair")
"""The schemes side by side. ``primal-dual`` approaches ``exact``, and ``fixed`` and others need settings."""

MOST_DEVICES, POINTS = 2_000, 33
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
Gone = Callable[[], bool]


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
    with _quiet() as caught:
        tables = tables_of(state)
        found = read_cell(tables, channel_of=channel_of)
        cell, channels = found.cell, found.channels
        return {
            "tables": tables | {"radio": _effective(found) | tables["radio"]},
            "notes": [clean(one.message) for one in caught if issubclass(one.category, FeddropWarning)],
            "places": _places(found),
            "devices": {
                "samples": cell.samples,
                "budget_j": cell.budget_j,
                "cpu_hz": channels.cpu_hz,
                "tx_power_w": channels.tx_power_w,
                "uplink_db": 10.0 * np.log10(channels.uplink),
            },
            "schemes": [_seen(_scheme(name, found), name == state.get("scheme", "exact")) for name in _schemes(found)],
        }


@contextmanager
def _quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Collect warnings instead of printing them. One thread at a time: filters are global."""
    with _ONE, warnings.catch_warnings(record=True) as caught, np.errstate(all="ignore"):
        warnings.simplefilter("always", FeddropWarning)
        yield caught


def _schemes(found: CellFile) -> tuple[str, ...]:
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


def _scheme(name: str, found: CellFile) -> dict[str, Any]:
    """Return the allocation of a scheme, or what the cell lacks."""
    radio = found.radio
    try:
        got = allocate(
            found.problem, scheme_of(name, found, seed=found.seed, objective=radio.objective), policy=radio.policy
        )
    except InfeasibleError as error:
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


def _lacks(error: InfeasibleError, found: CellFile, rate: float) -> dict[str, Any]:
    """Return why a cell is infeasible, and the share of the band that each device needs at this rate."""
    short = error.args[0]
    if not isinstance(short, Shortfall):
        return {"text": str(error), "devices": []}
    keys = ("devices", "constraints", "least_share", "load", "deadline_s", "budget_j", "policies")
    enough = {key: value for key in keys if (value := getattr(short, key)) != math.inf}
    needs = found.problem.least_share(np.asarray(1.0 / (1.0 - rate)))
    return {"text": short.text(), "needs": needs} | enough | {"least_share": np.asarray(short.least_share)}


def settle(state: Mapping[str, Any], key: str, values: Any, gone: Gone = lambda: False) -> dict[str, Any]:
    """Return what need not follow a moving slider: files, calls, the smallest bandwidth, and a curve.

    Args:
        state: the state.
        key: the setting that the curve of the objective varies, such as ``"radio.deadline_s"``.
        values: its values.
        gone: returns whether the answer is no longer wanted.
    """
    with _quiet():
        found = read_cell(tables_of(state), channel_of=channel_of)
        lowest = None
        if not found.radio.chooses and "lacks" in _scheme(SHOWN[0], found):
            lowest = smallest_bandwidth(found.cell, found.channels, **found.costs)
    files = {"toml": to_toml(state), "run": to_run(state)} | calls(state, found)
    return {"bandwidth_hz": lowest, "curve": curve(state, key, values, gone)} | files


def curve(state: Mapping[str, Any], key: str, values: Any, gone: Gone = lambda: False) -> dict[str, Any]:
    """Return the charged objective of every scheme at these values of one setting; NaN where it is infeasible."""
    section, _, name = key.partition(".")
    one_of("the curve's table", section, ("cell", "model", "radio", "shape"))
    if not isinstance(values, list) or not 1 <= len(values) <= POINTS:
        raise ConfigError(f"a curve has 1 to {POINTS} values.")
    lines: dict[str, list[float]] = {}
    for n, value in enumerate(values):
        if gone():
            raise RunError("the page no longer asks for this curve.")
        table = state.get(section, {})
        varied = {**state, section: {**(table if isinstance(table, Mapping) else {}), name: value}}
        with suppress(ConfigError), _quiet():  # a value that this cell cannot have, such as a radius beyond the model
            found = read_cell(tables_of(varied), channel_of=channel_of)
            for scheme in _schemes(found):
                at = _scheme(scheme, found).get("charged", math.nan)
                lines.setdefault(scheme, [math.nan] * len(values))[n] = at
    return {"values": values, "lines": lines}


def _scheme_table(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``radio`` table of a file: with the scheme looked at, and no objective that it would not use."""
    radio: dict[str, Any] = dict(tables_of(state)["radio"])
    scheme = one_of("the scheme", str(state.get("scheme", "exact")), SHOWN)
    if scheme != "exact":
        radio.pop("objective", None)
        radio["scheme"] = scheme
    return radio


def to_toml(state: Mapping[str, Any]) -> str:
    """Return the file that ``feddrop allocate`` takes."""
    return tomli_w.dumps(tables_of(state) | {"radio": _scheme_table(state)})


def to_run(state: Mapping[str, Any]) -> str:
    """Return the file that ``feddrop run`` takes: the same cell around the embedded digits."""
    cell = tables_of(state)["cell"]
    top: dict[str, Any] = {"seed": cell.get("seed", 0), "rounds": state.get("rounds", 20)}
    return tomli_w.dumps(top | {"data": {"devices": cell.get("devices", 10)}, "radio": _scheme_table(state)})


def from_toml(text: str) -> dict[str, Any]:
    """Return the state of a file for ``feddrop allocate`` or ``feddrop run``."""
    table = parse_toml(text, "the file")
    radio = table.get("radio")
    if not isinstance(radio, dict):
        raise ConfigError("the file has no [radio] table. Load a cell, such as examples/cell.toml, or a run.")
    state = deepcopy(START) | {"radio": radio, "shape": {}, "scheme": radio.pop("scheme", "exact")}
    if "cell" in table or ("model" in table and "data" not in table):
        state |= {key: table[key] for key in ("cell", "model") if key in table}
    else:  # a run, whose data and network are not those of the picture
        data = table.get("data", {})
        devices = data.get("devices", 10) if isinstance(data, dict) else 10
        state["cell"] |= {"devices": devices, "seed": table.get("seed", 0)}
        radio.pop("costs", None)
    if state["scheme"] not in SHOWN:
        state["scheme"] = "exact"
    if isinstance(budget := radio.get("energy_budget_j"), float) and math.isinf(budget):
        radio["energy_budget_j"] = "inf"
    solve(state)
    return state


def calls(state: Mapping[str, Any], found: CellFile) -> dict[str, str]:
    """Return the state as Python and as a command."""
    radio, table, scheme = found.radio, found.table, str(state.get("scheme", "exact"))
    samples = list(table.samples) if isinstance(table.samples, tuple) else table.samples
    costs = ", ".join(f"{key}={value!r}" for key, value in found.costs.items())
    named, more = repr(scheme), ""
    if scheme == "random":
        named = f'feddrop.Random(feddrop.derive({table.seed}, "shares", {table.round}))'
    if scheme in SCHEME_TABLE:
        named = f"FunctionScheme(SCHEME_TABLE[{scheme!r}], {scheme!r}, cell, channels, dict({costs}))"
        more = "from feddrop.radio.plan import FunctionScheme\nfrom feddrop.schemes import SCHEME_TABLE\n"
    if scheme == "exact" and radio.objective != "inverse":
        named, more = f"feddrop.Exact(OBJECTIVES[{radio.objective!r}])", "from feddrop.allocation import OBJECTIVES\n"
    infinite = "from math import inf\n" if math.isinf(radio.energy_budget_j) and "inf" in repr(radio) else ""
    python = (
        f"{infinite}import feddrop\n{more}from feddrop.radio import build_cell\n\n"
        f"radio = feddrop.{radio!r}\n"
        f"seed = feddrop.derive({table.seed}, 'cell')\n"
        f"cell = build_cell(radio, devices={table.devices}, samples={samples!r}, seed=seed)\n"
        f"channels = cell.draw({table.round}, seed=feddrop.derive({table.seed}, 'channels'))\n"
        f"problem = cell.problem(channels, {costs}, choose=radio.chooses)\n"
        f"found = feddrop.allocate(problem, {named}, policy=radio.policy)\n"
        "print(found.objective, found.rate, found.share)\n"
    )
    command = f"cat > cell.toml <<'END'\n{to_toml(state)}END\nfeddrop allocate cell.toml\n"
    return {"python": python, "command": command}
