"""Figure 5: accuracy against per-round latency and bandwidth, from the runs of figures 3 and 4 and a loose deadline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from feddrop.comparison import HOLDS, YES, Comparison, matched
from feddrop.config import Radio, RunConfig
from reproduction.experiments.cells import deadline_for, mean_rate, radio
from reproduction.experiments.resource_claims import Ends, judge_accuracy
from reproduction.experiments.resources import (
    RANDOM_AT,
    SCHEMES,
    Spot,
    bandwidth_spots,
    latency_spots,
    no_dropout,
    runs_of,
    with_seeds,
)
from reproduction.framework.drawing import draw_seeds, legend, not_run, panels
from reproduction.framework.experiment import (
    Experiment,
    Lookup,
    Page,
    by_seed,
    ended,
    markdown_table,
    mean_of,
    percents,
    spread,
)
from reproduction.framework.scales import SCENARIOS, Scale
from reproduction.framework.settings import of_runs
from reproduction.framework.verdicts import Verdict, verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALMOST_NOTHING = 0.01
"""Mean rate that counts as dropping almost nothing."""
_DEADLINE, _BAND = "deadline, s", "bandwidth, MHz"
CAPS = {"underfitting": (0.5, 0.7), "overfitting": (0.5,)}
"""Other values of θ for random shares."""


def loose_run(scale: Scale, scenario: str) -> RunConfig:
    """Return the run of random shares under a deadline at which even they drop almost nothing."""
    setting = scale.settings[scenario]
    cell = radio(setting, deadline_s=deadline_for(setting, ALMOST_NOTHING, "random"), scheme="random")
    return setting.run(figure=True, radio=cell)


def tight_spot(scale: Scale, scenario: str) -> Spot:
    """Return the first deadline of a scenario that is run with all seeds."""
    return next(spot for spot in latency_spots(scale, scenario) if spot.repeated)


def capped_runs(scale: Scale, scenario: str) -> dict[float, RunConfig]:
    """Return the runs of random shares at the tight deadline by θ, the usual value last."""
    config = tight_spot(scale, scenario).runs["random"]
    cell = config.radio or Radio()
    return {cap: replace(config, radio=replace(cell, max_rate=cap)) for cap in (*CAPS[scenario], cell.max_rate)}


def runs(scale: Scale) -> list[RunConfig]:
    """Return the runs of figures 3 and 4, of the loose deadline and of other values of θ."""
    more = [loose_run(scale, scenario) for scenario in SCENARIOS]
    more += [config for scenario in SCENARIOS for config in capped_runs(scale, scenario).values()]
    return [*runs_of(latency_spots)(scale), *runs_of(bandwidth_spots)(scale), *with_seeds(more, scale.seeds)]


def ends_of(scale: Scale, find: Lookup, scenario: str, costs: str | None = None) -> Ends:
    """Return the final accuracies of a scenario against the deadline."""
    ends, loose = _ends(scale, find, scenario, latency_spots(scale, scenario, costs)), loose_run(scale, scenario)
    if costs is not None or loose.radio is None:
        return ends
    return ends._replace(
        loose=percents(by_seed(find, loose, scale.seeds)),
        loose_s=loose.radio.deadline_s,
        loose_rate=mean_rate(scale.settings[scenario], replace(loose.radio, scheme="exact")),
    )


def _ends(scale: Scale, find: Lookup, scenario: str, spots: list[Spot]) -> Ends:
    return Ends(
        spots=spots,
        schemes={s: [percents(by_seed(find, spot.runs[s], scale.seeds)) for spot in spots] for s in SCHEMES},
        base=percents(by_seed(find, no_dropout(scale, scenario), scale.seeds)),
    )


def make(scale: Scale, find: Lookup) -> Page:
    """Draw and tabulate accuracy against the deadline."""
    figure, axes = panels([f"{scenario}: test accuracy, %" for _ in range(2) for scenario in SCENARIOS])
    found = {scenario: ends_of(scale, find, scenario) for scenario in SCENARIOS}
    bands = {s: _ends(scale, find, s, bandwidth_spots(scale, s)) for s in SCENARIOS}
    text = ""
    for panel, below, (scenario, ends) in zip(axes[:2], axes[2:], found.items(), strict=True):
        _draw(panel, ends, _DEADLINE)
        _draw(below, bands[scenario], _BAND)
        text += of_runs(scenario, ends.spots[0].runs["exact"], list(SCHEMES), "; B = 10 MHz")
        text += f"**{scenario.capitalize()}**, test accuracy in %, mean over seeds ± its standard error (seeds):\n\n"
        text += _table(ends, _DEADLINE) + "\n\n"
    for scenario, ends in bands.items():
        cell = ends.spots[0].runs["exact"].radio or Radio()
        text += f"**{scenario.capitalize()}, against bandwidth**, T₀ = {cell.deadline_s:g} s:\n\n"
        text += _table(ends, _BAND) + "\n\n"
    by_formula = ends_of(scale, find, "overfitting", "formula")
    if any(value is not None for rows in by_formula.schemes.values() for row in rows for value in row):
        text += "**Overfitting, charged by the paper's formula** (decides no claim, see figure 3):\n\n"
        text += _table(by_formula, _DEADLINE) + "\n\n"
    legend(axes[0])
    text += _caps(scale, find) + "![Accuracy against the deadline and the bandwidth](accuracy-latency.png)\n"
    smaller = _smaller_theta(scale, find)
    verdicts = [*judge_accuracy(found, bands, drops=ALMOST_NOTHING, theta=_depends_on_theta(smaller)), smaller]
    return Page(text=text, figures={"accuracy-latency.png": figure}, verdicts=verdicts)


def _table(ends: Ends, axis: str) -> str:
    rows = [
        [f"{spot.x:g}", *(spread(ends.schemes[scheme][i]) or "not run" for scheme in SCHEMES), spread(ends.base)]
        for i, spot in enumerate(ends.spots)
    ]
    if ends.loose_s:
        mine = f"drops {ends.loose_rate:.1%}" if ends.loose_rate else "drops nothing"
        rows.append([f"{ends.loose_s:g}", mine, spread(ends.loose) or "not run", "", spread(ends.base)])
    return markdown_table([axis, *SCHEMES.values(), "without dropout"], rows)


def _caps(scale: Scale, find: Lookup) -> str:
    rows = [
        [scenario, f"{tight_spot(scale, scenario).x:g}", f"{cap:g}", *ended(by_seed(find, config, scale.seeds))]
        for scenario in SCENARIOS
        for cap, config in capped_runs(scale, scenario).items()
    ]
    return (
        "**Random shares and θ**: shares are drawn among the splits that are feasible at rate θ, so θ limits how bad "
        "they can be. Mean over seeds ± its standard error (seeds).\n\n"
        + markdown_table(["scenario", "deadline, s", "θ", "test accuracy, %", "mean rate", "devices per round"], rows)
        + "\n\n"
    )


def _smaller_theta(scale: Scale, find: Lookup) -> Verdict:
    """Test whether random shares fall behind for other values of θ too."""
    points, usual = [], 0.0
    for scenario in SCENARIOS:
        *smaller, (usual, _) = capped_runs(scale, scenario).items()
        mine = percents(by_seed(find, tight_spot(scale, scenario).runs["exact"], scale.seeds))
        for cap, config in smaller:
            gains = matched(mine, percents(by_seed(find, config, scale.seeds)))
            points.append(Comparison(f"{scenario}, θ = {cap:g}", differences=gains, pool=scenario))
    note = f"θ applies to the random shares; the proposed scheme keeps {usual:g}, which can only lower its objective"
    return verdict("smaller-theta", points, note)


def _depends_on_theta(smaller: Verdict) -> str:
    """Return the condition of claims on random shares: their θ, and what smaller values say."""
    if smaller.outcome == HOLDS:
        return RANDOM_AT
    says = [answer.says for answer in smaller.answers]
    return f"{RANDOM_AT}; with a smaller θ in {says.count(YES)} of {len(says)} comparisons only"


def _draw(panel: Axes, ends: Ends, axis: str) -> None:
    from feddrop.report.style import SERIES

    x = [spot.x for spot in ends.spots]
    if all(value is None for rows in ends.schemes.values() for row in rows for value in row):
        not_run(panel)
        return
    for (scheme, rows), colour in zip(ends.schemes.items(), SERIES, strict=False):
        draw_seeds(panel, x, rows, color=colour, marker="o", label=SCHEMES[scheme])
    panel.axhline(mean_of(ends.base), color="grey", linestyle=":", label="without dropout")
    panel.set_xlabel(axis)


EXPERIMENT = Experiment("accuracy-latency", "Accuracy against latency", "Fig. 5", runs, make)
