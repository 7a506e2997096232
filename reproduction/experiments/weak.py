"""Beyond the figures: devices too weak to take part without dropout."""

from __future__ import annotations

from dataclasses import replace

from feddrop.compare import Comparison, matched
from feddrop.config import RunConfig
from reproduction.experiments.cells import deadline_for, radio
from reproduction.experiments.resources import with_seeds
from reproduction.framework.experiment import Experiment, Lookup, Page, by_seed, ended, markdown_table, percents
from reproduction.framework.scales import DEVICES, Scale
from reproduction.framework.settings import of_runs
from reproduction.framework.verdicts import verdict

WEAK, PATH_LOSS, WEAK_LOSS = 3, 1e-3, 1e-4
CAP = 0.5
"""A smaller θ: a device that would have to drop more is left out of the round."""
WITHOUT = "without dropout"


def configs(scale: Scale) -> dict[str, RunConfig]:
    """Return every run by name, with the first seed; the last is without dropout."""
    setting = scale.settings["underfitting"]
    losses = (PATH_LOSS,) * (DEVICES - WEAK) + (WEAK_LOSS,) * WEAK
    usual, fixed = (
        replace(
            radio(setting, deadline_s=deadline_for(setting, scale.target_rates[-1]), scheme=scheme), path_loss=losses
        )
        for scheme in ("exact", "fixed")
    )
    capped = replace(usual, max_rate=CAP)
    cells = {f"with dropout, θ = {cell.max_rate:g}": cell for cell in (usual, capped)} | {WITHOUT: fixed}
    return {name: setting.run(figure=True, partition="dirichlet", radio=cell) for name, cell in cells.items()}


def runs(scale: Scale) -> list[RunConfig]:
    """Return all runs with every seed."""
    return with_seeds(list(configs(scale).values()), scale.seeds)


def make(scale: Scale, find: Lookup) -> Page:
    """Compare learning from all devices through subnets with learning from the strong ones alone."""
    chosen = configs(scale)
    found = {name: by_seed(find, config, scale.seeds) for name, config in chosen.items()}
    rows = [[name, *ended(results)] for name, results in found.items()]
    config = next(iter(chosen.values()))
    at = f"; T₀ = {config.radio.deadline_s:g} s, B = {config.radio.bandwidth_hz / 1e6:g} MHz" if config.radio else ""
    text = of_runs("underfitting, non-IID", config, ["exact", "fixed"], at)
    text += (
        f"{WEAK} of {DEVICES} devices have a channel 10 dB worse; the data are non-IID. Devices that cannot meet the "
        "deadline at θ, or at rate 0 without dropout, are left out. Mean over seeds ± its standard error (seeds).\n\n"
        + markdown_table(["", "test accuracy, %", "mean rate", "devices per round"], rows)
        + "\n"
    )
    ends = {name: percents(results) for name, results in found.items()}
    without = ends.pop(WITHOUT)
    points = [
        Comparison(f"{name}, against leaving out", differences=matched(mine, without)) for name, mine in ends.items()
    ]
    return Page(text=text, verdicts=[verdict("weak-devices", points)])


EXPERIMENT = Experiment("weak-devices", "Devices that take part only thanks to dropout", "Sec. III", runs, make)
