"""Comparisons: means, bounds, differences and verdicts as counted by hand; tables and figures for a paper."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feddrop import report
from feddrop.errors import ConfigError
from feddrop.report import journal, style
from feddrop.report.compare import comparison_page, read_logs, standings
from feddrop.report.exports import write_csv, write_figures, write_latex
from feddrop.report.groups import grouped
from feddrop.report.html import table
from feddrop.report.measures import Measure
from feddrop.report.runlog import RunLog
from feddrop.storage.manifest import FORMAT
from support.runs import write_metrics

EMPTY = {"devices": [], "wall_s": 0.1, "train_loss": 1.0, "test_loss": 1.0}


def write_run(folder: Path, arm: str, seed: int, accuracy: list[float | None], cost: float = 1e6, **more: Any) -> Path:
    """A run of these accuracies, at equal costs of every round."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f"seed = {seed}\nrounds = {len(accuracy)}\n[train]\nlr = {len(arm) / 100}\n")
    (folder / "run.json").write_text(json.dumps({"format": FORMAT, "label": arm, "parameters": 10}))
    lines = []
    for n, value in enumerate(accuracy):
        fields = {key: values[n] for key, values in more.items()}
        costs = {"push_bytes": cost / 2, "pull_bytes": cost / 2, "latency_s": cost / 1e6, "energy_j": cost / 1e5}
        lines.append(EMPTY | {"round": n + 1, "test_accuracy": value} | costs | fields)
    write_metrics(folder, lines)
    return folder


CURVES = {
    "base": ([0.2, 0.4, 0.5, 0.60], [0.1, 0.4, 0.5, 0.62], [0.2, 0.3, 0.5, 0.61]),
    "better": ([0.3, 0.6, 0.7, 0.80], [0.3, 0.5, 0.7, 0.83], [0.2, 0.6, 0.7, 0.82]),
    "much the same": ([0.2, 0.4, 0.5, 0.70], [0.1, 0.4, 0.5, 0.52], [0.2, 0.3, 0.5, 0.60]),
    "worse": ([0.1, 0.2, 0.3, 0.31], [0.1, 0.2, 0.3, 0.30], [0.1, 0.2, 0.3, 0.32]),
}


@pytest.fixture
def logs(tmp_path: Path) -> list[RunLog]:
    return read_logs(
        [
            write_run(tmp_path / f"{arm}-{seed}", arm, seed, accuracy, 2e6 if arm == "better" else 1e6)
            for arm, curves in CURVES.items()
            for seed, accuracy in enumerate(curves)
        ]
    )


def judged(logs: list[RunLog], **options: Any) -> Any:
    groups = grouped(logs)
    return standings(groups, **{"targets": (), "budget": {}, "reference": groups[0]} | options)


def test_means_differences_and_verdicts(logs: list[RunLog]) -> None:
    rows = {row.arm: row for row in judged(logs).rows if row.measure == "accuracy"}
    base = np.array([curve[-1] for curve in CURVES["base"]])
    for arm, curves in CURVES.items():
        last = np.array([curve[-1] for curve in curves])
        assert rows[arm].mean == pytest.approx(last.mean())
        assert rows[arm].deviation == pytest.approx(last.std(ddof=1))
        if arm != "base":
            difference = last - base
            assert rows[arm].difference == pytest.approx(difference.mean())
            assert rows[arm].error == pytest.approx(difference.std(ddof=1) / np.sqrt(3))
            assert rows[arm].margin == pytest.approx(4.303 * rows[arm].error)
    verdicts = {arm: row.verdict for arm, row in rows.items()}
    assert verdicts == {"base": "", "better": "holds", "much the same": "undecided", "worse": "does not hold"}
    assert rows["much the same"].why == "within the margin"


