"""What a run has used and reached, and whether that ends it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from feddrop.config import RunConfig


class Totals(NamedTuple):
    """What a run has used and reached so far.

    Attributes:
        seconds: virtual seconds.
        joules: joules of all devices.
        accuracy: the best accuracy, on the validation samples if there are any, otherwise on the test set.
    """

    seconds: float = 0.0
    joules: float = 0.0
    accuracy: float = 0.0

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> Self:
        """Add up records of rounds."""
        found = cls()
        for record in records:
            reached = record["test_accuracy"] if record["val_accuracy"] is None else record["val_accuracy"]
            found = found.after(record["time_s"], record["energy_j"]).reaching(reached)
        return found

    def after(self, time_s: float | None, joules: float | None) -> Self:
        """Return the totals after a round that ended at a time and used some energy; None without a cell."""
        return self._replace(seconds=time_s or 0.0, joules=self.joules + (joules or 0.0))

    def reaching(self, accuracy: float | None) -> Self:
        """Return the totals after an evaluation; None if there was none."""
        return self._replace(accuracy=max(self.accuracy, accuracy or 0.0))

    def end(self, config: RunConfig, rounds: int) -> str:
        """Return why a run ends after these rounds: by them, its seconds, joules or target; empty if it continues."""
        if 0 < config.target_accuracy <= self.accuracy:
            return f"the accuracy of {self.accuracy:.4g} reached target_accuracy = {config.target_accuracy:g}"
        if self.seconds >= config.seconds:
            return f"{self.seconds:.4g} virtual seconds reached seconds = {config.seconds:g}"
        if self.joules >= config.joules:
            return f"{self.joules:.4g} J reached joules = {config.joules:g}"
        return f"all {config.rounds} rounds are done" if rounds >= config.rounds else ""
