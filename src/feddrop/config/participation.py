"""``[participation]``: which devices take part in a round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import Settings, setting


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Participation(Settings):
    """Which devices take part in a round.

    Attributes:
        count: number of devices per round, drawn uniformly from the seed; 0 for no limit.
        share: fraction of all devices per round, drawn likewise and rounded to at least one device; 0 for no limit.
        availability: a ``.csv`` file with the columns device (from 0), first and last: the rounds, counted from 1, in
            which a device is available. A device may have several rows; one without a row is never available. If
            empty, all devices are always available.

    Example:
        >>> import feddrop
        >>> feddrop.RunConfig.from_toml("participation = { share = 0.1 }").participation.share
        0.1
    """

    section: ClassVar[str] = "participation"

    count: int = setting(0, ge=0)
    share: float = setting(0.0, ge=0, le=1)
    availability: str = setting("", file=True)

    def problems(self) -> Iterator[str]:
        """Reject a number of devices that is given twice."""
        if self.count and self.share:
            yield "participation.count and participation.share are both given; give one of them."
