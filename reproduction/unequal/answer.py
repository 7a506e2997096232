"""The top of the page: how far every method is behind the best one, and the evidence for each recommendation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from feddrop.comparison import NO, UNDECIDED
from reproduction.framework.experiment import markdown_table, mean_of
from reproduction.unequal.tables import Table, strongest
from reproduction.unequal.tasks import EQUAL, METHODS

Tables = dict[str, Table]
"""The tables by the name of their task."""


def unequal(tables: Tables) -> Iterator[tuple[str, Table, str]]:
    """Yield the name, the table and the column of all judged columns with unequal rates."""
    for name, table in tables.items():
        yield from ((name, table, column) for column in table.judged if column != EQUAL)


def behind_the_best(tables: Tables) -> str:
    """Return a table: points behind the highest mean by task, averaged over unequal rates, and how often beaten."""
    names = [name for name, table in tables.items() if any(column != EQUAL for column in table.judged)]
    gaps = {
        (method, name): np.mean([_gap(table, method, column) for of, table, column in unequal(tables) if of == name])
        for method in METHODS
        for name in names
    }
    least = {name: np.nanmin([gaps[method, name] for method in METHODS]) for name in names}
    rows = []
    for method in METHODS:
        cells = [_bold(f"{gaps[method, name]:.1f}", gaps[method, name] == least[name]) for name in names]
        ran = [(table, column) for _, table, column in unequal(tables) if np.isfinite(_gap(table, method, column))]
        beaten = sum(_beaten(table, method, column) for table, column in ran)
        rows.append([method, *(cell.replace("nan", "") for cell in cells), f"{beaten} of {len(ran)}"])
    return markdown_table(["method", *names, "clearly beaten in columns"], rows)


def _gap(table: Table, method: str, column: str) -> float:
    scores = table.scores[column]
    best = max(mean_of(row) for row in scores.values() if None not in row)
    return best - mean_of(scores.get(method, []))


def _beaten(table: Table, method: str, column: str) -> bool:
    others = [other for other in table.task.methods if other != method]
    return any(answer.says == NO for answer in table.answers(method, column, others).values())


def _bold(text: str, yes: bool) -> str:
    return f"**{text}**" if yes else text


def evidence(tables: Tables, method: str, column: str, rivals: Sequence[str] = ()) -> str:
    """Return the differences between a method and its strongest rival in a column, task by task; bold beyond the noise.

    Args:
        tables: the tables.
        method: the method.
        column: the rates.
        rivals: the methods to compare with; empty for all rivals.
    """
    found = []
    for name, table in tables.items():
        others = [rival for rival in table.rivals if not rivals or rival in rivals]
        best = strongest(table.answers(method, column, others)) if others and column in table.judged else None
        if best is not None:
            found.append(f"{name} {_bold(f'{best[1].mean:+.1f}', best[1].says != UNDECIDED)}")
    return ", ".join(found)
