"""Figure 6: a cell that changes: 5 to 10 devices, CPU frequency and power drawn anew every round, IID and non-IID."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from feddrop.config import RunConfig
from feddrop.paper.cells import deadline_for, radio
from feddrop.paper.converge import CONVERGED, SHARES, convergence_round, plateau_of
from feddrop.paper.drawing import legend, not_run, panels
from feddrop.paper.experiment import Experiment, Lookup, Page, Verdict, markdown_table, outcome
from feddrop.paper.scales import SCENARIOS, Scale
from feddrop.paper.store import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTITIONS = {"iid": "IID", "dirichlet": "non-IID"}


class Pair(NamedTuple):
    """The runs at one deadline, with IID and with non-IID data; None where it was not run."""

    deadline_s: float
    iid: Result | None
    skewed: Result | None


def points(scale: Scale, scenario: str) -> list[tuple[float, dict[str, RunConfig]]]:
    """Return, for every deadline, the run of each partition."""
    setting = scale.settings[scenario]
    found = []
    for target in scale.target_rates[:: max(1, len(scale.target_rates) - 1)]:
        deadline = deadline_for(setting, target)
        cell = replace(radio(setting, deadline_s=deadline), dynamic=True, min_devices=5)
        found.append((deadline, {p: setting.run(figure=True, radio=cell, partition=p) for p in PARTITIONS}))
    return found


def runs(scale: Scale) -> list[RunConfig]:
    """Both partitions at a tight and a loose deadline."""
    return [config for s in SCENARIOS for _, by in points(scale, s) for config in by.values()]


def make(scale: Scale, find: Lookup) -> Page:
    """Draw accuracy by round, and tabulate its end."""
    figure, axes = panels([f"{scenario}: test accuracy, %" for scenario in SCENARIOS])
    rows = []
    found: dict[str, list[Pair]] = {}
    for panel, scenario in zip(axes, SCENARIOS, strict=True):
        found[scenario] = [
            Pair(deadline, *(find(by_partition[partition]) for partition in PARTITIONS))
            for deadline, by_partition in points(scale, scenario)
        ]
        _draw(panel, found[scenario])
        for pair in found[scenario]:
            ends = ["" if result is None else f"{100 * result.accuracy:.2f}" for result in (pair.iid, pair.skewed)]
            rows.append([scenario, f"{pair.deadline_s:g}", *ends])
    text = markdown_table(["scenario", "deadline, s", *PARTITIONS.values()], rows)
    text += "\n\n![Accuracy in a changing cell](dynamic.png)\n"
    return Page(text=text, figures={"dynamic.png": figure}, verdicts=_verdicts(found))


def _draw(panel: Axes, pairs: list[Pair]) -> None:
    from feddrop.report.style import SERIES

    panel.set_xlabel("round")
    colours = iter(SERIES)
    for pair in pairs:
        for result, name in zip((pair.iid, pair.skewed), PARTITIONS.values(), strict=True):
            colour = next(colours)
            if result is not None:
                accuracy = 100 * result.values("test_accuracy")
                label = f"{name}, {pair.deadline_s:g} s"
                panel.plot(range(1, len(accuracy) + 1), accuracy, color=colour, label=label)
    if panel.has_data():
        legend(panel)
    else:
        not_run(panel)


def _verdicts(found: dict[str, list[Pair]]) -> list[Verdict]:
    above: list[bool | None] = []
    faster: list[bool | None] = []
    wider: list[bool | None] = []
    ends, rounds, gaps = [], [], []
    for scenario, pairs in found.items():
        gap: list[float] = []
        for deadline, iid, skewed in pairs:
            if iid is None or skewed is None:
                above.append(None)
                faster.append(None)
                continue
            level = plateau_of(skewed)
            when = [convergence_round(result, level, SHARES[CONVERGED]) for result in (iid, skewed)]
            gap.append(100 * (iid.accuracy - skewed.accuracy))
            above.append(gap[-1] > 0.0)
            faster.append(when[0] < when[1])
            ends.append(f"{scenario}, {deadline:g} s: {100 * iid.accuracy:.1f} against {100 * skewed.accuracy:.1f} %")
            rounds.append(f"{scenario}, {deadline:g} s: {when[0]:g} against {when[1]:g}")
        wider.append(gap[-1] > gap[0] if len(gap) == len(pairs) else None)
        if len(gap) == len(pairs):
            gaps.append(f"{scenario}: {gap[0]:.1f} points at the tight deadline, {gap[-1]:.1f} at the loose")
    level_is = f"rounds to {SHARES[CONVERGED]:.0%} of the plateau with non-IID data"
    return [
        Verdict("iid-above", "; ".join(ends), outcome(above)),
        Verdict("iid-faster", f"{level_is}: {'; '.join(rounds)}", outcome(faster)),
        Verdict("iid-gap", "; ".join(gaps), outcome(wider)),
    ]


EXPERIMENT = Experiment("dynamic", "A cell that changes", "Fig. 6", runs, make)
