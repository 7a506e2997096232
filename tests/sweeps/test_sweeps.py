"""Sweeps: what a file stands for; every run once, whatever is lost on the way; one page at the end."""

from __future__ import annotations

import csv
import json
import logging
import multiprocessing
import re
from dataclasses import replace
from pathlib import Path

import pytest

import feddrop
from feddrop import sweeps
from feddrop.cli import app
from feddrop.cli.failures import guarded
from feddrop.cli.output import Screen
from feddrop.cli.sweeps import Board, with_address
from feddrop.errors import ConfigError, RunError
from feddrop.simulation.preflight import check_config
from feddrop.storage import RunFolder
from feddrop.sweeps import engine, jobs_for, read_sweep, warned
from feddrop.sweeps.plan import merged
from support.sweeps import deadly_loss

ROOT = Path(__file__).parents[2]
SMALL = ["data.devices=2", "data.train_limit=60"]


def small(rounds=2, **settings):
    return feddrop.RunConfig.from_toml("", [f"rounds={rounds}", *SMALL, *(f"{k}={v}" for k, v in settings.items())])


def written(folder, text):
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


def test_a_run_that_ends_diverged_fails_like_one_that_cannot_train(tmp_path):
    """By ``server.lr``, only the test loss tells; by ``train.lr``, no device returns an update. The others are done."""
    mlp = {"model.name": "mlp"}
    runs = {
        "server": small(1, **mlp, **{"server.optimizer": "fedavgm", "server.lr": 1e30}),
        "train": small(1, **mlp, **{"train.lr": 1e9}),
        "good": small(1, **mlp),
    }
    for _ in range(2):  # the second time, the first and the last are already finished
        with pytest.raises(RunError, match=r"2 of 3 runs failed") as failed:
            feddrop.sweep(runs, tmp_path / "out", workers=1)
        assert re.search(
            r"server: training diverged: .* is not finite. Lower server\.lr or train\.lr", str(failed.value)
        )
        assert re.search(r"train: no device returned .*: training diverged\. Lower", str(failed.value))
    assert (tmp_path / "out" / "comparison.html").exists()
    feddrop.write_report(tmp_path / "out" / "server")
    assert (
        "Training diverged: in round 1 the test loss was not finite"
        in (tmp_path / "out/server/report.html").read_text()
    )


# --- files


def test_every_variant_meets_every_combination(tmp_path):
    (tmp_path / "base.toml").write_text('rounds = 3\nrate = "rates.csv"\n[train]\nlr = 0.1\nbatch_size = 8\n')
    runs = read_sweep(
        written(
            tmp_path,
            'base = "base.toml"\n[grid]\nseed = [0, 1]\n"train.lr" = [0.1, 0.2]\n'
            '[[variants]]\nname = "a"\n[[variants]]\nname = "b"\nrate = 0.5\ntrain = { momentum = 0.9 }\n',
        )
    )
    assert list(runs) == [f"{v},seed={s},train.lr={lr}" for v in "ab" for s in (0, 1) for lr in (0.1, 0.2)]
    one, other = runs["a,seed=1,train.lr=0.2"], runs["b,seed=1,train.lr=0.2"]
    assert (one.rounds, one.seed, one.train.lr, one.train.batch_size) == (3, 1, 0.2, 8)
    assert one.rate == str(tmp_path / "rates.csv")  # counts from the file that names it
    assert (other.rate, other.train.momentum, other.train.lr) == (0.5, 0.9, 0.2)


def test_the_file_of_the_page_is_valid(tmp_path):
    root = Path(__file__).parents[2]
    block = re.search(r"```toml\n(base = .*?)```", (root / "docs/sweeps.md").read_text(), re.DOTALL)[1]
    configs = read_sweep(written(tmp_path, block.replace('"digits.toml"', f"'{root}/examples/digits.toml'", 1)))
    assert len(configs) == 12
    for config in configs.values():
        check_config(config)


def test_lists_tables_and_words_of_every_kind(tmp_path):
    text = (
        "[base]\ndata = { devices = 2 }\n[grid]\nrate = [0.1, [0.1, 0.2]]\n"
        'method = ["feddrop", { name = "feddrop", level = "unit" }, { name = "heterofl" }]\n'
    )
    runs = read_sweep(written(tmp_path, text))
    assert len(runs) == 6
    assert len({config.to_toml() for config in runs.values()}) == 6
    assert {config.rate for config in runs.values()} == {0.1, (0.1, 0.2)}
    assert all(name == Path(name).name and len(name) <= 120 for name in runs)
    assert list(read_sweep(written(tmp_path, ""))) == ["base"]
    number, text = read_sweep(written(tmp_path, '[grid]\nrate = [0.3, "0.3"]'))  # a file of this name: none is lost
    assert number == "rate=0.3"
    assert text.startswith("rate=0.3-")


