"""The report: what it says is what the run folder says, and nothing in the folder can break it.

The metrics here are drawn at random: they test reading and drawing, not learning.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from feddrop import report
from feddrop.comparison.identity import complete_settings
from feddrop.errors import ConfigError, RunError
from feddrop.report import maps, plots, quantities, style
from feddrop.report.partition import is_tall
from feddrop.report.runlog import Words
from feddrop.seeds import derive, generator
from feddrop.storage.manifest import FORMAT
from support.runs import write_metrics

PARAMETERS = 1000
HOSTILE = "</title></svg><script>alert(1)</script><img src=x onerror=alert(1)> $\\frac{1$ & \"'\x00\x1b\ud800\n]]> cat"
Drawn = tuple[Path, list[dict[str, Any]]]
BOUND_BY = ("deadline", "energy", "none", "rate cap", "deadline+energy")
VOID = {"meta", "img", "br", "hr", "link", "input"}


def write_run(
    folder: Path,
    rounds: int = 6,
    devices: int = 4,
    classes: int = 5,
    *,
    radio: bool = True,
    vary: bool = True,
    absent: float = 0.0,
    config: str = "",
    class_names: list[str] | None = None,
    seed: int = 0,
    **info: Any,
) -> list[dict[str, Any]]:
    """Write a run folder of random but consistent metrics, and return the metrics."""
    g = generator(derive(seed, "report test"))
    rates = g.uniform(0.1, 0.5, devices)
    lines = []
    for n in range(1, rounds + 1):
        entries = []
        for k in range(devices):
            if k != n % devices and g.random() < absent:
                continue
            rate = float(rates[k] + (g.uniform(-0.1, 0.1) if vary else 0))
            size = int(PARAMETERS * 4 * (1 - rate)) + 128
            entry: dict[str, Any] = {
                "device": k, "rate": rate, "share": None, "samples": 100 + k, "push_bytes": size, "pull_bytes": size,
                "latency_s": None, "energy_j": None, "binding": None, "status": "ok", "loss": float(g.uniform(0, 2)),
            }  # fmt: skip
            if radio:
                entry |= {
                    "share": 1 / devices,
                    "latency_s": float(g.uniform(0.5, 1.2)),
                    "energy_j": float(g.uniform(10, 30)),
                    "binding": BOUND_BY[int(g.integers(len(BOUND_BY)))],
                }
            entries.append(entry)
        lines.append(
            {
                "round": n,
                "train_loss": 2.0 / n,
                "test_loss": 2.2 / n,
                "test_accuracy": float(0.9 * (1 - 1 / (n + 1)) + 0.01 * g.random()),
                "push_bytes": sum(e["push_bytes"] for e in entries),
                "pull_bytes": sum(e["pull_bytes"] for e in entries),
                "latency_s": max(e["latency_s"] for e in entries) if radio else None,
                "deadline_s": 1.2 if radio else None,
                "energy_j": sum(e["energy_j"] for e in entries) if radio else None,
                "wall_s": 0.5,
                "devices": entries,
            }
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_metrics(folder, lines)
    limits = "[radio]\ndeadline_s = 1.2\nenergy_budget_j = 30.0\n" if radio else ""
    text = f'rounds = {rounds}\n[data]\nname = "digits"\n[model]\nname = "lenet"\n{limits}{config}'
    (folder / "config.toml").write_text(text, encoding="utf-8")
    facts = {
        "format": FORMAT, "feddrop": "0.3.0", "command": "feddrop run config.toml", "parameters": PARAMETERS,
        "python": "3.12",
        "class_names": class_names or [f"kind {c}" for c in range(classes)],
        "class_counts": g.integers(0, 50, (devices, classes)).tolist(),
        "budget_j": [30.0] * devices * radio,
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(facts | info), encoding="utf-8")
    return lines


class Page(HTMLParser):
    """A page taken apart: tags with attributes, text by tag, and whether every tag is closed in its turn."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.raw = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(self.raw)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def of(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]

    def attributes(self, name: str) -> list[str]:
        return [str(attributes[name]) for _, attributes in self.tags if name in attributes]


