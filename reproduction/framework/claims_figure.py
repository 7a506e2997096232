"""All claims in one figure: every comparison, by its difference in margins."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from feddrop.comparison import NO, UNDECIDED, WITHIN_MARGIN, YES, Answer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAR = 30.0
"""Margins at which the axis ends; certain answers are drawn there."""
_ROW, _LINE = 0.34, 66
"""Height of a row in inches, and characters per line of its label."""


def beyond(answer: Answer) -> float:
    """Return the difference in margins: above 1 means yes, below -1 no; NaN if it was not judged.

    With a tolerance, the distance of the difference from the tolerance takes its place.
    """
    asked = answer.comparison
    if asked.certain is not None:
        return FAR if asked.certain else -FAR
    if answer.why not in ("", WITHIN_MARGIN):
        return math.nan
    towards = answer.mean if asked.tolerance is None else asked.tolerance - abs(answer.mean)
    return float(np.clip(towards / answer.margin, -FAR, FAR)) if answer.margin else math.copysign(FAR, towards)


def draw(claims: Sequence[tuple[str, Sequence[Answer]]]) -> Figure:
    """Draw one row per claim: a dot per comparison (a square if certain), and the number that was not judged."""
    from feddrop.report.style import GRID, INK, MUTED, SERIES, TEXT, WIDE, blank_figure, soften

    figure = blank_figure(WIDE, 1.0 + _ROW * len(claims), dpi=150)
    axes = figure.add_subplot()
    soften(axes)
    axes.grid(visible=False)
    axes.axvspan(-1, 1, color=GRID, linewidth=0)
    colours = {YES: SERIES[2], NO: SERIES[1], UNDECIDED: MUTED}
    for row, (_, answers) in enumerate(claims):
        axes.axhline(row + 0.5, color=GRID, linewidth=0.6)
        known = [(x, answer) for answer in answers if not math.isnan(x := beyond(answer))]
        lanes = np.linspace(-0.24, 0.24, len(known)) if len(known) > 1 else np.zeros(len(known))
        for (x, answer), lane in zip(known, lanes, strict=True):
            shape = "o" if answer.comparison.certain is None else "s"
            axes.plot(x, row + lane, shape, ms=4.5, color=colours[answer.says], clip_on=False)
        rest = len(answers) - len(known)
        if rest:
            where = axes.get_yaxis_transform()
            axes.text(1.01, row, f"{rest} not judged", transform=where, va="center", fontsize=7.5, color=MUTED)
    axes.set_xscale("symlog", linthresh=1.0, linscale=0.8)
    axes.set_xlim(-FAR, FAR)
    axes.set_ylim(len(claims) - 0.4, -0.6)
    ticks = (-10, -3, -1, 0, 1, 3, 10)
    axes.set_xticks(ticks, [f"{tick:d}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(claims)), [textwrap.fill(text, _LINE) for text, _ in claims])
    axes.tick_params(axis="y", labelsize=7.5, labelcolor=INK)
    axes.set_title("← says no · within the margin · says yes →", fontsize=TEXT, color=MUTED, pad=10)
    axes.set_xlabel("difference over its margin", fontsize=TEXT, color=MUTED)
    return figure