def test_another_method_comes_without_the_settings_of_the_one_before():
    base = {"method": {"name": "feddrop", "level": "unit"}, "train": {"lr": 0.1}}
    assert merged(base, {"method": {"name": "fedavg"}})["method"] == {"name": "fedavg"}
    assert merged(base, {"method": "fedavg"})["method"] == {"name": "fedavg"}
    assert merged(base, {"method": {"name": "feddrop"}})["method"] == {"name": "feddrop", "level": "unit"}
    assert merged({"method": "feddrop"}, {"method": {"level": "unit"}})["method"] == {
        "name": "feddrop",
        "level": "unit",
    }
    assert merged({}, {"method": {"level": "unit"}})["method"] == {"level": "unit"}
    assert merged(base, {"train": {"batch_size": 3}})["train"] == {"lr": 0.1, "batch_size": 3}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gird = 3", "Did you mean 'grid'"),
        ("base = 3", "name of a TOML file"),
        ('base = "nothing.toml"', "cannot read the base configuration"),
        ("grid = 3", "one list per setting"),
        ("[grid]\nseed = 3", "must be a list"),
        ("[grid]\nseed = []", "must be a list"),
        ("[grid]\nseed = [1, 1]", "contains a value twice"),
        ("[grid]\nsede = [1, 2]", "run sede=1: unknown key 'sede'. Did you mean 'seed'"),
        (
            '[grid]\n"method.name" = ["feddrop", "fedavg"]\nrate = [0.5]',
            "run method=fedavg,rate=0.5: rate is 0.5, which",
        ),
        ("[[variants]]\nrate = 0.5", "variant 1 has no name"),
        ('[[variants]]\nname = "a"\n[[variants]]\nname = "a"', "two variants"),
        ("variants = 3", r"\[\[variants\]\]"),
        (f"[grid]\nseed = {list(range(200))}\nrounds = {list(range(1, 101))}", "has 20000 runs"),
        ("[grid]\nseed = [-1]", "run seed=-1: seed is -1"),
        ('[grid]\n"train.lr" = [1, 1.0]', "runs train.lr=1 and train.lr=1.0 are identical"),
        ('[grid]\n"train.lr" = [0.1, 0.2]\ntrain = [{ lr = 0.3 }]', "are identical"),
        ('base = "~nobody-here/x.toml"', "unknown home directory"),
    ],
)
def test_a_slip_is_one_line(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said) as caught:
        read_sweep(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_what_is_varied_is_not_set(tmp_path):
    path = written(tmp_path, "[grid]\nseed = [0, 1]")
    assert {config.rounds for config in read_sweep(path, ["rounds=7"]).values()} == {7}
    with pytest.raises(ConfigError, match="seed is varied by the sweep and set by --set"):
        read_sweep(path, ["seed=3"])


@pytest.mark.parametrize(
    ("text", "given", "varied"),
    [
        ('[grid]\nmethod = ["fedavg", "feddrop"]', "method.name=heterofl", "method"),
        (
            'base = { data = { partition = "dirichlet" } }\n[grid]\n"data.alpha" = [0.1, 0.9]',
            "data = {devices = 2}",
            "data.alpha",
        ),
        ('[[variants]]\nname = "a"\nmethod = { name = "feddst", alpha = 0.1 }', "method=heterofl", "method.alpha"),
    ],
)
def test_neither_a_section_nor_a_key_of_what_is_varied_is_set(tmp_path, text, given, varied):
    """The runs would all be the same, under names that say otherwise."""
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=f"^{varied} is varied by the sweep and set by --set (method|data)"):
        read_sweep(path, [given])
    assert read_sweep(path, ["data.devices=2"])


