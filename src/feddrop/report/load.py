"""Reading a run folder: ``config.toml``, ``metrics.jsonl``, ``run.json``. Nothing in them is trusted."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feddrop.errors import ConfigError, RunError, shortened
from feddrop.report.runlog import DEVICE_FIELDS, DEVICE_WORDS, ROUND_FIELDS, Floats, Ints, RunLog, Words
from feddrop.report.style import clean
from feddrop.texts import parse_json, parse_toml

LONGEST_REASON, LONGEST_NAME = 200, 40
MOST_METRICS = 12
"""Own metrics that are drawn: more would bury the rest."""


def load_run(run_dir: str | Path) -> RunLog:
    """Read a run folder.

    Args:
        run_dir: folder with ``config.toml``, ``metrics.jsonl`` and, optionally, ``run.json``. A last line of metrics
            that was cut off in the middle (the run was killed, or is still writing) is left out.

    Raises:
        RunError: something is missing or malformed; the message says what, where, and what to do.
    """
    folder = Path(run_dir)
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder. Give the folder that `feddrop run --out DIR` wrote.")
    config = _config(folder / "config.toml")
    lines = _metrics(folder / "metrics.jsonl")
    info = _info(folder / "run.json")
    devices = np.array(sorted({entry["device"] for line in lines for entry in line["devices"]}), np.int64)
    counts, names = _partition(info, folder / "run.json")
    deadline, budget = _limits(config, info, devices, folder)
    return RunLog(
        name=folder.resolve().name,
        config=config,
        info=info,
        rounds=np.array([line["round"] for line in lines], np.int64),
        devices=devices,
        by_round={key: np.array([_number(line, key) for line in lines]) for key in ROUND_FIELDS},
        by_device=_by_device(lines, devices),
        words=_words(lines, devices),
        refusals=_refusals(lines),
        deadline_s=deadline,
        budget_j=budget,
        class_counts=counts,
        class_names=names,
        metrics=_own_metrics(lines),
        suspicious=_suspicious(lines, devices),
        suspicions=_suspicions(lines),
    )


def _read(path: Path, remedy: str) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise RunError(f"{path.parent} has no {path.name}. {remedy}") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from error


def _config(path: Path) -> dict[str, Any]:
    text = _read(path, "Give the folder that `feddrop run --out DIR` wrote.")
    try:
        return parse_toml(text, str(path))
    except ConfigError as error:
        raise RunError(f"{error} Restore it, or run again.") from error


def _info(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        info = parse_json(_read(path, ""), str(path))
    except ConfigError as error:
        raise RunError(f"{error} Delete it: the report goes without.") from error
    if not isinstance(info, dict):
        raise RunError(f"{path} must hold a JSON object. Delete it: the report goes without.")
    if info.get("parameters") is not None:
        _check(info, "parameters", str(path))
    return info


def _metrics(path: Path) -> list[dict[str, Any]]:
    """Read and check the metrics, one object a round."""
    text = _read(path, "Has the run finished its first round?")
    rows = text.split("\n")
    lines: list[dict[str, Any]] = []
    for number, row in enumerate(rows, 1):
        if not row.strip():
            continue
        where = f"{path} line {number}"
        try:
            line = parse_json(row, where)
        except ConfigError as error:
            if number == len(rows):  # no newline behind it: cut off while writing
                break
            raise RunError(f"{error} Delete the line, or resume the run.") from error
        _check_round(line, where)
        if lines and line["round"] <= lines[-1]["round"]:
            raise RunError(
                f"{where}: round {line['round']} comes after round {lines[-1]['round']}; rounds must increase. "
                "Did two runs write into this folder?"
            )
        lines.append(line)
    if not lines:
        raise RunError(f"{path} holds no finished round. Let the run finish a round, then ask for the report again.")
    return lines


def _check_round(line: Any, where: str) -> None:
    if not isinstance(line, dict) or not isinstance(line.get("devices"), list):
        raise RunError(f"{where} must be an object with a round number and a list of devices. Was it edited by hand?")
    for key in ("round", *ROUND_FIELDS):
        _check(line, key, where, whole=key == "round")
    own = line.get("metrics")
    if own is not None and not isinstance(own, dict):
        raise RunError(f"{where}: 'metrics' must be an object of names and numbers. Was it edited by hand?")
    for name in own or {}:
        _check(own or {}, name, where)
    seen: set[int] = set()
    for entry in line["devices"]:
        if not isinstance(entry, dict):
            raise RunError(f"{where}: every device must be an object, not {shortened(entry)}. Was it edited by hand?")
        for key in ("device", *DEVICE_FIELDS):
            _check(entry, key, where, whole=key == "device")
        if entry["device"] in seen:
            raise RunError(f"{where}: device {entry['device']} appears twice in one round. Was it edited by hand?")
        seen.add(entry["device"])


def _check(item: Mapping[str, Any], key: str, where: str, *, whole: bool = False) -> None:
    """Raise unless ``item[key]`` is a number: a whole one of 64 bits that is there, or any one or null."""
    value = item.get(key)
    if whole:
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
            return
        raise RunError(f"{where}: {key!r} is {shortened(value)}; it must be a whole number. Was it edited by hand?")
    if value is None or (isinstance(value, float | int) and not isinstance(value, bool) and _fits(value)):
        return
    raise RunError(f"{where}: {key!r} is {shortened(value)}; it must be a number or null. Was it edited by hand?")


def _fits(value: float) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _number(item: Mapping[str, Any], key: str) -> float:
    """Return a number, or NaN for what is none: absent, null, or (a loss that ran away) infinite."""
    value = float("nan") if item.get(key) is None else float(item[key])
    return value if math.isfinite(value) else float("nan")


def _cells(lines: list[dict[str, Any]], devices: Ints) -> Iterable[tuple[int, int, dict[str, Any]]]:
    column = {int(device): k for k, device in enumerate(devices)}
    for r, line in enumerate(lines):
        for entry in line["devices"]:
            yield r, column[entry["device"]], entry


def _by_device(lines: list[dict[str, Any]], devices: Ints) -> dict[str, Floats]:
    table = {key: np.full((len(lines), len(devices)), np.nan) for key in DEVICE_FIELDS}
    for r, k, entry in _cells(lines, devices):
        for key in DEVICE_FIELDS:
            table[key][r, k] = _number(entry, key)
    return table


def _words(lines: list[dict[str, Any]], devices: Ints) -> dict[str, Words]:
    table = {key: np.full((len(lines), len(devices)), "", "<U16") for key in DEVICE_WORDS}
    for r, k, entry in _cells(lines, devices):
        table["binding"][r, k] = str(entry.get("binding") or "")
        table["status"][r, k] = _status(entry)
    return table


def _status(entry: Mapping[str, Any]) -> str:
    """Return ``"ok"``, ``"left out"`` or, for any reason that a run may give, ``"refused"``."""
    status = entry.get("status") or "ok"
    return status if status in ("ok", "left out") else "refused"


def _refusals(lines: list[dict[str, Any]]) -> dict[str, int]:
    """Count the reasons for which updates were refused, the most frequent first."""
    refused = (entry["status"] for line in lines for entry in line["devices"] if _status(entry) == "refused")
    return dict(Counter(clean(reason, LONGEST_REASON) for reason in refused).most_common())


def _own_metrics(lines: list[dict[str, Any]]) -> dict[str, Floats]:
    """Return the run's own metrics, a value a round."""
    names = dict.fromkeys(name for line in lines for name in line.get("metrics") or {})
    return {
        clean(name, LONGEST_NAME): np.array([_number(line.get("metrics") or {}, name) for line in lines])
        for name in itertools.islice(names, MOST_METRICS)
    }


