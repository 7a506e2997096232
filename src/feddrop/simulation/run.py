"""A run from start to end. Every round is saved, and a stopped run resumes to the same bits.

A run folder holds ``config.toml``, ``run.json`` (what was trained, and how to repeat it), ``metrics.jsonl`` (one line
per round), ``devices/`` (a table with one row per device per round), ``checkpoints/`` and ``report.html``.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy.typing as npt
from torch import nn

from feddrop.config import RunConfig
from feddrop.data import Dataset
from feddrop.errors import ConfigError, RunError
from feddrop.executors import Executor, ExecutorFactory
from feddrop.executors.threads import torch_threads
from feddrop.learning.local import Loss
from feddrop.learning.metrics import Metric
from feddrop.methods.method import MethodFactory, State
from feddrop.methods.sizes import sub_model
from feddrop.models import copy_model
from feddrop.radio.outcome import OutcomeFunction
from feddrop.report import write_report
from feddrop.report.warned import count_suspects, divergence_advice, remarks
from feddrop.simulation import preflight, recording
from feddrop.simulation.callbacks import CallbackList
from feddrop.simulation.custom import CustomChannel, CustomObjects, CustomScheme, Gains, Network, with_custom_names
from feddrop.simulation.custom_checks import check_resumed
from feddrop.simulation.finish import StoppedError, finish, stopped
from feddrop.simulation.preparation import prepare
from feddrop.simulation.server import first_state, next_round
from feddrop.storage import RoundRecord, RunFolder
from feddrop.storage.records import LATE
from feddrop.subnets.parameters import Params, load_into

log = logging.getLogger("feddrop")

Record = RoundRecord
"""One line of ``metrics.jsonl``."""


class Run:
    """A run in progress. Iterate over it: each round is saved before its record is yielded.

    You can stop at any time; ``feddrop resume`` continues after the last record. The report is written when the loop
    ends, also if it is interrupted or left early; then a message says how to resume.

    Args:
        config: the configuration of the run.
        out: the run folder; new or empty, unless resuming or overwriting.
        resume: whether to continue the run in the folder.
        back: when resuming, how many of the last rounds to repeat; see :func:`feddrop.resume` for the limit.
        overwrite: whether to overwrite a run in the folder.
        model: a custom network in place of ``config.model``, or a function from a seed to one; it is copied.
        dataset: a custom data set in place of ``config.data.name``; :func:`feddrop.from_arrays` creates one.
        parts: the indices of every device's training samples, one list per device, in place of
            ``config.data.partition``.
        method: a function ``setup -> Method`` in place of ``config.method``.
        executor: a function ``task -> Executor`` in place of ``config.execution.executor``.
        loss: a function ``(outputs, targets) -> mean loss`` in place of ``config.train.loss``.
        metrics: metrics by name: functions ``(outputs, targets) -> number``, called with all test samples, or objects
            with ``update``, ``compute`` and ``reset``, such as those of torchmetrics.
        gains: power gains |h|² ``[rounds, devices]`` in place of the channel model; see :func:`feddrop.gains_from`.
        samples: number of samples per device, for an executor whose devices hold their own data, as under Flower.
        scheme: a function ``seen -> Plan`` or an allocation scheme in place of ``config.radio.scheme``.
        channel: an object with ``draw(devices, round, seed) -> gains`` in place of the channel model.
        outcome: a function ``(plan, truth, costs, state) -> (lost, state)`` in place of ``config.radio.outcome``.
        callbacks: objects called at the start, after every round and at the end, in addition to ``config.callbacks``.
        label: name of the run in reports, kept on resume. Runs with different labels are never averaged as seeds; runs
            with custom objects that cannot be compared are averaged only if they have the same label.
        command: how the run was started, for the report.
        report: whether to write ``report.html`` after the last round, and when the loop is interrupted or left early.

    Attributes:
        suspects: how many suspicious updates each device has sent since the run was started or resumed.

    Example:
        >>> import feddrop
        >>> config = feddrop.RunConfig(rounds=2, data=feddrop.Data(devices=2, train_limit=60))
        >>> run = feddrop.Run(config, "runs/loop")
        >>> for record in run:
        ...     print(record.round, record.train_loss < 3)
        1 True
        2 True
        >>> sorted(run.params)[0]
        'conv1.bias'
    """

    def __init__(
        self,
        config: RunConfig,
        out: str | Path,
        *,
        resume: bool = False,
        back: int = 0,
        overwrite: bool = False,
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
        label: str = "",
        command: str = "",
        report: bool = True,
    ) -> None:
        given = locals()  # every argument, by name
        custom = CustomObjects(**{item.name: given[item.name] for item in fields(CustomObjects)})
        preflight.check_start(config, custom)
        if overwrite and resume:
            raise ConfigError("resume and overwrite are mutually exclusive. Remove one.")
        if back < 0 or (back and not resume):
            raise ConfigError(f"back is {back}; it must be 0, or with resume=True the number of rounds to repeat.")
        self.folder, self._disk = Path(out), RunFolder(out)
        if resume:
            check_resumed(custom, self._disk.begun())
        idle = () if resume else tuple(custom.notices(config, named=True))  # logged with the next line
        self.config = with_custom_names(config, custom, self._disk.config() if resume else None).located()
        if resume:
            self._disk.check_config(self.config)
        else:  # before any work, and again under the lock
            self._disk.check_free(overwrite=overwrite)
        self._callbacks, self._report = CallbackList(callbacks, config.callbacks), report
        self.prepared = prepare(self.config, custom)
        self.config = self.prepared.config
        facts = recording.facts(self.prepared, command, label, idle)
        self._start(facts, resume=resume, back=back, overwrite=overwrite)

    def _start(self, facts: Mapping[str, Any], *, resume: bool, back: int, overwrite: bool) -> None:
        """Begin the run, or return to its last checkpoint."""
        self._server, self._remarked = first_state(self.prepared), set[str]()
        self.suspects: Counter[int] = Counter()
        with self._disk.locked():
            if back:
                self._disk.drop_rounds(back)
            if not resume:
                self._disk.begin(self.config, facts, overwrite=overwrite)
            elif found := self._disk.reopen(self.config, facts):
                self._server = self._server.returned_to(found, self.folder, self.prepared)

    @property
    def round(self) -> int:
        """Rounds done so far."""
        return self._server.round

    @property
    def finished(self) -> bool:
        """Whether the run has ended: by ``rounds``, ``seconds``, ``joules`` or ``target_accuracy``."""
        return bool(self.end)

    @property
    def end(self) -> str:
        """Why the run has ended, in words; empty if it has not."""
        return self._server.spent.end(self.config, self.round)

    @property
    def params(self) -> Params:
        """The network as it is now."""
        return self._server.params

    @property
    def state(self) -> State:
        """The method's state as it is now."""
        return self._server.state

    @property
    def records(self) -> list[Record]:
        """The records of the rounds done so far."""
        return self._disk.records()

    @property
    def about(self) -> dict[str, Any]:
        """The contents of ``run.json``."""
        return self._disk.about()

    def model(self, rate: float | None = None, *, draw: int = 0) -> nn.Module:
        """Return the network as it is now, or the sub-model of a device at a given rate, in evaluation mode.

        Args:
            rate: dropout rate γ of a device; None for the full network.
            draw: which random subnet, for methods that draw them.
        """
        if rate is None:
            network = copy_model(self.prepared.model, self.config.seed)
            load_into(network, self.params)
            return network.eval()
        return sub_model(
            self.prepared.method, self.state, self.params, max(1, self.round), rate, self.config.seed, draw
        )

    def __iter__(self) -> Iterator[Record]:
        if self.finished:
            return
        with self._disk.locked():
            self._disk.check_unchanged()
            executor = self.prepared.start_executor()
            try:
                with closing(executor):
                    self._callbacks.call("on_start", self)
                    while not self.end:
                        record = self._one_round(executor)
                        self._callbacks.call("on_round", record)
                        yield record
                if self._report:
                    write_report(self.folder)
            except KeyboardInterrupt:
                if not self._report or self.end:
                    raise
                raise StoppedError(stopped(self)) from None
            except GeneratorExit:  # the body of the loop was interrupted, failed or left early
                if self._report and not self.end and not sys.is_finalizing():
                    log.warning("%s", stopped(self))
                raise
            finally:
                self._callbacks.call("on_end", self)

    def _one_round(self, executor: Executor) -> Record:
        """Run the next round and save it. If it fails before it is saved, the run stays as it was."""
        try:
            with torch_threads(self.config.execution.threads):
                server, record = next_round(self.prepared, self._server, executor, self._disk.memories)
        except RunError as error:
            simulated = self.prepared.custom.samples is None
            raise RunError(f"{error}{recording.blame(self.records, simulated=simulated)}") from error
        saved = recording.recorded(record, self.config)
        self._disk.save(saved, server.groups(), last=bool(server.spent.end(self.config, server.round)))
        self._server = server
        self.suspects.update(count_suspects([record]))
        self._warn(record)
        return record

    def _warn(self, record: Record) -> None:
        """Log what is unusual about a round, each kind once."""
        if record.diverged:
            advice = divergence_advice(self.suspects, self.config.server)
            log.warning(
                "round %d: the test loss is %.3g: training diverged. %s", record.round, record.test_loss, advice
            )
        highest = max((one.rate or 0.0 for one in record.devices if one.took_part), default=0.0)
        found = remarks(self.config, highest, LATE in record.counts, record.test_accuracy or 0.0)
        if unusual := set(found) - self._remarked:
            self._remarked |= unusual
            for line in sorted(unusual):
                log.warning("round %d: %s", record.round, line)


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
    """Train all rounds, write the report, and return one record per round.

    In a notebook, each round is shown as it ends, and the figures at the end. If the run is interrupted, the saved
    rounds are kept, the report is written, and the error says how to resume.

    Args:
        config: the configuration of the run.
        out: the run folder; new or empty, unless overwriting.
        model: a custom network in place of ``config.model``, or a function from a seed to one; it is copied.
        dataset: a custom data set in place of ``config.data.name``; :func:`feddrop.from_arrays` creates one.
        parts: the indices of every device's training samples, one list per device, in place of
            ``config.data.partition``.
        method: a function ``setup -> Method`` in place of ``config.method``.
        executor: a function ``task -> Executor`` in place of ``config.execution.executor``.
        loss: a function ``(outputs, targets) -> mean loss`` in place of ``config.train.loss``.
        metrics: metrics by name: functions ``(outputs, targets) -> number``, called with all test samples, or objects
            with ``update``, ``compute`` and ``reset``, such as those of torchmetrics.
        gains: power gains |h|² ``[rounds, devices]`` in place of the channel model; see :func:`feddrop.gains_from`.
        samples: number of samples per device, for an executor whose devices hold their own data, as under Flower.
        scheme: a function ``seen -> Plan`` or an allocation scheme in place of ``config.radio.scheme``.
        channel: an object with ``draw(devices, round, seed) -> gains`` in place of the channel model.
        outcome: a function ``(plan, truth, costs, state) -> (lost, state)`` in place of ``config.radio.outcome``.
        callbacks: objects called at the start, after every round and at the end, in addition to ``config.callbacks``.
        overwrite: whether to overwrite a run in the folder.
        label: name of the run in reports, kept on resume. Runs with different labels are never averaged as seeds; runs
            with custom objects that cannot be compared are averaged only if they have the same label.
        command: how the run was started, for the report.

    Example:
        >>> import feddrop
        >>> config = feddrop.RunConfig(rounds=2, data=feddrop.Data(devices=2, train_limit=60))
        >>> first, second = feddrop.run(config, "runs/first")
    """
    given = locals()  # every argument, by name
    return finish(Run(**given, report=False))


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

    Custom objects are not saved: pass the same ones as at the start. Only the executor may differ.

    Args:
        folder: the run folder.
        back: how many of the last rounds to repeat, for example after a hostile update ruined the network; the
            checkpoints of the last two rounds and of the best one are kept.
        model: a custom network in place of ``config.model``, or a function from a seed to one; it is copied.
        dataset: a custom data set in place of ``config.data.name``; :func:`feddrop.from_arrays` creates one.
        parts: the indices of every device's training samples, one list per device, in place of
            ``config.data.partition``.
        method: a function ``setup -> Method`` in place of ``config.method``.
        executor: a function ``task -> Executor`` in place of ``config.execution.executor``.
        loss: a function ``(outputs, targets) -> mean loss`` in place of ``config.train.loss``.
        metrics: metrics by name: functions ``(outputs, targets) -> number``, called with all test samples, or objects
            with ``update``, ``compute`` and ``reset``, such as those of torchmetrics.
        gains: power gains |h|² ``[rounds, devices]`` in place of the channel model; see :func:`feddrop.gains_from`.
        samples: number of samples per device, for an executor whose devices hold their own data, as under Flower.
        scheme: a function ``seen -> Plan`` or an allocation scheme in place of ``config.radio.scheme``.
        channel: an object with ``draw(devices, round, seed) -> gains`` in place of the channel model.
        outcome: a function ``(plan, truth, costs, state) -> (lost, state)`` in place of ``config.radio.outcome``.
        callbacks: objects called at the start, after every round and at the end, in addition to ``config.callbacks``.

    Example:
        >>> import feddrop
        >>> config = feddrop.RunConfig(rounds=2, data=feddrop.Data(devices=2, train_limit=60))
        >>> first = next(iter(feddrop.Run(config, "runs/stopped")))
        >>> len(feddrop.resume("runs/stopped"))
        2
    """
    given = locals()  # every argument, by name
    return finish(Run(read_config(folder), given.pop("folder"), resume=True, report=False, **given))


def read_config(folder: str | Path) -> RunConfig:
    """Read the configuration of a run folder."""
    return RunFolder(folder).config()
