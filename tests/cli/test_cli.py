"""The command line: what it shows, and that whatever goes wrong is one clear line and an exit code."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import feddrop as package
from feddrop.cli import app, output, settings
from feddrop.cli.failures import explain, guarded
from feddrop.cli.results import common_folder
from feddrop.config import METHODS, Radio, RunConfig
from feddrop.errors import ConfigError, RunError
from feddrop.simulation import live
from feddrop.storage import DeviceRecord, RoundRecord
from feddrop.storage.folder import RunFolder

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["--set", "rounds=2", "--set", "data.train_limit=100", "--set", "data.devices=2"]


def feddrop(*words, **options):
    command = [sys.executable, "-m", "feddrop", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """Run commands in this process, in a folder of their own: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        code = guarded(lambda: app(list(words), print_error=False, exit_on_error=False))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_help_tells_a_newcomer_where_to_start():
    out = feddrop("--help").stdout
    assert "feddrop run" in out
    for command in ("run", "resume", "report", "data", "config", "--debug"):
        assert command in out
    assert "--set" in feddrop("run", "--help").stdout


def test_run_report_and_resume(tmp_path):
    done = feddrop("run", *SMALL, "--out", "first", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "round 2/2" in done.stdout
    assert "report.html" in done.stdout
    assert "\x1b[" not in done.stdout  # plain lines where there is no terminal
    (tmp_path / "first" / "report.html").unlink()
    assert feddrop("report", "first", cwd=tmp_path).returncode == 0
    assert (tmp_path / "first" / "report.html").exists()
    again = feddrop("resume", "first", cwd=tmp_path)
    assert again.returncode == 0
    assert "first is finished: all 2 rounds are done." in again.stdout
    feddrop("run", *SMALL, "--rate", "0.6", "--seed", "4", "--out", "second", cwd=tmp_path)
    config = RunConfig.from_file(tmp_path / "second" / "config.toml")
    assert (config.rate, config.seed) == (0.6, 4)
    page = feddrop("report", "../first", "../second", cwd=tmp_path / "first").stdout
    assert page == f"Comparison: {tmp_path / 'report.html'}\n"
    assert "2 runs compared" in (tmp_path / "report.html").read_text()


def test_json_is_for_machines(tmp_path):
    lines = feddrop("run", *SMALL, "--out", "r", "--json", cwd=tmp_path).stdout.splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2]
    assert json.loads(feddrop("data", "digits", "--json").stdout)["classes"] == 10


