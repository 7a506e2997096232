"""The compare page says what ``feddrop compare`` says, points of the paper lead to runs, subnets are those of a run."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import feddrop
from feddrop.errors import ConfigError, FeddropError, RunError
from feddrop.explore import open_explorer
from feddrop.explore.compare import compared, figure
from feddrop.explore.paper import MISSING, Paper
from feddrop.explore.runs import LOOKS, Runs
from feddrop.explore.subnets import held
from feddrop.report.compare import read_logs, standings
from feddrop.report.groups import grouped
from support.explore import make_run

RESULTS = Path(__file__).parents[2] / "reproduction" / "results" / "cpu"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    for seed in (1, 2):
        make_run(folder / f"low-seed{seed}", seed=seed, rounds=2, rate=0.1)
        make_run(folder / f"high-seed{seed}", seed=seed, rounds=2, rate=0.6)
    return folder


NAMES = ["low-seed1", "low-seed2", "high-seed1", "high-seed2"]


def test_the_table_is_that_of_a_comparison(root):
    told = compared(Runs(root).groups(NAMES), {"reference": "low", "targets": [0.05], "budget": {"rounds": 1}})
    groups = grouped(read_logs([root / name for name in NAMES]))
    slow = standings(groups, targets=[0.05], reference=groups[0], budget={"rounds": 1})
    assert told["groups"] == [
        {"name": "low", "seeds": 2, "colour": 0, "runs": NAMES[:2]},
        {"name": "high", "seeds": 2, "colour": 1, "runs": NAMES[2:]},
    ]
    assert told["results"] == [[measure.text(row) for measure, row in line] for _, line in slow.lines()]
    (verdicts,) = told["verdicts"]
    assert [one["says"] for one in verdicts] == [row.verdict for _, row in slow.lines()[1][1][: len(slow.judged)]]
    assert {one["why"] for one in verdicts} == {"few seeds"}
    assert told["differs"]["rate"] == ["0.1", "0.6"]
    everything = compared(Runs(root).groups(NAMES), {})
    assert everything["results"] != told["results"]  # the budget counts
    assert everything["verdicts"] == []


def test_wrong_questions_are_refused(root):
    chosen = Runs(root).groups(NAMES)
    for given, text in (
        ({"budget": {"watts": 1}}, "joules"),
        ({"budget": {"rounds": -1}}, "positive"),
        ({"budget": [1]}, "table"),
        ({"targets": ["high"]}, "positive"),
    ):
        with pytest.raises(ConfigError, match=text):
            compared(chosen, given)
    with pytest.raises(RunError, match="choose 1 to"):
        compared([], {})
    assert compared(chosen, {"reference": "gone"})["reference"] == ""  # its runs are no longer chosen
    for wrong in ({"against": "energy"}, {"width": "a4"}, {"kind": "exe"}):
        with pytest.raises(FeddropError):
            figure(chosen, **{"against": "round", "width": "ieee", "kind": "pdf", **wrong})


def test_a_group_keeps_its_colour_whatever_else_is_chosen_and_in_which_order(root):
    runs = Runs(root)

    def colours(names):
        curves = {one["name"]: (one["colour"], one["dash"]) for one in runs.curves(names, "test_accuracy", "rounds")}
        told = {one["name"]: one["colour"] for one in compared(runs.groups(names), {})["groups"]}
        assert told == {name: colour for name, (colour, _) in curves.items()}
        return curves

    assert colours(NAMES[2:]) == {"high": (0, 0)}
    assert colours(NAMES) == {"low": (1, 0), "high": (0, 0)}
    assert colours(NAMES[::-1]) == {"low": (1, 0), "high": (0, 0)}
    assert colours(NAMES[:2]) == {"low": (1, 0)}
    assert runs.groups(NAMES[:1])[0].look == (1, 0, 0)


def test_groups_of_many_runs_look_different(root):
    runs = Runs(root)
    (group,) = runs.groups(NAMES[:1])
    for n in range(len(LOOKS) - 1):  # runs that were shown before
        runs._looks[f"run {n}"] = runs._new_look([(0, 0, 0)] * (n % 2))
    assert len(set(runs._looks.values())) == len(LOOKS)
    assert runs._new_look([group.look])[0] != group.look[0]  # all are taken


@pytest.mark.parametrize(("width", "inches"), [("ieee", 3.5), ("ieee-double", 7.16)])
def test_the_figure_has_the_width_of_a_journal(root, width, inches):
    data = Runs(root).figure(NAMES, against="bytes", width=width, kind="pdf")
    assert data.startswith(b"%PDF")
    box = data.split(b"/MediaBox [", 1)[1].split(b"]", 1)[0].split()
    assert float(box[2]) / 72 == pytest.approx(inches, abs=0.01)


# --- the paper


def test_every_point_leads_to_its_runs():
    paper = Paper(RESULTS)
    table = paper.claims()
    assert {claim["outcome"] for claim in table["claims"]} <= {"holds", "holds in part", "does not hold", "undecided"}
    points = [point for claim in table["claims"] for answer in claim["answers"] for point in answer["points"]]
    traced = [point for point in points if point["runs"]]
    assert len(traced) > 400
    for point in traced[:30]:
        assert all(paper.run(key)["series"]["test_accuracy"] for key in point["runs"])


def test_a_point_is_the_difference_of_its_runs():
    paper = Paper(RESULTS)
    (claim,) = [one for one in paper.claims()["claims"] if one["name"] == "underfit-falls"]
    for point in (point for answer in claim["answers"] for point in answer["points"]):
        low, high = (np.array(paper.run(key)["series"]["test_accuracy"][-5:]).mean() for key in point["runs"])
        assert 100 * (low - high) == pytest.approx(point["value"], rel=1e-4)


def test_the_page_agrees_with_the_claims():
    page = (RESULTS.parents[2] / "docs" / "paper.md").read_text()
    for claim in Paper(RESULTS).claims()["claims"]:
        row = next(line for line in page.splitlines() if line.startswith(f"| {claim['text']} |"))
        assert f"**{claim['shown']}**" in row
        assert "," not in claim["tally"] or claim["tally"] in row  # verdicts that are all alike are not counted


def test_without_results_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Paper(None).claims() == {"missing": MISSING}
    with pytest.raises(RunError, match=r"claims\.json"):
        open_explorer(tmp_path, paper=tmp_path)


@pytest.mark.parametrize("key", ["../facts/theory", "facts", "", "zzzzzzzzzzzz", "000000000000", "a" * 13])
def test_no_other_file_is_read(key):
    with pytest.raises(RunError, match="is not a stored run"):
        Paper(RESULTS).run(key)


# --- subnets


def test_a_subnet_is_that_of_the_run(tmp_path):
    """By the run's own plan of all devices; the page plans the one device anew."""
    config = feddrop.RunConfig(
        rounds=2, rate=0.5, method=feddrop.FedDrop(level="unit"), data=feddrop.Data(devices=3, train_limit=60)
    )
    run = feddrop.Run(config, tmp_path / "run")
    list(run)
    method = run.prepared.method
    for round_ in (1, 2):
        jobs = method.plan({}, run.params, round_, {0: 0.5, 1: 0.5, 2: 0.5}, config.seed)
        subnet = method.cut(jobs[1])
        found = Runs(tmp_path).subnet("run", round_=round_, device=1)
        assert found["kept"] == sum(piece.size for piece in subnet.values())
        for one in found["tensors"]:
            piece = subnet[one["name"]]
            assert (one["kept"], one["shape"]) == (piece.size, list(piece.shape))
            assert one["on_device"] == list(piece.sub_shape)
        conv = next(one for one in found["tensors"] if one["name"] == "conv1.weight")
        mask = np.zeros(150)
        mask[subnet["conv1.weight"].index] = 100
        np.testing.assert_allclose(np.array(conv["cells"]), mask.reshape(6, 25))