@pytest.mark.parametrize(
    ("samples", "verdict"), [(None, "does not hold"), (200, "undecided"), (20_000, "does not hold")]
)
def test_seeds_that_agree_by_chance_prove_nothing(tmp_path: Path, samples: float | None, verdict: str) -> None:
    """One test sample of 200 less with every seed: without spread, the grain of the accuracy is its error."""
    folders = []
    for arm, lost in (("a", 0.0), ("bb", 1 / 200)):
        for seed in range(3):
            folders.append(write_run(tmp_path / f"{arm}{seed}", arm, seed, [0.5, 0.8 - lost]))
            info = json.loads((folders[-1] / "run.json").read_text())
            (folders[-1] / "run.json").write_text(json.dumps(info | {"test_targets": samples and int(samples)}))
    (row,) = (row for row in judged(read_logs(folders)).rows if (row.arm, row.measure) == ("bb", "accuracy"))
    assert row.verdict == verdict
    assert row.difference == pytest.approx(-1 / 200)


def test_two_seeds_decide_nothing(logs: list[RunLog]) -> None:
    rows = judged([log for log in logs if "seed = 2" not in str(log.config) and log.config["seed"] < 2]).rows
    assert {(row.verdict, row.why) for row in rows if row.reference} == {("undecided", "few seeds")}


def test_what_a_target_costs_and_what_is_only_a_bound(logs: list[RunLog]) -> None:
    found = judged(logs, targets=(0.6, 0.61))
    rows = {(row.arm, row.measure): row for row in found.rows}
    reached = rows["base", "traffic to 60 %"]
    assert (reached.mean, reached.runs, reached.reached) == (4e6, 3, 3)
    assert rows["base", "time to 61 %"].reached == 2
    assert rows["better", "rounds to 60 %"].mean == pytest.approx(7 / 3)
    never = rows["worse", "energy to 60 %"]
    assert (never.mean, never.reached, never.unit) == (40.0, 0, "J")
    assert np.isnan(never.deviation)
    page = str(report.compare.comparison_page(found))
    assert "&gt; 4.00 MB (0 of 3)" in page
    assert "Better than base?" in page
    assert all(f"Accuracy by {way}" in page for way in ("round", "traffic", "simulated time", "energy"))
    lost = rows["worse", "rounds to 60 %"]  # neither is further from 0 than the other
    assert (lost.verdict, lost.why) == ("undecided", "not reached")


def test_a_bound_away_from_zero_counts(tmp_path: Path) -> None:
    fast = [write_run(tmp_path / f"f{seed}", "fast", seed, [0.7, 0.8, 0.8, 0.8, 0.8, 0.8]) for seed in range(3)]
    slow = [write_run(tmp_path / f"s{seed}", "slow", seed, [0.1] * 6) for seed in range(3)]
    rows = judged(read_logs([*fast, *slow]), targets=(0.7,)).rows
    (row,) = (row for row in rows if (row.arm, row.measure) == ("slow", "rounds to 70 %"))
    assert (row.difference, row.bound, row.verdict) == (5.0, ">=", "does not hold")


def test_accuracy_at_a_budget_is_that_of_the_last_round_within(logs: list[RunLog]) -> None:
    budget = {"bytes": 4e6 + 1, "rounds": 3}
    found = judged([log.within(budget) for log in logs], budget=budget)
    rows = {(row.arm, row.measure): row for row in found.rows}
    assert rows["base", "accuracy at 4 MB"].mean == pytest.approx(np.mean([0.6, 0.62, 0.61]))
    assert rows["better", "accuracy at 4 MB"].mean == pytest.approx(np.mean([0.6, 0.5, 0.6]))
    assert rows["better", "accuracy at 3 rounds"].mean == pytest.approx(0.7)
    assert rows["better", "rounds"].mean == 3  # the fourth exceeds both amounts
    assert rows["base", "rounds"].mean == 4


def test_validation_samples_choose(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"{arm}{seed}", arm, seed, [0.9, 0.2], val_accuracy=[0.1, 0.6], val_loss=[2.0, 1.0])
        for arm in ("a", "bb")
        for seed in range(3)
    ]
    found = judged(read_logs(folders), targets=(0.5,))
    assert "Targets go by the validation samples." in found.lead
    assert {row.mean for row in found.rows if row.measure == "rounds to 50 %"} == {2.0}


