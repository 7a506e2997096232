"""Problems from files, and allocations as text, JSON or rows.

A problem file states the costs of every device, with the names of :class:`~feddrop.allocation.Problem`:

- ``.toml`` and ``.json``: ``deadline_s`` and optionally ``max_rate`` and ``budget_j`` for all devices, then one
  ``device`` table per device with ``comm_s``, ``compute_s``, ``upload_j``, ``compute_j``, ``weight`` or ``samples``,
  and optionally ``name`` and ``budget_j``;
- ``.csv``: one row per device with the same columns; ``deadline_s`` and ``max_rate`` are repeated.

Devices with ``cycles`` leave power and clock open, as in :class:`~feddrop.allocation.PowerProblem`: then each has
``download_s``, ``cycles``, ``cpu_hz``, ``cpu_constant``, ``upload_bits``, ``gain_to_noise`` and ``tx_power_w``, and
optionally ``least_cpu_hz`` and ``least_tx_power_w``; ``bandwidth_hz`` holds for all.

A ``.toml`` or ``.json`` file may describe a cell instead: a ``radio`` table (:class:`~feddrop.config.Radio`), a
``cell`` table with ``devices``, ``samples``, ``seed`` and ``round``, and a ``model`` table with ``parameters`` and
``forward_flops``. Its ``radio.scheme``, ``radio.objective`` and ``radio.policy`` choose the allocation. Devices,
channels and random shares are those of a run with the same seed. Costs follow the paper's formula:
``radio.costs = "measured"`` needs the frames of a run and is refused. ``feddrop allocate`` also takes the file of a
run, see :func:`is_run`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from feddrop.allocation.feasible import Shortfall
from feddrop.allocation.power import PowerProblem
from feddrop.allocation.problem import FloatArray, Problem
from feddrop.allocation.solution import Allocation, AnyProblem
from feddrop.config import Radio, from_table
from feddrop.config.fields import Settings, setting, without_effect
from feddrop.config.parsing import json_line, parse_json, parse_toml, read_text
from feddrop.config.radio import IMPORTANCE
from feddrop.errors import ConfigError, FeddropWarning, InfeasibleError, one_of
from feddrop.radio.build import build_cell
from feddrop.radio.cell import Cell, Channels
from feddrop.radio.tables import brief, read_table
from feddrop.seeds import derive

_NEEDED = ("comm_s", "compute_s", "upload_j", "compute_j")
_OPEN = ("download_s", "cycles", "cpu_hz", "cpu_constant", "upload_bits", "gain_to_noise", "tx_power_w")
_MAY = ("name", "weight", "samples", "budget_j")
_MAY_OPEN = ("least_cpu_hz", "least_tx_power_w")
_COMMON_KEYS = ("deadline_s", "max_rate", "budget_j")
_OF_A_RUN = ("rounds", "rate", "data", "train", "method", "server", "participation", "execution")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CellTable(Settings):
    """The ``cell`` table of a file: number of devices, samples per device and round, seed, and round."""

    section: ClassVar[str] = "cell"

    devices: int = setting(10, ge=1, le=10_000_000)
    samples: float | tuple[float, ...] = setting(5000.0, ge=0)
    seed: int = setting(0, ge=0)
    round: int = setting(1, ge=1)

    def problems(self) -> Iterator[str]:
        """Require samples."""
        if not np.any(self.samples):
            yield "cell.samples is 0; at least one device must have samples."


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelTable(Settings):
    """The ``model`` table of a file: M_ori and the FLOPs of a forward pass on one sample."""

    section: ClassVar[str] = "model"

    parameters: float | None = setting(None, gt=0)
    forward_flops: float | None = setting(None, gt=0)


ChannelOf = Callable[[Radio], Any]
"""Finds the channel that a ``[radio]`` section names."""
_TABLES: dict[str, type[Any]] = {"radio": Radio, "cell": CellTable, "model": ModelTable}


class Given(NamedTuple):
    """The content of a file."""

    problem: AnyProblem  # one round
    names: list[str]  # of the devices; empty without names
    scheme: str = "exact"  # ``radio.scheme`` of a cell, else ``"exact"``
    policy: str = "error"  # ``radio.policy`` of a cell, else ``"error"``
    objective: str = "inverse"  # ``radio.objective`` of a cell, else the paper's
    seed: int = 0  # of random shares: that of a run of the cell, else 0
    cell: CellFile | None = None  # None for a problem


class CellFile(NamedTuple):
    """A cell that a file describes, and one of its rounds."""

    radio: Radio
    table: CellTable
    costs: dict[str, float | None]  # the ``model`` table: arguments of ``Cell.problem`` and ``cost``
    cell: Cell
    channels: Channels  # of round ``table.round``
    problem: AnyProblem
    seed: int  # of random shares


def is_run(path: str | Path) -> bool:
    """Return whether a TOML file configures a run with a radio, rather than a problem or a cell."""
    if Path(path).suffix.lower() != ".toml":
        return False
    table = parse_toml(read_text(path, "the problem"), repr(str(path)))
    model = table.get("model", {})
    return "radio" in table and "cell" not in table and "parameters" not in model and "forward_flops" not in model


def load(path: str | Path, channel_of: ChannelOf | None = None) -> Given:
    """Read a problem, the names of its devices, the scheme and the policy from a TOML, CSV or JSON file.

    Args:
        path: the file.
        channel_of: finds the channel that a ``[radio]`` section names.
    """
    path = Path(path)
    kind = one_of(f"the ending of {path.name}", path.suffix.lower(), (".toml", ".csv", ".json"))
    if kind == ".csv":
        rows = [row.cells for row in read_table(path, "problem")[1]]
        common = ("deadline_s", "max_rate", "bandwidth_hz")
        shared = {key: [row.pop(key) for row in rows] for key in common if rows and key in rows[0]}
        return _problem(shared, rows)
    table = (parse_toml if kind == ".toml" else parse_json)(read_text(path, "the problem"), repr(str(path)))
    if isinstance(table, dict) and "radio" in table:
        return _from_cell(table, path.parent, channel_of)
    devices = table.pop("device", None) if isinstance(table, dict) else None
    if not isinstance(devices, list) or not all(isinstance(row, dict) for row in devices):
        raise ConfigError(f"{str(path)!r} has neither [[device]] tables, one per device, nor a [radio] table.")
    return _problem(table, devices)


def _problem(common: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]) -> Given:
    chosen = any("cycles" in device for device in devices)
    if wrong := next(_key_problems(common, devices, chosen), ""):
        raise ConfigError(wrong)

    def column(key: str, default: Any = None) -> list[Any]:
        return [default if device.get(key) in (None, "") else device[key] for device in devices]

    key = "weight" if any(entry is not None for entry in column("weight")) else "samples"
    given = any(entry is not None for entry in column(key))
    values: dict[str, Any] = {name: _numbers(name, column(name)) for name in (_OPEN if chosen else _NEEDED)} | {
        "weight": _numbers(key, column(key, None if given else 1.0)),
        "deadline_s": _numbers("deadline_s", common["deadline_s"]),
        "max_rate": _numbers("max_rate", common.get("max_rate", 0.9)),
        "budget_j": _numbers("budget_j", column("budget_j", common.get("budget_j", np.inf))),
    }
    if chosen:
        values |= {key: _numbers(key, column(key, 0.0)) for key in _MAY_OPEN}
        values["bandwidth_hz"] = band = _numbers("bandwidth_hz", common["bandwidth_hz"])
        if np.ptp(band) > 0:
            raise ConfigError(f"bandwidth_hz is {brief(common['bandwidth_hz'])}; all devices share one band.")
    problem: Problem | PowerProblem = PowerProblem(**values) if chosen else Problem(**values)
    if not problem.weight.any():
        raise ConfigError(f"every {key} is 0; at least one must be positive.")
    problem = replace(problem, weight=problem.weight / problem.weight.sum())
    return Given(problem, [str(name) for name in column("name", "")])


def _key_problems(common: Mapping[str, Any], devices: Sequence[Mapping[str, Any]], chosen: bool) -> Iterator[str]:
    """Yield one message for each unknown or missing key."""
    needed, may = (_OPEN, _MAY_OPEN) if chosen else (_NEEDED, ())
    if not devices:
        yield "the problem has no devices."
    for key in common:
        one_of("a key of the problem", key, (*_COMMON_KEYS, *(("bandwidth_hz",) if chosen else ())))
    if "deadline_s" not in common:
        yield "deadline_s is missing: the seconds that a round may take."
    if chosen and "bandwidth_hz" not in common:
        yield "bandwidth_hz is missing: the width of the shared band in hertz."
    weights = [[key for key in ("weight", "samples") if device.get(key) not in (None, "")] for device in devices]
    if len(used := {key for keys in weights for key in keys}) > 1:
        yield "devices have weight and samples; give one of them: it is divided by its sum."
    for number, device in enumerate(devices):
        for key in device:
            one_of(f"a key of device {number}", str(key), (*_MAY, *needed, *may))
        for key in (*needed, *used):
            if device.get(key) in (None, ""):
                yield f"{key} of device {number} is missing."


def _numbers(key: str, values: Any) -> FloatArray:
    """Return a number, or a list of them, as an array; TOML's and JSON's other values are refused."""
    try:
        if any(isinstance(value, list | bool) for value in (values if isinstance(values, list) else [values])):
            raise TypeError
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{key} is {brief(values)}; it must be a number, at most 1.8e308.") from None


def _from_cell(table: Mapping[str, Any], folder: Path, channel_of: ChannelOf | None) -> Given:
    found = read_cell(table, folder, channel_of)
    radio, names = found.radio, [""] * found.cell.devices
    return Given(found.problem, names, radio.band_scheme, radio.policy, radio.objective, found.seed, found)


def read_cell(table: Mapping[str, Any], folder: str | Path = ".", channel_of: ChannelOf | None = None) -> CellFile:
    """Build the cell of a file with a ``radio`` table.

    Args:
        table: the tables ``radio``, ``cell`` and ``model``.
        folder: folder of relative file names.
        channel_of: finds the channel that the section names.
    """
    if wrong := next(_cell_problems(table), ""):
        raise ConfigError(wrong)
    radio, cell, model = (from_table(kind, table.get(name, {}), f"{name}.") for name, kind in _TABLES.items())
    for line in without_effect(radio, strict=False):
        warnings.warn(line, FeddropWarning, stacklevel=3)
    if radio.channel and channel_of is None:
        raise ConfigError(f"radio.channel is {radio.channel!r}, which is not available here. Remove it.")
    channel = channel_of(radio) if channel_of and radio.channel else None
    seed = derive(cell.seed, "cell")  # as in a run
    built = build_cell(radio, cell.devices, cell.samples, seed, folder=folder, channel=channel)
    costs = {"parameters": model.parameters, "forward_flops": model.forward_flops}
    channels = built.estimate(cell.round, derive(cell.seed, "channels"))
    problem = built.problem(channels, **costs, choose=radio.chooses)
    return CellFile(radio, cell, costs, built, channels, problem, derive(cell.seed, "shares", cell.round))


def _cell_problems(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield one message for each table that does not belong to a cell."""
    if found := [key for key in table if key in _OF_A_RUN]:
        yield (
            f"the file has {found[0]!r}, which belongs to a run: use `feddrop allocate` or `feddrop run`. A cell has "
            "the tables [radio], [cell] and [model], as in examples/cell.toml."
        )
    for key, value in table.items():
        one_of("a table of the file", key, _TABLES)
        if not isinstance(value, dict):
            yield f"{key} is {brief(value)}; it must be a table of keys and values."
    if table["radio"].get("objective") == IMPORTANCE:
        yield (
            "radio.objective is 'importance', which is computed from the network of a run; a cell file has none. Use "
            "'importance-normal' instead."
        )
    if table["radio"].get("costs") == "measured":
        yield (
            "radio.costs is 'measured', but allocate uses the paper's formula. Remove it, or set costs = \"formula\"; "
            "`feddrop run` uses measured costs."
        )


