"""``feddrop sweep`` and ``feddrop compare``: many runs from one file."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from feddrop.cli.output import SET, Screen, note, say
from feddrop.errors import ConfigError

if TYPE_CHECKING:
    from feddrop.sweeps import SweepJob

DEFAULT = "default"
"""The value of ``--ray`` without an address."""
_ADDRESS = re.compile(r"auto|local|default|[^\s/\\]+:\d+|\w+://.*")
_SHOWN = 8  # active runs with a progress bar
_LINE_EVERY_S = 60.0


def with_address(words: list[str]) -> list[str]:
    """Add the default value to ``--ray`` unless the next word looks like an address."""
    found = list(words)
    for place, word in enumerate(words):
        after = words[place + 1] if place + 1 < len(words) else ""
        if word == "--ray" and not _ADDRESS.fullmatch(after):
            found[place] = f"--ray={DEFAULT}"
    return found


def address_of(ray: str) -> str:
    """Return the address given by ``--ray``."""
    from feddrop.config.execution import address_problems

    address = "" if ray == DEFAULT else ray
    for problem in address_problems("--ray", address):
        raise ConfigError(problem)
    return address


def sweep(
    file: Path,
    *,
    set_: Annotated[list[str], SET] = [],  # noqa: B006 -- cyclopts copies it
    out: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    list_: Annotated[bool, Parameter(name="--list", negative=(), show_default=False)] = False,
) -> None:
    """Train many runs from one file in parallel and compare them on one page.

    The same command continues a stopped sweep.

    Parameters
    ----------
    file:
        TOML: base, a configuration file or a table of settings; [grid], a list of values per varied setting;
        [[variants]], each with a name and settings. See examples/sweep.toml.
    set_:
        Change a setting of all runs, e.g. --set rounds=5; may be repeated.
    out:
        Folder for the runs, their table and their page. Default: runs/NAME-OF-THE-FILE.
    workers:
        Number of parallel runs. Default: the number of cores, on this machine or on the cluster.
    ray:
        Train on Ray: --ray for the cluster in RAY_ADDRESS, or else a local one; --ray HOST:PORT or --ray auto for a
        running cluster. All machines must share the folder of the runs.
    list_:
        List the runs without training.
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
        note("All finished rounds are saved; the same command continues.")
        raise
    finally:
        if (folder / TABLE).exists():
            say(f"Table: {folder / TABLE}")
    say(f"Comparison: {folder / PAGE}")


def compare(
    file: Path,
    *,
    set_: Annotated[list[str], SET] = [],  # noqa: B006 -- cyclopts copies it
    target: Annotated[list[float], Parameter(negative=(), show_default=False)] = [],  # noqa: B006
    out: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
) -> None:
    """Compare methods, schemes or other settings over seeds, at equal budgets, on one page.

    Also writes tables (CSV, LaTeX) and figures (PDF, PNG). The same command continues a stopped comparison.

    Parameters
    ----------
    file:
        TOML: the settings of a run, [compare] with seeds, budget, targets and reference, and one table
        [compare.arms.NAME] per arm. See examples/compare_methods.toml.
    set_:
        Change a setting of all runs or of the comparison, e.g. --set compare.budget.bytes=1e7; may be repeated.
    target:
        Accuracy to reach, e.g. --target 0.5, in place of those in the file; may be repeated.
    out:
        Folder for the runs and results. Default: runs/NAME-OF-THE-FILE.
    workers:
        Number of parallel runs. Default: the number of cores, on this machine or on the cluster.
    ray:
        Train on Ray, as for `feddrop sweep`.
    """
    from feddrop.sweeps import compare as train

    address = None if ray is None else address_of(ray)
    folder, options = out or Path("runs") / file.stem, {"workers": workers, "ray": address}
    try:
        with Board(Screen(), passes=True) as board:
            found = train(file, folder, overrides=set_, targets=target or None, watch=board.show, **options)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        note("All finished rounds are saved; the same command continues.")
        raise
    say(f"\n{found}\n")
    say(f"Tables and figures: {folder}")
    say(f"Comparison: {found.page}")


