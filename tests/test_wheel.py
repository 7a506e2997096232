"""The wheel holds all that the package needs: it is built, installed away from the source, and trains."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = "import feddrop, feddrop.cli, sys; print(feddrop.__file__); feddrop.cli.main()"


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
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=unwanted)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    call(*pip, "wheel", source, "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path)  # nothing is fetched
    [wheel] = tmp_path.glob("*.whl")

    package = source / "src" / "feddrop"
    files = {path.relative_to(source / "src").as_posix() for path in package.rglob("*") if path.is_file()}
    assert {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("feddrop/")} == files

    call(*pip, "install", wheel, "--no-deps", "--target", target)
    shutil.rmtree(source)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    words = ["run", "--rounds", "2", "--set", "data.train_limit=100", "--out", tmp_path / "run"]
    said = call(sys.executable, "-c", SCRIPT, *words, cwd=tmp_path, env=environment)
    assert said.startswith(str(target))
    assert (tmp_path / "run" / "report.html").is_file()
    assert "Commands" in call(target / "bin" / "feddrop", "--help", env=environment)