def page_of(folder: Path) -> Page:
    return Page(report.write_report(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "first"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    """A run with everything in it, its report written: the folder and the metrics. Only for reading."""
    folder = tmp_path_factory.mktemp("drawn") / "first"
    lines = write_run(folder)
    report.write_report(folder)
    return folder, lines


# --- reading ---------------------------------------------------------------------------------------------------------


def test_arrays_hold_what_the_lines_say_whichever_devices_are_there(folder: Path) -> None:
    lines = write_run(folder, rounds=9, devices=5, absent=0.5)
    lines[3]["devices"].append(dict(lines[3]["devices"][0], device=40, rate=0.125))
    lines[5]["test_accuracy"] = None
    write_metrics(folder, lines)
    run = report.read_log(folder)
    assert run.devices.tolist() == [*sorted({e["device"] for line in lines for e in line["devices"]})]
    assert run.rounds.tolist() == list(range(1, 10))
    assert np.isnan(run.by_round["test_accuracy"][5])
    for r, line in enumerate(lines):
        there = {e["device"]: e for e in line["devices"]}
        for k, device in enumerate(run.devices):
            assert run.active[r, k] == (device in there)
            expected = there[device]["rate"] if device in there else np.nan
            np.testing.assert_equal(run.by_device["rate"][r, k], expected)


def test_the_saving_is_counted_frame_by_frame(folder: Path) -> None:
    lines = write_run(folder, absent=0.4)
    lines[2]["devices"][0] |= {"push_bytes": 0, "pull_bytes": 0, "status": "left out", "rate": 0.0}
    lines[3]["devices"][0] |= {"pull_bytes": 0, "status": "the frame is damaged"}
    for line in lines:
        line |= {key: sum(e[key] for e in line["devices"]) for key in ("push_bytes", "pull_bytes")}
    write_metrics(folder, lines)
    sent = full = 0
    for entry in (e for line in lines for e in line["devices"]):
        for key in ("push_bytes", "pull_bytes"):
            sent += entry[key]
            full += 4 * PARAMETERS * (entry[key] > 0)
    run = report.read_log(folder)
    assert run.saving == pytest.approx(1 - sent / full, rel=1e-12)
    rates = [e["rate"] for line in lines for e in line["devices"] if e["status"] != "left out"]
    assert run.mean_rate == pytest.approx(np.mean(rates), rel=1e-12)


@pytest.mark.parametrize("cut", [1, 40, 300])
def test_a_last_line_cut_off_is_left_out(folder: Path, cut: int) -> None:
    write_run(folder, rounds=4)
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[: -1 - cut])
    assert report.read_log(folder).rounds.tolist() == [1, 2, 3]


def test_numbers_that_are_none_leave_a_gap(folder: Path) -> None:
    lines = write_run(folder)
    lines[2] |= {"train_loss": float("nan"), "test_loss": float("inf")}
    write_metrics(folder, lines)
    assert np.isnan(report.read_log(folder).by_round["test_loss"][2])
    page_of(folder)


def broken(what: str, folder: Path) -> None:
    lines = write_run(folder)
    match what:
        case "no folder":
            shutil.rmtree(folder)
        case "no config":
            (folder / "config.toml").unlink()
        case "bad config":
            (folder / "config.toml").write_text("a = = 1")
        case "no metrics":
            (folder / "metrics.jsonl").unlink()
        case "no rounds":
            (folder / "metrics.jsonl").write_text("")
        case "bad line":
            (folder / "metrics.jsonl").write_text("{\n" + json.dumps(lines[0]) + "\n")
        case "list line":
            (folder / "metrics.jsonl").write_text("[1]\n")
        case "twice":
            write_metrics(folder, [lines[0], lines[0]])
        case "word":
            write_metrics(folder, [lines[0] | {"test_loss": "low"}])
        case "true":
            write_metrics(folder, [lines[0] | {"round": True}])
        case "too large":
            write_metrics(folder, [lines[0] | {"wall_s": 10**400}])
        case "no devices":
            (folder / "devices" / "rounds-000002-000002.parquet").unlink()
        case "bad json":
            (folder / "run.json").write_text("{")
        case "ragged":
            (folder / "run.json").write_text('{"class_counts": [[1, 2], [3]]}')
        case "negative":
            (folder / "run.json").write_text('{"class_counts": [[1, -2]]}')
        case "names":
            (folder / "run.json").write_text('{"class_counts": [[1, 2]], "class_names": ["a"]}')
        case "deadline":
            (folder / "config.toml").write_text('[radio]\ndeadline_s = "soon"')


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("no folder", "does not exist.*feddrop run"),
        ("no config", "has no config.toml.*feddrop run"),
        ("bad config", "config.toml is not valid TOML"),
        ("no metrics", "has no metrics.jsonl.*first round"),
        ("no rounds", "no finished round"),
        ("bad line", "line 1 is not valid JSON"),
        ("list line", "line 1 must be an object"),
        ("twice", "line 2 holds round 1; round 2 is missing"),
        ("word", "'test_loss' is 'low'.*number or null"),
        ("true", "'round' is True.*an integer"),
        ("too large", "'wall_s' is 1000"),
        ("no devices", "rounds-000002-000002.parquet is damaged: it is missing"),
        ("bad json", "run.json cannot be read: it is not valid JSON.*delete"),
        ("ragged", "'class_counts' must be a table"),
        ("negative", "'class_counts' must be a table"),
        ("names", "'class_names' must list 2 names"),
        ("deadline", "'deadline_s' is 'soon'"),
    ],
)
def test_a_broken_folder_says_what_is_wrong_and_leaves_no_page(folder: Path, what: str, said: str) -> None:
    broken(what, folder)
    with pytest.raises(RunError, match=f"(?s){said}"):
        report.write_report(folder)
    assert not (folder / "report.html").exists()


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_says_what_the_run_did(drawn: Drawn) -> None:
    folder, lines = drawn
    page = Page(folder / "report.html")
    assert page.of("h1") == ["first"]
    assert page.of("h2") == ["Learning", "Traffic", "Devices", "Radio", "Data", "Numbers", "Setup"]
    assert "lenet on digits · 1,000 parameters · 4 devices · 6 rounds" in page.of("p")
    tiles = dict(zip(page.of("dt")[:6], page.of("dd")[:12:2], strict=True))  # each has a number, then a note
    assert tiles["Test accuracy"] == f"{100 * lines[-1]['test_accuracy']:.1f}"
    assert tiles["Rounds"] == "6"
    notes = " ".join(page.of("dd"))
    saved = 1 - sum(x["push_bytes"] + x["pull_bytes"] for x in lines) / (6 * 4 * 2 * 4 * PARAMETERS)
    assert f"{100 * saved:.1f} % less than full float32 models" in notes
    assert f"{quantities.in_seconds(sum(x['latency_s'] for x in lines) / 6)} per round" in notes
    assert page.of("code") == ["feddrop run config.toml"]
    assert {"deadline_s", "1.2", "energy_budget_j", "30.0"} <= {*page.of("dt"), *page.of("dd")}
    assert {"Dropout rates", "Dropout rates by round", "Latency by device", "Binding limits"} <= {*page.of("h3")}
    assert "Bandwidth share ρ: 0.250 for every device in every round." in page.of("p")
    assert f"{100 * lines[3]['test_accuracy']:.2f} %" in page.of("td")


def test_the_page_stands_alone(drawn: Drawn) -> None:
    page = Page(drawn[0] / "report.html")
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "base", "form", "foreignobject"}
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    for reference in page.attributes("href") + page.attributes("src") + page.attributes("xlink:href"):
        assert reference.startswith(("#", "data:image/png;base64,"))
    assert not re.search(r"(?i)@import|https?://|url\((?!#)", page.raw)


def test_ids_are_unique_and_every_reference_finds_one(drawn: Drawn) -> None:
    page = Page(drawn[0] / "report.html")
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    targets = {ref[1:] for ref in page.attributes("href") if ref.startswith("#")}
    targets |= {target for ref in page.attributes("clip-path") for target in re.findall(r"url\(#(.*?)\)", ref)}
    assert targets
    assert targets <= set(ids)


def test_figures_take_their_colours_from_the_page(drawn: Drawn) -> None:
    page = Page(drawn[0] / "report.html")
    styles = " ".join(a["style"] or "" for tag, a in page.tags if tag in ("path", "text", "use") and "style" in a)
    assert "var(--ink)" in styles
    assert "var(--series-0)" in styles
    fixed = set(re.findall(r"#[0-9a-f]{6}", styles))
    assert fixed <= {*style.BINDINGS.values()}  # the key to an image, whose colours are fixed
    sheet = (Path(report.__file__).parent / "style.css").read_text()
    light, dark = sheet.split("@media screen and (prefers-color-scheme: dark)")
    for n, (day, night) in enumerate(zip(style.SERIES, style.DARK_SERIES, strict=True)):
        assert f"--series-{n}: {day};" in light
        assert f"--series-{n}: {night};" in dark


def test_without_radio_no_word_of_it(folder: Path) -> None:
    write_run(folder, radio=False, vary=False)
    page = page_of(folder)
    assert "Radio" not in page.of("h2")
    assert not {"Simulated time", "Energy"} & {*page.of("dt")}
    assert not {"Bandwidth shares", "Dropout rates by round"} & {*page.of("h3")}
    assert "latency" not in page.of("th")


def test_without_facts_their_sections_are_left_out(folder: Path) -> None:
    write_run(folder)
    (folder / "run.json").unlink()
    page = page_of(folder)
    assert "Data" not in page.of("h2")
    assert not page.of("code")
    assert "pushed and pulled" in page.of("dd")
    assert report.write_report(folder, folder.parent) == folder.parent / "report.html"


