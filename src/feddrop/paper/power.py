"""Beyond the paper: accuracy against the energy budget, with power and clock at their highest and with both chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from feddrop.config import RunConfig
from feddrop.paper.cells import played, radio
from feddrop.paper.drawing import legend, not_run, panels
from feddrop.paper.energy import configs as where_energy_binds
from feddrop.paper.experiment import Experiment, Lookup, Page, by_seed, markdown_table, mean_of, percents, spread
from feddrop.paper.resources import with_seeds
from feddrop.paper.scales import Scale
from feddrop.paper.settings import of_runs
from feddrop.paper.verdicts import Point, matched, verdict

CONTROLS = {
    "paper": ("the paper's: rate and share", ("rate", "share")),
    "joint": ("rate, share, power and clock", ("rate", "share", "power", "cpu")),
}
BUDGETS_J = (700.0, 1500.0)
"""Joules a device and round: at 700 energy holds every device at full speed, at 1500 about half of them."""


def configs(scale: Scale) -> dict[tuple[float, str], RunConfig]:
    """Return the run of every budget and scheme, with the first seed; the cell is that of the experiment ``energy``."""
    base = where_energy_binds(scale)["exact"]
    cell = base.radio or radio(scale.settings["underfitting"])
    return {
        (budget, name): replace(base, radio=replace(cell, energy_budget_j=budget, control=control))
        for budget in BUDGETS_J
        for name, (_, control) in CONTROLS.items()
    }


def runs(scale: Scale) -> list[RunConfig]:
    """Every budget and scheme with every seed, the budget at which most is at stake first."""
    chosen = configs(scale)
    return [
        config
        for budget in BUDGETS_J
        for config in with_seeds([chosen[budget, name] for name in CONTROLS], scale.seeds)
    ]


EXPERIMENT = Experiment("power", "Power and clock chosen too", "beyond it", runs, lambda *_: Page(text=""))
