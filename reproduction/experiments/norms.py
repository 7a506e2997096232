"""Beyond Theorem 1: does ‖g‖², the squared gradient over all data, fall during a run at a constant learning rate?

It is measured on the global network between rounds, over all training images, so that it has no batch noise. The runs
are small and made here, because a stored run has only its last network.
"""

from __future__ import annotations

import copy
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feddrop.comparison import Comparison, matched
from feddrop.config import RunConfig
from reproduction.framework.drawing import legend, panels
from reproduction.framework.experiment import Experiment, Lookup, Page, markdown_table, spread
from reproduction.framework.scales import Scale
from reproduction.framework.settings import of_runs
from reproduction.framework.verdicts import Verdict, verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES = (0.0, 0.2, 0.4)
IMAGES, ROUNDS, EVERY = 2000, 30, 3
"""Largest number of images and rounds; ‖g‖² is measured before the first round and after every third."""


def runs(_: Scale) -> list[RunConfig]:
    """Return no runs: those made here are not stored."""
    return []


def config_of(scale: Scale, rate: float, seed: int) -> RunConfig:
    """Return a run of the figures with fewer rounds and images."""
    config = scale.settings["underfitting"].run(figure=True, rate=rate, seed=seed)
    rounds = min(ROUNDS, max(EVERY, config.rounds))
    limit = min(IMAGES, config.data.train_limit or IMAGES)
    return replace(config, rounds=rounds, eval_every=rounds, data=replace(config.data, train_limit=limit))


def along(config: RunConfig) -> list[float]:
    """Train, and return ‖g‖² of the global network before the first round and after every third."""
    from feddrop.simulation.run import Run
    from feddrop.subnets.parameters import load_into
    from feddrop.theory import EstimatePoint as Place

    with tempfile.TemporaryDirectory() as folder:
        run = Run(config, Path(folder) / "run")
        data, model = run.prepared.dataset, copy.deepcopy(run.prepared.model)
        (images,) = data.train_x if isinstance(data.train_x, tuple) else (data.train_x,)

        def norm() -> float:
            load_into(model, run.params)
            place = Place(model, images, data.train_y)
            return float(f"{float(place.gradient().square().sum()):.6g}")

        found = [norm()]
        for record in run:
            if record.round % EVERY == 0:
                found.append(norm())
    return found


def measure(scale: Scale) -> dict[str, Any]:
    """Measure ‖g‖² during training at every rate, with every seed."""
    return {f"{rate:g}": [along(config_of(scale, rate, seed)) for seed in scale.seeds] for rate in RATES}


def make(scale: Scale, _: Lookup, facts: dict[str, Any]) -> Page:
    """Tabulate and draw ‖g‖² during training."""
    config = config_of(scale, RATES[0], scale.seeds[0])
    halves = {rate: [_halves(row) for row in facts[f"{rate:g}"]] for rate in RATES}
    rows = [
        [f"{rate:g}", *(spread([row[i] for row in halves[rate]], 4) for i in range(2)), spread(_means(facts, rate), 4)]
        for rate in RATES
    ]
    text = of_runs("underfitting", config) + (
        f"‖g‖² of the global network over all {config.data.train_limit:,} training images, before the first round and "
        f"after every third; means over the first and the second half of the {config.rounds} rounds, and over all; "
        "mean over seeds ± its standard error (seeds). The figure shows the mean and range over seeds.\n\n"
        + markdown_table(["γ", "first half", "second half", "all rounds"], rows)
        + "\n\n![The gradient during training](gradient-norm.png)\n"
    )
    return Page(text=text, figures={"gradient-norm.png": _draw(facts)}, verdicts=_verdicts(facts, halves))


def _halves(row: list[float]) -> tuple[float, float]:
    middle = len(row) // 2
    return float(np.mean(row[:middle])), float(np.mean(row[middle:]))


def _means(facts: dict[str, Any], rate: float) -> list[float | None]:
    return [float(np.mean(row)) for row in facts[f"{rate:g}"]]


def _verdicts(facts: dict[str, Any], halves: dict[float, list[tuple[float, float]]]) -> list[Verdict]:
    falls = [
        Comparison(
            label=f"rate {rate:g}: first half of the rounds against the second",
            differences=tuple(first - second for first, second in halves[rate]),
            unit="of ‖g‖²",
            digits=4,
            pool=f"{rate:g}",
        )
        for rate in RATES
    ]
    larger = [
        Comparison(
            label=f"mean over the rounds, rate {high:g} against {low:g}",
            differences=matched(_means(facts, high), _means(facts, low)),
            unit="of ‖g‖²",
            digits=4,
        )
        for low, high in pairwise(RATES)
    ]
    note = "the theorem bounds a mean over the run, with a learning rate that depends on its length; not its course"
    return [verdict("norm-falls", falls, note), verdict("norm-rate", larger, note)]


def _draw(facts: dict[str, Any]) -> Figure:
    from matplotlib.ticker import MaxNLocator

    from feddrop.report.style import SERIES

    figure, axes = panels(["LeNet: ‖g‖²", "LeNet: running mean of ‖g‖², which the theorem bounds"])
    for rate, colour in zip(RATES, SERIES, strict=False):
        rows = np.array(facts[f"{rate:g}"])
        rounds = EVERY * np.arange(rows.shape[1])
        so_far = np.cumsum(rows, axis=1) / np.arange(1, rows.shape[1] + 1)
        for panel, lines in zip(axes, (rows, so_far), strict=True):
            panel.plot(rounds, lines.mean(axis=0), color=colour, marker="o", markersize=3, label=f"γ = {rate:g}")
            panel.fill_between(rounds, lines.min(axis=0), lines.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    for panel in axes:
        panel.set_xlabel("round")
        panel.set_ylim(bottom=0)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(axes[0])
    return figure


EXPERIMENT = Experiment("gradient-norm", "The gradient during training", "Theorem 1", runs, make, measure)
