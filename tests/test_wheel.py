"""The wheel is complete: it is built, installed away from the source, and trains. The sdist holds the tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = "import feddrop, feddrop.cli, sys; print(feddrop.__file__); feddrop.cli.main()"


UNWANTED = shutil.ignore_patterns("__pycache__", "*.egg-info")
KEPT = ("benchmarks", "docs", "examples", "reproduction", "src", "tests", "tools")


def call(*command: object, **options: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_runs_on_its_own(tmp_path):
    source, target = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=UNWANTED)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    call(*pip, "wheel", source, "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path)  # offline
    [wheel] = tmp_path.glob("*.whl")

    package = source / "src" / "feddrop"
    files = {path.relative_to(source / "src").as_posix() for path in package.rglob("*") if path.is_file()}
    assert {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("feddrop/")} == files
    assert {"feddrop/__init__.pyi", "feddrop/py.typed"} <= files

    call(*pip, "install", wheel, "--no-deps", "--target", target)
    shutil.rmtree(source)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    words = ["run", "--rounds", "2", "--set", "data.train_limit=100", "--out", tmp_path / "run"]
    said = call(sys.executable, "-c", SCRIPT, *words, cwd=tmp_path, env=environment)
    assert said.startswith(str(target))
    assert (tmp_path / "run" / "report.html").is_file()
    assert "Commands" in call(target / "bin" / "feddrop", "--help", env=environment)


def test_the_sdist_holds_the_tests_and_what_they_read(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, source)
        elif path.name in KEPT:
            shutil.copytree(path, source / path.name, ignore=UNWANTED)
    script = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    call(sys.executable, "-c", script, tmp_path, cwd=source)
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    for folder in KEPT:
        files = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file()}
        assert {name for name in files if not any(part in name for part in ("__pycache__", ".egg-info"))} <= names
    assert {"tests/support/executors.py", "tests/golden/kept.json", "Makefile"} <= names


def test_every_pin_has_a_hash():
    """requirements.lock is constraints.txt with the SHA-256 of every file; `python tools/lock.py` writes it."""
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    entries = (ROOT / "requirements.lock").read_text().replace(" \\\n", " ").splitlines()
    locked = {entry.split()[0]: entry.split()[1:] for entry in entries if not entry.startswith("#")}
    assert list(locked) == pins
    assert all(digests for digests in locked.values())
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for digests in locked.values() for one in digests)