class Board:
    """Progress of a sweep: all rounds and the active runs; plain lines without a terminal.

    With ``passes``, runs are trained in several passes, as those of a comparison: the start of each is reported, not
    the end of every run.
    """

    def __init__(self, console: Screen, *, passes: bool = False) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._started = self._printed = time.monotonic()
        self._first: int | None = None
        self._passes, self._goals = passes, dict[str, int]()
        self._ended: set[tuple[str, int]] = set()  # name and rounds: a comparison may add rounds

    def __enter__(self) -> Board:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, jobs: list[SweepJob], failed: Mapping[str, str]) -> None:
        """Update the progress."""
        from feddrop.sweeps import rounds_done

        self._announce(jobs)
        done = {job.name: min(rounds_done(job), job.goal) for job in jobs}
        for job in jobs:  # report each once, when it ends
            state = "failed" if job.name in failed else "done" if done[job.name] == job.goal else ""
            if state and (job.name, job.goal) not in self._ended:
                self._ended.add((job.name, job.goal))
                if self._first is not None and (state == "failed" or not self._passes):
                    self._console.print(f"{job.name}: {state}", markup=False, emoji=False, highlight=False)
        total = sum(job.goal for job in jobs)
        rounds = sum(done.values())
        self._first = rounds if self._first is None else self._first
        ended = len(self._ended & {(job.name, job.goal) for job in jobs})
        line = self._summary(f"{ended - len(failed)} of {len(jobs)}", failed, rounds, total)
        if self._live is not None:
            self._live.update(self._picture(line, jobs, done, rounds, total))
        elif time.monotonic() - self._printed >= _LINE_EVERY_S:
            self._printed = time.monotonic()
            self._console.print(line, markup=False, emoji=False, highlight=False)

    def _announce(self, jobs: list[SweepJob]) -> None:
        """Report a new pass: how many rounds each arm is trained to."""
        goals = {job.label: job.goal for job in jobs}
        if not self._passes or goals == self._goals:
            return
        counts = [str(count) for count in dict.fromkeys(goals.values())]
        each = f"{counts[0]} rounds each" if len(counts) == 1 else "; ".join(f"{arm} {n}" for arm, n in goals.items())
        first = not self._goals and len(counts) == 1 and any(job.goal < job.config.rounds for job in jobs)
        why = ", to measure what a round costs" if first else "" if len(counts) == 1 else " rounds"
        self._console.print(
            f"{len(jobs)} runs: {each}{why}", markup=False, emoji=False, highlight=False, soft_wrap=True
        )
        self._goals, self._first, self._started = goals, None, time.monotonic()

    def _summary(self, ended: str, failed: Mapping[str, str], rounds: int, total: int) -> str:
        elapsed = time.monotonic() - self._started
        new = rounds - (self._first or 0)
        minutes = elapsed * (total - rounds) / new / 60 if new else math.nan
        left = f", about {max(minutes, 1):.0f} min left" if new and rounds < total else ""
        failures = f", {len(failed)} failed" if failed else ""
        return f"{ended} runs done{failures}, {rounds} of {total} rounds{left}"

    def _picture(self, line: str, jobs: list[SweepJob], done: Mapping[str, int], rounds: int, total: int) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_row(Text("all", "bold"), ProgressBar(total, rounds, width=40), Text(f"{rounds} of {total}"))
        ended = {name for name, _ in self._ended & {(job.name, job.goal) for job in jobs}}
        active = [job for job in jobs if 0 < done[job.name] < job.goal and job.name not in ended]
        for job in active[:_SHOWN]:
            bar = ProgressBar(job.goal, done[job.name], width=40)
            table.add_row(Text(job.name), bar, Text(f"{done[job.name]} of {job.goal}"))
        return Group(table, Text(line))