@pytest.mark.parametrize(
    ("runs", "out"),
    [(["a", "b"], "."), (["runs/a", "runs/b"], "runs"), (["x/y/a", "x/z/../b"], "x"), (["a", "a"], ".")],
)
def test_several_runs_are_reported_in_the_folder_that_holds_them(runs, out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert common_folder([Path(run) for run in runs]) == Path(out)
    assert common_folder([tmp_path.parent / run for run in runs]) == tmp_path.parent / out


def test_runs_without_a_common_folder_need_out():
    with pytest.raises(ConfigError, match=r"^/a and /b/c share no folder but /\. Give --out FILE\.html\.$"):
        common_folder([Path("/a"), Path("/b/c")])


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--set", "rouds=3"], "Did you mean 'rounds'"),
        (["run", "--set", "rate=1.0"], "[0, 1)"),
        (["run", "--rate", "1.0"], "[0, 1)"),
        (["run", "--rate", "0.1", "--set", "rate=0.2"], "rate is given twice"),
        (["run", "--rate", "abc", "--rounds", "1"], "rate is 'abc'; it must be a number in [0, 1)"),
        (["run", "--set", "radio.deadline_s=0"], "radio.deadline_s is 0.0; it must be above 0"),
        (["run", "--set", "radio.max_rate=1"], "radio.max_rate is 1.0; it must be in [0, 1)"),
        (["run", "--set", "data.name=cifar10", "--set", "data.path=void"], "feddrop data cifar10 --path "),
        (["run", "none.toml"], "No such file"),
        (["run", "--set", "data.name=mnist"], "digits"),
        (["run", "--bogus"], "--bogus"),
        (["bogus"], "feddrop --help"),
        (["run", "--out", "/dev/null/deep", "--rounds", "1"], "/dev/null/deep: Not a directory"),
        (["resume", "nowhere"], "nowhere"),
        (["report", "nowhere"], "nowhere"),
        (["paper"], "feddrop --help"),
        (["theory", "--batch", "-1"], "batch is -1; it must be from 2"),  # it ran for ever
        (["theory", "--masks", "0"], "masks is 0; it must be from 2"),
        (["theory", "--seed", "-1"], "seed is -1"),
        (["theory", "--out", "/dev/null"], "cannot write to /dev/null"),
        (["config", "--method", "fedavgg"], "method"),
        (["config", "--write", "/proc/x.toml"], "cannot write /proc/x.toml"),
    ],
)
def test_errors_are_one_clear_line(here, words, message):
    code, out, err = here(*words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert "error" not in out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("participation.count=20", "participation.count is 20, but there are only 10 devices"),
        ("server.min_devices=20", "server.min_devices is 20, but at most 10 devices take part"),
        ("server.krum=9", "server.krum is 9, which needs at least 21 updates"),
        ("server.mean=fltrust", "data.validation is 0"),
        ("rate=[0.1,0.2]", "rate lists 2 rates for 10 devices"),
        ("rate=no.csv", "cannot read the rates"),
        ("participation.availability=no.csv", "no.csv', which does not exist"),
        ("radio.gains_csv=no.csv", "no.csv', which does not exist"),
        ("radio.path_loss=[1e-3,1e-4]", "radio.path_loss has 2 values for 10 devices"),
        ("radio.distances_m=[10,20]", "radio.distances_m has 2 values for 10 devices"),
        ("clock.kind=first clock.count=40 radio.deadline_s=1", "clock.count is 40, but at most 10 devices"),
        ("clock.kind=buffered clock.buffer=40 radio.deadline_s=1", "clock.buffer is 40, but there are only 10"),
        ("train.loss=nowhere:f", "train.loss is 'nowhere:f', which cannot be imported"),
        ("method=../x:y", "method.name is '../x:y', which cannot be imported: '../x' is not the name of a module"),
        ("radio.scheme=nowhere:f", "radio.scheme is 'nowhere:f', which cannot be imported"),
        ("execution.torch_device=meta", "execution.torch_device is 'meta'"),
        ("method=prunefl method.first_device=50", "method.first_device is 50; it must be from 0 to 9"),
        ("method=prunefl rounds=5", "method.first_rounds is 10, but the run has 5 rounds"),
    ],
)
def test_mistakes_in_the_configuration_are_found_before_data_are_read(here, changes, message, monkeypatch):
    monkeypatch.setattr("feddrop.data.sources.load_dataset", lambda *_, **__: pytest.fail("data were read"))
    code, out, err = here("run", *(word for change in changes.split() for word in ("--set", change)))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("radio.deadline_s", ["radio.deadline_s = 8.0\n  Deadline T0 of a round", "Allowed: > 0, in s"]),
        ("deadline_s", ["radio.deadline_s = 8.0"]),
        ("clock", ["[clock]  Which answers", "clock.kind = ", "clock.offline_s = 3600.0"]),
        ("lr", ["train.lr = 0.1", "server.lr = 1.0", 'Needs: server.optimizer = "fedavgm" or']),
        ("method", ['method = "feddrop"', '"fiarse"', '"package.module:factory"']),
        ("method.alpha", ["Method: feddst", "Method: fedrts"]),
        ("feddst", ["method.readjust_every = 10"]),
        ("compare.budget.bytes", ["compare.budget.bytes  (no default)", "in B"]),
        ("rate", ["rate = 0.3", "in [0, 1)"]),
        ("max_rate", ["  θ, the largest rate"]),  # a symbol is not capitalised
        ("beta2", ["  β₂ of"]),
        ("gains_csv", ["  A .csv file"]),
        ("staleness_power", ["  Exponent a in"]),
    ],
)
def test_a_setting_is_looked_up(here, key, found):
    code, out, _ = here("config", key)
    assert code == 0
    assert all(text in out for text in found), out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["radio.deadlin"], "there is no setting 'radio.deadlin'. Did you mean 'radio.deadline_s'?"),
        (["rat"], "Did you mean 'rate'?"),
        (["zzzqq"], "`feddrop config` lists all of them"),
        (["rate", "--json"], "'rate' is looked up without options"),
    ],
)
def test_an_unknown_setting_is_not_found(here, words, message):
    code, _, err = here("config", *words)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (f"rounds={'9' * 20}", "rounds has about 20 digits"),
        (f"rounds={'9' * 400}", "rounds has about 40"),
        (f"seed=-{'9' * 400}", "seed has about 40"),
        (f"train.lr={'9' * 400}", "train.lr has about 40"),
        (f"rounds={'9' * 5000}", "rounds is inf; it must be a whole number"),
        (f"data.name={'[' * 5000}", "[[[["),
        ("execution.threads=99999999999", "execution.threads is 99999999999; it must be in [1, 1024]"),
        ("execution.workers=0", "execution.workers is 0; it must be in [1, 1024]"),
        ("data.path=\udc80", "cannot be encoded as UTF-8"),
        ("\x1b]0;evil\x07=1", "unknown key '\\x1b]0;evil\\x07'"),
        ("method=\x1b[2J", "method is '\\x1b[2J'"),
    ],
)
def test_settings_beyond_reason_are_one_clear_line(here, change, message):
    code, _, err = here("run", "--set", change, "--out", "r")
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert len(err) < 1100
    assert not set(err) & {"\x1b", "\x07"}
    assert not Path("r").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["radio.bandwidth_hz=1e-300", "radio.deadline_s=1"], "Raise the deadline, the bandwidth"),
        (["radio.preset=urban-macro", "radio.bandwidth_hz=1e-300"], "cannot meet its deadline with any share"),
        (["radio.preset=urban-macro", "radio.bandwidth_hz=1e-310"], "push_s of device 0 is inf"),
        (["radio.preset=urban-macro", "radio.deadline_s=1e-310"], "cannot meet its deadline with any share"),
        (["radio.preset=urban-macro", "radio.energy_budget_j=1e-30"], "energy"),
        (["radio.preset=urban-macro", "radio.radius_m=1e200"], "radio.radius_m is 1e+200; it must be"),
        (["radio.distances_m=[1e-300, 1.0]"], "path_loss of device 0 is inf"),
        (["radio.cpu_hz=[1e200, 1e200]"], "compute_j of device 0 is inf"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_cell_of_absurd_numbers_is_one_clear_line(here, recwarn, changes, message):
    code, _, err = here("run", *SMALL, *itertools.chain(*(("--set", one) for one in changes)), "--out", "r")
    assert (code, message in err) == (2, True), err
    assert not [str(warning.message) for warning in recwarn]


@pytest.mark.parametrize("lr", ["1e30", "1e8"])
def test_a_run_that_ends_diverged_has_an_exit_code(here, lr):
    """The devices' losses are from before the server's step, so only the test loss tells."""
    change = ["rounds=1", "server.optimizer=fedavgm", f"server.lr={lr}", "data.devices=2", "data.train_limit=100"]
    code, out, err = here("run", *itertools.chain(*(("--set", one) for one in change)), "--out", "r")
    assert code == 2
    assert "Report: r/report.html" in out
    assert re.search(r"error: training diverged: the test loss after round 1 is \S+\. Lower server.lr or", err)
    assert not here("report", "r")[0]


def test_parameters_that_no_device_has_held_are_explained(here):
    _, out, _ = here("run", *SMALL, "--rate", "0.5", "--out", "r")
    assert re.search(r"never trained \d+\.\d\d% of parameters", out)
    assert "untrained" not in out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"# \xe9\nrounds = 1\n", "not UTF-8 text"),
        ("rounds = 1".encode("utf-16"), "not UTF-8 text"),
        (b"rounds = " + b"9" * 5000, "thousands of digits"),
        (b"rounds = " + b"[" * 5000, "nested too deeply"),
        (b"a = " + b"{a = " * 5000, "nested too deeply"),
        (b"\0\0", "'x.toml' is not valid TOML"),
    ],
)
@pytest.mark.parametrize("command", ["run", "allocate"])
def test_a_file_that_is_no_configuration_is_one_clear_line(here, command, content, message):
    Path("x.toml").write_bytes(content)
    code, _, err = here(command, "x.toml")
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


