"""Problems from files, and allocations as rows to print, to plot or to write as JSON.

A problem file says what every device needs, as :class:`~feddrop.allocation.Problem` has it:

- ``.toml`` and ``.json``: ``deadline_s`` and, if wanted, ``max_rate`` and ``budget_j`` for all, then one ``device``
  table each with ``comm_s``, ``compute_s``, ``upload_j``, ``compute_j``, ``weight`` or ``samples``, and optionally
  ``name`` and ``budget_j``;
- ``.csv``: one row a device with the same columns, and ``deadline_s`` and ``max_rate`` repeated.

Devices that have ``cycles`` leave power and clock open, as :class:`~feddrop.allocation.PowerProblem` has it: then each
has ``download_s``, ``cycles``, ``cpu_hz``, ``cpu_constant``, ``upload_bits``, ``gain_to_noise`` and ``tx_power_w``, and
``least_cpu_hz`` and ``least_tx_power_w`` if wanted; ``bandwidth_hz`` is for all.

Or a ``.toml`` or ``.json`` file describes a cell: a ``radio`` table (:class:`~feddrop.radio.Radio`), a ``cell``
table with ``devices``, ``samples``, ``seed`` and ``round``, and a ``model`` table with ``parameters`` and
``forward_flops``. Its ``radio.scheme`` and ``radio.policy`` say how to allocate. Costs are the paper's formula:
``radio.costs = "measured"`` needs the frames of a run and is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from feddrop.allocation.feasible import Shortfall
from feddrop.allocation.power import PowerProblem
from feddrop.allocation.problem import Problem
from feddrop.allocation.solution import Allocation, AnyProblem
from feddrop.config import Radio
from feddrop.config.parsing import json_line, parse_json, parse_toml, read_text
from feddrop.errors import ConfigError, FeddropWarning, InfeasibleError, one_of
from feddrop.radio.checks import plain
from feddrop.radio.tables import brief, read_table

_NEEDED = ("comm_s", "compute_s", "upload_j", "compute_j")
_OPEN = ("download_s", "cycles", "cpu_hz", "cpu_constant", "upload_bits", "gain_to_noise", "tx_power_w")
_MAY = ("name", "weight", "samples", "budget_j")
_MAY_OPEN = ("least_cpu_hz", "least_tx_power_w")
_COMMON_KEYS = ("deadline_s", "max_rate", "budget_j")
_COMMON_OPEN = (*_COMMON_KEYS, "bandwidth_hz")
_CELL_KEYS = {
    "radio": tuple(field.name for field in fields(Radio)),
    "cell": ("devices", "samples", "seed", "round"),
    "model": ("parameters", "forward_flops"),
}
_OF_A_RUN = ("rounds", "rate", "data", "train", "method", "server", "participation", "execution")
_MOST = 10_000_000


class Given(NamedTuple):
    """What a file says.

    Attributes:
        problem: one round.
        names: of the devices; empty where the file gives none.
        method: ``radio.scheme`` of a cell, else ``"exact"``.
        policy: ``radio.policy`` of a cell, else ``"error"``.
    """

    problem: AnyProblem
    names: list[str]
    method: str = "exact"
    policy: str = "error"


def load(path: str | Path) -> Given:
    """Read a problem, the names of its devices and how to allocate from a TOML, CSV or JSON file."""
    path = Path(path)
    kind = one_of(f"the ending of {path.name}", path.suffix.lower(), (".toml", ".csv", ".json"))
    if kind == ".csv":
        rows = [row.cells for row in read_table(path, "problem")[1]]
        common = ("deadline_s", "max_rate", "bandwidth_hz")
        shared = {key: [row.pop(key) for row in rows] for key in common if rows and key in rows[0]}
        return _problem(shared, rows)
    table = (parse_toml if kind == ".toml" else parse_json)(read_text(path, "the problem"), repr(str(path)))
    if not isinstance(table, dict):
        raise ConfigError(f"{str(path)!r} must hold a table of keys and values.")
    if "radio" in table:
        return _from_cell(table, path.parent)
    devices = table.pop("device", None)
    if not isinstance(devices, list) or not devices or not all(isinstance(row, dict) for row in devices):
        raise ConfigError(f"{str(path)!r} has neither [[device]] tables, one a device, nor a [radio] table.")
    return _problem(table, devices)


def _problem(common: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]) -> Given:
    if not devices:
        raise ConfigError("the problem has no devices.")
    chosen = any("cycles" in device for device in devices)
    needed = _OPEN if chosen else _NEEDED
    _check_keys(common, devices, needed, chosen=chosen)

    def column(key: str, default: Any = None) -> list[Any]:
        return [default if device.get(key) in (None, "") else device[key] for device in devices]

    given = [key for key in ("weight", "samples") if any(entry is not None for entry in column(key))]
    if len(given) == 2:
        raise ConfigError("devices have weight and samples; give one of them: it is divided by its sum.")
    key = given[0] if given else "samples"
    weight = column(key, None if given else 1.0)
    if None in weight:
        raise ConfigError(f"{key} of device {weight.index(None)} is missing; give it to all devices or to none.")
    values: dict[str, Any] = {name: _numbers(name, column(name)) for name in needed} | {
        "weight": _numbers(key, weight),
        "deadline_s": _numbers("deadline_s", common["deadline_s"]),
        "max_rate": _numbers("max_rate", common.get("max_rate", 0.9)),
        "budget_j": _numbers("budget_j", column("budget_j", common.get("budget_j", np.inf))),
    }
    if chosen:
        values |= {key: _numbers(key, column(key, 0.0)) for key in _MAY_OPEN}
        values["bandwidth_hz"] = band = _numbers("bandwidth_hz", common["bandwidth_hz"])
        if band.size and np.ptp(band) > 0:
            raise ConfigError(f"bandwidth_hz is {brief(common['bandwidth_hz'])}; all share one band, of one width.")
    problem: Problem | PowerProblem = PowerProblem(**values) if chosen else Problem(**values)
    if not problem.weight.any():
        raise ConfigError("all weights are 0; at least one device must have samples.")
    problem = replace(problem, weight=problem.weight / problem.weight.sum())
    return Given(problem, [str(name) for name in column("name", "")])


def _check_keys(
    common: Mapping[str, Any], devices: Sequence[Mapping[str, Any]], needed: Sequence[str], *, chosen: bool
) -> None:
    """Refuse keys that are not known, and name those that are missing."""
    for key in common:
        one_of("a key of the problem", key, _COMMON_OPEN if chosen else _COMMON_KEYS)
    if "deadline_s" not in common:
        raise ConfigError("deadline_s is missing: how long may a round take, in seconds?")
    if chosen and "bandwidth_hz" not in common:
        raise ConfigError("bandwidth_hz is missing: how wide is the band that the devices share, in hertz?")
    known = (*_MAY, *needed, *(_MAY_OPEN if chosen else ()))
    for number, device in enumerate(devices):
        for key in device:
            one_of(f"a key of device {number}", str(key), known)
        for key in needed:
            if device.get(key) in (None, ""):
                raise ConfigError(f"{key} of device {number} is missing.")


def _numbers(key: str, values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A number, or one a device; what TOML and JSON have besides is none."""
    try:
        if any(isinstance(value, list | bool) for value in (values if isinstance(values, list) else [values])):
            raise TypeError
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"{key} is {brief(values)}; it must be a number, and not beyond what a float can be."
        ) from None


