"""Comparisons: equal budgets whatever a round costs, every run once, verdicts by seed, files for a paper."""

from __future__ import annotations

import csv
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import feddrop
from feddrop import sweeps
from feddrop.cli import app
from feddrop.cli.failures import guarded
from feddrop.config import Compare
from feddrop.errors import ConfigError, RunError
from feddrop.sweeps import comparison, engine
from feddrop.sweeps.comparison import checked, read_comparison, rounds_within
from support.pages import blocks

ROOT = Path(__file__).parents[2]
SMALL = {"devices": 2, "train_limit": 60}
RADIO = 'radio = { deadline_s = 1.0, scheme = "equal", policy = "leave-out" }\n'


def small(text="", *more):
    return feddrop.RunConfig.from_toml(text, ["data.devices=2", "data.train_limit=60", *more])


def written(folder, text, name="c.toml"):
    path = folder / name
    path.write_text(f"data = {{ devices = 2, train_limit = 60 }}\n{text}")
    return path


@pytest.fixture
def here(monkeypatch):
    """Train in this process; return the names and goals of the runs that were trained."""
    trained = []

    def train_all(jobs, *, finished, failed, **_):
        for job in jobs:
            trained.append((job.name, job.goal))
            custom = engine.pickled(job.custom) if job.custom else b""
            if why := engine._train(job.config.to_toml(), str(job.folder), job.label, custom, job.goal):
                failed[job.name] = why
            else:
                finished(job)

    monkeypatch.setattr(sweeps, "train_all", train_all)
    return trained


# --- how many rounds fit


