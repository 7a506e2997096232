"""Figures 3 and 4: rounds to converge against per-round latency and against bandwidth, in both scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from feddrop.config import Radio, RunConfig
from reproduction.experiments.cells import ROUNDS, full_network
from reproduction.experiments.curves import CONVERGED, HALF, SHARES, WINDOW, Curves, Reading, curves_of
from reproduction.experiments.resources import SCHEMES, bandwidth_spots, latency_spots, no_dropout, runs_of, with_seeds
from reproduction.experiments.round_claims import judge_rounds
from reproduction.framework.drawing import draw_seeds, legend, not_run, panels
from reproduction.framework.experiment import Experiment, Lookup, Page, markdown_table
from reproduction.framework.scales import SCENARIOS, Scale
from reproduction.framework.settings import of_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from reproduction.experiments.resources import Spot


def measure(scale: Scale) -> dict[str, Any]:
    """Compute the seconds and joules of rounds without dropout in the cell, by seed."""
    found: dict[str, Any] = {}
    for scenario, setting in scale.settings.items():
        both = [full_network(setting, seed, setting.figure_rounds) for seed in scale.seeds]
        found[scenario] = {
            name: [[float(f"{value:.6g}") for value in one[i]] for one in both]
            for i, name in enumerate(("seconds", "joules"))
        }
    return found


def _page(scale: Scale, find: Lookup, full: dict[str, Any] | None = None, *, axis: str, name: str) -> Page:
    """Show rounds to converge against a resource and judge the claims on them."""
    spots_of = latency_spots if name == "rounds-latency" else bandwidth_spots
    curves = {s: curves_of(scale, find, spots_of(scale, s), s, full[s]["seconds"] if full else ()) for s in SCENARIOS}
    figure, axes = panels([f"{scenario}: rounds to converge" for scenario in SCENARIOS])
    for panel, of in zip(axes, curves.values(), strict=True):
        _draw(panel, of, axis)
    legend(axes[0])
    shares = " / ".join(f"{share:.0%}" for share in SHARES)
    text = (
        f"Rounds until test accuracy (running mean of {WINDOW} rounds) reaches {shares} of the best running mean of "
        "the run without dropout with the same seed; – means never. One row per seed. The mean rate is in brackets; "
        f"the last column is the time in the cell until the proposed scheme, or the run without dropout, reaches "
        f"{SHARES[HALF]:.0%} / {SHARES[CONVERGED]:.0%}.\n\n"
    )
    if full:
        targets = ", ".join(f"{target:g}" for target in scale.target_rates)
        text += (
            "Deadlines are chosen such that the mean rate of the proposed scheme, by the paper's formula, is "
            f"{targets} over the first {len(ROUNDS)} rounds in the cell of the first seed.\n\n" + _inside(full)
        )
    for scenario, of in curves.items():
        text += _table(scale, scenario, of, axis)
    text += _by_formula(scale, find, spots_of(scale, "overfitting", "formula"), axis)
    text += f"Large markers: {SHARES[CONVERGED]:.0%}; small markers: half-way. Means over seeds ± standard error.\n\n"
    text += f"![Rounds to converge]({name}.png)\n"
    return Page(text=text, figures={f"{name}.png": figure}, verdicts=judge_rounds(curves, axis, name))


def _inside(full: dict[str, Any]) -> str:
    """Describe what no dropout costs in the cell."""
    words = []
    for scenario, spent in full.items():
        seconds, joules = (np.mean(spent[name]) for name in ("seconds", "joules"))
        words.append(f"{scenario}, {seconds:.2f} s and {joules:,.0f} J per round on average")
    return (
        "**No dropout in the cell**, with the band split so that all devices finish together: "
        f"{'; '.join(words)}. It learns exactly as the run without dropout, which has no cell.\n\n"
    )


def _table(scale: Scale, scenario: str, of: Curves, axis: str) -> str:
    base = no_dropout(scale, scenario)
    first = of.spots[0].runs
    fixed = "" if axis.startswith("deadline") else f"; T₀ = {_radio_of(of.spots[0]).deadline_s:g} s"
    band = f"; B = {_radio_of(of.spots[0]).bandwidth_hz / 1e6:g} MHz" if axis.startswith("deadline") else fixed
    text = of_runs(scenario, first["exact"], list(SCHEMES), band)
    return text + f"**{scenario.capitalize()}**, {base.rounds} rounds:\n\n" + _rows(of, axis) + "\n\n"


def _radio_of(spot: Spot) -> Radio:
    return spot.runs["exact"].radio or Radio()


def _rows(of: Curves, axis: str) -> str:
    rows = [
        ["without dropout", str(seed), _listed(r.rounds), "", "", _time_of(r)]
        for seed, r in zip(of.seeds, of.base, strict=True)
        if r
    ]
    for i, spot in enumerate(of.spots):
        for j, seed in enumerate(of.seeds):
            cells = [of.schemes[scheme][i][j] for scheme in SCHEMES]
            if any(cells):
                mine = cells[0]
                rows.append([f"{spot.x:g}", str(seed), *map(_cell, cells), _time_of(mine) if mine else ""])
        if not any(cell for scheme in SCHEMES for cell in of.schemes[scheme][i]):
            rows.append([f"{spot.x:g}", "", "not run", "not run", "not run", ""])
    return markdown_table([axis, "seed", *SCHEMES.values(), "time, s"], rows)


def _time_of(reading: Reading) -> str:
    spent = reading.seconds[HALF], reading.seconds[CONVERGED]
    return "" if np.isnan(spent).any() else _listed(spent)


def _cell(reading: Reading | None) -> str:
    return "not run" if reading is None else f"{_listed(reading.rounds)} (γ {reading.rate:.2f})"


def _listed(values: Sequence[float]) -> str:
    return " / ".join("–" if np.isinf(value) else f"{value:.0f}" for value in values)


def _by_formula(scale: Scale, find: Lookup, spots: list[Spot], axis: str) -> str:
    """Show the overfitting runs that are charged by the paper's formula; they decide no claim."""
    of = curves_of(scale, find, spots, "overfitting")
    if not any(cell for scheme in SCHEMES for spot in of.schemes[scheme] for cell in spot):
        return ""
    return (
        "**Overfitting, charged by the paper's formula** (one seed; decides no claim: the convolutions are kept but "
        "charged at (1-γ) of their cost, so these rounds would take longer than the deadline):\n\n"
        + _rows(of, axis)
        + "\n\n"
    )


