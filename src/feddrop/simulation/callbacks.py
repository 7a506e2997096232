"""Callbacks: TensorBoard, MLflow, Weights & Biases, or a custom object.

A callback is any object with some of the methods of :class:`Callback`. Callbacks observe a run and cannot alter it. A
callback that fails is reported once and not called again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from feddrop.config import Callbacks
from feddrop.errors import ConfigError, clean

if TYPE_CHECKING:
    from feddrop.config import RunConfig
    from feddrop.storage import RoundRecord

log = logging.getLogger("feddrop")


class RunView(Protocol):
    """What a callback can read of a run."""

    @property
    def config(self) -> RunConfig:
        """The configuration."""

    @property
    def folder(self) -> Path:
        """The run folder."""

    @property
    def round(self) -> int:
        """Rounds done so far; above 0 at the start of a resumed run."""

    @property
    def finished(self) -> bool:
        """Whether the run has reached its end."""

    @property
    def about(self) -> Mapping[str, Any]:
        """The contents of ``run.json``; ``about["id"]`` stays the same when a run is resumed."""


class Callback(Protocol):
    """The methods that a run calls; all are optional."""

    def on_start(self, run: RunView) -> None:
        """Called when a run starts or resumes, before its next round."""

    def on_round(self, record: RoundRecord) -> None:
        """Called after a round was saved."""

    def on_end(self, run: RunView) -> None:
        """Called when a run ends: finished, stopped or failed."""


class TensorBoard:
    """Write every number of every round as a TensorBoard scalar; ``tensorboard --logdir RUNS`` shows all runs.

    The files go into ``folder``; None for ``tensorboard/`` in the run folder.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        _need("tensorboard")
        self._folder = folder

    def on_start(self, run: RunView) -> None:
        """Open the files; rounds repeated after a crash replace their earlier numbers."""
        from torch.utils.tensorboard import SummaryWriter

        folder = str(self._folder or run.folder / "tensorboard")
        self._writer: Any = SummaryWriter(folder, purge_step=run.round + 1)
        self._writer.add_text("config", f"```toml\n{run.config.to_toml()}```", run.round)

    def on_round(self, record: RoundRecord) -> None:
        """Write the numbers of a round."""
        for name, value in record.scalars().items():
            self._writer.add_scalar(name, value, record.round)
        if rates := [device.rate for device in record.devices if device.took_part and device.rate is not None]:
            self._writer.add_histogram("rates", np.asarray(rates, np.float64), record.round)
        self._writer.flush()

    def on_end(self, run: RunView) -> None:  # noqa: ARG002
        """Close the files."""
        self._writer.close()


class MLflow:
    """Log every setting as a parameter and every number as a metric of an MLflow run.

    Args:
        experiment: name of the experiment.
        tracking_uri: where to store it; empty for MLflow's default (``MLFLOW_TRACKING_URI``).
    """

    def __init__(self, experiment: str = "feddrop", tracking_uri: str = "") -> None:
        _need("mlflow")
        self._experiment, self._uri = experiment, tracking_uri

    def on_start(self, run: RunView) -> None:
        """Start an MLflow run, or reopen the one that this run wrote to before."""
        from mlflow import MlflowClient

        self._client: Any = MlflowClient(tracking_uri=self._uri or None)
        known = self._client.get_experiment_by_name(self._experiment)
        experiment = known.experiment_id if known else self._client.create_experiment(self._experiment)
        ours = f"tags.feddrop_id = '{run.about['id']}'"
        found = self._client.search_runs([experiment], ours, max_results=1)
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {"feddrop_id": str(run.about["id"]), "feddrop_folder": str(run.folder.absolute())}
        self._run = self._client.create_run(experiment, tags=tags, run_name=run.folder.absolute().name).info.run_id
        for name, value in run.config.flat().items():
            self._client.log_param(self._run, name, str(value)[:500])

    def on_round(self, record: RoundRecord) -> None:
        """Log the numbers of a round."""
        for name, value in record.scalars().items():
            self._client.log_metric(self._run, name, value, step=record.round)

    def on_end(self, run: RunView) -> None:
        """Set the final status."""
        self._client.set_terminated(self._run, "FINISHED" if run.finished else "KILLED")


class WandB:
    """Log every setting and every number to a Weights & Biases run of this project."""

    def __init__(self, project: str = "feddrop") -> None:
        _need("wandb")
        self._project = project

    def on_start(self, run: RunView) -> None:
        """Start a Weights & Biases run, or reopen the one that this run wrote to before."""
        import wandb

        self._run: Any = wandb.init(
            project=self._project,
            id=str(run.about["id"]),
            name=run.folder.absolute().name,
            config=run.config.flat(),
            dir=str(run.folder),
            resume="allow",
            reinit="create_new",
        )

    def on_round(self, record: RoundRecord) -> None:
        """Log the numbers of a round."""
        self._run.log(record.scalars(), step=record.round)

    def on_end(self, run: RunView) -> None:
        """Set the final status."""
        self._run.finish(exit_code=0 if run.finished else 1)


def named_callbacks(config: Callbacks) -> list[Any]:
    """Return the callbacks that a configuration names; a missing package is an error."""
    found: list[Any] = []
    if config.tensorboard:
        found.append(TensorBoard())
    if config.mlflow:
        found.append(MLflow(config.mlflow))
    if config.wandb:
        found.append(WandB(config.wandb))
    return found


class CallbackList:
    """Several callbacks as one that never fails; those that a configuration names are called first."""

    def __init__(self, given: Iterable[Any], named: Callbacks) -> None:
        if not isinstance(given, Iterable):
            raise ConfigError(f"callbacks is {clean(repr(given), 60)}; it must be a list of callbacks.")
        self._active = [*named_callbacks(named), *given]
        for one in self._active:
            if not any(callable(getattr(one, name, None)) for name in ("on_start", "on_round", "on_end")):
                shown = clean(repr(one), 60)
                raise ConfigError(
                    f"a callback is {shown}; it must have on_start(run), on_round(record) or on_end(run)."
                )

    def call(self, name: str, argument: Any) -> None:
        """Call the method ``name`` of all that have it; one that fails is not called again."""
        for one in list(self._active):
            call = getattr(one, name, None)
            if call is None:
                continue
            try:
                call(argument)
            except Exception as error:
                self._active.remove(one)
                reason = clean(f"{type(error).__name__}: {error}", 200)
                text = "callback %s failed in %s (%s). The run continues without it."
                log.warning(text, type(one).__name__, name, reason)


def _need(package: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(f"a callback needs {package}, which is not installed: pip install 'feddrop[{package}]'.")