def test_names_and_folders(tmp_path):
    for name in ("", "a/b", "..", ".hidden", "results.csv"):
        with pytest.raises(ConfigError, match="usable as a folder name"):
            jobs_for({name: small()}, tmp_path)
    with pytest.raises(ConfigError, match="distributes whole runs"):
        jobs_for({"a": small(**{"execution.executor": "ray"})}, tmp_path)
    with pytest.raises(ConfigError, match="at least one"):
        jobs_for({}, tmp_path)
    for workers in (0, -1):  # had waited for ever
        with pytest.raises(ConfigError, match=f"workers is {workers}; it must be from 1"):
            feddrop.sweep({"a": small()}, tmp_path, workers=workers)


def test_what_is_no_configuration_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"run 'a' is 'run.toml'; it must be a feddrop.RunConfig"):
        feddrop.sweep({"a": "run.toml"}, tmp_path)


def test_a_file_that_was_changed_is_another_configuration(tmp_path):
    """A run that is finished is not trained again, so it is looked at before."""
    (tmp_path / "rates.json").write_text("[0.1, 0.1]")
    runs = {"a": small(rate=tmp_path / "rates.json")}
    feddrop.Run(runs["a"], tmp_path / "a")
    assert jobs_for(runs, tmp_path)
    (tmp_path / "rates.json").write_text("[0.8, 0.8]")
    with pytest.raises(RunError, match=r"rates\.json \(rate of .*a\) was changed"):
        jobs_for(runs, tmp_path)


# --- training


@pytest.mark.slow
def test_a_sweep_goes_on_where_it_stopped_and_tells_what_failed(tmp_path):
    """One run is finished before, one under way, one hopeless: it is named, the others are done, none twice."""
    out = tmp_path / "out"
    runs = {
        "done": small(rate=0.1),
        "half": small(rate=0.3),
        "hopeless": small(rate=0.3, **{"train.lr": 1e30}),
        "nowhere": small(rate=0.3, **{"data.name": "cifar10", "data.path": "/nowhere"}),
    }
    feddrop.run(runs["done"], out / "done")
    stamp = (out / "done" / "metrics.jsonl").stat().st_mtime_ns
    next(iter(feddrop.Run(runs["half"], out / "half")))
    first = (out / "half" / "metrics.jsonl").read_text()
    seen = []
    with pytest.raises(RunError, match=r"2 of 4 runs failed; the others are done\.\nhopeless: no device") as caught:
        feddrop.sweep(runs, out, workers=1, watch=lambda jobs, failed: seen.append((len(jobs), sorted(failed))))
    assert "\nnowhere: " in str(caught.value)
    assert seen[-1] == (4, ["hopeless", "nowhere"])
    assert (out / "done" / "metrics.jsonl").stat().st_mtime_ns == stamp
    assert (out / "half" / "metrics.jsonl").read_text().startswith(first)
    with (out / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["rate"], row["rounds"]) for row in rows] == [("done", "0.1", "2"), ("half", "0.3", "2")]
    assert "done" in (out / "comparison.html").read_text()
    good = {name: runs[name] for name in ("done", "half")}
    assert set(feddrop.sweep(good, out)) == set(good)  # nothing to do: no worker is started
    with pytest.raises(RunError, match="another configuration"):
        feddrop.sweep({"done": small(rate=0.2)}, out)


def test_finished_is_what_resuming_would_find_finished(tmp_path, monkeypatch):
    """A run killed between its last line and its checkpoint has a round to do: its network is of the one before."""
    trained = []

    def here(jobs, *, finished, **_):
        for job in jobs:
            trained.append(job.name)
            assert not engine._train(job.config.to_toml(), str(job.folder))
            finished(job)

    monkeypatch.setattr(sweeps, "train_all", here)
    monkeypatch.setattr(sweeps, "write_comparison", lambda *_: None)
    ended = small(rounds=6, target_accuracy=0.01)  # before its last round
    feddrop.sweep({"target": ended}, tmp_path)
    assert 0 < RunFolder(tmp_path / "target").saved_round() < 6
    feddrop.sweep({"target": ended}, tmp_path)
    assert trained == ["target"]
    feddrop.sweep({"target": small(rounds=6)}, tmp_path)  # more may be asked for later
    assert RunFolder(tmp_path / "target").saved_round() == 6
    trained.clear()
    runs = {"a": small()}
    feddrop.sweep(runs, tmp_path)
    feddrop.sweep(runs, tmp_path)
    assert trained == ["a"]
    (tmp_path / "a" / "checkpoints" / "round-000002.safetensors").unlink()
    assert RunFolder(tmp_path / "a").saved_round() == 1
    feddrop.sweep(runs, tmp_path)
    assert trained == ["a", "a"]
    assert RunFolder(tmp_path / "a").saved_round() == RunFolder(tmp_path / "a").checkpoint().round == 2
    with pytest.raises(RunError, match="a holds 2 rounds, but rounds is 1"):
        feddrop.sweep({"a": small(rounds=1)}, tmp_path)


