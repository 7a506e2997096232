"""Beyond the figures: devices too weak to take part without dropout."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from feddrop.comparison import Comparison, matched
from feddrop.config import RunConfig
from reproduction.experiments.cells import deadline_for, radio
from reproduction.experiments.resources import with_seeds
from reproduction.framework.experiment import Experiment, Lookup, Page, by_seed, ended, markdown_table, percents
from reproduction.framework.scales import DEVICES, Scale
from reproduction.framework.settings import of_runs
from reproduction.framework.store import LAST, Result
from reproduction.framework.traced import Traced
from reproduction.framework.verdicts import verdict

WEAK, PATH_LOSS, WEAK_LOSS = 3, 1e-3, 1e-4
CAP = 0.5
"""A smaller θ: a device that would have to drop more is left out of the round."""
WITHOUT, CEILING = "without dropout, weak devices left out", "without dropout or cell, all devices (ceiling)"
SHORT, PLATEAU = "as in the figures", "to a plateau"
PARTITIONS = {"dirichlet": "non-IID", "iid": "IID"}


class Case(NamedTuple):
    """A partition of the data, and how long the runs are."""

    partition: str
    length: str

    @property
    def title(self) -> str:
        """The title of the case."""
        return f"{PARTITIONS[self.partition]}, {self.length}"


def cases(scale: Scale) -> dict[Case, dict[str, RunConfig]]:
    """Return the runs of every case by name, with the first seed.

    Runs to a plateau have twice as many rounds and the local SGD of the table, whose learning rate falls to zero.
    """
    setting = scale.settings["underfitting"]
    losses = (PATH_LOSS,) * (DEVICES - WEAK) + (WEAK_LOSS,) * WEAK
    usual, fixed = (
        replace(
            radio(setting, deadline_s=deadline_for(setting, scale.target_rates[-1]), scheme=scheme), path_loss=losses
        )
        for scheme in ("exact", "fixed")
    )
    capped = replace(usual, max_rate=CAP)
    found: dict[Case, dict[str, RunConfig]] = {}
    for partition, length in (("dirichlet", SHORT), *((partition, PLATEAU) for partition in PARTITIONS)):
        cells = [usual, capped] if length == SHORT else [usual]
        named = {f"with dropout, θ = {cell.max_rate:g}": cell for cell in cells} | {WITHOUT: fixed}
        runs = {name: setting.run(figure=True, partition=partition, radio=cell) for name, cell in named.items()}
        if length == PLATEAU:
            runs |= {CEILING: setting.run(figure=True, partition=partition)}
            runs = {n: replace(run, rounds=2 * run.rounds, train=setting.train) for n, run in runs.items()}
        found[Case(partition, length)] = runs
    return found


def runs(scale: Scale) -> list[RunConfig]:
    """Return all runs with every seed, those that decide first."""
    return [run for by in cases(scale).values() for run in with_seeds(list(by.values()), scale.seeds)]


def make(scale: Scale, find: Lookup) -> Page:
    """Compare learning from all devices through subnets with learning from the strong ones alone."""
    chosen = cases(scale)
    text = (
        f"{WEAK} of {DEVICES} devices have a channel 10 dB worse. Devices that cannot meet the deadline at θ, or at "
        "rate 0 without dropout, are left out. Runs as in the figures have a constant learning rate and are still "
        "rising; runs to a plateau have twice as many rounds and a learning rate that falls to zero. Mean over seeds ± "
        "its standard error (seeds). *Rise*: accuracy of the last five rounds minus that of the five before.\n\n"
    )
    part: list[Comparison] = []
    gains: list[Comparison] = []
    for case, configs in chosen.items():
        found = {name: by_seed(find, config, scale.seeds) for name, config in configs.items()}
        first = next(iter(configs.values()))
        at = f"; T₀ = {first.radio.deadline_s:g} s, B = {first.radio.bandwidth_hz / 1e6:g} MHz" if first.radio else ""
        text += of_runs(f"underfitting, {case.title}", first, ["exact", "fixed"], at)
        rows = [[name, *ended(results), _rise(results)] for name, results in found.items()]
        text += f"**{case.title}**\n\n"
        text += markdown_table(["", "test accuracy, %", "mean rate", "devices per round", "rise"], rows) + "\n\n"
        without = found[WITHOUT]
        for name in [name for name in found if name not in (WITHOUT, CEILING)]:
            label = f"{case.title}: {name}, against leaving out"
            counts = matched(_devices(found[name]), _devices(without))
            part.append(Comparison(label, counts, unit="devices per round", pool=case.title))
            if case.length == PLATEAU:
                gains.append(Comparison(label, matched(percents(found[name]), percents(without)), pool=case.title))
    taken = "so it must be, as the allocator leaves out only devices that cannot meet the deadline at θ"
    note = (
        "the paper says that they contribute data and computing, not that this shows in the accuracy. Runs as in the "
        "figures, still rising, are shown but not judged"
    )
    return Page(text=text, verdicts=[verdict("weak-take-part", part, taken), verdict("weak-devices", gains, note)])


def _devices(results: list[Result | None]) -> list[float | None]:
    return [
        None if result is None else Traced(float(result.values("devices").mean()), [result.key]) for result in results
    ]


def _rise(results: list[Result | None]) -> str:
    """Format how much accuracy still rises at the end, in percentage points."""
    known = [result.values("test_accuracy") for result in results if result is not None]
    rises = [100.0 * float(np.mean(row[-LAST:]) - np.mean(row[-2 * LAST : -LAST])) for row in known if len(row) > LAST]
    return f"{np.mean(rises):+.2f}" if rises else ""


EXPERIMENT = Experiment("weak-devices", "Devices that take part only thanks to dropout", "Sec. III", runs, make)
