"""Read a run folder into a :class:`RunLog`: arrays aligned by device. Nothing in the folder is trusted."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from feddrop.errors import RunError, clean
from feddrop.report.runlog import DEVICE_FIELDS, DEVICE_WORDS, LONGEST_LABEL, ROUND_FIELDS, Floats, Ints, RunLog
from feddrop.storage import DeviceRecord, RoundRecord, load_run
from feddrop.storage.records import LATE, number

Log = TypeVar("Log", bound=RunLog)
LONGEST_REASON, LONGEST_NAME = 200, 40
MOST_METRICS = 12  # the most custom metrics that are drawn
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def read_run_log(run_dir: str | Path, kind: type[Log]) -> Log:
    """Read a run folder into this kind of log, as :func:`feddrop.report.read_log` does."""
    run = load_run(run_dir)
    if not run.rounds:
        raise RunError(
            f"{clean(run.folder)} has no metrics.jsonl, or no finished round in it. Let the run finish its first "
            "round, then write the report again."
        )
    devices = np.array(sorted({entry.device for record in run.rounds for entry in record.devices}), np.int64)
    counts, names = _partition(run.about, run.folder / "run.json")
    deadline, budget = _limits(run.settings, run.about, devices, run.folder)
    if run.about.get("parameters") is not None:
        number(run.about, "parameters", str(run.folder / "run.json"))
    return kind(
        name=clean(run.about.get("label") or run.name, LONGEST_LABEL),
        config=run.settings,
        info=run.about,
        rounds=np.array([record.round for record in run.rounds], np.int64),
        devices=devices,
        by_round={key: _floats(getattr(record, key) for record in run.rounds) for key in ROUND_FIELDS},
        refusals=_refusals(run.rounds),
        deadline_s=deadline,
        budget_j=budget,
        class_counts=counts,
        class_names=names,
        metrics=_custom_metrics(run.rounds),
        suspicions=_suspicions(run.rounds),
        **_by_device(run.rounds, devices),
    )


def _floats(values: Iterator[float | None]) -> Floats:
    return np.array([np.nan if value is None else float(value) for value in values])


def _by_device(rounds: Sequence[RoundRecord], devices: Ints) -> dict[str, Any]:
    """Return the numbers, words and marks of every device in every round, as fields of a :class:`RunLog`."""
    shape, column = (len(rounds), len(devices)), {int(device): k for k, device in enumerate(devices)}
    numbers = {key: np.full(shape, np.nan) for key in DEVICE_FIELDS}
    words = {key: np.full(shape, "", "<U16") for key in DEVICE_WORDS}
    suspicious = np.zeros(shape, np.bool_)
    for at, entry in (((r, column[entry.device]), entry) for r, one in enumerate(rounds) for entry in one.devices):
        for key in DEVICE_FIELDS:
            value = getattr(entry, key)
            numbers[key][at] = np.nan if value is None else value
        for key, word in (("binding", entry.binding), ("status", _status(entry)), ("dtype", entry.dtype)):
            words[key][at] = word or ""
        suspicious[at] = bool(entry.suspicious)
    return {"by_device": numbers, "words": words, "suspicious": suspicious}


def _status(entry: DeviceRecord) -> str:
    """Return ``"ok"``, ``"late"``, ``"left out"`` or, whatever the reason, ``"refused"``."""
    status = entry.status or "ok"
    return status if status in ("ok", LATE, "left out") else "refused"


def _refusals(rounds: Sequence[RoundRecord]) -> dict[str, int]:
    """Count why updates were refused, most frequent first."""
    refused = (entry.status for record in rounds for entry in record.devices if _status(entry) == "refused")
    return dict(Counter(clean(reason, LONGEST_REASON) for reason in refused).most_common())


def _custom_metrics(rounds: Sequence[RoundRecord]) -> dict[str, Floats]:
    """Return the custom metrics, one value per round."""
    names = dict.fromkeys(name for record in rounds for name in record.metrics)
    return {
        clean(name, LONGEST_NAME): _floats(record.metrics.get(name) for record in rounds)
        for name in itertools.islice(names, MOST_METRICS)
    }


def _suspicions(rounds: Sequence[RoundRecord]) -> dict[str, int]:
    """Count why updates were suspicious, most frequent first; reasons that differ only in numbers become one."""
    marks = [entry.suspicious for record in rounds for entry in record.devices if entry.suspicious]
    alike: dict[str, list[list[str]]] = {}
    for mark in marks:
        alike.setdefault(_NUMBER.sub("{}", mark), []).append(_NUMBER.findall(mark))
    found = Counter[str]()
    for text, numbers in alike.items():
        spans = [(min(column, key=float), max(column, key=float)) for column in zip(*numbers, strict=True)]
        parts = [low if low == high else f"{low} to {high}" for low, high in spans]
        reason = "".join(itertools.chain(*itertools.zip_longest(text.split("{}"), parts, fillvalue="")))
        found[clean(reason, LONGEST_REASON)] += len(numbers)
    return dict(found.most_common())


def _partition(info: Mapping[str, Any], path: Path) -> tuple[Ints | None, tuple[str, ...]]:
    if info.get("class_counts") is None:
        return None, ()
    try:
        counts = np.array(info["class_counts"], np.int64)
    except (TypeError, ValueError, OverflowError):
        counts = np.empty(0, np.int64)
    if counts.ndim != 2 or counts.size == 0 or (counts < 0).any():
        raise RunError(f"{path}: 'class_counts' must be a table of counts, devices by classes. Correct or delete it.")
    names = info.get("class_names")
    if names is None:
        return counts, tuple(str(c) for c in range(counts.shape[1]))
    if not isinstance(names, list) or len(names) != counts.shape[1]:
        raise RunError(f"{path}: 'class_names' must list {counts.shape[1]} names, one per column of 'class_counts'.")
    return counts, tuple(map(str, names))


def _limits(config: Mapping[str, Any], info: Mapping[str, Any], devices: Ints, folder: Path) -> tuple[float, Floats]:
    """Return the configured deadline, and the energy budget of each device from ``run.json``."""
    radio = config.get("radio")
    deadline = number(radio if isinstance(radio, dict) else {}, "deadline_s", str(folder / "config.toml"))
    given = info.get("budget_j")
    budgets = [{"budget_j": budget} for budget in given] if isinstance(given, list) else []
    known = [number(budget, "budget_j", str(folder / "run.json")) for budget in budgets]
    each = _floats(known[device] if 0 <= device < len(known) else None for device in devices)
    return np.nan if deadline is None else float(deadline), each
