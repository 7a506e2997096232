"""The style of all figures, and their conversion to SVG that follows the page's light or dark theme.

Figures are drawn in the light colours below. In the page, each becomes a CSS variable with a light and a dark value.
Both palettes remain distinguishable under protanopia, deuteranopia and tritanopia (tested). Matplotlib is imported only
to draw.
"""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ET  # reads only what Matplotlib has just written
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from feddrop.errors import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, SURFACE = "#1b1f24", "#656d78", "#e4e6ea", "#ffffff"
SERIES = (
    *("#2a5fc4", "#d9740c", "#159c92", "#6b1d5c", "#7a5c02"),
    *("#a56ff0", "#170800", "#0308a7", "#342b04", "#a9336f"),
)
DARK_SERIES = (
    *("#5295f5", "#e58a35", "#62ecd4", "#b0609a", "#f0d630"),
    *("#bdb2ff", "#d7111b", "#425be3", "#b7939b", "#ebfea5"),
)
MAP, OVER = "#3b7ddd", "#d9730d"  # colours inside images, which cannot follow the theme: readable on light and dark
BINDINGS = {
    "deadline": MAP,
    "energy": OVER,
    "deadline+energy": "#695a1e",
    "rate cap": "#a8438f",
    "none": "#9aa1ab",
    "left out": "#30343a",
    "absent": "#d5d8dd",
}
"""The colour of every binding limit that the allocator reports, the same in all figures."""

HALF, WIDE, HEIGHT = 5.4, 11.2, 3.1  # inches: width over one column and over both columns of the page, height
TEXT = 10.0  # size of all text, in points
PIXELS = 1.36  # pixels of the page per point of a figure at full size: text is then as large as the captions
Point = tuple[float, float]
LONGEST_LABEL = 28
FEW_POINTS = 40
_VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", SURFACE: "var(--surface)"} | {
    colour: f"var(--series-{n})" for n, colour in enumerate(SERIES)
}
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_FONT = re.compile(r"'DejaVu Sans'[^;]*")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")


class EndLabel(NamedTuple):
    """A label beside the last point of a line."""

    x: float
    y: float
    text: str
    colour: str


@cache
def figure_class() -> type[Figure]:
    """Return a subclass of Matplotlib's Figure that notebooks display and that saves with TrueType fonts."""
    import matplotlib
    from matplotlib.figure import Figure

    class ReportFigure(Figure):
        def savefig(self, *args: Any, **options: Any) -> None:
            """Save with TrueType fonts in PDF and PostScript, as journals require, whatever the user's settings."""
            with matplotlib.rc_context({"pdf.fonttype": 42, "ps.fonttype": 42}):
                super().savefig(*args, **options)

        def _repr_svg_(self) -> str:
            drawn = io.StringIO()
            self.savefig(drawn, format="svg")
            return drawn.getvalue()

    return ReportFigure


def blank_figure(width: float, height: float, dpi: float = 200) -> Figure:
    """Return an empty figure of this size, in inches."""
    return figure_class()(figsize=(width, height), dpi=dpi, layout="constrained", facecolor=SURFACE)


def new_figure(title: str, height: float = HEIGHT, width: float = HALF) -> tuple[Figure, Axes]:
    """Return a figure of this size (inches) with one axes; ``title`` names the quantity and its unit."""
    figure = blank_figure(width, height)
    axes = figure.add_subplot()
    soften(axes)
    axes.set_title(title, loc="left", fontsize=TEXT, color=MUTED, pad=12, y=1.0)
    return figure, axes


def row_height(devices: int) -> float:
    """Return the height, in inches, of a map of this many devices and of the figure beside it."""
    return float(np.clip(1.0 + 0.21 * devices, HEIGHT, 4.2))


def soften(axes: Axes) -> None:
    """Reduce an axes to light horizontal grid lines, a base line and the tick labels."""
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=TEXT, labelcolor=MUTED, pad=6)
    axes.set_facecolor("none")


