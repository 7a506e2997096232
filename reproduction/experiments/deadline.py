"""Figure 5: accuracy against per-round latency, from the runs of figure 3 and a loose deadline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from feddrop.compare import Comparison, matched
from feddrop.config import Radio, RunConfig
from reproduction.experiments.cells import deadline_for, mean_rate, radio
from reproduction.experiments.resources import SCHEMES, Spot, latency_spots, no_dropout, runs_of, with_seeds
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
ALMOST_EQUAL = 1.0
"""Difference in accuracy that counts as almost equal, in percentage points."""
CAPS = {"underfitting": (0.5, 0.7), "overfitting": (0.5,)}
"""Other values of θ for random shares."""

Seeds = list[float | None]


class Ends(NamedTuple):
    """Final test accuracy in % of the runs of one scenario, by seed; None where it was not run.

    Attributes:
        spots: deadlines from tight to loose.
        schemes: accuracy by scheme and deadline.
        base: accuracy without dropout.
        loose: accuracy of random shares under a deadline so loose that they drop almost nothing.
        loose_s: that deadline; 0 if there is none.
        loose_rate: mean rate of the proposed scheme there.
    """

    spots: list[Spot]
    schemes: dict[str, list[Seeds]]
    base: Seeds
    loose: Seeds
    loose_s: float
    loose_rate: float


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
    """Return the runs of figure 3, of the loose deadline and of other values of θ."""
    more = [loose_run(scale, scenario) for scenario in SCENARIOS]
    more += [config for scenario in SCENARIOS for config in capped_runs(scale, scenario).values()]
    return [*runs_of(latency_spots)(scale), *with_seeds(more, scale.seeds)]


def ends_of(scale: Scale, find: Lookup, scenario: str, costs: str | None = None) -> Ends:
    """Return the final accuracies of a scenario."""
    spots, loose = latency_spots(scale, scenario, costs), loose_run(scale, scenario)
    setting, asked = scale.settings[scenario], costs is None
    return Ends(
        spots=spots,
        schemes={s: [percents(by_seed(find, spot.runs[s], scale.seeds)) for spot in spots] for s in SCHEMES},
        base=percents(by_seed(find, no_dropout(scale, scenario), scale.seeds)),
        loose=percents(by_seed(find, loose, scale.seeds)) if asked else [],
        loose_s=loose.radio.deadline_s if asked and loose.radio else 0.0,
        loose_rate=mean_rate(setting, replace(loose.radio, scheme="exact")) if asked and loose.radio else 0.0,
    )


def make(scale: Scale, find: Lookup) -> Page:
    """Draw and tabulate accuracy against the deadline."""
    figure, axes = panels([f"{scenario}: test accuracy, %" for scenario in SCENARIOS])
    found = {scenario: ends_of(scale, find, scenario) for scenario in SCENARIOS}
    text = ""
    for panel, (scenario, ends) in zip(axes, found.items(), strict=True):
        _draw(panel, ends)
        text += of_runs(scenario, ends.spots[0].runs["exact"], list(SCHEMES), "; B = 10 MHz")
        text += f"**{scenario.capitalize()}**, test accuracy in %, mean over seeds ± its standard error (seeds):\n\n"
        text += _table(ends) + "\n\n"
    by_formula = ends_of(scale, find, "overfitting", "formula")
    if any(value is not None for rows in by_formula.schemes.values() for row in rows for value in row):
        text += "**Overfitting, charged by the paper's formula** (decides no claim, see figure 3):\n\n"
        text += _table(by_formula) + "\n\n"
    legend(axes[0])
    text += _caps(scale, find) + "![Accuracy against the deadline](accuracy-latency.png)\n"
    return Page(
        text=text, figures={"accuracy-latency.png": figure}, verdicts=[*_verdicts(found), _smaller_theta(scale, find)]
    )


def _table(ends: Ends) -> str:
    rows = [
        [f"{spot.x:g}", *(spread(ends.schemes[scheme][i]) or "not run" for scheme in SCHEMES), spread(ends.base)]
        for i, spot in enumerate(ends.spots)
    ]
    if ends.loose_s:
        mine = f"drops {ends.loose_rate:.1%}" if ends.loose_rate else "drops nothing"
        rows.append([f"{ends.loose_s:g}", mine, spread(ends.loose) or "not run", "", spread(ends.base)])
    return markdown_table(["deadline, s", *SCHEMES.values(), "without dropout"], rows)


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


def _draw(panel: Axes, ends: Ends) -> None:
    from feddrop.report.style import SERIES

    x = [spot.x for spot in ends.spots]
    if all(value is None for rows in ends.schemes.values() for row in rows for value in row):
        not_run(panel)
        return
    for (scheme, rows), colour in zip(ends.schemes.items(), SERIES, strict=False):
        draw_seeds(panel, x, rows, color=colour, marker="o", label=SCHEMES[scheme])
    panel.axhline(mean_of(ends.base), color="grey", linestyle=":", label="without dropout")
    panel.set_xlabel("deadline, s")


def _verdicts(found: dict[str, Ends]) -> list[Verdict]:
    above: list[Comparison] = []
    equal: list[Comparison] = []
    grows: list[Comparison] = []
    gain: list[Comparison] = []
    alike: list[Comparison] = []
    full: list[Comparison] = []
    for scenario, ends in found.items():
        mine, theirs, even = ends.schemes["exact"], ends.schemes["random"], ends.schemes["equal"]
        chosen = [i for i, spot in enumerate(ends.spots) if spot.repeated]
        for i in chosen:
            at = f"{scenario}, {ends.spots[i].x:g} s"
            above.append(Comparison(at, differences=matched(mine[i], theirs[i]), pool=scenario))
            equal.append(Comparison(at, differences=matched(mine[i], even[i]), pool=scenario))
            full.append(Comparison(at, differences=matched(mine[i], ends.base), pool=scenario))
        first, last = chosen[0], chosen[-1]
        span = f"{scenario}, {ends.spots[last].x:g} against {ends.spots[first].x:g} s"
        grows.append(Comparison(span, differences=matched(mine[last], mine[first]), pool=scenario))
        gains = [[_minus(a, b) for a, b in zip(mine[i], theirs[i], strict=True)] for i in (last, first)]
        gain.append(Comparison(span, differences=matched(*gains), pool=scenario))
        alike.append(
            Comparison(
                label=f"{scenario}, {ends.loose_s:g} s",
                differences=matched(ends.loose, ends.base),
                pool=scenario,
                tolerance=ALMOST_EQUAL,
            )
        )
    nothing = (
        f"almost equal means within {ALMOST_EQUAL:g} percentage point; at this deadline random shares drop "
        f"{ALMOST_NOTHING:.0%} on average; the run without dropout represents the proposed scheme"
    )
    return [
        verdict("accuracy-scheme", above),
        verdict("equal-split", equal),
        verdict("accuracy-overfit", [replace(point) for point in full if point.label.startswith("overfitting")]),
        verdict("accuracy-whole", full),
        verdict("accuracy-grows", grows),
        verdict("gain-grows", gain),
        verdict("loose-equal", alike, nothing),
    ]


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


EXPERIMENT = Experiment("accuracy-latency", "Accuracy against latency", "Fig. 5", runs, make)
