"""Drive a run to its end: show it in a notebook, and after an interrupt, write the report and say how to resume."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from feddrop.errors import FeddropError
from feddrop.report import write_report
from feddrop.report.notebook import show_figures
from feddrop.simulation.live import show_run
from feddrop.storage import RoundRecord

if TYPE_CHECKING:
    from feddrop.simulation.run import Run

_ARGUMENTS = {"network": "model=...", "data": "dataset=..."}


class StoppedError(KeyboardInterrupt):
    """An interrupt that says what was kept and how to resume."""

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the message, without the traceback."""
        return [f"Interrupted. {self}"]


def finish(job: Run) -> list[RoundRecord]:
    """Run all remaining rounds, write the report and return all records; a notebook shows rounds, then figures.

    Raises:
        KeyboardInterrupt: the run was interrupted; the message says how to resume it.
    """
    notebook = Console().is_jupyter
    try:
        for _ in show_run(job) if notebook else job:
            pass
    except KeyboardInterrupt:
        raise StoppedError(stopped(job)) from None
    write_report(job.folder)
    if notebook:
        show_figures(job.folder)
    return job.records


def stopped(job: Run) -> str:
    """Write the report of an interrupted run; return what was kept, and how to resume."""
    if not job.round:
        return f"Stopped before round 1 was saved. To start again in {job.folder}, give overwrite=True."
    again = resume_call(job.folder, job.about)
    told = f"Stopped after round {job.round} of {job.config.rounds}. Continue with {again}."
    try:
        return f"{told} Report: {write_report(job.folder)}"
    except (FeddropError, OSError) as error:  # the interrupt matters more than this error
        return f"{told} The report could not be written: {error}"


def resume_call(folder: str | Path, about: Mapping[str, Any]) -> str:
    """Return the Python call that resumes a run; its custom objects must be given again."""
    custom = about.get("custom")
    names = custom if isinstance(custom, list) else []
    given = ", ".join([repr(str(folder)), *(_ARGUMENTS.get(str(name), f"{name}=...") for name in names)])
    return f"feddrop.resume({given})"