@pytest.mark.parametrize(
    ("command", "file", "message"),
    [
        ("run", "sweep.toml", "unknown key 'base': this looks like a file for `feddrop sweep`"),
        ("run", "problem.toml", "unknown key 'deadline_s': this looks like a file for `feddrop allocate`"),
        ("run", "cell.toml", "unknown key 'cell': this looks like a file for `feddrop allocate`"),
        (
            "sweep",
            "digits.toml",
            "has none of the keys of a sweep: base, grid, variants. It looks like a file for `feddrop run`",
        ),
    ],
)
def test_a_file_of_another_command_is_told_from_a_typing_error(here, command, file, message):
    code, _, err = here(command, str(EXAMPLES / file))
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


def test_help_shows_no_default_where_there_is_none():
    for command in ("run", "resume", "sweep", "theory", "allocate", "data", "export", "config"):
        assert not re.search(r"default:\s+(│\s+)*(\[\]|False)", feddrop(command, "--help").stdout), command


@pytest.mark.filterwarnings("default::feddrop.FeddropWarning")
@pytest.mark.parametrize(
    "words",
    [
        *((command, "{}") for command in ("run", "sweep", "compare")),
        *(
            ("run", "--out", "run", "--set", "data.train_limit=60", "--set", "data.devices=2", "--set", f"{place}={{}}")
            for place in ("rate", "participation.availability", "radio.devices_csv", "radio.gains_csv")
        ),
    ],
    ids=" ".join,
)
def test_a_file_without_end_is_not_read_for_ever(here, words, in_time):
    os.mkfifo("pipe.csv")
    Path("large.csv").touch()
    os.truncate("large.csv", 2**26 + 1)
    for name, why in (("pipe.csv", "not a regular file"), ("/dev/zero", "not a regular file"), ("large.csv", "64 MB")):
        code, _, err = here(*(word.format(name) for word in words))
        assert (code, err.count("\n") - ("Preparing" in err), why in err) == (2, 1, True), err


