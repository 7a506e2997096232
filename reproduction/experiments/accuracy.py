"""Table II: test accuracy by sparsity, FedDrop and FedDST, underfitting and overfitting, IID and non-IID."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from feddrop.comparison import Comparison, matched
from feddrop.config import RunConfig
from reproduction.framework.drawing import draw_seeds, legend, panels
from reproduction.framework.experiment import Experiment, Lookup, Page, by_seed, markdown_table, percents, spread
from reproduction.framework.published import RATES, TABLE
from reproduction.framework.scales import MOVING, Scale
from reproduction.framework.settings import of_runs
from reproduction.framework.store import LAST, Result
from reproduction.framework.verdicts import Verdict, verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        scenario: underfitting (LeNet) or overfitting (AlexNet).
        partition: partition of the data.
        method: FedDrop or FedDST.
        moving: whether FedDST has a larger α, so that LeNet's mask moves.
        rule: aggregation rule of FedDrop; ``"model"`` reads the paper literally.
        lr: learning rate as a multiple of the one that was chosen without dropout.
    """

    scenario: str
    partition: str
    method: str
    moving: bool = False
    rule: str = "delta"
    lr: float = 1.0


LITERAL = Row("underfitting", "iid", "feddrop", rule="model")
TUNED = Row("overfitting", "dirichlet", "feddst", lr=2.0)
"""FedDST on AlexNet with the best of the learning rates in ``explain``; on LeNet the best one is FedDrop's."""
ROWS = (
    Row("underfitting", "iid", "feddrop"),
    LITERAL,
    Row("underfitting", "dirichlet", "feddrop"),
    Row("underfitting", "dirichlet", "feddst", moving=True),
    Row("underfitting", "dirichlet", "feddst"),
    Row("overfitting", "iid", "feddrop"),
    Row("overfitting", "dirichlet", "feddrop"),
    Row("overfitting", "dirichlet", "feddst"),
    TUNED,
)
RIVALS = {
    "underfitting": (
        Row("underfitting", "dirichlet", "feddst", moving=True),
        Row("underfitting", "dirichlet", "feddst"),
    ),
    "overfitting": (Row("overfitting", "dirichlet", "feddst"), TUNED),
}
"""The rows of FedDST that FedDrop is compared with: on LeNet with both values of α, since the mask never moves with the
one of FedDST's paper, which is the more accurate of the two here; on AlexNet with both learning rates."""
MODELS = {"underfitting": "lenet", "overfitting": "alexnet"}
TITLES = {"lenet": "LeNet", "alexnet": "AlexNet", "iid": "IID", "dirichlet": "non-IID"}
FC_ONLY = "with dropout in AlexNet's fully-connected layers only"
STILL, NEVER = 0.01, "none"
"""The α of FedDST's paper; and the entry for a mask that never moved."""
FIRST, CROSSING, PEAK, END = 0.1, 0.3, 0.15, 0.4
"""AlexNet in the paper: FedDrop is above FedDST from the first of these rates on and below it from the second; its
accuracy peaks at the third and falls towards the fourth."""


def title(row: Row) -> str:
    """Return the title of a row."""
    drop = "FedDrop" if row.rule == "delta" else f"FedDrop, rule {row.rule}"
    method = {"feddrop": drop, "feddst": f"FedDST, α = {MOVING['alpha'] if row.moving else STILL:g}"}[row.method]
    tuned = f", learning rate × {row.lr:g}" if row.lr != 1 else ""
    return f"{TITLES[MODELS[row.scenario]]}, {TITLES[row.partition]}, {method}{tuned}"


def _as_published(row: Row) -> bool:
    return not row.moving and row not in (LITERAL, TUNED)


def rates_of(scale: Scale, row: Row) -> tuple[float, ...]:
    """Return the rates at which a row is run."""
    if row == LITERAL:
        return scale.literal_rates
    if row.method == "feddrop":
        return scale.rates
    return scale.moving_rates if row.moving else scale.still_rates


def seeds_of(scale: Scale, row: Row, rate: float) -> tuple[int, ...]:
    """Return the seeds of one cell of the table."""
    repeated = row.method == "feddrop" and row != LITERAL and rate in scale.repeated[row.scenario, row.partition]
    rival = row in RIVALS[row.scenario] and rate in scale.moving_rates
    return scale.seeds if repeated or rival else scale.seeds[:1]


def config_of(scale: Scale, row: Row, rate: float) -> RunConfig:
    """Return the run of one cell of the table, with the first seed."""
    setting = scale.settings[row.scenario]
    feddst = MOVING if row.moving else None
    run = setting.run(
        rate=rate, partition=row.partition, method=row.method, rule=row.rule, feddst=feddst, seed=scale.seeds[0]
    )
    return replace(run, train=replace(run.train, lr=row.lr * run.train.lr))


