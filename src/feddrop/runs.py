"""A run from start to end: it saves after every round, and resumes to the same bits.

A run folder holds ``config.toml``, ``run.json`` (what was trained, and how to repeat it), ``metrics.jsonl`` (a line a
round), ``checkpoints/`` and ``report.html``.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from feddrop import data, flops, models, params
from feddrop.callbacks import Callbacks
from feddrop.callbacks import named as named_callbacks
from feddrop.checkpoints import Checkpoint
from feddrop.config import RunConfig
from feddrop.data import Dataset
from feddrop.device import Samples, Task, check_torch_device
from feddrop.errors import ConfigError, RunError
from feddrop.executors import EXECUTORS, ExecutorFactory
from feddrop.learning.guard import Guard
from feddrop.learning.local import Loss
from feddrop.learning.losses import loss_named, measures_for
from feddrop.learning.server import first_state, server_step
from feddrop.memories import Memories
from feddrop.methods import checked
from feddrop.methods.method import MethodFactory, Setup, State
from feddrop.params import Params
from feddrop.participation import Participation
from feddrop.rates import Decision, GivenRates, RadioRates, Rates, Workload, read_rates
from feddrop.records import DeviceRecord, RoundRecord, RunFolder
from feddrop.rounds import DeviceRound, Executor, run_round
from feddrop.seeds import derive

Record = RoundRecord
"""One line of ``metrics.jsonl``."""

log = logging.getLogger("feddrop")


class Run:
    """A run under way. Iterate over it: each round is saved, then its record is given.

    Stop whenever you like; what has been given has been saved. ``feddrop resume`` goes on from there.

    Args:
        config: what to run.
        out: the run folder: new or empty, unless resuming.
        model: a network of your own in place of ``config.model``, or a function from a seed to one. It is copied.
        dataset: data of your own in place of ``config.data.name``.
        parts: sample numbers of every device, in place of ``config.data.partition``.
        method: a factory ``setup -> Method`` in place of ``config.method``.
        executor: a function ``task -> Executor`` in place of ``config.execution.executor``.
        loss: ``(outputs, targets) -> mean loss`` in place of ``config.train.loss``.
        metrics: what is measured on the test set besides the loss: ``(outputs, targets) -> mean`` by name.
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
        model: nn.Module | Callable[[int], nn.Module] | None = None,
        dataset: Dataset | None = None,
        parts: Sequence[npt.ArrayLike] | None = None,
        method: MethodFactory | None = None,
        executor: ExecutorFactory | None = None,
        loss: Loss | None = None,
        metrics: Mapping[str, Loss] | None = None,
        resume: bool = False,
        overwrite: bool = False,
        callbacks: Sequence[Any] = (),
        command: str = "",
    ) -> None:
        self.config, self.folder = config if resume else config.located(), Path(out)
        self._disk = RunFolder(out)
        if not resume:  # now, before any work; and again under the lock
            self._disk.check_free(overwrite=overwrite)
        self._callbacks = Callbacks([*named_callbacks(config.callbacks), *callbacks])
        check_torch_device(config.execution.device)
        given = {
            "network": model,
            "data": dataset,
            "parts": parts,
            "method": method,
            "executor": executor,
            "loss": loss,
        }
        self.own = [what for what, value in given.items() if value is not None]
        self.dataset = dataset or data.load(
            config.data.name, path=config.data.path or None, train_limit=config.data.train_limit or None
        )
        self.model = self._build_model(model)
        self.parts = data.spread(self.dataset, config.data, seed=derive(config.seed, "partition"), parts=parts)
        self._loss = loss or loss_named(config.train.loss or self.dataset.loss)
        self._measures = {**measures_for(self._loss), **(metrics or {})}
        self._rates = None if config.radio else read_rates(config.given_rate, len(self.parts))
        self._setup = Setup(
            model=self.model,
            example=self.dataset.example,
            rounds=config.rounds,
            train=config.train,
            loss=self._loss,
            rates=self._rates,
            mean=config.server.means(),
        )
        self._factory = method or config.method.factory()
        self._method = checked(self._factory(self._setup), "method")
        if self._setup.blueprint().note():
            log.warning(self._setup.blueprint().note())
        self._flops = flops.count(self.model, self.dataset.example)
        self.control = self._decider()
        self._executor_factory = executor
        start = params.from_model(self.model)
        self.state: State = self._method.init(start)
        self.params: Params = self._settled(start, self.state)
        self._step: Params = first_state(config.server, self.params)
        self._learned = [name for name, p in self.model.named_parameters() if p.requires_grad]
        self._guard = Guard(clip=config.server.clip, krum=config.server.krum)
        self._memories = _Remembered(self._disk.memories)
        self.round = 0
        self.control.decide(1)  # what cannot be decided is an error before anything is written
        for notice in config.notices():
            log.warning(notice)
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
            executor = self._executor()
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
            num_samples=[len(part) for part in self.parts],
            memories=self._memories,
            guard=self._guard,
            min_devices=config.server.min_devices,
        )
        self.state, before = result.state, self._settled(self.params, result.state)  # what was pruned is no gradient
        after, self._step = server_step(config.server, self._step, before, result.params, self._learned)
        self.params = self._settled(after, self.state)
        self.round += 1
        due = self.round % config.eval_every == 0 or self.round == config.rounds
        measured = executor.evaluate(self.params) if due else {}
        record = self._record(decision, result.devices, measured, time.perf_counter() - started)
        self._disk.save(record, self._groups())
        return record

    def _settled(self, whole: Params, state: State) -> Params:
        return self._method.settle(state, whole) if self._method.settle else whole

    def _record(
        self, decision: Decision, devices: list[DeviceRound], measured: Mapping[str, float], wall_s: float
    ) -> Record:
        good = [device for device in devices if device.loss is not None]
        samples = sum(device.num_samples for device in good)
        costs = self.control.costs(decision, devices)
        entries = [
            DeviceRecord(
                device=d.device,
                rate=d.rate,
                share=decision.shares.get(d.device),
                samples=d.num_samples,
                push_bytes=d.push_bytes,
                pull_bytes=d.pull_bytes,
                binding=decision.binding.get(d.device),
                loss=d.loss,
                status=d.status,
                suspicious=d.suspicious or None,
                **costs.get(d.device, {}),
            )
            for d in devices
        ]
        own = {name: value for name, value in measured.items() if name not in ("loss", "accuracy")}
        return RoundRecord(
            round=self.round,
            train_loss=sum(d.num_samples * (d.loss or 0.0) for d in good) / samples,
            test_loss=measured.get("loss"),
            test_accuracy=measured.get("accuracy"),
            push_bytes=sum(device.push_bytes for device in devices),
            pull_bytes=sum(device.pull_bytes for device in devices),
            latency_s=max(cost["latency_s"] for cost in costs.values()) if costs else None,
            energy_j=sum(cost["energy_j"] for cost in costs.values()) if costs else None,
            wall_s=round(wall_s, 4),
            deadline_s=decision.deadline_s,
            objective=decision.objective,
            metrics={**own, **(self._method.notes(self.state) if self._method.notes else {})},
            devices=(*entries, *map(left_out, decision.left_out)),
        )

    def _groups(self) -> dict[str, dict[str, Tensor]]:
        """Return all that is needed to go on; what devices remember is saved beside it."""
        guard = {"median": torch.tensor([self._guard.median], dtype=torch.float64)}
        return {"params": self.params, "state": self.state, "server": self._step, "guard": guard}

    def _go_back_to(self, found: Checkpoint | None) -> None:
        """Go on from a checkpoint, or from the start."""
        if found is None:
            return
        now = {name: self._checked(found.groups.get(name, {}), like) for name, like in self._groups().items()}
        self.round, self.params, self.state, self._step = found.round, now["params"], now["state"], now["server"]
        self._guard.median = float(now["guard"]["median"])

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

    def _build_model(self, given: nn.Module | Callable[[int], nn.Module] | None) -> nn.Module:
        """Return a network of our own: the caller's is never trained."""
        if isinstance(given, nn.Module):
            return copy.deepcopy(given)
        if given is None:
            return models.build(self.config.model, self.dataset, self.config.seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(self.config.seed, "init"))
            made = given(self.config.seed)
        if not isinstance(made, nn.Module):
            raise ConfigError(
                f"model is a function that gives a {type(made).__name__}; it must give a torch.nn.Module."
            )
        return copy.deepcopy(made)

    def _decider(self) -> Rates:
        """Return who decides the rates: the cell where there is a radio, else the user."""
        config = self.config
        chosen = Participation(config.participation, len(self.parts), config.seed)
        if config.radio is None:
            return GivenRates(self._rates or (), chosen)
        if self._flops.note():
            log.warning(self._flops.note())

        def flops_of(kept: Mapping[str, int] | None) -> tuple[float, float]:
            """Return forward and training FLOPs: the paper's 3 x forward, or what was counted if that is more."""
            found = self._flops.of(kept or {})
            return found.forward, max(3.0 * found.forward, found.training)

        work = Workload(
            samples=[len(part) * config.train.epochs for part in self.parts],
            parameters=models.count_parameters(self.model),
            flops=flops_of,
            sizes=self._method.sizes,
            dtype=config.execution.wire,
        )
        fixed = read_rates(config.given_rate, len(self.parts)) if config.radio.scheme == "fixed" else None
        return RadioRates(config.radio, work, chosen, config.seed, fixed)

    def _executor(self) -> Executor:
        execution = self.config.execution
        dataset = self.dataset
        task = Task(
            setup=self._setup,
            factory=self._factory,
            samples=Samples(dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y),
            parts=[torch.from_numpy(part) for part in self.parts],
            measures=self._measures,
            threads=execution.threads,
            torch_device=execution.device,
        )
        if self._executor_factory is not None:
            return self._executor_factory(task)
        return EXECUTORS[execution.executor](task, execution)

    def _facts(self, command: str) -> dict[str, Any]:
        """Return what ``run.json`` tells of network and data; on resume they must be those of the start."""
        weights = list(self.model.parameters())
        counts = data.class_counts(self.dataset.train_y.numpy(), self.parts, self.dataset.num_classes)
        return {
            "command": command or ("" if self.own else "feddrop run config.toml"),
            "network": type(self.model).__name__ if "network" in self.own else self.config.model.name,
            "data": self.dataset.name,
            "own": self.own,
            "shapes": {
                "input_shapes": self.dataset.input_shapes,
                "target_shape": self.dataset.target_shape,
                "num_classes": self.dataset.num_classes,
                "vocabulary": self.dataset.vocabulary,
            },
            "parameters": sum(p.numel() for p in weights),
            "weights": sum(p.numel() for p in weights if params.is_weight(p)),
            "forward_flops": int(self._flops.whole.forward),
            "samples": [len(part) for part in self.parts],
            "class_names": list(self.dataset.class_names),
            "class_counts": counts.tolist() if self.dataset.class_names else None,
            "budget_j": self.control.budgets(),
            "data_crc32": self.dataset.crc32(),
        }


