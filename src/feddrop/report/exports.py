"""A comparison as files for a paper: CSV, a LaTeX table and figures at the width of a journal column."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING

from feddrop.comparison.verdicts import FAILS, HOLDS
from feddrop.report.compare import Standings, ways_of
from feddrop.report.curves import accuracy_figure, loss_figure
from feddrop.report.measures import Measure, Row
from feddrop.storage import tables
from feddrop.storage.files import write_atomically

if TYPE_CHECKING:
    from feddrop.report.journal import Width

_SPECIAL = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        "γ": r"$\gamma$",
        "µ": r"$\mu$",
    }
)
_MARKS = {HOLDS: r"^{+}", FAILS: r"^{-}"}


def write_csv(found: Standings, path: Path) -> None:
    """Write one row per arm and measure; unknown numbers are empty."""
    rows = [["" if isinstance(cell, float) and not math.isfinite(cell) else cell for cell in row] for row in found.rows]
    tables.write_csv(path, [Row._fields, *rows])


def write_latex(found: Standings, path: Path) -> None:
    """Write the judged measures as a table for the package ``booktabs``, one row per arm."""
    lines = [(group, line[: len(found.judged)]) for group, line in found.lines()]
    scales = [measure.scale(max(abs(line[n][1].mean) for _, line in lines)) for n, measure in enumerate(found.judged)]
    head = [
        f"{_escaped(measure.name)}{f' ({_escaped(unit)})' if unit else ''}"
        for measure, (_, unit) in zip(found.judged, scales, strict=True)
    ]
    body = [
        [_escaped(group.name), *(_cell(*pair, (size, "")) for pair, (size, _) in zip(line, scales, strict=True))]
        for group, line in lines
    ]
    seeds = sorted({len(group.runs) for group in found.groups})
    runs = " or ".join(map(str, seeds))
    spread = any(math.isfinite(row.deviation) for _, line in lines for _, row in line)
    corner = r"mean $\pm$ standard deviation" if spread else ""
    about = [f"% Means over {runs} runs; > is a bound: not all runs reached the target."]
    if found.reference is not None:
        about += [f"% + better, - worse than {found.reference.name!a}, seed by seed, beyond a 95 % margin."]
    rows = [" & ".join(line) + r" \\" for line in ([corner, *head], *body)]
    text = [
        *about,
        rf"\begin{{tabular}}{{l{'r' * len(head)}}}",
        *(r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule"),
        r"\end{tabular}",
    ]
    write_atomically(path, ("\n".join(text) + "\n").encode())


def write_figures(found: Standings, folder: Path, width: Width) -> list[Path]:
    """Draw the score against each resource, as PDF and PNG; return the files."""
    draw = accuracy_figure if found.score.better > 0 else loss_figure
    name, written = "accuracy" if found.score.better > 0 else "loss", []
    for way in ways_of(found.runs):
        figure = draw(found.groups, against=way, width=width)
        for kind in ("pdf", "png"):
            drawn = io.BytesIO()
            figure.savefig(drawn, format=kind, metadata={"CreationDate": None} if kind == "pdf" else None)
            written.append(folder / f"{name}-{way}.{kind}")
            write_atomically(written[-1], drawn.getvalue())
    return written


def _cell(measure: Measure, row: Row, scale: tuple[float, str]) -> str:
    if not math.isfinite(row.mean):
        return "--"
    sign = "" if row.reached == row.runs else ">"
    text = measure.write(row.mean, row.deviation, sign, scale).replace("±", r"\pm").replace(",", "{,}")
    return f"${text}{_MARKS.get(row.verdict, '')}$"


def _escaped(text: str) -> str:
    return text.translate(_SPECIAL)