def test_what_was_never_measured_is_not_drawn(folder: Path) -> None:
    lines = write_run(folder)
    for line in lines:
        line |= dict.fromkeys(("test_accuracy", "test_loss", "train_loss", "wall_s"))
        line["devices"] = []
        line |= {"push_bytes": 0, "pull_bytes": 0, "latency_s": None, "energy_j": None}
    write_metrics(folder, lines)
    page = page_of(folder)
    assert page.of("h2") == ["Data", "Numbers", "Setup"]


def test_the_verdict_of_a_run_that_kept_its_limits(drawn: Drawn) -> None:
    most = max(e["latency_s"] for line in drawn[1] for e in line["devices"]) / 1.2
    said = " ".join(Page(drawn[0] / "report.html").of("p"))
    assert f"Every device met the deadline (at most {100 * most:.2f} % used) and the energy budget" in said


def test_the_verdict_counts_what_is_over_the_limit(folder: Path) -> None:
    lines = write_run(folder)
    lines[0]["devices"][0]["latency_s"] = 1.2 * (1 + 1e-9)  # rounding: still kept
    lines[2]["devices"][1]["latency_s"] = 1.5
    lines[4]["devices"][3]["latency_s"] = 1.25
    lines[5]["devices"][2]["status"] = "left out"
    write_metrics(folder, lines)
    said = " ".join(page_of(folder).of("p"))
    assert "Devices exceeded the deadline in 2 of 24 cases (up to 125.00 % used)" in said
    assert "the energy budget" not in said.split("exceeded")[1].split(".")[0]
    assert "left out of a round 1 time, 0.167 per round on average." in said
    image = np.asarray(report.map_figure(report.read_log(folder), "latency_s").axes[0].images[0].get_array())
    orange = np.all(np.isclose(image[..., :3], maps._rgb(style.OVER)), axis=-1)
    assert np.argwhere(orange).tolist() == [[1, 2], [3, 4]]


def test_the_verdict_holds_devices_to_the_deadline_in_force(folder: Path) -> None:
    lines = write_run(folder)
    lines[1] |= {"deadline_s": 1.8}
    lines[1]["devices"][2]["latency_s"] = 1.7
    lines[4] |= {"deadline_s": 1.5}
    lines[5].pop("deadline_s")  # of a run that did not write it: the configuration's
    write_metrics(folder, lines)
    run = report.read_log(folder)
    np.testing.assert_array_equal(run.limit("latency_s"), np.repeat([[1.2], [1.8], [1.2], [1.2], [1.5], [1.2]], 4, 1))
    said = " ".join(page_of(folder).of("p"))
    assert "Every device met the deadline" in said
    assert "Darker is more; orange is above the deadline." in said
    assert "Darker is closer to the energy budget; orange is above it." in said
    assert "deadline of 1.20 s was extended in 2 of 6 rounds, to 1.80 s at most" in said
    line = report.limit_figure(run, "latency_s").axes[0].lines[2]
    assert np.asarray(line.get_ydata())[1:-1].tolist() == [1.2, 1.8, 1.2, 1.2, 1.5, 1.2]

    lines[3]["devices"][0]["latency_s"] = 1.7  # too much for that round's deadline
    write_metrics(folder, lines)
    assert "exceeded the deadline in 1 of 24 cases" in " ".join(page_of(folder).of("p"))
    longest = [text for text in report.device_figure(run, "latency_s").axes[0].texts if text.get_text() == "deadline"]
    assert [label.xy[1] for label in longest] == [1.8]


@pytest.mark.parametrize("counted", ["measured", "formula"])
def test_measured_costs_stand_against_the_formula_whichever_counts(folder: Path, counted: str) -> None:
    lines = write_run(folder)
    other = {"measured": "formula", "formula": "measured"}[counted]
    for entry in (e for line in lines for e in line["devices"]):
        entry[f"{other}_latency_s"] = entry["latency_s"] * (1.25 if other == "measured" else 0.8)
        entry[f"{other}_energy_j"] = entry["energy_j"] * (0.8 if other == "measured" else 1.25)
    write_metrics(folder, lines)
    page = page_of(folder)
    said = " ".join(page.of("p"))
    assert "Measured frames compared with the paper's formula, on average: latency +25.00 %, energy −20.00 %." in said
    assert "panel verdict" in page.attributes("class")  # the run kept what it counts by
    over = sum(1.25 * e["latency_s"] > 1.2 for line in lines for e in line["devices"])
    assert over > 0
    missed = f"With measured frames, devices exceeded the deadline in {over} of 24 cases"
    assert (missed in said) == (counted == "formula")
    assert ("by the formula." in said) == (counted == "formula")


def test_every_word_of_the_allocator_is_drawn_and_counted(folder: Path) -> None:
    write_run(folder)
    run = report.read_log(folder)
    image = np.asarray(report.binding_figure(run).axes[0].images[0].get_array())
    assert (image[..., 3] > 0).all()  # every device took part in every round
    assert {tuple(pixel) for pixel in image.reshape(-1, 4)} == {
        (*maps._rgb(maps.binding_style(word)[0]), maps.binding_style(word)[1]) for word in maps.CONSTRAINTS
    }
    page = page_of(folder)
    assert "bound by deadline+energy" in page.of("th")
    row = page.of("td")[-len(device_head(page)) :]  # the last row of the last table
    counts = [int(cell) for cell, head in zip(row, device_head(page), strict=True) if head.startswith("bound by")]
    assert sum(counts) == len(run.rounds)


def device_head(page: Page) -> list[str]:
    heads = page.of("th")
    return heads[heads.index("device") :]


def test_refused_updates_are_counted_and_explained(folder: Path) -> None:
    lines = write_run(folder)
    reason = "the update is 12 bytes long; " + "<b>a frame must be longer</b> " * 20
    for n in (0, 1, 3):
        lines[n]["devices"][2] |= {"status": reason, "loss": None}
    for k, word in enumerate("uvwxyz"):
        lines[k]["devices"][0] |= {"status": f"device 0 failed: {word}", "loss": None}
    lines[2]["devices"][2]["status"] = "left out"
    write_metrics(folder, lines)
    run = report.read_log(folder)
    assert (run.words["status"] == "refused").sum(axis=0).tolist() == [6, 0, 3, 0]
    page = page_of(folder)
    said = " ".join(page.of("p"))
    assert "9 of 23 updates were refused" in said
    assert "The 5 most frequent reasons of 7" in said
    shown = [text for text in page.of("dd") if text.startswith("the update is")]
    assert len(shown) == 1
    assert shown[0] == reason[:199] + "…"
    assert page.of("dd")[page.of("dd").index(shown[0]) + 1] == "device 0 failed: u"
    assert "b" not in {tag for tag, _ in page.tags}
    head, cells = device_head(page), page.of("td")
    rows = np.array(cells[-4 * len(head) :]).reshape(4, len(head))
    assert rows[:, head.index("refused")].tolist() == ["6", "0", "3", "0"]