def runs(scale: Scale) -> list[RunConfig]:
    """Return all runs, first seed first; within a row from the ends inwards, so that a half-finished row is useful."""
    found = []
    for row in ROWS:
        rates = rates_of(scale, row)
        order = sorted(range(len(rates)), key=lambda i: min(i, len(rates) - 1 - i))
        for i in order:
            base = config_of(scale, row, rates[i])
            found += [replace(base, seed=seed) for seed in seeds_of(scale, row, rates[i])]
    return sorted(found, key=lambda config: config.seed)


Table = dict[Row, dict[float, list[float | None]]]
"""Accuracy in % by row, rate and seed; None where it was not run."""


def measured(scale: Scale, find: Lookup) -> Table:
    """Return the table. Every cell uses all seeds that were run, even beyond those it needs."""
    return {
        row: {rate: percents(by_seed(find, config_of(scale, row, rate), scale.seeds)) for rate in rates_of(scale, row)}
        for row in ROWS
    }


def make(scale: Scale, find: Lookup) -> Page:
    """Make the table, our numbers above those of the paper, and draw it."""
    lines = measured(scale, find)
    rows = []
    for row in ROWS:
        rows.append([title(row), "ours", *(spread(lines[row].get(rate, [])) for rate in scale.rates)])
        if _as_published(row):
            published = dict(zip(RATES, TABLE[MODELS[row.scenario], row.partition, row.method], strict=True))
            rows.append(["", "paper", *(_number(published.get(rate)) for rate in scale.rates)])
    text = "".join(of_runs(s, config_of(scale, Row(s, "iid", "feddrop"), scale.rates[0])) for s in MODELS)
    text += "".join(
        of_runs(f"{s}, FedDST", config_of(scale, rows[0], scale.moving_rates[0])) for s, rows in RIVALS.items()
    )
    text += (
        f"Test accuracy in %, averaged over the last {LAST} rounds; mean over seeds ± its standard error (seeds). "
        "Empty cells were not run. FedDrop's rate and FedDST's sparsity refer to the weights of the layers that are "
        "dropped. FedDrop keeps AlexNet's convolutions and FedDST does not, so FedDrop sends more there.\n\n"
        + markdown_table(["", "", *(f"{rate:g}" for rate in scale.rates)], rows)
        + "\n\n![Accuracy against the dropout rate](accuracy.png)\n\n"
        + _moves(scale, find)
    )
    return Page(text=text, figures={"accuracy.png": _draw(lines)}, verdicts=_verdicts(scale, lines))


def _moves(scale: Scale, find: Lookup) -> str:
    """Tabulate how many weights each readjustment moved, per run."""
    rows = [
        [title(row), f"{rate:g}", str(seed), _moved(result)]
        for row in ROWS
        if row.method == "feddst"
        for rate in rates_of(scale, row)
        for seed, result in zip(scale.seeds, by_seed(find, config_of(scale, row, rate), scale.seeds), strict=True)
        if result is not None
    ]
    table = markdown_table(["", "sparsity", "seed", "weights that enter the mask at each readjustment"], rows)
    return (
        "**Does FedDST's mask move?** A device prunes a share α of its smallest weights and grows as many; the server "
        "keeps the largest of the union, and newly grown weights are zero. So a weight is replaced only if *all* "
        f"devices pruned it. Its paper has α = {STILL:g} and readjusts every 10 rounds in the first half of the run; α "
        f"= {MOVING['alpha']:g} every {MOVING['readjust_every']} rounds is our choice, not tuned. If the mask never "
        "moves, the row is a fixed sparse network. FedDrop is compared with both on LeNet and with α = "
        f"{STILL:g} on AlexNet, there also with FedDST at {TUNED.lr:g} times the learning rate. Runs without counts "
        "show the rounds in which the mask changed, since it is then sent again.\n\n" + table + "\n"
    )


def weights_moved(scale: Scale, find: Lookup, row: Row) -> list[int]:
    """Return how many weights entered FedDST's mask in each run of a row, except runs that did not count them."""
    found = []
    for rate in rates_of(scale, row):
        for result in by_seed(find, config_of(scale, row, rate), scale.seeds):
            if result is not None and "mask_moved" in result.series:
                found.append(int(result.values("mask_moved").sum()))
            elif result is not None and _moved(result) == NEVER:
                found.append(0)
    return found


def _moved(result: Result) -> str:
    """Format how many weights each readjustment moved; without a count, the rounds before the mask was sent again."""
    every, until = (result.config["method"][name] for name in ("readjust_every", "readjust_until"))
    rounds = range(every, math.floor(until * result.config["rounds"]) + 1, every)
    if "mask_moved" in result.series:
        return ", ".join(f"{result.values('mask_moved')[t - 1]:,.0f} in {t}" for t in rounds)
    pushed = result.values("push_bytes")
    changed = [t for t in rounds if pushed[t] > pushed.min()]  # round t + 1 has index t
    return f"some in {', some in '.join(map(str, changed))}; not counted" if changed else NEVER


