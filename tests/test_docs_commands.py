"""Every command in readme, documentation and examples works.

Commands of ``feddrop`` are run in order, in this process, in one folder per page and on less data than printed; for
those in ``LOOKED_AT`` only the options are checked. What the commands assume (a run, a configuration) is prepared.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import feddrop
from feddrop.cli import app
from feddrop.cli.failures import guarded
from support.pages import EXAMPLES, PAGES, PROGRAMS, ROOT, commands

# Why a command is not run here, by its first words.
LOOKED_AT = {
    "feddrop sweep examples/sweep.toml --ray": "joins a cluster; test_ray.py does it on one of two nodes",
    "feddrop data cifar100 --download": "takes 160 MB from the internet",
    "feddrop data shakespeare --download": "likewise",
    "feddrop compare examples/compare_schemes.toml": "needs CIFAR-100 in full; test_comparisons.py compares schemes",
    "feddrop compare examples/compare_objectives.toml": "likewise",
    "feddrop compare examples/compare_weak.toml": "likewise",
    "feddrop compare examples/compare_rivals.toml": "trains eleven arms; test_comparisons.py checks the file",
    "feddrop compare examples/compare_clocks.toml": "likewise; test_clock.py runs the clocks",
    "feddrop explore": "serves until Ctrl-C; the tests of the explorer do it",
    "feddrop sweep": "trains several runs side by side; the tests of sweeps do it",
}
# Other programs, and what tests them.
OTHERS = {
    "flwr": "test_flower.py, and `make flower`",
    "flower-superlink": "likewise",
    "flower-supernode": "likewise",
}
# Data that a reader would download, and their replacements.
STAND_INS = {"cifar100": "digits", "cifar10": "digits", "fashion_mnist": "digits"}
SMALLER = {
    "sweep": {"--set": ["rounds=2", "data.train_limit=60"]},
    "compare": {"--set": ["compare.budget.bytes=12e6", "compare.seeds=1", "data.train_limit=60"]},
    "compare examples/compare_rates.toml": {
        "--set": ["rounds=2", "eval_every=2", "compare.seeds=1", "data.train_limit=60"]
    },
    "run": {"--set": ["rounds=2", "data.train_limit=100", "eval_every=2"]},
    "theory": {"--batch": "8", "--masks": "2", "--rates": "0.1"},
}
TYPED = [page for page in (*PAGES, *EXAMPLES) if commands(page)]
RAN: set[str] = set()  # a command of several pages runs once
# Placeholders and their values.
FORMS = {
    "DIR": "runs/mine",
    "FILE": "examples/problem.toml",
    "FILE.parquet": "table.parquet",
    "FILE.csv": "table.csv",
    "FILE.toml": "examples/sweep.toml",
    "CONFIG.toml": "my.toml",
    "NAME": "digits",
    "key=value": "train.lr=0.05",
}


def filled(command: str) -> list[str]:
    """The words of a command, with placeholders filled in and optional words kept."""
    words = shlex.split(re.sub(r"[\[\]]|\.\.\.", " ", command) if " [" in command else command)
    forms = FORMS | ({"FILE.toml": "examples/compare_methods.toml"} if words[1:2] == ["compare"] else {})
    return [forms.get(word, word) for word in words]


def smaller(words: list[str]) -> list[str]:
    """The same command on less data."""
    words = [STAND_INS.get(word, word) for word in words]
    words = [re.sub("=(cifar10+|fashion_mnist)$", "=digits", word) for word in words]
    known = [SMALLER[some] for some in (" ".join(words[1:3]), *words[1:2]) if some in SMALLER]
    for option, value in known[0].items() if known else ():
        if isinstance(value, list):
            said = {word.partition("=")[0] for word in words} | {word[2:] for word in words if word[:2] == "--"}
            words += [word for one in value if one.partition("=")[0] not in said for word in (option, one)]
            words = shlex.split(re.sub(r"\brounds[ =]\d+", "rounds=2", shlex.join(words)))
        else:
            if option in words:
                at = words.index(option)
                end = next((i for i in range(at + 1, len(words)) if words[i][:2] == "--"), len(words))
                del words[at:end]
            words += [option, value]
    return words


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """What readers have at the start: a finished run, a configuration, the examples, a text to train on."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("examples", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name)
    config = feddrop.RunConfig.from_toml("", ["rounds=2", "data.train_limit=60", "data.devices=2"])
    feddrop.run(config, folder / "a run")
    (folder / "my.toml").write_text("data = { devices = 2, train_limit = 60 }")
    lines = "\n".join(f"the word of role number {i}, and it goes on for long enough" for i in range(10))
    text = "\n\n".join(f"ROLE {i}:\n{lines}" for i in range(60))
    (folder / "text").mkdir()
    (folder / "text" / "shakespeare.txt").write_text(text)
    return folder


