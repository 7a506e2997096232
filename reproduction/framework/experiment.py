"""An experiment: the runs it needs, and the page it makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from feddrop.config import RunConfig
from reproduction.framework.scales import Scale
from reproduction.framework.store import Result
from reproduction.framework.traced import Traced
from reproduction.framework.verdicts import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Lookup = Callable[[RunConfig], Result | None]
"""Looks up the finished run of a configuration; None if it was not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The section of an experiment.

    Attributes:
        text: Markdown; it refers to figures by name, e.g. ``![...](rounds-latency.png)``.
        figures: by file name.
        verdicts: on the paper's claims.
    """

    text: str
    figures: dict[str, Figure] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)


class Experiment(NamedTuple):
    """A table, figure or remark of the paper.

    Attributes:
        name: name on the command line.
        title: heading.
        where: place in the paper.
        runs: the training runs it needs, most important first.
        make: turns finished runs into a page; missing ones are shown as not run. If there is a ``measure``, its result
            is the third argument.
        measure: measures what needs no training, as plain numbers; they are stored beside the runs.
    """

    name: str
    title: str
    where: str
    runs: Callable[[Scale], list[RunConfig]]
    make: Callable[..., Page]
    measure: Callable[[Scale], dict[str, Any]] | None = None


def by_seed(find: Lookup, config: RunConfig, seeds: Sequence[int]) -> list[Result | None]:
    """Return the runs of a configuration, one per seed; None where it was not run."""
    return [find(replace(config, seed=seed)) for seed in seeds]


def percents(results: Sequence[Result | None]) -> list[float | None]:
    """Return test accuracies in %; None where a run is missing."""
    return [None if result is None else Traced(100.0 * result.accuracy, [result.key]) for result in results]


def mean_of(values: Sequence[float | None]) -> float:
    """Return the mean over the seeds that were run; NaN if none was."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else math.nan


def spread(values: Sequence[float | None], digits: int = 2) -> str:
    """Format the mean over seeds ± its standard error and the number of seeds; empty if nothing was run."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    error = f" ± {np.std(known, ddof=1) / math.sqrt(len(known)):.{digits}f}" if len(known) > 1 else ""
    return f"{np.mean(known):.{digits}f}{error} ({len(known)})"


def ended(results: Sequence[Result | None]) -> list[str]:
    """Format how runs in a cell end: accuracy with its spread, mean rate, devices per round."""
    known = [result for result in results if result is not None]
    if not known:
        return ["not run", "", ""]
    rate, devices = (
        np.mean([np.nanmean(result.values(name)) for result in known]) for name in ("mean_rate", "devices")
    )
    return [spread(percents(results)), f"{rate:.2f}", f"{devices:.1f}"]


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)
