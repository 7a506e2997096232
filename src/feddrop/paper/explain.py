"""What decides the outcome where the paper is silent: rule, mask count, layers, first weights, steps, FedDST's code."""

from __future__ import annotations

from dataclasses import replace

from feddrop.config import RunConfig
from feddrop.paper.experiment import Experiment, Lookup, Page, markdown_table
from feddrop.paper.scales import Scale
from feddrop.paper.settings import of_runs

RATE = 0.2
FACTORS = (0.5, 1.0, 2.0)


def variants(scale: Scale) -> dict[str, list[tuple[str, RunConfig]]]:
    """Return the runs to compare, by question."""
    under, over = scale.settings["underfitting"], scale.settings["overfitting"]
    tuned, skewed = under.run(), under.run(partition="dirichlet")
    deep = over.run(figure=True, rate=RATE, layers="all")
    return {
        "LeNet, IID, rate 0: learning rate": _tuning(tuned),
        "LeNet, non-IID, rate 0: is it the learning rate, the number of rounds, or the partition?": [
            *_tuning(skewed),
            (f"{skewed.train.lr:g}, twice the rounds", replace(skewed, rounds=2 * skewed.rounds)),
            (f"{skewed.train.lr:g}, Dirichlet(1)", replace(skewed, data=replace(skewed.data, alpha=1.0))),
        ],
        "AlexNet, IID, rate 0: learning rate": _tuning(over.run()),
        f"LeNet, rate {RATE:g}: aggregation rule and mask count": [
            ("no dropout", under.run(figure=True)),
            ("delta with factor, exact (default)", under.run(figure=True, rate=RATE)),
            ("delta without factor", under.run(figure=True, rate=RATE, factor=False)),
            ("model (literal zero padding)", under.run(figure=True, rate=RATE, rule="model")),
            ("holders", under.run(figure=True, rate=RATE, rule="holders")),
            ("delta with factor, bernoulli", under.run(figure=True, rate=RATE, count="bernoulli")),
        ],
        f"AlexNet, rate {RATE:g}: layers dropped, aggregation rule, first weights, local steps": [
            ("no dropout", over.run(figure=True)),
            ("fully-connected layers, delta (default)", over.run(figure=True, rate=RATE)),
            ("fully-connected layers, model", over.run(figure=True, rate=RATE, rule="model")),
            ("all layers, delta", deep),
            ("all layers, delta, 10 local epochs, a fifth of the rounds", _longer(deep)),
            ("no dropout, 10 local epochs, a fifth of the rounds", _longer(over.run(figure=True))),
            ("all layers, delta, 10 local epochs, all rounds", replace(_longer(deep), rounds=deep.rounds)),
            ("no dropout, 10 local epochs, all rounds", replace(_longer(over.run(figure=True)), rounds=deep.rounds)),
            ("all layers, model", over.run(figure=True, rate=RATE, layers="all", rule="model")),
            ("all layers, holders", over.run(figure=True, rate=RATE, layers="all", rule="holders")),
            ("no dropout, torch's first weights", over.run(figure=True, init="torch")),
            ("fully-connected layers, delta, torch's first weights", over.run(figure=True, rate=RATE, init="torch")),
        ],
        f"LeNet, non-IID, sparsity {RATE:g}: FedDST": [
            (
                "as its paper says (its mask stays)",
                under.run(figure=True, rate=RATE, partition="dirichlet", method="feddst"),
            ),
            (
                "as its code was released",
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


def _tuning(config: RunConfig) -> list[tuple[str, RunConfig]]:
    rates = [factor * config.train.lr for factor in FACTORS]
    return [(f"{lr:g}", replace(config, train=replace(config.train, lr=lr))) for lr in rates]


def _longer(config: RunConfig) -> RunConfig:
    """Return a run of as many local steps a round as devices with ten times the data would make."""
    return replace(config, rounds=max(1, config.rounds // 5), train=replace(config.train, epochs=10))


def runs(scale: Scale) -> list[RunConfig]:
    """Every variant."""
    return [config for group in variants(scale).values() for _, config in group]


def make(scale: Scale, find: Lookup) -> Page:
    """Tabulate where each variant ends."""
    text = (
        "One seed: nothing is judged by these. Only learning rates were tuned, and only at rate 0. But for the first "
        "three questions, the images, rounds and learning rate are those of the figures.\n\n"
    )
    for question, group in variants(scale).items():
        rows = []
        for name, config in group:
            result = find(config)
            if result is None:
                rows.append([name, "not run", "", ""])
                continue
            best = float(result.values("test_accuracy").max())
            last = float(result.values("train_loss")[-1])
            rows.append([name, f"{100 * result.accuracy:.2f}", f"{100 * best:.2f}", f"{last:.2f}"])
        text += f"**{question}**\n\n" + of_runs("the first row", group[0][1])
        text += markdown_table(["", "test accuracy, %", "best round, %", "training loss"], rows) + "\n\n"
    return Page(text=text)


EXPERIMENT = Experiment("explain", "What decides the outcome", "open points", runs, make)