@pytest.fixture
def reader(made, tmp_path, monkeypatch) -> Path:
    """A fresh folder for one page."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    (tmp_path / "docs" / "img").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDDROP_DATA", str(tmp_path / "text"))
    return tmp_path


def run_it(words: list[str], reader: Path) -> None:
    """Run a command of feddrop; runs that it reads or resumes exist."""
    outs = {words[i + 1] for i, word in enumerate(words[:-1]) if word == "--out"}
    for word in words:
        if word.startswith("runs/") and word not in outs and not Path(word).exists():
            shutil.copytree(reader / "a run", word)
    words = [*words]
    for word in [word for word in words if word.endswith(".toml") and words[1] == "run"]:
        name = tomllib.loads(Path(word).read_text()).get("data", {}).get("name")
        words += ["--set", f"data.name={STAND_INS[name]}"] if name in STAND_INS else []
    if words[1] == "run" and "--out" not in words:
        words += ["--out", f"runs/{len(list(Path().rglob('run.json')))}"]  # names by the second would collide
    assert guarded(lambda: app(words[1:], print_error=False, exit_on_error=False)) == 0, shlex.join(words)


@pytest.mark.parametrize("page", TYPED, ids=lambda page: page.name)
def test_commands_of_feddrop_work(page, reader, capsys):
    for command, promised in dict(commands(page)).items():
        words = filled(command)
        if words[0] != "feddrop" or command in RAN or words[1:] == ["resume"]:
            continue
        if any(command.startswith(start) for start in LOOKED_AT):
            app([words[1], "--help"], exit_on_error=False, result_action="return_value")
            known = capsys.readouterr().out
            assert all(word in known for word in words if word.startswith("--")), command
            continue
        capsys.readouterr()
        run_it(smaller(words), reader)
        RAN.add(command)
        said = capsys.readouterr().out
        assert said.split()[: len(promised.split())] == promised.split(), command


@pytest.mark.parametrize("page", TYPED, ids=lambda page: page.name)
def test_other_commands_name_what_exists(page):
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    makefile = (ROOT / "Makefile").read_text()
    for command, _ in commands(page):
        program, *words = shlex.split(command.removeprefix(".venv/bin/"))
        assert program in (*PROGRAMS, *OTHERS), f"{page.name}: add the program of {command!r} to this test"
        if program == "make":
            done = subprocess.run(["make", "-n", words[0]], cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        elif program == "python" and words[0] == "-m":
            assert importlib.util.find_spec(words[1]), command
        elif program == "python":
            assert (ROOT / words[0]).exists(), command
        elif program == "source":
            assert words == [f"{re.search(r'^VENV *[?]= (.*)$', makefile, re.M)[1]}/bin/activate"]
        elif program == "pip":
            named = re.findall(r"\[([\w,]+)\]", command)
            assert set(",".join(named).split(",")) - {""} <= extras, command


def test_what_is_only_parsed_is_still_printed_somewhere():
    typed = [command for page in TYPED for command, _ in commands(page)]
    for start in LOOKED_AT:
        assert any(command.startswith(start) for command in typed), start
