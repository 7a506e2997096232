"""Finished runs of a sweep as one table: a row a run, what differs between them, and how they ended."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feddrop.files import write_atomically
from feddrop.records import RunFolder
from feddrop.sweeps.engine import Job

_LAST = ("test_accuracy", "test_loss", "train_loss")
_SUMS = ("push_bytes", "pull_bytes", "latency_s", "energy_j", "wall_s")


def write_results(jobs: Sequence[Job], path: Path) -> None:
    """Write the table of finished runs."""
    settings = [job.config.flat() for job in jobs]
    keys = sorted({key for one in settings for key in one})
    varied = [key for key in keys if len({repr(one.get(key)) for one in settings}) > 1]
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(["run", *varied, "rounds", *_LAST, *_SUMS])
    for job, one in zip(jobs, settings, strict=True):
        records = RunFolder(job.folder).records()
        sums = [_sum([getattr(record, name) for record in records]) for name in _SUMS]
        last = [getattr(records[-1], name) for name in _LAST]
        table.writerow([job.name, *(one.get(key, "") for key in varied), len(records), *last, *sums])
    write_atomically(path, text.getvalue().encode())


def _sum(values: list[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
