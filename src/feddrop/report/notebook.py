"""Show a run in a notebook: its report, or its main figures."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feddrop.report import load
from feddrop.report.curves import accuracy_figure, loss_figure
from feddrop.report.html import as_iframe
from feddrop.report.page import run_page
from feddrop.report.plots import constant_line, device_figure
from feddrop.report.runlog import RunLog

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def show_figures(run_dir: str | Path) -> None:
    """Display the main figures of a run below the notebook cell, and where its report is."""
    notebook: Any = import_module("IPython.display")
    for figure in main_figures(read_log(run_dir)):
        notebook.display(figure)
    notebook.display(notebook.Markdown(f"Report: `{Path(run_dir) / 'report.html'}`"))


def main_figures(run: RunLog) -> list[Figure]:
    """Return accuracy and loss by round, and with a radio, the rate of every device if rates differ."""
    figures = [
        draw(run)
        for name, draw in (("test_accuracy", accuracy_figure), ("test_loss", loss_figure))
        if np.isfinite(run.by_round[name]).any()
    ]
    rated = np.isfinite(run.by_round["latency_s"]).any() and not constant_line(run, "rate")
    return figures + ([device_figure(run, "rate")] if rated else [])