def test_rounds_that_fit_are_counted_one_by_one():
    g = np.random.default_rng(0)
    for _ in range(200):
        costs, amount = g.uniform(0.5, 2, g.integers(1, 8)).tolist(), float(g.uniform(0.1, 30))
        spent = count = 0
        later = float(np.mean(costs[len(costs) // 2 :]))
        for cost in itertools.chain(costs, itertools.repeat(later)):
            if spent + cost > amount:
                break
            spent, count = spent + cost, count + 1
        assert rounds_within(costs, amount) == count
    assert rounds_within([0.1] * 3, 0.3) == 3  # their sum is rounded up


def spent(run):
    return np.cumsum([record.push_bytes + record.pull_bytes for record in run.rounds])


def test_arms_with_cheaper_rounds_train_more_of_them(tmp_path, here):
    arms = {f"rate {rate}": small("", f"rate={rate}") for rate in (0.0, 0.5, 0.75)}
    found = feddrop.compare(arms, tmp_path / "out", seeds=[3, 5], budget=feddrop.Budget(bytes=4.2e6))
    lengths = {name: {len(run.rounds) for run in runs} for name, runs in found.runs.items()}
    assert lengths == {"rate 0.0": {4}, "rate 0.5": {8}, "rate 0.75": {16}}
    for name, run in ((name, run) for name, runs in found.runs.items() for run in runs):
        total = spent(run)
        fit = int((total <= 4.2e6).sum())
        assert total[-1] + total[0] > 4.2e6  # no room for another round
        row = next(row for row in found.rows if row.arm == name and row.measure == "rounds")
        assert row.mean == fit
        alone = feddrop.run(run.config, tmp_path / "alone" / run.name)
        assert [record.test_loss for record in run.rounds] == [record.test_loss for record in alone]
    accuracies = [run.rounds[-1].test_accuracy for run in found.runs["rate 0.0"]]
    first = found.rows[0]
    assert (first.arm, first.measure) == ("rate 0.0", "accuracy at 4.2 MB")
    assert first.mean == pytest.approx(np.mean(accuracies))
    assert here[:6] == [(run.name, 3) for runs in found.runs.values() for run in runs]
    here.clear()
    feddrop.compare(arms, tmp_path / "out", seeds=[3, 5], budget=feddrop.Budget(bytes=4.2e6))
    assert here == []  # nothing is trained twice
    more = feddrop.compare(arms, tmp_path / "out", seeds=[3, 5], budget=feddrop.Budget(rounds=2, bytes=4.4e6))
    assert [len(runs[0].rounds) for runs in more.runs.values()] == [4, 8, 17]
    assert [row.measure for row in more.rows][:2] == ["accuracy at 2 rounds", "accuracy at 4.4 MB"]
    assert all(name != "rate 0.0" for name, _ in here)


def test_a_schedule_sees_the_rounds_that_are_trained(tmp_path, here):
    arms = {s: small("", "rate=0.75", f"train.schedule={s}") for s in ("constant", "cosine")}
    found = feddrop.compare(arms, tmp_path / "out", seeds=1, budget=feddrop.Budget(bytes=2.2e6))
    (run,) = found.runs["cosine"]
    assert (run.name, len(run.rounds), run.config.rounds) == ("cosine,rounds=8,seed=0", 8, 8)
    alone = feddrop.run(run.config, tmp_path / "alone")
    assert [record.test_loss for record in run.rounds] == [record.test_loss for record in alone]
    assert here == [("constant,seed=0", 3), ("cosine,rounds=30,seed=0", 3), ("constant,seed=0", 8), (run.name, 8)]
    assert [runs[0].config.rounds for runs in found.runs.values()] == [8, 8]


def test_a_method_whose_cost_falls_gets_its_rounds(tmp_path, here):
    """PruneFL trains one device at first, then all, then less of the network: the rounds that fit are known late."""
    prune = 'method = { name = "prunefl", first_rounds = 5, adjust_every = 4, max_density = 0.2 }'
    arms = {"PruneFL": small(prune), "FedAvg": small('method = "fedavg"')}
    found = feddrop.compare(arms, tmp_path / "out", seeds=1, budget=feddrop.Budget(bytes=12e6))
    (run,) = found.runs["PruneFL"]
    total = spent(run)
    assert total[-1] + (total[-1] - total[-2]) > 12e6
    goals = [goal for name, goal in here if name.startswith("PruneFL")]
    assert goals[:2] == [3, 12]
    assert len(goals) > 2
    assert len(found.runs["FedAvg"][0].rounds) == 12


def test_seconds_joules_and_what_never_fits(tmp_path, here):
    arms = {name: small(RADIO, f"radio.scheme={name}") for name in ("equal", "random")}
    found = feddrop.compare(arms, tmp_path / "out", seeds=2, budget=feddrop.Budget(seconds=4.0, joules=20.0))
    names = {path.name for path in (tmp_path / "out").glob("accuracy-*")}
    assert names == {
        f"accuracy-{way}.{kind}" for way in ("round", "bytes", "time", "energy") for kind in ("pdf", "png")
    }
    for runs in found.runs.values():
        assert len({len(run.rounds) for run in runs}) == 1
        costs = [(sum(r.latency_s for r in run.rounds), sum(r.energy_j for r in run.rounds)) for run in runs]
        rounds = len(runs[0].rounds)
        assert any(s * (1 + 2 / rounds) > 4 and j * (1 + 2 / rounds) > 20 for s, j in costs)
    no_room = r"compare.budget \(bytes = 10\) has no room for a single round of arm equal, which costs \d.* Raise it"
    with pytest.raises(RunError, match=no_room):
        feddrop.compare(arms, tmp_path / "few", seeds=1, budget=feddrop.Budget(bytes=10))
    with pytest.raises(
        RunError, match=r"has room for more than 10,000 rounds of arm equal, of which one costs \d.* Lower it"
    ):
        feddrop.compare(arms, tmp_path / "many", seeds=1, budget=feddrop.Budget(bytes=1e15))


# --- files and arguments

ARMS = "[compare.arms.a]\nrate = 0.1\n[compare.arms.b]\nrate = 0.2\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no arms to compare: write each as a table"),
        ("[compare]\narms = 3\n", "has no arms to compare"),
        (f"[compare]\nseedz = 3\n{ARMS}", "unknown key 'compare.seedz'. Did you mean 'compare.seeds'?"),
        (f"[compare]\nbudget = {{ byte = 3 }}\n{ARMS}", "unknown key 'compare.budget.byte'. Did you mean"),
        (f"[compare]\nbudget = {{ bytes = -3 }}\n{ARMS}", "compare.budget.bytes is -3.0; it must be above 0"),
        (f"[compare]\nbudget = {{}}\n{ARMS}", "compare.budget is empty; give at least one of rounds"),
        (f"[compare]\nseeds = 0\n{ARMS}", "compare.seeds is 0; it must be a number of seeds"),
        (f"[compare]\nseeds = [1, 1]\n{ARMS}", "it must be a number of seeds or a list of different seeds"),
        (f'[compare]\nreference = "aa"\n{ARMS}', "compare.reference is 'aa'; .*Did you mean 'a'"),
        (f'[compare]\nwidth = "iee"\n{ARMS}', "compare.width is 'iee'; .*Did you mean 'ieee'"),
        (f"[compare]\ntargets = [0.5, 85]\n{ARMS}", "the target is 85; an accuracy must be at most 1"),
        ("[compare.arms.a]\nrate = 0.1\n", "a comparison needs at least two arms; there is 1"),
        ("[compare.arms.a]\nraet = 0.1\n[compare.arms.b]\n", "arm a: unknown key 'raet'. Did you mean 'rate'"),
        ("[compare.arms.a]\nrate = 0.1\n[compare.arms.b]\nrate = 0.1\n", "arms a and b are identical"),
        ("[compare.arms.a]\nseed = 1\n[compare.arms.b]\nseed = 2\n", "arms have different seeds"),
        (f"rounds = 4\n[compare.budget]\nbytes = 1e6\n{ARMS}", "rounds is 4, but compare.budget decides"),
        (f"target_accuracy = 0.5\n[compare.budget]\nbytes = 1e6\n{ARMS}", "compare.budget decides when runs end"),
        (f"[compare.budget]\nseconds = 3\n{ARMS}", "arm a has no radio, so it spends no seconds"),
        (
            f'train = {{ schedule = "cosine" }}\n[compare.budget]\nrounds = 3\nbytes = 1e6\n{ARMS}',
            "limits rounds and bytes, and train.schedule depends on the number of rounds",
        ),
    ],
)
def test_a_slip_is_one_line(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said.replace("?", r"\?").replace("(", r"\(")):
        checked(written(tmp_path, text), {})


