"""``[compare]``: what a comparison trains and how it is judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import Settings, setting

RESOURCES = ("rounds", "bytes", "seconds", "joules")
"""What a run spends, in the order of tables and figures."""
WIDTHS = {"ieee": 3.5, "ieee-double": 7.16}
"""Widths of journal figures in inches: one column and two columns."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Budget(Settings):
    """What every run of a comparison may spend, in total over its rounds. Accuracy is read at each amount.

    Attributes:
        rounds: number of rounds.
        bytes: bytes sent to and from all devices.
        seconds: simulated seconds; needs a radio.
        joules: energy of all devices; needs a radio.

    Example:
        >>> import feddrop
        >>> feddrop.Budget(bytes=2e8, seconds=60).given()
        {'bytes': 200000000.0, 'seconds': 60.0}
    """

    section: ClassVar[str] = "compare.budget"

    rounds: int | None = setting(None, ge=1)
    bytes: float | None = setting(None, gt=0)
    seconds: float | None = setting(None, gt=0)
    joules: float | None = setting(None, gt=0)

    def given(self) -> dict[str, float]:
        """Return the amounts that are limited, by resource."""
        return {name: getattr(self, name) for name in RESOURCES if getattr(self, name) is not None}

    def problems(self) -> Iterator[str]:
        """Require at least one amount."""
        if not self.given():
            yield f"compare.budget is empty; give at least one of {', '.join(RESOURCES)}."


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Compare(Settings):
    """How arms are compared.

    Attributes:
        seeds: number of seeds, counted up from ``seed``; or a list of seeds. Every arm is run with each of them.
        budget: what every run may spend; without one, each arm trains its ``rounds``.
        targets: accuracies to reach (losses, if there is no accuracy); the page shows what each arm spends until then.
        reference: the arm that all others are compared with; the first one if empty.
        width: width of the figures: one or two columns of a journal page.
    """

    section: ClassVar[str] = "compare"

    seeds: int | tuple[int, ...] = setting(3, ge=0)
    budget: Budget | None = None
    targets: tuple[float, ...] = setting(())
    reference: str = setting("")
    width: str = setting("ieee", choices=tuple(WIDTHS))

    def problems(self) -> Iterator[str]:
        """Require distinct seeds."""
        if not self.seeds or (isinstance(self.seeds, tuple) and len(set(self.seeds)) < len(self.seeds)):
            yield f"compare.seeds is {self.seeds!r}; it must be a number of seeds or a list of different seeds."
