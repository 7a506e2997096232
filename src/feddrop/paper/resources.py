"""The runs of figures 3 to 5: from tight to loose cells, under every scheme."""

from __future__ import annotations

from collections.abc import Callable

from feddrop.config import RunConfig
from feddrop.paper.cells import BAND_HZ, deadline_for, radio
from feddrop.paper.scales import SCENARIOS, Scale, Setting

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
