"""Learning curves at the width of a journal column: serif text, a legend, and a dash and marker per curve.

Curves differ in colour, dash and marker, so that they can be told apart in black and white. Matplotlib is imported only
to draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from feddrop.config.compare import WIDTHS
from feddrop.errors import ConfigError, clean, one_of
from feddrop.report import style
from feddrop.report.runlog import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Width = Literal["ieee", "ieee-double"] | float
FONT = "STIXGeneral"  # Times, as journals use it; Matplotlib includes it
TEXT, LINE, MARKER, MARKED = 8.0, 1.1, 3.4, 7  # points; markers per curve
DASHES = (
    *("solid", (0, (5, 1.6)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (3, 1.2))),
    *((0, (8, 2)), (0, (5, 1.2, 1, 1.2, 1, 1.2)), (0, (2, 1, 4, 1)), (0, (1, 2.2)), (0, (9, 1.5, 2, 1.5))),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
_NARROWEST, _WIDEST = 2.0, 20.0
_LETTER = 0.075  # inches per letter of a legend


class PrintedCurve(NamedTuple):
    """A curve with a band of one deviation to either side."""

    name: str
    colour: str
    x: Floats
    y: Floats
    deviation: Floats


def draw(curves: Sequence[PrintedCurve], width: Width, x_label: str, y_label: str, top: float | None = None) -> Figure:
    """Draw curves at a width in inches, or at the named one; ``top`` is the largest possible value."""
    from matplotlib.text import Text

    inches = inches_of(width)
    names = [clean(curve.name, style.LONGEST_LABEL) for curve in curves]
    columns = max(1, min(len(curves), int(inches / (0.5 + _LETTER * max(map(len, names))))))
    rows = -(-len(curves) // columns)
    figure = style.blank_figure(inches, min(0.62 * inches, 2.6) + 0.16 * rows, dpi=300)
    axes = figure.add_subplot()
    for n, (curve, name) in enumerate(zip(curves, names, strict=True)):
        axes.fill_between(
            curve.x, curve.y - curve.deviation, curve.y + curve.deviation, color=curve.colour, alpha=0.13, lw=0
        )
        every = max(1, len(curve.x) // MARKED)
        axes.plot(
            *(curve.x, curve.y),
            color=curve.colour,
            linestyle=DASHES[n % len(DASHES)],
            marker=MARKERS[n % len(MARKERS)],
            markevery=(min(n, len(curve.x) - 1) % every, every),
            markersize=MARKER,
            linewidth=LINE,
            label=name,
        )
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.margins(x=0.01)
    if top is not None:
        axes.set_ylim(top=min(axes.get_ylim()[1], 1.01 * top))
    axes.grid(color=style.GRID, linewidth=0.5)
    axes.tick_params(width=0.6, length=3, direction="in", top=True, right=True)
    for spine in axes.spines.values():
        spine.set_linewidth(0.6)
    if len(curves) > 1:
        legend = figure.legend(
            loc="outside upper center", ncols=columns, frameon=False, handlelength=2.6, columnspacing=1.0, fontsize=TEXT
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
    for text in figure.findobj(Text):
        text.set(fontfamily=FONT, fontsize=TEXT, parse_math=False)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set(fontfamily=FONT, fontsize=TEXT)
    axes.tick_params(labelsize=TEXT, labelfontfamily=FONT)
    return figure


def inches_of(width: Width) -> float:
    """Return a width in inches."""
    if isinstance(width, str):
        return WIDTHS[one_of("width", width, WIDTHS)]
    if not _NARROWEST <= width <= _WIDEST:
        raise ConfigError(
            f"width is {width!r}; it must be 'ieee', 'ieee-double' or {_NARROWEST:g} to {_WIDEST:g} inches."
        )
    return float(width)
