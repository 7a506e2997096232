"""The figure of a partition: which device holds which classes, as in the paper's figure of Dirichlet(0.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from feddrop.errors import ConfigError, clean
from feddrop.report import style
from feddrop.report.maps import shaded
from feddrop.report.runlog import Floats, Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VECTOR_CIRCLES, MOST_CIRCLES = 600, 2000
"""Above the first number, circles are drawn as one image; above the second they would be too small: a map."""


def is_tall(devices: int, classes: int) -> bool:
    """Return whether the figure fits one column, with one row per class."""
    return 4 <= classes <= 24 and 3 <= devices <= 14


def partition_figure(counts: ArrayLike, class_names: Sequence[str] | None = None) -> Figure:
    """Draw one circle per device and class, with an area proportional to its samples; bars are the totals per device.

    A few classes are drawn as rows, one column wide; many as columns, over the full width. Where circles would be too
    small, the number of samples is the opacity of a cell.

    Args:
        counts: samples, ``[devices, classes]``.
        class_names: one name per class; numbers if None.
    """
    given = np.asarray(counts)
    if given.ndim != 2 or not given.any() or (given < 0).any():
        raise ConfigError(f"counts has shape {given.shape}; it must be devices by classes, with samples in it.")
    table = given.astype(np.int64)
    names = [str(c) for c in range(table.shape[1])] if class_names is None else [clean(n, 16) for n in class_names]
    if len(names) != table.shape[1]:
        raise ConfigError(f"class_names has {len(names)} names for {table.shape[1]} classes. Give one name per class.")
    return _tall_figure(table, names) if is_tall(*table.shape) else _wide_figure(table, names)


def _tall_figure(table: Ints, names: Sequence[str]) -> Figure:
    devices, classes = table.shape
    cell = min(0.4, 4.2 / devices)  # inches
    figure, axes = style.new_figure("", 1.9 + cell * classes)
    _circles(axes, table.T, cell, cell)
    axes.set_aspect("equal")
    axes.set_yticks(range(classes), names, parse_math=False)
    axes.set_ylabel("class", fontsize=style.TEXT, color=style.MUTED)
    style.number_devices(axes, np.arange(devices))
    totals = axes.inset_axes((0.0, 1 + 0.3 / classes, 1.0, 0.7 / (cell * classes)), sharex=axes)
    sums = table.sum(axis=1)
    totals.bar(np.arange(devices), sums, width=0.62, color=style.SERIES[0], alpha=0.85)
    _finish(totals, table)
    for k, total in enumerate(sums):
        size = style.TEXT - 1 if devices <= 10 else style.TEXT - 3
        style.note(totals, f"{total:,}", (float(k), float(total)), (0, 3), ha="center", fontsize=size)
    return figure


def _wide_figure(table: Ints, names: Sequence[str]) -> Figure:
    devices, classes = table.shape
    cell = 9.0 / classes
    row = float(np.clip(6.5 / devices, 0.09, 0.34))
    figure, axes = style.new_figure("", min(1.7 + row * devices, 10.0), style.WIDE)
    _circles(axes, table, cell, row)
    if classes <= 130:
        size = float(np.clip(62 * cell, 5, style.TEXT - 1))
        upright = max(map(len, names)) * size / 100 > cell  # a letter is about 0.7 of its size wide
        axes.set_xticks(range(classes), names, rotation=90 * upright, fontsize=size, parse_math=False)
    else:
        style.integer_ticks(axes, "class")
    style.number_devices(axes, np.arange(devices), "y")
    totals = axes.inset_axes((1.01, 0.0, 0.09, 1.0), sharey=axes)
    sums = table.sum(axis=1)
    if devices <= 40:
        totals.barh(np.arange(devices), sums, height=0.6, color=style.SERIES[0], alpha=0.85)
    else:
        edges = np.arange(devices + 1) - 0.5
        totals.stairs(sums, edges, orientation="horizontal", fill=True, color=style.SERIES[0], alpha=0.85)
    _finish(totals, table)
    for k, total in enumerate(sums if devices <= 20 else ()):
        style.note(totals, f"{total:,}", (float(total), float(k)), (4, 0), va="center", fontsize=style.TEXT - 1)
    return figure


def _circles(axes: Axes, table: Ints, width: float, height: float) -> None:
    """Draw ``table[row, column]`` as circles in cells of this size (inches), as large as legible."""
    rows, columns = np.nonzero(table)
    axes.spines["bottom"].set_visible(False)
    if len(rows) > MOST_CIRCLES:
        axes.imshow(shaded(np.where(table > 0, table / table.max(), np.nan)), aspect="auto", interpolation="none")
        axes.grid(visible=False)
        return
    relative = np.sqrt(table / table.max())  # diameters relative to the largest
    area = (72 * _widest(relative, width, height) * relative[rows, columns]) ** 2  # scatter takes the squared width
    dots = axes.scatter(columns, rows, s=area, color=style.SERIES[0], alpha=0.8, linewidths=0)
    dots.set_rasterized(len(rows) > VECTOR_CIRCLES)
    axes.grid(axis="both", color=style.GRID, linewidth=0.6)
    axes.set_xlim(-0.7, table.shape[1] - 0.3)
    axes.set_ylim(table.shape[0] - 0.4, -0.6)


def _widest(relative: Floats, width: float, height: float) -> float:
    """Return the diameter of the largest circle, in inches: rows do not touch, and few neighbours in a row do."""
    if relative.shape[1] < 2:
        return 0.94 * min(width, height)
    reach = float(np.quantile((relative[:, 1:] + relative[:, :-1]) / 2, 0.97))
    return min(0.94 * height, max(0.94 * min(width, height), 1.05 * width / max(reach, 1e-9)))


def _finish(totals: Axes, table: Ints) -> None:
    style.soften(totals)
    totals.grid(visible=False)
    totals.spines["bottom"].set_visible(False)
    totals.tick_params(labelbottom=False, labelleft=False)
    mark = "largest circle" if np.count_nonzero(table) <= MOST_CIRCLES else "darkest cell"
    title = f"samples; {mark} {table.max():,}"
    totals.set_title(title, loc="left", fontsize=style.TEXT, color=style.MUTED, pad=18, y=1.0)
