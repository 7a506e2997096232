"""What decides the outcome where the paper is silent: aggregation rule, mask count, layers, FedDST as released."""

from __future__ import annotations

from dataclasses import replace

from feddrop.config import RunConfig
from feddrop.paper.experiment import Experiment, Lookup, Page, markdown_table
from feddrop.paper.scales import Scale

RATE = 0.2
LEARNING_RATES = (0.1, 0.2, 0.4)


def variants(scale: Scale) -> dict[str, list[tuple[str, RunConfig]]]:
    """Return the runs to compare, by question."""
    under, over = scale.settings["underfitting"], scale.settings["overfitting"]
    tuned = under.run()
    return {
        "LeNet, rate 0, as in the table: learning rate (the only thing tuned, and only here)": [
            (f"{lr:g}", replace(tuned, train=replace(tuned.train, lr=lr))) for lr in LEARNING_RATES
        ],
        f"LeNet, rate {RATE:g}: aggregation rule and mask count": [
            ("no dropout", under.run(figure=True)),
            ("delta with factor, exact (default)", under.run(figure=True, rate=RATE)),
            ("delta without factor", under.run(figure=True, rate=RATE, factor=False)),
            ("model (literal zero padding)", under.run(figure=True, rate=RATE, rule="model")),
            ("holders", under.run(figure=True, rate=RATE, rule="holders")),
            ("delta with factor, bernoulli", under.run(figure=True, rate=RATE, count="bernoulli")),
        ],
        f"AlexNet, rate {RATE:g}: which layers are dropped": [
            ("no dropout", over.run(figure=True)),
            ("fully-connected layers, delta", over.run(figure=True, rate=RATE, layers="linear")),
            ("fully-connected layers, model", over.run(figure=True, rate=RATE, layers="linear", rule="model")),
            ("all layers, delta", over.run(figure=True, rate=RATE, layers="all")),
            ("all layers, model", over.run(figure=True, rate=RATE, layers="all", rule="model")),
            ("all layers, holders", over.run(figure=True, rate=RATE, layers="all", rule="holders")),
        ],
        f"LeNet, non-IID, sparsity {RATE:g}: FedDST": [
            ("as its paper says", under.run(figure=True, rate=RATE, partition="dirichlet", method="feddst")),
            (
                "as its code was released",
                under.run(figure=True, rate=RATE, partition="dirichlet", method="feddst", as_released=True),
            ),
            ("FedDrop", under.run(figure=True, rate=RATE, partition="dirichlet")),
        ],
    }


def runs(scale: Scale) -> list[RunConfig]:
    """Every variant."""
    return [config for group in variants(scale).values() for _, config in group]


def make(scale: Scale, find: Lookup) -> Page:
    """Tabulate where each variant ends."""
    text = "One seed; but for the first question, the images, rounds and constant learning rate of the figures.\n\n"
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
        text += f"**{question}**\n\n"
        text += markdown_table(["", "test accuracy, %", "best round, %", "training loss"], rows) + "\n\n"
    return Page(text=text)


EXPERIMENT = Experiment("explain", "What decides the outcome", "open points", runs, make)
