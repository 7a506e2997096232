"""Callbacks are called in order and never disturb the run; the real packages, offline."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from feddrop.config import Callbacks, RunConfig
from feddrop.errors import ConfigError
from feddrop.executors import Serial
from feddrop.simulation.callbacks import CallbackList, MLflow, TensorBoard, WandB, named_callbacks
from feddrop.simulation.run import Run, resume, run

SMALL = ["rounds=3", "data.train_limit=60", "data.devices=2", "model.width=0.2"]


class Told:
    def __init__(self):
        self.heard = []

    def on_start(self, run):
        self.heard.append(("start", run.round))

    def on_round(self, record):
        self.heard.append(("round", record.round))

    def on_end(self, run):
        self.heard.append(("end", run.round))


class OnlyRounds:
    def __init__(self):
        self.rounds = []

    def on_round(self, record):
        self.rounds.append(record.round)


class Broken:
    """Fails in one of its methods."""

    def __init__(self, where):
        setattr(self, where, self.fail)

    def fail(self, _):
        raise ValueError("no\nroom \x1b[31m for this")


def stop_after(job, round_):
    for record in job:
        if record.round == round_:
            return


def test_callbacks_are_called_in_order(tmp_path):
    told, rounds = Told(), OnlyRounds()
    job = Run(RunConfig.from_toml("", SMALL), tmp_path / "run", callbacks=[told, rounds])
    stop_after(job, 1)
    assert told.heard == [("start", 0), ("round", 1), ("end", 1)]
    resume(tmp_path / "run", callbacks=[told, rounds])
    assert told.heard[3:] == [("start", 1), ("round", 2), ("round", 3), ("end", 3)]
    assert rounds.rounds == [1, 2, 3]


@pytest.mark.parametrize("where", ["on_start", "on_round", "on_end"])
def test_a_failing_callback_is_reported_once_and_the_run_continues(tmp_path, caplog, where):
    told = Told()
    config = RunConfig.from_toml("", SMALL)
    with caplog.at_level(logging.WARNING, "feddrop"):
        records = run(config, tmp_path / "run", callbacks=[Broken(where), told])
    assert len(records) == 3
    assert len(told.heard) == 5
    (line,) = caplog.messages
    assert f"callback Broken failed in {where} (ValueError: no room" in line
    assert "continues without it" in line
    assert "\n" not in line
    assert "\x1b" not in line


def test_ctrl_c_in_a_callback_is_not_swallowed():
    class Stop:
        def on_round(self, record):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CallbackList([Stop()], Callbacks()).call("on_round", None)


def test_what_ends_the_program_in_the_first_callback_ends_the_executor(tmp_path):
    """As Ctrl-C does, while wandb asks who you are."""
    ended, told = [], Told()

    class Noted(Serial):
        def close(self):
            ended.append(1)
            raise OSError("gone")

    class Stop:
        def on_start(self, run):
            raise SystemExit

    job = Run(RunConfig.from_toml("", SMALL), tmp_path / "run", callbacks=[told, Stop()], executor=Noted)
    with pytest.raises(OSError, match="gone") as caught:
        next(iter(job))
    assert isinstance(caught.value.__context__, SystemExit)
    assert ended
    assert told.heard == [("start", 0), ("end", 0)]


@pytest.mark.parametrize(
    ("given", "said"),
    [([print], "it must have on_start"), (None, "callbacks is None; it must be a list"), (Told(), "must be a list of")],
)
def test_what_is_no_callback_is_refused_before_anything_is_written(tmp_path, given, said):
    with pytest.raises(ConfigError, match=said):
        Run(RunConfig.from_toml("", SMALL), tmp_path / "run", callbacks=given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_named_before_anything_is_written(tmp_path, monkeypatch, name):
    monkeypatch.setattr("feddrop.simulation.callbacks.find_spec", lambda _: None)
    value = "true" if name == "tensorboard" else "mine"
    config = RunConfig.from_toml("", [*SMALL, f"callbacks.{name}={value}"])
    with pytest.raises(
        ConfigError, match=rf"a callback needs {name}, which is not installed: pip install 'feddrop\[{name}\]'"
    ):
        Run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_toml_names_callbacks():
    pytest.importorskip("tensorboard")
    pytest.importorskip("mlflow")
    pytest.importorskip("wandb")
    config = RunConfig.from_toml('[callbacks]\ntensorboard = true\nmlflow = "a"\nwandb = "b"')
    assert [type(one) for one in named_callbacks(config.callbacks)] == [TensorBoard, MLflow, WandB]
    assert named_callbacks(Callbacks()) == []


def test_importing_callbacks_loads_none_of_the_packages():
    code = "import sys, feddrop.config; print({'mlflow', 'wandb', 'tensorboard'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_tensorboard_holds_every_round_once(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = RunConfig.from_toml("", [*SMALL, "callbacks.tensorboard=true"])
    stop_after(Run(config, tmp_path / "run"), 2)
    resume(tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    records = Run(config, tmp_path / "run", resume=True).records
    seen = [(event.step, event.value) for event in events.Scalars("test_accuracy")]
    assert seen == [(one.round, pytest.approx(one.test_accuracy)) for one in records]
    assert {"train_loss", "push_bytes", "mean_rate", "wall_s"} <= set(events.Tags()["scalars"])


def test_mlflow_reopens_its_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    config = RunConfig.from_toml("", [*SMALL, "callbacks.mlflow=digits"])
    stop_after(Run(config, tmp_path / "run"), 2)
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("digits").experiment_id
    assert client.search_runs([experiment])[0].info.status == "KILLED"
    records = resume(tmp_path / "run")
    (logged,) = client.search_runs([experiment])
    assert logged.info.status == "FINISHED"
    assert logged.info.run_name == "run"
    assert logged.data.params["train.lr"] == str(config.train.lr)
    history = client.get_metric_history(logged.info.run_id, "train_loss")
    assert [(m.step, m.value) for m in history] == [(one.round, one.train_loss) for one in records]


def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for name in ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    told, real = [], wandb.sdk.wandb_run.Run.log
    monkeypatch.setattr(
        wandb.sdk.wandb_run.Run, "log", lambda self, data, step: (told.append((step, data)), real(self, data, step))
    )
    config = RunConfig.from_toml("", [*SMALL, "callbacks.wandb=digits"])
    stop_after(Run(config, tmp_path / "run"), 2)
    records = resume(tmp_path / "run")
    assert [(step, data["train_loss"]) for step, data in told] == [(one.round, one.train_loss) for one in records]
    parts = sorted((tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert len(parts) == 2
    assert len({part.name.rsplit("-", 1)[1] for part in parts}) == 1  # one run there, in two parts
    assert all(list(part.glob("*.wandb")) for part in parts)
