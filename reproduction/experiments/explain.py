"""Choices that the paper leaves open: rule, mask count, layers, initialisation, local steps, FedDST's code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from feddrop.comparison import Comparison, matched
from feddrop.config import RunConfig
from reproduction.experiments.accuracy import PEAK, STILL
from reproduction.experiments.resources import latency_spots, no_dropout, with_seeds
from reproduction.framework.experiment import Experiment, Lookup, Page, by_seed, markdown_table, percents
from reproduction.framework.scales import MOVING, Scale
from reproduction.framework.settings import of_runs
from reproduction.framework.store import Result
from reproduction.framework.verdicts import Verdict, verdict

RATE = 0.2
DEEP = (
    "all layers, delta, 10 local epochs, two fifths of the rounds",
    "no dropout, 10 local epochs, two fifths of the rounds",
)
"""All layers dropped, as in the paper, with enough local steps to learn; and the run it is compared with."""
LONGER = 3
FACTORS = (0.5, 1.0, 2.0)


def variants(scale: Scale) -> dict[str, list[tuple[str, RunConfig]]]:
    """Return the runs to compare, by question."""
    under, over = scale.settings["underfitting"], scale.settings["overfitting"]
    tuned, skewed = under.run(), under.run(partition="dirichlet")
    sparse, moving, wide = (
        setting.run(rate=RATE, partition="dirichlet", method="feddst", feddst=feddst)
        for setting, feddst in ((under, None), (under, MOVING), (over, None))
    )
    deep, loose = all_layers(scale), latency_spots(scale, "underfitting")[-1]
    return {
        "LeNet, IID, rate 0: learning rate": _tuning(tuned),
        "LeNet, non-IID, rate 0: is it the learning rate, the number of rounds, or the partition?": [
            *_tuning(skewed),
            (f"{skewed.train.lr:g}, twice the rounds", replace(skewed, rounds=2 * skewed.rounds)),
            (f"{skewed.train.lr:g}, Dirichlet(1)", replace(skewed, data=replace(skewed.data, alpha=1.0))),
        ],
        "AlexNet, IID, rate 0: learning rate": _tuning(over.run()),
        f"AlexNet, IID, rate {PEAK:g}: learning rate": _tuning(over.run(rate=PEAK)),
        f"LeNet, rate {RATE:g}: aggregation rule and mask count": [
            ("no dropout", under.run(figure=True)),
            ("delta with factor, exact (default)", under.run(figure=True, rate=RATE)),
            ("delta without factor", under.run(figure=True, rate=RATE, factor=False)),
            ("model (literal zero padding)", under.run(figure=True, rate=RATE, rule="model")),
            ("holders", under.run(figure=True, rate=RATE, rule="holders")),
            ("delta with factor, bernoulli", under.run(figure=True, rate=RATE, count="bernoulli")),
        ],
        f"AlexNet, rate {RATE:g}: layers dropped, aggregation rule, initial weights, local steps": [
            ("no dropout", over.run(figure=True)),
            ("fully-connected layers, delta (default)", over.run(figure=True, rate=RATE)),
            ("fully-connected layers, model", over.run(figure=True, rate=RATE, rule="model")),
            ("all layers, delta", deep),
            ("all layers, delta, 10 local epochs, a fifth of the rounds", _longer(deep, 1)),
            ("no dropout, 10 local epochs, a fifth of the rounds", _longer(over.run(figure=True), 1)),
            (DEEP[0], _longer(deep, 2)),
            (DEEP[1], _longer(over.run(figure=True), 2)),
            ("all layers, model", over.run(figure=True, rate=RATE, layers="all", rule="model")),
            ("all layers, holders", over.run(figure=True, rate=RATE, layers="all", rule="holders")),
            ("no dropout, torch's initial weights", over.run(figure=True, init="torch")),
            ("fully-connected layers, delta, torch's initial weights", over.run(figure=True, rate=RATE, init="torch")),
        ],
        f"LeNet, {loose.x:g} s: figures run to a plateau": [
            (name + more, replace(config, rounds=times * config.rounds))
            for name, config in (
                ("no dropout", under.run(figure=True)),
                ("proposed", loose.runs["exact"]),
                ("random shares", loose.runs["random"]),
            )
            for times, more in ((1, ""), (LONGER, f", {LONGER} times the rounds"))
        ],
        f"LeNet, non-IID, sparsity {RATE:g}: FedDST's learning rate and α": [
            *_tuning(sparse, f", α = {STILL:g}"),
            *_tuning(moving, f", α = {MOVING['alpha']:g}"),
        ],
        f"AlexNet, non-IID, sparsity {RATE:g}: FedDST's learning rate and α": [
            *_tuning(wide, f", α = {STILL:g}", (*FACTORS, 4.0)),
            (
                f"{wide.train.lr:g}, α = {MOVING['alpha']:g}",
                over.run(rate=RATE, partition="dirichlet", method="feddst", feddst=MOVING),
            ),
        ],
        f"LeNet, non-IID, sparsity {RATE:g}: FedDST": [
            (
                "as in its paper",
                under.run(figure=True, rate=RATE, partition="dirichlet", method="feddst"),
            ),
            (
                "as in its released code",
                under.run(
                    figure=True,
                    rate=RATE,
                    partition="dirichlet",
                    method="feddst",
                    feddst={"as_released": True},
                ),
            ),
            ("FedDrop", under.run(figure=True, rate=RATE, partition="dirichlet")),
        ],
    }


def all_layers(scale: Scale) -> RunConfig:
    """Return AlexNet with all layers dropped, as in the paper."""
    return scale.settings["overfitting"].run(figure=True, rate=RATE, layers="all")


def _tuning(config: RunConfig, more: str = "", factors: Sequence[float] = FACTORS) -> list[tuple[str, RunConfig]]:
    rates = [factor * config.train.lr for factor in factors]
    return [(f"{lr:g}{more}", replace(config, train=replace(config.train, lr=lr))) for lr in rates]


def _longer(config: RunConfig, fifths: int) -> RunConfig:
    """Return a run with ten local epochs and fewer rounds: as many steps per round as with ten times the data."""
    return replace(config, rounds=max(1, fifths * config.rounds // 5), train=replace(config.train, epochs=10))


def runs(scale: Scale) -> list[RunConfig]:
    """Return every variant; those of a claim with every seed."""
    every = [config for group in variants(scale).values() for _, config in group]
    return [*every, *with_seeds([all_layers(scale), *_deep(scale)], scale.seeds)]


def _deep(scale: Scale) -> tuple[RunConfig, RunConfig]:
    named = {name: config for group in variants(scale).values() for name, config in group if name in DEEP}
    return named[DEEP[0]], named[DEEP[1]]


def _verdicts(scale: Scale, find: Lookup) -> list[Verdict]:
    """Judge the claims on AlexNet with all layers dropped: as in the paper, and with ten local epochs."""
    found = []
    for claim, pair, note in (
        ("overfit-all", (all_layers(scale), no_dropout(scale, "overfitting")), "one local epoch per round"),
        ("overfit-all-layers", _deep(scale), ""),
    ):
        ours, full = (percents(by_seed(find, config, scale.seeds)) for config in pair)
        found.append(verdict(claim, [Comparison(f"rate {RATE:g} against 0", differences=matched(ours, full))], note))
    return found


def best_round(result: Result) -> int:
    """Return the round with the highest test accuracy, counted from 1."""
    return int(result.values("test_accuracy").argmax()) + 1


def make(scale: Scale, find: Lookup) -> Page:
    """Tabulate the final accuracy of each variant."""
    text = (
        "First seed. Only AlexNet with all layers dropped decides claims, with all seeds. Only "
        "learning rates were tuned, and only at rate 0; at other rates, and for FedDST, the tables show what that "
        "choice was worth. "
        "Except for the questions on learning rates, images, rounds and learning rate are those of the figures.\n\n"
    )
    for question, group in variants(scale).items():
        rows = []
        for name, config in group:
            result = find(config)
            if result is None:
                rows.append([name, "not run", "", ""])
                continue
            curve = result.values("test_accuracy")
            best = f"{100 * float(curve.max()):.2f} in {best_round(result)} of {len(curve)}"
            last = float(result.values("train_loss")[-1])
            rows.append([name, f"{100 * result.accuracy:.2f}", best, f"{last:.2f}"])
        text += f"**{question}**\n\n" + of_runs("the first row", group[0][1])
        text += markdown_table(["", "test accuracy, %", "best, % in round", "training loss"], rows) + "\n\n"
    return Page(text=text, verdicts=_verdicts(scale, find))


EXPERIMENT = Experiment("explain", "Choices that the paper leaves open", "open points", runs, make)
