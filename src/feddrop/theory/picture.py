"""A figure of the variance law."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from feddrop.errors import ConfigError
from feddrop.report.style import GRID, INK, MUTED, SERIES, TEXT, blank_figure, soften
from feddrop.theory.bounds import Floats, odds
from feddrop.theory.variance import NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from feddrop.theory.studies import Study
    from feddrop.theory.variance import Curve, Law

_COLOURS = {"gradient": SERIES[0], "update": SERIES[1]}
_NAMES = {"gradient": "at the subnet, g(ŵ)", "update": "sent, m∘g(ŵ)"}
_TICKS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9)
_TOLERANCE = 0.2


def draw(study: Study, title: str = "") -> Figure:
    """Draw the variance law, one column per kind of masks.

    Top: measured (two standard errors), first order (dashed) and Lemma 1 (dotted), on logarithmic axes. Bottom:
    measured over first order; in the band, first order holds within 20 %.

    Args:
        study: the measurements.
        title: the network and the data.
    """
    if not study.laws:
        raise ConfigError("the study has no variance law; measure at least one level.")
    figure = blank_figure(1.2 + 5.2 * len(study.laws), 6.6, dpi=150)
    shape = {"height_ratios": (3, 2)}
    panels = figure.subplots(2, len(study.laws), sharex="col", sharey="row", squeeze=False, gridspec_kw=shape)
    for column, law in enumerate(study.laws):
        x = odds(law.rates)
        _squares(panels[0, column], x, law, study.bound(law))
        _ratios(panels[1, column], x, law)
        for axes in panels[:, column]:
            soften(axes)
            axes.grid(axis="x", color=GRID, linewidth=0.8)
            axes.tick_params(which="minor", length=0)
        _rate_ticks(panels[1, column], x)
    top = max(float((curve.ratio + 2 * curve.ratio_error).max()) for law in study.laws for _, curve in _curves(law))
    panels[1, 0].set_ylim(0.4, 1.2 * max(top, 2))
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2 * len(study.laws),
        frameon=False,
        fontsize=TEXT,
        labelcolor=INK,
    )
    for axes, text in zip(panels[:, 0], ("mean squared distance from g(w)", "measured / first order"), strict=True):
        axes.set_ylabel(text, fontsize=TEXT, color=MUTED)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=TEXT + 2, color=INK, fontweight="bold")
    return figure


def _squares(axes: Axes, x: Floats, law: Law, bound: Floats) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(NAMES[law.level], loc="left", fontsize=TEXT + 1, color=INK, pad=8)
    axes.plot(x, bound, color=INK, linewidth=1.6, linestyle=(0, (1, 1.6)), label="Lemma 1, (AG)² × mask variance")
    for key, curve in _curves(law):
        axes.plot(x, curve.predicted, color=_COLOURS[key], linewidth=1.2, linestyle=(0, (5, 2.5)))
        axes.errorbar(x, curve.measured, 2 * curve.error, **_points(key), label=_NAMES[key])
    axes.plot([], [], color=MUTED, linewidth=1.2, linestyle=(0, (5, 2.5)), label="first order")


def _ratios(axes: Axes, x: Floats, law: Law) -> None:
    axes.set_yscale("log")
    axes.axhspan(1 - _TOLERANCE, 1 + _TOLERANCE, color=GRID, alpha=0.7, linewidth=0)
    axes.axhline(1, color=MUTED, linewidth=1.2, linestyle=(0, (5, 2.5)))
    for key, curve in _curves(law):
        axes.errorbar(x, curve.ratio, 2 * curve.ratio_error, **_points(key))
    ticks = (0.5, 1, 2, 4, 8, 16, 32)
    axes.yaxis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.yaxis.set_ticks([], minor=True)


def _curves(law: Law) -> tuple[tuple[str, Curve], tuple[str, Curve]]:
    return ("update", law.update), ("gradient", law.gradient)


def _points(key: str) -> dict[str, Any]:
    return {"color": _COLOURS[key], "marker": "o", "markersize": 4.5, "linewidth": 1.8, "capsize": 2.5}


def _rate_ticks(axes: Axes, x: Floats) -> None:
    """Label the axis with rates, each at its γ/(1-γ)."""
    shown = [rate for rate in _TICKS if 0.7 * x[0] < odds(rate) < 1.4 * x[-1]]
    axes.xaxis.set_ticks(odds(shown).tolist(), [f"{rate:g}" for rate in shown])
    axes.xaxis.set_ticks([], minor=True)
    axes.set_xlabel("rate γ, placed at γ/(1-γ)", fontsize=TEXT, color=MUTED)