def test_suspicious_updates_are_counted_and_explained(folder: Path) -> None:
    lines = write_run(folder)
    for n in (0, 2, 4):
        lines[n]["devices"][3]["suspicious"] = "norm 90 times the median <b>"
    lines[1]["devices"][0]["suspicious"] = "far from all others"
    write_metrics(folder, lines)
    run = report.read_log(folder)
    assert run.suspicious.sum(axis=0).tolist() == [1, 0, 0, 3]
    page = page_of(folder)
    assert "4 of 24 updates look suspicious. They came from device 3 (3 times), 0 (1 time)." in page.of("p")
    assert page.of("dd")[page.of("dd").index("norm 90 times the median <b>") + 1] == "far from all others"
    head, cells = device_head(page), page.of("td")
    rows = np.array(cells[-4 * len(head) :]).reshape(4, len(head))
    assert rows[:, head.index("suspicious")].tolist() == ["1", "0", "0", "3"]


def test_updates_that_were_too_large_are_one_reason(folder: Path) -> None:
    lines = write_run(folder)
    for n, times in enumerate(("9.5", "13", "1.2e+03")):
        lines[n]["devices"][0]["suspicious"] = f"{times} × as large as the last round's median"
    lines[0]["devices"][1]["suspicious"] = "8 × as large as the round's median"
    write_metrics(folder, lines)
    assert report.read_log(folder).suspicions == {
        "9.5 to 1.2e+03 × as large as the last round's median": 3,
        "8 × as large as the round's median": 1,
    }


def test_regression_shows_loss_and_own_metrics(folder: Path, tmp_path: Path) -> None:
    lines = write_run(folder)
    for n, line in enumerate(lines):
        line |= {"test_accuracy": None, "metrics": {"mae": 3.0 - 0.25 * n, "<script>": None if n else 1.0}}
    write_metrics(folder, lines)
    run = report.read_log(folder)
    np.testing.assert_allclose(run.metrics["mae"], 3.0 - 0.25 * np.arange(6))
    page = page_of(folder)
    assert "Test accuracy" not in page.of("dt")
    assert "accuracy" not in page.of("th")
    tiles = dict(zip(page.of("dt")[:3], page.of("dd")[:6:2], strict=True))
    assert tiles == {"Test loss": quantities.in_digits(2.2 / 6), "mae": "1.75", "<script>": "1.00"}
    assert page.of("dd")[3:6:2] == ["in round 6", "in round 1"]  # a metric may be a method's: of no test set, not yours
    assert "Your own metric." not in page.of("p")
    assert {"Loss", "mae"} <= {*page.of("h3")}
    np.testing.assert_allclose(report.metric_figure(run, "mae").axes[0].lines[0].get_ydata(), run.metrics["mae"])
    with pytest.raises(ConfigError, match="Did you mean 'mae'"):
        report.metric_figure(run, "mea")
    with pytest.raises(ConfigError, match="no run has 'test_accuracy' to draw: it was not measured"):
        report.accuracy_figure(run)
    both = Page(report.write_comparison([folder, folder], tmp_path / "c.html"))
    assert {"test loss", "mae"} <= {*both.of("th")}
    write_metrics(folder, [lines[0] | {"metrics": {"mae": "low"}}])
    with pytest.raises(RunError, match="'mae' is 'low'"):
        report.read_log(folder)


def test_participation_is_shown_where_not_all_take_part(folder: Path) -> None:
    lines = write_run(folder, rounds=8, devices=6, absent=0.6, samples=[10] * 20)
    run = report.read_log(folder)
    assert (run.population, run.has_absences) == (20, True)
    page = page_of(folder)
    assert "Devices per round" in page.of("dt")
    assert f"of 20; {len(run.devices)} took part at least once" in page.of("dd")
    assert "Participation" in page.of("h3")
    times = [sum(k in {e["device"] for e in line["devices"]} for line in lines) for k in run.devices]
    assert [bar.get_height() for bar in report.participation_figure(run).axes[0].patches] == times
    write_run(folder)
    assert "Participation" not in page_of(folder).of("h3")


def test_rounds_with_a_device_are_counted_in_whole_numbers(folder: Path) -> None:
    write_run(folder, rounds=2, devices=6, absent=0.6, samples=[10] * 20)
    ticks = report.participation_figure(report.read_log(folder)).axes[0].get_yticks()
    assert [float(tick) for tick in ticks] == [round(tick) for tick in ticks]


@pytest.mark.parametrize("best", [0, 1, 4])
def test_the_best_round_is_not_named_over_the_numbers_of_the_axis(folder: Path, best: int) -> None:
    lines = write_run(folder)
    for line in lines:
        line["test_accuracy"] = 0.8 if line["round"] == best + 1 else 0.5
    write_metrics(folder, lines)
    axes = report.accuracy_figure(report.read_log(folder)).axes[0]
    axes.figure.draw_without_rendering()
    (label,) = [text for text in axes.texts if text.get_text() == "best 80.0"]
    assert label.get_window_extent().x0 >= axes.get_window_extent().x0 - 8  # the marker itself stands on the edge


def test_a_gap_of_next_to_nothing_has_no_sign_of_its_own(folder: Path) -> None:
    lines = write_run(folder)
    for entry in (e for line in lines for e in line["devices"]):
        entry |= {"formula_latency_s": entry["latency_s"] * (1 + 1e-9), "formula_energy_j": entry["energy_j"]}
    write_metrics(folder, lines)
    assert "on average: latency +0.00 %, energy +0.00 %." in " ".join(page_of(folder).of("p"))


def test_power_and_clock_are_shown_where_a_run_decides_them(folder: Path) -> None:
    lines = write_run(folder)
    for entry in (e for line in lines for e in line["devices"]):
        entry |= {"tx_power_w": 0.004 + 0.001 * entry["device"], "cpu_hz": 5e9}
    write_metrics(folder, lines)
    page = page_of(folder)
    assert "Transmit power by device" in page.of("h3")
    assert "CPU clock: 5.00 GHz for every device in every round." in page.of("p")
    assert {"mean power", "mean clock"} <= {*page.of("th")}
    assert {"7.00 mW", "5.00 GHz"} <= {*page.of("td")}


def test_what_is_constant_takes_one_line(folder: Path) -> None:
    """Latencies within 1 % of each other and one binding limit have nothing to show; energies that differ do."""
    lines = write_run(folder)
    for entry in (e for line in lines for e in line["devices"]):
        entry |= {"rate": 0.3, "latency_s": 1.19 + 0.002 * entry["device"], "binding": "deadline"}
    write_metrics(folder, lines)
    page = page_of(folder)
    assert {*page.of("p")} >= {
        "Rate γ: 0.300 for every device in every round.",
        "Latency: 1.19 to 1.20 s for every device in every round.",
        "Binding limit: deadline, for every device in every round.",
    }
    titles = " ".join(page.of("h3"))
    assert not [word for word in ("Dropout rates", "Bandwidth", "Latency", "Binding") if word in titles]
    assert "Energy by device" in titles


