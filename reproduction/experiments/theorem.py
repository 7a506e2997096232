"""Theorem 1 as stated: the learning rate is 1/(3·√T·L), and the mean of ‖g‖² over T rounds is bounded.

The iteration is the one that the paper analyses: in every round each device takes one gradient step on its data with
its own mask, and the server averages the steps. Few images, so that ‖g‖² over all data has no batch noise. The theorem
is about T → ∞. With its learning rate, LeNet hardly leaves its initialisation in the rounds that can be afforded; a
small network on the digits gets further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from feddrop import data, models
from feddrop.comparison import Comparison, matched
from feddrop.config import RunConfig
from feddrop.seeds import derive, permutation
from feddrop.theory import Constants, curvature, learning_rate, slope, theorem1
from feddrop.theory import EstimatePoint as Place
from feddrop.theory.variance import Masks
from reproduction.framework.experiment import Experiment, Lookup, Page, markdown_table, spread
from reproduction.framework.scales import DEVICES, Scale
from reproduction.framework.verdicts import Verdict, verdict

ROUNDS = {"LeNet": (10, 40, 160), "small network": (100, 400, 1600)}
SHORT = (2, 4)
"""Rounds at the smallest scale."""
RATES = (0.0, 0.2, 0.4)
IMAGES = 200
"""Images of all devices together."""
_NOTE = (
    "the theorem bounds the mean and does not say that it is monotone; LeNet hardly leaves its initialisation, so the "
    "small network decides"
)


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


def small_network(seed: int) -> nn.Module:
    """Return a network of 64 inputs, 32 tanh units and 10 outputs; smooth, as the theorem assumes."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def measure(scale: Scale) -> dict[str, Any]:
    """Train both networks with the learning rate of the theorem, for every T, rate and seed."""
    images = data.load_dataset(scale.settings["underfitting"].data)
    return {
        "LeNet": _measure(scale, "LeNet", images, lambda seed: models.build_model("lenet", images, seed=seed)),
        "small network": _measure(scale, "small network", data.load_dataset("digits"), small_network),
    }


