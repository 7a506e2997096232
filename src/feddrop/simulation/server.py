"""What the server holds between rounds, and one round from it to the next.

A round is a function of the server's state: it returns a new one, so a round that fails leaves the old one as it was.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from feddrop.errors import RunError
from feddrop.executors import Executor
from feddrop.learning import server as optimizers
from feddrop.learning.guard import Guard
from feddrop.methods.method import State
from feddrop.radio.plan import ArrayState
from feddrop.simulation import preflight, recording
from feddrop.simulation.device import Root
from feddrop.simulation.memory import MemoryStore
from feddrop.simulation.preparation import Prepared
from feddrop.simulation.round import run_round
from feddrop.simulation.sizes import measure_sizes
from feddrop.simulation.untrained import Untrained
from feddrop.storage import RoundRecord
from feddrop.storage.checkpoints import Checkpoint
from feddrop.storage.records import UNTRAINED
from feddrop.subnets.parameters import Params


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerState:
    """What the server holds after a round; device memories are stored beside it.

    Attributes:
        round: rounds done so far.
        params: the full network.
        state: the method's state.
        step: the state of the server's optimizer.
        guard: watches the updates; it knows the median size of the last round's.
        untrained: the parameters that no device has held so far.
        cell: what the scheme and the outcome of the cell remember.
    """

    round: int
    params: Params
    state: State
    step: Params
    guard: Guard
    untrained: Untrained
    cell: ArrayState = field(default_factory=dict)

    def groups(self) -> dict[str, Mapping[str, Tensor]]:
        """Return what a checkpoint holds to continue from."""
        median = {"median": torch.tensor([self.guard.median], dtype=torch.float64)}
        return {
            "params": self.params,
            "state": self.state,
            "server": self.step,
            "guard": median,
            UNTRAINED: self.untrained.tensors(),
            "cell": {name: torch.from_numpy(array) for name, array in self.cell.items()},
        }

    def returned_to(self, found: Checkpoint, folder: Path) -> ServerState:
        """Return the state of a checkpoint; ``self`` is that of the start."""
        kept, like = found.groups, self.groups()
        now = {name: _checked(kept.get(name, {}), like[name], folder) for name in ("params", "server", "guard")}
        guard = copy.copy(self.guard)
        guard.median = float(now["guard"]["median"])
        return ServerState(
            round=found.round,
            params=now["params"],
            state=dict(sorted(kept.get("state", {}).items())),  # its names may change; run.json has the first ones
            step=now["server"],
            guard=guard,
            untrained=self.untrained.return_to(kept.get(UNTRAINED, {})),
            cell={name: tensor.numpy() for name, tensor in sorted(kept.get("cell", {}).items())},
        )


def _checked(loaded: Mapping[str, Tensor], like: Mapping[str, Tensor], folder: Path) -> Params:
    """Return the tensors of a checkpoint in the order of ``like``, after comparing names, dtypes and shapes."""
    found, expected = ({name: (t.dtype, t.shape) for name, t in tensors.items()} for tensors in (loaded, like))
    if found != expected:
        raise RunError(f"the checkpoint in {folder} belongs to another network. Give the same model.")
    return {name: loaded[name] for name in like}


def first_state(ready: Prepared) -> ServerState:
    """Return what the server holds before the first round."""
    params = _settled(ready, ready.params, ready.state)
    sparse = ready.method.settle is not None  # what no device holds is not part of the network
    return ServerState(
        round=0,
        params=params,
        state=ready.state,
        step=optimizers.first_state(ready.config.server, params),
        guard=Guard(ready.config.server, seed=ready.config.seed, root=Root(ready.task)),
        untrained=Untrained({}, 0) if sparse else Untrained.of(ready.task.setup.model),
    )


def next_round(
    ready: Prepared, server: ServerState, executor: Executor, memories: MemoryStore
) -> tuple[ServerState, RoundRecord]:
    """Run the round after ``server``: plan, exchange, merge, step, evaluate; return the new state and the record."""
    config, started, round_ = ready.config, time.perf_counter(), server.round + 1
    guard, untrained, setup = copy.copy(server.guard), server.untrained.copy(), ready.task.setup
    means = setup.means
    plan = ready.scheme.decide(round_, server.cell, server.params)
    result = run_round(
        ready.method,
        executor,
        server.params,
        server.state,
        round_=round_,
        rates=plan.rates,
        seed=config.seed,
        dtype=plan.dtypes or config.execution.dtype,
        num_samples=ready.samples,
        memories=memories,
        guard=guard,
        min_devices=config.server.min_devices,
        frozen=ready.frozen,
        untrained=untrained,
        lost=plan.lost,
    )
    merged = any(device.loss is not None for device in result.devices)  # else all are lost: the network stays
    if round_ == 1 and merged and config.server.weighs and setup.means == means:
        raise RunError(preflight.unused_mean(config))
    costs = ready.scheme.costs(plan, result.devices)
    after = stepped(ready, server, result.params, result.state) if merged else replace(server, round=round_)
    after = replace(after, guard=guard, untrained=untrained, cell=plan.state)
    evaluated = round_ % config.eval_every == 0 or round_ == config.rounds
    measured = executor.evaluate(after.params) if evaluated else {}
    notes = dict(ready.method.notes(after.state)) if ready.method.notes else {}
    notes |= measure_sizes(ready, after.state, after.params, round_) if evaluated else {}
    notes |= {UNTRAINED: untrained.share} if untrained.left else {}
    wall_s = time.perf_counter() - started
    return after, recording.round_record(round_, plan, result.devices, costs, measured, notes, wall_s)


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
