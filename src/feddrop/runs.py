"""A run from start to end: it saves after every round, and resumes to the same bits.

A run folder holds ``config.toml``, ``run.json`` (what was trained, and how to repeat it), ``metrics.jsonl`` (a line a
round), ``checkpoints/`` and ``report.html``.
"""

from __future__ import annotations

import copy
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from feddrop import data, models, params
from feddrop.callbacks import Callbacks, named
from feddrop.checkpoints import Checkpoint
from feddrop.config import RunConfig
from feddrop.control import Decision, controller, read_rates
from feddrop.data import Dataset
from feddrop.errors import RunError
from feddrop.executors import Processes, Samples, Serial, Task, check_torch_device
from feddrop.method import MethodFactory, State
from feddrop.methods.feddrop import feddrop
from feddrop.methods.feddst import feddst
from feddrop.methods.windows import NAMES as WINDOWS
from feddrop.methods.windows import windows
from feddrop.params import Params
from feddrop.records import DeviceRecord, RoundRecord, RunFolder
from feddrop.rounds import DeviceRound, Executor, run_round
from feddrop.seeds import derive

Record = RoundRecord
"""One line of ``metrics.jsonl``."""


class Run:
    """A run under way. Iterate over it: each round is saved, then its record is given.

    Stop whenever you like; what has been given has been saved. ``feddrop resume`` goes on from there.

    Args:
        config: what to run.
        out: the run folder: new or empty, unless resuming.
        model: a network of your own in place of ``config.model``.
        dataset: data of your own in place of ``config.data.name``.
        resume: whether to go on with what the folder holds.
        overwrite: whether a run that the folder holds may be overwritten.
        callbacks: who hears of every round, beside those that ``config.callbacks`` names; see ``callbacks.py``.
        command: how the run was started, for the report.
    """

    def __init__(
        self,
        config: RunConfig,
        out: str | Path,
        *,
        model: nn.Module | None = None,
        dataset: Dataset | None = None,
        resume: bool = False,
        overwrite: bool = False,
        callbacks: Sequence[Any] = (),
        command: str = "",
    ) -> None:
        self.config, self.folder = config if resume else config.located(), Path(out)
        self._disk = RunFolder(out)
        if not resume:  # now, before any work; and again under the lock
            self._disk.check_free(overwrite=overwrite)
        self._callbacks = Callbacks([*named(config.callbacks), *callbacks])
        check_torch_device(config.execution.device)
        self.own = [what for what, given in (("network", model), ("data", dataset)) if given is not None]
        self.dataset = dataset or data.load(
            config.data.name, path=config.data.path or None, train_limit=config.data.train_limit or None
        )
        self.model = copy.deepcopy(model) if model is not None else self._build_model()
        labels = self.dataset.train_y.numpy()
        self.parts = data.partition(
            labels,
            devices=config.data.devices,
            how=config.data.partition,
            alpha=config.data.alpha,
            classes_per_device=config.data.classes_per_device,
            seed=derive(config.seed, "partition"),
        )
        samples = [len(part) for part in self.parts]
        self.control = controller(config, self.model, self.dataset.input_shape, samples)
        self._factory = method_factory(config)
        self._method = self._factory(self.model, self.dataset.input_shape)
        self.params: Params = params.from_model(self.model)
        self.state: State = self._method.init(self.params)
        self.round = 0
        self.control.decide(1)  # what cannot be decided is an error before anything is written
        with self._disk.locked():
            if resume:
                self._go_back_to(self._disk.reopen(self.config, self._facts(command)))
            else:
                self._disk.begin(self.config, self._facts(command), overwrite=overwrite)

    @property
    def records(self) -> list[Record]:
        """The records of the rounds done so far."""
        return self._disk.records()

    @property
    def about(self) -> dict[str, Any]:
        """What ``run.json`` tells of the run."""
        return self._disk.about()

    def __iter__(self) -> Iterator[Record]:
        if self.round >= self.config.rounds:
            return
        with self._disk.locked():
            if len(self.records) != self.round:
                raise RunError(f"another process went on with {self.folder} meanwhile. Resume it again.")
            executor = self._executor(self._factory)
            self._callbacks.on_start(self)
            try:
                while self.round < self.config.rounds:
                    record = self._one_round(executor)
                    self._callbacks.on_round(record)
                    yield record
            finally:
                executor.close()
                self._callbacks.on_end(self)

    def _one_round(self, executor: Executor) -> Record:
        """Run the next round and save it."""
        config, started = self.config, time.perf_counter()
        decision = self.control.decide(self.round + 1)
        result = run_round(
            self._method,
            executor,
            self.params,
            self.state,
            round_=self.round + 1,
            rates=decision.rates,
            seed=config.seed,
            dtype=config.execution.wire,
            samples=[len(part) for part in self.parts],
        )
        self.params, self.state = result.params, result.state
        self.round += 1
        test_loss = test_accuracy = None
        if self.round % config.eval_every == 0 or self.round == config.rounds:
            test_loss, test_accuracy = executor.evaluate(self.params)
        wall_s = time.perf_counter() - started
        record = self._record(decision, result.devices, test_loss, test_accuracy, wall_s)
        self._disk.save(record, {"params": self.params, "state": self.state})
        return record

    def _record(
        self,
        decision: Decision,
        devices: list[DeviceRound],
        test_loss: float | None,
        test_accuracy: float | None,
        wall_s: float,
    ) -> Record:
        good = [device for device in devices if device.loss is not None]
        samples = sum(device.samples for device in good)
        costs = self.control.costs(decision, devices)
        entries = [
            DeviceRecord(
                device=d.device,
                rate=d.rate,
                share=decision.shares.get(d.device),
                samples=d.samples,
                push_bytes=d.push_bytes,
                pull_bytes=d.pull_bytes,
                binding=decision.binding.get(d.device),
                loss=d.loss,
                status=d.status,
                **costs.get(d.device, {}),
            )
            for d in devices
        ]
        return RoundRecord(
            round=self.round,
            train_loss=sum(d.samples * (d.loss or 0.0) for d in good) / samples,
            test_loss=test_loss,
            test_accuracy=test_accuracy,
            push_bytes=sum(device.push_bytes for device in devices),
            pull_bytes=sum(device.pull_bytes for device in devices),
            latency_s=max(cost["latency_s"] for cost in costs.values()) if costs else None,
            energy_j=sum(cost["energy_j"] for cost in costs.values()) if costs else None,
            wall_s=round(wall_s, 4),
            deadline_s=decision.deadline_s,
            objective=decision.objective,
            devices=(*entries, *map(left_out, decision.left_out)),
        )

    def _go_back_to(self, found: Checkpoint | None) -> None:
        """Go on from a checkpoint, or from the start."""
        if found is not None:
            self.round = found.round
            self.params = self._checked(found.groups.get("params", {}), self.params)
            self.state = self._checked(found.groups.get("state", {}), self.state)

    def _checked(self, loaded: Mapping[str, Tensor], like: Params) -> Params:
        """Return the tensors of a checkpoint in the order of these, after a look at names, types and shapes."""

        def fits(name: str) -> bool:
            one, other = loaded[name], like[name]  # what starts empty is a list that may have grown
            return one.dtype == other.dtype and (one.shape == other.shape or (other.shape == (0,) and one.dim() == 1))

        if set(loaded) != set(like) or not all(map(fits, like)):
            raise RunError(
                f"the checkpoint in {self.folder} belongs to another network or method. Give the same model."
            )
        return {name: loaded[name] for name in like}

    def _build_model(self) -> nn.Module:
        return models.build(
            self.config.model.name,
            num_classes=self.dataset.num_classes,
            input_shape=self.dataset.input_shape,
            width=self.config.model.width,
            init=self.config.model.init,
            seed=self.config.seed,
        )

    def _executor(self, factory: MethodFactory) -> Executor:
        execution = self.config.execution
        task = Task(
            model=self.model,
            factory=factory,
            samples=Samples(self.dataset.train_x, self.dataset.train_y, self.dataset.test_x, self.dataset.test_y),
            parts=[torch.from_numpy(part) for part in self.parts],
            train=self.config.train,
            threads=execution.threads,
            torch_device=execution.device,
        )
        return Processes(task, execution.workers) if execution.executor == "processes" else Serial(task)

    def _facts(self, command: str) -> dict[str, Any]:
        """Return what ``run.json`` tells of network and data; on resume they must be those of the start."""
        whole = list(self.model.parameters())
        counts = data.class_counts(self.dataset.train_y.numpy(), self.parts, self.dataset.num_classes)
        return {
            "command": command or ("" if self.own else "feddrop run config.toml"),
            "network": type(self.model).__name__ if "network" in self.own else self.config.model.name,
            "data": self.dataset.name,
            "own": self.own,
            "input_shape": list(self.dataset.input_shape),
            "parameters": sum(p.numel() for p in whole),
            "weights": sum(p.numel() for p in whole if p.ndim >= 2),
            "forward_flops": models.forward_flops(self.model, self.dataset.input_shape),
            "samples": [len(part) for part in self.parts],
            "class_names": list(self.dataset.class_names),
            "class_counts": counts.tolist(),
            "budget_j": self.control.budgets(),
            "data_crc32": _fingerprint(self.dataset),
        }


