"""Figures 3 to 5: rounds to converge against per-round latency and bandwidth, and accuracy against latency."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from feddrop.config import RunConfig
from feddrop.paper.cells import BAND_HZ, deadline_for, radio
from feddrop.paper.drawing import legend, not_run, panels
from feddrop.paper.experiment import Experiment, Lookup, Page, Verdict, markdown_table, outcome
from feddrop.paper.scales import SCENARIOS, Scale, Setting
from feddrop.paper.store import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEMES = {"exact": "proposed", "random": "bandwidth-aware", "equal": "equal shares"}
BAND_TARGET = 0.2
SHARES = (0.95, 0.9, 0.98)
WINDOW = 5
Points = list[tuple[float, dict[str, RunConfig]]]
"""For every deadline or bandwidth, the run of each scheme."""


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


def _by_scheme(setting: Setting, **cell: float) -> dict[str, RunConfig]:
    return {scheme: setting.run(figure=True, radio=radio(setting, scheme=scheme, **cell)) for scheme in SCHEMES}


def running_mean(accuracy: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the mean over WINDOW rounds, from the WINDOW-th on; over all rounds if there are fewer."""
    window = min(WINDOW, len(accuracy))
    return np.convolve(accuracy, np.ones(window) / window, mode="valid")


def convergence_round(result: Result, plateau: float, share: float) -> int | None:
    """Return the first round at which the running mean of test accuracy reaches a share of the plateau, or None."""
    smooth = running_mean(result.values("test_accuracy"))
    reached = np.flatnonzero(smooth >= share * plateau)
    return int(reached[0]) + len(result.series["test_accuracy"]) - len(smooth) + 1 if len(reached) else None


def plateau_of(result: Result) -> float:
    """Return the best running mean of test accuracy."""
    return float(running_mean(result.values("test_accuracy")).max())


def _figure_page(
    scale: Scale, find: Lookup, points_of: Callable[[Scale, str], Points], axis: str, name: str, claim: str
) -> Page:
    """Rounds to converge against a resource, in both scenarios."""
    text, verdicts = "", []
    figure, axes = panels([f"{scenario}: rounds to converge" for scenario in SCENARIOS])
    falls: list[bool | None] = []
    fewer: list[bool | None] = []
    narrows: list[bool | None] = []
    notes: list[str] = []
    ties = 0
    for panel, scenario in zip(axes, SCENARIOS, strict=True):
        base, points = find(no_dropout(scale, scenario)), points_of(scale, scenario)
        rows = []
        curves: dict[str, list[int | None]] = {scheme: [] for scheme in SCHEMES}
        drawn: dict[str, list[float]] = {scheme: [] for scheme in SCHEMES}
        late = scale.settings[scenario].figure_rounds + 1
        for value, by_scheme in points:
            row = [f"{value:g}"]
            for scheme, config in by_scheme.items():
                result = find(config)
                reached = None if result is None or base is None else _rounds(result, base)
                curves[scheme].append(reached[0] if reached else None)
                drawn[scheme].append((reached[0] or late) if reached else np.nan)
                rate = "" if result is None else f" (γ {np.nanmean(result.values('mean_rate')):.2f})"
                row.append("" if reached is None else _slashed(reached) + rate)
            rows.append(row)
        own = _slashed(_rounds(base, base)) if base else "not run"
        text += (
            f"**{scenario.capitalize()}**: rounds until test accuracy (mean of {WINDOW} rounds) reaches "
            f"{' / '.join(f'{share:.0%}' for share in SHARES)} of the plateau without dropout, and the mean rate; – "
            f"not within {late - 1} rounds. Without dropout: {own}.\n\n"
            + markdown_table([axis, *SCHEMES.values()], rows)
            + "\n\n"
        )
        own_rounds = _rounds(base, base)[0] if base else None
        _draw_curves(panel, [value for value, _ in points], drawn, own_rounds, axis, late)
        done = all(find(config) is not None for _, by_scheme in points for config in by_scheme.values())
        if done and base:
            mine, theirs = ([np.inf if v is None else v for v in curves[scheme]] for scheme in ("exact", "random"))
            notes.append(
                f"{scenario}: proposed {_listed(curves['exact'])} rounds, bandwidth-aware {_listed(curves['random'])}, "
                f"without dropout {own_rounds}"
            )
            falls.append(mine[0] > mine[-1] and all(a >= b for a, b in pairwise(mine)))
            fewer += [a < b for a, b in zip(mine, theirs, strict=True)]
            ties += sum(a == b for a, b in zip(mine, theirs, strict=True))
            narrows.append(mine[0] > mine[-1])
        else:
            falls.append(None)
            fewer += [None] * len(points)
            narrows.append(None)
    verdicts = [
        Verdict(claim, "; ".join(notes), outcome(falls)),
        Verdict("fewer-rounds", f"{axis}: fewer at {_points(fewer)}, as many at {ties}", outcome(fewer)),
        Verdict("gap-narrows", f"{axis}: first against last point", outcome(narrows)),
    ]
    legend(axes[0])
    return Page(text=text + f"![Rounds to converge]({name}.png)\n", figures={f"{name}.png": figure}, verdicts=verdicts)


