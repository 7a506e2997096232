"""Beyond the figures: devices too weak to take part without dropout, whose data count only with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from feddrop.config import RunConfig
from feddrop.paper.cells import deadline_for, radio
from feddrop.paper.experiment import Experiment, Lookup, Page, by_seed, markdown_table, percents, spread
from feddrop.paper.resources import with_seeds
from feddrop.paper.scales import DEVICES, Scale
from feddrop.paper.settings import of_runs
from feddrop.paper.verdicts import Point, matched, verdict

SCHEMES = {"exact": "with dropout", "fixed": "without dropout"}
WEAK, PATH_LOSS, WEAK_LOSS = 3, 1e-3, 1e-4


def configs(scale: Scale) -> dict[str, RunConfig]:
    """Return both runs, with the first seed."""
    setting = scale.settings["underfitting"]
    losses = (PATH_LOSS,) * (DEVICES - WEAK) + (WEAK_LOSS,) * WEAK
    found = {}
    for scheme in SCHEMES:
        cell = radio(setting, deadline_s=deadline_for(setting, scale.target_rates[-1]), scheme=scheme)
        found[scheme] = setting.run(figure=True, partition="dirichlet", radio=replace(cell, path_loss=losses))
    return found


def runs(scale: Scale) -> list[RunConfig]:
    """Both with every seed."""
    return with_seeds(list(configs(scale).values()), scale.seeds)


def make(scale: Scale, find: Lookup) -> Page:
    """Compare learning from all devices through subnets with learning from the strong ones alone."""
    chosen = configs(scale)
    found = {scheme: by_seed(find, config, scale.seeds) for scheme, config in chosen.items()}
    rows = []
    for scheme, results in found.items():
        known = [result for result in results if result is not None]
        rate, devices = (
            f"{np.mean([np.nanmean(r.values(name)) for r in known]):.{digits}f}" if known else ""
            for name, digits in (("mean_rate", 2), ("devices", 1))
        )
        rows.append([SCHEMES[scheme], spread(percents(results)) or "not run", rate, devices])
    config = chosen["exact"]
    at = f"; T₀ = {config.radio.deadline_s:g} s, B = {config.radio.bandwidth_hz / 1e6:g} MHz" if config.radio else ""
    text = of_runs("underfitting, non-IID", config, list(SCHEMES), at)
    text += (
        f"{WEAK} of {DEVICES} devices have a channel 10 dB worse, and data of their own; who cannot meet the deadline "
        "is left out. Mean over seeds ± its standard error (seeds).\n\n"
        + markdown_table(["", "test accuracy, %", "mean rate", "devices a round"], rows)
        + "\n"
    )
    ends = {scheme: percents(results) for scheme, results in found.items()}
    point = Point(at="with dropout against leaving out", differences=matched(ends["exact"], ends["fixed"]))
    return Page(text=text, verdicts=[verdict("weak-devices", [point])])


EXPERIMENT = Experiment("weak-devices", "Devices that only take part thanks to dropout", "Sec. III", runs, make)
