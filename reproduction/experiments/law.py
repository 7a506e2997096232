"""Section III: the variance law, the one-round bound and θ, and convergence against the rate."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from feddrop import data, models
from feddrop.comparison import Comparison, Spent, matched, spent_differences
from feddrop.config import RunConfig
from feddrop.config.methods import LEVELS
from feddrop.seeds import derive, permutation
from feddrop.theory import EstimatePoint as Place
from feddrop.theory import lemma2, study
from feddrop.theory.variance import Masks
from reproduction.experiments.accuracy import Row, config_of
from reproduction.experiments.cells import feasible_rounds, radio
from reproduction.experiments.curves import HALF, SHARES, convergence_round, plateau_of
from reproduction.experiments.resources import latency_spots
from reproduction.framework.experiment import Experiment, Lookup, Page, by_seed, markdown_table
from reproduction.framework.scales import DEVICES, Scale
from reproduction.framework.traced import Traced
from reproduction.framework.verdicts import Verdict, verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6)
ROUNDS = 50
RIGHT, LARGEST = 0.2, 0.4
"""Relative error up to which the law counts as right, and the largest rate at which it is tested (the paper's)."""
ENOUGH = 0.95
"""Share of the rounds that must be feasible for a useful θ."""
THETAS = {"Lemma 2's constants": "theta", "the measured variance": "theta_measured"}
ROW = Row("underfitting", "iid", "feddrop")
_HALF_WAY = (
    "half-way: test loss in the middle of the run; rounds until half of the best 5-round mean of accuracy at rate 0. "
    "AlexNet's test loss is not compared: it grows with overfitting"
)


def runs(scale: Scale) -> list[RunConfig]:
    """Return the first row of the table: LeNet, IID."""
    return [config_of(scale, ROW, rate) for rate in scale.rates]


def one_round(place: Place, rate: float, lr: float, seed: int, repeats: int) -> float:
    """Return the mean change of the loss by one aggregated step; each device sends m∘g(w∘m) with its own mask."""
    masks, before = Masks(place, "weight"), float(place.value(place.w))
    changes = []
    for repeat in range(repeats):
        step = torch.zeros_like(place.w)
        for device in range(DEVICES):
            m = masks.draw(derive(seed, repeat, device), rate)
            step += m * place.gradient(place.w * m) / DEVICES
        changes.append(float(place.value(place.w - lr * step)) - before)
    return float(np.mean(changes))


def measure(scale: Scale) -> dict[str, Any]:
    """Measure the law and the bound on LeNet at initialisation."""
    dataset = data.load_dataset(scale.settings["underfitting"].data)
    model = models.build_model("lenet", dataset, seed=0)
    chosen = torch.from_numpy(permutation(derive(0, "theory", "batch"), len(dataset.train_y))[: scale.theory_batch])
    place = Place(model, dataset.train_x[chosen], dataset.train_y[chosen])
    found = study(
        place,
        seed=derive(0, "theory"),
        samples=[scale.theory_batch // DEVICES] * DEVICES,
        rounds=ROUNDS,
        levels=LEVELS,
        rates=RATES,
        masks=scale.theory_masks,
        probes=scale.theory_masks,
    )
    lr = 1.0 / (3.0 * ROUNDS**0.5 * found.constants.smoothness)
    norm = found.slope.grad_norm_sq.value
    bounds = [
        float(lemma2(rate, found.constants, samples=found.samples, grad_norm_sq=norm, rounds=ROUNDS)) for rate in RATES
    ]
    repeats = max(2, scale.theory_masks // 8)
    plain = found.to_json()
    return {
        **plain,
        "fed": fed(scale, [plain["theta"]["rate"], plain["theta_measured"]["rate"]]),
        "data": dataset.name,
        "change": [one_round(place, rate, lr, derive(0, "one-round"), repeats) for rate in RATES],
        "bound": bounds,
    }


def fed(scale: Scale, thetas: list[float]) -> dict[str, Any]:
    """Count the rounds of figure 3 that are feasible for all devices, by θ and deadline."""
    setting = scale.settings["underfitting"]
    deadlines = [spot.x for spot in latency_spots(scale, "underfitting")]

    def count(theta: float, deadline_s: float) -> int:
        cell = replace(radio(setting, deadline_s=deadline_s), max_rate=theta)
        return sum(feasible_rounds(setting, cell, seed, setting.figure_rounds) for seed in scale.seeds)

    return {
        "rounds": setting.figure_rounds * len(scale.seeds),
        "deadlines": deadlines,
        "feasible": [[count(theta, deadline_s) for deadline_s in deadlines] for theta in thetas],
    }


def make(scale: Scale, find: Lookup, facts: dict[str, Any]) -> Page:
    """Show the law, the bound, and convergence in the runs of the table."""
    pairs = list(zip(RATES, facts["change"], facts["bound"], strict=True))
    rows = [[f"{rate:g}", f"{a:.3e}", f"{b:.3e}", "yes" if a <= b else "no"] for rate, a, b in pairs]
    text = (
        f"*Settings: LeNet at initialisation, {facts['data']}, a batch of {scale.theory_batch}, {scale.theory_masks} "
        "masks; one batch and one initialisation.*\n\n"
        + "\n".join(f"- {line}" for line in (*facts["words"][: 3 * len(facts["laws"])], *_unreliable(facts)))
        + "\n\n"
        + _fed(facts)
        + f"\n![The variance law](variance-law.png)\n\nOne round with η = 1/(3·√{ROUNDS}·L), {DEVICES} devices:\n\n"
        + markdown_table(["γ", "change of the loss", "Lemma 2's bound", "within"], rows)
        + "\n\n"
    )
    losses, points = _slower(scale, find)
    text += "Test loss half-way through the runs of LeNet in the table, IID, first seed: " + losses + ".\n"
    empty = sum(b > 0 for _, _, b in pairs)
    vacuous = f"at {empty} of {len(pairs)} rates the bound is above 0 and permits the loss to rise" if empty else ""
    return Page(
        text=text,
        figures={"variance-law.png": _draw(facts)},
        verdicts=[
            *_lemma1(facts),
            verdict(
                "bound-holds",
                [Comparison(f"LeNet at initialisation, rate {rate:g}", certain=a <= b) for rate, a, b in pairs],
                "",
                vacuous,
            ),
            verdict("slower-with-rate", [*points, *_later(scale, find)], _HALF_WAY),
            _theta(facts),
        ],
    )


def _unreliable(facts: dict[str, Any]) -> list[str]:
    """Warn if ‖g‖², on which θ depends, is not significantly above 0."""
    norm = facts["grad_norm_sq"]
    if norm["value"] >= 2 * norm["error"]:
        return []
    return [
        f"‖g‖² is {norm['value']:.4f} ± {norm['error']:.4f} on this batch, not significantly above 0: θ is unreliable."
    ]


def _fed(facts: dict[str, Any]) -> str:
    """Tabulate the feasible rounds of figure 3 under the values of θ that the theory gives."""
    rows = [
        [name, f"{facts[key]['rate']:.2g}", *map(str, feasible)]
        for (name, key), feasible in zip(THETAS.items(), facts["fed"]["feasible"], strict=True)
    ]
    header = ["θ by", "θ", *(f"{deadline:g} s" for deadline in facts["fed"]["deadlines"])]
    return (
        f"**θ in the allocator**: number of the {facts['fed']['rounds']} rounds of figure 3 (LeNet, all seeds) that "
        "are feasible for all devices. The figures use a different θ, given in their settings.\n\n"
        + markdown_table(header, rows)
        + "\n"
    )


def _theta(facts: dict[str, Any]) -> Verdict:
    rounds, rows = facts["fed"]["rounds"], facts["fed"]["feasible"]
    (name, key), (ours, our_key) = THETAS.items()
    point = Comparison(f"θ by {name}: {ENOUGH:.0%} of figure 3's rounds are feasible", certain=_enough(rows[0], rounds))
    word = "can" if _enough(rows[1], rounds) else "cannot"
    note = (
        f"usable means that {ENOUGH:.0%} of figure 3's rounds are feasible at every deadline; θ is "
        f"{facts[key]['rate']:.2g}; by {ours}, not in the paper, it is {facts[our_key]['rate']:.2g} and {word} be "
        "used; one network at initialisation"
        + "; ‖g‖², on which θ depends, is not significantly above 0 there"
        * bool(_unreliable(facts))
    )
    return verdict("theta", [point], note)


def _enough(feasible: list[int], rounds: int) -> bool:
    return min(feasible) >= ENOUGH * rounds


def _lemma1(facts: dict[str, Any]) -> list[Verdict]:
    """Test Lemma 1 on the gradient of a weight-level subnet: bounded variance, proportional to γ/(1-γ)."""
    law = facts["laws"][0]
    curve, names = law["gradient"], ("measured", "error", "ratio", "predicted", "predicted_error")
    asked = [ratio for rate, ratio in zip(law["rate"], curve["ratio"], strict=True) if rate <= LARGEST]
    factor = float(np.sqrt(min(asked) * max(asked)))  # leaves the least relative error
    bound, follows = [], []
    for rate, most, *row in zip(law["rate"], law["lemma1"], *(curve[name] for name in names), strict=True):
        measured, error, ratio, predicted, predicted_error = row
        if rate > LARGEST:
            continue
        at = f"weight level, rate {rate:g}"
        bound.append(Comparison(at, certain=measured <= most))
        relative = float(np.hypot(error / measured, predicted_error / predicted))
        of = ratio / factor
        follows.append(Comparison(at, estimate=(of - 1.0, of * relative), unit="of the law", tolerance=RIGHT))
    ratios = [most / found for most, found in zip(law["lemma1"], curve["measured"], strict=True)]
    loose = f"by a factor of at least {min(ratios):,.0f}"
    return [
        verdict("variance-bound", bound, loose),
        verdict(
            "variance-law",
            follows,
            f"proportional means within {RIGHT:.0%} of one factor for all rates, the one that fits best: {factor:.2f} "
            "times that of first order; on one batch at initialisation",
        ),
    ]


def _slower(scale: Scale, find: Lookup) -> tuple[str, list[Comparison]]:
    """Compare test losses half-way through the runs of the table; training losses are of different subnets."""

    def half(rate: float) -> list[float | None]:
        results = by_seed(find, config_of(scale, ROW, rate), scale.seeds)
        middle = [None if r is None else r.values("test_loss")[len(r.series["test_loss"]) // 2] for r in results]
        return [r and Traced(float(value), [r.key]) for r, value in zip(results, middle, strict=True)]

    losses = {rate: half(rate) for rate in scale.rates}
    first = [f"{row[0]:.2f} at {rate:g}" for rate, row in losses.items() if row[0] is not None]
    points = [
        Comparison(
            label=f"LeNet, test loss half-way, rate {high:g} against {low:g}",
            differences=matched(losses[high], losses[low]),
            unit="nats",
            pool="loss",
        )
        for low, high in pairwise(scale.repeated["underfitting", "iid"])
    ]
    return ", ".join(first) or "not run", points


def _later(scale: Scale, find: Lookup) -> list[Comparison]:
    """Compare rounds until half of the best running mean of accuracy without dropout, in the table, IID."""
    points = []
    for scenario, title in (("underfitting", "LeNet"), ("overfitting", "AlexNet")):
        rows = {
            rate: by_seed(find, config_of(scale, ROW._replace(scenario=scenario), rate), scale.seeds)
            for rate in scale.repeated[scenario, "iid"]
        }
        base = by_seed(find, config_of(scale, ROW._replace(scenario=scenario), 0.0), scale.seeds)
        spent = {
            rate: [
                Spent(
                    Traced(convergence_round(one, plateau_of(full), SHARES[HALF]), [one.key]),
                    Traced(len(one.series["test_accuracy"]) + 1.0, [one.key]),
                )
                if one is not None and full is not None
                else None
                for one, full in zip(row, base, strict=True)
            ]
            for rate, row in rows.items()
        }
        for low, high in pairwise(rows):
            found = spent_differences(spent[high], spent[low])
            points.append(
                Comparison(
                    f"{title}, rounds to half-way, rate {high:g} against {low:g}",
                    found.values,
                    bounds=found.bounds,
                    unit="rounds",
                    pool=f"{title}, {high:g}",
                    step=1.0,
                    ran=found.ran,
                )
            )
    return points


def _draw(facts: dict[str, Any]) -> Figure:
    from feddrop.report.style import SERIES
    from reproduction.framework.drawing import legend, panels

    figure, axes = panels([f"{law['level']} level: measured variance over first order" for law in facts["laws"]])
    for panel, law in zip(axes, facts["laws"], strict=True):
        for name, colour in zip(("gradient", "update"), SERIES, strict=False):
            label = {"gradient": "g(ŵ)", "update": "m∘g(ŵ), as sent"}[name]
            panel.plot(law["rate"], law[name]["ratio"], color=colour, marker="o", label=label)
        panel.axhline(1.0, color="grey", linestyle=":", label="the law")
        panel.set_xlabel("dropout rate γ")
        panel.set_ylim(bottom=0)
    legend(axes[0])
    return figure


EXPERIMENT = Experiment("theory", "The theory, measured", "Sec. III", runs, make, measure)