def run(
    config: RunConfig,
    out: str | Path,
    *,
    model: nn.Module | None = None,
    dataset: Dataset | None = None,
    overwrite: bool = False,
    callbacks: Sequence[Any] = (),
) -> list[Record]:
    """Run to the end, write the report, and return the records, one a round.

    A model that is given ends with the trained parameters. With ``overwrite`` a run that the folder holds is replaced.
    """
    job = Run(config, out, model=model, dataset=dataset, overwrite=overwrite, callbacks=callbacks)
    return _finish(job, model)


def resume(
    folder: str | Path,
    *,
    model: nn.Module | None = None,
    dataset: Dataset | None = None,
    callbacks: Sequence[Any] = (),
) -> list[Record]:
    """Go on with a run where it stopped; give the same model and data where they were your own."""
    job = Run(read_config(folder), folder, model=model, dataset=dataset, resume=True, callbacks=callbacks)
    return _finish(job, model)


def read_config(folder: str | Path) -> RunConfig:
    """Read the configuration of a run folder."""
    return RunFolder(folder).config()


def _finish(job: Run, model: nn.Module | None) -> list[Record]:
    from feddrop.report import write_report

    for _ in job:
        pass
    if model is not None:
        params.load_into(model, job.params)
    write_report(job.folder)
    return job.records


def method_factory(config: RunConfig) -> MethodFactory:
    """Return the factory that a configuration names."""
    if config.method == "feddst":
        sparsity = read_rates(config.rate, config.data.devices)[0]
        return partial(
            feddst, settings=config.feddst, train_config=config.train, rounds=config.rounds, sparsity=sparsity
        )
    if config.method in WINDOWS:
        return partial(
            windows, name=config.method, subnet=config.subnet, train_config=config.train, rounds=config.rounds
        )
    return partial(
        feddrop,
        subnet=config.subnet,
        train_config=config.train,
        rounds=config.rounds,
        rule=config.aggregation.rule,
        factor=config.aggregation.factor,
    )


def left_out(device: int) -> DeviceRecord:
    """Return the entry of a device that the allocator's policy left out of a round."""
    return DeviceRecord(device=device, rate=1.0, share=0.0, status="left out")


def _fingerprint(dataset: Dataset) -> int:
    crc = 0
    for tensor in (dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y):
        crc = zlib.crc32(tensor.contiguous().numpy().data, crc)
    return crc
