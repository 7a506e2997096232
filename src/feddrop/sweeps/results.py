"""The table of a sweep: one row per finished run, with the varied settings and the final results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feddrop.report.warned import count_suspects, divergence_advice
from feddrop.storage import RoundRecord, RunFolder
from feddrop.storage.tables import write_csv
from feddrop.sweeps.engine import SweepJob

_LAST = ("test_accuracy", "test_loss", "train_loss")
_VALIDATED = ("val_accuracy", "val_loss")  # if a run has validation samples
_SUMS = ("push_bytes", "pull_bytes", "latency_s", "energy_j", "wall_s")
_COLUMNS = ("rounds", *_LAST, *_VALIDATED, *_SUMS)


class ResultsTable:
    """The finished runs of a sweep; writes their table whenever runs are added.

    Attributes:
        summaries: the row of each finished run by name; a run is read only once.
        diverged: the finished runs whose training diverged, and what to do, by name.
    """

    def __init__(self, jobs: Sequence[SweepJob], path: Path) -> None:
        self.summaries: dict[str, list[Any]] = {}
        self.diverged: dict[str, str] = {}
        self._jobs, self._path = jobs, path

    @property
    def finished(self) -> list[SweepJob]:
        """The finished runs, in the order of the sweep."""
        return [job for job in self._jobs if job.name in self.summaries]

    def add(self, *jobs: SweepJob) -> None:
        """Add finished runs and write the table."""
        for job in jobs:
            records = RunFolder(job.folder).records()
            self.summaries[job.name] = _summary(records)
            if records[-1].diverged:
                loss = "not finite" if records[-1].test_loss is None else f"{records[-1].test_loss:.3g}"
                why = f"training diverged: the test loss after its last round is {loss}"
                self.diverged[job.name] = f"{why}. {divergence_advice(count_suspects(records), job.config.server)}"
        if not self.summaries:
            return
        settings = {job.name: job.config.flat() for job in self.finished}
        keys = sorted({key for one in settings.values() for key in one})
        varied = [key for key in keys if len({repr(one.get(key)) for one in settings.values()}) > 1]
        columns = [n for n, name in enumerate(_COLUMNS) if name not in _VALIDATED or self._any_validated()]
        rows = [["run", *varied, *(_COLUMNS[n] for n in columns)]]
        for name, one in settings.items():
            row = self.summaries[name]
            rows.append([name, *(one.get(key, "") for key in varied), *(row[n] for n in columns)])
        write_csv(self._path, rows)

    def _any_validated(self) -> bool:
        place = _COLUMNS.index("val_loss")
        return any(row[place] is not None for row in self.summaries.values())


def _summary(records: Sequence[RoundRecord]) -> list[Any]:
    """Return the number of rounds, the last losses and accuracy, and the totals of a finished run."""
    known = [[record[name] for record in records if record[name] is not None] for name in _SUMS]
    last = (records[-1][name] for name in (*_LAST, *_VALIDATED))
    return [len(records), *last, *(sum(one) if one else None for one in known)]
