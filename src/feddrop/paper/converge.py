"""Figures 3 and 4: rounds to converge against per-round latency and against bandwidth, in both scenarios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from feddrop.paper.curves import CONVERGED, HALF, SHARES, WINDOW, Curves, Reading, curves_of
from feddrop.paper.drawing import legend, not_run, panels
from feddrop.paper.experiment import Experiment, Lookup, Page, markdown_table
from feddrop.paper.resources import SCHEMES, bandwidth_spots, latency_spots, no_dropout, runs_of
from feddrop.paper.scales import SCENARIOS, Scale
from feddrop.paper.settings import of_runs
from feddrop.paper.verdicts import Point, Verdict, verdict
from feddrop.radio import RadioConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from feddrop.paper.resources import Spot

JUDGED = {HALF: "half-way", CONVERGED: "95 %"}
Pick = Callable[[Reading], float]


def differences(
    more: Sequence[Reading | None], less: Sequence[Reading | None], pick: Pick, ceiling: float = np.inf
) -> tuple[float, ...]:
    """Return more - less by seed, in what ``pick`` reads.

    What was never reached counts as ``ceiling``, a bound from below; where neither was reached, or no bound is known,
    the seed says nothing.
    """
    found = []
    for one, other in zip(more, less, strict=True):
        if one is not None and other is not None:
            a, b = min(pick(one), ceiling), min(pick(other), ceiling)
            if np.isfinite(a) and np.isfinite(b) and not (np.isinf(pick(one)) and np.isinf(pick(other))):
                found.append(a - b)
    return tuple(found)


def _rounds(share: int) -> Pick:
    return lambda reading: reading.rounds[share]


def _seconds(share: int) -> Pick:
    return lambda reading: reading.seconds[share]


def _page(scale: Scale, find: Lookup, axis: str, name: str) -> Page:
    """Show rounds to converge against a resource and judge the paper's claims about them."""
    spots_of = latency_spots if name == "rounds-latency" else bandwidth_spots
    curves = {s: curves_of(scale, find, spots_of(scale, s), s) for s in SCENARIOS}
    figure, axes = panels([f"{scenario}: rounds to converge" for scenario in SCENARIOS])
    for panel, of in zip(axes, curves.values(), strict=True):
        _draw(panel, of, axis)
    legend(axes[0])
    shares = " / ".join(f"{share:.0%}" for share in SHARES)
    text = (
        f"Rounds until test accuracy (mean of {WINDOW} rounds) reaches {shares} of the plateau that the run without "
        "dropout reaches with the same seed; – not within the rounds trained. A row a seed. In brackets the mean rate; "
        f"in the last column, the cell's time until the proposed scheme reaches {SHARES[HALF]:.0%} / "
        f"{SHARES[CONVERGED]:.0%} of it.\n\n"
    )
    for scenario, of in curves.items():
        text += _table(scale, scenario, of, axis)
    if name == "rounds-latency":
        text += _by_formula(scale, find, latency_spots(scale, "overfitting", "formula"), axis)
    else:
        text += _by_formula(scale, find, bandwidth_spots(scale, "overfitting", "formula"), axis)
    text += f"Filled: {SHARES[CONVERGED]:.0%} of the plateau; small and dashed: half of it. Means over seeds.\n\n"
    text += f"![Rounds to converge]({name}.png)\n"
    return Page(text=text, figures={f"{name}.png": figure}, verdicts=_verdicts(curves, axis, name))


def _verdicts(curves: dict[str, Curves], axis: str, claim: str) -> list[Verdict]:
    falls: list[Point] = []
    fewer: list[Point] = []
    for scenario, of in curves.items():
        first, last = _ends(of)
        for share, word in JUDGED.items():
            tight, loose = of.schemes["exact"][first], of.schemes["exact"][last]
            where = f"{scenario}, {word}"
            falls.append(
                Point(
                    at=f"{where}: {_x(of, first)} against {_x(of, last)} {_unit(axis)}",
                    differences=differences(tight, loose, _rounds(share), of.limit + 1),
                    unit="rounds",
                    pool=where,
                )
            )
            for i in dict.fromkeys((first, last)):
                fewer.append(
                    Point(
                        at=f"{where}, {_x(of, i)} {_unit(axis)}",
                        differences=differences(
                            of.schemes["random"][i], of.schemes["exact"][i], _rounds(share), of.limit + 1
                        ),
                        unit="rounds",
                        pool=where,
                    )
                )
    same = "the run without dropout does not depend on the resource, so that this is the claim above in other words"
    verdicts = [verdict(claim, falls), verdict("fewer-rounds", fewer), verdict("gap-narrows", falls, same)]
    if claim == "rounds-latency":
        verdicts += [_time(curves), _overhead(curves), _phases(curves["overfitting"])]
    return verdicts


