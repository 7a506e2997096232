"""Several runs on one page: curves over each other, results side by side, and what differs in their settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from feddrop.errors import RunError
from feddrop.report.html import Html, document, drawing, el, section, table, write_atomically
from feddrop.report.load import load_run
from feddrop.report.plots import Against, accuracy_figure, loss_figure
from feddrop.report.quantities import NOTHING, how_many, in_bytes, in_joules, in_percent, in_seconds, plain
from feddrop.report.runlog import RunLog
from feddrop.report.style import SERIES
from feddrop.report.tables import flat, show

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
    runs = [load_run(folder) for folder in run_dirs]
    named = [replace(run, name=name) for run, name in zip(runs, _names(run_dirs), strict=True)]
    return write_atomically(Path(out), "comparison.html", comparison_page(named))


def comparison_page(runs: Sequence[RunLog]) -> Html:
    """Return the comparison of runs as HTML."""
    ways: list[Against] = ["round", "bytes"]
    if all(np.isfinite(run.by_round["latency_s"]).any() for run in runs):
        ways.append("time")
    curves = []
    for name, title, draw in (("accuracy", "Accuracy", accuracy_figure), ("loss", "Test loss", loss_figure)):
        key = "test_accuracy" if name == "accuracy" else "test_loss"
        if any(np.isfinite(run.by_round[key]).any() for run in runs):
            curves.append(
                [
                    drawing(f"{name}-{way}", f"{title} {TITLES[way]}", "", partial(draw, runs, against=way))
                    for way in ways
                ]
            )
    # accuracy left, loss right, one row for each thing they are drawn against
    figures = [figure for row in zip(*curves, strict=True) for figure in row]
    return document(
        f"{how_many(len(runs), 'run')} compared",
        "feddrop comparison",
        " · ".join(run.name for run in runs),
        section("Results", _aim(runs)[1], _results(runs)),
        section("Learning", "", *figures),
        section("What differs", "", _differences(runs)),
    )


def _names(folders: Sequence[str | Path]) -> list[str]:
    """Return the folders' names, with as many parents as it takes to tell them apart; a number if nothing does."""
    paths = [Path(folder).resolve() for folder in folders]
    for depth in range(1, max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({n})" for n, path in enumerate(paths, 1)]


def _aim(runs: Sequence[RunLog]) -> tuple[float, str]:
    """Return the best accuracy that every run reached, and a sentence about it."""
    aim = float(np.min([run.accuracy[1] for run in runs]))  # NaN if a run was never tested
    if not np.isfinite(aim) or len(runs) < 2:
        return float("nan"), ""
    return (
        aim,
        f"Every run reached {in_percent(aim)}; the last columns say what it took to get there.",
    )


def _results(runs: Sequence[RunLog]) -> Html:
    aim, _ = _aim(runs)
    radio = any(run.has_radio for run in runs)
    head = ["run", "accuracy", "best", "rounds", "mean γ", "traffic", "saved", *["time", "energy"] * radio]
    if np.isfinite(aim):
        head += [f"{word} to it" for word in ("rounds", "traffic", *["time"] * radio)]
    rows = []
    for n, run in enumerate(runs):
        last, best, _ = run.accuracy
        row: list[object] = [el("span", _dot(n), run.name), in_percent(last), in_percent(best), len(run.rounds)]
        row += [plain(run.mean_rate), in_bytes(float(run.traffic.sum())), in_percent(run.saving)]
        row += [in_seconds(_sum(run, "latency_s")), in_joules(_sum(run, "energy_j"))] if radio else []
        if np.isfinite(aim):
            there = int(np.flatnonzero(run.by_round["test_accuracy"] >= aim)[0]) + 1
            row += [run.rounds[there - 1], in_bytes(float(run.traffic[:there].sum()))]
            row += [in_seconds(_sum(run, "latency_s", there))] if radio else []
        rows.append(row)
    return table(head, rows)


def _sum(run: RunLog, key: str, first: int | None = None) -> float:
    values = run.by_round[key][:first]
    return float(np.nansum(values)) if np.isfinite(values).any() else float("nan")


def _differences(runs: Sequence[RunLog]) -> Html:
    configs = [flat(run.config) for run in runs]
    keys = dict.fromkeys(key for config in configs for key in config)
    written = {key: [show(config[key]) if key in config else NOTHING for config in configs] for key in keys}
    rows = [[key, *values] for key, values in written.items() if len(set(values)) > 1]
    if not rows:
        return el("div", el("p", "Nothing: all runs have the same configuration."), class_="panel wide")
    head = ["setting", *(el("span", _dot(n), run.name) for n, run in enumerate(runs))]
    return table(head, rows, words=len(head))


def _dot(n: int) -> Html:
    return el("span", class_="dot", style=f"background: var(--series-{n % len(SERIES)})")