def test_losses_are_compared_where_there_is_no_accuracy(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"{arm}{seed}", arm, seed, [None] * 2, test_loss=[2.0, loss + seed / 100])  # type: ignore[list-item]
        for arm, loss in (("a", 1.0), ("bb", 0.5))
        for seed in range(3)
    ]
    rows = {(row.arm, row.measure): row for row in judged(read_logs(folders), targets=(0.9,)).rows}
    assert rows["bb", "test loss"].verdict == "holds"
    assert rows["bb", "test loss"].difference == pytest.approx(-0.5)
    assert rows["bb", "rounds to 0.900"].reached == 3
    assert rows["a", "rounds to 0.900"].reached == 0


@pytest.mark.parametrize(
    ("mean", "spread", "text"), [(199.4, 140.6, "199 ± 141"), (774.2, 3.21, "774 ± 3.2"), (5.0, 12.3, "5.0 ± 12.3")]
)
def test_a_spread_of_many_digits_has_no_decimals(mean: float, spread: float, text: str) -> None:
    assert Measure(name="energy", read=lambda _: (0.0, False)).write(mean, spread) == text


def test_every_table_says_what_stands_after_its_plus_and_minus(logs: list[RunLog]) -> None:
    """A standard deviation after means, the margin after differences: one that exceeds its margin is decided."""
    found = judged(logs, targets=(0.6,))
    page = str(comparison_page(found))
    results, differences = re.findall(r"<h2>(?:Results|Better than.*?)</h2>(.*?)</section>", page)
    assert "Means ± standard deviation over seeds." in results
    assert "Mean difference ± 95 % margin (with three seeds, at least 4.3 standard errors)" in differences
    assert page.count("standard error") == 1
    row = next(row for row in found.rows if row.arm == "worse" and row.verdict)
    assert f"{100 * row.mean:.1f} ± {100 * row.deviation:.1f} %" in results
    assert f"−{-100 * row.difference:.2f} ± {100 * row.margin:.2f} points" in differences


def test_a_shared_learning_rate_is_pointed_out(logs: list[RunLog]) -> None:
    """The best learning rate differs between methods, so sharing one favours some of them."""
    groups = grouped(logs)
    assert "All have train.lr" not in str(comparison_page(judged(logs)))
    alike = [replace(group, settings=groups[0].settings) for group in groups]
    page = str(comparison_page(standings(alike, targets=(), budget={}, reference=alike[0])))
    assert "All have train.lr = 0.04. For a fair comparison, tune it for each of them on data.validation" in page


# --- files for a paper


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    assert "<th>traffic to 15&nbsp;%</th>" in re.sub(" class=.*?>", ">", table(["traffic to 15 %"], []))