def test_what_is_finished_is_read_once(tmp_path, monkeypatch):
    """However many runs end after it, and however often their progress is shown."""
    read, counted = [], []
    records, text = RunFolder.records, Path.read_bytes
    monkeypatch.setattr(RunFolder, "records", lambda self: read.append(self.path.name) or records(self))

    def here(jobs, *, finished, tick, **_):
        for job in jobs:
            assert not engine._train(job.config.to_toml(), str(job.folder))
            read.clear()
            finished(job)
            assert read == [job.name]
        assert [engine.rounds_done(job) for job in jobs] == [1, 1, 1]
        monkeypatch.setattr(Path, "read_bytes", lambda self: counted.append(self.name) or text(self))
        assert [engine.rounds_done(job) for job in jobs] == [1, 1, 1]
        assert not counted
        kept = (metrics := jobs[0].folder / "metrics.jsonl").read_bytes()
        metrics.write_bytes(b"\n\n")
        assert engine.rounds_done(jobs[0]) == 2
        metrics.unlink()
        assert engine.rounds_done(jobs[0]) == 0
        metrics.write_bytes(kept)

    monkeypatch.setattr(sweeps, "train_all", here)
    monkeypatch.setattr(sweeps, "write_comparison", lambda *_: None)
    feddrop.sweep({f"seed={seed}": small(rounds=1, seed=seed) for seed in range(3)}, tmp_path)
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 4


@pytest.mark.slow
def test_a_killed_worker_costs_nothing_but_time(tmp_path, monkeypatch):
    """Its run goes on from its checkpoint, in another process, to the same bits."""
    loss, struck = deadly_loss(tmp_path, monkeypatch)
    runs = {f"seed={seed}": small(rounds=4, seed=seed, **{"train.loss": loss}) for seed in (0, 1)}
    found = feddrop.sweep(runs, tmp_path / "out", workers=1)
    assert struck.exists()
    for name, run in found.items():
        assert [record.round for record in run.rounds] == [1, 2, 3, 4]
        alone = feddrop.run(runs[name], tmp_path / "alone" / name)
        assert [record.test_loss for record in run.rounds] == [record.test_loss for record in alone]
    assert not multiprocessing.active_children()


def test_a_run_that_another_process_holds_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "LOCKED_S", 0.0)
    monkeypatch.setattr(engine.time, "sleep", lambda _: None)
    folder = tmp_path / "run"
    with feddrop.storage.files.locked(folder):
        assert "another process is at work" in engine._train(small().to_toml(), str(folder))
    assert not (folder / "config.toml").exists()


def test_a_folder_that_cannot_be_used_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(engine.time, "sleep", lambda _: pytest.fail("waited"))
    (tmp_path / "run").write_text("a file")
    assert "run" in engine._train(small().to_toml(), str(tmp_path / "run"))


def test_a_run_whose_start_was_cut_short_goes_on(tmp_path):
    config = small()
    feddrop.Run(config, tmp_path / "run")
    (tmp_path / "run" / "config.toml").unlink()  # a kill after run.json, which comes first
    assert engine._train(config.to_toml(), str(tmp_path / "run")) == ""
    assert len(feddrop.load_run(tmp_path / "run").rounds) == 2


# --- the command


@pytest.mark.slow
def test_the_example_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["sweep", str(ROOT / "examples" / "sweep.toml"), "--set", "rounds=1", "--set", "data.train_limit=60"]
    call = lambda *more: guarded(lambda: app([*words, *more], print_error=False, exit_on_error=False))  # noqa: E731
    assert call("--list") == 0
    assert "units,seed=1: 0 of 1 rounds done" in capsys.readouterr().out
    assert not (tmp_path / "runs" / "sweep" / "results.csv").exists()
    assert call() == 0
    said = capsys.readouterr().out
    assert "6 runs, 6 rounds" in said
    assert "Comparison: runs/sweep/comparison.html" in said
    assert "3 settings, 6 runs" in (tmp_path / "runs" / "sweep" / "comparison.html").read_text()
    assert call("--workers", "0") == 2
    assert call("--ray", "ray://somewhere:10001") == 2


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("sweep a.toml --ray", "sweep a.toml --ray=default"),
        ("sweep --ray a.toml", "sweep --ray=default a.toml"),
        ("sweep a.toml --ray --workers 3", "sweep a.toml --ray=default --workers 3"),
        ("sweep a.toml --ray 10.0.0.1:6379", "sweep a.toml --ray 10.0.0.1:6379"),
        ("sweep a.toml --ray auto", "sweep a.toml --ray auto"),
        ("run a.toml", "run a.toml"),
    ],
)
def test_ray_takes_an_address_or_none(words, found):
    assert with_address(words.split()) == found.split()


