"""Table II: test accuracy at equal sparsity, FedDrop and FedDST, underfitting and overfitting, IID and non-IID."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from feddrop.config import RunConfig
from feddrop.paper.experiment import MARGIN, Experiment, Lookup, Page, Verdict, markdown_table, outcome
from feddrop.paper.published import RATES, TABLE
from feddrop.paper.scales import Scale
from feddrop.paper.store import LAST

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = (
    ("underfitting", "iid", "feddrop"),
    ("underfitting", "dirichlet", "feddrop"),
    ("underfitting", "dirichlet", "feddst"),
    ("overfitting", "iid", "feddrop"),
    ("overfitting", "dirichlet", "feddrop"),
    ("overfitting", "dirichlet", "feddst"),
)
MODELS = {"underfitting": "lenet", "overfitting": "alexnet"}
TITLES = {"lenet": "LeNet", "alexnet": "AlexNet", "iid": "IID", "dirichlet": "non-IID"}
METHODS = {"feddrop": "FedDrop", "feddst": "FedDST"}
FIRST, CROSSING = 0.1, 0.3
"""AlexNet, non-IID, in the paper: FedDrop is above FedDST from the first of these rates on, below it from the other."""


def runs(scale: Scale) -> list[RunConfig]:
    """Every row, the first seed first; within a row from the ends inwards: a half-done row already says much."""
    order = sorted(range(len(scale.rates)), key=lambda i: min(i, len(scale.rates) - 1 - i))
    return [
        _config(scale, row, scale.rates[i], seed)
        for seed in scale.seeds
        for row in ROWS
        for i in order
        if scale.rates[i] > 0 or row[2] == "feddrop"
        if seed == scale.seeds[0] or scale.rates[i] in scale.repeated
    ]


def _config(scale: Scale, row: tuple[str, str, str], rate: float, seed: int) -> RunConfig:
    scenario, partition, method = row
    return scale.settings[scenario].run(rate=rate, seed=seed, partition=partition, method=method)


def measured(scale: Scale, find: Lookup, row: tuple[str, str, str]) -> list[tuple[float, float, int] | None]:
    """Return mean accuracy in %, half the spread over seeds, and their number, at every rate of a row."""
    cells: list[tuple[float, float, int] | None] = []
    for rate in scale.rates:
        found = [find(_config(scale, row, rate, seed)) for seed in scale.seeds]
        values = [100.0 * result.accuracy for result in found if result is not None]
        cells.append((float(np.mean(values)), float(np.ptp(values)) / 2, len(values)) if values else None)
    return cells


def make(scale: Scale, find: Lookup) -> Page:
    """Write the table, ours above the paper's, and draw it."""
    table, lines = [], {}
    for row in ROWS:
        scenario, partition, method = row
        model = MODELS[scenario]
        cells = measured(scale, find, row)
        lines[row] = cells
        name = f"{TITLES[model]}, {TITLES[partition]}, {METHODS[method]}"
        table.append([name, "ours", *map(_cell, cells)])
        published = dict(zip(RATES, TABLE[model, partition, method], strict=True))
        table.append(["", "paper", *(_number(published.get(rate)) for rate in scale.rates)])
    text = (
        f"Test accuracy in %, the mean of the last {LAST} rounds"
        + (f", ± half the spread where {len(scale.seeds)} seeds were run" if len(scale.seeds) > 1 else ", one seed")
        + ". An empty cell was not run.\n\n"
        + markdown_table(["", "", *(f"{rate:g}" for rate in scale.rates)], table)
        + "\n\n![Accuracy against the dropout rate](accuracy.png)\n"
    )
    return Page(text=text, figures={"accuracy.png": _draw(scale, lines)}, verdicts=_verdicts(scale, lines))


