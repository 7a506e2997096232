"""Beyond the figures: is it the allocator's objective that decides how well a network learns, or just the mean rate?

Every IID run of the figures has a mean of Σ w/(1-γ) over its rounds: what the allocator minimises, and the term that
dropout adds to Theorem 1's bound. If the theory is right, all runs lie on one curve over it, whatever the scheme, the
deadline or the bandwidth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from feddrop.config import RunConfig
from feddrop.paper import dynamic
from feddrop.paper.drawing import legend, not_run, panels
from feddrop.paper.experiment import Experiment, Lookup, Page, Verdict, markdown_table, outcome
from feddrop.paper.resources import SCHEMES, bandwidth_points, latency_points, no_dropout
from feddrop.paper.scales import SCENARIOS, Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATE = 0.2
LEAST = 8  # runs that it takes to say how far they lie from one curve
AXES = ("mean of Σ w/(1-γ) over the rounds", "mean rate γ")


class Dot(NamedTuple):
    """One run: the allocator's objective and the rate, both means over its rounds, and test accuracy in %."""

    objective: float
    rate: float
    accuracy: float


def groups(scale: Scale, scenario: str) -> dict[str, list[RunConfig]]:
    """Return the IID runs of the figures, by what decides their rates; none is trained for this alone."""
    found: dict[str, list[RunConfig]] = {name: [] for name in SCHEMES.values()}
    for points_of in (latency_points, bandwidth_points):
        for _, by_scheme in points_of(scale, scenario):
            for scheme, config in by_scheme.items():
                found[SCHEMES[scheme]].append(config)
    found["proposed, changing cell"] = [by_partition["iid"] for _, by_partition in dynamic.points(scale, scenario)]
    found["one rate for all"] = [no_dropout(scale, scenario), scale.settings[scenario].run(figure=True, rate=RATE)]
    return found


def runs(scale: Scale) -> list[RunConfig]:
    """All of them."""
    return [config for scenario in SCENARIOS for group in groups(scale, scenario).values() for config in group]


def dot(config: RunConfig, find: Lookup) -> Dot | None:
    """Return where a run stands; None if it was not run, or saved without the objective."""
    result = find(config)
    if result is None:
        return None
    if config.radio is None and isinstance(config.rate, float):
        return Dot(1.0 / (1.0 - config.rate), config.rate, 100.0 * result.accuracy)
    objective, rate = result.values("objective"), result.values("mean_rate")
    if np.isnan(objective).all():  # saved by an older version
        return None
    return Dot(float(np.nanmean(objective)), float(np.nanmean(rate)), 100.0 * result.accuracy)


def distance(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    """Return how far runs lie from one curve: the root mean square distance from the line between their neighbours."""
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    gaps = [y[i] - np.interp(x[i], x[[i - 1, i + 1]], y[[i - 1, i + 1]]) for i in range(1, len(x) - 1)]
    return float(np.sqrt(np.mean(np.square(gaps))))


def make(scale: Scale, find: Lookup) -> Page:
    """Draw accuracy over the objective and over the mean rate, and compare how far runs lie from one curve."""
    figure, axes = panels([f"{scenario}: test accuracy, %" for scenario in SCENARIOS for _ in AXES])
    rows, notes = [], []
    holds: list[bool | None] = []
    for scenario, pair in zip(SCENARIOS, (axes[:2], axes[2:]), strict=True):
        dots = {
            name: [one for config in group if (one := dot(config, find)) is not None]
            for name, group in groups(scale, scenario).items()
        }
        every = np.array([one for group in dots.values() for one in group]).reshape(-1, len(Dot._fields))
        for column, panel in enumerate(pair):
            _draw(panel, dots, column)
        if len(every) < LEAST:
            holds.append(None)
            rows.append([scenario, str(len(every)), "", ""])
            continue
        mine, other = (distance(every[:, column], every[:, -1]) for column in range(len(AXES)))
        holds.append(mine < other / 2.0)
        rows.append([scenario, str(len(every)), f"{mine:.2f}", f"{other:.2f}"])
        notes.append(f"{scenario} {mine:.1f} points, over the mean rate {other:.1f}")
    legend(axes[0])
    text = (
        "Every IID run of figures 3 to 6, and one rate for all devices, over the mean of Σ w/(1-γ) and over the mean "
        "rate; and how far they lie from one curve: root mean square distance of a run from the line between its "
        "neighbours, in points.\n\n"
    )
    text += markdown_table(["", "runs", "over Σ w/(1-γ)", "over the mean rate"], rows)
    text += "\n\n![Accuracy against the allocator's objective](objective.png)\n"
    verdict = Verdict("objective", f"runs lie off one curve by: {'; '.join(notes)}", outcome(holds))
    return Page(text=text, figures={"objective.png": figure}, verdicts=[verdict])


def _draw(panel: Axes, dots: dict[str, list[Dot]], column: int) -> None:
    from feddrop.report.style import SERIES

    if not any(dots.values()):
        not_run(panel)
        return
    for (name, group), colour in zip(dots.items(), SERIES, strict=False):
        panel.plot([one[column] for one in group], [one.accuracy for one in group], "o", color=colour, label=name)
    panel.set_xlabel(AXES[column])


EXPERIMENT = Experiment("objective", "Accuracy against what the allocator minimises", "Theorem 1", runs, make)
