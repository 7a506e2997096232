"""A run from start to end: it saves after every round, and resumes to the same bits.

A run folder holds ``config.toml``, ``run.json`` (what was trained, and how to repeat it), ``metrics.jsonl`` (a line a
round), ``checkpoints/`` and ``report.html``.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from feddrop.config import RunConfig
from feddrop.errors import ConfigError, RunError, shortened
from feddrop.executors import Executor
from feddrop.learning.guard import Guard
from feddrop.learning.server import first_state, server_step
from feddrop.methods.method import Method, State, checked_state
from feddrop.simulation.callbacks import CallbackList, named_callbacks
from feddrop.simulation.preparation import NAMES, Brought, check_arguments, prepare
from feddrop.simulation.rates import Decision
from feddrop.simulation.round import DeviceRound, run_round
from feddrop.storage import DeviceRecord, RoundRecord, RunFolder
from feddrop.storage.checkpoints import Checkpoint
from feddrop.storage.memories import Memories
from feddrop.subnets import parameters
from feddrop.subnets.parameters import Params

log = logging.getLogger("feddrop")

Record = RoundRecord
"""One line of ``metrics.jsonl``."""


class Run:
    """A run under way. Iterate over it: each round is saved, then its record is given.

    Stop whenever you like; what has been given has been saved. ``feddrop resume`` goes on from there.

    Args:
        config: what to run.
        out: the run folder: new or empty, unless resuming.
        resume: whether to go on with what the folder holds.
        overwrite: whether a run that the folder holds may be overwritten.
        callbacks: who hears of every round, beside those that ``config.callbacks`` names; see ``callbacks.py``.
        command: how the run was started, for the report.
        **brought: what you bring yourself: model, dataset, parts, method, executor, loss, metrics; see
            :class:`feddrop.simulation.preparation.Brought`.

    Example:
        >>> import feddrop
        >>> config = feddrop.RunConfig.from_toml("data = { devices = 2, train_limit = 60 }", ["rounds=2"])
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
        overwrite: bool = False,
        callbacks: Sequence[Any] = (),
        command: str = "",
        **brought: Unpack[Brought],
    ) -> None:
        check_arguments(brought, (*NAMES, "callbacks", "command", "overwrite", "resume"))
        if not isinstance(config, RunConfig):
            raise ConfigError(
                f"config is {shortened(config)}; it must be a feddrop.RunConfig: RunConfig.from_file(path) reads one."
            )
        if resume and overwrite:
            raise ConfigError("resume and overwrite are both given: a run is gone on with, or overwritten. Remove one.")
        self.config, self.folder = config.located(), Path(out)
        self._disk = RunFolder(out)
        if resume:
            _check_brought(self._disk.begun(), brought)
            self._disk.check_config(self.config)
        else:  # now, before any work; and again under the lock
            self._disk.check_free(overwrite=overwrite)
        self._callbacks = CallbackList(callbacks, first=named_callbacks(config.callbacks))
        self.prepared = prepare(self.config, brought)
        self._method = self.prepared.method
        start = parameters.from_model(self.prepared.model)
        self.state: State = checked_state(self._method.init(start), "init")
        _check_metrics(brought.get("metrics") or {}, self._method, self.state)
        self.params: Params = self._settled(start, self.state)
        self._step: Params = first_state(config.server, self.params)
        self._learned = [name for name, p in self.prepared.model.named_parameters() if p.requires_grad]
        self._guard = Guard(clip=config.server.clip, krum=config.server.krum)
        self._memories = _Remembered(self._disk.memories)
        self.round = 0
        begun = {name: f"{tensor.dtype} {list(tensor.shape)}" for name, tensor in self.state.items()}
        facts = {**self.prepared.facts(command), "state": begun}
        with self._disk.locked():
            if resume:
                self._go_back_to(self._disk.reopen(self.config, facts))
            else:
                self._disk.begin(self.config, facts, overwrite=overwrite)
            self._id = self.about.get("id")

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
            if self.about.get("id") != self._id:
                raise RunError(f"another run was started in {self.folder} meanwhile. Start this one in another folder.")
            if len(self.records) != self.round:
                raise RunError(f"another process went on with {self.folder} meanwhile. Resume it again.")
            executor = self.prepared.start_executor()
            try:
                with closing(executor):
                    self._callbacks.on_start(self)
                    while self.round < self.config.rounds:
                        record = self._one_round(executor)
                        self._callbacks.on_round(record)
                        yield record
            finally:
                self._callbacks.on_end(self)

    def _one_round(self, executor: Executor) -> Record:
        """Run the next round and save it. Until it is saved, the run stays as it was after the round before."""
        config, started, round_ = self.config, time.perf_counter(), self.round + 1
        guard = copy.copy(self._guard)
        decision = self.prepared.rates.decide(round_)
        result = run_round(
            self._method,
            executor,
            self.params,
            self.state,
            round_=round_,
            rates=decision.rates,
            seed=config.seed,
            dtype=decision.wires or config.execution.dtype,
            num_samples=self.prepared.samples,
            memories=self._memories,
            guard=guard,
            min_devices=config.server.min_devices,
        )
        state = dict(sorted(result.state.items()))  # a file does not keep their order
        before = self._settled(self.params, state)  # what was pruned is no gradient
        after, step = server_step(config.server, self._step, before, result.params, self._learned)
        after = self._settled(after, state)
        due = round_ % config.eval_every == 0 or round_ == config.rounds
        measured = executor.evaluate(after) if due else {}
        record = self._record(decision, result.devices, measured, state, time.perf_counter() - started)
        self._disk.save(record, _groups(after, state, step, guard))
        self.round, self.params, self.state, self._step, self._guard = round_, after, state, step, guard
        if record.diverged:
            said = "round %d: the test loss is %.3g: training diverged. Lower train.lr."
            log.warning(said, record.round, record.test_loss)
        return record

    def _settled(self, whole: Params, state: State) -> Params:
        return self._method.settle(state, whole) if self._method.settle else whole

    def _record(
        self,
        decision: Decision,
        devices: list[DeviceRound],
        measured: Mapping[str, float],
        state: State,
        wall_s: float,
    ) -> Record:
        """Return what the next round left behind."""
        good = [device for device in devices if device.loss is not None]
        samples = sum(device.num_samples for device in good)
        clocked = {d.device: {"latency_s": d.elapsed} for d in devices if d.elapsed}
        costs = self.prepared.rates.costs(decision, devices) or clocked
        joules = [cost.get("energy_j") for cost in costs.values()]
        entries = [
            DeviceRecord(
                device=d.device,
                rate=d.rate,
                share=decision.shares.get(d.device),
                samples=d.num_samples,
                push_bytes=d.push_bytes,
                pull_bytes=d.pull_bytes,
                binding=decision.binding.get(d.device),
                wire=decision.wires.get(d.device),
                tx_power_w=decision.powers.get(d.device),
                cpu_hz=decision.clocks.get(d.device),
                loss=d.loss,
                status=d.status,
                suspicious=d.suspicious or None,
                **costs.get(d.device, {}),
            )
            for d in devices
        ]
        own = {name: value for name, value in measured.items() if name not in ("loss", "accuracy")}
        return RoundRecord(
            round=self.round + 1,
            train_loss=sum(d.num_samples * (d.loss or 0.0) for d in good) / samples,
            test_loss=measured.get("loss"),
            test_accuracy=measured.get("accuracy"),
            push_bytes=sum(device.push_bytes for device in devices),
            pull_bytes=sum(device.pull_bytes for device in devices),
            latency_s=max(cost["latency_s"] for cost in costs.values()) if costs else None,
            energy_j=None if None in joules or not joules else sum(filter(None, joules)),
            wall_s=round(wall_s, 4),
            deadline_s=decision.deadline_s,
            objective=decision.objective,
            metrics={**own, **(self._method.notes(state) if self._method.notes else {})},
            devices=(*entries, *map(left_out, decision.left_out)),
        )

    def _go_back_to(self, found: Checkpoint | None) -> None:
        """Go on from a checkpoint, or from the start."""
        if found is None:
            return
        kept, like = found.groups, _groups(self.params, self.state, self._step, self._guard)
        now = {name: self._checked(kept.get(name, {}), like[name]) for name in ("params", "server", "guard")}
        self.round, self.params, self._step = found.round, now["params"], now["server"]
        self._guard.median = float(now["guard"]["median"])
        self.state = dict(sorted(kept.get("state", {}).items()))  # names come and go; that it began alike is a fact

    def _checked(self, loaded: Mapping[str, Tensor], like: Params) -> Params:
        """Return the tensors of a checkpoint in the order of these, after a look at names, types and shapes."""
        found, due = ({name: (t.dtype, t.shape) for name, t in tensors.items()} for tensors in (loaded, like))
        if found != due:
            raise RunError(f"the checkpoint in {self.folder} belongs to another network. Give the same model.")
        return {name: loaded[name] for name in like}


