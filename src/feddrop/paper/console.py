"""The paper on the terminal: what there is, and progress while it runs."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from feddrop.paper import EXPERIMENTS, progress_of, repeat, scale, store_for


def overview(scale_name: str, results: Path, work: Path) -> Table:
    """List every experiment, and how many of its runs are finished."""
    chosen, store = scale(scale_name), store_for(scale_name, results, work)
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("name", "what", "in the paper", f"runs finished ({scale_name})"):
        table.add_column(column)
    for experiment in EXPERIMENTS:
        done, total = progress_of(experiment, chosen, store)
        table.add_row(experiment.name, experiment.title, experiment.where, f"{done} of {total}" if total else "–")
    return table


def run(
    names: list[str],
    *,
    scale_name: str,
    results: Path,
    work: Path,
    out: Path,
    workers: int,
    train: bool,
    console: Console,
) -> Path:
    """Run experiments with a progress bar, or a line a minute where there is no terminal."""
    store = store_for(scale_name, results, work)
    bar = Progress(
        TextColumn("rounds"),
        BarColumn(),
        TextColumn("{task.completed} of {task.total}"),
        TimeElapsedColumn(),
        TextColumn("gone,"),
        TimeRemainingColumn(elapsed_when_finished=True, compact=False),
        TextColumn("left"),
        console=console,
        disable=not console.is_terminal,
        speed_estimate_period=600,
    )
    task = bar.add_task("rounds", total=None)
    started = spoken = time.monotonic()
    first: int | None = None

    def watch(done: int, total: int) -> None:
        nonlocal spoken, first
        bar.update(task, completed=done, total=total)
        first = done if first is None else first
        now = time.monotonic()
        if not console.is_terminal and now - spoken >= 60:
            spoken = now
            left = (total - done) * (now - started) / max(1, done - first)
            console.print(f"{done} of {total} rounds, about {left / 60:.0f} minutes left", highlight=False)

    with bar:
        return repeat(names, scale(scale_name), store, out, workers=workers, watch=watch, train=train)
