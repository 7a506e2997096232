"""How every figure looks, and how it becomes SVG that follows the page into the dark and onto paper.

Figures are drawn in the light colours below. In the page each of these becomes a CSS variable with a light and a dark
value, so one drawing serves both. Both palettes keep their colours apart under protanopia, deuteranopia and tritanopia
(a test measures it). Matplotlib is imported only when something is drawn.
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
SERIES = ("#2a5fc4", "#d9740c", "#159c92", "#6b1d5c", "#7a5c02", "#a56ff0")
DARK_SERIES = ("#5295f5", "#e58a35", "#62ecd4", "#b0609a", "#f0d630", "#bdb2ff")
MAP, OVER = "#3b7ddd", "#d9730d"
"""Colours inside images, which cannot follow the page: readable on light and dark."""

BINDINGS = {
    "deadline": MAP,
    "energy": OVER,
    "deadline+energy": "#695a1e",
    "rate cap": "#a8438f",
    "none": "#9aa1ab",
    "left out": "#30343a",
    "absent": "#d5d8dd",
}
"""Every word of the allocator for what holds a device, with the one colour that it has wherever it is drawn."""

HALF, WIDE, HEIGHT = 5.4, 11.2, 3.1
"""Widths of a figure, in inches (one column of the page, and both), and its height."""

TEXT = 10.0
"""Size of all text, in points."""

PIXELS = 1.36
"""Pixels of the page for one point of a figure, where there is room: text is then as large as the captions."""

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
    """Return Matplotlib's Figure, saved with fonts that journals take and shown by a notebook that is given it."""
    import matplotlib
    from matplotlib.figure import Figure

    class OwnFigure(Figure):
        def savefig(self, *args: Any, **options: Any) -> None:
            """Save as Matplotlib does, with TrueType fonts in PDF and PostScript, whatever the user's settings are."""
            with matplotlib.rc_context({"pdf.fonttype": 42, "ps.fonttype": 42}):
                super().savefig(*args, **options)

        def _repr_svg_(self) -> str:
            drawn = io.StringIO()
            self.savefig(drawn, format="svg")
            return drawn.getvalue()

    return OwnFigure


def blank_figure(width: float, height: float, dpi: float = 200) -> Figure:
    """Make an empty figure of this size, in inches."""
    return figure_class()(figsize=(width, height), dpi=dpi, layout="constrained", facecolor=SURFACE)


def new_figure(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    """Make a figure of this size (inches) with one bare axes; ``title`` says what is drawn, in which unit."""
    figure = blank_figure(width, height)
    axes = figure.add_subplot()
    soften(axes)
    axes.set_title(title, loc="left", fontsize=TEXT, color=MUTED, pad=12, y=1.0)
    return figure, axes


def row_height(devices: int) -> float:
    """Return the height, in inches, of a map of so many devices, and so of the figure beside it."""
    return float(np.clip(1.0 + 0.21 * devices, HEIGHT, 4.2))


def soften(axes: Axes) -> None:
    """Leave of an axes what helps reading: quiet horizontal lines, a base line and the numbers."""
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=TEXT, labelcolor=MUTED, pad=6)
    axes.set_facecolor("none")


def round_axis(axes: Axes, rounds: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    """Make the horizontal axis one of rounds, as wide as they are and a little more."""
    whole_ticks(axes)
    first, last = float(rounds[0]), float(rounds[-1])
    room = min(0.5, 0.015 * (last - first)) or 0.5
    axes.set_xlim(first - room, last + room)


def number_devices(axes: Axes, devices: np.ndarray[tuple[int], np.dtype[np.int64]], side: str = "x") -> None:
    """Label places 0, 1, ... of an axis with device ids: all when they fit, else evenly chosen ones."""
    steps = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
    step = 1 if len(devices) <= 20 else next((step for step in steps if 13 * step >= len(devices)), 10_000)
    place = np.arange(0, len(devices), step)
    axis = axes.yaxis if side == "y" else axes.xaxis
    axis.set_ticks(place, [str(device) for device in devices[place]])
    axis.set_label_text("device", fontsize=TEXT, color=MUTED)


def whole_ticks(axes: Axes, label: str = "round", side: str = "x") -> None:
    """Number the horizontal axis in whole steps, or the one at ``side``."""
    from matplotlib.ticker import MaxNLocator

    axis = axes.yaxis if side == "y" else axes.xaxis
    axis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axis.set_label_text(label, fontsize=TEXT, color=MUTED)


def line(
    axes: Axes,
    x: np.ndarray[Any, np.dtype[Any]],
    y: np.ndarray[Any, np.dtype[Any]],
    colour: str,
    dash: object = "solid",
    marker: str = "o",
) -> None:
    """Draw a line; few points are marked."""
    shape = marker if len(x) <= FEW_POINTS else None
    axes.plot(x, y, color=colour, linewidth=2, linestyle=dash, marker=shape, ms=4, solid_capstyle="round")


def end_labels(axes: Axes, labels: Sequence[EndLabel]) -> None:
    """Write each label right of where the longest line ends, moved apart where they would touch.

    A line that ends earlier is led to its label by dots.
    """
    if not labels:
        return
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    end = max(label.x for label in labels)
    points = 72 * (inches(axes) - 0.75)
    wanted = np.array([(label.y - low) / (high - low) * points for label in labels])
    for label, at, to in zip(labels, wanted, spread(wanted, 1.25 * TEXT), strict=True):
        if end - label.x > 0.01 * (right - left):
            axes.plot([label.x, end], [label.y] * 2, color=label.colour, linewidth=1, linestyle=(0, (1, 3)))
        axes.annotate(
            clean(label.text, LONGEST_LABEL),
            (end, label.y),
            xytext=(7, to - at),
            textcoords="offset points",
            color=label.colour,
            fontsize=TEXT,
            fontweight="bold",
            va="center",
            annotation_clip=False,
            parse_math=False,
        )
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)


def inches(axes: Axes) -> float:
    """Return the height of the figure that holds an axes."""
    root = axes.get_figure(root=True)
    return root.get_figheight() if root is not None else HEIGHT


def spread(wanted: np.ndarray[tuple[int], np.dtype[np.float64]], gap: float) -> list[float]:
    """Return positions in the same order, ``gap`` apart and not below zero, near where they were wanted.

    Those that would touch form a group around their common middle.
    """
    order = np.argsort(wanted, kind="stable")
    groups: list[tuple[float, list[int]]] = []  # middle, members from low to high
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
    """Draw a figure as SVG for inlining in a page: themed by CSS variables, real text, every id starting with ``name``.

    Matplotlib's own defaults hold while drawing, whatever the user's settings are: the same run gives the same bytes.
    The text is written by ElementTree, so no label can leave its place.
    """
    import matplotlib

    drawn = io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": name, "font.sans-serif": ["DejaVu Sans"]})
        # The browser draws the text with its own fonts: what Matplotlib's font lacks does not matter.
        warnings.filterwarnings("ignore", message="Glyph")
        draw().savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    root = ET.fromstring(drawn.getvalue())  # noqa: S314
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        named = {key.rpartition("}")[2]: _restyle(key, value, name) for key, value in element.attrib.items()}
        if element.tag in ("g", "image"):
            named.pop("id", None)  # nothing refers to these
        element.attrib = named
    for size in ("width", "height"):
        root.attrib.pop(size)
    root.attrib["style"] = f"--natural: {float(root.attrib['viewBox'].split()[2]) * PIXELS:.0f}px"
    root.attrib["aria-hidden"] = "true"  # the caption beside it speaks
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
