"""A run from start to end: it saves after every round, and resumes to the same bits.

A run folder holds ``config.toml``, ``run.json`` (what was trained, and how to repeat it), ``metrics.jsonl`` (a line a
round), ``checkpoints/`` and ``report.html``.
"""

from __future__ import annotations

import copy
import json
import math
import platform
import time
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from feddrop import checkpoints, data, flops, models, params
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
from feddrop.rounds import DeviceRound, Executor, run_round
from feddrop.seeds import derive

Record = dict[str, Any]
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
        command: str = "",
    ) -> None:
        self.config, self.folder = config if resume else config.located(), Path(out)
        self._check_folder(resume)
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
        with checkpoints.locked(self.folder):
            self._describe(command, resume)
            if resume:
                self._load()

    @property
    def records(self) -> list[Record]:
        """The records of the rounds done so far."""
        return checkpoints.read_lines(self.folder / "metrics.jsonl")

    def __iter__(self) -> Iterator[Record]:
        if self.round >= self.config.rounds:
            return
        with checkpoints.locked(self.folder):
            if len(self.records) != self.round:
                raise RunError(f"another process went on with {self.folder} meanwhile. Resume it again.")
            executor = self._executor(self._factory)
            try:
                while self.round < self.config.rounds:
                    yield self._one_round(executor)
            finally:
                executor.close()

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
        self._save(record)
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
            {
                "device": d.device,
                "rate": d.rate,
                "share": decision.shares.get(d.device),
                "samples": d.samples,
                "push_bytes": d.push_bytes,
                "pull_bytes": d.pull_bytes,
                **costs.get(d.device, {"latency_s": None, "energy_j": None}),
                "binding": decision.binding.get(d.device),
                "loss": d.loss,
                "status": d.status,
            }
            for d in devices
        ]
        return {
            "round": self.round,
            "train_loss": sum(d.samples * (d.loss or 0.0) for d in good) / samples,
            "test_loss": _finite(test_loss),
            "test_accuracy": test_accuracy,
            "push_bytes": sum(device.push_bytes for device in devices),
            "pull_bytes": sum(device.pull_bytes for device in devices),
            "latency_s": max(cost["latency_s"] for cost in costs.values()) if costs else None,
            "energy_j": sum(cost["energy_j"] for cost in costs.values()) if costs else None,
            "wall_s": round(wall_s, 4),
            "deadline_s": decision.deadline_s,
            "objective": decision.objective,
            "devices": entries + [left_out(device) for device in decision.left_out],
        }

    def _save(self, record: Record) -> None:
        """Save metrics first: a kill in between costs this round, which is then computed again to the same bits."""
        checkpoints.append_line(self.folder / "metrics.jsonl", record)
        groups = {"params": self.params, "state": self.state}
        checkpoints.save_checkpoint(self.folder / "checkpoints", self.round, groups)

    def _load(self) -> None:
        loaded = checkpoints.load_checkpoint(self.folder / "checkpoints")
        if loaded is not None:
            self.round, groups = loaded
            self.params = self._checked(groups.get("params", {}), self.params)
            self.state = self._checked(groups.get("state", {}), self.state)
        elif len(self.records) > 1:  # a kill may come between the first record and the first checkpoint
            raise RunError(
                f"{self.folder} has records of {len(self.records)} rounds, but no checkpoint that can be read. Restore "
                "its checkpoints, or start a new run."
            )
        checkpoints.cut_lines(self.folder / "metrics.jsonl", self.round)

    def _checked(self, loaded: Params, like: Params) -> Params:
        """Return the tensors of a checkpoint in the order of these, after a look at names, types and shapes."""

        def fits(name: str) -> bool:
            one, other = loaded[name], like[name]  # what starts empty is a list that may have grown
            return one.dtype == other.dtype and (one.shape == other.shape or (other.shape == (0,) and one.dim() == 1))

        if set(loaded) != set(like) or not all(map(fits, like)):
            raise RunError(
                f"the checkpoint in {self.folder} belongs to another network or method. Give the same model."
            )
        return {name: loaded[name] for name in like}

    def _check_folder(self, resume: bool) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise RunError(f"{self.folder} is a file. Name a folder for the run.")
        if not resume and self.folder.exists() and any(not p.name.startswith(".") for p in self.folder.iterdir()):
            raise RunError(f"{self.folder} is not empty. Name a new folder, or `feddrop resume {self.folder}`.")

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

    def _describe(self, command: str, resume: bool) -> None:
        """Write ``config.toml`` and ``run.json``, or on resume check that network and data are those of the start."""
        path = self.folder / "run.json"
        whole = list(self.model.parameters())
        counts = data.class_counts(self.dataset.train_y.numpy(), self.parts, self.dataset.num_classes)
        about = {
            "feddrop": _version(),
            "command": command or ("" if self.own else "feddrop run config.toml"),
            "network": type(self.model).__name__ if "network" in self.own else self.config.model.name,
            "data": self.dataset.name,
            "own": self.own,
            "parameters": sum(p.numel() for p in whole),
            "weights": sum(p.numel() for p in whole if p.ndim >= 2),
            "forward_flops": flops.forward_flops(self.model, self.dataset.input_shape),
            "samples": [len(part) for part in self.parts],
            "class_names": list(self.dataset.class_names),
            "class_counts": counts.tolist(),
            "budget_j": self.control.budgets(),
            "data_crc32": _fingerprint(self.dataset),
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "cpu": platform.processor() or platform.machine(),
        }
        if resume and path.exists():
            try:
                before = dict(json.loads(path.read_text()))
            except (OSError, ValueError, TypeError) as error:
                raise RunError(f"{path} cannot be read: {error}. Restore it, or start a new run.") from None
            for key, what in (("parameters", "network"), ("data_crc32", "data"), ("class_counts", "partition")):
                if before.get(key) != about[key]:
                    raise RunError(f"{self.folder} was started with another {what}. Give the same one to resume it.")
            return
        checkpoints.write_atomically(self.folder / "config.toml", self.config.to_toml().encode())
        checkpoints.write_atomically(path, json.dumps(about, indent=1).encode())