def test_a_file_and_its_overrides(tmp_path):
    path = written(tmp_path, f'rate = 0.5\n[compare]\nseeds = 2\n{ARMS}[compare.arms."no rate"]\n')
    arms, settings = read_comparison(path, ["compare.budget.bytes=1e6", "train.lr=0.3", "compare.seeds=[7, 8]"])
    assert {name: arm.config.rate for name, arm in arms.items()} == {"a": 0.1, "b": 0.2, "no rate": 0.5}
    assert all(arm.config.train.lr == 0.3 for arm in arms.values())
    assert settings == Compare(seeds=(7, 8), budget=feddrop.Budget(bytes=1e6))
    assert checked(path, {"targets": (0.4,)})[1] == Compare(seeds=2, targets=(0.4,), reference="a")
    losses = ["data.name=diabetes", "model.name=mlp", "compare.targets=[3000]"]  # of the test set
    assert checked(path, {}, losses)[1].targets == (3000.0,)
    with pytest.raises(ConfigError, match="rate is varied by the sweep and set by --set rate"):
        read_comparison(path, ["rate=0.4"])
    with pytest.raises(ConfigError, match="looks like a file for `feddrop compare`"):
        feddrop.RunConfig.from_file(path)


def test_a_shared_rate_does_not_apply_to_an_arm_without_rates(tmp_path):
    arms = '[compare.arms.FedAvg]\nmethod = "fedavg"\n[compare.arms.b]\nmethod = { level = "unit" }\n'
    found, _ = read_comparison(written(tmp_path, f"rate = [0.0, 0.5]\n{arms}"))
    assert {name: arm.config.rate for name, arm in found.items()} == {"FedAvg": None, "b": (0.0, 0.5)}
    own = arms.replace('"fedavg"', '"fedavg"\nrate = [0.0, 0.5]')
    with pytest.raises(ConfigError, match=r"arm FedAvg: rate is \[0.0, 0.5\], which has no effect on 'fedavg'"):
        read_comparison(written(tmp_path, own))


# --- custom objects


def wide(seed):
    return feddrop.mlp(num_classes=10, input_shape=(1, 32, 32), hidden=(16,))


def test_arms_carry_objects(tmp_path, here):
    config = small('model = { name = "mlp" }', "rounds=2")
    arms = {"plain": config, "wide": feddrop.Arm(config, model=wide)}
    found = feddrop.compare(arms, tmp_path / "out", seeds=2)
    labels = {name: [run.about["label"] for run in runs] for name, runs in found.runs.items()}
    assert labels == {name: [name, name] for name in arms}
    assert found.runs["wide"][0].about["custom"] == ["network"]
    assert "Sequential" in (tmp_path / "out" / "comparison.html").read_text()
    with pytest.raises(ConfigError, match="arms a and b are identical"):
        feddrop.compare({"a": feddrop.Arm(config, model=wide), "b": feddrop.Arm(config, model=wide)}, tmp_path / "x")
    with pytest.raises(ConfigError, match="arm a is a str; it must be a RunConfig, or an Arm"):
        feddrop.compare({"a": "config", "b": config}, tmp_path / "x")
    with pytest.raises(ConfigError, match=r"arms is \[\]; it must be the name of a comparison file, or configurations"):
        feddrop.compare([], tmp_path)
    with pytest.raises(ConfigError, match="overrides change a comparison file"):
        feddrop.compare(arms, tmp_path / "x", overrides=["rate=0.1"])


def test_runs_of_an_arm_are_seeds_of_one_experiment(tmp_path, here):
    arms = {"a": small("", "rounds=1"), "b": small("", "rounds=1", "rate=0.1")}
    feddrop.compare(arms, tmp_path / "out", seeds=2)
    other = tmp_path / "out" / "a,seed=1"
    feddrop.run(small("", "rounds=1", "seed=1", "train.lr=0.2"), other, overwrite=True, label="a")
    jobs = comparison.jobs_of(*checked(arms, {"seeds": 2}), {"a": 1, "b": 1}, tmp_path / "out")
    with pytest.raises(RunError, match=r"the runs of arm a are not seeds of one experiment: train.lr: 0.1, 0.2"):
        comparison.judge_runs(jobs, Compare(seeds=2, reference="a"))


