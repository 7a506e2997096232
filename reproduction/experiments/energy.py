"""Beyond the figures: a cell in which energy binds and computing takes time, for Algorithm 1 and its rivals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from feddrop.comparison import Comparison, matched
from feddrop.config import RunConfig
from reproduction.experiments.cells import deadline_for, played, radio, samples_of, size_of
from reproduction.experiments.resources import with_seeds
from reproduction.framework.experiment import Experiment, Lookup, Page, by_seed, markdown_table, percents, spread
from reproduction.framework.scales import Scale
from reproduction.framework.settings import of_runs
from reproduction.framework.store import Result
from reproduction.framework.verdicts import Verdict, verdict

SCHEMES = {
    "exact": "proposed (exact)",
    "primal-dual": "Algorithm 1",
    "equal": "equal shares",
    "random": "bandwidth-aware",
}
FLOP_PER_CYCLE, BUDGET_J = 1.0, 1500.0
"""At one FLOP per cycle, computing takes about a fifth of the deadline; the budget limits about half of the devices."""
COLUMNS = {"rate": 3, "objective": 4, "held_deadline": 2, "held_energy": 2}
"""Results of the allocator, with the decimal places to show."""
SAME = 1e-3
"""Relative difference below which two objectives are equal."""


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
    """Return every scheme with every seed."""
    return with_seeds(list(configs(scale).values()), scale.seeds)


def measure(scale: Scale) -> dict[str, Any]:
    """Allocate all rounds with every scheme. This needs no training: no scheme depends on the state of the network."""
    setting = scale.settings["underfitting"]
    found: dict[str, Any] = {}
    for scheme, config in configs(scale).items():
        per_seed = [played(setting, config.radio or radio(setting), seed, config.rounds) for seed in scale.seeds]
        found[scheme] = {name: [float(f"{one[name]:.6g}") for one in per_seed] for name in COLUMNS}
        found[scheme]["objectives"] = [[float(f"{value:.8g}") for value in one["objectives"]] for one in per_seed]
    return found


def make(scale: Scale, find: Lookup, facts: dict[str, Any]) -> Page:
    """Tabulate accuracy, rates, objective, and how often each constraint was tight."""
    chosen = configs(scale)
    found = {scheme: by_seed(find, config, scale.seeds) for scheme, config in chosen.items()}
    rows = [
        [
            title,
            spread(percents(found[scheme])) or "not run",
            *(f"{np.mean(facts[scheme][name]):.{digits}f}" for name, digits in COLUMNS.items()),
        ]
        for scheme, title in SCHEMES.items()
    ]
    config = chosen["exact"]
    at = f"; T₀ = {config.radio.deadline_s:g} s, B = {config.radio.bandwidth_hz / 1e6:g} MHz" if config.radio else ""
    header = ["", "test accuracy, %", "mean rate", "Σ w/(1-γ)", "limited by the deadline", "limited by energy"]
    text = of_runs("underfitting", config, list(SCHEMES), at)
    text += (
        "Accuracy: mean over seeds ± its standard error (seeds). The other columns come from the allocator alone, "
        f"means over the rounds of {len(scale.seeds)} seeds. *Limited by*: share of devices, over all rounds, whose "
        "constraint is tight; at rate 0 a device may be limited by neither. To train the full network a device "
        "computes for "
        f"{_computing(scale, config)}.\n\n" + markdown_table(header, rows) + "\n"
    )
    return Page(text=text, verdicts=_verdicts(found, facts))


def _computing(scale: Scale, config: RunConfig) -> str:
    """Format how long computing takes without dropout."""
    cell = config.radio
    if cell is None:
        return ""
    work = 3.0 * size_of(scale.settings["underfitting"])[1] * samples_of(scale.settings["underfitting"])
    low, high = (work / cell.flop_per_cycle / hz for hz in reversed(cell.cpu_hz))
    return f"{low:.2g} to {high:.2g} s"


def _verdicts(found: dict[str, list[Result | None]], facts: dict[str, Any]) -> list[Verdict]:
    ends = {scheme: percents(results) for scheme, results in found.items()}
    exact, paper = (np.array(facts[scheme]["objectives"]) for scheme in ("exact", "primal-dual"))
    worst = float(np.max(np.abs(paper / exact - 1.0)))
    same = Comparison("Σ w/(1-γ) of Algorithm 1 against the optimum, round by round", certain=worst <= SAME)
    note = (
        f"largest difference in {exact.size} rounds: {worst:.1e} of the optimum; the paper gives neither step sizes "
        "nor a stopping rule; ours is a bound on the remaining gain"
    )
    above = [
        Comparison(f"against {SCHEMES[other]}", differences=matched(ends["exact"], ends[other]), pool=other)
        for other in ("random", "equal")
    ]
    return [
        verdict("algorithm-optimal", [same], note, "with our step sizes, clipping and stopping rule"),
        verdict("energy-scheme", above),
    ]


EXPERIMENT = Experiment("energy", "Energy limits and computing time", "C2, Sec. III", runs, make, measure)
