"""A run, live on the terminal: progress and a table; plain lines where the output is not a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from feddrop.runs import Record, Run

_ROWS = 10  # rounds shown at a time
_BARS = " ▁▂▃▄▅▆▇█"


def show(run: Run, console: Console | None = None) -> Iterator[Record]:
    """Show a run round by round while passing its records on."""
    console = console or Console()
    if not console.is_terminal:
        for record in run:
            console.print(line(record, run.config.rounds), markup=False, highlight=False, soft_wrap=True)
            yield record
        return
    records = run.records
    progress = Progress(
        TextColumn("[bold]round"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("·"),
        TimeElapsedColumn(),
        TextColumn("gone,"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
    )
    bar = progress.add_task("rounds", total=run.config.rounds, completed=run.round)
    with Live(Group(table(records), progress), console=console, refresh_per_second=4) as live:
        for record in run:
            records.append(record)
            progress.update(bar, completed=record["round"])
            live.update(Group(table(records), progress))
            yield record


def line(record: Record, rounds: int) -> str:
    """Write a record as one plain line."""
    cells = [f"round {record['round']:>{len(str(rounds))}}/{rounds}", f"train loss {record['train_loss']:.4f}"]
    if record["test_accuracy"] is not None:
        cells += [f"test accuracy {record['test_accuracy']:7.2%}"]
    cells += [f"down {_size(record['push_bytes'])}", f"up {_size(record['pull_bytes'])}"]
    if record["latency_s"] is not None:
        cells += [f"latency {record['latency_s']:.3g} s", f"energy {record['energy_j']:.3g} J"]
    refused = sum(device["status"] not in ("ok", "left out") for device in record["devices"])
    if refused:
        cells += [f"{refused} refused"]
    return "  ".join([*cells, f"{record['wall_s']:.2f} s"])


def table(records: list[Record]) -> Table:
    """Draw the last rounds as a table."""
    radio = bool(records) and records[-1]["latency_s"] is not None
    view = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    names = ["round", "train loss", "test loss", "test accuracy", "mean rate", "rates by device", "down", "up"]
    for name in [*names, *(["latency", "energy"] if radio else []), "time"]:
        view.add_column(name, justify="left" if "by device" in name else "right")
    for record in records[-_ROWS:]:
        rates = [device["rate"] for device in record["devices"]]
        accuracy, loss = record["test_accuracy"], record["test_loss"]
        cells = [
            str(record["round"]),
            f"{record['train_loss']:.4f}",
            "–" if loss is None else f"{loss:.4f}",
            "–" if accuracy is None else f"[bold green]{accuracy:.2%}[/]",
            f"{sum(rates) / max(1, len(rates)):.2f}",
            "".join(_BARS[min(8, round(rate * 8))] for rate in rates[:40]),
            _size(record["push_bytes"]),
            _size(record["pull_bytes"]),
        ]
        if radio:
            cells += [f"{record['latency_s']:.3g} s", f"{record['energy_j']:.3g} J"]
        view.add_row(*cells, f"{record['wall_s']:.2f} s")
    return view


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