def _groups(params: Params, state: State, step: Params, guard: Guard) -> dict[str, dict[str, Tensor]]:
    """Return all that is needed to go on after a round; what devices remember is saved beside it."""
    median = {"median": torch.tensor([guard.median], dtype=torch.float64)}
    return {"params": params, "state": state, "server": step, "guard": median}


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
        elif self._kept.get(device):
            self._kept.put(round_, device, {})  # it forgets


def run(
    config: RunConfig,
    out: str | Path,
    *,
    callbacks: Sequence[Any] = (),
    overwrite: bool = False,
    **brought: Unpack[Brought],
) -> list[Record]:
    """Run to the end, write the report, and return the records, one a round.

    Args:
        config: what to run.
        out: the run folder, new or empty.
        callbacks: who hears of every round.
        overwrite: whether a run that the folder holds may be overwritten.
        **brought: what you bring yourself, as :class:`Run` takes it: model, dataset, parts, method, executor, loss,
            metrics. A network that is given stays as it is; :func:`load_model` gives the trained one.

    Example:
        >>> import feddrop
        >>> config = feddrop.RunConfig.from_toml("data = { devices = 2, train_limit = 60 }", ["rounds=2"])
        >>> records = feddrop.run(config, "runs/first")
        >>> [record.round for record in records]
        [1, 2]
    """
    return _finish(Run(config, out, callbacks=callbacks, overwrite=overwrite, **brought))


