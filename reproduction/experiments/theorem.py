"""Theorem 1 as stated: the learning rate is 1/(3·√T·L), and the mean of ‖g‖² over T rounds is bounded.

The iteration is the one that the paper analyses: in every round each device takes one gradient step on its data with
its own mask, and the server averages the steps. LeNet on few images, so that ‖g‖² over all data has no batch noise.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from feddrop import data, models
from feddrop.compare import Comparison, matched
from feddrop.config import RunConfig
from feddrop.seeds import derive, permutation
from feddrop.theory import Constants, curvature, learning_rate, slope, theorem1
from feddrop.theory import Point as Place
from feddrop.theory.variance import Masks
from reproduction.framework.experiment import Experiment, Lookup, Page, markdown_table, spread
from reproduction.framework.scales import DEVICES, Scale
from reproduction.framework.verdicts import Verdict, verdict

ROUNDS = {"paper": (10, 40, 160), "cpu": (10, 40, 160), "smoke": (2, 4)}
RATES = (0.0, 0.2, 0.4)
IMAGES = 200
"""Images of all devices together."""


def runs(_: Scale) -> list[RunConfig]:
    """Return no runs: those made here are not stored."""
    return []


def mean_norm(places: list[Place], every: Place, rate: float, rounds: int, lr: float, seed: int) -> float:
    """Return the mean of ‖g(w)‖² over the rounds of one run."""
    masks, w, total = Masks(every, "weight"), every.w.clone(), 0.0
    for t in range(rounds):
        total += float(every.gradient(w).square().sum())
        step = torch.zeros_like(w)
        for device, place in enumerate(places):
            m = masks.draw(derive(seed, t, device), rate)
            step += m * place.gradient(w * m) / len(places)
        w = w - lr * step
    return total / rounds


def measure(scale: Scale) -> dict[str, Any]:
    """Train with the learning rate of the theorem, for every T, rate and seed."""
    dataset = data.load_dataset(scale.settings["underfitting"].data)
    found: dict[str, Any] = {"data": dataset.name, "rounds": list(ROUNDS[scale.name]), "seeds": []}
    for seed in scale.seeds:
        chosen = torch.from_numpy(permutation(derive(seed, "theorem"), len(dataset.train_y))[:IMAGES])
        model = models.build("lenet", dataset, seed=seed)
        x, y = dataset.train_x[chosen], dataset.train_y[chosen]
        parts = [slice(k * len(x) // DEVICES, (k + 1) * len(x) // DEVICES) for k in range(DEVICES)]
        every, places = Place(model, x, y), [Place(model, x[part], y[part]) for part in parts]
        bent = curvature(every, seed=derive(seed, "curvature"))
        constants = Constants(
            smoothness=bent.smoothness.value,
            hessian_norm=bent.frobenius_sq.value**0.5,
            weight_norm=float(every.w.norm()),
            noise=slope(every).noise.value,
        )
        sizes, loss = [len(x) // DEVICES] * DEVICES, float(every.value(every.w))
        mine: dict[str, Any] = {"L": constants.smoothness, "loss": loss, "norm_sq": {}, "bound": {}}
        for rate in RATES:
            mine["norm_sq"][f"{rate:g}"], mine["bound"][f"{rate:g}"] = [], []
            for rounds in found["rounds"]:
                lr = float(learning_rate(rounds, constants))
                value = mean_norm(places, every, rate, rounds, lr, derive(seed, "steps", repr(rate)))
                bound = theorem1(rate, constants, samples=sizes, rounds=rounds, loss_gap=loss)
                mine["norm_sq"][f"{rate:g}"].append(float(f"{value:.6g}"))
                mine["bound"][f"{rate:g}"].append(float(f"{float(bound):.6g}"))
        found["seeds"].append(mine)
    return found


def make(_: Scale, __: Lookup, facts: dict[str, Any]) -> Page:
    """Tabulate the mean of ‖g‖² by number of rounds and rate, and judge the theorem."""
    rounds = facts["rounds"]
    rows = [
        [
            f"{rate:g}",
            *(spread(_by_seed(facts, rate, i), 4) for i in range(len(rounds))),
            f"{_ratio(facts, rate):,.0f}",
        ]
        for rate in RATES
    ]
    text = (
        f"*Settings: LeNet from its initialisation, {facts['data']}, {IMAGES} images on {DEVICES} devices; in every "
        "round one gradient step per device on its images, weights of all layers dropped, updates averaged; learning "
        "rate 1/(3·√T·L) with L measured at the start, "
        f"{', '.join(format(one['L'], '.3g') for one in facts['seeds'])} for the seeds.*\n\n"
        "Mean of ‖g‖² over T rounds; mean over seeds ± its standard error (seeds). In the last column, the smallest "
        "ratio of the theorem's bound to what was measured.\n\n"
        + markdown_table(["γ", *(f"T = {count}" for count in rounds), "bound / measured"], rows)
        + "\n"
    )
    return Page(text=text, verdicts=_verdicts(facts))


def _by_seed(facts: dict[str, Any], rate: float, i: int) -> list[float | None]:
    return [one["norm_sq"][f"{rate:g}"][i] for one in facts["seeds"]]


def _ratio(facts: dict[str, Any], rate: float) -> float:
    """Return the smallest ratio of bound to measurement."""
    key = f"{rate:g}"
    return float(min(np.min(np.divide(one["bound"][key], one["norm_sq"][key])) for one in facts["seeds"]))


def _verdicts(facts: dict[str, Any]) -> list[Verdict]:
    rounds = facts["rounds"]
    falls = [
        Comparison(
            f"rate {rate:g}: T = {rounds[i]} against {rounds[j]}",
            matched(_by_seed(facts, rate, i), _by_seed(facts, rate, j)),
            unit="of ‖g‖²",
            digits=4,
            pool=f"{rate:g}, {i}",
        )
        for rate in RATES
        for i, j in pairwise(range(len(rounds)))
    ]
    rises = [
        Comparison(
            f"T = {count}: rate {high:g} against {low:g}",
            matched(_by_seed(facts, high, i), _by_seed(facts, low, i)),
            unit="of ‖g‖²",
            digits=4,
            pool=f"{high:g}, {i}",
        )
        for i, count in enumerate(rounds)
        for low, high in pairwise(RATES)
    ]
    within = [
        Comparison(f"rate {rate:g}, T = {count}", certain=all(row <= bound for row, bound in _pairs(facts, rate, i)))
        for rate in RATES
        for i, count in enumerate(rounds)
    ]
    loose = f"by a factor of at least {min(_ratio(facts, rate) for rate in RATES):,.0f}; L, A and G measured at w⁰"
    return [
        verdict("theorem-bound", within, loose),
        verdict("theorem-rounds", falls),
        verdict("theorem-rate", rises),
    ]


def _pairs(facts: dict[str, Any], rate: float, i: int) -> list[tuple[float, float]]:
    return [(one["norm_sq"][f"{rate:g}"][i], one["bound"][f"{rate:g}"][i]) for one in facts["seeds"]]


EXPERIMENT = Experiment("theorem", "Theorem 1 as stated", "Theorem 1", runs, make, measure)