class _Remembered:
    """What devices remember, as the bytes that an executor moves."""

    def __init__(self, kept: Memories) -> None:
        self._kept = kept

    def get(self, device: int) -> bytes:
        found = self._kept.get(device)
        return found["memory"].numpy().tobytes() if found else b""

    def put(self, round_: int, device: int, memory: bytes) -> None:
        if memory:
            self._kept.put(round_, device, {"memory": torch.frombuffer(bytearray(memory), dtype=torch.uint8)})


def run(config: RunConfig, out: str | Path, **given: Any) -> list[Record]:
    """Run to the end, write the report, and return the records, one a round.

    Args:
        config: what to run.
        out: the run folder, new or empty.
        **given: what you bring yourself, as :class:`Run` takes it: model, dataset, parts, method, executor, loss,
            metrics, callbacks, overwrite. A network that is given stays as it is; :func:`load_model` gives the
            trained one.
    """
    return _finish(Run(config, out, **given))


def resume(folder: str | Path, **given: Any) -> list[Record]:
    """Go on with a run where it stopped; give what was your own again."""
    return _finish(Run(read_config(folder), folder, resume=True, **given))


def read_config(folder: str | Path) -> RunConfig:
    """Read the configuration of a run folder."""
    return RunFolder(folder).config()


def _finish(job: Run) -> list[Record]:
    from feddrop.report import write_report

    for _ in job:
        pass
    write_report(job.folder)
    return job.records


def left_out(device: int) -> DeviceRecord:
    """Return the entry of a device that the allocator's policy left out of a round."""
    return DeviceRecord(device=device, rate=1.0, share=0.0, status="left out")
