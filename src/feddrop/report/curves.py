"""Learning curves of one or several runs. Each function returns a Matplotlib Figure.

Save one with ``figure.savefig("accuracy.pdf")``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from feddrop.errors import ConfigError, clean, one_of
from feddrop.report import journal, style
from feddrop.report.groups import Group, one_group_per_run
from feddrop.report.quantities import RESOURCES, in_digits
from feddrop.report.runlog import Floats, RunLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Against = Literal["round", "bytes", "time", "energy"]
"""The x-axis of a learning curve: rounds; bytes, simulated seconds or joules so far."""

Labels = Mapping[str, str] | Sequence[str]
"""The names of curves: one per curve, or new names for some of them."""

SPENT: dict[Against, str] = {"round": "rounds", "bytes": "bytes", "time": "seconds", "energy": "joules"}
"""The resource on each x-axis."""

Runs = RunLog | Sequence[RunLog] | Sequence[Group]
"""One run, several runs, or groups of runs that differ only in the seed."""


def accuracy_figure(
    runs: Runs, *, against: Against = "round", width: journal.Width | None = None, labels: Labels = ()
) -> Figure:
    """Draw test accuracy in percent, in the rounds that evaluated it. For a single run, mark the best round.

    Args:
        runs: what to draw.
        against: the x-axis.
        width: for a journal page: ``"ieee"`` (one column, 3.5 in), ``"ieee-double"`` (7.16 in) or a width in inches.
            The figure then has serif text, a legend, and a dash and marker per curve.
        labels: names of the curves.
    """
    groups = _as_groups(runs, labels)
    if width is not None:
        return _journal_figure(groups, "test_accuracy", against, width, "test accuracy (%)", 100)
    figure, axes = style.new_figure("test accuracy, %")
    ends = _curves(axes, groups, "test_accuracy", against, factor=100)
    _require_curves(ends, "test_accuracy")
    axes.set_ylim(0, min(max(axes.get_ylim()[1], 1.06 * axes.dataLim.y1), 103))
    if len(groups) > 1 or len(groups[0].runs) > 1:
        style.end_labels(axes, ends)
    elif ends:
        style.end_labels(axes, [ends[0]._replace(text=f"{ends[0].y:.1f}")])
        x, y, _ = _curve(groups[0], "test_accuracy", against, _scale(groups, against))
        (run,) = groups[0].runs
        best = int(np.argmax(run.rounds[np.isfinite(run.by_round["test_accuracy"])] == run.accuracy[2]))
        if best < len(y) - 1:
            axes.plot(x[best], 100 * y[best], "o", ms=8, mfc="none", mec=style.INK, mew=1.2)
            first, last = axes.get_xlim()
            side = "left" if x[best] - first < 0.15 * (last - first) else "center"  # keep off the axis numbers
            place, shift = (float(x[best]), float(100 * y[best])), (-4 * (side == "left"), 9)
            style.note(axes, f"best {100 * y[best]:.1f}", place, shift, ha=side)
    return figure


def loss_figure(
    runs: Runs, *, against: Against = "round", width: journal.Width | None = None, labels: Labels = ()
) -> Figure:
    """Draw the training and test loss of one run, or the test losses of several; see :func:`accuracy_figure`."""
    groups = _as_groups(runs, labels)
    if width is not None:
        return _journal_figure(groups, "test_loss", against, width, "test loss")
    one = len(groups) == 1 and len(groups[0].runs) == 1
    figure, axes = style.new_figure("loss" if one else "test loss")
    ends = _curves(axes, groups, "test_loss", against)
    if one:
        ends = [end._replace(text="test") for end in ends]
        x, y, _ = _curve(groups[0], "train_loss", against, _scale(groups, against))
        if len(x):
            style.draw_line(axes, x, y, style.SERIES[1])
            ends.append(style.EndLabel(float(x[-1]), float(y[-1]), "training", style.SERIES[1]))
    _require_curves(ends, "test_loss")
    if one or axes.dataLim.y0 < axes.dataLim.y1 / 2:  # curves that stay high are not squeezed by a y-axis from 0
        axes.set_ylim(bottom=0)
    style.end_labels(axes, ends)
    return figure


def metric_figure(
    runs: Runs, name: str, *, against: Against = "round", width: journal.Width | None = None, labels: Labels = ()
) -> Figure:
    """Draw a custom metric; see :func:`accuracy_figure`."""
    groups = _as_groups(runs, labels)
    for run in (run for group in groups for run in group.runs):
        one_of("metric", name, run.metrics)
    if width is not None:
        return _journal_figure(groups, f"metrics.{name}", against, width, clean(name, style.LONGEST_LABEL))
    figure, axes = style.new_figure(clean(name, style.LONGEST_LABEL))
    axes.title.set_parse_math(False)
    ends = _curves(axes, groups, f"metrics.{name}", against)
    _require_curves(ends, name)
    if len(groups) == 1:
        ends = [end._replace(text=in_digits(end.y)) for end in ends]
    style.end_labels(axes, ends)
    return figure


def _journal_figure(
    groups: Sequence[Group], key: str, against: Against, width: journal.Width, title: str, factor: float = 1.0
) -> Figure:
    """Draw curves for a journal page."""
    scale = _scale(groups, against)
    curves = [(group, *_curve(group, key, against, scale)) for group in groups]
    shown = [journal.PrintedCurve(g.name, g.colour, x, factor * y, factor * band) for g, x, y, band in curves if len(x)]
    _require_curves(shown, key)
    what, _, unit = scale[1].partition(", ")
    return journal.draw(shown, width, f"{what} ({unit})" if unit else what, title, 100.0 if factor == 100 else None)


def _require_curves(curves: Sequence[object], field: str) -> None:
    """Raise if there is no curve to draw."""
    if not curves:
        raise ConfigError(f"no run has {field!r} to draw: it was not measured, or is never finite.")


def _as_groups(runs: Runs, labels: Labels) -> list[Group]:
    given = [runs] if isinstance(runs, RunLog) else list(runs)
    if not given:
        raise ConfigError("no run to draw. Give at least one.")
    groups = one_group_per_run([run for run in given if isinstance(run, RunLog)])
    groups += [group for group in given if isinstance(group, Group)]
    names = [group.name for group in groups]
    if isinstance(labels, Mapping):
        for old in labels:
            one_of("labels", old, names)
        labels = [labels.get(name, name) for name in names]
    if labels and len(labels) != len(groups):
        raise ConfigError(f"labels has {len(labels)} names for {len(groups)} curves; give one per curve.")
    return [replace(group, name=str(name)) for group, name in zip(groups, labels or names, strict=True)]


def _scale(groups: Sequence[Group], against: Against) -> tuple[float, str]:
    resource = SPENT[cast(Against, one_of("against", against, SPENT))]
    if resource == "rounds":
        return 1.0, "round"
    runs = [run for group in groups for run in group.runs]
    what = RESOURCES[resource].axis
    if missing := [run.name for run in runs if not np.isfinite(run.spent(resource)).any()]:
        raise ConfigError(f"run {missing[0]!r} has no {what} to draw against; that needs a radio section.")
    scale, unit = RESOURCES[resource].scale(max(float(run.spent(resource)[-1]) for run in runs))
    return scale, f"{what}, {unit}"


def _curve(group: Group, key: str, against: Against, scale: tuple[float, str]) -> tuple[Floats, Floats, Floats]:
    """Return a curve: x in the given scale, and the mean and standard deviation over the runs of a group."""
    return group.curve(key, [run.spent(SPENT[against]) / scale[0] for run in group.runs])


def _curves(
    axes: Axes, groups: Sequence[Group], key: str, against: Against, factor: float = 1.0
) -> list[style.EndLabel]:
    """Draw one curve per group with a band of one standard deviation; return labels for those that have points."""
    labels, scale = [], _scale(groups, against)
    for group in groups:
        x, y, deviation = _curve(group, key, against, scale)
        if not len(x):
            continue
        if len(group.runs) > 1:
            low, high = factor * (y - deviation), factor * (y + deviation)
            axes.fill_between(x, low, high, color=group.colour, alpha=0.16, linewidth=0)
        style.draw_line(axes, x, factor * y, group.colour, group.dash, group.marker)
        labels.append(style.EndLabel(float(x[-1]), float(factor * y[-1]), group.name, group.colour))
    rounds = [run.rounds for group in groups for run in group.runs]
    if against == "round":
        style.round_axis(axes, np.array([min(r[0] for r in rounds), max(r[-1] for r in rounds)]))
    else:
        axes.set_xlabel(scale[1], fontsize=style.TEXT, color=style.MUTED)
        axes.set_xlim(left=0)
    return labels