def test_tables(logs: list[RunLog], tmp_path: Path) -> None:
    found = judged(logs, targets=(0.6,))
    write_csv(found, tmp_path / "c.csv")
    with (tmp_path / "c.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found.rows)
    assert [row["verdict"] for row in rows if row["measure"] == "accuracy"] == [
        *("", "holds", "undecided", "does not hold")
    ]
    assert (
        next(row["deviation"] for row in rows if row["arm"] == "worse" and row["measure"].startswith("rounds to")) == ""
    )
    object.__setattr__(found.groups[1], "name", "50 % of R&D_1")
    write_latex(found, tmp_path / "c.tex")
    text = (tmp_path / "c.tex").read_text()
    assert r"50 \% of R\&D\_1 & $81.7 \pm 1.5^{+}$ & $2.3 \pm 0.6^{+}$ & $4.67 \pm 1.15$" in text
    assert r"worse & $31.0 \pm 1.0^{-}$ & $> 4$ & $> 4.00$" in text
    assert r"mean $\pm$ standard deviation & accuracy" in text
    assert text.count(r"\\") == 5
    assert [line.count("&") for line in text.replace(r"\&", "").splitlines() if line.endswith(r"\\")] == [5] * 5


def test_figures_at_journal_width(logs: list[RunLog], tmp_path: Path) -> None:
    paths = write_figures(judged(logs), tmp_path, "ieee")
    assert {path.name for path in paths} >= {"accuracy-round.pdf", "accuracy-energy.png"}
    data = (tmp_path / "accuracy-bytes.pdf").read_bytes()
    (box,) = re.findall(rb"/MediaBox \[ ?0 0 ([\d.]+) ", data)
    assert float(box) == pytest.approx(3.5 * 72)
    assert b"/CIDFontType2" in data  # embedded TrueType
    assert b"/Type3" not in data
    assert b"STIX" in data
    energy = report.accuracy_figure(grouped(logs), against="energy", width="ieee")
    assert re.fullmatch(r"energy \(m?J\)", energy.axes[0].get_xlabel())
    wide = report.accuracy_figure(grouped(logs), width="ieee-double", labels={"base": "FedAvg $"})
    assert wide.get_figwidth() == 7.16
    (legend,) = wide.legends
    assert [text.get_text() for text in legend.get_texts()] == ["FedAvg $", "better", "much the same", "worse"]
    sizes = {text.get_fontsize() for text in legend.get_texts()} | {wide.axes[0].xaxis.label.get_fontsize()}
    assert sizes == {journal.TEXT}
    _, high = wide.axes[0].get_ylim()
    assert high <= 101


def test_ten_curves_share_no_colour_dash_or_marker() -> None:
    x = np.arange(5.0)
    curves = [journal.PrintedCurve(f"arm {n}", style.SERIES[n], x, x + n, 0 * x) for n in range(10)]
    lines = journal.draw(curves, 3.5, "x", "y").axes[0].lines
    for looks in (
        [line.get_color() for line in lines],
        [str(line._dash_pattern) for line in lines],
        [line.get_marker() for line in lines],
    ):
        assert len(set(looks)) == 10


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"width": "iee"}, "Did you mean 'ieee'"),
        ({"width": 0.1}, "or 2 to 20 inches"),
        ({"labels": ["one"]}, "labels has 1 names for 4 curves"),
        ({"labels": {"bas": "x"}}, "Did you mean 'base'"),
        ({"against": "joules"}, "against is 'joules'"),
    ],
)
def test_slips(logs: list[RunLog], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        report.accuracy_figure(grouped(logs), **options)


def test_the_reference_of_a_report(logs: list[RunLog], tmp_path: Path) -> None:
    folders = sorted(path.parent for path in tmp_path.glob("*/run.json"))
    page = report.write_comparison(folders, tmp_path / "c.html", reference="worse", targets=[0.3])
    assert "Better than worse?" in page.read_text()
    with pytest.raises(ConfigError, match="Did you mean 'worse'"):
        report.write_comparison(folders, tmp_path / "c.html", reference="wors")
    with pytest.raises(ConfigError, match=r"the target is 90; an accuracy must be at most 1\. For 90 %, write 0\.9\."):
        report.write_comparison(folders, tmp_path / "c.html", targets=[90])


def test_seeds_with_rounds_of_different_length_are_averaged_at_equal_time(tmp_path: Path) -> None:
    """A slow seed that was evaluated once must not cut the curve of the others to one point."""
    fast = write_run(tmp_path / "one-0", "one", 0, [0.0, 0.1, 0.2, 0.3, 0.4, 0.5], 1e6)  # at 1 s, 2 s, ..., 6 s
    slow = write_run(tmp_path / "one-1", "one", 1, [0.1, None], 2.5e6)  # at 2.5 s; it ends at 5 s
    config = slow / "config.toml"
    config.write_text(config.read_text().replace("rounds = 2", "rounds = 6"))
    (group,) = grouped(read_logs([fast, slow]))
    line = report.accuracy_figure([group], against="time").axes[0].lines[0]
    x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    np.testing.assert_allclose(x, np.linspace(2.5, 5.0, 6))
    np.testing.assert_allclose(y, 100 * (0.1 * (x - 1) + 0.1) / 2)
    line = report.accuracy_figure([group], against="round").axes[0].lines[0]  # against rounds, the common ones
    np.testing.assert_allclose(line.get_xydata(), [[1, 5]])
