"""Finished runs of a sweep as one table: a row a run, what differs between them, and how they ended."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feddrop.storage import RunFolder
from feddrop.storage.files import write_atomically
from feddrop.sweeps.engine import Job

_LAST = ("test_accuracy", "test_loss", "train_loss")
_SUMS = ("push_bytes", "pull_bytes", "latency_s", "energy_j", "wall_s")


def summary(job: Job) -> list[Any]:
    """Return what the table says of a finished run: its rounds, and how it ended."""
    records = RunFolder(job.folder).records()
    sums = [_sum([getattr(record, name) for record in records]) for name in _SUMS]
    return [len(records), *(getattr(records[-1], name) for name in _LAST), *sums]


def write_results(jobs: Sequence[Job], summaries: Mapping[str, Sequence[Any]], path: Path) -> None:
    """Write the table of these runs, given the :func:`summary` of each by name."""
    settings = [job.config.flat() for job in jobs]
    keys = sorted({key for one in settings for key in one})
    varied = [key for key in keys if len({repr(one.get(key)) for one in settings}) > 1]
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(["run", *varied, "rounds", *_LAST, *_SUMS])
    for job, one in zip(jobs, settings, strict=True):
        table.writerow([job.name, *(one.get(key, "") for key in varied), *summaries[job.name]])
    write_atomically(path, text.getvalue().encode())


def _sum(values: list[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