def _ends(of: Curves) -> tuple[int, int]:
    """Return the first and last point that are run with all seeds; of all points if none is."""
    chosen = [i for i, spot in enumerate(of.spots) if spot.repeated] or list(range(len(of.spots)))
    return chosen[0], chosen[-1]


def _time(curves: dict[str, Curves]) -> Verdict:
    """Ask whether the tighter deadline ends up with less time in all, half-way and converged."""
    points = []
    for scenario, of in curves.items():
        first, last = _ends(of)
        for share, word in JUDGED.items():
            points.append(
                Point(
                    at=f"{scenario}, {word}: {_x(of, last)} against {_x(of, first)} s",
                    differences=differences(of.schemes["exact"][last], of.schemes["exact"][first], _seconds(share)),
                    unit="s",
                    pool=f"{scenario}, {word}",
                )
            )
    return verdict("less-time", points)


def _overhead(curves: dict[str, Curves]) -> Verdict:
    """Ask what the proposed scheme sends, a round and until half of the plateau, beside the others."""
    points = []
    for scenario, of in curves.items():
        for i in dict.fromkeys(_ends(of)):
            mine = of.schemes["exact"][i]
            for what, other, pick in (
                ("a round, against bandwidth-aware", of.schemes["random"][i], lambda r: r.round_megabytes),
                ("to half-way, against bandwidth-aware", of.schemes["random"][i], lambda r: r.megabytes[HALF]),
                ("to half-way, against no dropout", of.base, lambda r: r.megabytes[HALF]),
            ):
                points.append(
                    Point(
                        at=f"{scenario}, {_x(of, i)} s: bytes {what}",
                        differences=differences(other, mine, pick),
                        unit="MB",
                        pool=f"{scenario}, {what}",
                    )
                )
    return verdict("less-overhead", points, "where half-way was never reached with random shares, nothing can be said")


def _phases(of: Curves) -> Verdict:
    """Ask whether rounds fall more steeply at tight deadlines than at loose ones."""
    *_, low, middle, high = range(len(of.spots)) if len(of.spots) > 2 else (0, 0, 0, 0)
    if low == high:
        return verdict("two-phases", [Point(at="fewer than three deadlines")])
    found = []
    for readings in zip(*(of.schemes["exact"][i] for i in (low, middle, high)), strict=True):
        if None not in readings:
            a, b, c = (reading.rounds[HALF] for reading in readings if reading is not None)
            if np.isfinite([a, b, c]).all():
                x = [of.spots[i].x for i in (low, middle, high)]
                found.append((a - b) / (x[1] - x[0]) - (b - c) / (x[2] - x[1]))
    slopes = f"slope from {_x(of, low)} to {_x(of, middle)} s against {_x(of, middle)} to {_x(of, high)} s"
    where = f"overfitting, half-way: {slopes}"
    return verdict("two-phases", [Point(at=where, differences=tuple(found), unit="rounds a second")])


def _x(of: Curves, i: int) -> str:
    return f"{of.spots[i].x:g}"


def _unit(axis: str) -> str:
    return axis.rsplit(" ", 1)[1]


def _table(scale: Scale, scenario: str, of: Curves, axis: str) -> str:
    base = no_dropout(scale, scenario)
    first = of.spots[0].runs
    fixed = "" if axis.startswith("deadline") else f"; T₀ = {_radio_of(of.spots[0]).deadline_s:g} s"
    band = f"; B = {_radio_of(of.spots[0]).bandwidth_hz / 1e6:g} MHz" if axis.startswith("deadline") else fixed
    text = of_runs(scenario, first["exact"], list(SCHEMES), band)
    return text + f"**{scenario.capitalize()}**, {base.rounds} rounds:\n\n" + _rows(of, axis) + "\n\n"


