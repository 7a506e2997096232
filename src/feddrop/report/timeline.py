"""The timeline of a run under a virtual clock: who downloads, computes, uploads, waits and is dropped, and when."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from feddrop.errors import ConfigError
from feddrop.report import style
from feddrop.report.html import Html, figure_panel, section, tiles
from feddrop.report.quantities import how_many, in_digits, in_seconds, second_scale
from feddrop.report.runlog import Bools, EarlierJob, Floats, RunLog
from feddrop.storage.records import DROPPED, LOST, STALE, UNANSWERED, VANISHED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_JOBS, MOST_DEVICES = 250, 40
PHASES = (("push_s", "download"), ("compute_s", "compute"), ("pull_s", "upload"))
COLOURS = {"download": style.SERIES[0], "compute": style.SERIES[1], "upload": style.SERIES[2], "wait": style.GRID}
_HEIGHT = 0.62


def timeline_section(run: RunLog) -> Html:
    """Return the timeline and what became of the jobs; empty for a run without a virtual clock."""
    if not run.virtual or not np.isfinite(run.by_device["start_s"]).any():
        return Html("")
    steps = drawn_steps(run)
    part = f"The first {steps} of {len(run.rounds):,} server steps."
    shown = "All server steps." if steps == len(run.rounds) else part
    devices = "" if len(run.devices) <= MOST_DEVICES else f" {MOST_DEVICES} of {len(run.devices):,} devices."
    crosses = np.isin(run.words["status"], (*UNANSWERED, LOST, "refused")).any() or bool(run.earlier)
    marks = "Lines: server steps." + " Crosses: jobs that were cancelled, lost, refused or too stale." * bool(crosses)
    note = f"{shown}{devices} {marks} Jobs under way at the end are not drawn."
    picture = figure_panel("timeline", "Who did what when", note, partial(timeline_figure, run), wide=True)
    return section("Timeline", "", tiles(_facts(run), class_="tiles wide"), picture)


def _facts(run: RunLog) -> Iterable[tuple[str, str, str]]:
    """Yield headline numbers: steps, jobs, staleness, and jobs that did not count."""
    status, ages = run.words["status"], run.by_device["staleness"]
    jobs = int(run.active.sum()) + len(run.earlier)
    seconds = run.spent("seconds")
    yield "Server steps", f"{len(run.rounds):,}", f"every {in_seconds(float(seconds[-1]) / len(run.rounds))} on average"
    merged = ages[run.answered]
    if merged.size and np.nanmax(merged) > 0:
        note = f"server steps on average; at most {np.nanmax(merged):.0f}"
        yield "Staleness", in_digits(float(np.nanmean(merged))), note
    meanings = {DROPPED: "cancelled: the server had enough", VANISHED: "went offline during a job", STALE: "too old"}
    meanings |= {LOST: "lost on the way", "refused": "failed or unusable"}
    for word, meaning in meanings.items():
        if count := int((status == word).sum()) + sum(job.status == word for job in run.earlier):
            yield word.capitalize(), f"{count:,}", f"of {how_many(jobs, 'job')}; {meaning}"


def drawn_steps(run: RunLog) -> int:
    """Return how many of the first server steps are drawn, so that their jobs can be told apart."""
    jobs = np.isfinite(run.by_device["start_s"][:, :MOST_DEVICES]).sum(axis=1)
    jobs += np.bincount([job.step for job in run.earlier if job.column < MOST_DEVICES], minlength=len(jobs))
    return max(1, int(np.searchsorted(np.cumsum(jobs), MOST_JOBS, side="right")))


def timeline_figure(run: RunLog) -> Figure:
    """Draw one row per device with its jobs over virtual time, and a line per server step."""
    start = run.by_device["start_s"]
    if not run.virtual or not np.isfinite(start).any():
        raise ConfigError(f"run {run.name!r} has no timeline: it has no virtual clock. Set clock.kind.")
    from matplotlib.patches import Patch

    count, devices = drawn_steps(run), run.devices[:MOST_DEVICES]
    times = run.spent("seconds")[:count]
    scale, unit = second_scale(float(times[-1]))
    figure, axes = style.new_figure("", style.row_height(len(devices)) + 0.3, style.WIDE)
    begin, here = start[:count, : len(devices)].copy(), np.isfinite(start[:count, : len(devices)])
    for key, name in PHASES:
        lasted = np.nan_to_num(run.by_device[key][:count, : len(devices)])
        _bars(axes, begin, lasted, here & (lasted > 0), scale, COLOURS[name])
        begin = begin + lasted
    ok = here & run.answered[:count, : len(devices)]
    _bars(axes, begin, np.maximum(times[:, None] - begin, 0.0), ok, scale, COLOURS["wait"])
    rows, columns = np.nonzero(here & ~ok)
    axes.plot(begin[rows, columns] / scale, columns, "x", ms=6, mew=1.4, color=style.INK)
    for job in run.earlier:
        if job.step < count and job.column < len(devices):
            _earlier_job(axes, job, scale)
    axes.vlines(times / scale, -0.5, len(devices) - 0.5, color=style.MUTED, linewidth=0.7, linestyle=(0, (2, 3)))
    axes.grid(visible=False)
    axes.set_ylim(len(devices) - 0.5, -0.5)
    axes.set_xlim(0, float(times[-1]) / scale * 1.005)
    axes.set_xlabel(f"virtual time, {unit}", fontsize=style.TEXT, color=style.MUTED)
    style.number_devices(axes, devices, side="y")
    handles = [Patch(color=colour, label=name) for name, colour in COLOURS.items()]
    look = {"frameon": False, "fontsize": style.TEXT, "labelcolor": style.INK, "handlelength": 1.2}
    axes.legend(handles=handles, ncols=4, loc="lower left", bbox_to_anchor=(-0.005, 1.0), borderaxespad=0.2, **look)
    return figure


def _earlier_job(axes: Axes, job: EarlierJob, scale: float) -> None:
    """Draw a job whose device was asked again in the same step; its answer did not count."""
    at = job.start_s
    for key, name in PHASES:
        lasted = float(np.nan_to_num(getattr(job, key)))
        if lasted > 0:
            axes.barh(job.column, lasted / scale, left=at / scale, height=_HEIGHT, color=COLOURS[name], linewidth=0)
        at += lasted
    axes.plot(at / scale, job.column, "x", ms=6, mew=1.4, color=style.INK)


def _bars(axes: Axes, begin: Floats, lasted: Floats, which: Bools, scale: float, colour: str) -> None:
    """Draw the parts of jobs that one phase took."""
    rows, columns = np.nonzero(which)
    left, width = begin[rows, columns] / scale, lasted[rows, columns] / scale
    axes.barh(columns, width, left=left, height=_HEIGHT, color=colour, linewidth=0)