def _from_cell(table: Mapping[str, Any], folder: Path) -> Given:
    if found := [key for key in table if key in _OF_A_RUN]:
        raise ConfigError(
            f"the file has {found[0]!r}, which is of a run: `feddrop run` takes it as it is. Here [cell] and [model] "
            "stand beside [radio], as in examples/cell.toml."
        )
    for key in table:
        one_of("a table of the file", key, _CELL_KEYS)
    radio, cell, model = (_table(table, name) for name in _CELL_KEYS)
    if radio.get("costs") == "measured":
        raise ConfigError(
            "radio.costs is 'measured', but nothing is measured here: allocate plans by the paper's formula. "
            'Leave it out or write costs = "formula"; `feddrop run` plans by measured costs.'
        )
    devices, seed, number = _whole(cell, "devices", 10, 1, _MOST), _whole(cell, "seed", 0), _whole(cell, "round", 1, 1)
    hints = get_type_hints(Radio)
    config = Radio(**{key: _typed(f"radio.{key}", value, hints[key]) for key, value in radio.items()})
    for line in config.notices():
        warnings.warn(line, FeddropWarning, stacklevel=3)
    samples = _numbers("samples of [cell]", cell.get("samples", 5000))
    if not samples.any():
        raise ConfigError("samples of [cell] are 0; at least one device must have samples.")
    built = config.cell(devices, samples, seed, folder=folder)
    figures: dict[str, Any] = {key: _typed(f"{key} of [model]", value, float) for key, value in model.items()}
    problem = built.problem(built.draw(number, seed), **figures, choose=config.chooses)
    return Given(problem, [""] * built.devices, config.method, config.policy)


