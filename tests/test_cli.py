from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

SMALL = ["--set", "rounds=2", "--set", "data.train_limit=100", "--set", "data.devices=2"]


def feddrop(*words, **options):
    command = [sys.executable, "-m", "feddrop", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def test_help_tells_a_newcomer_where_to_start():
    out = feddrop("--help").stdout
    assert "feddrop run" in out
    for command in ("run", "resume", "report", "data"):
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
    assert feddrop("resume", "first", cwd=tmp_path).returncode == 0
    feddrop("run", *SMALL, "--set", "rate=0.6", "--out", "second", cwd=tmp_path)
    assert feddrop("report", "first", "second", cwd=tmp_path).returncode == 0
    assert (tmp_path / "comparison.html").exists()


def test_paper_shows_what_it_made(tmp_path):
    done = feddrop("paper", "overhead", "--scale", "smoke", cwd=tmp_path, env={**os.environ, "COLUMNS": "160"})
    assert done.returncode == 0, done.stderr
    assert "made by feddrop paper overhead --scale smoke. It needs no training." in done.stdout
    assert "FedDrop sends less than PruneFL and FedDST" in done.stdout
    assert "251,823 (+0.42%)" in done.stdout
    assert "runs/paper/smoke/paper.md" in done.stdout


def test_json_is_for_machines(tmp_path):
    lines = feddrop("run", *SMALL, "--out", "r", "--json", cwd=tmp_path).stdout.splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2]
    assert json.loads(feddrop("data", "digits", "--json").stdout)["classes"] == 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--set", "rouds=3"], "Did you mean 'rounds'"),
        (["run", "--set", "rate=1.0"], "[0, 1)"),
        (["run", "none.toml"], "No such file"),
        (["run", "--set", "data.name=mnist"], "digits"),
        (["resume", "nowhere"], "nowhere"),
        (["report", "nowhere"], "nowhere"),
        (["paper", "overheads"], "Did you mean 'overhead'"),
    ],
)
def test_errors_are_one_clear_message(tmp_path, words, message):
    done = feddrop(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_ctrl_c_stops_after_the_round_and_saves(tmp_path):
    command = [sys.executable, "-m", "feddrop", "run", "--set", "rounds=500", "--out", "r"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    metrics = tmp_path / "r" / "metrics.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert "feddrop resume r" in out
    rounds = len(metrics.read_text().splitlines())
    assert 1 <= rounds < 500
    assert (tmp_path / "r" / "checkpoints" / f"round-{rounds:06d}.safetensors").exists()
