"""What is computed once a slider rests: the files and calls of a state, the smallest bandwidth, and a curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any

import tomli_w

from feddrop.config.parsing import parse_toml
from feddrop.errors import ConfigError, RunError, one_of
from feddrop.explore.cell import SHOWN, START, quiet, round_of, schemes_of, solve, tables_of
from feddrop.radio.bounds import smallest_bandwidth
from feddrop.radio.files import CellFile, read_cell
from feddrop.schemes import SCHEME_TABLE, channel_of

POINTS = 33
"""The most values of a curve."""
Gone = Callable[[], bool]


def settle(state: Mapping[str, Any], key: str, values: Any, gone: Gone = lambda: False) -> dict[str, Any]:
    """Return the files and calls of a state, the smallest bandwidth, and a curve.

    Args:
        state: the state.
        key: the setting that the curve of the objective varies, such as ``"radio.deadline_s"``.
        values: its values.
        gone: returns whether the answer is no longer wanted.
    """
    with quiet():
        found = read_cell(tables_of(state), channel_of=channel_of)
        lowest = None
        if not found.radio.chooses and "lacks" in round_of(SHOWN[0], found):
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
        with suppress(ConfigError), quiet():  # a value that this cell cannot have, such as a radius beyond the model
            found = read_cell(tables_of(varied), channel_of=channel_of)
            for scheme in schemes_of(found):
                at = round_of(scheme, found).get("charged", math.nan)
                lines.setdefault(scheme, [math.nan] * len(values))[n] = at
    return {"values": values, "lines": lines}


def _scheme_table(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``radio`` table of a file: with the chosen scheme, and without an objective that it would not use."""
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
    """Return the file that ``feddrop run`` takes: the same cell with the built-in digits."""
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
        state |= {"scheme": "exact", "replaced": str(state["scheme"])}
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
