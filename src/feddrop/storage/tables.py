"""Records as tables (pandas, Parquet, CSV), with one row per round or one row per device per round."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddrop.errors import ConfigError, RunError, clean
from feddrop.storage.devices import DeviceTable, arrow_type
from feddrop.storage.files import write_atomically
from feddrop.storage.records import NESTED, RoundRecord, kinds

if TYPE_CHECKING:
    import pyarrow as pa
    from pandas import DataFrame

Rows = Sequence[RoundRecord] | DeviceTable
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_arrow(rows: Rows) -> pa.Table:
    """Return rounds or devices as a ``pyarrow.Table`` with nulls for unknown values.

    Counts and custom metrics become columns ``counts.NAME`` and ``metrics.NAME``, in order of their first appearance.
    """
    import pyarrow

    if isinstance(rows, DeviceTable):
        return rows.to_arrow()
    types = {name: arrow_type(kind) for name, kind in kinds(RoundRecord).items() if name not in NESTED}
    table = {name: pyarrow.array([row[name] for row in rows], kind) for name, kind in types.items()}
    for field, kind, absent in (("counts", "int", 0), ("metrics", "float", None)):
        for name in dict.fromkeys(name for row in rows for name in getattr(row, field)):
            values = [getattr(row, field).get(name, absent) for row in rows]
            table[f"{field}.{name}"] = pyarrow.array(values, arrow_type(kind))
    return pyarrow.table(table)


def to_pandas(rows: Rows) -> DataFrame:
    """Return a pandas table: numbers as float64 with NaN for unknown, counts as int64, words as strings or None."""
    try:
        import_module("pandas")
    except ImportError:
        raise RunError("this needs pandas, which is not installed. Run: pip install 'feddrop[pandas]'.") from None
    return to_arrow(rows).to_pandas()


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Write a CSV file atomically."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(map(as_text, row) for row in rows)
    write_atomically(path, text.getvalue().encode())


def as_text(cell: Any) -> Any:
    """Return a cell of a CSV file; a string that a spreadsheet would run as a formula gets a leading apostrophe."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def write(rows: Rows, path: Path) -> Path:
    """Write a table as ``.parquet`` or ``.csv``, atomically."""
    match path.suffix.lower():
        case ".csv":
            table = to_arrow(rows)
            parts = table.to_batches(max_chunksize=10_000)
            lines = (zip(*(column.to_pylist() for column in part.columns), strict=True) for part in parts)
            write_csv(path, chain([table.column_names], chain.from_iterable(lines)))
        case ".parquet":
            write_atomically(path, _parquet(to_arrow(rows)))
        case other:
            hint = " `feddrop compare` writes LaTeX tables." if other == ".tex" else ""
            raise ConfigError(f"{clean(path)} ends in {clean(other)!r}; it must end in '.parquet' or '.csv'.{hint}")
    return path


def _parquet(table: Any) -> bytes:
    from pyarrow import parquet

    sink = io.BytesIO()
    parquet.write_table(table, sink)
    return sink.getvalue()