def _typed(key: str, value: Any, hint: Any) -> Any:
    """A value of its type, as a run takes it: the text "false", say, must not count as true."""
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    for option in options:
        if get_origin(option) is tuple and isinstance(value, list):
            return tuple(_typed(f"an entry of {key}", entry, get_args(option)[0]) for entry in value)
        if option is float and type(value) in (int, float):
            return plain(key, value)
        if type(value) is option:
            return value
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    allowed = " or ".join(names.get(option, "a list") for option in options)
    raise ConfigError(f"{key} is {brief(value)}; it must be {allowed}.")


def _table(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = table.get(name, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is {value!r}; it must be a table of keys and values.")
    for key in value:
        one_of(f"a key of [{name}]", key, _CELL_KEYS[name])
    return value


def _whole(cell: Mapping[str, Any], key: str, default: int, least: int = 0, most: int = 2**63) -> int:
    value = cell.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        limit = f"{least} to {most:,}" if most == _MOST else f"{least} or more"
        raise ConfigError(f"{key} of [cell] is {brief(value)}; it must be a whole number, {limit}.")
    return value


def with_names(error: InfeasibleError, names: Sequence[str]) -> InfeasibleError:
    """The same error, with devices called by their names."""
    reason = error.args[0]
    return InfeasibleError(reason.text(names)) if isinstance(reason, Shortfall) else error


def rows(allocation: Allocation, names: Sequence[str]) -> list[dict[str, Any]]:
    """One plain row a device: rate, share, latency, energy, which constraint holds it; power and clock, if chosen."""
    columns = {
        "rate": allocation.rate,
        "share": allocation.share,
        "latency_s": allocation.latency_s,
        "energy_j": allocation.energy_j,
        "tx_power_w": allocation.tx_power_w,
        "cpu_hz": allocation.cpu_hz,
    }
    known = {key: values for key, values in columns.items() if values is not None}
    return [
        {"device": number, "name": names[number]}
        | {key: float(values[number]) for key, values in known.items()}
        | {"binding": str(binding)}
        for number, binding in enumerate(allocation.binding)
    ]


def as_json(allocation: Allocation, names: Sequence[str]) -> str:
    """The allocation as one JSON object; what is not finite is null."""
    return (
        json_line(
            {
                "method": allocation.method,
                "status": allocation.status.value,
                "objective": allocation.objective,
                "deadline_s": float(np.max(allocation.problem.deadline_s)),
                "iterations": allocation.iterations,
                "residual": allocation.residual,
                "price": None if allocation.price is None else float(allocation.price[0]),
                "devices": rows(allocation, names),
            }
        )
        .decode()
        .strip()
    )


def as_text(allocation: Allocation, names: Sequence[str], asked: AnyProblem | None = None) -> str:
    """The allocation as a table for people.

    Args:
        allocation: of a single round.
        names: of the devices; numbers where they are empty.
        asked: the problem as it was given, to say so where the policy stretched its deadline.
    """
    wide = max(len(name) for name in ("device", *names))
    paced = allocation.cpu_hz is not None
    more = f"  {'power':>10}  {'clock':>10}" if paced else ""
    lines = [f"{'device':<{wide}}  {'rate':>6}  {'share':>7}  {'latency':>10}  {'energy':>10}{more}  held by"]
    for row in rows(allocation, names):
        more = f"  {1e3 * row['tx_power_w']:7.3g} mW  {1e-9 * row['cpu_hz']:6.3f} GHz" if paced else ""
        lines.append(
            f"{row['name'] or row['device']:<{wide}}  {row['rate']:6.3f}  {row['share']:7.4f}  "
            f"{row['latency_s']:8.3f} s  {row['energy_j']:8.3g} J{more}  {row['binding']}"
        )
    deadline = float(np.max(allocation.problem.deadline_s))
    wanted = deadline if asked is None else float(np.max(asked.deadline_s))
    stretched = f", stretched from {wanted:.4g} s" if wanted != deadline else ""
    passes = f"{allocation.iterations} {'pass' if allocation.iterations == 1 else 'passes'}"
    lines += [
        "",
        f"method {allocation.method}: {allocation.status}",
        f"objective {allocation.objective:.6f} (1 is no dropout) · deadline {deadline:.4g} s{stretched}"
        f" · {passes} · residual {allocation.residual:.1e}",
    ]
    return "\n".join(lines)
