"""Read a run folder into a :class:`RunLog`: arrays aligned by device. Nothing in the folder is trusted."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from feddrop.errors import RunError, clean
from feddrop.report.runlog import (
    DEVICE_FIELDS,
    DEVICE_WORDS,
    LONGEST_LABEL,
    ROUND_FIELDS,
    EarlierJob,
    Floats,
    Ints,
    RunLog,
    Size,
    Words,
)
from feddrop.storage import RoundRecord, load_run
from feddrop.storage.devices import DeviceTable
from feddrop.storage.records import KEPT_AT, UNTRAINED, number, outcome_of

Log = TypeVar("Log", bound=RunLog)
LONGEST_REASON, LONGEST_NAME = 200, 40
MOST_METRICS = 12  # the most custom metrics that are drawn
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_RATE = re.compile(rf"{KEPT_AT}(0(?:\.\d+)?|\de-\d+)")


def read_run_log(run_dir: str | Path, kind: type[Log]) -> Log:
    """Read a run folder into this kind of log, as :func:`feddrop.report.read_log` does."""
    run = load_run(run_dir)
    if not run.rounds:
        raise RunError(
            f"{clean(run.folder)} has no metrics.jsonl, or no finished round in it. Let the run finish its first "
            "round, then write the report again."
        )
    by_device = _by_device(run.devices, len(run.rounds))
    counts, names = _partition(run.about, run.folder / "run.json")
    deadline, budget = _limits(run.settings, run.about, by_device["devices"], run.folder)
    if run.about.get("parameters") is not None:
        number(run.about, "parameters", str(run.folder / "run.json"))
    return kind(
        name=clean(run.about.get("label") or run.name, LONGEST_LABEL),
        config=run.settings,
        info=run.about,
        rounds=np.array([record.round for record in run.rounds], np.int64),
        by_round={key: _floats(getattr(record, key) for record in run.rounds) for key in ROUND_FIELDS},
        deadline_s=deadline,
        budget_j=budget,
        class_counts=counts,
        class_names=names,
        metrics=_custom_metrics(run.rounds),
        sizes=_sizes(run.rounds),
        untrained=run.rounds[-1].metrics.get(UNTRAINED) or 0.0,
        **by_device,
    )


def _floats(values: Iterator[float | None]) -> Floats:
    return np.array([np.nan if value is None else float(value) for value in values])


def _by_device(table: DeviceTable, rounds: int) -> dict[str, Any]:
    """Return the numbers, words and marks of every device in every round, as fields of a :class:`RunLog`."""
    keys = [
        (_numbers(part["round"].combine_chunks()), _numbers(part["device"].combine_chunks()))
        for part in table.parts(("round", "device"))
    ]
    devices = np.unique(np.concatenate([np.zeros(0, np.int64), *(device for _, device in keys)]))
    shape, size = (rounds, len(devices)), rounds * len(devices)
    numbers, codes, known = dict[str, Floats](), dict[str, npt.NDArray[np.int32]](), {key: [""] for key in DEVICE_WORDS}
    suspicious, refusals, marks = np.zeros(size, np.bool_), Counter[str](), Counter[str]()
    earlier = list[EarlierJob]()
    columns = (*DEVICE_FIELDS, *DEVICE_WORDS, "suspicious")
    for (round_, device), part in zip(keys, table.parts(columns), strict=True):
        at = (round_ - 1) * len(devices) + np.searchsorted(devices, device)
        earlier += _earlier(at, len(devices), part)
        for key in (key for key in columns if part[key].null_count < len(part)):
            if key in DEVICE_FIELDS:
                if key not in numbers:
                    numbers[key] = np.full(size, np.nan)
                numbers[key][at] = _numbers(part[key].combine_chunks().cast("float64"))
                continue
            words, which = _encoded(part[key])
            times = Counter(dict(enumerate(np.bincount(which, minlength=len(words)).tolist())))
            if key == "suspicious":
                suspicious[at] = which > 0
                marks.update({words[n]: times[n] for n in times if n})
                continue
            if key == "status":
                refusals.update({word: times[n] for n, word in enumerate(words) if _status(word) == "refused"})
                words = ["", *map(_status, words[1:])]
            known[key] += [word for word in dict.fromkeys(words) if word not in known[key]]
            if key not in codes:
                codes[key] = np.zeros(size, np.int32)
            codes[key][at] = np.array([known[key].index(word) for word in words])[which]
    absent = np.broadcast_to(np.nan, size), np.broadcast_to(np.int32(0), size)
    return {
        "devices": devices,
        "by_device": {key: numbers.get(key, absent[0]).reshape(shape) for key in DEVICE_FIELDS},
        "words": {key: Words(codes.get(key, absent[1]).reshape(shape), known[key]) for key in DEVICE_WORDS},
        "suspicious": suspicious.reshape(shape),
        "refusals": dict(refusals.most_common()),
        "suspicions": dict(_merged(marks).most_common()),
        "earlier": tuple(earlier),
    }


def _earlier(at: Ints, devices: int, part: Any) -> Iterator[EarlierJob]:
    """Yield the rows of a table that a later row of the same round and device replaces."""
    last = np.zeros(len(at), np.bool_)
    last[len(at) - 1 - np.unique(at[::-1], return_index=True)[1]] = True
    times = ("start_s", "push_s", "compute_s", "pull_s")
    for row in np.flatnonzero(~last).tolist():
        found = [part[key][row].as_py() for key in times]
        lasted = [np.nan if value is None else float(value) for value in found]
        yield EarlierJob(*divmod(int(at[row]), devices), _status(part["status"][row].as_py() or ""), *lasted)


def _encoded(column: Any) -> tuple[list[str], Ints]:
    """Return the different words of a column, after an empty one for null, and the place of each row among them."""
    encoded = column.combine_chunks().dictionary_encode()
    words = [clean(word, LONGEST_REASON) for word in encoded.dictionary.to_pylist()]
    return ["", *words], _numbers(encoded.indices, -1).astype(np.int64) + 1


def _numbers(values: Any, null: float = np.nan) -> npt.NDArray[Any]:
    """Return the numbers of an array; its own ``to_numpy`` would import pandas, which takes half a second."""
    return np.from_dlpack(values.fill_null(null) if values.null_count else values)


def _status(status: str) -> str:
    """Return ``"ok"``, ``"late"``, ``"left out"`` or, whatever the reason, ``"lost"`` or ``"refused"``."""
    return outcome_of(status) if status else ""


def _custom_metrics(rounds: Sequence[RoundRecord]) -> dict[str, Floats]:
    """Return the custom metrics, one value per round."""
    names = dict.fromkeys(name for record in rounds for name in record.metrics)
    names = {name: None for name in names if name != UNTRAINED and not name.startswith(KEPT_AT)}
    return {
        clean(name, LONGEST_NAME): _floats(record.metrics.get(name) for record in rounds)
        for name in itertools.islice(names, MOST_METRICS)
    }


def _sizes(rounds: Sequence[RoundRecord]) -> tuple[Size, ...]:
    """Return the results of the sub-models in the last round that has any, by rate."""
    measured = (record.metrics for record in reversed(rounds) if any(map(_RATE.fullmatch, record.metrics)))
    last = next(measured, {})
    rates = [match[1] for match in map(_RATE.fullmatch, last) if match]
    found = {rate: _floats(last.get(f"{what}_at_{rate}") for what in ("kept", "accuracy", "loss")) for rate in rates}
    return tuple(Size(float(rate), *map(float, values)) for rate, values in found.items())


def _merged(marks: Counter[str]) -> Counter[str]:
    """Count why updates were suspicious; reasons that differ only in numbers become one, with their ranges."""
    alike: dict[str, list[list[str]]] = {}
    times = Counter[str]()
    for mark, count in marks.items():
        text = _NUMBER.sub("{}", mark)
        alike.setdefault(text, []).append(_NUMBER.findall(mark))
        times[text] += count
    found = Counter[str]()
    for text, numbers in alike.items():
        spans = [(min(column, key=float), max(column, key=float)) for column in zip(*numbers, strict=True)]
        parts = [low if low == high else f"{low} to {high}" for low, high in spans]
        reason = "".join(itertools.chain(*itertools.zip_longest(text.split("{}"), parts, fillvalue="")))
        found[clean(reason, LONGEST_REASON)] += times[text]
    return found


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
