"""Learning curves of one or several runs. Each function returns a Matplotlib Figure.

Save one with ``figure.savefig("accuracy.pdf")``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from feddrop.errors import ConfigError, clean, one_of
from feddrop.report import style
from feddrop.report.groups import Group, one_group_per_run
from feddrop.report.quantities import byte_scale, in_digits, second_scale
from feddrop.report.runlog import Floats, RunLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Against = Literal["round", "bytes", "time"]
"""The x-axis of a learning curve: rounds, bytes sent so far, or simulated seconds so far."""

Runs = RunLog | Sequence[RunLog] | Sequence[Group]
"""One run, several runs, or groups of runs that differ only in the seed."""


def accuracy_figure(runs: Runs, *, against: Against = "round") -> Figure:
    """Draw test accuracy in percent, in the rounds that evaluated it. For a single run, mark the best round."""
    groups = _as_groups(runs)
    figure, axes = style.new_figure("test accuracy, %")
    labels = _curves(axes, groups, "test_accuracy", against, factor=100)
    _require_curves(labels, "test_accuracy")
    axes.set_ylim(0, min(max(axes.get_ylim()[1], 1.06 * axes.dataLim.y1), 103))
    if len(groups) > 1 or len(groups[0].runs) > 1:
        style.end_labels(axes, labels)
    elif labels:
        style.end_labels(axes, [labels[0]._replace(text=f"{labels[0].y:.1f}")])
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


def loss_figure(runs: Runs, *, against: Against = "round") -> Figure:
    """Draw the training and test loss of one run, or the test losses of several."""
    groups = _as_groups(runs)
    one = len(groups) == 1 and len(groups[0].runs) == 1
    figure, axes = style.new_figure("loss" if one else "test loss")
    labels = _curves(axes, groups, "test_loss", against)
    if one:
        labels = [label._replace(text="test") for label in labels]
        x, y, _ = _curve(groups[0], "train_loss", against, _scale(groups, against))
        if len(x):
            style.draw_line(axes, x, y, style.SERIES[1])
            labels.append(style.EndLabel(float(x[-1]), float(y[-1]), "training", style.SERIES[1]))
    _require_curves(labels, "test_loss")
    if one or axes.dataLim.y0 < axes.dataLim.y1 / 2:  # curves that stay high are not squeezed by a y-axis from 0
        axes.set_ylim(bottom=0)
    style.end_labels(axes, labels)
    return figure


def metric_figure(runs: Runs, name: str, *, against: Against = "round") -> Figure:
    """Draw a custom metric."""
    groups = _as_groups(runs)
    for run in (run for group in groups for run in group.runs):
        one_of("metric", name, run.metrics)
    figure, axes = style.new_figure(clean(name, style.LONGEST_LABEL))
    axes.title.set_parse_math(False)
    labels = _curves(axes, groups, f"metrics.{name}", against)
    _require_curves(labels, name)
    if len(groups) == 1:
        labels = [label._replace(text=in_digits(label.y)) for label in labels]
    style.end_labels(axes, labels)
    return figure


def _require_curves(labels: Sequence[style.EndLabel], field: str) -> None:
    """Raise if no curve was drawn."""
    if not labels:
        raise ConfigError(f"no run has {field!r} to draw: it was not measured, or is never finite.")


def _as_groups(runs: Runs) -> list[Group]:
    given = [runs] if isinstance(runs, RunLog) else list(runs)
    if not given:
        raise ConfigError("no run to draw. Give at least one.")
    groups = one_group_per_run([run for run in given if isinstance(run, RunLog)])
    return groups + [group for group in given if isinstance(group, Group)]


def _scale(groups: Sequence[Group], against: Against) -> tuple[float, str]:
    one_of("against", against, ("round", "bytes", "time"))
    runs = [run for group in groups for run in group.runs]
    if against == "bytes":
        scale, unit = byte_scale(max(float(run.traffic.sum()) for run in runs))
        return scale, f"{unit} sent so far"
    if against == "time":
        if missing := [run.name for run in runs if not np.isfinite(run.by_round["latency_s"]).any()]:
            raise ConfigError(f"run {missing[0]!r} has no simulated time to draw against; that needs a radio section.")
        scale, unit = second_scale(max(float(np.nansum(run.by_round["latency_s"])) for run in runs))
        return scale, f"simulated time, {unit}"
    return 1.0, "round"


def _curve(group: Group, key: str, against: Against, scale: tuple[float, str]) -> tuple[Floats, Floats, Floats]:
    """Return a curve: x in the given scale, and the mean and standard deviation over the runs of a group."""

    def position(run: RunLog) -> Floats:
        if against == "round":
            return run.rounds.astype(np.float64)
        return np.cumsum(run.traffic if against == "bytes" else np.nan_to_num(run.by_round["latency_s"])) / scale[0]

    return group.curve(key, [position(run) for run in group.runs])


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
