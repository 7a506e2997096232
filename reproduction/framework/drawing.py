"""Panels, error bars and legends of the figures, in the style of the reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def panels(titles: list[str]) -> tuple[Figure, list[Axes]]:
    """Make a figure with one panel per title, two per row."""
    from feddrop.report.style import MUTED, TEXT, WIDE, blank_figure, soften

    rows = (len(titles) + 1) // 2
    figure = blank_figure(WIDE, 3.8 * rows, dpi=150)
    axes = [figure.add_subplot(rows, 2, i + 1) for i in range(len(titles))]
    for panel, title in zip(axes, titles, strict=True):
        soften(panel)
        panel.set_title(title, loc="left", fontsize=TEXT, color=MUTED, pad=12)
    return figure, axes


def draw_seeds(panel: Axes, x: Sequence[float], rows: Sequence[Sequence[float | None]], **style: Any) -> None:
    """Draw the mean over seeds at every x with its standard error; skip what was not run."""
    points = [(at, [v for v in row if v is not None]) for at, row in zip(x, rows, strict=True)]
    known = [
        (at, np.mean(row), np.std(row, ddof=1) / np.sqrt(len(row)) if len(row) > 1 else 0.0)
        for at, row in points
        if row
    ]
    if known:
        at, means, errors = zip(*known, strict=True)
        panel.errorbar(at, means, yerr=errors, capsize=2, **style)


def not_run(panel: Axes) -> None:
    """Label an empty panel."""
    from feddrop.report.style import MUTED

    panel.set_axis_off()
    panel.text(0.5, 0.5, "not run", transform=panel.transAxes, ha="center", color=MUTED)


def legend(panel: Axes, *, below: bool = False) -> None:
    """Add a legend if there are labels; below the panel if lines fill it."""
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, -0.16), "ncols": 2} if below else {}
    if panel.get_legend_handles_labels()[0]:
        panel.legend(frameon=False, fontsize=8, **place)
