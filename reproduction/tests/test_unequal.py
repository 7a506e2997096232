"""Methods at unequal rates: equal bytes, learning rates by validation, and a page that is what the runs say."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from feddrop.comparison import Comparison, judge
from feddrop.config import RunConfig, to_table
from reproduction.framework.store import Store, key_of
from reproduction.unequal import answer, page, tables, train
from reproduction.unequal.tasks import CELL, EQUAL, HARD, IMPORTANCE, METHODS, MIXED, PAPER, TASKS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "reproduction" / "results" / "unequal"
TASK = TASKS["digits"]


@pytest.fixture
def store(tmp_path):
    (tmp_path / "results").mkdir()
    return Store(tmp_path / "results", tmp_path / "work")


def put(store: Store, config: RunConfig, *, sent: float = 1e6, **series: float) -> None:
    """Store a made-up run whose rounds are all alike."""
    rows = {name: [value] * config.rounds for name, value in series.items()}
    rows |= {"push_bytes": [sent / 2] * config.rounds, "pull_bytes": [sent / 2] * config.rounds}
    rows.setdefault("test_accuracy", [0.5] * config.rounds)
    text = json.dumps({"config": to_table(config), "version": "0.3.0", "series": rows, "wall_s": 1.0})
    (store.results / f"{key_of(config)}.json").write_text(text)


def test_cheaper_rounds_mean_more_of_them(store):
    assert train.rounds_of(TASK, "FedAvg", MIXED, store) is None
    put(store, TASK.pilot(PAPER, MIXED), sent=2e6)
    put(store, TASK.pilot("FedAvg", MIXED), sent=5e6)
    put(store, TASK.pilot("FIARSE", MIXED), sent=2.1e6)
    assert train.budget(TASK, MIXED, store) == 2e6 * TASK.rounds
    assert train.rounds_of(TASK, "FedAvg", MIXED, store) == round(TASK.rounds * 2 / 5)
    assert train.rounds_of(TASK, "FIARSE", MIXED, store) == round(TASK.rounds * 2 / 2.1)


@pytest.mark.parametrize(("peak", "tried"), [(0.2, 3), (0.4, 4), (0.05, 5)])
def test_the_search_goes_on_until_the_best_is_not_at_the_edge(store, peak, tried):
    for method in (PAPER, "FIARSE"):
        put(store, TASK.pilot(method, MIXED))

    def validated(lr: float) -> float:
        return 0.9 - abs(np.log2(lr / peak)) / 10

    for _ in range(tried * TASK.search_seeds):
        assert train.learning_rate(TASK, "FIARSE", store) is None
        runs = train.search_runs(TASK, "FIARSE", store)
        config, lr = next((c, lr) for lr, some in runs.items() for c in some if store.get(c) is None)
        assert config.data.validation
        assert config.seed not in TASK.seeds
        put(
            store, config, val_accuracy=validated(lr), test_accuracy=1.0 - validated(lr)
        )  # the test set does not choose
    assert train.learning_rate(TASK, "FIARSE", store) == peak
    assert len(train.search_runs(TASK, "FIARSE", store)) == tried


@pytest.mark.parametrize(
    ("differences", "word"),
    [
        ({"a": (1.0, 1.1, 0.9), "b": (5.0, 5.1, 4.9)}, "first, +1.00 to a"),
        ({"a": (1.0, 5.0, -2.0), "b": (5.0, 5.1, 4.9)}, "undecided, +1.33 to a"),
        ({"a": (-60.0, -2.0, -61.0), "b": (1.0, 1.1, 0.9)}, "undecided, -41.00 to a"),
        ({"a": (0.1, -0.1, 0.2), "b": (5.0, 5.1, 4.9)}, "level, +0.07 to a"),
        ({"a": (-0.3, -0.6, -0.9), "b": (5.0, 5.1, 4.9)}, "undecided, -0.60 to a"),
        ({"a": (-1.0, -9.0, 1.0), "b": (-1.0, -1.1, -0.9)}, "behind, -1.00 to b"),
        ({"a": (), "b": (1.0, 1.1, 0.9)}, "not run"),
    ],
)
def test_a_column_is_summed_up_by_the_rival_that_counts(differences, word):
    told = {rival: judge([Comparison("mixed", values)])[0] for rival, values in differences.items()}
    assert tables.standing(told) == word


def judged(store: Store, column: str, accuracy: dict[str, float], **others: dict[str, float]) -> tables.Table:
    """Return the table of a column whose runs end at these accuracies, 0.7 by default; seeds are 0.001 apart."""
    for method, rates in itertools.product(METHODS, {MIXED, column}):
        put(store, TASK.pilot(method, rates))
    for method in METHODS:
        for some in train.search_runs(TASK, method, store).values():
            for config in some:
                put(store, config, val_accuracy=0.9 - abs(np.log2(config.train.lr / TASK.lrs[1])) / 10)
        for seed in TASK.seeds:
            last = accuracy.get(method, 0.7) + 0.001 * seed
            put(
                store,
                TASK.run(method, column, rounds=TASK.rounds, lr=TASK.lrs[1], seed=seed),
                test_accuracy=last,
                **others.get(method, {}),
            )
    return tables.Table(TASK, store)


def test_nested_methods_are_tested_at_the_size_that_was_trained(store):
    table = judged(store, HARD, {}, HeteroFL={"accuracy_at_0.5": 0.8}, FIARSE={"accuracy_at_0.5": 0.1})
    assert table.scores[HARD]["HeteroFL"] == pytest.approx([80.0] * 3)
    assert table.scores[HARD]["FIARSE"] == pytest.approx([70.0, 70.1, 70.2])


def test_the_top_of_the_page_says_who_is_behind_and_by_how_much(store):
    table = judged(store, MIXED, {IMPORTANCE: 0.75, "FIARSE": 0.74, PAPER: 0.5})
    rows = {line.split(" | ")[0].strip("| "): line for line in answer.behind_the_best({"digits": table}).splitlines()}
    assert rows[IMPORTANCE].endswith("| **0.0** | 0 of 1 |")
    assert rows["FIARSE"].endswith("| 1.0 | 1 of 1 |")
    assert rows[PAPER].endswith("| 25.0 | 1 of 1 |")
    assert answer.evidence({"digits": table}, IMPORTANCE, MIXED) == "digits **+1.0**"
    assert answer.evidence({"digits": table}, PAPER, MIXED, ["FedAvg"]) == "digits **-20.0**"
    assert answer.evidence({"digits": table}, PAPER, HARD) == ""


def test_rates_are_those_of_ten_devices():
    for task in TASKS.values():
        for column in task.columns:
            assert len(task.rates(column)) == task.base.data.devices
    rates = TASKS["lenet"].rates(CELL)
    assert np.mean(rates) == pytest.approx(0.6, abs=0.01)
    assert max(rates) - min(rates) > 0.5
    assert TASK.run("FedAvg", EQUAL, rounds=2, lr=0.1, seed=0).rate is None


def test_the_committed_page_is_what_the_results_say():
    stored = Store(RESULTS, Path("nowhere"))
    text, figures = page.write(stored)
    assert text == (ROOT / "docs" / "unequal.md").read_text(encoding="utf-8")
    assert all((ROOT / "docs" / "img" / name).exists() for name in figures)
    for task in (TASKS["digits"], TASKS["lenet"]):
        table = tables.Table(task, stored)
        for (column, method), results in table.results.items():
            budget = train.budget(task, column, stored)
            assert budget is not None
            for result in results:
                if result is not None:  # one round of FedAvg at hard rates is an eighth of the budget
                    assert train.traffic(result).sum() == pytest.approx(budget, rel=0.065), (column, method)


def test_a_longer_search_would_not_change_what_is_stored():
    """Only settings that decide a run's outcome name its file."""
    config = TASK.run(PAPER, MIXED, rounds=3, lr=0.1, seed=0)
    assert key_of(config) == key_of(replace(config, execution=replace(config.execution, workers=2)))