@pytest.fixture
def in_time():
    """Fail a test that hangs, after 20 s."""

    def fail(*_):
        raise AssertionError("this hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", ["config.toml", "run.json", "metrics.jsonl"])
@pytest.mark.parametrize("content", ["[" * 5000, '{"a": ' * 5000, f"rounds = {'9' * 5000}", "\x00\x1b[2J", "[]"])
def test_a_run_folder_that_was_tampered_with_is_one_clear_line(here, name, content):
    few = ["data.train_limit=60", "data.devices=2", "rounds=1", "model.name=mlp"]
    for _ in package.Run(RunConfig.from_toml("", few), "run"):
        pass
    Path("run", name).write_text(content + "\n")
    for words in (["resume", "run"], ["report", "run"], ["export", "run", "--out", "x.csv"]):
        code, _, err = here(*words)
        assert (code, err.count("\n")) in ((2, 1), (0, 0)), err
        assert code == 2 or words[0] != "resume"
        assert "\x1b" not in err


@pytest.mark.parametrize("name", ["config.toml", "run.json", "metrics.jsonl", "checkpoints/round-000001.safetensors"])
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_a_run_folder_with_a_file_without_end_is_one_clear_line(here, name, kind, caplog, in_time):
    few = ["data.train_limit=60", "data.devices=2", "rounds=1", "model.name=mlp"]
    for _ in package.Run(RunConfig.from_toml("", few), "run"):
        pass
    Path("run", name).unlink()
    if kind == "pipe":
        os.mkfifo(Path("run", name))
        with pytest.raises(RunError) if "checkpoints" not in name else contextlib.nullcontext():
            package.load_run("run")
    else:
        Path("run", name).symlink_to("/dev/zero")
    code, _, err = here("resume", "run")
    if "checkpoints" in name:  # the only round has no checkpoint: it is done again
        assert (code, "it is not a regular file" in caplog.text) == (0, True)
    else:
        assert (code, err.count("\n")) == (2, 1)
        assert "not a regular file" in err