def run(
    config: RunConfig, out: str | Path, *, model: nn.Module | None = None, dataset: Dataset | None = None
) -> list[Record]:
    """Run to the end, write the report, and return the records, one a round.

    A model that is given ends with the trained parameters.
    """
    job = Run(config, out, model=model, dataset=dataset)
    return _finish(job, model)


def resume(folder: str | Path, *, model: nn.Module | None = None, dataset: Dataset | None = None) -> list[Record]:
    """Go on with a run where it stopped; give the same model and data where they were your own."""
    job = Run(read_config(folder), folder, model=model, dataset=dataset, resume=True)
    return _finish(job, model)


def read_config(folder: str | Path) -> RunConfig:
    """Read the configuration of a run folder."""
    path = Path(folder) / "config.toml"
    if not path.exists():
        raise RunError(f"{folder} holds no config.toml: it is not a run folder. Name one that `feddrop run` made.")
    return RunConfig.from_file(path)


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


def left_out(device: int) -> Record:
    """Return the entry of a device that the allocator's policy left out of a round."""
    entry: Record = dict.fromkeys(("latency_s", "energy_j", "binding", "loss"))
    entry |= dict.fromkeys(("samples", "push_bytes", "pull_bytes"), 0)
    return {"device": device, "rate": 1.0, "share": 0.0, "status": "left out", **entry}


def _fingerprint(dataset: Dataset) -> int:
    crc = 0
    for tensor in (dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y):
        crc = zlib.crc32(tensor.contiguous().numpy().data, crc)
    return crc


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _version() -> str:
    from importlib.metadata import version

    return version("feddrop")