def _suspicious(lines: list[dict[str, Any]], devices: Ints) -> npt.NDArray[np.bool_]:
    marked = np.zeros((len(lines), len(devices)), np.bool_)
    for r, k, entry in _cells(lines, devices):
        marked[r, k] = bool(entry.get("suspicious"))
    return marked


def _suspicions(lines: list[dict[str, Any]]) -> dict[str, int]:
    """Count the reasons for which updates were marked, the most frequent first."""
    marks = (entry["suspicious"] for line in lines for entry in line["devices"] if entry.get("suspicious"))
    return dict(Counter(clean(reason, LONGEST_REASON) for reason in marks).most_common())


def _partition(info: Mapping[str, Any], path: Path) -> tuple[Ints | None, tuple[str, ...]]:
    if info.get("class_counts") is None:
        return None, ()
    try:
        counts = np.array(info["class_counts"], np.int64)
    except (TypeError, ValueError, OverflowError):
        counts = np.empty(0, np.int64)
    if counts.ndim != 2 or counts.size == 0 or (counts < 0).any():
        raise RunError(
            f"{path}: 'class_counts' must be a table of devices by classes, of counts. Delete it to go without."
        )
    names = info.get("class_names")
    if names is None:
        return counts, tuple(str(c) for c in range(counts.shape[1]))
    if not isinstance(names, list) or len(names) != counts.shape[1]:
        raise RunError(f"{path}: 'class_names' must list {counts.shape[1]} names, one a column of 'class_counts'.")
    return counts, tuple(map(str, names))


def _limits(config: Mapping[str, Any], info: Mapping[str, Any], devices: Ints, folder: Path) -> tuple[float, Floats]:
    """Read the deadline from the configuration, and the energy budget of each device from ``run.json``."""
    radio = config.get("radio")
    radio = radio if isinstance(radio, dict) else {}
    _check(radio, "deadline_s", str(folder / "config.toml"))
    given = info.get("budget_j")
    budgets = [{"budget_j": budget} for budget in given] if isinstance(given, list) else []
    for budget in budgets:
        _check(budget, "budget_j", str(folder / "run.json"))
    known = [_number(budget, "budget_j") for budget in budgets]
    each = [known[device] if 0 <= device < len(known) else float("nan") for device in devices]
    return _number(radio, "deadline_s"), np.array(each)
