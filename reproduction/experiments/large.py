"""Footnote 1: convergence is still observed at rates far above the small ones that the analysis assumes."""

from __future__ import annotations

import numpy as np

from feddrop.comparison import Comparison
from feddrop.config import RunConfig
from reproduction.experiments import explain
from reproduction.experiments.objective import one_rate
from reproduction.experiments.resources import with_seeds
from reproduction.framework.experiment import Experiment, Lookup, Page, by_seed, markdown_table, spread
from reproduction.framework.scales import Scale
from reproduction.framework.store import LAST
from reproduction.framework.verdicts import verdict

LARGE = {"underfitting": 0.5, "overfitting": 0.4}
"""The rate from which on a rate is large: above the paper's table for LeNet, at its end for AlexNet. With all layers
dropped, as in the paper, AlexNet is judged at a smaller one."""
TITLES = {"underfitting": "LeNet, all layers", "overfitting": "AlexNet, fully-connected layers"}


def configs(scale: Scale) -> dict[str, RunConfig]:
    """Return the runs with one large rate for all devices, by title, with the first seed."""
    found = {
        f"{title}, rate {config.rate:g}": config
        for scenario, title in TITLES.items()
        for config in one_rate(scale, scenario)
        if isinstance(config.rate, float) and config.rate >= LARGE[scenario]
    }
    return found | {f"AlexNet, all layers, rate {explain.RATE:g}": explain.all_layers(scale)}


def runs(scale: Scale) -> list[RunConfig]:
    """Return all runs with every seed; they belong to other sections too."""
    return with_seeds(list(configs(scale).values()), scale.seeds)


def make(scale: Scale, find: Lookup) -> Page:
    """Compare accuracy and test loss at the start and at the end of the runs."""
    rows, points = [], []
    for title, config in configs(scale).items():
        found = [result for result in by_seed(find, config, scale.seeds) if result is not None]
        ends = [[_ends(result.values(name)) for result in found] for name in ("test_accuracy", "test_loss")]
        cells = [
            spread([row[i] * scale_ for row in pairs], 2)
            for pairs, scale_ in zip(ends, (100.0, 1.0), strict=True)
            for i in range(2)
        ]
        rows.append([title, *cells] if found else [title, "not run", "", "", ""])
        points.append(Comparison(title, tuple(100.0 * (last - first) for first, last in ends[0]), pool=title))
    note = f"converging means that accuracy is higher in the last {LAST} rounds than in the first {LAST}"
    text = (
        f"Means over the first and the last {LAST} rounds, and over seeds ± standard error (seeds); settings of the "
        "figures, one rate for all devices. Chance is 1 %.\n\n"
        + markdown_table(["", "accuracy, first, %", "accuracy, last, %", "test loss, first", "test loss, last"], rows)
        + "\n"
    )
    return Page(text=text, verdicts=[verdict("large-rates", points, note)])


def _ends(values: np.ndarray) -> tuple[float, float]:
    return float(np.mean(values[:LAST])), float(np.mean(values[-LAST:]))


EXPERIMENT = Experiment("large-rates", "Large dropout rates", "Footnote 1", runs, make)
