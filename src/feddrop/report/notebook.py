"""A run as a notebook shows it: its whole report below the cell."""

from __future__ import annotations

from pathlib import Path

from feddrop.report import load
from feddrop.report.html import in_frame
from feddrop.report.page import run_page
from feddrop.report.runlog import RunLog


class ShownRun(RunLog):
    """What a run did, as :class:`RunLog`; shown in a notebook, it is the report."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Show the report in a frame of its own: neither page can disturb the other."""
        return in_frame(run_page(self))


def read_log(run_dir: str | Path) -> ShownRun:
    """Read a run folder as arrays.

    Args:
        run_dir: folder with ``config.toml``, ``metrics.jsonl`` and, optionally, ``run.json``. A last line of metrics
            that was cut off in the middle (the run was killed, or is still writing) is left out.

    Raises:
        RunError: something is missing or malformed; the message says what, where, and what to do.
    """
    return load.read_log(run_dir, ShownRun)
