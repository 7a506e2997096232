"""``feddrop sweep``: many runs from one file."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from feddrop.cli.output import SET, Screen, note, say

if TYPE_CHECKING:
    from feddrop.sweeps import Job

DEFAULT = "default"
"""What ``--ray`` without an address stands for."""
_ADDRESS = re.compile(r"auto|local|default|[^\s/\\]+:\d+|\w+://.*")
_SHOWN = 8  # runs under way that have a line
_SPOKEN_S = 60.0


def with_address(words: list[str]) -> list[str]:
    """Give ``--ray`` a value where it has none: what follows is one if it looks like an address."""
    found = list(words)
    for place, word in enumerate(words):
        after = words[place + 1] if place + 1 < len(words) else ""
        if word == "--ray" and not _ADDRESS.fullmatch(after):
            found[place] = f"--ray={DEFAULT}"
    return found


def address_of(ray: str) -> str:
    """Return the address that ``--ray`` gave, checked."""
    from feddrop.config.execution import check_address

    return check_address("--ray", "" if ray == DEFAULT else ray)


def sweep(
    file: Path,
    *,
    set_: Annotated[list[str], SET] = [],  # noqa: B006 -- cyclopts copies it
    out: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    list_: Annotated[bool, Parameter(name="--list", negative=(), show_default=False)] = False,
) -> None:
    """Train many runs from one file, side by side, and compare them on one page.

    Given again, it goes on where it stopped.

    Parameters
    ----------
    file:
        TOML: base, a configuration file or a table of settings; [grid], a list for each setting that is varied;
        [[variants]], each a name and settings. See examples/sweep.toml.
    set_:
        Change one setting of all runs, e.g. --set rounds=5; may be repeated.
    out:
        Folder of the runs, their table and their page. Default: runs/NAME-OF-THE-FILE.
    workers:
        Runs side by side. Default: as many as there are cores, here or on the cluster.
    ray:
        Train on a Ray instead of this machine's cores: --ray for one that RAY_ADDRESS names or that is started here,
        --ray HOST:PORT or --ray auto for a cluster. All its machines must see the folder of the runs.
    list_:
        List the runs and train nothing.
    """
    from feddrop.sweeps import PAGE, TABLE, jobs_for, read_sweep, rounds_done
    from feddrop.sweeps import sweep as train

    address = None if ray is None else address_of(ray)
    folder = out or Path("runs") / file.stem
    configs = read_sweep(file, set_)
    jobs = jobs_for(configs, folder)
    if list_:
        for job in jobs:
            say(f"{job.name}: {rounds_done(job)} of {job.config.rounds} rounds done")
        return
    say(f"{len(jobs)} runs, {sum(job.config.rounds for job in jobs)} rounds, in {folder}")
    try:
        with Board(Screen()) as board:
            train(configs, folder, workers=workers, ray=address, watch=board.show)
    except KeyboardInterrupt:
        note("Every round that is done is saved: the same command goes on from there.")
        raise
    finally:
        if (folder / TABLE).exists():
            say(f"Table: {folder / TABLE}")
    say(f"Comparison: {folder / PAGE}")


class Board:
    """Progress in one place: all rounds, and the runs that are under way; plain lines where there is no terminal."""

    def __init__(self, console: Screen) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._started = self._spoken = time.monotonic()
        self._first: int | None = None
        self._ended: set[str] = set()

    def __enter__(self) -> Board:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, jobs: list[Job], failed: Mapping[str, str]) -> None:
        """Take in where the runs are."""
        from feddrop.sweeps import rounds_done

        done = {job.name: min(rounds_done(job), job.config.rounds) for job in jobs}
        for job in jobs:  # each is told of once, as it ends
            state = "failed" if job.name in failed else "done" if done[job.name] == job.config.rounds else ""
            if state and job.name not in self._ended:
                self._ended.add(job.name)
                if self._first is not None:
                    self._console.print(f"{job.name}: {state}", markup=False, highlight=False)
        total = sum(job.config.rounds for job in jobs)
        rounds = sum(done.values())
        self._first = rounds if self._first is None else self._first
        line = self._summary(len(jobs), failed, rounds, total)
        if self._live is not None:
            self._live.update(self._picture(line, jobs, done, rounds, total))
        elif time.monotonic() - self._spoken >= _SPOKEN_S:
            self._spoken = time.monotonic()
            self._console.print(line, markup=False, highlight=False)

    def _summary(self, count: int, failed: Mapping[str, str], rounds: int, total: int) -> str:
        gone = time.monotonic() - self._started
        new = rounds - (self._first or 0)
        minutes = gone * (total - rounds) / new / 60 if new else math.nan
        left = f", about {max(minutes, 1):.0f} min left" if new and rounds < total else ""
        lost = f", {len(failed)} failed" if failed else ""
        return f"{len(self._ended) - len(failed)} of {count} runs done{lost}, {rounds} of {total} rounds{left}"

    def _picture(self, line: str, jobs: list[Job], done: Mapping[str, int], rounds: int, total: int) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_row(Text("all", "bold"), ProgressBar(total, rounds, width=40), Text(f"{rounds} of {total}"))
        under_way = [job for job in jobs if 0 < done[job.name] < job.config.rounds and job.name not in self._ended]
        for job in under_way[:_SHOWN]:
            bar = ProgressBar(job.config.rounds, done[job.name], width=40)
            table.add_row(Text(job.name), bar, Text(f"{done[job.name]} of {job.config.rounds}"))
        return Group(table, Text(line))
