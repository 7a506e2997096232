"""The result of a comparison, and its summary as text and as HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from feddrop.comparison.verdicts import FAILS, HOLDS
from feddrop.config.display import html_table
from feddrop.report.measures import Row
from feddrop.report.quantities import RESOURCES, UNKNOWN, in_digits
from feddrop.storage import LoadedRun

_SCALES = {one.unit: one.scale for one in RESOURCES.values()}
_VERDICTS = {HOLDS: "better", FAILS: "worse"}


class Compared(NamedTuple):
    """The result of a comparison; printing it shows the scores of all arms, their differences and the verdicts.

    Attributes:
        page: the page that was written; tables and figures are beside it.
        rows: one per arm and measure, as in ``comparison.csv``.
        runs: the runs of every arm, one per seed.
    """

    page: Path
    rows: list[Row]
    runs: dict[str, list[LoadedRun]]

    def __repr__(self) -> str:
        return f"Compared({str(self.page)!r}: {', '.join(f'{arm} ({len(runs)})' for arm, runs in self.runs.items())})"

    def __str__(self) -> str:
        judged = dict.fromkeys(row.measure for row in self.rows if row.verdict and not row.unit)
        return "\n\n".join(_block(name, [row for row in self.rows if row.measure == name]) for name in judged)

    def _repr_html_(self) -> str:
        """Return the judged measures of every arm: mean, difference from the reference with its margin, and verdict."""
        judged = {row.measure for row in self.rows if row.verdict}
        rows = [
            (row.arm, row.measure, _pair(row, row.mean), _margin(row), row.verdict, row.why)
            for row in self.rows
            if row.measure in judged
        ]
        head = ("arm", "measure", "mean", "difference ± margin", "better?", "why")
        return html_table("Compared", head, rows, f"Page: {self.page}")


def _block(measure: str, rows: Sequence[Row]) -> str:
    """Return the rows of a measure as an aligned table."""
    reference = next(row.reference for row in rows if row.reference)
    head = (f"{measure}, {_seeds(rows)}", "mean ± deviation", f"difference from {reference} ± 95 % margin", "verdict")
    cells = [head, *((row.arm, _mean(row), _margin(row), _verdict(row)) for row in rows)]
    widths = [max(len(line[n]) for line in cells) for n in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def _seeds(rows: Sequence[Row]) -> str:
    counts = sorted({row.runs for row in rows})
    return f"{' or '.join(map(str, counts))} seed{'s' if counts != [1] else ''}"


def _mean(row: Row) -> str:
    return _pair(row, row.mean, row.deviation)


def _verdict(row: Row) -> str:
    if not row.reference:
        return "reference"
    return _VERDICTS.get(row.verdict, f"{row.verdict}{f': {row.why}' if row.why else ''}")


def _margin(row: Row) -> str:
    if not np.isfinite(row.difference):
        return ""
    return ("+" if row.difference > 0 else "") + _pair(row, row.difference, row.margin, percent="points")


def _pair(row: Row, value: float, spread: float = np.nan, percent: str = "%") -> str:
    """Write a value of a row, and its spread, in one suitable unit; accuracies in percent, with a decimal."""
    size, unit = _SCALES[row.unit](abs(value)) if row.unit in _SCALES else (1.0, "")
    write: Callable[[float], str] = in_digits
    if row.unit not in _SCALES and row.measure.startswith(("accuracy", "best")):
        size, unit, write = 0.01, percent, "{:z.1f}".format
    if not np.isfinite(value):
        return UNKNOWN
    return f"{write(value / size)}{f' ± {write(spread / size)}' if np.isfinite(spread) else ''} {unit}".strip()