def test_resume_takes_settings_that_do_not_alter_a_round(here):
    """As where a run goes on at another address, with more workers, or for longer; they stay for later."""
    few = ["data.train_limit=60", "data.devices=2", "rounds=1", "model.name=mlp"]
    for _ in package.Run(RunConfig.from_toml("", few), "run"):
        pass
    before = Path("run", "config.toml").read_text()
    code, _, err = here("resume", "run", "--set", "train.lr=0.5")
    assert code == 2
    assert "train.lr was" in err
    assert Path("run", "config.toml").read_text() == before
    assert here("resume", "run", "--rounds", "2", "--set", "execution.executor=processes")[0] == 0
    config = RunConfig.from_file("run/config.toml")
    assert (config.rounds, config.execution.executor) == (2, "processes")
    assert "run is finished: all 2 rounds are done." in here("resume", "run")[1]
    assert "run holds 2 rounds, but rounds is 1" in here("resume", "run", "--set", "rounds=1")[2]
    assert RunConfig.from_file("run/config.toml").rounds == 2


@pytest.mark.filterwarnings("default::feddrop.FeddropWarning")
def test_a_warning_of_ours_is_one_line(here):
    Path("d.csv").write_text("device,distance_m\n0,100\n1,200\n")
    few = ["data.train_limit=60", "data.devices=2", "rounds=1", "model.name=mlp", "radio.devices_csv=d.csv"]
    changes = [word for change in few for word in ("--set", change)]
    _, _, err = here("run", *changes, "--out", "run")
    assert err.startswith("radio.noise_w_hz is the paper's 1e-13 W/Hz, 74 dB above thermal noise")
    assert "FeddropWarning" not in err


def test_a_byte_order_mark_is_no_reason_to_stop(tmp_path):
    (tmp_path / "x.toml").write_bytes(b"\xef\xbb\xbfrounds = 3\n")
    assert RunConfig.from_file(tmp_path / "x.toml").rounds == 3


@pytest.mark.parametrize("name", ["x.csv", "x.json"])
@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b'{"a": ' + b"[" * 100_000, b"a,b\n" + b"x" * 200_000 + b",1"])
def test_a_file_that_is_no_problem_is_one_clear_line(here, name, content):
    Path(name).write_bytes(content)
    code, _, err = here("allocate", name)
    assert (code, err.count("\n")) == (2, 1)


def test_names_cannot_steer_the_terminal(here):
    device = {"comm_s": 0.1, "compute_s": 0.1, "upload_j": 0.1, "compute_j": 0.1, "name": "\x1b[31mred\x07"}
    Path("x.json").write_text(json.dumps({"deadline_s": 1.0, "device": [device]}))
    code, out, _ = here("allocate", "x.json")
    assert code == 0
    assert "\\x1b[31mred\\x07" in out
    assert not set(out) & {"\x1b", "\x07"}
    assert output.safe("a\nb\udc80") == "a\nb\\udc80"
    for words in (("check", "a:x:b"), ("report", "a:x:b")):
        assert "a:x:b does not exist" in here(*words)[2]  # no emoji


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "r/x"), 2, "No space left on device (r/x). Free some space"),
        (OSError(errno.EROFS, "Read-only file system", "r"), 2, "--out"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "r"), 2, "removed during the run"),
        (OSError("odd"), 2, "odd. Check the file"),
        (MemoryError(), 2, "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 2, "out of memory"),
        (RunError("as it says."), 2, "as it says."),
        (KeyError("x"), 1, "KeyError: 'x' (unexpected; --debug shows the traceback)"),
    ],
)
def test_what_is_said_of_an_error(error, code, said):
    assert explain(error)[0] == code
    assert said in explain(error)[1]