def resume(folder: str | Path, *, callbacks: Sequence[Any] = (), **brought: Unpack[Brought]) -> list[Record]:
    """Go on with a run where it stopped; give what was your own again.

    Example:
        >>> import feddrop
        >>> config = feddrop.RunConfig.from_toml("data = { devices = 2, train_limit = 60 }", ["rounds=2"])
        >>> first = next(iter(feddrop.Run(config, "runs/stopped")))
        >>> len(feddrop.resume("runs/stopped"))
        2
    """
    return _finish(Run(read_config(folder), folder, resume=True, callbacks=callbacks, **brought))


def read_config(folder: str | Path) -> RunConfig:
    """Read the configuration of a run folder."""
    return RunFolder(folder).config()


def _check_brought(about: Mapping[str, Any], brought: Brought) -> None:
    """Raise unless what a run was started with is brought again, and no more; the way it is run may be another."""
    if not isinstance(own := about.get("own"), list):  # a run of an older version has fewer facts
        return
    now = {argument: brought.get(argument) is not None for argument in NAMES if argument != "executor"}
    missing = [argument for argument, given in now.items() if not given and NAMES[argument] in own]
    more = [argument for argument, given in now.items() if given and NAMES[argument] not in own]
    if more:
        raise RunError(
            f"the run was started without {' and '.join(more)} of your own: resume it without, or start a new run."
        )
    if missing:
        given = ", ".join(f"{argument}=..." for argument in missing)
        raise RunError(
            f"the run was started with {' and '.join(missing)} of your own: feddrop.resume(folder, {given})."
        )


def _check_metrics(own: Collection[str], method: Method, state: State) -> None:
    """Raise where a metric of the user's has the name of something that the method notes: one of them would vanish."""
    for name in method.notes(state) if own and method.notes else ():
        if name in own:
            raise ConfigError(f"metrics has {name!r}, which the method notes itself. Give it another name.")


def _finish(job: Run) -> list[Record]:
    from feddrop.report import write_report

    for _ in job:
        pass
    write_report(job.folder)
    return job.records


def left_out(device: int) -> DeviceRecord:
    """Return the entry of a device that the allocator's policy left out of a round."""
    return DeviceRecord(device=device, rate=1.0, share=0.0, status="left out")
