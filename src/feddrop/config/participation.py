"""``[participation]``: which devices take part in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import Section, setting
from feddrop.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Participation(Section):
    """Which devices take part in a round.

    Attributes:
        count: number of devices per round, drawn uniformly from the seed; 0 for no limit.
        share: fraction of the devices per round, in (0, 1], drawn the same way; 0 for no limit.
        availability: a ``.csv`` file with the columns device, first, last: the rounds, counted from 1, in which a
            device is available. A device may have several rows; one without a row is never available. If empty, all
            devices always are.

    Example:
        >>> import feddrop
        >>> feddrop.RunConfig.from_toml("participation = { share = 0.1 }").participation.share
        0.1
    """

    section: ClassVar[str] = "participation"

    count: int = setting(0, ge=0)
    share: float = setting(0.0, ge=0, le=1)
    availability: str = setting("", file=True)

    def check(self) -> None:
        """The number of devices is given in one way."""
        if self.count and self.share:
            raise ConfigError("participation.count and participation.share are both given; give one of them.")
