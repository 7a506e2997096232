"""The page of unequal rates: one table per task, verdicts, learning rates and curves, from stored runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from feddrop.comparison import NO, YES, Answer, Comparison, judge, matched
from reproduction.framework.drawing import legend, not_run, panels
from reproduction.framework.experiment import by_seed, markdown_table, mean_of, spread
from reproduction.framework.store import LAST, Result, Store
from reproduction.unequal.tasks import CELL, METHODS, OURS, RATES, SEEDS, TASKS, VALIDATION, Task
from reproduction.unequal.train import budget, judged_run, learning_rate, search_runs, traffic, validated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INTRODUCTION = """# Which method should I use?

This page compares learning methods at the unequal rates that a cell gives its devices, at equal traffic. It is written
by `python -m reproduction unequal --no-train --out docs` from the runs in `reproduction/results/unequal`; without
`--no-train`, missing runs are trained first, and `python -m reproduction unequal lenet --rates hard` trains one column.

| your situation | use |
|---|---|
| devices differ, weights may be dropped one by one | `method = {{ name = "feddrop", draw = "importance", threshold = "network", rule = "holders", step = "plain" }}` |
| all devices at one moderate rate, as in the paper | `feddrop`, the default, or the line above |
| very high rates for all (half the devices at 0.75 and more) | `fiarse`, or the line above |
| every device can hold the full network, and only traffic matters | `fedavg` with fewer rounds is hard to beat on non-IID data |
| devices need a smaller dense network (compute and memory, too) | `feddrop` with `level = "unit"`, `draw = "importance"`, `rule = "holders"`, `step = "plain"`, at moderate rates |
| the paper's convergence analysis must apply to the letter | `feddrop`, the default |

**How it was compared.** All methods may send the same number of bytes, up and down, masks included: as many as the
paper's method sends in the rounds given below. Cheaper rounds mean more rounds; FedAvg, which sends the full network,
gets fewer. Every method has its own learning rate, chosen at the mixed rates on {held} of the training samples, which are
held back, with seeds that are not judged; factors of 2 are tried until the best one is not at the end of the range.
Where every device drops something, nested methods leave a part of the network untrained; each method is therefore
tested twice, as the full network and as the sub-model of the smallest rate, and the better one counts.

Test accuracy in percent, mean ± standard error over {seeds} seeds; the highest mean is bold. Differences are taken seed
by seed and judged by the rule of `feddrop.comparison`: *better* and *worse* are beyond a 95 % margin, with spreads pooled
over the columns of a rival. There is no correction for the number of comparisons. The rates:

{rates}
- *cell*: what the optimal allocation gives in the paper's cell if three of ten devices have a channel 10 dB worse and two
  20 dB worse, at the deadline for which the mean rate is 0.6