def test_a_subnet_that_depends_on_the_state_needs_its_checkpoint(tmp_path):
    data = feddrop.Data(devices=2, train_limit=60)
    config = feddrop.RunConfig(rounds=4, rate=0.5, data=data, method=feddrop.FedDrop(draw="importance"))
    list(feddrop.Run(config, tmp_path / "run"))
    assert held(tmp_path / "run", round_=4, device=0, rate=0.5)["kept"] > 0
    assert held(tmp_path / "run", round_=1, device=0, rate=0.5)["kept"] > 0
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(RunError, match="whose checkpoint is not kept"):
        held(tmp_path / "run", round_=3, device=0, rate=0.5)


def test_subnets_of_custom_runs_and_absent_devices_are_refused(root, tmp_path):
    for given in ({"round_": 9, "device": 0}, {"round_": 1, "device": 7}):
        with pytest.raises(RunError, match="no device"):
            Runs(root).subnet("low-seed1", **given)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(10))
    network(torch.zeros(1, 1, 32, 32))
    config = feddrop.RunConfig(rounds=1, data=feddrop.Data(devices=2, train_limit=60))
    feddrop.run(config, tmp_path / "custom", model=network)
    with pytest.raises(RunError, match="custom network"):
        held(tmp_path / "custom", round_=1, device=0, rate=0.1)


# --- timelines


def test_a_timeline_is_that_of_the_records(tmp_path):
    config = feddrop.RunConfig(
        rounds=2, data=feddrop.Data(devices=3, train_limit=60), radio=feddrop.Radio(deadline_s=0.65)
    )
    *_, last = feddrop.Run(config, tmp_path / "run")
    found = Runs(tmp_path).timeline("run", round_=2)
    assert found["devices"] == [device.device for device in last.devices]
    for k, device in enumerate(last.devices):
        assert [found[key][k] for key in ("push_s", "compute_s", "pull_s")] == [
            device.push_s,
            device.compute_s,
            device.pull_s,
        ]
        assert sum(found[key][k] for key in ("push_s", "compute_s", "pull_s")) == pytest.approx(device.latency_s)
    assert min(found["start_s"]) == 0.0
    with pytest.raises(RunError, match="no round 9"):
        Runs(tmp_path).timeline("run", round_=9)


def test_a_run_without_a_radio_has_no_timeline(root):
    assert "no [radio] section" in Runs(root).timeline("low-seed1", round_=1)["missing"]