def test_debug_shows_the_traceback(tmp_path):
    done = feddrop("--debug", "run", "none.toml", cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    with pytest.raises(KeyError):
        guarded(lambda: {}["x"], debug=True)


def test_ctrl_c_outside_a_run_is_no_traceback(capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    assert guarded(interrupted) == 130
    assert capsys.readouterr().err == "Stopped.\n"


def test_a_reader_that_leaves_is_no_error(tmp_path):
    for words in (["run", *SMALL, "--set", "rounds=20", "--json", "--out", "r"], ["config"], ["config", "--json"]):
        process = subprocess.Popen(
            [sys.executable, "-m", "feddrop", *words],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout
        assert process.stderr
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(timeout=60) in (0, 141)
        assert process.stderr.read() == ""
        process.stderr.close()


def test_a_full_disk_is_one_clear_line(tmp_path):
    """A limit on the size of files stands for the disk: the first checkpoint does not fit."""
    full = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # noqa: E731
    done = feddrop("run", *SMALL, "--out", "r", cwd=tmp_path, preexec_fn=full)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr
    assert "feddrop resume" in done.stderr


def test_a_folder_that_goes_away_is_one_clear_line(here, monkeypatch):
    def gone(*_: Any, **__: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "r/metrics.jsonl")

    monkeypatch.setattr(RunFolder, "save", gone)
    code, _, err = here("run", *SMALL, "--out", "r")
    assert (code, err.count("\n")) == (2, 1)
    assert "No such file or directory (r/metrics.jsonl)" in err


def test_theory_tries_its_folder_before_it_measures(here, monkeypatch):
    from feddrop.theory import console

    monkeypatch.setattr(console, "run_study", lambda **_: pytest.fail("measured first"))
    Path("taken").write_text("")
    code, _, err = here("theory", "--out", "taken")
    assert code == 2
    assert "cannot write to taken" in err


def test_a_terminal_without_greek_letters_is_no_reason_to_stop(tmp_path):
    done = feddrop("config", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "dropout rate \\u03b3" in done.stdout


def test_resuming_a_network_of_your_own_says_how(here, digits):
    config = RunConfig.from_toml("rounds = 2\ndata.devices = 2\nmodel.width = 0.2")
    next(
        iter(
            package.Run(
                config, "own", model=package.lenet(num_classes=10, input_shape=digits.input_shape), dataset=digits
            )
        )
    )
    code, _, err = here("resume", "own")
    assert code == 2
    assert "feddrop.resume('own', model=..., dataset=...)" in err
    package.Run(config, "fleet", command="flwr run")
    code, _, err = here("resume", "fleet")
    assert code == 2
    assert "Continue it with the same `flwr run`" in err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_round_and_saves(tmp_path, number):
    command = [sys.executable, "-m", "feddrop", "run", "--set", "rounds=500", "--out", "r"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    metrics = tmp_path / "r" / "metrics.jsonl"
    end = time.monotonic() + 600
    while time.monotonic() < end and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.05)
    os.kill(process.pid, number)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 128 + number, out
    assert f"{number.name}: stopping after this round" in out
    assert "feddrop resume r" in out
    rounds = len(metrics.read_text().splitlines())
    assert 1 <= rounds < 500
    assert (tmp_path / "r" / "checkpoints" / f"round-{rounds:06d}.safetensors").exists()


# --- settings --------------------------------------------------------------------------------------------------------


def test_every_setting_has_a_meaning():
    """It comes from the docstring of its dataclass: a key without one is noticed here."""
    for method in METHODS:
        found = list(settings.tables(method))
        assert len(found) > 5
        for table in found:
            assert table.meaning, table.name
            assert all(row.meaning for row in table.rows)
            cls = type(getattr(RunConfig(method=method, radio=Radio()), table.name)) if table.name else RunConfig
            keys = [item.name for item in dataclasses.fields(cls)]
            if not table.name:
                keys = [key for key in keys if key not in {table.name for table in found}]
            assert {row.key for row in table.rows} - {"name"} == set(keys) - {"name"}, "not in the Attributes"


def test_written_settings_are_the_defaults_and_can_be_run(here):
    code, out, _ = here("config", "--write", "all.toml")
    assert code == 0
    assert "feddrop run all.toml" in out
    text = Path("all.toml").read_text()
    assert RunConfig.from_file("all.toml") == RunConfig()
    assert "# dropout rate γ" in text
    assert here("config", "--write", "all.toml")[0] == 2  # never over a file that is there
    lines = [line[1:] if line.startswith("#") and not line.startswith("# ") else line for line in text.splitlines()]
    assert RunConfig.from_toml("\n".join(lines)).radio is not None  # what is off is right as well


def test_settings_are_listed_with_their_defaults(here, monkeypatch):
    keys = {entry["key"]: entry for entry in json.loads(here("config", "--json")[1])}
    assert keys["train.lr"]["default"] == 0.1
    assert keys["radio.energy_budget_j"]["default"] == "inf"
    for width in ("50", "80", "160"):
        monkeypatch.setenv("COLUMNS", width)
        shown = here("config")[1]
        assert "lr = 0.1" in shown
        assert "(off unless given)" in " ".join(shown.split())
        assert max(map(len, shown.splitlines()[:-1])) <= int(width)


def test_the_meaning_of_a_setting_is_a_sentence_and_nothing_else(here):
    keys = {entry["key"]: entry["meaning"] for entry in json.loads(here("config", "--json")[1])}
    assert [key for key, meaning in keys.items() if ">>>" in meaning or "Example" in meaning] == []
    assert [key for key, meaning in keys.items() if not re.search(r"[a-z]{3}", meaning)] == []  # no "B.", no "θ."
    assert [name for name in METHODS if f'"{name}"' not in keys["method.name"]] == []
    assert all(f'"{word}"' in keys["train.schedule"] for word in ("constant", "cosine", "linear"))


def test_the_schema_is_printed_and_written_for_editors(here):
    code, out, _ = here("config", "--schema")
    assert code == 0
    schema = json.loads(out)
    assert schema["$schema"].endswith("draft/2020-12/schema")
    assert here("config", "--schema", "--write", "a/run.toml")[0] == 0
    assert json.loads(Path("a/run.schema.json").read_text()) == schema
    assert Path("a/run.toml").read_text().startswith("#:schema ./run.schema.json\n")
    assert RunConfig.from_file("a/run.toml") == RunConfig()
    assert json.loads(here("config", "--schema", "--compare")[1])["required"] == ["compare"]
    assert here("config", "--compare")[0] == 2


def test_settings_of_other_methods_are_listed(here):
    keys = {entry["key"]: entry for entry in json.loads(here("config", "--method", "feddst", "--json")[1])}
    assert keys["method.name"]["default"] == "feddst"
    assert keys["method.alpha"]["default"] == 0.01
    assert "method.level" not in keys
    keys = {entry["key"]: entry for entry in json.loads(here("config", "--method", "mine:method", "--json")[1])}
    assert keys["method.name"]["default"] == "mine:method"


def test_allocate_takes_a_scheme(here):
    code, out, _ = here("allocate", str(EXAMPLES / "problem.toml"), "--scheme", "equal")
    assert code == 0
    assert "scheme equal" in out
    assert "scheme exact: optimal" in here("allocate", str(EXAMPLES / "problem.toml"))[1]
    for words, said in (
        (["--scheme", "exakt"], "Did you mean 'exact'"),
        (["--seed", "3"], "the scheme 'exact' takes no seed"),
        (["--scheme", "ideal", "--policy", "error"], "the scheme 'ideal' takes no policy"),
        (["--method", "exact"], "--method"),
    ):
        code, _, err = here("allocate", str(EXAMPLES / "problem.toml"), *words)
        assert (code, err.count("\n")) == (2, 1)
        assert said in err


@pytest.mark.parametrize("value", [None, True, 1.5, "a", (1.0, 2.0), {"a": 0.5}, {}])
def test_a_default_is_written_as_toml(value):
    written = settings.assignment(settings.SettingRow("key", value, ""))
    if value is None:
        assert written == "# key ="
    else:
        assert tomllib.loads(written)["key"] == (list(value) if isinstance(value, tuple) else value)


# --- live ------------------------------------------------------------------------------------------------------------


def record(number: int, *, radio: bool = False, devices: int = 10, **more: Any) -> RoundRecord:
    given = more.pop("given", {})
    entries = [DeviceRecord(**({"device": k, "rate": k / devices} | given.get(k, {}))) for k in range(devices)]
    rates = [entry.rate for entry in entries if entry.took_part]
    marks = Counter([entry.outcome for entry in entries] + ["suspicious" for entry in entries if entry.suspicious])
    return RoundRecord(**({
        "round": number, "train_loss": 1.98234, "test_loss": 2.12345, "test_accuracy": 0.91234,
        "push_bytes": 345_678_901, "pull_bytes": 345_678, "latency_s": 7.981 if radio else None,
        "energy_j": 12.345 if radio else None, "wall_s": 1.234, "devices": tuple(entries),
        "counts": dict(marks), "mean_rate": sum(rates) / len(rates),
    } | more))  # fmt: skip


@pytest.mark.parametrize("radio", [False, True])
@pytest.mark.parametrize("devices", [3, 10, 1000])
@pytest.mark.parametrize("metrics", [{}, {"top5": 0.99, "a rather long name of a metric": 12345678.9}])
def test_a_narrow_table_drops_columns_not_digits(radio, devices, metrics):
    records = [record(n, radio=radio, devices=devices, metrics=metrics) for n in (9, 10, 1000)]
    shown: list[set[str]] = []
    for width in range(24, 200, 4):
        console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
        console.print(live.table(records, width))
        text = console.export_text()
        console.file.close()
        lines = text.splitlines()
        assert max(map(len, lines)) <= width
        for word in " ".join(lines).replace("▁", "").split():
            assert "…" not in word or set(word) <= set("▁▂▃▄▅▆▇█…"), text
        shown.append({column.name for column in live.fitting(live._columns(records), width)})
    assert shown[0] == {"round", "accuracy"}
    assert all(narrow <= wide for narrow, wide in itertools.pairwise(shown))
    assert {"train loss", "accuracy", "by device", "down", "up", "wall", *metrics} - {
        "a rather long name of a metric"
    } <= shown[-1]


def test_without_accuracy_the_loss_stands_in():
    regression = [record(1, test_accuracy=None, metrics={"mae": 0.5})]
    assert {column.name for column in live.fitting(live._columns(regression), 20)} == {"round", "test loss"}
    assert "test loss 2.1235" in live.line(regression[0], 10)
    assert "mae 0.5000" in live.line(regression[0], 10)


def test_the_virtual_time_is_shown_and_the_latency_only_where_the_server_waits():
    waiting, virtual = (
        record(3, radio=True, time_s=24.0),
        record(3, radio=True, time_s=24.0, given={0: {"start_s": 1.0}}),
    )
    assert "latency 7.98 s  time 24.0 s  energy 12.3 J  wall 1.23 s" in live.line(waiting, 10)
    assert "latency" not in live.line(virtual, 10)
    assert "time 24.0 s  energy 12.3 J" in live.line(virtual, 10)
    assert {"time", "wall"} <= {column.name for column in live._columns([virtual])}
    assert "latency" not in {column.name for column in live._columns([virtual])}


def test_a_line_tells_of_refused_and_suspicious_updates():
    given = {0: {"status": "the frame is damaged"}, 1: {"suspicious": "norm 40 times the median"}}
    one = record(3, devices=3, given=given)
    assert "1 refused  1 suspicious" in live.line(one, 10)
    columns = {column.name: column.cells for column in live._columns([record(2), one])}
    assert columns["refused"] == columns["suspicious"] == ["–", "1"]
    assert "refused" not in {column.name for column in live._columns([record(2)])}


def test_devices_left_out_do_not_count_in_the_mean_rate():
    one = record(1, devices=3, given={1: {"rate": 0.5}, 2: {"rate": 1.0, "status": "left out"}})
    (rate,) = (column for column in live._columns([one]) if column.name == "rate")
    assert rate.cells == ["0.25"]


def test_a_notebook_shows_the_table_in_one_cell(monkeypatch):
    """IPython is not needed to install feddrop; here a stand-in keeps what would be displayed."""
    import types

    shown: list[str] = []

    class Cell:
        def update(self, picture: str) -> None:
            shown.append(picture)

    def display(picture: str, *, display_id: bool) -> Cell:
        assert display_id
        shown.append(picture)
        return Cell()

    stand_in = types.SimpleNamespace(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(display=stand_in))
    monkeypatch.setitem(sys.modules, "IPython.display", stand_in)

    class Job(list):
        config = types.SimpleNamespace(rounds=2)
        round = 0
        records: list[RoundRecord] = []  # noqa: RUF012

    console = Console(force_jupyter=True)
    assert [one["round"] for one in live.show_run(Job([record(1), record(2)]), console)] == [1, 2]
    assert len(shown) == 3
    assert shown[-1].startswith("<pre")
    assert "91.23%" in shown[-1]
    assert "2/2" in shown[-1]
    assert "<script" not in shown[-1]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("0.01", "Finished after round 1: the accuracy of"),
        ("0.99", "Finished: all 3 rounds are done; target_accuracy = 0.99 was not reached."),
    ],
)
def test_the_end_of_a_run_says_why_it_ended(here, target, said):
    small = ["data.train_limit=60", "data.devices=2", "rounds=3", f"target_accuracy={target}"]
    words = ["run", "--out", "ended", *(word for one in small for word in ("--set", one))]
    for call, expected in ((words, said), (["resume", "ended"], "ended is finished: ")):
        code, out, _ = here(*call)
        assert code == 0
        assert expected in out
