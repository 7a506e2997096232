"""The server's state between rounds, and the step from one round to the next.

A round is a function of the server's state and returns a new one, so a round that fails leaves the old one unchanged.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from feddrop.errors import RunError
from feddrop.executors import Executor
from feddrop.learning import server as optimizers
from feddrop.learning.guard import Guard
from feddrop.methods.method import State
from feddrop.radio.plan import ArrayState
from feddrop.simulation import recording
from feddrop.simulation.blocks import run_in_blocks
from feddrop.simulation.clock import VirtualClock
from feddrop.simulation.device import Root
from feddrop.simulation.exchange import MemoryStore
from feddrop.simulation.flights import Flight, load_flights, save_flights
from feddrop.simulation.preparation import Prepared
from feddrop.simulation.round import Intake, run_round
from feddrop.simulation.sizes import measure_sizes
from feddrop.simulation.spent import with_round
from feddrop.simulation.trial import unused_mean
from feddrop.simulation.untrained import Untrained
from feddrop.simulation.virtual import VirtualStep, first_clock, virtual_step
from feddrop.storage import RoundRecord
from feddrop.storage.checkpoints import Checkpoint
from feddrop.storage.records import UNTRAINED
from feddrop.storage.totals import Totals
from feddrop.subnets.parameters import Params


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerState:
    """What the server holds after a round; device memories are stored beside it."""

    round: int  # rounds done so far
    params: Params  # the full network
    state: State  # the method's state
    step: Params  # the state of the server's optimizer
    guard: Guard  # watches the updates; it knows the median size of the last round's
    untrained: Untrained  # the parameters that no device has held so far
    cell: ArrayState = field(default_factory=dict)  # what the scheme and the outcome of the cell remember
    spent: Totals = field(default_factory=Totals)  # seconds, joules and the best accuracy so far
    clock: VirtualClock | None = None  # the virtual clock; None under the clock ``"deadline"``
    under_way: Mapping[int, Flight] = field(default_factory=dict)  # the jobs under way in it

    def groups(self) -> dict[str, Mapping[str, Tensor]]:
        """Return the tensors that a checkpoint saves, by group."""
        return {
            "params": self.params,
            "state": self.state,
            "server": self.step,
            "guard": self.guard.tensors(),
            UNTRAINED: self.untrained.tensors(),
            "cell": {name: torch.from_numpy(array) for name, array in self.cell.items()},
            "spent": {"spent": torch.tensor(self.spent, dtype=torch.float64)},
            "clock": save_flights(self.clock, self.under_way) if self.clock else {},
        }

    def returned_to(self, found: Checkpoint, folder: Path, ready: Prepared) -> ServerState:
        """Return the state saved in a checkpoint; ``self`` is the initial state."""
        kept, like = found.groups, self.groups()
        missing = self.state.keys() - kept.get("state", {}).keys()
        if missing and ready.custom.method is None:  # a custom method may drop a part of its state
            parts = ", ".join(sorted(missing))
            raise RunError(
                f"the checkpoint in {folder} lacks the method's state: {parts}. Resume with --back 1, or start again."
            )
        clock = self.clock.copied() if self.clock else None
        names = ("params", "server", "spent")
        now = {name: _checked(kept.get(name, {}), like[name], folder) for name in names}
        return ServerState(
            round=found.round,
            params=now["params"],
            state=dict(sorted(kept.get("state", {}).items())),  # its names may change; run.json has the first ones
            step=now["server"],
            guard=self.guard.returned_to(kept.get("guard", {})),
            untrained=self.untrained.return_to(kept.get(UNTRAINED, {})),
            cell={name: tensor.numpy() for name, tensor in sorted(kept.get("cell", {}).items())},
            spent=Totals(*now["spent"]["spent"].tolist()),
            clock=clock,
            under_way=load_flights(clock, ready.method, kept.get("clock", {})) if clock else {},
        )

    def intake(self, ready: Prepared, memories: MemoryStore, lost: Mapping[int, str] = MappingProxyType({})) -> Intake:
        """Return the server's side of the next round; updates of devices that are ``lost`` are not merged."""
        return Intake(
            ready.method,
            self.params,
            self.state,
            self.round + 1,
            memories=memories,
            num_samples=ready.samples,
            guard=self.guard,
            min_devices=ready.config.server.min_devices,
            frozen=ready.frozen,
            untrained=self.untrained,
            lost=lost,
        )


