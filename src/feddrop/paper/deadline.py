"""Figure 5: accuracy against per-round latency: the same runs as figure 3, read at their end."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from feddrop.config import RunConfig
from feddrop.paper.cells import deadline_for
from feddrop.paper.drawing import legend, not_run, panels
from feddrop.paper.experiment import (
    FAILS,
    MARGIN,
    PARTLY,
    Experiment,
    Lookup,
    Page,
    Verdict,
    counted,
    markdown_table,
    outcome,
)
from feddrop.paper.resources import SCHEMES, latency_points, no_dropout, runs_of
from feddrop.paper.scales import SCENARIOS, Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALMOST_NOTHING = 0.01
"""A mean rate at which a scheme drops almost nothing."""


class Ends(NamedTuple):
    """Where the runs of one scenario end: test accuracy in %, None where it was not run.

    Attributes:
        deadlines: in seconds, from tight to loose.
        schemes: accuracy by scheme, at every deadline.
        base: accuracy without dropout.
    """

    deadlines: list[float]
    schemes: dict[str, list[float | None]]
    base: float | None


def make(scale: Scale, find: Lookup) -> Page:
    """Show where the runs end."""

    def accuracy(config: RunConfig) -> float | None:
        result = find(config)
        return None if result is None else 100.0 * result.accuracy

    figure, axes = panels([f"{scenario}: test accuracy, %" for scenario in SCENARIOS])
    found = {}
    for panel, scenario in zip(axes, SCENARIOS, strict=True):
        points = latency_points(scale, scenario)
        found[scenario] = Ends(
            deadlines=[deadline for deadline, _ in points],
            schemes={scheme: [accuracy(by_scheme[scheme]) for _, by_scheme in points] for scheme in SCHEMES},
            base=accuracy(no_dropout(scale, scenario)),
        )
        _draw(panel, found[scenario])
    legend(axes[0])
    text = "".join(_table(scenario, ends) for scenario, ends in found.items())
    text += "![Accuracy against the deadline](accuracy-latency.png)\n"
    return Page(text=text, figures={"accuracy-latency.png": figure}, verdicts=_verdicts(scale, found))


def _table(scenario: str, ends: Ends) -> str:
    columns = [*ends.schemes.values(), [ends.base] * len(ends.deadlines)]
    rows = [
        [f"{deadline:g}", *("" if value is None else f"{value:.2f}" for value in row)]
        for deadline, *row in zip(ends.deadlines, *columns, strict=True)
    ]
    table = markdown_table(["deadline, s", *SCHEMES.values(), "without dropout"], rows)
    return f"**{scenario.capitalize()}**, test accuracy in %:\n\n{table}\n\n"


def _draw(panel: Axes, ends: Ends) -> None:
    from feddrop.report.style import SERIES

    if all(value is None for values in ends.schemes.values() for value in values):
        not_run(panel)
        return
    for (scheme, values), colour in zip(ends.schemes.items(), SERIES, strict=False):
        y = [np.nan if value is None else value for value in values]
        panel.plot(ends.deadlines, y, color=colour, marker="o", label=SCHEMES[scheme])
    if ends.base is not None:
        panel.axhline(ends.base, color="grey", linestyle=":", label="without dropout")
    panel.set_xlabel("deadline, s")


def _verdicts(scale: Scale, found: dict[str, Ends]) -> list[Verdict]:
    above: list[bool | None] = []
    grows: list[bool | None] = []
    alike: list[bool | None] = []
    rows, loose = [], []
    for scenario, ends in found.items():
        mine, theirs = ends.schemes["exact"], ends.schemes["random"]
        above += [None if a is None or b is None else a > b for a, b in zip(mine, theirs, strict=True)]
        grows.append(None if None in mine else all(a < b for a, b in pairwise(_known(mine))))
        rows.append(f"{scenario}: {_listed(mine)} %")
        last = _known([mine[-1], theirs[-1]])
        alike.append(abs(last[0] - last[1]) <= MARGIN if len(last) == 2 else None)
        if len(last) == 2:
            first, other = (deadline_for(scale.settings[scenario], ALMOST_NOTHING, of) for of in ("exact", "random"))
            loose.append(
                f"{scenario}: {last[0]:.1f} against {last[1]:.1f} % at {ends.deadlines[-1]:g} s; mean rates are below "
                f"{ALMOST_NOTHING:g} from {first:g} s on, and from {other:g} s on"
            )
    over = found["overfitting"]
    line = _known(over.schemes["exact"])
    complete = over.base is not None and len(line) == len(over.deadlines)
    beyond = [None if a is None or over.base is None else a > over.base for a in over.schemes["exact"]]
    peak = max(line) > max(line[0], over.base or 0.0) + MARGIN if complete else None
    return [
        Verdict("accuracy-scheme", counted(above), outcome(above)),
        Verdict("accuracy-overfit", counted(beyond), outcome(beyond)),
        Verdict("accuracy-grows", "; ".join(rows), outcome(grows)),
        Verdict(
            "two-phases", f"{_listed([*over.schemes['exact'], over.base])} %, the last without dropout", outcome([peak])
        ),
        Verdict("loose-equal", "; ".join(loose), outcome(alike).replace(FAILS, f"{PARTLY} (not yet there)")),
    ]


def _listed(values: list[float | None]) -> str:
    return ", ".join("not run" if value is None else f"{value:.1f}" for value in values)


def _known(values: list[float | None]) -> list[float]:
    return [value for value in values if value is not None]


EXPERIMENT = Experiment("accuracy-latency", "Accuracy against latency", "Fig. 5", runs_of(latency_points), make)
