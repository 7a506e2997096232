"""Tables that people write: CSV files, read so that a slip is named by file, line and column."""

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


class Row(NamedTuple):
    """One line of a table.

    Attributes:
        where: file and line, to begin a message with.
        cells: by name of the column; all columns are there.
    """

    where: str
    cells: dict[str, str]

    def number(self, column: str) -> float:
        """The number in a column; ``inf`` and ``nan`` only where they are written out."""
        text = self.cells[column].strip()
        try:
            value = float(text)
        except ValueError:
            raise ConfigError(f"{self.where}: {column} is {brief(text)}; it must be a number.") from None
        if math.isinf(value) and "inf" not in text.lower():
            raise ConfigError(f"{self.where}: {column} is {brief(text)}, beyond what a number can be.")
        return value

    def whole(self, column: str, least: int) -> int:
        """The whole number in a column."""
        text = self.cells[column].strip()
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise ConfigError(
                f"{self.where}: {column} is {brief(text)}; it must be a whole number, and they count from {least}."
            )
        return value


def read_table(path: str | Path, what: str) -> tuple[list[str], list[Row]]:
    """Read a CSV file with a line of column names; a byte-order mark before it is no part of it.

    Args:
        path: the file, UTF-8.
        what: is in it, to say what cannot be read.

    Returns:
        The names of the columns, and the rows: none is empty, and each has all columns.
    """
    name = repr(str(path))
    try:
        lines = csv.reader(io.StringIO(read_text(path, f"the {what}"), newline=""))
        columns = [column.strip() for column in next(lines, [])]
        found = [(lines.line_num, line) for line in lines if any(cell.strip() for cell in line)]
    except csv.Error as error:
        raise ConfigError(f"cannot read the {what} {name}: {error}.") from None
    for column in columns:
        if columns.count(column) > 1:
            raise ConfigError(f"{name} has two columns named {brief(column)}; leave one out.")
    for number, line in found:
        if len(line) != len(columns):
            raise ConfigError(f"{name}, line {number}: {len(line)} cells for {len(columns)} columns.")
    return columns, [Row(f"{name}, line {number}", dict(zip(columns, line, strict=True))) for number, line in found]


def by_device(rows: Sequence[Row], devices: int, what: str) -> list[Row]:
    """Return the rows in the order of their devices, one each.

    Args:
        rows: with a column ``device``, from 0.
        devices: how many there are.
        what: the table is, to say who is missing.
    """
    order: dict[int, Row] = {}
    for row in rows:
        device = row.whole("device", 0)
        if device in order:
            raise ConfigError(f"{row.where}: device {device} has a row already.")
        if device >= devices:
            raise ConfigError(f"{row.where}: device is {device}, but the devices are 0 to {devices - 1}.")
        order[device] = row
    for device in range(devices):
        if device not in order:
            raise ConfigError(f"{what} has no row of device {device}; the devices are 0 to {devices - 1}.")
    return [order[device] for device in range(devices)]


def brief(text: Any) -> str:
    """A text in quotes, or a value, cut where it is long, nothing in it that could disturb a terminal."""
    try:
        whole = text if isinstance(text, str) else str(text)
    except ValueError:  # Python does not write out whole numbers of more than 4,300 digits
        return "a number of thousands of digits"
    shown = ascii(whole) if isinstance(text, str) else ascii(whole)[1:-1]
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}... ({len(whole):,} characters)"