def _checked(loaded: Mapping[str, Tensor], like: Mapping[str, Tensor], folder: Path) -> Params:
    """Return the tensors of a checkpoint in the order of ``like``, after comparing names, dtypes and shapes."""
    found, expected = ({name: (t.dtype, t.shape) for name, t in tensors.items()} for tensors in (loaded, like))
    if found != expected:
        raise RunError(f"the checkpoint in {folder} belongs to another network. Pass the same model.")
    return {name: loaded[name] for name in like}


def first_state(ready: Prepared) -> ServerState:
    """Return what the server holds before the first round."""
    config, server, radio = ready.config, ready.config.server, ready.config.radio
    params = _settled(ready, ready.params, ready.state)
    sparse = ready.method.settle is not None  # what no device holds is not part of the network
    return ServerState(
        round=0,
        params=params,
        state=ready.state,
        step=optimizers.first_state(server, params),
        guard=Guard(server, seed=config.seed, root=Root(ready.task) if server.mean == "fltrust" else None),
        untrained=Untrained({}, 0) if sparse else Untrained.of(ready.task.setup.model),
        clock=first_clock(config, radio, len(ready.samples)) if radio and config.clock.kind != "deadline" else None,
    )


def next_round(
    ready: Prepared, server: ServerState, executor: Executor, memories: MemoryStore
) -> tuple[ServerState, RoundRecord]:
    """Run the round after ``server``: plan, exchange, merge, step, evaluate; return the new state and the record."""
    config, started, round_ = ready.config, time.perf_counter(), server.round + 1
    server = replace(server, guard=copy.copy(server.guard), untrained=copy.deepcopy(server.untrained))
    step: VirtualStep | None = None
    if server.clock is not None:
        step = virtual_step(ready, server, server.clock, executor, memories)
        plan, result = step.plan, step.result
    else:
        plan = ready.scheme.decide(round_, server.cell, server.params)
        intake = server.intake(ready, memories, lost=plan.lost)
        given = intake, executor, plan.rates, config.seed, plan.dtypes or config.execution.dtype
        if size := config.execution.merge_block:
            result = run_in_blocks(*given, means=ready.task.setup.means, size=size)
        else:
            result = run_round(*given)
    merged = any(device.loss is not None for device in result.devices)  # else nothing was merged
    if round_ == 1 and merged and config.server.weighs and not ready.task.setup.means.count:
        raise RunError(unused_mean(config.server))
    after = stepped(ready, server, result.params, result.state) if merged else replace(server, round=round_)
    after = replace(after, cell=plan.state)
    costs = ready.scheme.costs(plan, result.devices) if step is None else {}
    record = recording.round_record(round_, plan, result.devices, costs)
    if step is not None:
        record = step.recorded(record, server.clock.events.now if server.clock else 0.0)
        after = replace(after, clock=step.clock, under_way=step.under_way, cell=step.cell)
    return _evaluated(ready, after, record, executor, started)


def _evaluated(
    ready: Prepared, server: ServerState, record: RoundRecord, executor: Executor, started: float
) -> tuple[ServerState, RoundRecord]:
    """Evaluate the network if it is due, and complete the record: what was spent, measured and noted."""
    seconds = server.spent.seconds + (record.latency_s or 0.0)
    if server.clock is not None:
        seconds = server.clock.events.now
    spent = server.spent.after(seconds, record.energy_j)
    server = replace(server, spent=spent, cell=with_round(server.cell, record, seconds))
    due = record.round % ready.config.eval_every == 0 or server.spent.end(ready.config, record.round)
    measured = executor.evaluate(server.params) if due else {}
    notes = dict(ready.method.notes(server.state)) if ready.method.notes else {}
    notes |= measure_sizes(ready, server.state, server.params, record.round) if due else {}
    notes |= {UNTRAINED: server.untrained.share} if server.untrained.left else {}
    server = replace(server, spent=spent.reaching(measured.get("val_accuracy", measured.get("accuracy"))))
    time_s = None if record.latency_s is None else seconds
    record = recording.with_results(record, measured, notes, time.perf_counter() - started)
    return server, replace(record, time_s=time_s)


def stepped(ready: Prepared, server: ServerState, merged: Params, state: State) -> ServerState:
    """Return the state after the server's step from its network to the merged one."""
    state = dict(sorted(state.items()))  # files do not keep the order of names
    learned = [name for name, p in ready.task.setup.model.named_parameters() if p.requires_grad]
    before = _settled(ready, server.params, state)  # pruned weights are not part of the server's gradient
    after, step = optimizers.server_step(ready.config.server, server.step, before, merged, learned)
    after = _settled(ready, after, state)
    return replace(server, round=server.round + 1, params=after, state=state, step=step)


def _settled(ready: Prepared, params: Params, state: State) -> Params:
    settle = ready.method.settle
    return settle(state, params) if settle else params
