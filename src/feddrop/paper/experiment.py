"""What an experiment of the paper is: the runs it needs, and what it makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from feddrop.config import RunConfig
from feddrop.paper.scales import Scale
from feddrop.paper.store import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Lookup = Callable[[RunConfig], Result | None]
"""Finds the finished run of a configuration; None if it was not run."""

HOLDS, PARTLY, FAILS, OPEN = "holds", "holds in part", "does not hold", "not run"
MARGIN = 0.5
"""Points of accuracy below which a difference says nothing: 10,000 test images have an error of 0.4."""


class Verdict(NamedTuple):
    """What became of one of the paper's claims: its name, what we measured, and whether it holds."""

    claim: str
    measured: str
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What an experiment shows.

    Attributes:
        text: Markdown; figures are referred to by name, e.g. ``![...](rounds-latency.png)``.
        figures: by file name.
        verdicts: on the paper's claims.
    """

    text: str
    figures: dict[str, Figure] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)


class Experiment(NamedTuple):
    """A table, figure or remark of the paper.

    Attributes:
        name: on the command line.
        title: in words.
        where: in the paper.
        runs: the training runs it needs, in order of importance.
        make: turns finished runs into a page; what is missing is shown as not run.
    """

    name: str
    title: str
    where: str
    runs: Callable[[Scale], list[RunConfig]]
    make: Callable[[Scale, Lookup], Page]


def outcome(answers: list[bool | None]) -> str:
    """Sum up answers to the same question at several points; None where a run is missing."""
    known = [answer for answer in answers if answer is not None]
    if not known:
        return OPEN
    if all(known):
        return HOLDS if len(known) == len(answers) else f"{HOLDS} where it was run ({len(known)} of {len(answers)})"
    return FAILS if not any(known) else f"{PARTLY} ({sum(known)} of {len(known)})"


def counted(answers: list[bool | None]) -> str:
    """Say at how many of the points that were run the answer is yes."""
    known = [answer for answer in answers if answer is not None]
    return f"{sum(known)} of {len(known)} points"


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """Write a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)
