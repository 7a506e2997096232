"""Terminal output: the list of experiments and claims, progress, verdicts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from feddrop.comparison import FAILS, HOLDS, UNDECIDED
from reproduction.experiments import EXPERIMENTS
from reproduction.framework.experiment import Experiment
from reproduction.framework.judged import Judged
from reproduction.framework.published import CLAIMS, Claim
from reproduction.framework.scales import scale
from reproduction.reproduce import progress_of, reproduce, store_for


def overview(scale_name: str, results: Path, work: Path) -> Group:
    """List every experiment with its finished runs, and every claim with the experiments that judge it."""
    chosen, store = scale(scale_name), store_for(scale_name, results, work)
    experiments = _table("name", "what", "in the paper", f"runs finished ({scale_name})")
    for experiment in EXPERIMENTS:
        done, total = progress_of(experiment, chosen, store)
        experiments.add_row(experiment.name, experiment.title, experiment.where, f"{done} of {total}" if total else "–")
    claims = _table("claim", "in the paper", "judged by")
    for claim in CLAIMS:
        claims.add_row(claim.text, _where(claim), ", ".join(claim.by) or "tests, docs/allocate.md")
    return Group(experiments, "", claims)


def verdicts(judged: Sequence[Judged]) -> Table:
    """List the outcome of every claim."""
    table = _table("claim", "in the paper", "outcome")
    for one in judged:
        colour = {HOLDS: "green", FAILS: "red", UNDECIDED: "dim"}.get(one.outcome, "yellow")
        table.add_row(one.claim.text, _where(one.claim), f"[{colour}]{one.shown}[/]")
    return table


def _where(claim: Claim) -> str:
    return f"ours; {claim.where}" if claim.ours else claim.where


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column)
    return table


def run(
    names: list[str],
    *,
    scale_name: str,
    results: Path,
    work: Path,
    out: Path,
    workers: int | None,
    train: bool,
    torch_device: str,
    console: Console,
    ray: str | None = None,
) -> tuple[Path, list[Judged]]:
    """Run experiments with a progress bar; without a terminal, print one line per minute."""
    store = store_for(scale_name, results, work)
    bar = Progress(
        TextColumn("rounds"),
        BarColumn(),
        TextColumn("{task.completed} of {task.total}"),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(elapsed_when_finished=True, compact=False),
        TextColumn("left"),
        console=console,
        disable=not console.is_terminal,
        speed_estimate_period=600,
    )
    task = bar.add_task("rounds", total=None)
    started = printed = time.monotonic()
    first: int | None = None

    def watch(done: int, total: int) -> None:
        nonlocal printed, first
        bar.update(task, completed=done, total=total)
        first = done if first is None else first
        now = time.monotonic()
        if not console.is_terminal and now - printed >= 60:
            printed = now
            left = (total - done) * (now - started) / max(1, done - first)
            console.print(f"{done} of {total} rounds, about {left / 60:.0f} minutes left", highlight=False)

    def making(experiment: Experiment) -> None:
        bar.update(task, visible=False)
        console.print(f"Making the page: {experiment.title}", highlight=False)

    with bar:
        return reproduce(
            names,
            scale(scale_name),
            store,
            out,
            workers=workers,
            watch=watch,
            making=making,
            train=train,
            torch_device=torch_device,
            ray=ray,
        )
