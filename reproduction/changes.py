"""Verdicts that changed since 0.2.0, and why. ``verdicts_0_2.tsv`` has those of 0.2.0."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple

from feddrop.comparison import WITHIN_MARGIN
from reproduction.framework.experiment import markdown_table
from reproduction.framework.judged import Judged

_EVERY = "Every stored deadline and bandwidth with three seeds is compared, not two deadlines."
_OWN = "Spread is no longer pooled over tight and loose cells, whose runs vary unequally."
_BOUND = "A bound no longer adds spread, so that a more favourable one cannot turn yes into noise."
_NEW = "Not judged before."
_MEASURED = (
    "Measured on the problems of figure 3, with and without an energy limit; before, a constant stood for tests that "
    "settle it."
)

WHY = {
    "beats-feddst": "FedDST is compared with both values of α; the one of its paper is better here.",
    "feddst-alexnet": "FedDST has all seeds now, and is also compared with a learning rate of its own.",
    "rounds-latency": _BOUND,
    "rounds-bandwidth": _BOUND,
    "gap-narrows": _BOUND,
    "fewer-rounds": f"{_BOUND} {_OWN}",
    "two-phases": f"{_BOUND} The second phase, overfitting, is judged too; before, only the slope was.",
    "less-time": (
        f"{_BOUND} The paper speaks of a *potential*, which one yes shows; before, every comparison had to say yes."
    ),
    "less-overhead": f"{_BOUND} {_OWN}",
    "less-compute": f"{_BOUND} {_OWN}",
    "accuracy-scheme": f"{_EVERY} {_OWN} The verdict states its condition on θ.",
    "accuracy-overfit": f"{_EVERY} {_OWN}",
    "accuracy-whole": f"{_EVERY} {_OWN}",
    "accuracy-bandwidth": f"{_NEW} From stored runs.",
    "iid-above": _OWN,
    "iid-faster": f"{_OWN} A level that was never reached is a bound.",
    "dynamic-grows": f"{_NEW} Figure 6 is drawn against latency, as in the paper.",
    "weak-take-part": f"{_NEW} The paper says that weak devices *can take part*.",
    "weak-devices": (
        "Compared for two partitions and to a plateau; runs that are still rising no longer count. The paper says that "
        "weak devices contribute data and computing, not that this shows in the accuracy."
    ),
    "overhead": "Four comparisons are dropped: AlexNet as trained breaks the premise of equal sparsity.",
    "unbiased": (
        "The tolerance was 0, which no estimate can meet; the paper says *approximated*. It is stated now, and both "
        "poolings are measured. Our old explanation, second order, was wrong at small rates: the cause is the kinks of "
        "max pooling."
    ),
    "variance-law": (
        "It is the paper's contribution 1, not ours. It says *proportional* and names no factor, so the factor is "
        "fitted; before, it was that of first order."
    ),
    "slower-with-rate": "Rounds to half-way are compared too, for LeNet and AlexNet.",
    "theorem-bound": f"{_NEW} The theorem with its own learning rate.",
    "theorem-rounds": f"{_NEW} The theorem with its own learning rate.",
    "theorem-rate": f"{_NEW} The theorem with its own learning rate.",
    "overfit-all": f"{_NEW} The paper drops all layers; its claim was judged with fully-connected layers only.",
    "convex": _MEASURED,
    "not-convex": f"{_NEW} {_MEASURED} Both senses are judged: convex functions, and a convex set.",
    "channel-rate": _MEASURED,
    "share-opposite": _MEASURED,
    "resources-rate": f"{_NEW} {_MEASURED}",
    "cpu-not-monotone": _MEASURED,
    "complexity": "Passes are counted; before, one pass said yes, and the missing bound on their number said no.",
    "large-rates": f"{_NEW} From stored runs.",
    "equal-split": f"{_EVERY} {_OWN}",
    "overfit-all-layers": "Ten local epochs are ours, not the paper's.",
    "norm-falls": "The theorem does not say it: the learning rate is constant here.",
    "norm-rate": "The theorem does not say it: the learning rate is constant here.",
    "theta": "The paper does not say that the bound yields a usable θ.",
    "objective": "The paper does not say it; it follows neither from the theorem nor from a figure.",
}
"""Why each verdict changed, or why its claim changed sides between the paper's and ours."""
OURS_IN_0_2 = ("smaller-theta", "equal-split", "energy-scheme", "variance-law", "norm-falls")
"""Claims that were marked as ours in 0.2.0."""


class Earlier(NamedTuple):
    """A verdict of 0.2.0: its outcome, and how many comparisons gave each answer."""

    outcome: str
    tally: str


def earlier() -> dict[str, Earlier]:
    """Return the verdicts of 0.2.0 by claim; it called an answer within the margin one within the noise."""
    text = files("reproduction").joinpath("verdicts_0_2.tsv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines(), delimiter="\t")
    return {
        row["claim"]: Earlier(row["outcome"], row["comparisons"].replace("within the noise", WITHIN_MARGIN))
        for row in rows
    }


def changed(judged: Sequence[Judged]) -> list[Judged]:
    """Return the claims whose outcome, comparisons or side changed since 0.2.0."""
    before = earlier()
    return [
        one
        for one in judged
        if before.get(one.claim.name) != Earlier(one.outcome, one.tally)
        or one.claim.ours != (one.claim.name in OURS_IN_0_2)
    ]


def table(judged: Sequence[Judged]) -> str:
    """Tabulate the verdicts that changed since 0.2.0."""
    before, rows = earlier(), []
    for one in changed(judged):
        old = before.get(one.claim.name)
        text = f"*Ours:* {one.claim.text}" if one.claim.ours else one.claim.text
        was = f"{old.outcome} ({old.tally})" if old else "not judged"
        rows.append([text, was, f"{one.word} ({one.tally})", WHY[one.claim.name]])
    return markdown_table(["claim", "0.2.0", "now", "why"], rows)