def _radio_of(spot: Spot) -> RadioConfig:
    return spot.runs["exact"].radio or RadioConfig()


def _rows(of: Curves, axis: str) -> str:
    rows = [
        ["without dropout", str(seed), _listed(r.rounds), "", "", ""]
        for seed, r in zip(of.seeds, of.base, strict=True)
        if r
    ]
    for i, spot in enumerate(of.spots):
        for j, seed in enumerate(of.seeds):
            cells = [of.schemes[scheme][i][j] for scheme in SCHEMES]
            if any(cells):
                mine = cells[0]
                seconds = _listed((mine.seconds[HALF], mine.seconds[CONVERGED])) if mine else ""
                rows.append([f"{spot.x:g}", str(seed), *map(_cell, cells), seconds])
        if not any(cell for scheme in SCHEMES for cell in of.schemes[scheme][i]):
            rows.append([f"{spot.x:g}", "", "not run", "not run", "not run", ""])
    return markdown_table([axis, "seed", *SCHEMES.values(), "proposed, in s"], rows)


def _cell(reading: Reading | None) -> str:
    return "not run" if reading is None else f"{_listed(reading.rounds)} (γ {reading.rate:.2f})"


def _listed(values: Sequence[float]) -> str:
    return " / ".join("–" if np.isinf(value) else f"{value:.0f}" for value in values)


def _by_formula(scale: Scale, find: Lookup, spots: list[Spot], axis: str) -> str:
    """Show the earlier runs of the overfitting scenario, billed by the paper's formula; nothing is judged by them."""
    of = curves_of(scale, find, spots, "overfitting")
    if not any(cell for scheme in SCHEMES for spot in of.schemes[scheme] for cell in spot):
        return ""
    return (
        "**Overfitting, billed by the paper's formula** (one seed; judges nothing: the convolutions stay whole, but "
        "are billed at (1-γ) of their cost, so that these rounds really take longer than the deadline):\n\n"
        + _rows(of, axis)
        + "\n\n"
    )


def _draw(panel: Axes, of: Curves, axis: str) -> None:
    """Draw rounds to converge, and half-way; an open circle stands for "never within the rounds"."""
    from matplotlib.ticker import MaxNLocator

    from feddrop.report.style import MUTED, SERIES, SURFACE

    late, x = of.limit + 1.0, [spot.x for spot in of.spots]

    def heights(scheme: str, share: int) -> list[float]:
        rows = [[min(r.rounds[share], late) for r in row if r is not None] for row in of.schemes[scheme]]
        return [float(np.mean(row)) if row else np.nan for row in rows]

    if np.isnan([heights(scheme, HALF) for scheme in SCHEMES]).all():
        not_run(panel)
        return
    for scheme, colour in zip(SCHEMES, SERIES, strict=False):
        y = heights(scheme, CONVERGED)
        panel.plot(x, y, color=colour, marker="o", label=SCHEMES[scheme])
        panel.plot(x, heights(scheme, HALF), color=colour, marker="o", markersize=3, linestyle="--", linewidth=1)
        never = [(at, height) for at, height in zip(x, y, strict=True) if height == late]
        if never:
            panel.plot(*zip(*never, strict=True), "o", markerfacecolor=SURFACE, markeredgecolor=colour)
    panel.annotate(f"not within {of.limit} rounds", (x[0], late), (0, 8), textcoords="offset points", color=MUTED)
    base = [r.rounds[CONVERGED] for r in of.base if r is not None]
    if base:
        panel.axhline(float(np.mean(base)), color="grey", linestyle=":", label="without dropout")
    panel.set_ylim(bottom=0)
    panel.yaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_xlabel(axis)


make_latency = partial(_page, axis="deadline, s", name="rounds-latency")
make_bandwidth = partial(_page, axis="bandwidth, MHz", name="rounds-bandwidth")

LATENCY = Experiment(
    "rounds-latency", "Rounds to converge against latency", "Fig. 3", runs_of(latency_spots), make_latency
)
BANDWIDTH = Experiment(
    "rounds-bandwidth", "Rounds to converge against bandwidth", "Fig. 4", runs_of(bandwidth_spots), make_bandwidth
)
