"""Compare runs on one page: overlaid curves, a table of results, and the settings that differ.

Runs of equal identity (see :mod:`feddrop.compare.identity`) are seeds of one experiment. They form a group, shown as
its mean with a band of one standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from feddrop.errors import RunError
from feddrop.report.curves import Against, accuracy_figure, loss_figure, metric_figure
from feddrop.report.groups import Group, differing_settings, grouped, marked
from feddrop.report.html import Html, document, el, figure_panel, folded, section, table, write_page
from feddrop.report.load import read_run_log
from feddrop.report.quantities import UNKNOWN, how_many, in_bytes, in_digits, in_joules, in_percent, in_seconds
from feddrop.report.radio import CHARGED
from feddrop.report.runlog import Floats, RunLog
from feddrop.report.tables import setting_text

TITLES: dict[Against, str] = {"round": "by round", "bytes": "by traffic", "time": "by simulated time"}


def write_comparison(run_dirs: Sequence[str | Path], out: str | Path) -> Path:
    """Write one self-contained HTML page that compares runs.

    Args:
        run_dirs: the run folders, in the order to list them.
        out: the file to write, or a folder for ``comparison.html``.

    Returns:
        The file written.

    Raises:
        RunError: no folder is given, one is incomplete or malformed, or the page cannot be written.
    """
    if isinstance(run_dirs, str | Path) or not run_dirs:
        raise RunError(f"run_dirs is {run_dirs!r}; it must be a list of run folders. Give at least one.")
    runs = [read_run_log(folder, RunLog) for folder in run_dirs]
    runs = [replace(run, name=name) for run, name in zip(runs, _unique_names(run_dirs, runs), strict=True)]
    return write_page(Path(out), "comparison.html", comparison_page(runs))


def comparison_page(runs: Sequence[RunLog]) -> Html:
    """Return the comparison page of runs."""
    groups = grouped(runs)
    repeated, (target, about_target) = len(groups) < len(runs), _target(runs)
    about = f"{about_target} {CHARGED if any(run.left_out.any() for run in runs) else ''}".strip()
    title = f"{how_many(len(groups), 'setting')}, " * repeated + how_many(len(runs), "run")
    lead = "Runs that differ only in their seed are drawn as their mean; the band is one standard deviation."
    every = folded("All runs", _results(_split(groups), target)) if repeated else Html("")
    return document(
        f"{title} compared",
        "feddrop comparison",
        " · ".join(group.name + _seeds(group) for group in groups),
        section("Results", about, _results(groups, target), every),
        section("Learning", lead if repeated else "", *_figures(groups)),
        section("What differs", _incomparable(groups), _differences(groups)),
    )


def _figures(groups: Sequence[Group]) -> list[Html]:
    """Return the learning curves: accuracy and loss side by side, one row per x-axis; then custom metrics."""
    runs = [run for group in groups for run in group.runs]
    ways: list[Against] = ["round", "bytes"]
    if all(np.isfinite(run.by_round["latency_s"]).any() for run in runs):
        ways.append("time")
    kinds = (("accuracy", "Accuracy", accuracy_figure), ("loss", "Test loss", loss_figure))
    there = [kind for kind in kinds if any(np.isfinite(run.by_round[f"test_{kind[0]}"]).any() for run in runs)]
    figures = [
        figure_panel(f"{name}-{way}", f"{title} {TITLES[way]}", "", partial(draw, groups, against=way))
        for way in ways
        for name, title, draw in there
    ]
    shared = [name for name in runs[0].metrics if all(name in run.metrics for run in runs)]
    shared = [name for name in shared if any(np.isfinite(run.metrics[name]).any() for run in runs)]
    return figures + [
        figure_panel(f"metric-{n}", f"{name} by round", "", partial(metric_figure, groups, name))
        for n, name in enumerate(shared)
    ]


def _unique_names(folders: Sequence[str | Path], runs: Sequence[RunLog]) -> list[str]:
    """Return the names of runs: the label, followed by the folder if several runs have it, or else the folder."""
    labels = [run.label for run in runs]
    return [
        (f"{label} ({folder})" if labels.count(label) > 1 else label) if label else folder
        for label, folder in zip(labels, _unique_folders(folders), strict=True)
    ]


def _unique_folders(folders: Sequence[str | Path]) -> list[str]:
    """Return the names of folders, with as many parents as make them unique; numbered if paths are equal."""
    paths = [Path(folder).resolve() for folder in folders]
    for depth in range(1, max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({n})" for n, path in enumerate(paths, 1)]


def _seeds(group: Group) -> str:
    return f" ({len(group.runs)} seeds)" if len(group.runs) > 1 else ""


def _split(groups: Sequence[Group]) -> list[Group]:
    """Return one group per run, drawn like the group it was in."""
    return [replace(group, name=marked(run.name, run), runs=(run,)) for group in groups for run in group.runs]


def _target(runs: Sequence[RunLog]) -> tuple[float, str]:
    """Return the highest accuracy that every run reached, and a sentence about it; NaN if a run was never tested."""
    target = float(np.min([run.accuracy[1] for run in runs]))
    if not np.isfinite(target) or len(runs) < 2:
        return float("nan"), ""
    return target, f"Every run reached {in_percent(target)}, the target. The last columns show the cost of reaching it."


def _results(groups: Sequence[Group], target: float) -> Html:
    """Return a table with one row per group: means, and for test results the standard deviation."""
    runs = [run for group in groups for run in group.runs]
    radio = any(run.has_radio for run in runs)
    columns: list[tuple[str, Callable[[RunLog], float], Callable[[float, float], str]]] = []
    if any(np.isfinite(run.accuracy[0]) for run in runs):
        columns += [("accuracy", lambda run: run.accuracy[0], _percent)]
        columns += [("best", lambda run: run.accuracy[1], _percent)]
    else:
        columns += [("test loss", lambda run: run.last("test_loss"), _plain)]
    for name in dict.fromkeys(name for run in runs for name in run.metrics):
        columns += [(name, partial(RunLog.last, key=f"metrics.{name}"), _plain)]
    columns += [
        ("rounds", lambda run: len(run.rounds), _mean_of(mean_count)),
        ("mean γ", lambda run: run.mean_rate, _mean_of(in_digits)),
        ("traffic", lambda run: float(run.traffic.sum()), _mean_of(in_bytes)),
        ("saved", lambda run: run.saving, _mean_of(in_percent)),
    ]
    if radio:
        columns += [("time", lambda run: _sum(run, "latency_s"), _mean_of(in_seconds))]
        columns += [("energy", lambda run: _sum(run, "energy_j"), _mean_of(in_joules))]
    if any(run.left_out.any() for run in runs):
        columns += [("left out per round", lambda run: float(run.left_out.mean()), _mean_of(in_digits))]
        columns += [("objective", lambda run: _mean(run.by_round["objective"]), _mean_of(in_digits))]
        columns += [("charged objective", lambda run: _mean(run.charged_objective), _mean_of(in_digits))]
    if np.isfinite(target):
        columns += [
            ("rounds to target", lambda run: float(run.rounds[_reached(run, target) - 1]), _mean_of(mean_count)),
            ("traffic to target", lambda run: float(run.traffic[: _reached(run, target)].sum()), _mean_of(in_bytes)),
        ]
        if radio:
            needed = partial(_reached, target=target)
            columns += [("time to target", lambda run: _sum(run, "latency_s", needed(run)), _mean_of(in_seconds))]
    rows = [
        [
            el("span", _dot(group), group.name + _seeds(group)),
            *(write(*group.spread([value(run) for run in group.runs])) for _, value, write in columns),
        ]
        for group in groups
    ]
    return table(["run", *(name for name, _, _ in columns)], rows)


def _reached(run: RunLog, target: float) -> int:
    """Return the number of rounds that a run needed to reach the target."""
    return int(np.flatnonzero(run.by_round["test_accuracy"] >= target)[0]) + 1


def _sum(run: RunLog, key: str, first: int | None = None) -> float:
    values = run.by_round[key][:first]
    return float(np.nansum(values)) if np.isfinite(values).any() else float("nan")


def _mean(values: Floats) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _percent(mean: float, deviation: float) -> str:
    return in_percent(mean) if not np.isfinite(deviation) else f"{100 * mean:.1f} ± {100 * deviation:.1f} %"


def _plain(mean: float, deviation: float) -> str:
    return in_digits(mean) if not np.isfinite(deviation) else f"{in_digits(mean)} ± {in_digits(deviation)}"


def mean_count(value: float) -> str:
    """Write the mean of counts, which need not be an integer."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def _mean_of(write: Callable[[float], str]) -> Callable[[float, float], str]:
    return lambda mean, _: write(mean)


def _differences(groups: Sequence[Group]) -> Html:
    rows = [
        [key, *(UNKNOWN if value is None else setting_text(value) for value in values)]
        for key, values in differing_settings(groups).items()
    ]
    if not rows:
        return el("div", el("p", "None: all runs have the same configuration."), class_="panel wide")
    head = ["setting", *(el("span", _dot(group), group.name) for group in groups)]
    return table(head, rows, words=len(head))


def _incomparable(groups: Sequence[Group]) -> str:
    """Return a sentence if some runs have objects that cannot be compared."""
    names = [group.name for group in groups if group.identity and group.identity.run]
    if not names or len(groups) < 2:
        return ""
    return f"Custom objects of {', '.join(names)} cannot be compared. To group runs as seeds, give them one label."


def _dot(group: Group) -> Html:
    return el("span", class_="dot", style=f"background: var(--series-{group.look[0]})")
