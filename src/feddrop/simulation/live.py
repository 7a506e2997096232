"""Show a run live: a table and a progress bar in a terminal or a notebook, plain lines elsewhere."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from feddrop.errors import clean
from feddrop.report.quantities import in_hertz, in_seconds, in_watts
from feddrop.storage.records import UNANSWERED, UNTRAINED

if TYPE_CHECKING:
    from feddrop.simulation.run import Record, Run

_ROWS = 10  # rounds shown
_BARS = "▁▁▂▃▄▅▆▇█"
_FEWEST, _MOST = 4, 40  # bars, one per device
_GAP = 2
_NOTEBOOK_WIDTH = 110


class Column(NamedTuple):
    """A column of the table: its heading, one cell per record, and its rank when columns are dropped, largest first."""

    name: str
    cells: list[str]
    rank: int
    style: str = ""

    @property
    def width(self) -> int:
        """Width in characters, including the gap to the next column."""
        return max(map(cell_len, (self.name, *self.cells))) + _GAP


def show_run(run: Run, console: Console | None = None) -> Iterator[Record]:
    """Yield the records of a run and show them round by round.

    Args:
        run: the run; iterate over the returned iterator, not over the run.
        console: where to show it; by default the terminal or the notebook cell.
    """
    console = console or Console()
    if console.is_jupyter:
        yield from _in_notebook(run)
    elif console.is_terminal:
        with Live(console=console, refresh_per_second=4) as live:
            yield from _watched(run, console, live.update)
    else:
        for record in run:
            console.print(line(record, run.config.rounds), markup=False, highlight=False, soft_wrap=True)
            yield record


def _watched(run: Run, console: Console, show: Callable[[RenderableType], None]) -> Iterator[Record]:
    """Yield the records of a run; show the last ones and the progress at the start and after each round."""
    records, progress = run.records[-_ROWS:], _progress(run, console)
    show(Group(table(records, console.width), progress))
    for record in run:
        records = [*records, record][-_ROWS:]
        progress.update(progress.task_ids[0], completed=record["round"])
        show(Group(table(records, console.width), progress))
        yield record


def _in_notebook(run: Run) -> Iterator[Record]:
    """Show the table in a notebook cell, without widgets or extensions."""
    notebook: Any = import_module("IPython.display")
    console = Console(file=io.StringIO(), record=True, width=_NOTEBOOK_WIDTH, force_jupyter=False, force_terminal=True)
    cells: list[Any] = []

    def show(content: RenderableType) -> None:
        console.print(content)
        style = "font-family:monospace;line-height:1.35;white-space:pre;overflow-x:auto"
        code = f'<pre style="{style}">{{code}}</pre>'
        picture = notebook.HTML(console.export_html(inline_styles=True, code_format=code))
        if cells:
            cells[0].update(picture)
        else:
            cells.append(notebook.display(picture, display_id=True))

    yield from _watched(run, console, show)


def _progress(run: Run, console: Console) -> Progress:
    wide = console.width >= 60
    words = [TextColumn("·"), TimeElapsedColumn(), TextColumn("elapsed,"), TimeRemainingColumn(), TextColumn("left")]
    progress = Progress(
        *([TextColumn("[bold]round")] if wide else []),
        BarColumn(bar_width=40 if console.width >= 90 else None),
        MofNCompleteColumn(),
        *(words if wide else [TimeRemainingColumn(compact=True)]),
        console=console,
        expand=console.width < 90,
    )
    progress.add_task("rounds", total=run.config.rounds, completed=run.round)
    return progress


def line(record: Record, rounds: int) -> str:
    """Return a record as one plain line."""
    cells = [f"round {record['round']:>{len(str(rounds))}}/{rounds}", f"train loss {_number(record['train_loss'])}"]
    if record["test_accuracy"] is not None:
        cells += [f"test accuracy {record['test_accuracy']:7.2%}"]
    elif record["test_loss"] is not None:
        cells += [f"test loss {_number(record['test_loss'])}"]
    cells += [f"{_heading(name)} {_metric(name, value)}" for name, value in (record.get("metrics") or {}).items()]
    cells += [f"down {_size(record['push_bytes'])}", f"up {_size(record['pull_bytes'])}"]
    given = (("latency", _latency(record)), ("time", _time(record)), ("energy", _energy(record)))
    cells += [f"{name} {text}" for name, text in given if text]
    cells += [
        f"{name} {text}" for name, text in (("power", _mean_power(record)), ("clock", _mean_clock(record))) if text
    ]
    cells += [
        f"{record.counts[word]} {word}"
        for word in ("lost", "refused", *UNANSWERED, "suspicious")
        if word in record.counts
    ]
    return "  ".join([*cells, f"wall {record['wall_s']:.2f} s"])


def table(records: Sequence[Record], width: int) -> Table:
    """Return a table of at most this width; columns that do not fit are dropped, numbers are never cut."""
    columns = fitting(_columns(records), width)
    view = Table(box=None, header_style="bold", padding=(0, _GAP, 0, 0))
    for column in columns:
        view.add_column(column.name, justify="left" if column.rank == 0 else "right", no_wrap=True)
    for row in zip(*(column.cells for column in columns), strict=True):
        view.add_row(*(Text(cell, style=column.style) for cell, column in zip(row, columns, strict=True)))
    return view


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """Return the columns that fit, in order; the bars of rates (rank 0) take the remaining width."""
    kept = [column for column in columns if column.rank]
    while len(kept) > 1 and sum(column.width for column in kept) > width:
        kept.remove(max(kept, key=lambda column: column.rank))
    room = width - sum(column.width for column in kept) - _GAP
    bars = next((column for column in columns if not column.rank), None)
    longest = max(map(len, bars.cells), default=0) if bars else 0
    if bars is None or len(kept) < len(columns) - 1 or room < max(len(bars.name), min(longest, _FEWEST)):
        return kept
    shortened = bars._replace(cells=[cell if len(cell) <= room else cell[: room - 1] + "…" for cell in bars.cells])
    return sorted([*kept, shortened], key=lambda column: [c.name for c in columns].index(column.name))


def _columns(records: Sequence[Record]) -> list[Column]:
    """Return the columns that have a value in any of these records."""

    def column(name: str, write: Callable[[Record], str | None], rank: int, style: str = "") -> list[Column]:
        cells = [write(record) for record in records]
        there = any(cell is not None for cell in cells)
        return [Column(name, [cell or "–" for cell in cells], rank, style)] if there else []

    def value(key: str, template: str) -> Callable[[Record], str | None]:
        return lambda record: None if record[key] is None else template.format(record[key])

    def metric(name: str) -> Callable[[Record], str | None]:
        return lambda record: _metric(name, (record.get("metrics") or {}).get(name))

    own = dict.fromkeys(name for record in records for name in record.get("metrics") or {})
    metrics = [found for name in own for found in column(_heading(name)[:16], metric(name), 10)]
    return [
        *column("round", value("round", "{}"), 1),
        *column("train loss", value("train_loss", "{:.4f}"), 4),
        *column("test loss", value("test_loss", "{:.4f}"), 3),
        *column("accuracy", value("test_accuracy", "{:.2%}"), 2, "bold green"),
        *metrics,
        *(
            found
            for word in ("lost", "refused", "late", *UNANSWERED, "suspicious")
            for found in column(word, _count(word), 3)
        ),
        *column("rate", value("mean_rate", "{:.2f}"), 9),
        *column("by device", lambda r: _bars(_rates(r)), 0),
        *column("down", lambda r: _size(r["push_bytes"]), 11),
        *column("up", lambda r: _size(r["pull_bytes"]), 12),
        *column("latency", _latency, 6),
        *column("time", _time, 5),
        *column("energy", _energy, 7),
        *column("power", _mean_power, 13),
        *column("clock", _mean_clock, 14),
        *column("wall", value("wall_s", "{:.2f} s"), 8),
    ]


def _count(word: str) -> Callable[[Record], str | None]:
    return lambda record: str(record.counts[word]) if word in record.counts else None


def _latency(record: Record) -> str | None:
    """Return how long the round took; None under a virtual clock, where the server does not wait for devices."""
    virtual = any(device.start_s is not None for device in record.devices)
    return None if record.latency_s is None or virtual else f"{record.latency_s:.3g} s"


def _time(record: Record) -> str | None:
    """Return the virtual time at the end of the round."""
    return None if record.time_s is None else in_seconds(record.time_s)


def _energy(record: Record) -> str | None:
    return None if record.energy_j is None else f"{record.energy_j:.3g} J"


def _rates(record: Record) -> list[float]:
    """Return the rates of the devices that took part."""
    return [device["rate"] for device in record["devices"] if device["status"] != "left out"]


def _mean_power(record: Record) -> str | None:
    """Return the mean transmit power of the devices, if it was chosen."""
    found = [device["tx_power_w"] for device in record["devices"] if device.get("tx_power_w")]
    return in_watts(sum(found) / len(found)) if found else None


def _mean_clock(record: Record) -> str | None:
    """Return the mean clock of the devices, if it was chosen."""
    found = [device["cpu_hz"] for device in record["devices"] if device.get("cpu_hz")]
    return in_hertz(sum(found) / len(found)) if found else None


def _bars(rates: Sequence[float]) -> str | None:
    if not rates:
        return None
    return "".join(_BARS[min(8, round(rate * 8))] for rate in rates[:_MOST]) + "…" * (len(rates) > _MOST)


def _heading(name: str) -> str:
    return "never trained" if name == UNTRAINED else clean(name)


def _metric(name: str, value: float | None) -> str:
    """Return the value of a metric; that of UNTRAINED is a share of the trainable parameters."""
    if name != UNTRAINED or value is None:
        return _number(value)
    return f"{value:.2%} of parameters" if value >= 0.0001 else "<0.01% of parameters"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3e}"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