def _measure(scale: Scale, name: str, dataset: data.Dataset, build: Callable[[int], nn.Module]) -> dict[str, Any]:
    rounds = SHORT if scale.name == "smoke" else ROUNDS[name]
    found: dict[str, Any] = {"data": dataset.name, "rounds": list(rounds), "seeds": []}
    for seed in scale.seeds:
        order = permutation(derive(seed, "theorem"), len(dataset.train_y))
        chosen = torch.from_numpy(order[: min(IMAGES, scale.theory_batch)])
        x, y, model = dataset.train_x[chosen], dataset.train_y[chosen], build(seed)
        parts = [slice(k * len(x) // DEVICES, (k + 1) * len(x) // DEVICES) for k in range(DEVICES)]
        every, places = Place(model, x, y), [Place(model, x[part], y[part]) for part in parts]
        found["seeds"].append(_one_seed(places, every, rounds, seed))
    return found


def _one_seed(places: list[Place], every: Place, rounds: Sequence[int], seed: int) -> dict[str, Any]:
    """Return the mean of ‖g‖² and its bound for every rate and T."""
    bent = curvature(every, seed=derive(seed, "curvature"))
    constants = Constants(
        smoothness=bent.smoothness.value,
        hessian_norm=bent.frobenius_sq.value**0.5,
        weight_norm=float(every.w.norm()),
        noise=slope(every).noise.value,
    )
    sizes, loss = [every.samples // DEVICES] * DEVICES, float(every.value(every.w))
    mine: dict[str, Any] = {"L": constants.smoothness, "loss": loss, "norm_sq": {}, "bound": {}}
    for rate in RATES:
        norms, bounds = [], []
        for count in rounds:
            lr = float(learning_rate(count, constants))
            norms.append(mean_norm(places, every, rate, count, lr, derive(seed, "steps", repr(rate))))
            bounds.append(float(theorem1(rate, constants, samples=sizes, rounds=count, loss_gap=loss)))
        for name, row in (("norm_sq", norms), ("bound", bounds)):
            mine[name][f"{rate:g}"] = [float(f"{value:.6g}") for value in row]
    return mine


def make(_: Scale, __: Lookup, facts: dict[str, Any]) -> Page:
    """Tabulate the mean of ‖g‖² by number of rounds and rate, and judge the theorem."""
    text = (
        f"*Settings: {IMAGES} images on {DEVICES} devices; in every round one gradient step per device on its images, "
        "weights of all layers dropped, updates averaged; learning rate 1/(3·√T·L) with L measured at the start; the "
        "small network has 64 inputs, 32 tanh units and 10 outputs.*\n\n"
        "Mean of ‖g‖² over T rounds; mean over seeds ± its standard error (seeds). In the last column, the smallest "
        "ratio of the theorem's bound to what was measured. The theorem is about T → ∞: with this learning rate LeNet "
        "hardly leaves its initialisation, where ‖g‖² first grows.\n\n"
    )
    for name, of in facts.items():
        rows = [
            [
                f"{rate:g}",
                *(spread(_by_seed(of, rate, i), 4) for i in range(len(of["rounds"]))),
                f"{_ratio(of, rate):,.0f}",
            ]
            for rate in RATES
        ]
        bent = ", ".join(format(one["L"], ".3g") for one in of["seeds"])
        text += f"**{name}**, {of['data']}, L = {bent} for the seeds\n\n"
        header = ["γ", *(f"T = {count}" for count in of["rounds"]), "bound / measured"]
        text += markdown_table(header, rows) + "\n\n"
    return Page(text=text, verdicts=_verdicts(facts))


def _by_seed(of: dict[str, Any], rate: float, i: int) -> list[float | None]:
    return [one["norm_sq"][f"{rate:g}"][i] for one in of["seeds"]]


def _ratio(of: dict[str, Any], rate: float) -> float:
    """Return the smallest ratio of bound to measurement."""
    return min(bound / norm for i in range(len(of["rounds"])) for norm, bound in _pairs(of, rate, i))


def _pairs(of: dict[str, Any], rate: float, i: int) -> list[tuple[float, float]]:
    return [(one["norm_sq"][f"{rate:g}"][i], one["bound"][f"{rate:g}"][i]) for one in of["seeds"]]


def _verdicts(facts: dict[str, Any]) -> list[Verdict]:
    falls: list[Comparison] = []
    rises: list[Comparison] = []
    within: list[Comparison] = []
    for name, of in facts.items():
        for i, count in enumerate(of["rounds"]):
            for rate in RATES:
                fits = all(norm <= bound for norm, bound in _pairs(of, rate, i))
                within.append(Comparison(f"{name}, rate {rate:g}, T = {count}", certain=fits))
            for low, high in pairwise(RATES):
                at = f"{name}, T = {count}: rate {high:g} against {low:g}"
                rises.append(_compare(at, _by_seed(of, high, i), _by_seed(of, low, i)))
        for rate in RATES:
            for i, (few, many) in enumerate(pairwise(of["rounds"])):
                at = f"{name}, rate {rate:g}: T = {few} against {many}"
                falls.append(_compare(at, _by_seed(of, rate, i), _by_seed(of, rate, i + 1)))
    least = min(_ratio(of, rate) for of in facts.values() for rate in RATES)
    return [
        verdict(
            "theorem-bound", within, f"by a factor of at least {least:,.0f}", "with L, A and G measured at w⁰ only"
        ),
        verdict("theorem-rounds", falls, _NOTE),
        verdict("theorem-rate", rises, _NOTE),
    ]


def _compare(at: str, above: list[float | None], below: list[float | None]) -> Comparison:
    return Comparison(at, matched(above, below), unit="of ‖g‖²", digits=4, pool=at)


EXPERIMENT = Experiment("theorem", "Theorem 1 as stated", "Theorem 1", runs, make, measure)