def _rounds(result: Result, base: Result) -> list[int | None]:
    return [convergence_round(result, plateau_of(base), share) for share in SHARES]


def _listed(rounds: list[int | None]) -> str:
    return ", ".join("–" if r is None else str(r) for r in rounds)


def _points(answers: list[bool | None]) -> str:
    known = [answer for answer in answers if answer is not None]
    return f"{sum(known)} of {len(known)} points"


def _slashed(rounds: list[int | None]) -> str:
    return _listed(rounds).replace(", ", " / ")


def _draw_curves(
    panel: Axes, x: list[float], curves: dict[str, list[float]], base: int | None, axis: str, late: int
) -> None:
    """Draw rounds to converge; NaN was not run, and ``late``, never within the rounds, is an open circle."""
    from matplotlib.ticker import MaxNLocator

    from feddrop.report.style import MUTED, SERIES, SURFACE

    if np.isnan([*curves.values()]).all():
        not_run(panel)
        return
    for (scheme, y), colour in zip(curves.items(), SERIES, strict=False):
        panel.plot(x, y, color=colour, marker="o", label=SCHEMES[scheme])
        never = [(a, b) for a, b in zip(x, y, strict=True) if b == late]
        if never:
            panel.plot(*zip(*never, strict=True), "o", markerfacecolor=SURFACE, markeredgecolor=colour)
    if late in [y for values in curves.values() for y in values]:
        panel.annotate(f"not within {late - 1} rounds", (x[0], late), (0, 8), textcoords="offset points", color=MUTED)
    if base is not None:
        panel.axhline(base, color="grey", linestyle=":", label="without dropout")
    panel.yaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_xlabel(axis)


def make_latency(scale: Scale, find: Lookup) -> Page:
    """Figure 3."""
    return _figure_page(scale, find, latency_points, "deadline, s", "rounds-latency", "rounds-latency")


def make_bandwidth(scale: Scale, find: Lookup) -> Page:
    """Figure 4."""
    return _figure_page(scale, find, bandwidth_points, "bandwidth, MHz", "rounds-bandwidth", "rounds-bandwidth")


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
        Verdict("accuracy-scheme", _points(above), outcome(above)),
        Verdict("accuracy-overfit", _points(beyond), outcome(beyond)),
    ]
    text += "![Accuracy against the deadline](accuracy-latency.png)\n"
    return Page(text=text, figures={"accuracy-latency.png": figure}, verdicts=verdicts)


def _accuracy(result: Result | None) -> float | None:
    return None if result is None else 100.0 * result.accuracy


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _runs(points_of: Callable[[Scale, str], Points]) -> Callable[[Scale], list[RunConfig]]:
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


LATENCY = Experiment(
    "rounds-latency", "Rounds to converge against latency", "Fig. 3", _runs(latency_points), make_latency
)
BANDWIDTH = Experiment(
    "rounds-bandwidth", "Rounds to converge against bandwidth", "Fig. 4", _runs(bandwidth_points), make_bandwidth
)
ACCURACY = Experiment("accuracy-latency", "Accuracy against latency", "Fig. 5", _runs(latency_points), make_accuracy)