def round_axis(axes: Axes, rounds: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    """Set up the x-axis for these rounds, with a small margin."""
    integer_ticks(axes)
    first, last = float(rounds[0]), float(rounds[-1])
    room = min(0.5, 0.015 * (last - first)) or 0.5
    axes.set_xlim(first - room, last + room)


def number_devices(axes: Axes, devices: np.ndarray[tuple[int], np.dtype[np.int64]], side: str = "x") -> None:
    """Label positions 0, 1, ... of an axis with device ids: all if they fit, else evenly spaced ones."""
    steps = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
    step = 1 if len(devices) <= 20 else next((step for step in steps if 13 * step >= len(devices)), 10_000)
    place = np.arange(0, len(devices), step)
    axis = axes.yaxis if side == "y" else axes.xaxis
    axis.set_ticks(place, [str(device) for device in devices[place]])
    axis.set_label_text("device", fontsize=TEXT, color=MUTED)


def integer_ticks(axes: Axes, label: str = "round", side: str = "x") -> None:
    """Use integer ticks on the x-axis, or on the axis named by ``side``."""
    from matplotlib.ticker import MaxNLocator

    axis = axes.yaxis if side == "y" else axes.xaxis
    axis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axis.set_label_text(label, fontsize=TEXT, color=MUTED)


def draw_line(
    axes: Axes,
    x: np.ndarray[Any, np.dtype[Any]],
    y: np.ndarray[Any, np.dtype[Any]],
    colour: str,
    dash: object = "solid",
    marker: str = "o",
) -> None:
    """Draw a line, with markers if it has few points."""
    shape = marker if len(x) <= FEW_POINTS else None
    axes.plot(x, y, color=colour, linewidth=2, linestyle=dash, marker=shape, ms=4, solid_capstyle="round")


def end_labels(axes: Axes, labels: Sequence[EndLabel]) -> None:
    """Write each label to the right of the longest line's end, moved apart where labels would overlap.

    A line that ends earlier is connected to its label by dots.
    """
    if not labels:
        return
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    end = max(label.x for label in labels)
    points = 72 * (figure_height(axes) - 0.75)
    wanted = np.array([(label.y - low) / (high - low) * points for label in labels])
    for label, at, to in zip(labels, wanted, spread_labels(wanted, 1.25 * TEXT), strict=True):
        if end - label.x > 0.01 * (right - left):
            axes.plot([label.x, end], [label.y] * 2, color=label.colour, linewidth=1, linestyle=(0, (1, 3)))
        text, look = clean(label.text, LONGEST_LABEL), {"fontweight": "bold", "va": "center"}
        note(axes, text, (end, label.y), (7, to - at), label.colour, **look, annotation_clip=False, parse_math=False)
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)


def note(axes: Axes, text: str, at: Point, shift: Point, colour: str = INK, **look: Any) -> None:
    """Write a text at a point, shifted by this many points."""
    axes.annotate(text, at, xytext=shift, textcoords="offset points", color=colour, **({"fontsize": TEXT} | look))


def figure_height(axes: Axes) -> float:
    """Return the height of the figure that holds an axes."""
    root = axes.get_figure(root=True)
    return root.get_figheight() if root is not None else HEIGHT


def spread_labels(wanted: np.ndarray[tuple[int], np.dtype[np.float64]], gap: float) -> list[float]:
    """Return positions near the wanted ones, in the same order, at least ``gap`` apart and not below zero.

    Labels that would overlap are spread around their common mean.
    """
    order = np.argsort(wanted, kind="stable")
    groups: list[tuple[float, list[int]]] = []  # mean, members in ascending order
    for i in order:
        middle, members = float(wanted[i]), [int(i)]
        while groups and middle - groups[-1][0] < gap * (len(members) + len(groups[-1][1])) / 2:
            below, lower = groups.pop()
            middle = (middle * len(members) + below * len(lower)) / (len(members) + len(lower))
            members = lower + members
            middle = max(middle, gap * (len(members) - 1) / 2)
        groups.append((middle, members))
    moved = [0.0] * len(wanted)
    for middle, members in groups:
        for n, i in enumerate(members):
            moved[i] = middle + gap * (n - (len(members) - 1) / 2)
    return moved


def to_svg(name: str, draw: Callable[[], Figure]) -> str:
    """Draw a figure as inline SVG: colours as CSS variables, text as text, ids prefixed with ``name``.

    Matplotlib's defaults apply while drawing, not the user's settings: the same run gives the same bytes. ElementTree
    escapes the text, so that labels cannot inject markup.
    """
    import matplotlib

    drawn = io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": name, "font.sans-serif": ["DejaVu Sans"]})
        # The browser draws the text, so glyphs missing from Matplotlib's font do not matter.
        warnings.filterwarnings("ignore", message="Glyph")
        draw().savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    root = ET.fromstring(drawn.getvalue())  # noqa: S314
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        renamed = {key.rpartition("}")[2]: _restyle(key, value, name) for key, value in element.attrib.items()}
        if element.tag in ("g", "image"):
            renamed.pop("id", None)  # never referenced
        element.attrib = renamed
    for size in ("width", "height"):
        root.attrib.pop(size)
    root.attrib["style"] = f"--natural: {float(root.attrib['viewBox'].split()[2]) * PIXELS:.0f}px"
    root.attrib["aria-hidden"] = "true"  # the caption describes it
    return re.sub(r">\s+<", "><", ET.tostring(root, encoding="unicode"))


def _restyle(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key.endswith("href") and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    if key == "clip-path":
        return value.replace("url(#", f"url(#{name}-")
    if key == "style":
        return _COLOUR.sub(lambda match: _VARIABLES.get(match[0], match[0]), _FONT.sub("var(--font)", value))
    if key in ("d", "x", "y"):
        return _LONG_NUMBER.sub(lambda match: f"{float(match[0]):.2f}", value)
    return value
