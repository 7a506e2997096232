"""Device-by-round maps. Each function returns a Matplotlib Figure.

Maps are images, so their size hardly grows with the run. The value is shown by the opacity of one blue, which reads
the same on a light and a dark page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from feddrop.errors import one_of
from feddrop.report import style
from feddrop.report.plots import FIELDS, require_values, scale_of
from feddrop.report.quantities import in_digits
from feddrop.report.runlog import Floats, Ints, RunLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Field = Literal["rate", "share", "latency_s", "energy_j", "loss"]

CONSTRAINTS = ("deadline", "energy", "deadline+energy", "rate cap", "none")  # what can bind a device that takes part
FAINT = 0.28  # opacity of cells in which no limit was binding, so that the others stand out
TOLERANCE = 1e-6  # relative tolerance of limits: the allocator solves for costs that are exactly at the limit
MOST_CELLS = 60_000
MOST_DEVICES = 1_000
LEVELS = 48  # steps of opacity: more are indistinguishable and make a larger image


def drawn_cells(run: RunLog) -> tuple[Ints, Ints]:
    """Return the positions of the rounds and devices that a map shows: all, or every n-th in a large run."""
    devices = np.arange(0, len(run.devices), -(-len(run.devices) // MOST_DEVICES) or 1)
    most_rounds = MOST_CELLS // max(1, len(devices))
    return np.arange(0, len(run.rounds), -(-len(run.rounds) // most_rounds)), devices


def over_limit(run: RunLog, field: str) -> npt.NDArray[np.bool_]:
    """Return which devices exceeded the deadline (``latency_s``) or energy budget (``energy_j``), bool ``[R, K]``."""
    return np.asarray(run.by_device[field] > run.limit(field) * (1 + TOLERANCE))


def map_figure(run: RunLog, field: Field, *, wide: bool = False) -> Figure:
    """Draw a value of every device in every round, from 0 to the largest; costs above their limit are orange."""
    one_of("field", field, FIELDS)
    rounds, devices = drawn_cells(run)
    values = run.values(field)[np.ix_(rounds, devices)].T
    require_values(run, field, bool(np.isfinite(values).any()))
    top = float(np.fmax(np.nanmax(values), np.fmax.reduce(run.limit(field), axis=None)))
    scale, unit = scale_of(field, top)
    image = shaded(values / (top or 1.0))
    image[over_limit(run, field)[np.ix_(rounds, devices)].T, :3] = _rgb(style.OVER)
    width = style.WIDE if wide else style.HALF
    figure, axes = style.new_figure(FIELDS[field] + unit, style.row_height(len(devices)), width)
    _draw(axes, image, run.rounds[rounds], run.devices[devices])
    _ramp(axes, in_digits(top / scale), width)
    return figure


def binding_figure(run: RunLog) -> Figure:
    """Draw which of the :data:`CONSTRAINTS` set the rate of every device in every round."""
    rounds, devices = drawn_cells(run)
    shown = np.ix_(rounds, devices)
    words = np.where(run.active[shown], np.asarray(run.words["binding"][shown]), "").T
    present = [word for word in CONSTRAINTS if (words == word).any()]
    require_values(run, "binding", bool(present))
    figure, axes = style.new_figure("", style.row_height(len(devices)), style.WIDE)
    image, left = np.zeros((*words.shape, 4)), 0.0
    for word in present:
        colour, opacity = binding_style(word)
        image[words == word] = (*_rgb(colour), opacity)
        style.note(axes, "■", (left, 1), (0, 12), colour, xycoords="axes fraction", alpha=max(opacity, 0.5))
        style.note(axes, word, (left, 1), (14, 12), xycoords="axes fraction", alpha=1)
        left += 0.036 + 0.0092 * len(word)
    _draw(axes, image, run.rounds[rounds], run.devices[devices])
    return figure


def binding_style(word: str) -> tuple[str, float]:
    """Return the colour and opacity of a constraint."""
    return style.BINDINGS[word], FAINT if word == "none" else 1.0


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue


def shaded(fraction: Floats) -> Floats:
    """Return an RGBA image ``[..., 4]`` of one blue whose opacity is the fraction; transparent where it is NaN."""
    image = np.empty((*fraction.shape, 4))
    image[..., :3] = _rgb(style.MAP)
    opacity = 0.05 + 0.95 * np.round(np.clip(fraction, 0, 1) * LEVELS) / LEVELS
    image[..., 3] = np.where(np.isfinite(fraction), opacity, 0.0)
    return image


def _draw(axes: Axes, image: Floats, rounds: Ints, devices: Ints) -> None:
    half = float(rounds[1] - rounds[0]) / 2 if len(rounds) > 1 else 0.5
    left, right = float(rounds[0]) - half, float(rounds[-1]) + half
    axes.imshow(image, aspect="auto", interpolation="none", extent=(left, right, len(devices) - 0.5, -0.5))
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    if len(devices) <= 25:
        axes.hlines(np.arange(1, len(devices)) - 0.5, left, right, color=style.SURFACE, linewidth=1.2)
    if len(rounds) <= 40:
        axes.vlines(rounds[1:] - half, -0.5, len(devices) - 0.5, color=style.SURFACE, linewidth=1.2)
    style.integer_ticks(axes)
    style.number_devices(axes, devices, "y")


def _ramp(axes: Axes, top: str, width: float) -> None:
    """Draw the scale of a map, from 0 to ``top``, above its right edge."""
    up, right = 1 / (style.figure_height(axes) - 0.8), 1 / (width - 0.6)  # an inch, as a fraction of the axes
    bar = axes.inset_axes((1 - 1.5 * right, 1 + 0.17 * up, right, 0.1 * up))
    bar.imshow(shaded(np.linspace(0, 1, LEVELS + 1)[None]), aspect="auto", interpolation="none")
    bar.set_axis_off()
    for text, x, side in (("0", -6, "right"), (top, 6, "left")):
        style.note(bar, text, (float(x > 0), 0.5), (x, 0), style.MUTED, xycoords="axes fraction", ha=side, va="center")