def _draw(panel: Axes, of: Curves, axis: str) -> None:
    """Draw rounds to converge and to half-way; an open circle means "never"."""
    from matplotlib.ticker import MaxNLocator

    from feddrop.report.style import MUTED, SERIES, SURFACE

    late, x = of.limit + 1.0, [spot.x for spot in of.spots]

    def heights(scheme: str, share: int) -> list[list[float]]:
        return [[min(r.rounds[share], late) for r in row if r is not None] for row in of.schemes[scheme]]

    if not any(row for scheme in SCHEMES for row in heights(scheme, HALF)):
        not_run(panel)
        return
    for scheme, colour in zip(SCHEMES, SERIES, strict=False):
        y = heights(scheme, CONVERGED)
        draw_seeds(panel, x, y, color=colour, marker="o", label=SCHEMES[scheme])
        draw_seeds(panel, x, heights(scheme, HALF), color=colour, marker="o", markersize=3, linestyle="--", linewidth=1)
        never = [(at, late) for at, row in zip(x, y, strict=True) if row and min(row) == late]
        if never:
            panel.plot(*zip(*never, strict=True), "o", markerfacecolor=SURFACE, markeredgecolor=colour, zorder=3)
    panel.annotate(f"not within {of.limit} rounds", (x[0], late), (0, 8), textcoords="offset points", color=MUTED)
    base = [r.rounds[CONVERGED] for r in of.base if r is not None]
    if base:
        panel.axhline(float(np.mean(base)), color="grey", linestyle=":", label="without dropout")
    panel.set_ylim(bottom=0)
    panel.yaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_xlabel(axis)


def latency_runs(scale: Scale) -> list[RunConfig]:
    """Return the runs of the figure, and the middle deadline with all seeds for the claim on two phases."""
    middle = latency_spots(scale, "overfitting")[-2:][0].runs["exact"]
    return [*runs_of(latency_spots)(scale), *with_seeds([middle], scale.seeds)]


make_latency = partial(_page, axis="deadline, s", name="rounds-latency")
make_bandwidth = partial(_page, axis="bandwidth, MHz", name="rounds-bandwidth")

LATENCY = Experiment(
    "rounds-latency", "Rounds to converge against latency", "Fig. 3", latency_runs, make_latency, measure
)
BANDWIDTH = Experiment(
    "rounds-bandwidth", "Rounds to converge against bandwidth", "Fig. 4", runs_of(bandwidth_spots), make_bandwidth
)
