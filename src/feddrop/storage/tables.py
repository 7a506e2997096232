"""Records as tables (pandas, Parquet, CSV), with one row per round or one row per device per round."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddrop.errors import ConfigError, RunError, clean
from feddrop.storage.files import write_atomically
from feddrop.storage.records import DeviceRecord, RoundRecord, kinds

if TYPE_CHECKING:
    from pandas import DataFrame

Columns = dict[str, list[Any]]

_DTYPES = {"int": "int64", "float": "float64", "str": "object"}
_NESTED = ("metrics", "device_accuracy", "devices")


def columns(rounds: Sequence[RoundRecord], *, devices: bool = False) -> Columns:
    """Return the columns of a table, all of the same length; None for unknown values.

    Custom metrics become columns ``metrics.NAME``, in the order in which they first appear.
    """
    if devices:
        names = [one.name for one in dataclasses.fields(DeviceRecord)]
        pairs = [(record.round, device) for record in rounds for device in record.devices]
        return {"round": [number for number, _ in pairs]} | {
            name: [getattr(device, name) for _, device in pairs] for name in names
        }
    names = [one.name for one in dataclasses.fields(RoundRecord) if one.name not in _NESTED]
    metrics = list(dict.fromkeys(name for record in rounds for name in record.metrics))
    return {name: [getattr(record, name) for record in rounds] for name in names} | {
        f"metrics.{name}": [record.metrics.get(name) for record in rounds] for name in metrics
    }


def to_pandas(rounds: Sequence[RoundRecord], *, devices: bool = False) -> DataFrame:
    """Return a pandas table: numbers as float64 with NaN for unknown, counts as int64, words as strings or None."""
    pandas = _need("pandas")
    table = columns(rounds, devices=devices)
    return pandas.DataFrame({name: pandas.Series(values, dtype=_dtype(name)) for name, values in table.items()})


def write(rounds: Sequence[RoundRecord], path: Path, *, devices: bool = False) -> Path:
    """Write a table as ``.parquet`` or ``.csv``, atomically."""
    table = columns(rounds, devices=devices)
    match path.suffix.lower():
        case ".csv":
            text = io.StringIO(newline="")
            out = csv.writer(text)
            out.writerow(table)
            out.writerows(zip(*table.values(), strict=True))
            write_atomically(path, text.getvalue().encode())
        case ".parquet":
            write_atomically(path, _parquet(table))
        case other:
            raise ConfigError(f"{clean(path)} ends in {clean(other)!r}; it must end in '.parquet' or '.csv'.")
    return path


def _parquet(table: Columns) -> bytes:
    arrow = _need("pyarrow")
    parquet = _need("pyarrow.parquet")
    types = {"int64": arrow.int64(), "float64": arrow.float64(), "object": arrow.string()}
    arrays = {name: arrow.array(values, type=types[_dtype(name)]) for name, values in table.items()}
    sink = io.BytesIO()
    parquet.write_table(arrow.table(arrays), sink)
    return sink.getvalue()


def _dtype(name: str) -> str:
    known = kinds(RoundRecord) | kinds(DeviceRecord)
    return _DTYPES[known.get(name, "float")]  # custom metrics are numbers


def _need(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        name = package.partition(".")[0]
        raise RunError(f"this needs {name}, which is not installed. Run: pip install 'feddrop[pandas]'.") from None
