"""Show a run in a notebook as its report."""

from __future__ import annotations

from pathlib import Path

from feddrop.report import load
from feddrop.report.html import as_iframe
from feddrop.report.page import run_page
from feddrop.report.runlog import RunLog


class NotebookRun(RunLog):
    """A :class:`RunLog` that a notebook displays as the report of the run."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return the report in an iframe, so that its styles and the notebook's do not mix."""
        return as_iframe(run_page(self))


def read_log(run_dir: str | Path) -> NotebookRun:
    """Read a run folder as arrays.

    Args:
        run_dir: folder with ``config.toml``, ``metrics.jsonl`` and, optionally, ``run.json``. A last line of metrics
            that was cut off in the middle (the run was killed, or is still writing) is skipped.

    Raises:
        RunError: something is missing or malformed; the message says what, where, and what to do.
    """
    return load.read_run_log(run_dir, NotebookRun)
