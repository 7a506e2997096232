"""Learning curves of a run or of several: each function returns a Matplotlib Figure.

Save one with ``figure.savefig("accuracy.pdf")``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from feddrop.errors import ConfigError, clean, one_of
from feddrop.report.groups import Group, alone
from feddrop.report.quantities import byte_scale, plain, second_scale
from feddrop.report.runlog import Floats, RunLog
from feddrop.report.style import (
    HALF,
    HEIGHT,
    INK,
    LONGEST_LABEL,
    MUTED,
    SERIES,
    TEXT,
    EndLabel,
    end_labels,
    line,
    new_figure,
    round_axis,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Against = Literal["round", "bytes", "time"]
"""What a learning curve is drawn against: rounds, bytes sent so far, or simulated seconds so far."""

Runs = RunLog | Sequence[RunLog] | Sequence[Group]
"""One run, or several to compare, each on its own or in groups of those that differ only in the seed."""


def accuracy_figure(runs: Runs, *, against: Against = "round") -> Figure:
    """Draw test accuracy in percent; rounds without evaluation are passed over. One run has its best round marked."""
    many = _several(runs)
    figure, axes = new_figure(HALF, HEIGHT, "test accuracy, %")
    labels = _curves(axes, many, "test_accuracy", against, factor=100)
    axes.set_ylim(0, min(max(axes.get_ylim()[1], 1.06 * axes.dataLim.y1), 103))
    if len(many) > 1 or len(many[0].runs) > 1:
        end_labels(axes, labels)
    elif labels:
        end_labels(axes, [labels[0]._replace(text=f"{labels[0].y:.1f}")])
        x, y, _ = _curve(many[0], "test_accuracy", against, _scale(many, against))
        best = int(np.argmax(y))
        if best < len(y) - 1:
            axes.plot(x[best], 100 * y[best], "o", ms=8, mfc="none", mec=INK, mew=1.2)
            first, last = axes.get_xlim()
            side = "left" if x[best] - first < 0.15 * (last - first) else "center"  # not over the numbers of the axis
            axes.annotate(
                f"best {100 * y[best]:.1f}", (float(x[best]), float(100 * y[best])), xytext=(-4 * (side == "left"), 9),
                textcoords="offset points", ha=side, color=INK, fontsize=TEXT,
            )  # fmt: skip
    return figure


def loss_figure(runs: Runs, *, against: Against = "round") -> Figure:
    """Draw the losses: training and test for one run, test only for several."""
    many = _several(runs)
    one = len(many) == 1 and len(many[0].runs) == 1
    figure, axes = new_figure(HALF, HEIGHT, "loss" if one else "test loss")
    labels = _curves(axes, many, "test_loss", against)
    if one:
        labels = [label._replace(text="test") for label in labels]
        x, y, _ = _curve(many[0], "train_loss", against, _scale(many, against))
        if len(x):
            line(axes, x, y, SERIES[1])
            labels.append(EndLabel(float(x[-1]), float(y[-1]), "training", SERIES[1]))
    if one or axes.dataLim.y0 < axes.dataLim.y1 / 2:  # curves that stay high are compared where they are
        axes.set_ylim(bottom=0)
    end_labels(axes, labels)
    return figure


def metric_figure(runs: Runs, name: str, *, against: Against = "round") -> Figure:
    """Draw one of the runs' own metrics."""
    many = _several(runs)
    for run in (run for group in many for run in group.runs):
        one_of("metric", name, run.metrics)
    figure, axes = new_figure(HALF, HEIGHT, clean(name, LONGEST_LABEL))
    axes.title.set_parse_math(False)
    labels = _curves(axes, many, f"metrics.{name}", against)
    if len(many) == 1:
        labels = [label._replace(text=plain(label.y)) for label in labels]
    end_labels(axes, labels)
    return figure


def _several(runs: Runs) -> list[Group]:
    many = [runs] if isinstance(runs, RunLog) else list(runs)
    if not many:
        raise ConfigError("There is no run to draw. Give at least one.")
    groups = alone([run for run in many if isinstance(run, RunLog)])
    return groups + [group for group in many if isinstance(group, Group)]


def _scale(groups: Sequence[Group], against: Against) -> tuple[float, str]:
    one_of("against", against, ("round", "bytes", "time"))
    runs = [run for group in groups for run in group.runs]
    if against == "bytes":
        scale, unit = byte_scale(max(float(run.traffic.sum()) for run in runs))
        return scale, f"{unit} sent so far"
    if against == "time":
        scale, unit = second_scale(max(float(np.nansum(run.by_round["latency_s"])) for run in runs))
        return scale, f"simulated time, {unit}"
    return 1.0, "round"


def _curve(group: Group, key: str, against: Against, scale: tuple[float, str]) -> tuple[Floats, Floats, Floats]:
    """Return where a curve has points: progress in the given scale, the mean over the runs, and their deviation."""

    def place(run: RunLog) -> Floats:
        if against == "round":
            return run.rounds.astype(np.float64)
        return np.cumsum(run.traffic if against == "bytes" else np.nan_to_num(run.by_round["latency_s"])) / scale[0]

    return group.curve(key, [place(run) for run in group.runs])


def _curves(axes: Axes, groups: Sequence[Group], key: str, against: Against, factor: float = 1.0) -> list[EndLabel]:
    """Draw one curve a group, with a band of one standard deviation, and return labels for those that have points."""
    labels, scale = [], _scale(groups, against)
    for group in groups:
        x, y, deviation = _curve(group, key, against, scale)
        if not len(x):
            continue
        if len(group.runs) > 1:
            low, high = factor * (y - deviation), factor * (y + deviation)
            axes.fill_between(x, low, high, color=group.colour, alpha=0.16, linewidth=0)
        line(axes, x, factor * y, group.colour, group.dash, group.marker)
        labels.append(EndLabel(float(x[-1]), float(factor * y[-1]), group.name, group.colour))
    rounds = [run.rounds for group in groups for run in group.runs]
    if against == "round":
        round_axis(axes, np.array([min(r[0] for r in rounds), max(r[-1] for r in rounds)]))
    else:
        axes.set_xlabel(scale[1], fontsize=TEXT, color=MUTED)
        axes.set_xlim(left=0)
    return labels
