"""Figures 3 and 4: rounds to converge against per-round latency and against bandwidth, in both scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from feddrop.paper.drawing import legend, not_run, panels
from feddrop.paper.experiment import Experiment, Lookup, Page, Verdict, counted, markdown_table, outcome
from feddrop.paper.resources import SCHEMES, PointsOf, bandwidth_points, latency_points, no_dropout, runs_of
from feddrop.paper.scales import SCENARIOS, Scale
from feddrop.paper.store import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHARES = (0.95, 0.9, 0.98, 0.5)
"""Shares of the plateau without dropout; the first is what "converged" means, the last is half-way."""
WINDOW = 5

Rounds = tuple[float, ...]
"""The round at which each share is reached; infinite if it never is."""


class Curves(NamedTuple):
    """What one panel shows.

    Attributes:
        x: deadlines or bandwidths.
        rounds: by scheme, at every point; None where it was not run.
        rates: mean rates, likewise.
        base: rounds without dropout, by share; None if it was not run.
        limit: rounds that were trained.
    """

    x: list[float]
    rounds: dict[str, list[Rounds | None]]
    rates: dict[str, list[float]]
    base: Rounds | None
    limit: int

    def reached(self, scheme: str, share: int = 0) -> list[float | None]:
        """Return the rounds to reach one of the shares at every point; None where it was not run."""
        return [None if rounds is None else rounds[share] for rounds in self.rounds[scheme]]


def running_mean(accuracy: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the mean over WINDOW rounds, from the WINDOW-th on; over all rounds if there are fewer."""
    window = min(WINDOW, len(accuracy))
    return np.convolve(accuracy, np.ones(window) / window, mode="valid")


def convergence_round(result: Result, plateau: float, share: float) -> float:
    """Return the first round at which the running mean of test accuracy reaches a share of the plateau, or infinity."""
    smooth = running_mean(result.values("test_accuracy"))
    reached = np.flatnonzero(smooth >= share * plateau)
    return reached[0] + len(result.series["test_accuracy"]) - len(smooth) + 1.0 if len(reached) else np.inf


def plateau_of(result: Result) -> float:
    """Return the best running mean of test accuracy."""
    return float(running_mean(result.values("test_accuracy")).max())


def curves_of(scale: Scale, find: Lookup, points_of: PointsOf, scenario: str) -> Curves:
    """Read the rounds off the runs of one scenario."""
    base, points = find(no_dropout(scale, scenario)), points_of(scale, scenario)
    plateau = plateau_of(base) if base else None

    def rounds(result: Result | None) -> Rounds | None:
        if result is None or plateau is None:
            return None
        return tuple(convergence_round(result, plateau, share) for share in SHARES)

    found = {scheme: [find(by_scheme[scheme]) for _, by_scheme in points] for scheme in SCHEMES}
    return Curves(
        x=[value for value, _ in points],
        rounds={scheme: [rounds(result) for result in results] for scheme, results in found.items()},
        rates={
            scheme: [np.nan if r is None else float(np.nanmean(r.values("mean_rate"))) for r in results]
            for scheme, results in found.items()
        },
        base=rounds(base),
        limit=scale.settings[scenario].figure_rounds,
    )


def _page(scale: Scale, find: Lookup, points_of: PointsOf, axis: str, name: str) -> Page:
    """Show rounds to converge against a resource and judge the paper's claims about them."""
    curves = {scenario: curves_of(scale, find, points_of, scenario) for scenario in SCENARIOS}
    figure, axes = panels([f"{scenario}: rounds to converge" for scenario in SCENARIOS])
    for panel, of in zip(axes, curves.values(), strict=True):
        _draw(panel, of, axis)
    legend(axes[0])
    text = "".join(_table(scenario, of, axis) for scenario, of in curves.items())
    text += (
        f"Filled: {SHARES[0]:.0%} of the plateau; small and dashed: half of it.\n\n![Rounds to converge]({name}.png)\n"
    )
    return Page(text=text, figures={f"{name}.png": figure}, verdicts=_verdicts(curves, axis, name))


