"""The judged runs of a task: accuracies, differences between methods and what they say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feddrop.comparison import LEAST_SEEDS, NO, UNDECIDED, YES, Answer, Comparison, judge, matched
from reproduction.framework.experiment import by_seed, mean_of
from reproduction.framework.store import Result, Store
from reproduction.unequal.tasks import OURS, Task
from reproduction.unequal.train import learning_rate, rounds_of

LEVEL = 1.0
"""Two methods are level if their difference is undecided and its whole interval lies within so many points of 0."""

Scores = dict[str, list[float | None]]
"""Test accuracies in percent by method, one per seed; None where a run is missing."""


class Table:
    """The judged runs of a task.

    Args:
        task: the task.
        store: finished runs.

    Attributes:
        rounds: rounds that the budget pays for, by column and method.
        results: the runs of all seeds, by column and method.
        columns: the columns in which every method has at least one run.
        judged: those of them in which every method has all seeds.
        scores: accuracies by column.
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
            column for column in task.columns if all(any(self.results[column, method]) for method in task.methods)
        ]
        self.judged = [
            column for column in self.columns if all(all(self.results[column, method]) for method in task.methods)
        ]
        self.scores = {column: self._scores(column) for column in self.columns}
        self.ours = [method for method in task.methods if method in OURS]
        self.rivals = [method for method in task.methods if method not in OURS]

    def _scores(self, column: str) -> Scores:
        """Return the accuracies of all methods in a column.

        It is the accuracy after the last round: a mean over the last few would cover half of the training of runs
        with few rounds. A run is tested as the full network and, if every device drops something, as the sub-model of
        the smallest rate, too: nested methods leave the rest of the network untrained. The better mean counts.
        """
        found: Scores = {}
        for method in self.task.methods:
            names = ("test_accuracy", f"accuracy_at_{min(self.task.rates(column)):g}")
            ways = [[_last(one, name) for one in self.results[column, method]] for name in names]
            found[method] = max(ways, key=lambda row: np.nan_to_num(mean_of(row), nan=-1.0))
        return found

    def answer(self, method: str, other: str, column: str) -> Answer:
        """Return whether ``method`` beats ``other`` in a column."""
        scores = self.scores[column]
        return judge([Comparison(column, matched(scores[method], scores[other]))])[0]

    def answers(self, method: str, column: str, others: Sequence[str] = ()) -> dict[str, Answer]:
        """Return whether ``method`` beats each of the others, by default the rivals; empty if it is not of the task."""
        if method not in self.task.methods:
            return {}
        return {other: self.answer(method, other, column) for other in others or self.rivals}


def _last(result: Result | None, name: str) -> float | None:
    if result is None:
        return None
    values = result.values(name)
    known = values[np.isfinite(values)]
    return 100.0 * float(known[-1]) if known.size else None


def strongest(answers: dict[str, Answer]) -> tuple[str, Answer] | None:
    """Return the rival to compare with: one that is better beyond the noise, else the best; None if one was not run."""
    if not answers or any(not answer.seeds for answer in answers.values()):
        return None
    rival, least = min(answers.items(), key=lambda pair: pair[1].mean)
    if least.says == UNDECIDED:
        behind = [name for name, answer in answers.items() if answer.says == NO]
        if behind:
            return behind[0], answers[behind[0]]
    return rival, least


def standing(answers: dict[str, Answer]) -> str:
    """Sum up how a method compares with the rivals in a column."""
    found = strongest(answers)
    if found is None:
        return "not run"
    if any(answer.seeds < LEAST_SEEDS for answer in answers.values()):
        return "few seeds"
    rival, least = found
    word = {YES: "first", NO: "behind"}.get(least.says, tie(least))
    return f"{word}, {least.mean:+.2f} to {rival}"


def tie(answer: Answer) -> str:
    """Return the word for a difference within its margin: known to be small, or not known."""
    return "level" if abs(answer.mean) + answer.margin < LEVEL else "undecided"
