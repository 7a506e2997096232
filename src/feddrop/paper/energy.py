"""Beyond the figures: a cell where energy binds and computing takes time, under Algorithm 1 and its rivals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from feddrop.config import RunConfig
from feddrop.paper.cells import deadline_for, radio, samples_of, size_of
from feddrop.paper.experiment import Experiment, Lookup, Page, by_seed, markdown_table, percents, spread
from feddrop.paper.resources import with_seeds
from feddrop.paper.scales import Scale
from feddrop.paper.settings import of_runs
from feddrop.paper.store import Result
from feddrop.paper.verdicts import Point, Verdict, matched, verdict

SCHEMES = {
    "exact": "proposed (exact)",
    "primal-dual": "Algorithm 1",
    "equal": "equal shares",
    "random": "bandwidth-aware",
}
FLOP_PER_CYCLE, BUDGET_J = 1.0, 1500.0
"""At one FLOP a cycle computing takes about a fifth of the deadline; this budget holds about half of the devices."""
SAME = 1e-3
"""Share by which two objectives may differ and still be the same."""


def configs(scale: Scale) -> dict[str, RunConfig]:
    """Return the run of every scheme, with the first seed."""
    setting = scale.settings["underfitting"]
    found = {}
    for scheme in SCHEMES:
        cell = radio(setting, deadline_s=deadline_for(setting, scale.target_rates[-1]), scheme=scheme)
        cell = replace(cell, flop_per_cycle=FLOP_PER_CYCLE, energy_budget_j=BUDGET_J)
        found[scheme] = setting.run(figure=True, radio=cell)
    return found


def runs(scale: Scale) -> list[RunConfig]:
    """Every scheme with every seed."""
    return with_seeds(list(configs(scale).values()), scale.seeds)


def make(scale: Scale, find: Lookup) -> Page:
    """Tabulate accuracy, rates and objective, and how often each constraint held a device."""
    chosen = configs(scale)
    found = {scheme: by_seed(find, config, scale.seeds) for scheme, config in chosen.items()}
    rows = []
    for scheme, results in found.items():
        known = [result for result in results if result is not None]
        rows.append(
            [
                SCHEMES[scheme],
                spread(percents(results)) or "not run",
                *(_mean(known, name, digits) for name, digits in (("mean_rate", 3), ("objective", 4))),
                *(_mean(known, name, 2) for name in ("held_deadline", "held_energy")),
            ]
        )
    config = chosen["exact"]
    at = f"; T₀ = {config.radio.deadline_s:g} s, B = {config.radio.bandwidth_hz / 1e6:g} MHz" if config.radio else ""
    header = ["", "test accuracy, %", "mean rate", "Σ w/(1-γ)", "held by the deadline", "held by energy"]
    text = of_runs("underfitting", config, list(SCHEMES), at)
    text += (
        "Mean over seeds ± its standard error (seeds). *Held by*: share of devices and rounds in which the constraint "
        f"is tight. To train the whole network a device computes for {_computing(scale, config)}.\n\n"
        + markdown_table(header, rows)
        + "\n"
    )
    return Page(text=text, verdicts=_verdicts(found))


def _computing(scale: Scale, config: RunConfig) -> str:
    """Say how long computing takes without dropout."""
    cell = config.radio
    if cell is None:
        return ""
    work = 3.0 * size_of(scale.settings["underfitting"])[1] * samples_of(scale.settings["underfitting"])
    low, high = (work / cell.flop_per_cycle / hz for hz in reversed(cell.cpu_hz))
    return f"{low:.2g} to {high:.2g} s"


def _mean(results: list[Result], name: str, digits: int) -> str:
    values = [result.values(name) for result in results]
    if not values or all(np.isnan(value).all() for value in values):
        return ""
    return f"{np.mean([np.nanmean(value) for value in values]):.{digits}f}"


def _verdicts(found: dict[str, list[Result | None]]) -> list[Verdict]:
    ends = {scheme: percents(results) for scheme, results in found.items()}
    gaps = []
    for exact, paper in zip(found["exact"], found["primal-dual"], strict=True):
        if exact is not None and paper is not None:
            gaps.append(float(np.max(np.abs(paper.values("objective") / exact.values("objective") - 1.0))))
    same = Point(
        at="Σ w/(1-γ) of Algorithm 1 against the optimum, round by round", certain=max(gaps) <= SAME if gaps else None
    )
    note = f"largest difference in a round {max(gaps):.1e} of the optimum, {len(gaps)} seeds" if gaps else ""
    above = [
        Point(at=f"against {SCHEMES[other]}", differences=matched(ends["exact"], ends[other]), pool="accuracy")
        for other in ("random", "equal")
    ]
    return [verdict("algorithm-optimal", [same], note), verdict("energy-scheme", above)]


EXPERIMENT = Experiment("energy", "Where energy binds and computing takes time", "C2, Sec. III", runs, make)
