"""Figure 6: a dynamic cell: every round has 5 to 10 devices with new CPU frequencies and powers; IID and non-IID."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from feddrop.comparison import Comparison, Spent, matched, spent_differences
from feddrop.config import RunConfig
from reproduction.experiments.cells import deadline_for, radio
from reproduction.experiments.curves import CONVERGED, SHARES, convergence_round, plateau_of
from reproduction.experiments.resources import with_seeds
from reproduction.framework.drawing import draw_seeds, legend, not_run, panels
from reproduction.framework.experiment import Experiment, Lookup, Page, by_seed, markdown_table, percents, spread
from reproduction.framework.scales import SCENARIOS, Scale
from reproduction.framework.settings import of_runs
from reproduction.framework.store import Result
from reproduction.framework.traced import Traced
from reproduction.framework.verdicts import Verdict, verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTITIONS = {"iid": "IID", "dirichlet": "non-IID"}


class Pair(NamedTuple):
    """The runs at one deadline by seed, with IID and non-IID data; None where it was not run."""

    deadline_s: float
    iid: list[Result | None]
    skewed: list[Result | None]


def points(scale: Scale, scenario: str, costs: str | None = None) -> list[tuple[float, dict[str, RunConfig]]]:
    """Return every deadline with the run of each partition."""
    setting = scale.settings[scenario]
    found = []
    for target in scale.target_rates[:: max(1, len(scale.target_rates) - 1)]:
        deadline = deadline_for(setting, target)
        cell = replace(radio(setting, deadline_s=deadline, costs=costs), dynamic=True, min_devices=5)
        found.append((deadline, {p: setting.run(figure=True, radio=cell, partition=p) for p in PARTITIONS}))
    return found


def runs(scale: Scale) -> list[RunConfig]:
    """Return both partitions at a tight and a loose deadline, with every seed."""
    return with_seeds([config for s in SCENARIOS for _, by in points(scale, s) for config in by.values()], scale.seeds)


def _pairs(scale: Scale, find: Lookup, scenario: str, costs: str | None = None) -> list[Pair]:
    return [
        Pair(deadline, *(by_seed(find, by_partition[partition], scale.seeds) for partition in PARTITIONS))
        for deadline, by_partition in points(scale, scenario, costs)
    ]


def make(scale: Scale, find: Lookup) -> Page:
    """Draw accuracy by round and tabulate the final accuracy."""
    figure, axes = panels([f"{scenario}: test accuracy, %" for _ in range(2) for scenario in SCENARIOS])
    found = {scenario: _pairs(scale, find, scenario) for scenario in SCENARIOS}
    text, rows = "", []
    for above, below, (scenario, pairs) in zip(axes[:2], axes[2:], found.items(), strict=True):
        _draw_latency(above, pairs)
        _draw(below, pairs)
        first = points(scale, scenario)[0][1]["iid"]
        least = first.radio.min_devices if first.radio else 0
        more = f"; B = 10 MHz; every round, {least} to {first.data.devices} devices"
        text += of_runs(scenario, first, ["exact"], f"{more}, with new CPU frequencies and powers")
        rows += _rows(scenario, pairs)
    earlier = _pairs(scale, find, "overfitting", "formula")
    if any(result is not None for pair in earlier for result in (*pair.iid, *pair.skewed)):
        rows += _rows("overfitting, charged by the formula", earlier)
    text += "Test accuracy in %, mean over seeds ± its standard error (seeds).\n\n"
    text += markdown_table(["scenario", "deadline, s", *PARTITIONS.values()], rows)
    text += "\n\nAbove, accuracy against the deadline, as in the paper; below, by round.\n\n"
    text += "![Accuracy in a dynamic cell](dynamic.png)\n"
    return Page(text=text, figures={"dynamic.png": figure}, verdicts=_verdicts(found))


def _rows(scenario: str, pairs: list[Pair]) -> list[list[str]]:
    return [
        [scenario, f"{pair.deadline_s:g}", *(spread(percents(row)) or "not run" for row in (pair.iid, pair.skewed))]
        for pair in pairs
    ]


def _draw_latency(panel: Axes, pairs: list[Pair]) -> None:
    from feddrop.report.style import SERIES

    panel.set_xlabel("deadline, s")
    if not any(result for pair in pairs for result in (*pair.iid, *pair.skewed)):
        not_run(panel)
        return
    for name, colour, i in zip(PARTITIONS.values(), SERIES, (1, 2), strict=False):
        heights = [percents(pair[i]) for pair in pairs]
        draw_seeds(panel, [pair.deadline_s for pair in pairs], heights, color=colour, marker="o", label=name)
    legend(panel)


def _draw(panel: Axes, pairs: list[Pair]) -> None:
    from feddrop.report.style import SERIES

    panel.set_xlabel("round")
    colours = iter(SERIES)
    for pair in pairs:
        for results, name in zip((pair.iid, pair.skewed), PARTITIONS.values(), strict=True):
            colour = next(colours)
            known = [100 * result.values("test_accuracy") for result in results if result is not None]
            if known:
                label = f"{name}, {pair.deadline_s:g} s"
                panel.plot(range(1, len(known[0]) + 1), np.mean(known, axis=0), color=colour, label=label)
    if panel.has_data():
        legend(panel)
    else:
        not_run(panel)


def _verdicts(found: dict[str, list[Pair]]) -> list[Verdict]:
    above: list[Comparison] = []
    faster: list[Comparison] = []
    wider: list[Comparison] = []
    grows: list[Comparison] = []
    for scenario, pairs in found.items():
        for pair in pairs:
            at = f"{scenario}, {pair.deadline_s:g} s"
            above.append(Comparison(at, differences=matched(percents(pair.iid), percents(pair.skewed)), pool=at))
            faster.append(_later(at, pair))
        gaps = [
            [_minus(a, b) for a, b in zip(percents(p.iid), percents(p.skewed), strict=True)]
            for p in (pairs[-1], pairs[0])
        ]
        span = f"{scenario}, {pairs[-1].deadline_s:g} against {pairs[0].deadline_s:g} s"
        wider.append(Comparison(span, differences=matched(*gaps), pool=scenario))
        for name, i in zip(PARTITIONS.values(), (1, 2), strict=True):
            ends = [percents(pair[i]) for pair in (pairs[-1], pairs[0])]
            grows.append(Comparison(f"{span}, {name}", differences=matched(*ends), pool=f"{scenario}, {name}"))
    level = f"rounds to {SHARES[CONVERGED]:.0%} of the best 5-round mean of the same seed with non-IID data"
    return [
        verdict("iid-above", above),
        verdict("iid-faster", faster, level),
        verdict("iid-gap", wider),
        verdict("dynamic-grows", grows),
    ]


def _later(at: str, pair: Pair) -> Comparison:
    """Compare the rounds that non-IID and IID data need for the same accuracy; a level never reached gives a bound."""

    def rounds(result: Result | None, level: float | None) -> Spent | None:
        if result is None or level is None:
            return None
        reached = Traced(convergence_round(result, level, SHARES[CONVERGED]), [result.key])
        return Spent(reached, len(result.series["test_accuracy"]) + 1.0)

    levels = [skewed and plateau_of(skewed) for skewed in pair.skewed]
    iid, skewed = (list(map(rounds, results, levels)) for results in (pair.iid, pair.skewed))
    found = spent_differences(skewed, iid)
    return Comparison(at, found.values, bounds=found.bounds, unit="rounds", pool=at, step=1.0, ran=found.ran)


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


EXPERIMENT = Experiment("dynamic", "A dynamic cell", "Fig. 6", runs, make)
