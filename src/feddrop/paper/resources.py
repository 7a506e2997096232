"""The runs of figures 3 to 5, from tight to loose cells under every scheme; and figure 5: accuracy against latency."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from feddrop.config import RunConfig
from feddrop.paper.cells import BAND_HZ, deadline_for, radio
from feddrop.paper.drawing import legend, not_run, panels
from feddrop.paper.experiment import Experiment, Lookup, Page, Verdict, counted, markdown_table, outcome
from feddrop.paper.scales import SCENARIOS, Scale, Setting
from feddrop.paper.store import Result

SCHEMES = {"exact": "proposed", "random": "bandwidth-aware", "equal": "equal shares"}
BAND_TARGET = 0.2
Points = list[tuple[float, dict[str, RunConfig]]]
"""For every deadline or bandwidth, the run of each scheme."""
PointsOf = Callable[[Scale, str], Points]
"""Gives the points of a scenario."""


def latency_points(scale: Scale, scenario: str) -> Points:
    """Return the runs of the latency figures: deadlines from tight to loose."""
    setting = scale.settings[scenario]
    deadlines = [deadline_for(setting, target) for target in scale.target_rates]
    return [(t, _by_scheme(setting, deadline_s=t)) for t in deadlines]


def bandwidth_points(scale: Scale, scenario: str) -> Points:
    """Return the runs of the bandwidth figures: one deadline, bands from narrow to wide."""
    setting = scale.settings[scenario]
    deadline = deadline_for(setting, BAND_TARGET)
    bands = [factor * BAND_HZ for factor in scale.band_factors]
    return [(band / 1e6, _by_scheme(setting, deadline_s=deadline, bandwidth_hz=band)) for band in bands]


def no_dropout(scale: Scale, scenario: str) -> RunConfig:
    """Return the run without dropout: as much band as needed."""
    return scale.settings[scenario].run(figure=True)


def runs_of(points_of: PointsOf) -> Callable[[Scale], list[RunConfig]]:
    """Return what lists all runs of a figure: in each scenario the one without dropout, then those of its points."""

    def runs(scale: Scale) -> list[RunConfig]:
        return [
            config
            for scenario in SCENARIOS
            for config in (
                no_dropout(scale, scenario),
                *(c for _, by_scheme in points_of(scale, scenario) for c in by_scheme.values()),
            )
        ]

    return runs


def _by_scheme(setting: Setting, **cell: float) -> dict[str, RunConfig]:
    return {scheme: setting.run(figure=True, radio=radio(setting, scheme=scheme, **cell)) for scheme in SCHEMES}


def make_accuracy(scale: Scale, find: Lookup) -> Page:
    """Figure 5: the same runs as figure 3, read at their end."""
    from feddrop.report.style import SERIES

    text = ""
    figure, axes = panels([f"{scenario}: test accuracy, %" for scenario in SCENARIOS])
    above: list[bool | None] = []
    beyond: list[bool | None] = []
    for panel, scenario in zip(axes, SCENARIOS, strict=True):
        base, points = find(no_dropout(scale, scenario)), latency_points(scale, scenario)
        table = {scheme: [_accuracy(find(by[scheme])) for _, by in points] for scheme in SCHEMES}
        rows = [
            [f"{value:g}", *(_percent(table[scheme][i]) for scheme in SCHEMES), _percent(_accuracy(base))]
            for i, (value, _) in enumerate(points)
        ]
        text += f"**{scenario.capitalize()}**, test accuracy in %:\n\n"
        text += markdown_table(["deadline, s", *SCHEMES.values(), "without dropout"], rows) + "\n\n"
        if all(value is None for values in table.values() for value in values):
            not_run(panel)
        else:
            for (scheme, values), colour in zip(table.items(), SERIES, strict=False):
                y = [np.nan if v is None else v for v in values]
                panel.plot([value for value, _ in points], y, color=colour, marker="o", label=SCHEMES[scheme])
            if base:
                panel.axhline(100 * base.accuracy, color="grey", linestyle=":", label="without dropout")
            panel.set_xlabel("deadline, s")
        pairs = zip(table["exact"], table["random"], strict=True)
        above += [None if a is None or b is None else a > b for a, b in pairs]
        if scenario == "overfitting":
            own = _accuracy(base)
            beyond += [None if a is None or own is None else a > own for a in table["exact"]]
    legend(axes[0])
    verdicts = [
        Verdict("accuracy-scheme", counted(above), outcome(above)),
        Verdict("accuracy-overfit", counted(beyond), outcome(beyond)),
    ]
    text += "![Accuracy against the deadline](accuracy-latency.png)\n"
    return Page(text=text, figures={"accuracy-latency.png": figure}, verdicts=verdicts)


def _accuracy(result: Result | None) -> float | None:
    return None if result is None else 100.0 * result.accuracy


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


ACCURACY = Experiment("accuracy-latency", "Accuracy against latency", "Fig. 5", runs_of(latency_points), make_accuracy)
