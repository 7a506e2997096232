"""Lemma 1: is the gradient of a subnet unbiased? With max pooling, as in the paper, and with average pooling.

The lemma expands the gradient to first order in ŵ-w, so that its bias is of second order. Max pooling has kinks:
a dropped weight may change which input is the largest, however small the rate. Average pooling has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from feddrop import data, models
from feddrop.comparison import YES, Comparison
from feddrop.config import RunConfig
from feddrop.seeds import derive, permutation
from feddrop.theory import EstimatePoint as Place
from feddrop.theory import measure_law
from reproduction.framework.experiment import Experiment, Lookup, Page, markdown_table
from reproduction.framework.scales import Scale
from reproduction.framework.verdicts import Verdict, verdict

RATES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4)
POOLINGS = {"max": "max pooling", "average": "average pooling"}
TOLERANCE = 0.01
"""Largest ‖bias‖², as a share of ‖g‖², that counts as none: a bias of a tenth of the gradient."""
MORE = 4
"""Masks per rate, in multiples of those of the theory's page: with average pooling the bias is small."""


def runs(_: Scale) -> list[RunConfig]:
    """Return no runs: nothing is trained."""
    return []


def measure(scale: Scale) -> dict[str, Any]:
    """Measure bias and spread of the gradient of weight-level subnets of LeNet at initialisation."""
    dataset = data.load_dataset(scale.settings["underfitting"].data)
    chosen = torch.from_numpy(permutation(derive(0, "theory", "batch"), len(dataset.train_y))[: scale.theory_batch])
    found: dict[str, Any] = {"data": dataset.name, "masks": MORE * scale.theory_masks, "rate": list(RATES)}
    for pooling in POOLINGS:
        model = models.build_model("lenet", dataset, seed=0)
        if pooling == "average":
            for name, layer in list(model.named_children()):
                if isinstance(layer, nn.MaxPool2d):
                    setattr(model, name, nn.AvgPool2d(layer.kernel_size))
        place = Place(model, dataset.train_x[chosen], dataset.train_y[chosen])
        law = measure_law(place, "weight", RATES, seed=derive(0, "bias"), masks=found["masks"], probes=2)
        curve = law.gradient
        rows = {"bias_sq": curve.bias_sq, "bias_sq_error": curve.bias_sq_error, "spread": curve.measured}
        found[pooling] = {name: [float(f"{value:.6g}") for value in row] for name, row in rows.items()}
        found[pooling]["norm_sq"] = float(f"{float(place.gradient().square().sum()):.6g}")
    return found


def make(scale: Scale, _: Lookup, facts: dict[str, Any]) -> Page:
    """Tabulate the bias beside the spread and the gradient, and judge it by a stated tolerance."""
    rows, points, shares = [], [], []
    for pooling, title in POOLINGS.items():
        of = facts[pooling]
        for rate, bias, error, spread in zip(
            facts["rate"], of["bias_sq"], of["bias_sq_error"], of["spread"], strict=True
        ):
            rows.append(
                [title, f"{rate:g}", f"{bias:.1e} ± {error:.0e}", f"{bias / of['norm_sq']:.2%}", f"{bias / spread:.1%}"]
            )
            shares.append(bias / spread)
            points.append(
                Comparison(
                    f"{title}, rate {rate:g}",
                    estimate=(bias / of["norm_sq"], error / of["norm_sq"]),
                    unit="of ‖g‖²",
                    digits=5,
                    tolerance=TOLERANCE,
                )
            )
    first = {pooling: facts[pooling]["bias_sq"][0] for pooling in POOLINGS}
    text = (
        f"*Settings: LeNet at initialisation, {facts['data']}, a batch of {scale.theory_batch}, {facts['masks']} masks "
        "per rate; weights of all layers dropped.*\n\n"
        "‖bias‖² is the squared distance between the mean gradient of the subnets and the gradient of the full "
        "network, ± one standard error. Unbiased means that it is at most "
        f"{TOLERANCE:.0%} of ‖g‖², a bias of a tenth of the gradient. The lemma neglects terms of second order in "
        "ŵ-w, whose mean is proportional to γ/(1-γ). Average pooling leaves such a bias only; max pooling, which the "
        "paper uses, adds kinks: at rate "
        f"{facts['rate'][0]:g} ‖bias‖² is {first['max']:.1e} with max and {first['average']:.1e} with average "
        "pooling.\n\n" + markdown_table(["", "γ", "‖bias‖²", "of ‖g‖²", "of the spread"], rows) + "\n"
    )
    note = (
        f"unbiased means ‖bias‖² of at most {TOLERANCE:.0%} of ‖g‖²; it is at most {max(shares):.0%} of the spread; at "
        "small rates it comes from the kinks of max pooling, not from the second order"
    )
    return Page(text=text, verdicts=[_up_to(verdict("unbiased", points, note), facts["rate"])])


def _up_to(found: Verdict, rates: Sequence[float]) -> Verdict:
    """Add the condition: with each pooling, up to which rate all answers are yes."""
    words = []
    for i, title in enumerate(POOLINGS.values()):
        says = [answer.says == YES for answer in found.answers[i * len(rates) : (i + 1) * len(rates)]]
        good = says.index(False) if False in says else len(says)
        words.append(f"{title}: up to rate {rates[good - 1]:g}" if good else f"{title}: at no rate")
    return found._replace(condition="; ".join(words))


EXPERIMENT = Experiment("unbiased", "The bias of a subnet's gradient", "Lemma 1", runs, make, measure)
