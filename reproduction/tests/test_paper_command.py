"""``python -m reproduction``: what it prints, and what it refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from made_up import ENVIRONMENT, SMOKE, command_line

import feddrop
from reproduction.experiments import weak
from reproduction.reproduce import store_for


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(command_line(*words), cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True)


def test_it_shows_what_it_made(tmp_path):
    done = run("overhead", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "python -m reproduction overhead --scale smoke. It needs no training." in " ".join(done.stdout.split())
    assert "FedDrop sends less than PruneFL and FedDST" in done.stdout
    assert "(-0.12%)" in done.stdout  # masks of FedDST are coded below one bit per weight
    assert "runs/paper/smoke/paper.md" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"results", "runs"}


def test_an_unknown_experiment_leaves_no_folder(tmp_path):
    done = run("overheads", cwd=tmp_path)
    assert done.returncode == 2
    assert "overhead" in done.stderr
    assert not list(tmp_path.iterdir())


def test_without_a_name_it_lists_experiments(tmp_path):
    done = run(cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Accuracy at equal rates and sparsities" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_runs_over_a_ray_cluster_equal_those_of_one_core(tmp_path):
    pytest.importorskip("ray")
    done = run("weak-devices", "--ray", "local", "--workers", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    over_ray = store_for("smoke", tmp_path / "results", tmp_path / "runs/paper")
    alone = store_for("smoke", tmp_path / "alone", tmp_path / "alone-work")
    for config in weak.runs(SMOKE):
        list(feddrop.Run(config, alone.folder(config)))
        alone.put(config)
        assert over_ray.get(config).series == alone.get(config).series
    page = (tmp_path / "runs/paper/smoke/paper.md").read_text()
    assert f"All {len(weak.runs(SMOKE))} training runs are finished" in page
