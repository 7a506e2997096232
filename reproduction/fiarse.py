"""FIARSE's published comparison at a small size: ``python -m reproduction fiarse``.

A hundred devices of four sizes, ten per round, learn CIFAR-100; every method is tested at all four sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from feddrop.config import (
    FIARSE,
    Data,
    FedDrop,
    FedRolex,
    HeteroFL,
    MethodSettings,
    Model,
    Participation,
    RunConfig,
    Train,
)
from feddrop.methods import build_method
from feddrop.methods.sizes import sub_model
from feddrop.simulation.run import Run
from feddrop.storage.files import write_atomically
from reproduction.framework.experiment import markdown_table
from reproduction.framework.store import Result, Store
from reproduction.framework.sweep import Watcher, sweep

DEVICES, ROUNDS, SEED = 100, 24, 0
SIZES = {"1": 1.0, "1/4": 1 / 4, "1/16": 1 / 16, "1/64": 1 / 64}
"""Share of the parameters that a device holds, by name; a quarter of the devices has each."""
IMPORTANCE, LARGEST = "FedDrop, importance", "FedDrop, largest weights"
METHODS: dict[str, MethodSettings] = {
    "HeteroFL": HeteroFL(),
    "FedRolex": FedRolex(),
    "FIARSE": FIARSE(),
    IMPORTANCE: FedDrop(draw="importance", threshold="network", rule="holders", step="plain"),
}
PUBLISHED = {
    "HeteroFL": (36.44, 33.52, 29.80, 27.24),
    "FedRolex": (38.40, 36.44, 30.84, 21.00),
    "FIARSE": (40.96, 43.72, 43.24, 39.12),
}
"""Published accuracies in percent at the four sizes after 800 rounds, on the devices' own test samples."""
GLOBAL = {"HeteroFL": 30.67, "FedRolex": 29.89, "FIARSE": 38.63}
"""Published means over the sizes on the whole test set."""
_FACT = "largest-weights"
INTRODUCTION = (Path(__file__).parent / "fiarse.md").read_text(encoding="utf-8")
"""The top of the page."""


def run_of(method: str, rounds: int = ROUNDS) -> RunConfig:
    """Return the configuration of a run."""
    sizes = list(SIZES.values())
    return RunConfig(
        seed=SEED,
        rounds=rounds,
        rate=tuple(1.0 - sizes[device * len(sizes) // DEVICES] for device in range(DEVICES)),
        eval_every=30,
        eval_rates=tuple(1.0 - size for size in sizes[1:]),
        method=METHODS[method],
        data=Data("cifar100", devices=DEVICES, partition="dirichlet", alpha=0.3),
        model=Model("resnet18", width=0.25, norm="static"),
        train=Train(lr=0.1, batch_size=20),
        participation=Participation(count=10),
    )


def run(*, results: Path, work: Path, out: Path, workers: int, training: bool, watch: Watcher) -> Path:
    """Train the runs that are missing, then write the page.

    Args:
        results: folder of finished runs.
        work: folder of unfinished runs.
        out: folder of the page.
        workers: runs to train at the same time.
        training: whether to train missing runs.
        watch: progress callback.

    Returns:
        The page.
    """
    store = Store(results, work)
    if training:
        sweep([run_of(method) for method in METHODS], store, workers=workers, watch=watch)
        store.fact(_FACT, lambda: largest_weights(store.folder(run_of(IMPORTANCE))))
    path = out / "sizes.md"
    write_atomically(path, page(store).encode())
    return path


def largest_weights(folder: Path) -> dict[str, float]:
    """Return the accuracy of a trained network, cut to its largest weights as FIARSE does, at every size but 1."""
    run = Run(run_of(IMPORTANCE), folder, resume=True)
    task = run.prepared.task
    method, device = build_method(FIARSE(), task.setup), task.start()
    found = {}
    for name, size in list(SIZES.items())[1:]:
        network = sub_model(method, {}, run.params, run.round, 1.0 - size, run.config.seed)
        found[name] = task.combine(device.evaluate(chunk, network) for chunk in task.chunks)["accuracy"]
    return found


def accuracies(result: Result | None) -> tuple[float, ...]:
    """Return the accuracies of a run at all sizes at its end, in percent; NaN if it was not run."""
    if result is None:
        return (float("nan"),) * len(SIZES)
    names = ("test_accuracy", *(f"accuracy_at_{1.0 - size:g}" for size in list(SIZES.values())[1:]))
    return tuple(100.0 * float(result.values(name)[-1]) for name in names)


def page(store: Store) -> str:
    """Return the page as Markdown, from the stored runs."""
    found = {method: store.get(run_of(method)) for method in METHODS}
    ours = {method: accuracies(result) for method, result in found.items()}
    ranked = dict(ours)
    if (store.results / "facts" / f"{_FACT}.json").exists():
        cut = store.fact(_FACT, dict)
        ours[LARGEST] = (ours[IMPORTANCE][0], *(100.0 * cut[name] for name in list(SIZES)[1:]))
    head = ["method", *(f"size {name}" for name in SIZES), "mean over sizes"]
    means = {method: float(np.mean(row)) for method, row in ours.items()}
    sent = [[method, "not run" if one is None else f"{_megabytes(one):,.0f}"] for method, one in found.items()]
    return (
        "\n\n".join(
            [
                INTRODUCTION.format(rounds=ROUNDS, seed=SEED).rstrip(),
                "## Here",
                markdown_table(head, _rows(ours, means)),
                "## Published",
                "800 rounds, full width; sizes on the devices' own test samples, the mean on the whole test set:",
                markdown_table(head, _rows(PUBLISHED, GLOBAL)),
                "## Ranking by size",
                markdown_table(["size", "here", "published"], _rankings(ranked, means)),
                "## Traffic",
                markdown_table(["method", "MB sent in all"], sent),
            ]
        )
        + "\n"
    )


def _megabytes(result: Result) -> float:
    return float((result.values("push_bytes") + result.values("pull_bytes")).sum()) / 1e6


def _rows(table: Mapping[str, Sequence[float]], means: Mapping[str, float]) -> list[list[str]]:
    """Format accuracies, the best of every column bold."""
    full = {method: (*row, means[method]) for method, row in table.items()}
    best = np.array([[-1.0 if np.isnan(value) else value for value in row] for row in full.values()]).max(axis=0)
    return [
        [method, *(_bold(value, value == top) for value, top in zip(row, best, strict=True))]
        for method, row in full.items()
    ]


def _bold(value: float, best: bool) -> str:
    text = "not run" if np.isnan(value) else f"{value:.2f}"
    return f"**{text}**" if best else text


def _rankings(ours: Mapping[str, Sequence[float]], means: Mapping[str, float]) -> list[list[str]]:
    columns = [{method: row[n] for method, row in ours.items()} for n in range(len(SIZES))]
    columns.append({method: means[method] for method in ours})
    printed = [{method: row[n] for method, row in PUBLISHED.items()} for n in range(len(SIZES))]
    names = [*SIZES, "mean"]
    return [
        [name, ranking(here), ranking(there)]
        for name, here, there in zip(names, columns, [*printed, GLOBAL], strict=True)
    ]


def ranking(scores: Mapping[str, float]) -> str:
    """Return names from the highest score to the lowest; those that were not run are left out."""
    known = {name: score for name, score in scores.items() if not np.isnan(score)}
    return " > ".join(sorted(known, key=lambda name: -known[name]))
