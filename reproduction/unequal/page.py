"""The page of unequal rates: one table per task, verdicts, learning rates and curves, from stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feddrop.comparison import NO, YES, Answer
from reproduction.framework.drawing import legend, panels
from reproduction.framework.experiment import markdown_table, mean_of, spread
from reproduction.framework.store import Store
from reproduction.unequal.answer import behind_the_best, evidence
from reproduction.unequal.tables import LEVEL, Table, standing, tie
from reproduction.unequal.tasks import (
    CELL,
    EQUAL,
    HARD,
    IMPORTANCE,
    METHODS,
    MIXED,
    OURS,
    PAPER,
    RATES,
    SQUARED,
    SQUARED_UNITS,
    TASKS,
    VALIDATION,
    Task,
)
from reproduction.unequal.train import (
    budget,
    exponent_runs,
    learning_rate,
    search_runs,
    traffic,
    validated,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INTRODUCTION = (Path(__file__).parent / "introduction.md").read_text(encoding="utf-8")
"""The top of the page."""

DENSE = ("HeteroFL", "FedRolex", "FjORD")
"""The rivals that give every device a smaller dense network."""


def write(store: Store) -> tuple[str, dict[str, Figure]]:
    """Return the page as Markdown, and its figures by file name."""
    tables = {name: Table(task, store) for name, task in TASKS.items()}
    figures = {}
    text = INTRODUCTION.format(**_top(tables), exponents=_exponents(store))
    for name, table in tables.items():
        text += f"## {table.task.title}\n\n"
        if not table.columns:
            text += f"Not complete; `python -m reproduction unequal {name}` trains what is missing.\n\n"
            continue
        text += _about(table, store) + _accuracies(table) + _verdicts(table)
        text += f"![Accuracy against traffic](img/unequal-{name}.png)\n\n" + _search(table.task, store)
        figures[f"unequal-{name}.png"] = _figure(table)
    return text, figures


def _top(tables: dict[str, Table]) -> dict[str, str]:
    """Return the numbers and tables of the introduction, by the name of their place."""
    return {
        "mixed": evidence(tables, IMPORTANCE, MIXED),
        "hard": evidence(tables, SQUARED, HARD),
        "hard_one": evidence({n: t for n, t in tables.items() if SQUARED not in t.task.methods}, IMPORTANCE, HARD),
        "equal": evidence(tables, IMPORTANCE, EQUAL),
        "fewer_rounds": evidence(tables, IMPORTANCE, EQUAL, ("FedAvg",)),
        "dense_mixed": evidence(tables, SQUARED_UNITS, MIXED, DENSE),
        "dense_hard": evidence(tables, SQUARED_UNITS, HARD, DENSE),
        "paper": evidence(tables, PAPER, MIXED),
        "behind_the_best": behind_the_best(tables),
        "summary": _summary(tables),
        "rates": _rates(),
        "held": f"{VALIDATION:.0%}",
        "level": f"{LEVEL:g}",
    }


def _fold(summary: str, inner: str) -> str:
    return f'<details markdown="1"><summary>{summary}</summary>\n\n{inner}\n\n</details>\n\n'


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
    if missing := [column for column in task.columns if column not in table.columns]:
        text += f" Not trained yet: {', '.join(missing)}."
    if few := [column for column in table.columns if column not in table.judged]:
        text += (
            f" **Preliminary**: not all of {len(task.seeds)} seeds are trained in {', '.join(few)}, so there is no "
            "verdict, and the tables above leave it out."
        )
    if CELL in table.columns:
        text += f" The cell gives the rates {', '.join(f'{rate:.2f}' for rate in task.rates(CELL))}."
    return text + "\n\n"


def _accuracies(table: Table) -> str:
    rows: dict[str, list[str]] = {method: [method] for method in table.task.methods}
    for column in table.columns:
        found = table.scores[column]
        best = max(map(mean_of, found.values())) if column in table.judged else np.nan
        for method, row in found.items():
            cell = spread(row) or "not run"
            rows[method] += [f"**{cell}**" if mean_of(row) == best else cell, str(table.rounds[column, method] or "")]
    head = ["method", *(word for column in table.columns for word in (column, "rounds"))]
    return markdown_table(head, list(rows.values())) + "\n\n"


def _verdicts(table: Table) -> str:
    text = ""
    for ours in table.ours:
        told = [table.answers(ours, column) for column in table.columns]
        rows = [[rival, *(_cell(answers[rival]) for answers in told)] for rival in table.rivals]
        rows.append(["**in all**", *(f"**{standing(answers)}**" for answers in told)])
        text += _fold(f"{ours}, minus each rival, in points", markdown_table(["rival", *table.columns], rows))
    return text


def _cell(answer: Answer) -> str:
    if not answer.seeds:
        return "not run"
    word = {YES: "better", NO: "worse"}.get(answer.says, tie(answer))
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
    return _fold("Search for the learning rates, at mixed rates", inner)


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
    """Return how the importance draws compare with all rivals, by task and column."""
    rows = [
        [table.task.title, column, *(standing(table.answers(ours, column)) for ours in (IMPORTANCE, SQUARED))]
        for table in tables.values()
        for column in table.judged
    ]
    return markdown_table(["task", "rates", IMPORTANCE, SQUARED], rows)
