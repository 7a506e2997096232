"""The page of unequal rates: one table per task, verdicts, learning rates and curves, from stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feddrop.comparison import LEAST_SEEDS, NO, UNDECIDED, YES, Answer, Comparison, judge, matched
from reproduction.framework.drawing import legend, panels
from reproduction.framework.experiment import by_seed, markdown_table, mean_of, spread
from reproduction.framework.store import LAST, Result, Store
from reproduction.unequal.tasks import CELL, METHODS, OURS, RATES, TASKS, VALIDATION, Task
from reproduction.unequal.train import (
    budget,
    exponent_runs,
    learning_rate,
    rounds_of,
    search_runs,
    traffic,
    validated,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INTRODUCTION = (Path(__file__).parent / "introduction.md").read_text(encoding="utf-8")
"""The top of the page."""

LEVEL = 1.0
"""Two methods are level if their difference is undecided and its whole interval lies within so many points of 0."""

Scores = dict[str, list[float | None]]
"""Test accuracies in percent by method, one per seed; None where a run is missing."""


class Table:
    """The judged runs of a task.

    Args:
        task: the task.
        store: finished runs.
    """

    def __init__(self, task: Task, store: Store) -> None:
        self.task, self.rounds, self.results = task, {}, {}
        for method in task.methods:
            lr = learning_rate(task, method, store)
            for column in task.columns:
                rounds = rounds_of(task, method, column, store)
                at = None if rounds is None or lr is None else task.run(method, column, rounds=rounds, lr=lr, seed=0)
                self.rounds[column, method] = rounds
                self.results[column, method] = (
                    [None] * len(task.seeds) if at is None else by_seed(store.get, at, task.seeds)
                )
        self.columns = [
            column for column in task.columns if any(any(self.results[column, method]) for method in task.methods)
        ]

    def scores(self, column: str) -> Scores:
        """Return the accuracies of all methods in a column.

        A run is tested as the full network and, if every device drops something, as the sub-model of the smallest
        rate, too: nested methods leave the rest of the network untrained. The better mean over seeds counts.
        """
        found: Scores = {}
        for method in self.task.methods:
            names = ("test_accuracy", f"accuracy_at_{min(self.task.rates(column)):g}")
            ways = [[_last(one, name) for one in self.results[column, method]] for name in names]
            found[method] = max(ways, key=lambda row: np.nan_to_num(mean_of(row), nan=-1.0))
        return found

    def answers(self, ours: str) -> dict[str, dict[str, Answer]]:
        """Return whether ``ours`` beats each rival, by rival and column."""
        found = {column: self.scores(column) for column in self.columns}
        rivals = [method for method in self.task.methods if method not in OURS]
        return {
            rival: {
                column: judge([Comparison(column, matched(found[column][ours], found[column][rival]))])[0]
                for column in self.columns
            }
            for rival in rivals
        }


def _last(result: Result | None, name: str) -> float | None:
    if result is None:
        return None
    values = result.values(name)[-LAST:]
    return 100.0 * float(np.nanmean(values)) if np.isfinite(values).any() else None


def standing(told: dict[str, dict[str, Answer]], column: str) -> str:
    """Sum up how a method compares with the rivals in a column: with those that are better, else with the best one."""
    of = {rival: by_column[column] for rival, by_column in told.items()}
    if any(not answer.seeds for answer in of.values()):
        return "not run"
    if any(answer.seeds < LEAST_SEEDS for answer in of.values()):
        return "few seeds"
    rival, least = min(of.items(), key=lambda pair: pair[1].mean)
    if least.says == UNDECIDED:
        behind = [name for name, answer in of.items() if answer.says == NO]
        if behind:
            rival, least = behind[0], of[behind[0]]
    word = {YES: "first", NO: "behind"}.get(least.says, _tie(least))
    return f"{word}, {least.mean:+.2f} to {rival}"


def _tie(answer: Answer) -> str:
    """Return the word for a difference within its margin: known to be small, or not known."""
    return "level" if abs(answer.mean) + answer.margin < LEVEL else "undecided"


def write(store: Store) -> tuple[str, dict[str, Figure]]:
    """Return the page as Markdown, and its figures by file name."""
    tables = {name: Table(task, store) for name, task in TASKS.items()}
    figures = {}
    text = INTRODUCTION.format(
        rates=_rates(), held=f"{VALIDATION:.0%}", level=f"{LEVEL:g}", exponents=_exponents(store)
    )
    text += _summary(tables)
    for name, table in tables.items():
        text += f"## {table.task.title}\n\n"
        if not table.columns:
            text += f"Not run; `python -m reproduction unequal {name}` trains it.\n\n"
            continue
        text += _about(table, store) + _accuracies(table) + _verdicts(table)
        text += f"![Accuracy against traffic](img/unequal-{name}.png)\n\n" + _search(table.task, store)
        figures[f"unequal-{name}.png"] = _figure(table)
    return text, figures


def _about(table: Table, store: Store) -> str:
    task, base = table.task, table.task.base
    data = f"{base.data.train_limit:,}" if base.data.train_limit else "all"
    momentum = f", momentum {base.train.momentum:g}" if base.train.momentum else ""
    amounts = ", ".join(f"{column}: {(budget(task, column, store) or 0.0) / 1e6:.3g} MB" for column in table.columns)
    text = (
        f"{base.data.devices} devices, {data} training samples, one local epoch of batches of {base.train.batch_size}"
        f"{momentum}, learning rate falling as a cosine. Budget, the bytes of {task.rounds} rounds of the paper's "
        f"method: {amounts}."
    )
    if missing := [method for method in METHODS if method not in task.methods]:
        text += f" Not compared here, to save time: {', '.join(missing)}."
    if CELL in table.columns:
        text += f" The cell gives the rates {', '.join(f'{rate:.2f}' for rate in task.rates(CELL))}."
    return text + "\n\n"


def _accuracies(table: Table) -> str:
    rows: dict[str, list[str]] = {method: [method] for method in table.task.methods}
    for column in table.columns:
        found = table.scores(column)
        best = max([mean_of(row) for row in found.values() if None not in row], default=np.nan)
        for method, row in found.items():
            cell = spread(row) or "not run"
            rows[method] += [f"**{cell}**" if mean_of(row) == best else cell, str(table.rounds[column, method] or "")]
    head = ["method", *(word for column in table.columns for word in (column, "rounds"))]
    return markdown_table(head, list(rows.values())) + "\n\n"


def _verdicts(table: Table) -> str:
    text = ""
    for ours in _ours(table.task):
        told = table.answers(ours)
        rows = [[rival, *(_cell(answer) for answer in by.values())] for rival, by in told.items()]
        rows.append(["**in all**", *(f"**{standing(told, column)}**" for column in table.columns)])
        inner = markdown_table(["rival", *table.columns], rows)
        text += f"<details><summary>{ours}, minus each rival, in points</summary>\n\n{inner}\n\n</details>\n\n"
    return text


def _ours(task: Task) -> list[str]:
    return [method for method in task.methods if method in OURS]


def _cell(answer: Answer) -> str:
    if not answer.seeds:
        return "not run"
    word = {YES: "better", NO: "worse"}.get(answer.says, _tie(answer))
    error = f" ± {answer.error:.2f}" if np.isfinite(answer.error) else ""
    return f"{answer.mean:+.2f}{error}, {word}"


def _search(task: Task, store: Store) -> str:
    """Return the learning rates that were tried, with their validation accuracies."""
    if task.search:
        return f"Learning rates are those of *{TASKS[task.search].title}*.\n\n"
    rows = []
    for method in task.methods:
        runs, chosen = search_runs(task, method, store), learning_rate(task, method, store)
        tried = [(lr, validated([store.get(run) for run in some])) for lr, some in runs.items()]
        shown = [f"{lr:g}: {100 * value:.1f}" for lr, value in tried if np.isfinite(value)]
        rows.append([method, ", ".join(shown), "" if chosen is None else f"{chosen:g}"])
    inner = markdown_table(["method", "learning rate: validation accuracy, %", "chosen"], rows)
    return f"<details><summary>Search for the learning rates, at mixed rates</summary>\n\n{inner}\n\n</details>\n\n"


def _exponents(store: Store) -> str:
    """Return the validation accuracies of every exponent, and of each seed."""
    found = {}
    for label, runs in exponent_runs(TASKS["lenet"], store).items():
        each = [100.0 * validated([store.get(run)]) for run in runs]
        if np.isfinite(each).all():
            found[label] = f"{label}: {np.mean(each):.1f} % ({', '.join(f'{one:.1f}' for one in each)})"
    if len(found) > 1:
        return f"Mean (each of three seeds): {'; '.join(found.values())}"
    return (
        "These runs are not stored. Mean of two seeds: 1: 10.4 %; 2: 11.2 %; 3: 10.7 %; 4: 11.0 %; FIARSE: 10.6 %; on "
        "a third seed, 1: 10.45 %; 2: 10.43 %; FIARSE: 10.98 %"
    )


def _figure(table: Table) -> Figure:
    from feddrop.report.style import SERIES

    columns = table.columns[:2]
    figure, axes = panels([f"rates: {column}" for column in columns])
    for panel, column in zip(axes, columns, strict=True):
        for number, method in enumerate(METHODS):
            known = [one for one in table.results.get((column, method), ()) if one is not None]
            if known:
                sent = np.mean([np.cumsum(traffic(one)) for one in known], axis=0) / 1e6
                mean = 100.0 * np.mean([one.values("test_accuracy") for one in known], axis=0)
                there = np.isfinite(mean)
                look: dict[str, Any] = {"marker": "osv^D*PdhX8"[number], "lw": 2.2 if method in OURS else 1.2, "ms": 4}
                panel.plot(sent[there], mean[there], label=method, color=SERIES[number % len(SERIES)], **look)
        panel.set_xlabel("MB sent")
        panel.set_ylabel("test accuracy of the full network, %")
    legend(axes[0], below=True)
    return figure


def _rates() -> str:
    return "\n".join(f"- *{column}*: {', '.join(f'{rate:g}' for rate in rates)}" for column, rates in RATES.items())


def _summary(tables: dict[str, Table]) -> str:
    """Return how each variant of federated dropout compares with all rivals, by task and column."""
    rows = []
    for table in tables.values():
        told = {ours: table.answers(ours) for ours in _ours(table.task)}
        rows += [
            [table.task.title, column, *(standing(told[ours], column) if ours in told else "not run" for ours in OURS)]
            for column in table.columns
        ]
    head = markdown_table(["task", "rates", *OURS], rows)
    lead = (
        "Each variant of federated dropout minus its strongest rival, in points. A rival that is better beyond the "
        "noise comes first:"
    )
    return f"## In short\n\n{lead}\n\n{head}\n\n" if rows else ""