# --- killed half-way


def progress(out):
    return {path.parent.name: path.read_bytes() for path in out.glob("*/metrics.jsonl")}


@pytest.mark.slow
def test_a_comparison_killed_half_way_goes_on(tmp_path):
    """Killed with its workers, twice: every finished round stays, and the results are those of an unbroken one."""
    text = "[compare]\nseeds = 2\nbudget = { bytes = 4e6 }\n[compare.arms.a]\n[compare.arms.b]\nrate = 0.6\n"
    path, out = written(tmp_path, text), tmp_path / "out"
    command = [sys.executable, "-m", "feddrop", "compare", str(path), "--out", str(out), "--workers", "1"]
    for lines in (4, 19):
        process = subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + 300
        while sum(text.count(b"\n") for text in progress(out).values()) < lines and time.monotonic() < end:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.returncode == -signal.SIGKILL, "it was finished before"
        assert not (out / "comparison.html").exists()
        before = progress(out)
    time.sleep(1)  # its workers end with it
    stamps = {name: (out / name / "metrics.jsonl").stat().st_mtime_ns for name in before}
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    after = progress(out)
    for name, text in before.items():
        kept = text[: text.rfind(b"\n") + 1].splitlines()[:-1]
        assert after[name].splitlines()[: len(kept)] == kept
    whole = [name for name, text in before.items() if text.count(b"\n") == after[name].count(b"\n")]
    redone = [name for name in whole if (out / name / "metrics.jsonl").stat().st_mtime_ns != stamps[name]]
    assert len(whole) >= 2
    assert len(redone) <= 1  # the one that was killed between its last line and its checkpoint
    unbroken = feddrop.compare(path, tmp_path / "unbroken", workers=1)
    with (out / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["mean"] for row in rows] == [str(row.mean) for row in unbroken.rows]


# --- the command and the page


def test_the_blocks_of_the_pages(tmp_path, monkeypatch, here):
    """compare.md and compare-runs.md: a figure with other names, and comparisons in Python."""
    monkeypatch.chdir(tmp_path)
    for rate in ("0.0", "0.3"):
        feddrop.run(small("", f"rate={rate}", "rounds=1"), f"runs/rate-{rate}")
    for page in ("compare.md", "guides/compare-runs.md"):
        for block in blocks(ROOT / "docs" / page, "python"):
            exec(compile(block.text, page, "exec"), {"__name__": "__main__"})
    assert Path("bytes.pdf").exists()
    assert Path("runs/compared/comparison.html").exists()
    assert Path("runs/guide/comparison.html").exists()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("compare_*.toml")), ids=lambda path: path.stem)
def test_examples_are_valid(path):
    arms, settings = checked(path, {})
    assert settings.budget or len({arm.config.rounds for arm in arms.values()}) == 1
    assert len(comparison.seeds_of(arms, settings)) in (3, 6)


def test_the_command(tmp_path, monkeypatch, capsys, here):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, f"[compare]\nseeds = 3\nbudget = {{ rounds = 2 }}\n{ARMS}")
    call = ["compare", path.name, "--target", "0.01", "--target", "0.99", "--set", "train.lr=0.05"]
    assert guarded(lambda: app(call, print_error=False, exit_on_error=False)) == 0
    said = capsys.readouterr().out
    assert said.startswith("6 runs: 2 rounds each\n")
    assert re.search(
        r"^accuracy at 2 rounds, 3 seeds +mean ± deviation +difference from a ± 95 % margin +verdict$", said, re.M
    )
    assert re.search(r"^a +\d+\.\d ± \d+\.\d % +reference$", said, re.M)
    assert re.search(r"^b +\d+\.\d ± \d+\.\d % +[+-]?\d+\.\d ± \d+\.\d points +(better|worse|undecided)", said, re.M)
    assert "Comparison: runs/c/comparison.html" in said
    page = (tmp_path / "runs" / "c" / "comparison.html").read_text()
    for text in (
        "Better than a?",
        "rounds to 99&nbsp;%",
        "(0 of 3)",
        "accuracy at 2&nbsp;rounds",
        "traffic to 1&nbsp;%",
    ):
        assert text in page, text
    table = (tmp_path / "runs" / "c" / "comparison.tex").read_text()
    assert r"\toprule" in table
    assert r" & accuracy at 2 rounds (\%) & rounds to 1 \% & " in table
    assert "$> 2$" in table
