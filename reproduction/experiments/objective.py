"""Beyond the figures: does the objective of the allocator determine accuracy, or just the mean rate?

Dropout adds the mean of Σ w/(1-γ) to the bound of Theorem 1, and the allocator minimises it. Runs in which all devices
have the *same* rate give a curve of accuracy; for them, mean rate and objective are equivalent. A run with unequal
rates, placed on the curve of its seed by its objective or by its mean rate, shows which of the two predicts it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from feddrop.comparison import Comparison
from feddrop.config import RunConfig
from reproduction.experiments import dynamic
from reproduction.experiments.resources import SCHEMES, bandwidth_spots, latency_spots, with_seeds
from reproduction.framework.drawing import legend, not_run, panels
from reproduction.framework.experiment import Experiment, Lookup, Page, by_seed, markdown_table
from reproduction.framework.scales import DEVICES, SCENARIOS, Scale
from reproduction.framework.settings import of_runs
from reproduction.framework.store import Result, key_of
from reproduction.framework.verdicts import verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ONE_RATE = {"underfitting": (0.0, 0.2, 0.5, 0.6, 0.65), "overfitting": (0.0, 0.1, 0.2, 0.3, 0.4)}
"""Rates of the curve; their objectives span 1 to 2.9 for LeNet, 1 to 1.7 for AlexNet."""
UNEQUAL = (
    (0.0,) * 8 + (0.75,) * 2,
    (0.1,) * 5 + (0.6,) * 5,
    (0.1,) * 9 + (0.9,),
)
"""Given rates: a few high ones among many low ones."""
LEAST_CURVE = 3
"""Least number of rates of a curve."""
AXES = ("mean of Σ w/(1-γ) over the rounds", "mean rate γ")


class Dot(NamedTuple):
    """One run, means over its rounds.

    Attributes:
        objective: Σ w/(1-γ).
        rate: γ.
        squared: K Σ w²/(1-γ): the same while all K devices take part, higher where few do.
        accuracy: test accuracy in %.
    """

    objective: float
    rate: float
    squared: float
    accuracy: float


def one_rate(scale: Scale, scenario: str) -> list[RunConfig]:
    """Return the runs of the curve."""
    return [scale.settings[scenario].run(figure=True, rate=rate) for rate in ONE_RATE[scenario]]


def given(scale: Scale) -> list[RunConfig]:
    """Return the runs whose unequal rates are given."""
    return [replace(scale.settings["underfitting"].run(figure=True), rate=rates) for rates in UNEQUAL]


def groups(scale: Scale, scenario: str) -> dict[str, list[RunConfig]]:
    """Return the IID runs with unequal rates, by what determined the rates.

    Only rates and accuracies matter here, so AlexNet's runs count under both ways of charging.
    """
    found: dict[str, dict[str, RunConfig]] = {name: {} for name in (*SCHEMES.values(), "dynamic cell")}
    for costs in (None, "formula"):
        for spot in (*latency_spots(scale, scenario, costs), *bandwidth_spots(scale, scenario, costs)):
            for scheme, config in spot.runs.items():
                found[SCHEMES[scheme]][key_of(config)] = config
        for _, by_partition in dynamic.points(scale, scenario, costs):
            found["dynamic cell"][key_of(by_partition["iid"])] = by_partition["iid"]
    unequal = {"given rates": given(scale)} if scenario == "underfitting" else {}
    return {name: list(group.values()) for name, group in found.items()} | unequal


def runs(scale: Scale) -> list[RunConfig]:
    """Return the curve and the given rates with every seed; the other runs belong to other figures."""
    curves = [config for scenario in SCENARIOS for config in one_rate(scale, scenario)]
    return with_seeds([*curves, *given(scale)], scale.seeds)


def dot(config: RunConfig, result: Result) -> Dot | None:
    """Return the dot of a run; None if it was saved without the objective."""
    accuracy = 100.0 * result.accuracy
    if config.radio is None:
        rates = np.broadcast_to(np.asarray(config.rate, dtype=np.float64), DEVICES)
        given = float(np.mean(1.0 / (1.0 - rates)))
        return Dot(given, float(rates.mean()), given, accuracy)
    objective, devices = result.values("objective"), result.values("devices")
    if np.isnan(objective).all():
        return None
    return Dot(
        objective=float(np.nanmean(objective)),
        rate=float(np.nanmean(result.values("mean_rate"))),
        squared=float(np.nanmean(objective * DEVICES / devices)),
        accuracy=accuracy,
    )


def dots_of(scale: Scale, find: Lookup, configs: list[RunConfig]) -> list[list[Dot]]:
    """Return the dots of runs, by seed."""
    found: list[list[Dot]] = [[] for _ in scale.seeds]
    for config in configs:
        for row, result in zip(found, by_seed(find, config, scale.seeds), strict=True):
            one = None if result is None else dot(config, result)
            if one is not None:
                row.append(one)
    return found


def misses(curve: list[Dot], others: list[Dot], column: int) -> list[float]:
    """Return accuracy minus the curve at each run's objective (0), rate (1) or squared objective (2)."""
    x, y = zip(*sorted((one[column], one.accuracy) for one in curve), strict=True)
    return [one.accuracy - float(np.interp(one[column], x, y)) for one in others]


