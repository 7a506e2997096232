"""Finished training runs, looked up by their configuration, so that no run is trained twice.

A run is trained in a run folder of the work directory, where it can be resumed. When it is finished, its configuration,
version and numbers of every round become one small JSON file of the store. Two figures that need the same run share it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feddrop.config import Execution, FedDrop, RunConfig, from_table, to_table
from feddrop.errors import FeddropError, RunError
from feddrop.storage import RunFolder
from feddrop.storage.files import write_atomically

_SERIES = (
    *("train_loss", "test_loss", "test_accuracy"),
    *("push_bytes", "pull_bytes", "latency_s", "energy_j", "objective"),
)
LAST = 5
"""The accuracy of a run is the mean over this many last rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished run.

    Attributes:
        config: its configuration, as plain values.
        version: version of feddrop that trained it.
        series: one value per round for each name, ``[rounds]``: the totals of the record; ``mean_rate`` and
            ``devices``; the shares of devices limited by deadline and energy; the latency of the slowest device by
            measured costs and by formula; and the metrics of the method.
        wall_s: seconds that training took.
        key: the name under which it is stored.
    """

    config: dict[str, Any]
    version: str
    series: dict[str, list[float | None]]
    wall_s: float
    key: str = field(default="", compare=False)

    def values(self, name: str) -> npt.NDArray[np.float64]:
        """Return one series as an array; NaN where a round has no value or the run was saved without this series."""
        rounds = self.series.get(name) or [None] * len(self.series["test_accuracy"])
        return np.array([np.nan if v is None else v for v in rounds], dtype=np.float64)

    @property
    def accuracy(self) -> float:
        """Test accuracy: the mean over the last rounds."""
        return float(np.nanmean(self.values("test_accuracy")[-LAST:]))


def key_of(config: RunConfig) -> str:
    """Return the name under which a run is stored: a hash of the settings that decide its outcome.

    Only settings that differ from their defaults enter, so that a new setting does not rename finished runs. Where and
    how a run is executed does not enter, except for the dtype of the values that travel.
    """
    table = _chosen(config) | {"execution": _chosen(Execution(dtype=config.execution.dtype))}
    if config.method != FedDrop():
        table["method"] = {"name": config.method.name, **_chosen(config.method)}
    table.get("data", {}).pop("path", None)
    table.pop("callbacks", None)
    return hashlib.blake2b(json.dumps(table, sort_keys=True).encode(), digest_size=6).hexdigest()


def _chosen(config: Any) -> dict[str, Any]:
    """Return the settings that differ from their defaults, section by section."""
    chosen: dict[str, Any] = {}
    defaults = type(config)()
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if value != getattr(defaults, item.name):
            chosen[item.name] = _chosen(value) if dataclasses.is_dataclass(value) else value
    return chosen


class Store:
    """The finished runs of one scale, one file per run.

    Args:
        results: folder of finished runs.
        work: folder of unfinished run folders.
    """

    def __init__(self, results: Path, work: Path) -> None:
        self.results, self.work = results, work
        self._read: dict[str, Result] = {}

    def folder(self, config: RunConfig) -> Path:
        """Return the run folder of a configuration."""
        return self.work / key_of(config)

    def get(self, config: RunConfig) -> Result | None:
        """Return the finished run of a configuration, or None. Each file is read and checked once."""
        path = self._path(config)
        if path.stem in self._read:
            return self._read[path.stem]
        if not path.exists():
            return None
        try:
            result = Result(**json.loads(path.read_text()), key=path.stem)
            same = key_of(from_table(RunConfig, result.config)) == path.stem
        except (ValueError, TypeError, FeddropError) as error:
            raise RunError(f"{path} is not a result: {error}. Delete it to train it again.") from None
        if not same:  # e.g. a default has changed
            raise RunError(f"{path} holds a run of another configuration. Delete it to train it again.")
        self._read[path.stem] = result
        return result

    def all(self) -> dict[str, Result]:
        """Return every stored run by its key, in the order of the keys."""
        return {
            path.stem: Result(**json.loads(path.read_text()), key=path.stem)
            for path in sorted(self.results.glob("*.json"))
        }

    def fact(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the measurements stored under a name; measure and store them if there are none."""
        path = self.results / "facts" / f"{name}.json"
        if not path.exists():
            write_atomically(path, (json.dumps(measure(), indent=1) + "\n").encode())
        facts: dict[str, Any] = json.loads(path.read_text())
        return facts

    def _path(self, config: RunConfig) -> Path:
        return self.results / f"{key_of(config)}.json"

    def put(self, config: RunConfig) -> Result:
        """Store the finished run folder of a configuration as a result."""
        folder = self.folder(config)
        records = RunFolder(folder).records()
        if [record["round"] for record in records] != list(range(1, config.rounds + 1)):
            raise RunError(f"{folder} does not hold rounds 1 to {config.rounds}. Delete it to train it again.")
        series: dict[str, list[float | None]] = {name: [record[name] for record in records] for name in _SERIES}
        series |= _of_devices([[d for d in record["devices"] if d.usable] for record in records])
        if any(record.get("val_accuracy") is not None for record in records):
            series["val_accuracy"] = [record.get("val_accuracy") for record in records]
        for name in sorted({name for record in records for name in record.get("metrics") or {}}):
            series[name] = [(record.get("metrics") or {}).get(name) for record in records]
        result = Result(
            config=to_table(config),
            version=RunFolder(folder).about()["feddrop"],
            series={name: [_short(value) for value in row] for name, row in series.items()},
            wall_s=round(sum(record["wall_s"] for record in records), 1),
            key=key_of(config),
        )
        stored = [name for name in Result.__slots__ if name != "key"]  # the name of the file
        text = json.dumps({name: getattr(result, name) for name in stored}, separators=(",", ":"))
        write_atomically(self._path(config), text.encode())
        self._read.pop(result.key, None)
        return result


def _of_devices(rounds: list[list[dict[str, Any]]]) -> dict[str, list[float | None]]:
    """Aggregate the participating devices per round; leave out series that no device has."""

    def mean(values: list[float]) -> float | None:
        return float(np.mean(values)) if values else None

    series: dict[str, list[float | None]] = {
        "mean_rate": [mean([d["rate"] for d in row]) for row in rounds],
        "devices": [len(row) for row in rounds],
    }
    if any(d.get("binding") for row in rounds for d in row):
        for name in ("deadline", "energy"):
            series[f"held_{name}"] = [mean([name in (d["binding"] or "") for d in row]) for row in rounds]
    for name in ("measured_latency_s", "formula_latency_s"):
        if any(name in d for row in rounds for d in row):
            series[name] = [max(d[name] for d in row) if row else None for row in rounds]
    return series


def _short(value: float | None) -> float | None:
    return value if value is None or isinstance(value, int) else float(f"{value:.6g}")
