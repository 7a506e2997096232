"""The page, the findings and the terminal: everything shown, and the committed pages are what the results say."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from made_up import SMOKE, quiet
from rich.console import Console

from feddrop.comparison import HOLDS, NO, UNDECIDED, YES, Comparison
from reproduction.console import overview, verdicts
from reproduction.experiments import EXPERIMENTS, accuracy, deadline, remark
from reproduction.framework import claims_figure
from reproduction.framework.published import CLAIMS, RATES, TABLE
from reproduction.framework.scales import scale
from reproduction.framework.store import key_of
from reproduction.framework.verdicts import verdict
from reproduction.reproduce import make_page, reproduce, store_for


def test_every_claim_is_judged_by_the_experiments_it_names(tmp_path):
    store = store_for("smoke", tmp_path / "results", tmp_path / "work")
    for experiment in EXPERIMENTS:
        if experiment.name != "theory":  # it measures for long: see the page below
            named = {claim.name for claim in CLAIMS if experiment.name in claim.by}
            assert {verdict.claim for verdict in make_page(experiment, SMOKE, store).verdicts} == named


def test_the_list_and_the_verdicts_on_the_terminal(tmp_path):
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(overview("smoke", tmp_path / "results", tmp_path / "work"))
    store = store_for("smoke", tmp_path / "results", tmp_path / "work")
    made = []
    _, judged = reproduce(["overhead"], SMOKE, store, tmp_path / "page", workers=1, watch=quiet, making=made.append)
    assert [experiment.name for experiment in made] == ["overhead"]
    console.print(verdicts(judged))
    text = console.export_text()
    for claim in CLAIMS:
        assert claim.text in text
    for experiment in EXPERIMENTS:
        assert experiment.title in text
    assert [one.claim.name for one in judged] == ["overhead"]
    page, judged = reproduce(["partition"], SMOKE, store, tmp_path / "page", workers=1, watch=quiet, making=made.append)
    assert not judged
    assert "claims" not in page.read_text()
    assert f"0 of {len({key_of(c) for c in accuracy.runs(SMOKE)})}" in text
    assert text.rstrip().endswith(HOLDS)


def test_a_page_of_what_was_not_run_says_so(tmp_path):
    store = store_for("smoke", tmp_path / "results", tmp_path / "work")
    names = [experiment.name for experiment in EXPERIMENTS]
    page, judged = reproduce(
        names, SMOKE, store, tmp_path / "page", workers=1, watch=quiet, making=lambda _: None, train=False
    )
    assert [one.claim for one in judged] == list(CLAIMS)
    decided = {one.claim.name for one in judged if one.outcome != UNDECIDED}
    assert {"variance-bound", "bound-holds", "overhead"} < decided
    assert not decided & {
        claim.name
        for claim in CLAIMS
        if set(claim.by) - {"theory", "overhead", "energy", "theorem", "unbiased", "allocator"}
    }
    text = page.read_text()
    assert "0 of " in text
    for claim in CLAIMS:
        assert claim.text in text
    assert text.count("not run") > 10
    for name in ("accuracy", "partition", "variance-law"):  # the paper's own lines, and what needs no training
        assert f"img/paper-{name}.png" in text
        assert (tmp_path / "page" / "img" / f"paper-{name}.png").exists()
    for name in ("rounds-latency", "rounds-bandwidth", "accuracy-latency", "dynamic", "objective"):
        assert f"{name}.png" not in text
        assert not (tmp_path / "page" / "img" / f"paper-{name}.png").exists()
    assert not (tmp_path / "work").exists()


def test_the_picture_of_the_claims_says_what_the_points_say():
    points = [
        *(
            Comparison("", differences=row, pool=str(row))
            for row in ((1.0, 2.0, 3.0), (8.0, 8.1, 8.2), (-8.0, -8.1, -8.2))
        ),
        *(
            Comparison("", differences=row, tolerance=1.0, pool=f"alike {row}")
            for row in ((0.0, 0.1), (0.1, 0.0, -0.1))
        ),
        Comparison("", differences=(3.0, 3.1, 2.9), tolerance=1.0, pool="unlike"),
        Comparison("", estimate=(0.2, 0.0)),
        Comparison("", certain=True),
        Comparison("", certain=False),
        Comparison(""),
    ]
    answers = verdict("claim", points).answers
    shown = [claims_figure.beyond(answer) for answer in answers]
    for answer, x in zip(answers, shown, strict=True):
        judged = answer.why in ("", "within the margin")
        assert judged == (not np.isnan(x))
        assert not judged or answer.says == (YES if x > 1 else NO if x < -1 else UNDECIDED)
    assert shown[0] == pytest.approx(2.0 / answers[0].margin)
    assert shown[7:9] == [claims_figure.FAR, -claims_figure.FAR]
    assert [answer.says for answer in answers].count(YES) == 4
    dots = claims_figure.draw([("one", answers), ("other", answers[:1])]).axes[0].lines
    marks = [line for line in dots if line.get_marker() in ("o", "s")]
    assert sorted(line.get_xdata()[0] for line in marks) == sorted([x for x in shown if not np.isnan(x)] + shown[:1])


def test_every_figure_states_its_settings():
    for experiment in EXPERIMENTS:
        if experiment.name in ("rounds-latency", "rounds-bandwidth", "accuracy-latency", "dynamic", "energy"):
            facts = [experiment.measure(SMOKE)] if experiment.measure else []
            text = experiment.make(SMOKE, lambda _: None, *facts).text
            for word in (
                "θ = 0.9",
                "N₀ = 1e-13 W/Hz as a density",
                "downlink 1 W",
                "not by Algorithm 1",
                "FLOP per cycle",
            ):
                assert word in text, (experiment.name, word)
            assert "Q = 256 bits" in text
    assert "<em>feasible</em> splits only" in deadline.make(SMOKE, lambda _: None).text
    assert "costs as measured" in deadline.make(SMOKE, lambda _: None).text  # where layers stay whole


def test_the_published_table_is_complete():
    assert len(TABLE) == 6
    assert all(len(row) == len(RATES) == 9 for row in TABLE.values())
    assert TABLE["lenet", "iid", "feddrop"][0] == 26.17


@pytest.fixture(scope="module")
def made_again(tmp_path_factory) -> tuple[Path, Path]:
    """The pages, made from the committed results; and the repository."""
    root, folder = Path(__file__).parents[2], tmp_path_factory.mktemp("pages")
    store = store_for("cpu", root / "reproduction" / "results", folder / "work")
    job = {"workers": 1, "watch": quiet, "making": lambda _: None, "train": False}
    reproduce([], scale("cpu"), store, folder, **job)
    return folder, root / "docs"


@pytest.mark.parametrize("name", ["paper.md", "findings.md"])
def test_the_committed_pages_are_what_the_results_say(made_again, name):
    """If this fails: python -m reproduction all --no-train --out docs."""
    folder, docs = made_again
    assert (folder / name).read_text() == (docs / name).read_text()


def test_the_committed_pages_have_their_pictures(made_again):
    folder, docs = made_again
    for path in (folder / "img").glob("*.png"):
        assert (docs / "img" / path.name).exists()


def test_what_was_counted_for_the_remark_is_still_so():
    """The facts that are kept beside the results. If this fails, delete their file and make the pages anew."""
    kept = json.loads((Path(__file__).parents[1] / "results" / "cpu" / "facts" / "overhead.json").read_text())
    assert json.loads(json.dumps(remark.measure(scale("cpu")))) == kept


def test_the_page_on_power_repeats_the_numbers_of_the_papers_page():
    paper, power = ((Path(__file__).parents[2] / "docs" / name).read_text() for name in ("paper.md", "power.md"))
    section = re.split(r"^## ", paper, flags=re.MULTILINE)
    (told,) = [text for text in section if text.startswith("Power and clock chosen too")]
    rows = [line for line in told.splitlines() if line.startswith("|")]
    assert len(rows) > 30
    assert [row for row in rows if row not in power] == []