def missed(curve: list[Dot], group: list[Dot]) -> list[tuple[float, ...]]:
    """Return the distances of a seed's runs from its curve in all three ways; only of runs within its range."""
    if len(curve) < LEAST_CURVE:
        return []
    reach = max(one.objective for one in curve)
    inside = [one for one in group if one.objective <= reach]
    return list(zip(*(misses(curve, inside, column) for column in range(3)), strict=True))


def make(scale: Scale, find: Lookup) -> Page:
    """Tabulate and draw the distances of runs with unequal rates from the curve, by objective and by mean rate."""
    figure, axes = panels([f"{scenario}: test accuracy, %" for scenario in SCENARIOS for _ in AXES])
    text, points, rows = "", [], []
    for scenario, pair in zip(SCENARIOS, (axes[:2], axes[2:]), strict=True):
        text += of_runs(scenario, one_rate(scale, scenario)[0])
        curves = dots_of(scale, find, one_rate(scale, scenario))
        found = groups(scale, scenario)
        dots = {name: dots_of(scale, find, group) for name, group in found.items()}
        shared = {name: dots_of(scale, find, _with_all_seeds(scale, find, group)) for name, group in found.items()}
        for column, panel in enumerate(pair):
            _draw(panel, {"one rate for all": _flat(curves), **{name: _flat(by) for name, by in dots.items()}}, column)
        for name, by in dots.items():
            every = _all_missed(curves, by)
            errors = [_rms([one[column] for one in every]) for column in range(3)]
            rows.append(
                [f"{scenario}, {name}", str(len(_flat(by))), str(len(every)), *errors, " / ".join(_means(every))]
            )
            points.append(_closer(f"{scenario}, {name}", curves, shared[name]))
    legend(axes[0])
    text += (
        "Accuracy of runs with unequal rates, against the curve of the runs of the same seed with one rate for all "
        f"({', '.join(f'{rate:g}' for rate in ONE_RATE['underfitting'])} for LeNet, "
        f"{', '.join(f'{rate:g}' for rate in ONE_RATE['overfitting'])} for AlexNet; at least {LEAST_CURVE} of them): "
        "root mean square distance in percentage points if a run is placed by Σ w/(1-γ), by its mean rate, or by "
        "K Σ w²/(1-γ); in the last column, the mean distance for the first two, positive above the curve. Only runs "
        "within the range of the curve are counted.\n\n"
    )
    text += markdown_table(
        ["", "runs", "within range", "Σ w/(1-γ)", "mean rate", "K Σ w²/(1-γ)", "mean distance"], rows
    )
    text += "\n\n![Accuracy against the allocator's objective](objective.png)\n"
    note = (
        "distance from the curve by mean rate minus that by objective; mean over the runs of a seed that all seeds have"
    )
    return Page(text=text, figures={"objective.png": figure}, verdicts=[verdict("objective", points, note)])


def _with_all_seeds(scale: Scale, find: Lookup, configs: list[RunConfig]) -> list[RunConfig]:
    """Return the configurations that were run with every seed, so that means over them differ only by seed."""
    return [config for config in configs if None not in by_seed(find, config, scale.seeds)]


def mean_misses(scale: Scale, find: Lookup, scenario: str, name: str) -> list[str]:
    """Format the mean distance of a group above the curve, by objective and by mean rate."""
    curves = dots_of(scale, find, one_rate(scale, scenario))
    return _means(_all_missed(curves, dots_of(scale, find, groups(scale, scenario)[name]))) or ["not run"] * 2


def _all_missed(curves: list[list[Dot]], by: list[list[Dot]]) -> list[tuple[float, ...]]:
    return [one for curve, group in zip(curves, by, strict=True) for one in missed(curve, group)]


def _means(every: list[tuple[float, ...]]) -> list[str]:
    return [f"{np.mean([one[column] for one in every]):+.2f}" for column in range(2)] if every else []


def _closer(at: str, curves: list[list[Dot]], by: list[list[Dot]]) -> Comparison:
    """Test whether runs are closer to the curve by objective than by mean rate."""
    found = [missed(curve, group) for curve, group in zip(curves, by, strict=True)]
    closer = tuple(float(np.mean([abs(one[1]) - abs(one[0]) for one in row])) for row in found if row)
    ran = sum(len(curve) >= LEAST_CURVE and bool(group) for curve, group in zip(curves, by, strict=True))
    return Comparison(at, differences=closer, pool=at, ran=ran)


def _flat(by_seed: list[list[Dot]]) -> list[Dot]:
    return [one for row in by_seed for one in row]


def _rms(values: list[float]) -> str:
    return f"{np.sqrt(np.mean(np.square(values))):.2f}" if values else ""


def _draw(panel: Axes, dots: dict[str, list[Dot]], column: int) -> None:
    from feddrop.report.style import SERIES

    if not any(dots.values()):
        not_run(panel)
        return
    for (name, group), colour in zip(dots.items(), SERIES, strict=False):
        if not group:
            continue
        line = "o-" if name.startswith("one rate") else "o"
        by_x: dict[float, list[float]] = {}
        for one in sorted(group):
            by_x.setdefault(one[column], []).append(one.accuracy)
        panel.plot(list(by_x), [np.mean(y) for y in by_x.values()], line, color=colour, label=name)
    panel.set_xlabel(AXES[column])


EXPERIMENT = Experiment("objective", "Accuracy against the objective of the allocator", "Theorem 1", runs, make)