def test_constant_costs_above_their_limit_are_drawn(folder: Path) -> None:
    lines = write_run(folder)
    for entry in (e for line in lines for e in line["devices"]):
        entry |= {"latency_s": 1.3}
    write_metrics(folder, lines)
    assert "Latency by device" in page_of(folder).of("h3")


def test_a_run_shows_itself_in_a_notebook(drawn: Drawn) -> None:
    run = report.read_log(drawn[0])
    frame = run._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-same-origin" srcdoc="&lt;!doctype html&gt;')
    assert frame.count("<") == 2
    assert repr(run) == "RunLog('first', 6 rounds, 4 devices)"
    assert report.accuracy_figure(run)._repr_svg_().startswith("<?xml")


def test_pdf_figures_have_truetype_fonts(drawn: Drawn, tmp_path: Path) -> None:
    run = report.read_log(drawn[0])
    with mpl.rc_context({"pdf.compression": 0, "pdf.fonttype": 3}):
        report.accuracy_figure(run).savefig(tmp_path / "a.pdf")
        assert mpl.rcParams["pdf.fonttype"] == 3
    content = (tmp_path / "a.pdf").read_bytes()
    assert b"/Subtype /Type0" in content
    assert b"/Type3" not in content


def test_without_refusals_no_word_of_them(drawn: Drawn) -> None:
    assert "Refused updates" not in Page(drawn[0] / "report.html").of("h3")


def test_hostile_strings_stay_text(tmp_path: Path) -> None:
    folder = tmp_path / "<script>alert(1)<!--"
    key = json.dumps("</dt><script>k")
    config = f'[evil]\n{key} = {json.dumps("</dd><script>alert(2)</script>")}\nlist = ["<b>", "$x"]\n'
    lines = write_run(
        folder, class_names=[HOSTILE] * 4 + ["$\\frac{$"], config=config, command=HOSTILE, cpu=HOSTILE, python="<i>"
    )
    lines[0]["devices"][0] |= {"binding": "<script>", "status": "<script>"}
    write_metrics(folder, lines)
    page = page_of(folder)
    assert not {"script", "i", "b", "img"} & {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", page.raw)
    assert page.of("h1") == ["<script>alert(1)<!--"]
    assert "</dd><script>alert(2)</script>" in page.of("dd")
    assert any("<script>alert(1)</script>" in text and "$\\frac{1$" in text for text in page.of("code"))
    assert sum(text.startswith("</title></svg>") for text in page.of("text")) == 4
    assert "$\\frac{$" in page.of("text")

    other = tmp_path / "$\\frac{$"
    write_run(other)
    both = Page(report.write_comparison([folder, other], tmp_path / "both.html"))
    assert not {"script", "b"} & {tag for tag, _ in both.tags}
    assert {"<script>alert(1)<!--", "$\\frac{$"} <= {*both.of("text")}


@pytest.mark.parametrize(
    ("shape", "radio"),
    [((1, 1, 1), False), ((1, 10, 10), True), ((2, 1, 2), True), ((3, 30, 3), False), ((200, 3, 120), True)],
)
def test_runs_of_odd_shapes_are_drawn(folder: Path, shape: tuple[int, int, int], radio: bool) -> None:
    rounds, devices, classes = shape
    write_run(folder, rounds, devices, classes, radio=radio)
    page = page_of(folder)
    assert f"{devices} device{'s' * (devices > 1)} · {rounds} round{'s' * (rounds > 1)}" in " ".join(page.of("p"))


def test_a_huge_run_makes_a_small_page(folder: Path) -> None:
    write_run(folder, rounds=500, devices=100, classes=100, absent=0.2)
    path = report.write_report(folder)
    assert path.stat().st_size < 2_000_000
    assert "100 devices · 500 rounds" in " ".join(Page(path).of("p"))


def test_maps_of_runs_too_large_to_draw_are_thinned(folder: Path) -> None:
    write_run(folder, rounds=4, devices=3)
    run = report.read_log(folder)
    assert [part.tolist() for part in maps.drawn_cells(run)] == [[0, 1, 2, 3], [0, 1, 2]]
    many = type("Large", (), {"rounds": np.arange(5000), "devices": np.arange(2500)})()
    rounds, devices = maps.drawn_cells(many)
    assert len(devices) <= maps.MOST_DEVICES
    assert len(rounds) * len(devices) <= maps.MOST_CELLS
    assert set(np.diff(rounds)) == {rounds[1] - rounds[0]}


def test_bands_of_many_rounds_are_envelopes() -> None:
    rounds, low, high = np.arange(1, 6), np.array([3.0, 1, 2, 5, np.nan]), np.array([4.0, 9, 3, 6, np.nan])
    for given, drawn in zip((rounds, low, high), plots.envelope(rounds, low, high), strict=True):
        np.testing.assert_array_equal(drawn, given)
    many = (np.arange(2_500), np.tile(low, 500), np.tile(high, 500))
    first, lowest, highest = plots.envelope(*many)
    assert first.tolist() == list(range(0, 2_500, 3))
    np.testing.assert_array_equal(lowest[:5], [1, 3, 1, 1, 2])
    np.testing.assert_array_equal(highest[:5], [9, 6, 9, 9, 6])


def test_the_same_run_gives_the_same_bytes_whatever_the_users_settings(drawn: Drawn, tmp_path: Path) -> None:
    folder, _ = drawn
    first = (folder / "report.html").read_bytes()
    with mpl.rc_context({"text.usetex": True, "axes.grid": True, "font.size": 40, "svg.fonttype": "path"}):
        before = dict(mpl.rcParams)
        again = report.write_report(folder, tmp_path / "deep" / "er" / "again.html")
        assert dict(mpl.rcParams) == before
    assert again.read_bytes() == first


def test_a_page_takes_the_place_of_no_other_file(folder: Path) -> None:
    write_run(folder, rounds=1, radio=False)
    before = (folder / "config.toml").read_text()
    with pytest.raises(RunError, match=r"a page must end in '\.html'"):
        report.write_report(folder, folder / "config.toml")
    assert (folder / "config.toml").read_text() == before


def test_a_page_that_cannot_be_written_leaves_the_old_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(folder, rounds=1, radio=False)
    path = folder / "report.html"
    path.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(RunError, match="the disk is full"):
        report.write_report(folder)
    assert path.read_text() == "old"
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.toml",
        "devices",
        "metrics.jsonl",
        "report.html",
        "run.json",
    ]


