"""Run a configuration to the end, or continue a run: ``feddrop.run`` and ``feddrop.resume``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from feddrop.config import RunConfig
from feddrop.data import Dataset
from feddrop.executors import ExecutorFactory
from feddrop.learning.local import Loss
from feddrop.learning.metrics import Metric
from feddrop.methods.method import MethodFactory
from feddrop.radio.outcome import OutcomeFunction
from feddrop.simulation.custom import CustomChannel, CustomScheme, Gains, Network
from feddrop.simulation.run import Record, Run, read_config


def run(
    config: RunConfig,
    out: str | Path,
    *,
    model: Network | None = None,
    dataset: Dataset | None = None,
    parts: Sequence[npt.ArrayLike] | None = None,
    method: MethodFactory | None = None,
    executor: ExecutorFactory | None = None,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    gains: Gains | None = None,
    samples: Sequence[int] | None = None,
    scheme: CustomScheme | None = None,
    channel: CustomChannel | None = None,
    outcome: OutcomeFunction | None = None,
    callbacks: Sequence[Any] = (),
    overwrite: bool = False,
    label: str = "",
    command: str = "",
) -> list[Record]:
    """Run to the end, write the report, and return one record per round.

    Args:
        config: what to run.
        out: the run folder; new or empty, unless overwriting.
        model: a custom network in place of ``config.model``, or a function from a seed to one; it is copied.
        dataset: custom data in place of ``config.data.name``; :func:`feddrop.from_arrays` builds them.
        parts: sample numbers of every device, in place of ``config.data.partition``.
        method: a function ``setup -> Method`` in place of ``config.method``.
        executor: a function ``task -> Executor`` in place of ``config.execution.executor``.
        loss: a function ``(outputs, targets) -> mean loss`` in place of ``config.train.loss``.
        metrics: functions ``(outputs, targets) -> number`` of all test samples by name, or objects with ``update``,
            ``compute`` and ``reset``, as those of torchmetrics.
        gains: power gains |h|² ``[rounds, devices]`` in place of the channel model; see :func:`feddrop.gains_from`.
        samples: samples per device, if devices hold their own data; needs an executor that reaches them.
        scheme: a function ``seen -> Plan`` or an allocation scheme in place of ``config.radio.scheme``.
        channel: an object with ``draw(devices, round, seed) -> gains`` in place of the channel model.
        outcome: a function ``(plan, truth, costs, state) -> (lost, state)`` in place of ``config.radio.outcome``.
        callbacks: objects called at the start, after every round and at the end, besides ``config.callbacks``.
        overwrite: whether to overwrite a run in the folder.
        label: name of the run in reports, kept on resume. Runs with different labels are never seeds of each other;
            runs with custom objects that cannot be compared are, if their labels and everything else are equal.
        command: how the run was started, for the report.

    Example:
        >>> import feddrop
        >>> config = feddrop.RunConfig(rounds=2, data=feddrop.Data(devices=2, train_limit=60))
        >>> first, second = feddrop.run(config, "runs/first")
    """
    given = locals()  # every argument, by name
    return _finish(Run(**given))


def resume(
    folder: str | Path,
    *,
    back: int = 0,
    model: Network | None = None,
    dataset: Dataset | None = None,
    parts: Sequence[npt.ArrayLike] | None = None,
    method: MethodFactory | None = None,
    executor: ExecutorFactory | None = None,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    gains: Gains | None = None,
    samples: Sequence[int] | None = None,
    scheme: CustomScheme | None = None,
    channel: CustomChannel | None = None,
    outcome: OutcomeFunction | None = None,
    callbacks: Sequence[Any] = (),
) -> list[Record]:
    """Continue a run where it stopped, write the report, and return all records.

    Custom objects are not saved: give the same ones as at the start. Only the executor may differ.

    Args:
        folder: the run folder.
        back: how many of the last rounds to repeat, for example after a hostile update ruined the network; the
            checkpoints of the last two rounds and of the best one are kept.
        model: a custom network in place of ``config.model``, or a function from a seed to one; it is copied.
        dataset: custom data in place of ``config.data.name``; :func:`feddrop.from_arrays` builds them.
        parts: sample numbers of every device, in place of ``config.data.partition``.
        method: a function ``setup -> Method`` in place of ``config.method``.
        executor: a function ``task -> Executor`` in place of ``config.execution.executor``.
        loss: a function ``(outputs, targets) -> mean loss`` in place of ``config.train.loss``.
        metrics: functions ``(outputs, targets) -> number`` of all test samples by name, or objects with ``update``,
            ``compute`` and ``reset``, as those of torchmetrics.
        gains: power gains |h|² ``[rounds, devices]`` in place of the channel model; see :func:`feddrop.gains_from`.
        samples: samples per device, if devices hold their own data; needs an executor that reaches them.
        scheme: a function ``seen -> Plan`` or an allocation scheme in place of ``config.radio.scheme``.
        channel: an object with ``draw(devices, round, seed) -> gains`` in place of the channel model.
        outcome: a function ``(plan, truth, costs, state) -> (lost, state)`` in place of ``config.radio.outcome``.
        callbacks: objects called at the start, after every round and at the end, besides ``config.callbacks``.

    Example:
        >>> import feddrop
        >>> config = feddrop.RunConfig(rounds=2, data=feddrop.Data(devices=2, train_limit=60))
        >>> first = next(iter(feddrop.Run(config, "runs/stopped")))
        >>> len(feddrop.resume("runs/stopped"))
        2
    """
    given = locals()  # every argument, by name
    return _finish(Run(read_config(folder), given.pop("folder"), resume=True, **given))


def _finish(job: Run) -> list[Record]:
    from feddrop.report import write_report

    for _ in job:
        pass
    write_report(job.folder)
    return job.records
