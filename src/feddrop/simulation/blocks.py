"""Blocks of devices whose updates are merged by the worker that trains them: the server receives one sum per block.

The server plans the jobs of a round and divides them into blocks of ``execution.merge_block`` devices. A worker plays
the devices of a block and the server towards them: it cuts and sends subnets, checks the updates, sketches them for the
guard and adds them up, in the order of the devices. The server adds up the blocks, in order, so every executor gives
the same bits; they differ in the last digits from those of a run without blocks. The frames are the same.

Methods are not aware of blocks: a worker runs the method's ``merge`` over its block and returns what the means in it
hold; the server runs ``merge`` once more, with means that start from the sums of all blocks. An update so large that it
may have to be refused is returned whole and waits at the server, as without blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor

from feddrop.errors import ConfigError, RunError
from feddrop.executors.executor import Executor, Parcel, Reply
from feddrop.learning.guard import Guard
from feddrop.learning.means import Means, Sums
from feddrop.learning.suspicion import SeenPart
from feddrop.methods.method import Job, Update
from feddrop.simulation.exchange import Forgetful, exchange, packed
from feddrop.simulation.round import DeviceRound, Intake, RoundResult, planned_jobs
from feddrop.simulation.untrained import Untrained

if TYPE_CHECKING:
    from feddrop.simulation.device import Task
    from feddrop.simulation.preparation import Prepared

Arrays = dict[str, npt.NDArray[Any]]
Handle = Callable[[bytes, bytes], Reply]


class RoundOfBlocks(NamedTuple):
    """What all blocks of a round have in common; a worker receives it once."""

    params: Arrays
    state: Arrays
    round: int
    guard: Guard
    frozen: Set[str]
    untrained: bool


class JobBlock(NamedTuple):
    """Some jobs of a round, with payloads as arrays, and what the server knows about their devices."""

    jobs: list[Job]
    dtype: str | Mapping[int, str]
    memories: dict[int, bytes]
    samples: dict[int, int] | None
    lost: dict[int, str]


class MergedBlock(NamedTuple):
    """A merged block.

    Attributes:
        devices: what each device did.
        sums: what the means of the method's merge hold.
        seen: what the guard keeps of the updates.
        waiting: jobs and updates that may have to be refused.
        memories: what devices remember from now on.
        untrained: which parameters no device of the block holds, if the server asked.
        linear: whether the merge opened means and left the state as it was.
    """

    devices: dict[int, DeviceRound]
    sums: list[Sums]
    seen: SeenPart
    waiting: list[tuple[Job, Update]]
    memories: dict[int, bytes]
    untrained: Arrays
    linear: bool


# --- the worker


class Merger:
    """Plays the server towards the devices of a block, in a worker."""

    def __init__(self, task: Task, handle: Handle) -> None:
        self._setup, self._handle, self._method = task.setup, handle, task.factory(task.setup)
        self._shared: RoundOfBlocks | None = None

    def compute(self, parcels: Iterable[Parcel]) -> Iterator[Reply]:
        """Let devices train, in order."""
        return (self._handle(parcel.frame, parcel.memory) for parcel in parcels)

    def __call__(self, block: JobBlock, shared: RoundOfBlocks | None) -> MergedBlock:
        """Merge a block; without ``shared``, that of the last call is used."""
        if shared is not None and shared is not self._shared:
            self._shared, self._guard = shared, shared.guard
            self._params, self._state = _tensors(shared.params), _tensors(shared.state)
            self._looked = self._guard.looks(shared.round)
        assert self._shared is not None  # noqa: S101
        method, params, state, memories = self._method, self._params, self._state, Forgetful()
        untrained = Untrained.of(self._setup.model) if self._shared.untrained else None
        intake = Intake(
            method,
            params,
            state,
            self._shared.round,
            memories=memories,
            num_samples=block.samples,
            frozen=self._shared.frozen,
            untrained=untrained,
            lost=block.lost,
        )
        jobs = [replace(job, payload=_tensors(job.payload)) for job in block.jobs]
        replies = exchange(method, self, params, jobs, block.dtype, Forgetful(block.memories), self._shared.frozen)
        arrived = ((sent.job, intake.checked(sent, reply)) for sent, reply in replies)
        updates = ((job, update) for job, update in arrived if update is not None)
        with self._setup.means.kept() as means:
            _, new = method.merge(state, params, self._guard.passing(updates, self._looked, params, intake.note))
        linear = bool(means) and state.keys() == new.keys() and all(torch.equal(state[name], new[name]) for name in new)
        waiting, seen = self._looked.waiting[:], self._looked.seen.taken()
        self._looked.waiting.clear()
        left = untrained.left if untrained else {}
        return MergedBlock(intake.devices, [mean.sums() for mean in means], seen, waiting, dict(memories), left, linear)


def _tensors(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.tensor(array) for name, array in arrays.items()}


# --- the server


def run_in_blocks(
    intake: Intake,
    executor: Executor,
    rates: Mapping[int, float],
    seed: int,
    dtype: str | Mapping[int, str],
    *,
    means: Means,
    size: int,
) -> RoundResult:
    """Run one round as :func:`~feddrop.simulation.round.run_round` does, in blocks of devices.

    Args:
        intake: the server's side of the round.
        executor: runs the devices.
        rates: dropout rate of every device that takes part.
        seed: the run's root seed.
        dtype: how values travel, for all devices or by device.
        means: those of the setup that the method was built from.
        size: devices per block.
    """
    merge: Any = getattr(executor, "merge", None)
    if merge is None:
        raise ConfigError(
            f"execution.merge_block is {size}, but {type(executor).__name__} has no method merge(shared, blocks). Set "
            "it to 0, or use the executor of the package."
        )
    jobs = planned_jobs(intake.method, intake.state, intake.params, intake.round, rates, seed) if rates else []
    merges, looked = intake.merges(rates), intake.guard.looks(intake.round)
    total, sent = list[Sums](), deque[list[Job]]()

    def blocks() -> Iterator[JobBlock]:
        for first in range(0, len(jobs), size):
            sent.append(jobs[first : first + size])
            yield _block(intake, sent[-1], dtype)

    for part in merge(_shared(intake), blocks()):
        done = sent.popleft()
        if isinstance(part, str):
            _given_up(intake, done, dtype, part)
            continue
        if not part.linear:
            raise RunError(
                "the method says that it is linear, but its merge opens no mean or changes its state. Remove linear "
                "from it, and set execution.merge_block to 0."
            )
        intake.devices |= part.devices
        for device, memory in part.memories.items():
            intake.memories.put(intake.round, device, memory)
        if intake.untrained is not None:
            intake.untrained.only(part.untrained)
        looked.seen.extend(part.seen)
        looked.waiting.extend(part.waiting)
        total = [_added(*pair) for pair in zip(total, part.sums, strict=True)] if total else part.sums
    if not merges:
        return RoundResult(intake.params, intake.state, intake.done)
    with means.kept(total):
        return intake.merged(iter(()), looked=looked)


def _arrays(tensors: Mapping[str, Tensor]) -> Any:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _shared(intake: Intake) -> RoundOfBlocks:
    untrained = intake.untrained is not None and bool(intake.untrained.left)
    return RoundOfBlocks(
        _arrays(intake.params), _arrays(intake.state), intake.round, intake.guard, intake.frozen, untrained
    )


def _block(intake: Intake, jobs: Sequence[Job], dtype: str | Mapping[int, str]) -> JobBlock:
    numbers, samples = [job.device for job in jobs], intake.num_samples
    return JobBlock(
        [replace(job, payload=_arrays(job.payload)) for job in jobs],
        dtype if isinstance(dtype, str) else {number: dtype[number] for number in numbers},
        {number: intake.memories.get(number) for number in numbers},
        None if samples is None else {number: samples[number] for number in numbers},
        {number: intake.lost[number] for number in numbers if number in intake.lost},
    )


def _given_up(intake: Intake, jobs: Sequence[Job], dtype: str | Mapping[int, str], reason: str) -> None:
    """Leave out the devices of a block that cost every worker that tried it."""
    for job in jobs:
        sent, _, _ = packed(intake.method, intake.params, job, dtype, intake.memories, intake.frozen)
        intake.checked(sent, Reply(error=reason, memory=intake.memories.get(job.device)))


def _added(one: Sums, other: Sums) -> Sums:
    total, held = (
        {name: values + more[name] for name, values in sums.items()}
        for sums, more in ((one.total, other.total), (one.held, other.held))
    )
    return Sums(total, held, one.weight + other.weight)


def problems(run: Prepared) -> Iterator[str]:
    """Yield why the updates of a run cannot be merged in blocks."""
    server, clock, given = (
        run.config.server,
        run.config.clock.kind,
        f"execution.merge_block is {run.config.execution.merge_block}",
    )
    if not run.method.is_linear:
        yield (
            f"{given}, but the method {run.config.method.name!r} does more with its updates than average them. Set it "
            "to 0."
        )
    for name, value in (("krum", server.krum), ("filter", server.filter), ("clip", server.clip)):
        if value:
            yield f"{given}, but server.{name} needs all updates of a round at the server. Set one of them to 0."
    if server.mean != "mean":
        yield f"{given}, but server.mean is {server.mean!r}, which needs all updates at the server. Set it to 0."
    if clock != "deadline":
        yield f'{given}, but clock.kind is "{clock}", which merges updates one by one. Set it to 0.'
    if run.custom.samples is not None:
        yield f"{given}, but devices are not simulated here: each sends its own update. Set it to 0."