def _verdicts(scale: Scale, lines: dict[tuple[str, str, str], list[tuple[float, float, int] | None]]) -> list[Verdict]:
    def values(row: tuple[str, str, str]) -> list[float | None]:
        return [None if cell is None else cell[0] for cell in lines[row]]

    falls: list[bool | None] = []
    notes = []
    for partition in ("iid", "dirichlet"):
        known = _known(scale, values(("underfitting", partition, "feddrop")))
        row = [v for _, v in known]
        enough = _enough(scale, known)
        falls.append(
            row[0] > row[-1] + MARGIN and float(np.corrcoef(range(len(row)), row)[0, 1]) < -0.8 if enough else None
        )
        if enough:
            notes.append(
                f"{TITLES[partition]} {row[0]:.1f} to {row[-1]:.1f} % ({len(row)} of {len(scale.rates)} rates)"
            )
    peaks: list[bool | None] = []
    best = []
    for partition in ("iid", "dirichlet"):
        known = _known(scale, values(("overfitting", partition, "feddrop")))
        if _enough(scale, known):
            (_, first), *_, (end, last) = known
            rate, top = max(known, key=lambda one: one[1])
            peaks += [top > first + MARGIN, top > last + MARGIN]
            best.append(
                f"{TITLES[partition]} {first:.1f} % at 0, best {top:.1f} % at {rate:g}, {last:.1f} % at {end:g}"
            )
        else:
            peaks += [None, None]
    rivals = {s: [values((s, "dirichlet", method)) for method in METHODS] for s in MODELS}
    above = {
        s: [None if a is None or b is None else a > b for a, b in zip(*rows, strict=True)] for s, rows in rivals.items()
    }
    crosses = [
        None if answer is None else answer == (rate < CROSSING)
        for rate, answer in zip(scale.rates, above["overfitting"], strict=True)
        if rate >= FIRST
    ]
    return [
        Verdict("underfit-falls", "; ".join(notes), outcome(falls)),
        Verdict("overfit-peaks", "; ".join(best), outcome(peaks)),
        Verdict("beats-feddst", _versus(scale, *rivals["underfitting"]), outcome(above["underfitting"][1:])),
        Verdict("feddst-alexnet", _versus(scale, *rivals["overfitting"]), outcome(crosses)),
    ]


def _versus(scale: Scale, ours: list[float | None], theirs: list[float | None]) -> str:
    both = [row for row in zip(scale.rates, ours, theirs, strict=True) if None not in row]
    return "; ".join(f"rate {rate:g}: FedDrop {a:.1f} %, FedDST {b:.1f} %" for rate, a, b in both)


def _known(scale: Scale, row: list[float | None]) -> list[tuple[float, float]]:
    return [(rate, v) for rate, v in zip(scale.rates, row, strict=True) if v is not None]


def _enough(scale: Scale, known: list[tuple[float, float]]) -> bool:
    """Say whether a row can be judged: both ends and a rate between them are known."""
    return len(known) > 2 and (known[0][0], known[-1][0]) == (scale.rates[0], scale.rates[-1])


def _draw(scale: Scale, lines: dict[tuple[str, str, str], list[tuple[float, float, int] | None]]) -> Figure:
    from feddrop.paper.drawing import legend, panels
    from feddrop.report.style import SERIES

    figure, axes = panels(["LeNet: test accuracy, %", "AlexNet: test accuracy, %"])
    for (row, cells), colour in zip(lines.items(), (*SERIES[:3], *SERIES[:3]), strict=True):
        scenario, partition, method = row
        panel = axes[0 if scenario == "underfitting" else 1]
        label = f"{METHODS[method]}, {TITLES[partition]}"
        known = [(rate, *cell[:2]) for rate, cell in zip(scale.rates, cells, strict=True) if cell is not None]
        panel.plot([], [], color=colour, marker="o", label=label)
        if known:
            rates, means, spreads = zip(*known, strict=True)
            panel.errorbar(rates, means, yerr=spreads, color=colour, marker="o", capsize=2)
        published = TABLE[MODELS[scenario], partition, method]
        points = [(rate, value) for rate, value in zip(RATES, published, strict=True) if value is not None]
        panel.plot(*zip(*points, strict=True), color=colour, linestyle=":", linewidth=1.2)
        panel.set_xlabel("dropout rate γ")
    for panel in axes:
        panel.plot([], [], color="grey", linestyle=":", label="the paper's")
        legend(panel)
    return figure


def _cell(cell: tuple[float, float, int] | None) -> str:
    if cell is None:
        return ""
    return f"{cell[0]:.2f}" + (f" ± {cell[1]:.1f}" if cell[2] > 1 else "")


def _number(value: float | None) -> str:
    return "" if value is None else f"*{value:.2f}*"


EXPERIMENT = Experiment("accuracy", "Accuracy at equal sparsity", "Table II", runs, make)
