"""CSV tables written by users; errors name file, line and column."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from feddrop.config.parsing import read_text
from feddrop.errors import ConfigError

_LONGEST = 40


class TableRow(NamedTuple):
    """One row of a table."""

    where: str  # file and line, the beginning of a message
    cells: dict[str, str]  # text by column name, for all columns

    def number(self, column: str) -> float:
        """Return the number in a column; infinity and NaN must be written as ``inf`` and ``nan``."""
        text = self.cells[column].strip()
        try:
            value = float(text)
        except ValueError:
            value = math.inf
        if math.isinf(value) and text.lower().lstrip("+-") not in ("inf", "infinity"):
            raise ConfigError(f"{self.where}: {column} is {brief(text)}; it must be a number, at most 1.8e308.")
        return value

    def whole(self, column: str, least: int) -> int:
        """Return the whole number in a column."""
        text = self.cells[column].strip()
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise ConfigError(f"{self.where}: {column} is {brief(text)}; it must be a whole number from {least}.")
        return value


def read_table(path: str | Path, what: str) -> tuple[list[str], list[TableRow]]:
    """Read a CSV file (UTF-8, with a header line): return its column names and the rows that are not empty.

    Messages name its content, ``what``.
    """
    name = repr(str(path))
    try:
        lines = csv.reader(io.StringIO(read_text(path, f"the {what}"), newline=""))
        columns = [column.strip() for column in next(lines, [])]
        found = [(lines.line_num, line) for line in lines if any(cell.strip() for cell in line)]
    except csv.Error as error:
        raise ConfigError(f"cannot read the {what} {name}: {error}.") from None
    if twice := [column for column in columns if columns.count(column) > 1]:
        raise ConfigError(f"{name} has two columns named {brief(twice[0])}; remove one.")
    rows = [TableRow(f"{name}, line {number}", dict(zip(columns, line, strict=False))) for number, line in found]
    for row, (_, line) in zip(rows, found, strict=True):
        if len(line) != len(columns):
            raise ConfigError(f"{row.where}: {len(line)} cells for {len(columns)} columns.")
    return columns, rows


def by_numbers(rows: Sequence[TableRow], **first: int) -> dict[tuple[int, ...], TableRow]:
    """Return the rows by the numbers in these columns, which count from ``first``; each combination occurs once."""
    found: dict[tuple[int, ...], TableRow] = {}
    for row in rows:
        key = tuple(row.whole(column, least) for column, least in first.items())
        if key in found:
            which = ", ".join(f"{column} {number}" for column, number in zip(first, key, strict=True))
            raise ConfigError(f"{row.where}: a second row for {which}; remove one.")
        found[key] = row
    return found


def by_device(rows: Sequence[TableRow], devices: int, what: str) -> list[TableRow]:
    """Return the rows of table ``what`` in the order of their column ``device``, exactly one per device."""
    found = by_numbers(rows, device=0)
    for (device,), row in found.items():
        if device >= devices:
            raise ConfigError(f"{row.where}: device is {device}; the devices are 0 to {devices - 1}.")
    if missing := [device for device in range(devices) if (device,) not in found]:
        raise ConfigError(f"{what} has no row for device {missing[0]}; the devices are 0 to {devices - 1}.")
    return [found[device,] for device in range(devices)]


def brief(text: Any) -> str:
    """Return a quoted text, or a value, shortened and without control characters."""
    try:
        full = text if isinstance(text, str) else str(text)
    except ValueError:  # Python does not print whole numbers of more than 4,300 digits
        return "a number of thousands of digits"
    shown = ascii(full) if isinstance(text, str) else ascii(full)[1:-1]
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}... ({len(full):,} characters)"
