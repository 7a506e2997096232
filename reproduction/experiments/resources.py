"""The runs of figures 3 to 5: every scheme, from tight to loose cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from feddrop.config import Radio, RunConfig
from reproduction.experiments.cells import BAND_HZ, deadline_for, radio
from reproduction.framework.scales import SCENARIOS, Scale, Setting

SCHEMES = {"exact": "proposed", "random": "bandwidth-aware", "equal": "equal shares"}
BAND_TARGET = 0.2
RANDOM_AT = f"with random shares at θ = {Radio().max_rate:g}"
"""The condition of every claim on the bandwidth-aware scheme: its largest rate, which the paper does not give."""


class Spot(NamedTuple):
    """A point of a figure.

    Attributes:
        x: deadline in s, or bandwidth in MHz.
        runs: the run of each scheme, with the first seed.
        seeds: its seeds.
    """

    x: float
    runs: dict[str, RunConfig]
    seeds: tuple[int, ...]

    @property
    def repeated(self) -> bool:
        """Whether it is run with more than one seed."""
        return len(self.seeds) > 1


SpotsOf = Callable[[Scale, str], list[Spot]]
"""Returns the points of a scenario."""


def latency_spots(scale: Scale, scenario: str, costs: str | None = None) -> list[Spot]:
    """Return the runs of the latency figures: deadlines from tight to loose."""
    setting = scale.settings[scenario]
    spots = []
    for target in scale.target_rates:
        seeds = scale.seeds if target in scale.repeated_targets and costs is None else scale.seeds[:1]
        deadline = deadline_for(setting, target)
        spots.append(Spot(deadline, _by_scheme(setting, costs, deadline_s=deadline), seeds))
    return spots


def bandwidth_spots(scale: Scale, scenario: str, costs: str | None = None) -> list[Spot]:
    """Return the runs of the bandwidth figures: one deadline, bands from narrow to wide."""
    setting = scale.settings[scenario]
    deadline = deadline_for(setting, BAND_TARGET)
    bands = [factor * BAND_HZ for factor in scale.band_factors]
    return [
        Spot(
            band / 1e6,
            _by_scheme(setting, costs, deadline_s=deadline, bandwidth_hz=band),
            scale.seeds if band in (bands[0], bands[-1]) and costs is None else scale.seeds[:1],
        )
        for band in bands
    ]


def no_dropout(scale: Scale, scenario: str) -> RunConfig:
    """Return the run without dropout, which has no cell."""
    return scale.settings[scenario].run(figure=True)


def with_seeds(configs: Sequence[RunConfig], seeds: Sequence[int]) -> list[RunConfig]:
    """Return every configuration with every seed, the first seed of all first."""
    return [replace(config, seed=seed) for seed in seeds for config in configs]


def runs_of(spots_of: SpotsOf) -> Callable[[Scale], list[RunConfig]]:
    """Return a function that lists the runs of a figure: without dropout first, then those of its points."""

    def runs(scale: Scale) -> list[RunConfig]:
        found = []
        for scenario in SCENARIOS:
            spots = spots_of(scale, scenario)
            seeds = max((spot.seeds for spot in spots), key=len)
            found += with_seeds([no_dropout(scale, scenario)], seeds)
            for spot in spots:
                found += with_seeds(list(spot.runs.values()), spot.seeds)
        return sorted(found, key=lambda config: config.seed)

    return runs


def _by_scheme(setting: Setting, costs: str | None, **cell: float) -> dict[str, RunConfig]:
    return {
        scheme: setting.run(figure=True, radio=radio(setting, scheme=scheme, costs=costs, **cell)) for scheme in SCHEMES
    }