def _verdicts(scale: Scale, lines: Table) -> list[Verdict]:
    falls: list[Comparison] = []
    peaks: list[Comparison] = []
    missing: list[float | None] = [None] * len(scale.seeds)
    for partition in ("iid", "dirichlet"):
        row = lines[Row("underfitting", partition, "feddrop")]
        rates = scale.repeated["underfitting", partition]
        falls += [
            Comparison(
                label=f"LeNet, {TITLES[partition]}, rate {low:g} against {high:g}",
                differences=matched(row[low], row[high]),
                pool=partition,
            )
            for low, high in pairwise(rates)
        ]
        row = lines[Row("overfitting", partition, "feddrop")]
        peaks += [
            Comparison(
                label=f"AlexNet, {TITLES[partition]}, rate {PEAK:g} against {other:g}",
                differences=matched(row.get(PEAK, missing), row.get(other, missing)),
                pool=f"{partition}, {other:g}",
            )
            for other in (scale.rates[0], END)
        ]
    asked = f"tested at {' and '.join(f'{rate:g}' for rate in scale.moving_rates)} only"
    beats, crosses = (_against(scale, lines, scenario) for scenario in MODELS)
    chosen = "the learning rate that was chosen without dropout"
    return [
        verdict("underfit-falls", falls, _between(scale)),
        verdict("overfit-peaks", peaks, "", FC_ONLY),
        verdict(
            "beats-feddst",
            [_feddst_point(row, rate, pair) for (row, rate), pair in beats.items()],
            f"{asked}; FedDST has {chosen}",
        ),
        verdict(
            "feddst-alexnet",
            [
                _feddst_point(row, rate, pair if rate < CROSSING else pair[::-1], below=rate >= CROSSING)
                for (row, rate), pair in crosses.items()
                if rate >= FIRST
            ],
            f"{asked}; FedDST has {chosen}, and one of its own; its mask covers the convolutions too, so equal rates "
            "are not equal sparsities",
        ),
    ]


def _between(scale: Scale) -> str:
    """Say between which rates accuracy is compared; others have too few seeds."""
    rates = [
        f"{', '.join(f'{rate:g}' for rate in scale.repeated['underfitting', partition])} ({TITLES[partition]})"
        for partition in ("iid", "dirichlet")
    ]
    return f"tested from one rate with all seeds to the next: {'; '.join(rates)}"


Pair = tuple[list[float | None], list[float | None]]


def _against(scale: Scale, lines: Table, scenario: str) -> dict[tuple[Row, float], Pair]:
    """Return FedDrop and its rivals at the sparsities that are run with all seeds."""
    ours = lines[Row(scenario, "dirichlet", "feddrop")]
    return {(row, rate): (ours[rate], lines[row][rate]) for row in RIVALS[scenario] for rate in scale.moving_rates}


def _feddst_point(row: Row, rate: float, pair: Pair, *, below: bool = False) -> Comparison:
    network, partition, name = title(row).split(", ", 2)
    order = f"FedDrop {'below' if below else 'above'} {name}"
    return Comparison(f"{network}, {partition}, {rate:g}: {order}", differences=matched(*pair), pool=name)


def _draw(lines: Table) -> Figure:
    from feddrop.report.style import SERIES

    figure, axes = panels(["LeNet: test accuracy, %", "AlexNet: test accuracy, %"])
    colours = {name: iter(SERIES) for name in MODELS}
    for row, cells in lines.items():
        panel, colour = axes[0 if row.scenario == "underfitting" else 1], next(colours[row.scenario])
        known = any(value is not None for values in cells.values() for value in values)
        label = title(row).split(", ", 1)[1] + " (not run)" * (not known)
        panel.plot([], [], color=colour, marker="o", label=label)
        draw_seeds(panel, list(cells), list(cells.values()), color=colour, marker="o")
        if _as_published(row):
            published = TABLE[MODELS[row.scenario], row.partition, row.method]
            shown = [(rate, value) for rate, value in zip(RATES, published, strict=True) if value is not None]
            panel.plot(*zip(*shown, strict=True), color=colour, linestyle=":", linewidth=1.2)
        panel.set_xlabel("dropout rate γ")
    for panel in axes:
        panel.plot([], [], color="grey", linestyle=":", label="paper")
        legend(panel, below=True)
    return figure


def _number(value: float | None) -> str:
    return "" if value is None else f"*{value:.2f}*"


EXPERIMENT = Experiment("accuracy", "Accuracy at equal rates and sparsities", "Table II", runs, make)
