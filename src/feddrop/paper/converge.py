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

SHARES = (0.5, 0.9, 0.95, 0.98)
"""Shares of the plateau without dropout."""
HALF, CONVERGED = 0, 2
"""Which of the shares is half-way, and which is what "converged" means."""
WINDOW = 5

Rounds = tuple[float, ...]
"""The round at which each share is reached; infinite if it never is."""


class Curves(NamedTuple):
    """What one panel shows.

    Attributes:
        x: deadlines or bandwidths.
        rounds: by scheme, at every point; None where it was not run.
        seconds: of the proposed scheme until each of those rounds is over, in the cell's own time.
        rates: mean rates by scheme.
        base: rounds without dropout, by share; None if it was not run.
        limit: rounds that were trained.
    """

    x: list[float]
    rounds: dict[str, list[Rounds | None]]
    seconds: list[Rounds | None]
    rates: dict[str, list[float]]
    base: Rounds | None
    limit: int

    def reached(self, scheme: str, share: int = CONVERGED) -> list[float | None]:
        """Return the rounds to reach one of the shares at every point; None where it was not run."""
        return [None if rounds is None else rounds[share] for rounds in self.rounds[scheme]]

    def either(self, scheme: str) -> list[tuple[float, float] | None]:
        """Return the rounds to converge, and half-way for where neither of two schemes converges, to be compared."""
        return [None if rounds is None else (rounds[CONVERGED], rounds[HALF]) for rounds in self.rounds[scheme]]


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
        seconds=[_seconds(result, rounds(result)) for result in found["exact"]],
        rates={
            scheme: [np.nan if r is None else float(np.nanmean(r.values("mean_rate"))) for r in results]
            for scheme, results in found.items()
        },
        base=rounds(base),
        limit=scale.settings[scenario].figure_rounds,
    )


def _seconds(result: Result | None, rounds: Rounds | None) -> Rounds | None:
    if result is None or rounds is None:
        return None
    clock = np.cumsum(result.values("latency_s"))
    return tuple(np.inf if np.isinf(r) else float(clock[int(r) - 1]) for r in rounds)


def _page(scale: Scale, find: Lookup, points_of: PointsOf, axis: str, name: str) -> Page:
    """Show rounds to converge against a resource and judge the paper's claims about them."""
    curves = {scenario: curves_of(scale, find, points_of, scenario) for scenario in SCENARIOS}
    figure, axes = panels([f"{scenario}: rounds to converge" for scenario in SCENARIOS])
    for panel, of in zip(axes, curves.values(), strict=True):
        _draw(panel, of, axis)
    legend(axes[0])
    text = "".join(_table(scenario, of, axis) for scenario, of in curves.items())
    text += (
        f"Filled: {SHARES[CONVERGED]:.0%} of the plateau; small and dashed: half of it.\n\n"
        f"![Rounds to converge]({name}.png)\n"
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
        pairs = list(zip(of.either("exact"), of.either("random"), strict=True))
        fewer += [None if a is None or b is None else a < b for a, b in pairs]
        ties += sum(a is not None and a == b for a, b in pairs)
        if complete and of.base:
            half = f"half-way {_listed(of.reached('exact', HALF))} against {_listed(of.reached('random', HALF))}"
            notes.append(
                f"{scenario}: proposed {_listed(mine)} rounds, bandwidth-aware {_listed(theirs)}, without dropout "
                f"{of.base[CONVERGED]:g}; {half}"
            )
    verdicts = [
        Verdict(claim, "; ".join(notes), outcome(falls)),
        Verdict("fewer-rounds", f"{axis}: fewer at {counted(fewer)}, as many at {ties}", outcome(fewer)),
        Verdict("gap-narrows", f"{axis}: first against last point", outcome(narrows)),
    ]
    return [*verdicts, _time_verdict(curves)] if claim == "rounds-latency" else verdicts


def _time_verdict(curves: dict[str, Curves]) -> Verdict:
    """Say whether some deadline shorter than the longest ends up with less time in all, half-way and converged."""
    less: list[bool | None] = []
    notes = []
    for scenario, of in curves.items():
        for share in (HALF, CONVERGED):
            times = [None if seconds is None else seconds[share] for seconds in of.seconds]
            *shorter, longest = times
            known = [time for time in shorter if time is not None]
            less.append(None if longest is None or len(known) < len(shorter) else min(known) < longest)
            notes.append(f"{scenario}, {SHARES[share]:.0%} of the plateau after {_listed(times)} s")
    return Verdict("less-time", "; ".join(notes), outcome(less))


def _table(scenario: str, of: Curves, axis: str) -> str:
    rows = []
    for i, value in enumerate(of.x):
        cells = [f"{value:g}"]
        for scheme in SCHEMES:
            rounds = of.rounds[scheme][i]
            cells.append("" if rounds is None else f"{_listed(rounds, ' / ')} (γ {of.rates[scheme][i]:.2f})")
        seconds = of.seconds[i]
        rows.append([*cells, "" if seconds is None else _listed((seconds[HALF], seconds[CONVERGED]), " / ")])
    return (
        f"**{scenario.capitalize()}**: rounds until test accuracy (mean of {WINDOW} rounds) reaches "
        f"{' / '.join(f'{share:.0%}' for share in SHARES)} of the plateau without dropout, and the mean rate; – not "
        f"within {of.limit} rounds. Without dropout: {_listed(of.base or [None], ' / ')}. In the "
        f"last column, the cell's time until the proposed scheme reaches {SHARES[HALF]:.0%} / {SHARES[CONVERGED]:.0%} "
        "of it.\n\n" + markdown_table([axis, *SCHEMES.values(), "proposed, in s"], rows) + "\n\n"
    )


def _listed(rounds: Sequence[float | None], between: str = ", ") -> str:
    return between.join("not run" if r is None else "–" if r == np.inf else f"{r:.0f}" for r in rounds)


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
        y = heights(scheme, CONVERGED)
        panel.plot(of.x, y, color=colour, marker="o", label=SCHEMES[scheme])
        panel.plot(of.x, heights(scheme, HALF), color=colour, marker="o", markersize=3, linestyle="--", linewidth=1)
        never = [(x, height) for x, height in zip(of.x, y, strict=True) if height == late]
        if never:
            panel.plot(*zip(*never, strict=True), "o", markerfacecolor=SURFACE, markeredgecolor=colour)
    if any(np.inf in of.reached(scheme) for scheme in SCHEMES):
        where = (of.x[0], late)
        panel.annotate(f"not within {of.limit} rounds", where, (0, 8), textcoords="offset points", color=MUTED)
    if of.base:
        panel.axhline(of.base[CONVERGED], color="grey", linestyle=":", label="without dropout")
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