"""
"""The top of the page."""

Scores = dict[str, list[float | None]]
"""Test accuracies in percent by method, one per seed; None where a run is missing."""


def results_of(task: Task, method: str, column: str, store: Store) -> list[Result | None]:
    """Return the runs of a cell of the table, one per seed."""
    run = judged_run(task, method, column, 0, store)
    return [None] * len(SEEDS) if run is None else by_seed(store.get, run, SEEDS)


def scores(task: Task, column: str, store: Store) -> Scores:
    """Return the accuracies of all methods in a column.

    A run is tested as the full network and, if every device drops something, as the sub-model of the smallest rate,
    too: nested methods leave the rest of the network untrained. The one with the better mean over seeds counts.
    """
    found: Scores = {}
    for method in METHODS:
        results = results_of(task, method, column, store)
        ways = [[_last(one, name) for one in results] for name in ("test_accuracy", _at(task, column))]
        found[method] = max(ways, key=lambda row: np.nan_to_num(mean_of(row), nan=-1.0))
    return found


def _at(task: Task, column: str) -> str:
    return f"accuracy_at_{min(task.rates(column)):g}"


def _last(result: Result | None, name: str) -> float | None:
    if result is None:
        return None
    values = result.values(name)[-LAST:]
    return 100.0 * float(np.nanmean(values)) if np.isfinite(values).any() else None


def answers(task: Task, ours: str, columns: list[str], store: Store) -> dict[str, dict[str, Answer]]:
    """Return whether ``ours`` beats each rival, by rival and column; spreads are pooled over the columns of a rival."""
    found = {column: scores(task, column, store) for column in columns}
    rivals = [method for method in METHODS if method not in OURS]
    asked = [
        Comparison(column, matched(found[column][ours], found[column][rival]), pool=rival)
        for rival in rivals
        for column in columns
    ]
    told = iter(judge(asked))
    return {rival: {column: next(told) for column in columns} for rival in rivals}


def standing(told: dict[str, dict[str, Answer]], column: str) -> str:
    """Sum up how a method compares with all rivals in a column."""
    of = {rival: by_column[column] for rival, by_column in told.items()}
    if any(not answer.seeds for answer in of.values()):
        return "not run"
    better = [rival for rival, answer in of.items() if answer.says == NO]
    if better:
        return f"behind {', '.join(better)}"
    ahead = all(answer.mean > 0 for answer in of.values())
    if all(answer.says == YES for answer in of.values()):
        return "first"
    return "first, within the noise" if ahead else "within the noise of the first"


def write(store: Store) -> tuple[str, dict[str, Figure]]:
    """Return the page as Markdown, and its figures by file name."""
    text, figures = (
        INTRODUCTION.format(rates=_rates(), seeds=len(SEEDS), held=f"{VALIDATION:.0%}") + _summary(store),
        {},
    )
    for name, task in TASKS.items():
        columns = [column for column in task.columns if _known(scores(task, column, store))]
        text += f"## {task.title}\n\n"
        if not columns:
            text += f"Not run; `python -m reproduction unequal {name}` trains it.\n\n"
            continue
        text += _about(task, columns, store) + _table(task, columns, store) + _verdicts(task, columns, store)
        text += f"![Accuracy against traffic](img/unequal-{name}.png)\n\n" + _search(task, store)
        figures[f"unequal-{name}.png"] = _figure(task, columns, store)
    return text, figures


def _known(found: Scores) -> bool:
    return any(score is not None for row in found.values() for score in row)


def _about(task: Task, columns: list[str], store: Store) -> str:
    base, spent = task.base, {column: budget(task, column, store) or 0.0 for column in columns}
    data = f"{base.data.train_limit:,}" if base.data.train_limit else "all"
    momentum = f", momentum {base.train.momentum:g}" if base.train.momentum else ""
    amounts = ", ".join(f"{column}: {amount / 1e6:.3g} MB" for column, amount in spent.items())
    text = (
        f"{base.data.devices} devices, {data} training samples, one local epoch of batches of {base.train.batch_size}"
        f"{momentum}, learning rate falling as a cosine. Budget, the bytes of {task.rounds} rounds of the paper's "
        f"method: {amounts}."
    )
    if CELL in columns:
        text += f" The cell gives the rates {', '.join(f'{rate:.2f}' for rate in task.rates(CELL))}."
    return text + "\n\n"


def _table(task: Task, columns: list[str], store: Store) -> str:
    found = {column: scores(task, column, store) for column in columns}
    rows = []
    for method in METHODS:
        row = [method]
        for column in columns:
            best = max(mean_of(some) for some in found[column].values() if not np.isnan(mean_of(some)))
            cell = spread(found[column][method]) or "not run"
            run = judged_run(task, method, column, 0, store)
            row += [f"**{cell}**" if mean_of(found[column][method]) == best else cell, str(run.rounds) if run else ""]
        rows.append(row)
    head = ["method", *(word for column in columns for word in (column, "rounds"))]
    return markdown_table(head, rows) + "\n\n"


def _verdicts(task: Task, columns: list[str], store: Store) -> str:
    text = ""
    for ours in OURS:
        told = answers(task, ours, columns, store)
        if all(not answer.seeds for by_column in told.values() for answer in by_column.values()):
            continue
        rows = [[rival, *(_cell(answer) for answer in by.values())] for rival, by in told.items()]
        rows.append(["**in all**", *(f"**{standing(told, column)}**" for column in columns)])
        text += f"*{ours}* minus each rival, in points:\n\n" + markdown_table(["", *columns], rows) + "\n\n"
    return text


def _cell(answer: Answer) -> str:
    if not answer.seeds:
        return "not run"
    word = {YES: "better", NO: "worse"}.get(answer.says, "undecided")
    error = f" ± {answer.error:.2f}" if np.isfinite(answer.error) else ""
    return f"{answer.mean:+.2f}{error}, {word}"


def _search(task: Task, store: Store) -> str:
    """Return the learning rates that were tried, with their validation accuracies."""
    if task.search:
        return f"Learning rates are those of *{TASKS[task.search].title}*.\n\n"
    rows = []
    for method in METHODS:
        runs, chosen = search_runs(task, method, store), learning_rate(task, method, store)
        tried = [(lr, validated([store.get(run) for run in some])) for lr, some in runs.items()]
        shown = [f"{lr:g}: {100 * value:.1f}" for lr, value in tried if np.isfinite(value)]
        rows.append([method, ", ".join(shown), "" if chosen is None else f"{chosen:g}"])
    table = markdown_table(["method", "learning rate: validation accuracy, %", "chosen"], rows)
    return f"<details><summary>Search for the learning rates, at mixed rates</summary>\n\n{table}\n\n</details>\n\n"


def _figure(task: Task, columns: list[str], store: Store) -> Figure:
    from feddrop.report.style import SERIES

    figure, axes = panels([f"{task.title}: {column}" for column in columns[:2]])
    for panel, column in zip(axes, columns[:2], strict=True):
        for number, method in enumerate(METHODS):
            known = [one for one in results_of(task, method, column, store) if one is not None]
            if known:
                sent = np.mean([np.cumsum(traffic(one)) for one in known], axis=0) / 1e6
                mean = 100.0 * np.mean([one.values("test_accuracy") for one in known], axis=0)
                there = np.isfinite(mean)
                style = {"marker": "osv^D*Pdh"[number], "lw": 2.2 if method in OURS else 1.2, "ms": 4}
                panel.plot(sent[there], mean[there], label=method, color=SERIES[number % len(SERIES)], **style)
        panel.set_xlabel("MB sent")
        panel.set_ylabel("test accuracy of the full network, %")
        if not panel.lines:
            not_run(panel)
    legend(axes[0])
    return figure


def _rates() -> str:
    return "\n".join(f"- *{column}*: {', '.join(f'{rate:g}' for rate in rates)}" for column, rates in RATES.items())


def _summary(store: Store) -> str:
    """Return how each variant of federated dropout compares with all rivals, by task and column."""
    rows = []
    for task in TASKS.values():
        columns = [column for column in task.columns if _known(scores(task, column, store))]
        told = {ours: answers(task, ours, columns, store) for ours in OURS}
        for column in columns:
            rows.append([task.title, column, *(standing(told[ours], column) for ours in OURS)])
    if not rows:
        return ""
    return "## In short\n\n" + markdown_table(["task", "rates", *OURS], rows) + "\n\n"