def test_importing_the_report_loads_neither_matplotlib_nor_torch() -> None:
    code = "import sys, feddrop.report; print([m for m in ('matplotlib', 'torch') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_drawing_loads_neither_pyplot_nor_pandas(folder: Path) -> None:
    write_run(folder, rounds=1)
    code = (
        "import sys, feddrop.report as r; r.write_report(sys.argv[1]);"
        "print([m for m in ('matplotlib.pyplot', 'pandas') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_public_names() -> None:
    assert report.__all__ == sorted(report.__all__)
    assert all(hasattr(report, name) for name in report.__all__)


# --- comparison ------------------------------------------------------------------------------------------------------


def test_a_comparison_shows_results_and_only_what_differs(tmp_path: Path) -> None:
    lines = {}
    for n, rate in enumerate((0.0, 0.3)):
        lines[n] = write_run(tmp_path / f"rate-{rate}", rounds=5 + 3 * n, seed=n, config=f"[subnet]\nrate = {rate}\n")
    path = report.write_comparison([tmp_path / "rate-0.0", tmp_path / "rate-0.3"], tmp_path / "compared.html")
    page = Page(path)
    assert page.of("h1") == ["2 runs compared"]
    assert {f"Accuracy by {x}" for x in ("round", "traffic", "simulated time")} <= {*page.of("h3")}
    assert page.of("th").count("setting") == 1
    cells = page.of("td")
    assert [c for c in cells if c in ("rounds", "subnet.rate", "data.name", "radio.deadline_s")] == [
        "rounds",
        "subnet.rate",
    ]
    aim = min(max(line["test_accuracy"] for line in run) for run in lines.values())
    assert f"Every run reached {100 * aim:.1f} %, the target" in " ".join(page.of("p"))
    for run in lines.values():
        sent, reached = 0, 0
        for line in run:
            sent += line["push_bytes"] + line["pull_bytes"]
            reached = line["round"]
            if line["test_accuracy"] >= aim:
                break
        assert str(reached) in cells
        assert quantities.in_bytes(sent) in cells


def test_a_comparison_without_radio_has_no_time(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    lines = write_run(tmp_path / "b", radio=False)
    write_metrics(tmp_path / "b", [line | {"test_accuracy": None} for line in lines])
    page = Page(report.write_comparison([tmp_path / "a", tmp_path / "b"], tmp_path))
    assert "Accuracy by round" in page.of("h3")
    assert not any("time" in title for title in page.of("h3"))
    assert not any("to target" in head for head in page.of("th"))


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    for parent in ("old", "new"):
        write_run(tmp_path / parent / "run")
    page = Page(report.write_comparison([tmp_path / "old" / "run", tmp_path / "new" / "run"], tmp_path / "c.html"))
    assert {"old/run", "new/run"} <= {*page.of("text")}
    assert "None: all runs have the same configuration." in page.of("p")
    page = Page(report.write_comparison([tmp_path / "old" / "run"] * 2, tmp_path / "c.html"))
    assert {"run (1)", "run (2)"} <= {*page.of("text")}


@pytest.mark.parametrize("given", [[], "runs/first"])
def test_a_comparison_needs_a_list(given: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="must be a list of run folders"):
        report.write_comparison(given, tmp_path)


def test_many_runs_are_drawn(tmp_path: Path) -> None:
    folders = [tmp_path / f"run {n}" for n in range(14)]
    for n, path in enumerate(folders):
        write_run(path, seed=n, radio=False)
    figure = report.accuracy_figure([report.read_log(path) for path in folders])
    looks = {(line.get_color(), str(line._dash_pattern)) for line in figure.axes[0].lines}
    assert len(looks) == 14


def test_runs_that_differ_in_the_seed_are_one_group_with_a_band(tmp_path: Path) -> None:
    lines = {}
    for seed, rate in itertools.product(range(3), (0.1, 0.5)):
        config = f"[train]\nlr = {rate}\n"
        lines[seed, rate] = write_run(tmp_path / f"lr{rate}-s{seed}", seed=10 * seed + int(10 * rate), config=config)
        path = tmp_path / f"lr{rate}-s{seed}" / "config.toml"
        path.write_text(f"seed = {seed}\n" + path.read_text())
    folders = sorted(path for path in tmp_path.iterdir())
    groups = report.grouped([report.read_log(folder) for folder in folders])
    assert [(group.name, len(group.runs)) for group in groups] == [("lr0.1", 3), ("lr0.5", 3)]
    axes = report.accuracy_figure(groups).axes[0]
    assert len(axes.lines) == len(axes.collections) == 2
    curves = np.array([[100 * line["test_accuracy"] for line in lines[seed, 0.1]] for seed in range(3)])
    np.testing.assert_allclose(axes.lines[0].get_ydata(), curves.mean(axis=0))
    band = np.asarray(axes.collections[0].get_paths()[0].vertices)
    for n, (mean, deviation) in enumerate(zip(curves.mean(axis=0), curves.std(axis=0, ddof=1), strict=True), 1):
        edges = band[np.isclose(band[:, 0], n), 1]
        np.testing.assert_allclose((edges.min(), edges.max()), (mean - deviation, mean + deviation))

    page = Page(report.write_comparison(folders, tmp_path / "c.html"))
    assert page.of("h1") == ["2 settings, 6 runs compared"]
    last = curves[:, -1]
    assert f"{last.mean():.1f} ± {last.std(ddof=1):.1f} %" in page.of("td")
    assert "All runs" in page.of("summary")
    assert [cell for cell in page.of("td") if cell in ("seed", "train.lr", "rounds")] == ["train.lr"]
    rounds = report.grouped([report.read_log(folder) for folder in folders[:3]])
    assert len(rounds) == 1
    assert "None: all runs have the same" in " ".join(
        Page(report.write_comparison(folders[:3], tmp_path / "d.html")).of("p")
    )


def test_groups_of_a_sweep_are_named_without_the_seed(tmp_path: Path) -> None:
    for seed, lr in itertools.product(range(2), (0.1, 0.5)):
        for name in (f"units,seed={seed},lr={lr}", f"whole,seed={seed}", f"seed={seed}"):
            method = {"u": "feddrop", "w": "fedavg", "s": "heterofl"}[name[0]]
            write_run(tmp_path / name, seed=seed, radio=False)
            config = f"seed = {seed}\nmethod = '{method}'\n[train]\nlr = {lr if name[0] == 'u' else 1.0}\n"
            (tmp_path / name / "config.toml").write_text(config)
    groups = report.grouped([report.read_log(folder) for folder in sorted(tmp_path.iterdir())])
    assert [group.name for group in groups] == ["base", "units,lr=0.1", "units,lr=0.5", "whole"]


def test_a_rate_that_only_some_runs_have_differs(tmp_path: Path) -> None:
    from feddrop.config import RunConfig

    for name, given in (
        ("whole", 'method = "fedavg"'),
        ("default", ""),
        ("same", "rate = 0.3"),
        ("half", "rate = 0.5"),
    ):
        write_run(tmp_path / name, radio=False)
        (tmp_path / name / "config.toml").write_text(RunConfig.from_toml(given).to_toml())
    runs = {path.name: report.read_log(path) for path in tmp_path.iterdir()}
    found = report.groups.differing_settings(report.grouped([runs["whole"], runs["half"]]))
    assert found == {"rate": [0.0, 0.5], "method.name": ["fedavg", "feddrop"]}
    assert report.groups.differing_settings(report.grouped([runs["default"], runs["same"]])) == {}
    assert report.groups.differing_settings(report.grouped([runs["default"], runs["half"]])) == {"rate": [0.3, 0.5]}


def test_different_methods_list_what_was_chosen_for_each(tmp_path: Path) -> None:
    from feddrop.config import RunConfig

    importance = "method = { name = 'feddrop', draw = 'importance', exponent = 2.0 }"
    for name, given in (("drawn", importance), ("fiarse", "method = 'fiarse'"), ("plain", "")):
        write_run(tmp_path / name, radio=False)
        (tmp_path / name / "config.toml").write_text(RunConfig.from_toml(given).to_toml())
    runs = [report.read_log(tmp_path / name) for name in ("fiarse", "drawn", "plain")]
    found = report.groups.differing_settings(report.grouped(runs[:2]))
    assert found == {
        "method.name": ["fiarse", "feddrop"],
        "method.draw": [None, "importance"],
        "method.exponent": [None, 2.0],
    }
    found = report.groups.differing_settings(report.grouped([runs[0], runs[2]]))
    assert "method.draw" not in found


def test_a_method_keeps_its_colour_over_its_settings() -> None:
    names = [(name, rate / 10) for rate in range(6) for name in ("feddrop", "feddst")]
    given = [report.Group(name=name, runs=(), settings={"method.name": name, "rate": rate}) for name, rate in names]
    groups = report.groups.with_looks(given)
    assert len({group.colour for group in groups}) == 2
    assert [group.colour for group in groups[:2]] == [group.colour for group in groups[2:4]]
    assert len({(group.colour, str(group.dash), group.marker) for group in groups}) == 12
    assert len({group.colour for group in report.groups.with_looks(given[:10])}) == 10  # as many as there are colours


def test_keys_that_an_older_run_did_not_know_are_no_difference(tmp_path: Path) -> None:
    from feddrop.config import RunConfig

    for name in ("old", "new", "other"):
        write_run(tmp_path / name, radio=False)
    lr = 0.5
    new = RunConfig.from_toml("rounds = 6", [f"train.lr={lr}"]).to_toml()
    (tmp_path / "new" / "config.toml").write_text(new)
    (tmp_path / "old" / "config.toml").write_text(f"rounds = 6\n[train]\nlr = {lr}\n")
    (tmp_path / "other" / "config.toml").write_text(new + "\n[radio]\ndeadline_s = 5.0\n")
    runs = [report.read_log(tmp_path / name) for name in ("old", "new", "other")]
    assert report.groups.differing_settings(report.groups.one_group_per_run(runs[:2])) == {}
    assert report.groups.differing_settings(report.grouped(runs[:2])) == {}  # once the defaults are filled in
    assert report.groups.differing_settings(report.grouped(runs)) == {"[radio]": [None, None, "given"]}

    foreign = [{"a": {"b": 1}}, {"a": {"b": 1, "c": 2}, "d": 3}]  # of no version that we know
    groups = [report.Group(name="x", runs=(), settings=complete_settings(config)) for config in foreign]
    assert report.groups.differing_settings(groups) == {}


def test_the_table_of_differences_wraps() -> None:
    sheet = (Path(report.__file__).parent / "style.css").read_text()
    assert "ellipsis" not in sheet


# --- figures ---------------------------------------------------------------------------------------------------------


def test_curves_pass_through_the_numbers(folder: Path) -> None:
    lines = write_run(folder)
    lines[1]["test_accuracy"] = None
    write_metrics(folder, lines)
    run = report.read_log(folder)
    line = report.accuracy_figure(run).axes[0].lines[0]
    kept = [x for x in lines if x["test_accuracy"] is not None]
    np.testing.assert_allclose(line.get_xdata(), [x["round"] for x in kept])
    np.testing.assert_allclose(line.get_ydata(), [100 * x["test_accuracy"] for x in kept])
    line = report.accuracy_figure(run, against="time").axes[0].lines[0]
    seconds = list(itertools.accumulate(x["latency_s"] for x in lines))
    np.testing.assert_allclose(line.get_xdata(), [seconds[x["round"] - 1] for x in kept])
    line = report.loss_figure(run, against="bytes").axes[0].lines[0]
    sent = list(itertools.accumulate(x["push_bytes"] + x["pull_bytes"] for x in lines))
    np.testing.assert_allclose(line.get_xdata(), np.array(sent) / 1e3)


def test_maps_carry_the_values_in_their_opacity(folder: Path) -> None:
    write_run(folder, absent=0.4)
    run = report.read_log(folder)
    image = np.asarray(report.map_figure(run, "rate").axes[0].images[0].get_array())
    rate = run.by_device["rate"].T
    assert image.shape == (*rate.shape, 4)
    there = np.isfinite(rate)
    assert (image[~there, 3] == 0).all()
    np.testing.assert_allclose(image[there, 3], 0.05 + 0.95 * rate[there] / np.nanmax(rate), atol=0.5 / maps.LEVELS)


def test_budgets_of_their_own_are_drawn_as_percent(folder: Path) -> None:
    write_run(folder, budget_j=[30.0, 40.0, 50.0, None])
    run = report.read_log(folder)
    np.testing.assert_equal(run.budget_j, [30.0, 40.0, 50.0, np.nan])
    axes = report.limit_figure(run, "energy_j").axes[0]
    assert axes.get_title("left") == "energy per device, % of its budget"
    used = 100 * run.by_device["energy_j"][:, :3] / run.budget_j[:3]
    np.testing.assert_allclose(axes.lines[1].get_ydata(), used.max(axis=1))
    page_of(folder)
    labels = [text for text in report.device_figure(run, "energy_j").axes[0].texts if text.get_text() == "budget"]
    assert [label.xy[1] for label in labels] == [50.0]  # the last device has none


@pytest.mark.parametrize("shape", [(10, 10), (3, 2), (10, 100), (50, 10), (1, 1)])
def test_circle_area_is_the_number_of_samples(shape: tuple[int, int]) -> None:
    g = generator(derive(0, "partition", *shape))
    counts = np.stack([g.multinomial(500, g.dirichlet(np.full(shape[0], 0.3))) for _ in range(shape[1])], axis=1)
    figure = report.partition_figure(counts)
    circles = figure.axes[0].collections[0]
    places, sizes = np.asarray(circles.get_offsets()), circles.get_sizes()
    assert len(places) == np.count_nonzero(counts)
    shown = np.zeros(counts.shape)
    for (x, y), size in zip(places.astype(int), sizes, strict=True):
        shown[(x, y) if is_tall(*shape) else (y, x)] = size
    np.testing.assert_allclose(shown / shown.max(), counts / counts.max(), atol=1e-9)
    bars = figure.axes[0].child_axes[0].patches
    if shape[0] <= 40:  # else one outline
        assert sorted(max(b.get_height(), b.get_width()) for b in bars) == pytest.approx(sorted(counts.sum(axis=1)))


def test_too_many_circles_become_a_map() -> None:
    counts = np.arange(60 * 200).reshape(60, 200)
    axes = report.partition_figure(counts).axes[0]
    assert not axes.collections
    opacity = np.asarray(axes.images[0].get_array())[..., 3]
    assert opacity[0, 0] == 0
    np.testing.assert_allclose(opacity[counts > 0], 0.05 + 0.95 * counts[counts > 0] / 11999, atol=0.5 / maps.LEVELS)


@pytest.mark.parametrize("counts", [[], [1, 2], [[0, 0]], [[1, -1]]])
def test_a_partition_that_cannot_be_drawn_is_an_error(counts: Any) -> None:
    with pytest.raises(ConfigError, match="devices by classes"):
        report.partition_figure(counts)


def test_figures_that_have_nothing_to_draw_are_errors(folder: Path) -> None:
    write_run(folder, radio=False)
    run = report.read_log(folder)
    for draw in (report.map_figure, report.device_figure):
        with pytest.raises(ConfigError, match="no 'share' to draw"):
            draw(run, "share")
    with pytest.raises(ConfigError, match="no 'latency_s' to draw"):
        report.limit_figure(run, "latency_s")
    with pytest.raises(ConfigError, match="no 'binding' to draw"):
        report.binding_figure(run)
    with pytest.raises(ConfigError, match="Did you mean 'rate'"):
        report.device_figure(run, "rates")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="one of 'bytes', 'energy', 'round', 'time'"):
        report.accuracy_figure(run, against="epochs")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has no simulated time to draw against; that needs a radio"):
        report.accuracy_figure(run, against="time")
    with pytest.raises(ConfigError, match="no run"):
        report.accuracy_figure([])
    with pytest.raises(ConfigError, match="class_names has 1 names for 2 classes"):
        report.partition_figure([[1, 2]], ["a"])


def test_labels_are_moved_apart_and_keep_their_order() -> None:
    g = generator(derive(0, "labels"))
    for count in range(1, 12):
        wanted = g.uniform(0, 60, count)
        moved = np.array(style.spread_labels(wanted, 10.0))
        assert np.array_equal(np.argsort(moved), np.argsort(wanted))
        assert (np.diff(np.sort(moved)) >= 10 - 1e-9).all()
        assert moved.min() >= 0
    np.testing.assert_allclose(style.spread_labels(np.array([5.0, 50.0]), 10.0), [5.0, 50.0])
    np.testing.assert_allclose(style.spread_labels(np.array([52.0, 50.0]), 10.0), [56.0, 46.0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (quantities.in_bytes(0), "0 B"),
        (quantities.in_bytes(999), "999 B"),
        (quantities.in_bytes(999_900), "1.00 MB"),
        (quantities.in_bytes(58_249_000), "58.2 MB"),
        (quantities.in_seconds(0.0123), "12.3 ms"),
        (quantities.in_seconds(1.2), "1.20 s"),
        (quantities.in_seconds(119), "119 s"),
        (quantities.in_seconds(600), "10.0 min"),
        (quantities.in_seconds(9000), "2.50 h"),
        (quantities.in_joules(29_400), "29.4 kJ"),
        (quantities.in_joules(float("nan")), "–"),
        (quantities.in_percent(0.94231), "94.2 %"),
        (quantities.in_percent(-0.0001), "0.0 %"),
        (quantities.in_digits(123456.0), "123,456"),
        (quantities.in_digits(0.000012), "1.20e-05"),
        (quantities.in_digits(-0.5), "-0.500"),
    ],
)
def test_numbers_are_written_as_people_read_them(text: str, expected: str) -> None:
    assert text == expected


# --- colours ---------------------------------------------------------------------------------------------------------

# Machado, Oliveira and Fernandes (2009), severity 1, on linear sRGB
EYES = {
    "typical": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protan": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.052]],
    "deutan": [[0.3673, 0.8606, -0.228], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "tritan": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}


def linear(colour: str) -> Any:
    value = np.array(maps._rgb(colour))
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def oklab(rgb: Any) -> Any:
    cone = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.63]])
    lab = np.array([[0.2105, 0.7936, -0.0041], [1.978, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
    return lab @ np.cbrt(np.clip(cone @ rgb, 0, None))


GROUNDS = ("#ffffff", "#181b20")
"""What figures stand on, by day and by night."""


def in_maps(ground: str) -> tuple[str, ...]:
    """Return the colours of what binds as they look on a ground."""

    def seen(colour: str, opacity: float) -> str:
        mixed = opacity * np.array(maps._rgb(colour)) + (1 - opacity) * np.array(maps._rgb(ground))
        return "#" + "".join(f"{round(255 * part):02x}" for part in mixed.tolist())

    return tuple(seen(*maps.binding_style(word)) for word in maps.CONSTRAINTS)


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize(
    "palette", [style.SERIES, style.DARK_SERIES, (*style.BINDINGS.values(),), *(in_maps(g) for g in GROUNDS)]
)
def test_colours_can_be_told_apart_by_all_eyes(palette: tuple[str, ...], eyes: str) -> None:
    seen = [oklab(np.clip(np.array(EYES[eyes]) @ linear(colour), 0, 1)) for colour in palette]
    assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)) > 0.1


@pytest.mark.parametrize(("palette", "ground"), [*zip((style.SERIES, style.DARK_SERIES), GROUNDS, strict=True)])
def test_colours_stand_out_from_the_page(palette: tuple[str, ...], ground: str) -> None:
    def light(colour: str) -> float:
        return float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colour)) + 0.05

    for colour in palette:
        dim, bright = sorted((light(colour), light(ground)))
        assert bright / dim >= 3


def test_words_compare_and_index_as_an_array_of_strings():
    codes = np.array([[0, 1, 2], [2, 2, 1]])
    words, plain = Words(codes, ["", "ok", "left out"]), np.array(["", "ok", "left out"])[codes]
    for word in ("", "ok", "left out", "unknown", None):
        np.testing.assert_array_equal(words == word, plain == str(word) if word is not None else np.zeros((2, 3), bool))
        np.testing.assert_array_equal(words != word, ~(words == word))
    for key in (slice(1), (slice(None), 2), np.ix_([1], [0, 2]), (1, 1)):
        np.testing.assert_array_equal(np.asarray(words[key]), plain[key])
    assert words.tolist() == plain.tolist()
