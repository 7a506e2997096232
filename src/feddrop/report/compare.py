"""Several runs on one page: curves over each other, results side by side, and what differs in their settings.

Runs that differ only in their seed are one group: its mean, and the standard deviation as a band.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from feddrop.errors import RunError
from feddrop.report.curves import Against, accuracy_figure, loss_figure, metric_figure
from feddrop.report.groups import Group, differing, grouped
from feddrop.report.html import Html, document, drawing, el, folded, section, table, write_atomically
from feddrop.report.load import read_log
from feddrop.report.quantities import NOTHING, how_many, in_bytes, in_joules, in_percent, in_seconds, plain
from feddrop.report.runlog import RunLog
from feddrop.report.tables import show

TITLES: dict[Against, str] = {"round": "by round", "bytes": "by traffic", "time": "by simulated time"}


def write_comparison(run_dirs: Sequence[str | Path], out: str | Path) -> Path:
    """Write one self-contained HTML page that compares runs.

    Args:
        run_dirs: the runs' folders, in the order they are to be listed.
        out: the file to write, or a folder for ``comparison.html``.

    Returns:
        The file written.

    Raises:
        RunError: there is no run, a folder is incomplete or malformed, or the page cannot be written.
    """
    if isinstance(run_dirs, str | Path) or not run_dirs:
        raise RunError(f"A comparison needs a list of run folders, not {run_dirs!r}. Give at least one.")
    runs = [read_log(folder, RunLog) for folder in run_dirs]
    named = [replace(run, name=name) for run, name in zip(runs, _names(run_dirs), strict=True)]
    return write_atomically(Path(out), "comparison.html", comparison_page(named))


def comparison_page(runs: Sequence[RunLog]) -> Html:
    """Return the comparison of runs as HTML."""
    groups = grouped(runs)
    several = len(groups) < len(runs)
    title = (
        f"{how_many(len(groups), 'setting')}, {how_many(len(runs), 'run')}" if several else how_many(len(runs), "run")
    )
    lead = "Runs that differ only in their seed are drawn as their mean; the band is one standard deviation."
    every = folded("Every run", _results(_one_by_one(groups), _aim(runs)[0])) if several else Html("")
    return document(
        f"{title} compared",
        "feddrop comparison",
        " · ".join(group.name + _seeds(group) for group in groups),
        section("Results", _aim(runs)[1], _results(groups, _aim(runs)[0]), every),
        section("Learning", lead if several else "", *_figures(groups)),
        section("What differs", "", _differences(groups)),
    )


def _figures(groups: Sequence[Group]) -> list[Html]:
    """Return the curves: accuracy left, loss right, one row for each thing they are drawn against; then metrics."""
    runs = [run for group in groups for run in group.runs]
    ways: list[Against] = ["round", "bytes"]
    if all(np.isfinite(run.by_round["latency_s"]).any() for run in runs):
        ways.append("time")
    kinds = (
        ("accuracy", "Accuracy", "test_accuracy", accuracy_figure),
        ("loss", "Test loss", "test_loss", loss_figure),
    )
    there = [kind for kind in kinds if any(np.isfinite(run.by_round[kind[2]]).any() for run in runs)]
    figures = [
        drawing(f"{name}-{way}", f"{title} {TITLES[way]}", "", partial(draw, groups, against=way))
        for way in ways
        for name, title, _, draw in there
    ]
    shared = [name for name in runs[0].metrics if all(name in run.metrics for run in runs)]
    return figures + [
        drawing(f"metric-{n}", f"{name} by round", "", partial(metric_figure, groups, name))
        for n, name in enumerate(shared)
    ]


def _names(folders: Sequence[str | Path]) -> list[str]:
    """Return the folders' names, with as many parents as it takes to tell them apart; a number if nothing does."""
    paths = [Path(folder).resolve() for folder in folders]
    for depth in range(1, max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({n})" for n, path in enumerate(paths, 1)]


def _seeds(group: Group) -> str:
    return f" ({len(group.runs)} seeds)" if len(group.runs) > 1 else ""


def _one_by_one(groups: Sequence[Group]) -> list[Group]:
    return [replace(group, name=run.name, runs=(run,)) for group in groups for run in group.runs]


def _aim(runs: Sequence[RunLog]) -> tuple[float, str]:
    """Return the best accuracy that every run reached, and a sentence about it."""
    aim = float(np.min([run.accuracy[1] for run in runs]))  # NaN if a run was never tested
    if not np.isfinite(aim) or len(runs) < 2:
        return float("nan"), ""
    return (
        aim,
        f"Every run reached {in_percent(aim)}; the last columns say what it took to get there.",
    )


def _results(groups: Sequence[Group], aim: float) -> Html:
    """Return one row a group; means, and for what is measured on the test set the deviation."""
    runs = [run for group in groups for run in group.runs]
    radio = any(run.has_radio for run in runs)
    columns: list[tuple[str, Callable[[RunLog], float], Callable[[float, float], str]]] = []
    if any(np.isfinite(run.accuracy[0]) for run in runs):
        columns += [
            ("accuracy", lambda run: run.accuracy[0], _percent),
            ("best", lambda run: run.accuracy[1], _percent),
        ]
    else:
        columns += [("test loss", lambda run: run.last("test_loss"), _plain)]
    for name in dict.fromkeys(name for run in runs for name in run.metrics):
        columns += [(name, partial(RunLog.last, key=f"metrics.{name}"), _plain)]
    columns += [
        ("rounds", lambda run: len(run.rounds), _mean_of(plain_count)),
        ("mean γ", lambda run: run.mean_rate, _mean_of(plain)),
        ("traffic", lambda run: float(run.traffic.sum()), _mean_of(in_bytes)),
        ("saved", lambda run: run.saving, _mean_of(in_percent)),
    ]
    if radio:
        columns += [("time", lambda run: _sum(run, "latency_s"), _mean_of(in_seconds))]
        columns += [("energy", lambda run: _sum(run, "energy_j"), _mean_of(in_joules))]
    if np.isfinite(aim):
        columns += [
            ("rounds to it", lambda run: float(run.rounds[_reached(run, aim) - 1]), _mean_of(plain_count)),
            ("traffic to it", lambda run: float(run.traffic[: _reached(run, aim)].sum()), _mean_of(in_bytes)),
        ]
        if radio:
            columns += [("time to it", lambda run: _sum(run, "latency_s", _reached(run, aim)), _mean_of(in_seconds))]
    rows = [
        [
            el("span", _dot(group), group.name + _seeds(group)),
            *(write(*group.spread([value(run) for run in group.runs])) for _, value, write in columns),
        ]
        for group in groups
    ]
    return table(["run", *(name for name, _, _ in columns)], rows)


def _reached(run: RunLog, aim: float) -> int:
    """Return how many rounds it took to the aim."""
    return int(np.flatnonzero(run.by_round["test_accuracy"] >= aim)[0]) + 1


def _sum(run: RunLog, key: str, first: int | None = None) -> float:
    values = run.by_round[key][:first]
    return float(np.nansum(values)) if np.isfinite(values).any() else float("nan")


def _percent(mean: float, deviation: float) -> str:
    return in_percent(mean) if not np.isfinite(deviation) else f"{100 * mean:.1f} ± {100 * deviation:.1f} %"


def _plain(mean: float, deviation: float) -> str:
    return plain(mean) if not np.isfinite(deviation) else f"{plain(mean)} ± {plain(deviation)}"


def plain_count(value: float) -> str:
    """Write a number of rounds, which as a mean need not be whole."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def _mean_of(write: Callable[[float], str]) -> Callable[[float, float], str]:
    return lambda mean, _: write(mean)


def _differences(groups: Sequence[Group]) -> Html:
    rows = [
        [key, *(NOTHING if value is None else show(value) for value in values)]
        for key, values in differing(groups).items()
    ]
    if not rows:
        return el("div", el("p", "Nothing: all runs have the same configuration."), class_="panel wide")
    head = ["setting", *(el("span", _dot(group), group.name) for group in groups)]
    return table(head, rows, words=len(head))


def _dot(group: Group) -> Html:
    return el("span", class_="dot", style=f"background: var(--series-{group.look[0]})")