def test_a_board_without_a_terminal_says_what_ended(tmp_path, capsys):
    jobs = jobs_for({"a": small(), "b": small(seed=1)}, tmp_path)
    with Board(Screen()) as board:
        board.show(jobs, {})
        jobs[0].folder.mkdir()
        (jobs[0].folder / "metrics.jsonl").write_text("{}\n{}\n")
        board.show(jobs, {"b": "why"})
        board.show(jobs, {"b": "why"})
    assert capsys.readouterr().out == "a: done\nb: failed\n"


def test_what_is_left_of_a_sweep_is_never_no_time_at_all():
    board = Board(Screen())
    board._first = 0
    assert board._summary(2, {}, 9, 10).endswith("9 of 10 rounds, about 1 min left")
    assert board._summary(2, {}, 10, 10).endswith("10 of 10 rounds")


def test_what_is_left_of_a_pass_goes_by_the_pace_of_that_pass(tmp_path):
    (job,) = jobs_for({"a": small()}, tmp_path)
    board = Board(Screen(), passes=True)
    board._started -= 3600.0  # the first pass took an hour
    board.show([replace(job, label="a", until=1)], {})
    board._first = 0
    assert board._summary("0 of 1", {}, 1, 3).endswith("1 of 3 rounds, about 1 min left")


def test_a_board_of_a_comparison_says_each_pass_not_each_run(tmp_path, capsys):
    jobs = [replace(job, label=job.name) for job in jobs_for({"a": small(), "b": small(seed=1)}, tmp_path)]
    with Board(Screen(), passes=True) as board:
        for _ in range(2):
            board.show([replace(job, until=1) for job in jobs], {})
        for job in jobs:
            job.folder.mkdir()
            (job.folder / "metrics.jsonl").write_text("{}\n{}\n")
        board.show([replace(jobs[0], until=1), jobs[1]], {})
    said = "2 runs: 1 rounds each, to measure what a round costs\n2 runs: a 1; b 2 rounds\n"
    assert capsys.readouterr().out == said


def test_warnings_of_many_runs_are_said_once_with_a_count(tmp_path, caplog):
    warned.Warnings(tmp_path)  # removes those of an earlier command
    log = logging.getLogger("feddrop.test_worker")
    collector = warned.Collector()
    log.addHandler(collector)
    log.propagate = False
    found = warned.Warnings(tmp_path)
    for name in ("a", "b", "c"):
        collector.run = tmp_path / name
        log.warning("round %d: odd", ord(name))
        found.tell()
    collector.run = tmp_path / "a"
    log.warning("only here")
    found.end()
    assert caplog.messages == [
        "a: round 97: odd",
        "a: only here",
        "The same warning came from 2 other runs: 'round 97: odd'",
    ]
    assert not (tmp_path / warned.FOLDER).exists()


def test_a_repeated_warning_is_cut_between_words(tmp_path, caplog):
    found = warned.Warnings(tmp_path)
    (tmp_path / warned.FOLDER).mkdir()
    text = "accuracy 0.9 was not reached by any of the devices in any round of the run"
    lines = [json.dumps({"run": run, "text": text}) for run in "ab"]
    (tmp_path / warned.FOLDER / "1").write_text("\n".join(lines))
    found.end()
    first, same = caplog.messages
    assert first == f"a: {text}"
    short = "'accuracy 0.9 was not reached by any of the devices in any …'"
    assert same == f"The same warning came from another run: {short}"


def test_a_sweep_says_the_warnings_of_its_runs(tmp_path, caplog):
    feddrop.sweep({name: small(method="feddst", seed=seed) for seed, name in enumerate("ab")}, tmp_path, workers=1)
    first, same = caplog.messages
    assert first.startswith("a: the mask never moves")
    assert same.startswith("The same warning came from another run")