def with_names(error: InfeasibleError, names: Sequence[str]) -> InfeasibleError:
    """Return the same error with the names of devices instead of their numbers."""
    reason = error.args[0]
    return InfeasibleError(reason.text(names)) if isinstance(reason, Shortfall) else error


def rows(allocation: Allocation, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return one row per device: rate, share, latency, energy, power and clock if chosen, and binding constraint."""
    keys = ("rate", "share", "latency_s", "energy_j", "tx_power_w", "cpu_hz")
    known = {key: values for key in keys if (values := getattr(allocation, key)) is not None}
    return [
        {"device": number, "name": names[number]}
        | {key: float(values[number]) for key, values in known.items()}
        | {"binding": str(binding)}
        for number, binding in enumerate(allocation.binding)
    ]


def as_json(allocation: Allocation, names: Sequence[str]) -> str:
    """Return the allocation as one JSON object; infinite values are null."""
    fields = {
        "scheme": allocation.scheme,
        "status": allocation.status.value,
        "objective": allocation.objective,
        "charged_objective": allocation.charged_objective,
        "left_out": int(allocation.left_out.sum()),
        "deadline_s": float(np.max(allocation.problem.deadline_s)),
        "iterations": allocation.iterations,
        "residual": allocation.residual,
        "price": None if allocation.price is None else float(allocation.price[0]),
        "gap": None if allocation.gap is None else float(allocation.gap[0]),
        "devices": rows(allocation, names),
    }
    return json_line(fields).decode().strip()


def as_text(allocation: Allocation, names: Sequence[str], asked: AnyProblem | None = None) -> str:
    """Return the allocation of one round as a text table.

    Numbers replace empty names; ``asked`` is the given problem, to report a stretched deadline.
    """
    wide = max(len(name) for name in ("device", *names))
    paced = allocation.cpu_hz is not None
    more = f"  {'power':>10}  {'clock':>10}" if paced else ""
    lines = [f"{'device':<{wide}}  {'rate':>6}  {'share':>7}  {'latency':>10}  {'energy':>10}{more}  limited by"]
    for row in rows(allocation, names):
        more = f"  {1e3 * row['tx_power_w']:7.3g} mW  {1e-9 * row['cpu_hz']:6.3f} GHz" if paced else ""
        lines.append(
            f"{row['name'] or row['device']:<{wide}}  {row['rate']:6.3f}  {row['share']:7.4f}  "
            f"{row['latency_s']:8.3f} s  {row['energy_j']:8.3g} J{more}  {row['binding']}"
        )
    deadline = float(np.max(allocation.problem.deadline_s))
    wanted = deadline if asked is None else float(np.max(asked.deadline_s))
    stretched = f", stretched from {wanted:.4g} s" if wanted != deadline else ""
    absent = int(allocation.left_out.sum())
    charged = f" · {absent} left out, charged objective {allocation.charged_objective:.6f}" if absent else ""
    if allocation.absence_priced and allocation.gap is not None:
        charged = f" · {absent} left out · at most {float(allocation.gap[0]):.2%} above the best choice"
    passes = f"{allocation.iterations} {'pass' if allocation.iterations == 1 else 'passes'}"
    lines += [
        "",
        f"scheme {allocation.scheme}: {allocation.status}",
        f"objective {allocation.objective:.6f} (1 is no dropout){charged} · deadline {deadline:.4g} s{stretched}"
        f" · {passes} · residual {allocation.residual:.1e}",
    ]
    return "\n".join(lines)