def _verdicts(curves: dict[str, Curves], axis: str, claim: str) -> list[Verdict]:
    falls: list[bool | None] = []
    narrows: list[bool | None] = []
    fewer: list[bool | None] = []
    ties, notes = 0, []
    for scenario, of in curves.items():
        mine, theirs = of.reached("exact"), of.reached("random")
        known = [rounds for rounds in mine if rounds is not None]
        complete = len(known) == len(mine)
        falls.append(known[0] > known[-1] and all(a >= b for a, b in pairwise(known)) if complete else None)
        narrows.append(known[0] > known[-1] if complete else None)
        fewer += [None if a is None or b is None else a < b for a, b in zip(mine, theirs, strict=True)]
        ties += sum(a is not None and a == b for a, b in zip(mine, theirs, strict=True))
        if complete and of.base:
            half = f"half-way {_listed(of.reached('exact', -1))} against {_listed(of.reached('random', -1))}"
            notes.append(
                f"{scenario}: proposed {_listed(mine)} rounds, bandwidth-aware {_listed(theirs)}, without dropout "
                f"{_listed(of.base[:1])}; {half}"
            )
    return [
        Verdict(claim, "; ".join(notes), outcome(falls)),
        Verdict("fewer-rounds", f"{axis}: fewer at {counted(fewer)}, as many at {ties}", outcome(fewer)),
        Verdict("gap-narrows", f"{axis}: first against last point", outcome(narrows)),
    ]


def _table(scenario: str, of: Curves, axis: str) -> str:
    rows = []
    for i, value in enumerate(of.x):
        cells = [f"{value:g}"]
        for scheme in SCHEMES:
            rounds = of.rounds[scheme][i]
            cells.append("" if rounds is None else f"{_listed(rounds, ' / ')} (γ {of.rates[scheme][i]:.2f})")
        rows.append(cells)
    return (
        f"**{scenario.capitalize()}**: rounds until test accuracy (mean of {WINDOW} rounds) reaches "
        f"{' / '.join(f'{share:.0%}' for share in SHARES)} of the plateau without dropout, and the mean rate; – not "
        f"within {of.limit} rounds. Without dropout: {_listed(of.base or [None], ' / ')}.\n\n"
        + markdown_table([axis, *SCHEMES.values()], rows)
        + "\n\n"
    )


def _listed(rounds: Sequence[float | None], between: str = ", ") -> str:
    return between.join("not run" if r is None else "–" if r == np.inf else f"{r:g}" for r in rounds)


def _draw(panel: Axes, of: Curves, axis: str) -> None:
    """Draw rounds to converge, and half-way; an open circle stands for "never within the rounds"."""
    from matplotlib.ticker import MaxNLocator

    from feddrop.report.style import MUTED, SERIES, SURFACE

    late = of.limit + 1

    def heights(scheme: str, share: int) -> list[float]:
        return [np.nan if rounds is None else min(rounds, late) for rounds in of.reached(scheme, share)]

    if not any(any(values) for values in of.rounds.values()):
        not_run(panel)
        return
    for scheme, colour in zip(SCHEMES, SERIES, strict=False):
        y = heights(scheme, 0)
        panel.plot(of.x, y, color=colour, marker="o", label=SCHEMES[scheme])
        panel.plot(of.x, heights(scheme, -1), color=colour, marker="o", markersize=3, linestyle="--", linewidth=1)
        never = [(x, height) for x, height in zip(of.x, y, strict=True) if height == late]
        if never:
            panel.plot(*zip(*never, strict=True), "o", markerfacecolor=SURFACE, markeredgecolor=colour)
    if any(np.inf in of.reached(scheme) for scheme in SCHEMES):
        where = (of.x[0], late)
        panel.annotate(f"not within {of.limit} rounds", where, (0, 8), textcoords="offset points", color=MUTED)
    if of.base:
        panel.axhline(of.base[0], color="grey", linestyle=":", label="without dropout")
    panel.set_ylim(bottom=0)
    panel.yaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_xlabel(axis)


def make_latency(scale: Scale, find: Lookup) -> Page:
    """Figure 3."""
    return _page(scale, find, latency_points, "deadline, s", "rounds-latency")


def make_bandwidth(scale: Scale, find: Lookup) -> Page:
    """Figure 4."""
    return _page(scale, find, bandwidth_points, "bandwidth, MHz", "rounds-bandwidth")


LATENCY = Experiment(
    "rounds-latency", "Rounds to converge against latency", "Fig. 3", runs_of(latency_points), make_latency
)
BANDWIDTH = Experiment(
    "rounds-bandwidth", "Rounds to converge against bandwidth", "Fig. 4", runs_of(bandwidth_points), make_bandwidth
)
