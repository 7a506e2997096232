"""The server side of a round, in the paper's steps: generation, push, (computation,) pull, aggregation.

Server and device exchange only bytes: ``push`` writes a frame, ``pull`` reads one, and ``device.py`` does the rest. So
bytes are measured, not estimated, and executors only move bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from feddrop import wire
from feddrop.errors import FrameError, RunError, shortened
from feddrop.executors.executor import Executor, Parcel, Reply
from feddrop.learning.guard import LARGEST, Guard
from feddrop.methods.method import Job, Method, State, Update, checked_state
from feddrop.simulation.memory import Forgetful, MemoryStore
from feddrop.simulation.untrained import Untrained
from feddrop.subnets.parameters import Params, without_negative_variances
from feddrop.subnets.piece import Subnet, gather, scaled_values, without
from feddrop.wire import Header
from feddrop.wire.frame import Frame

TOO_FEW = "lost: too few updates arrived"
"""Status of a device whose update arrived, but with too few others to be merged (``server.min_devices``)."""
_MOST_REASONS = 5
"""Reasons for refused updates that an error lists; a fleet can have as many as devices."""
Discount = Callable[[Job, Update], Update]
"""Changes an update before it is merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRound:
    """What one device did in one round.

    Attributes:
        device: device number.
        rate: dropout rate γ.
        num_samples: samples trained on.
        loss: mean training loss; None without a usable update.
        push_bytes: size of the frame sent to the device; 0 if it was not sent.
        pull_bytes: size of the frame that it returned.
        kept: number of values of every tensor in the subnet.
        status: ``"ok"``, or why there is no usable update.
        suspicious: what is unusual about an update that was used, or left out; empty otherwise.
        size: root mean square of the update, in the units of the network's weights; None without one.
        seconds: wall time of the device's computation.
        elapsed: seconds from sending to receiving, by the server's clock; 0 if devices are simulated.
    """

    device: int
    rate: float
    num_samples: int
    loss: float | None
    push_bytes: int
    pull_bytes: int
    kept: Mapping[str, int]
    status: str
    suspicious: str
    seconds: float
    elapsed: float = 0.0
    size: float | None = None


class RoundResult(NamedTuple):
    """A round's outcome: new parameters and state, and what each device did."""

    params: Params
    state: State
    devices: list[DeviceRound]


class SentJob(NamedTuple):
    """A job on its way: its subnet, the dtype of its values, and the size of its frame."""

    job: Job
    subnet: Subnet
    dtype: str
    push_bytes: int


def run_round(
    method: Method,
    executor: Executor,
    params: Params,
    state: State,
    *,
    round_: int,
    rates: Mapping[int, float],
    seed: int,
    dtype: str | Mapping[int, str] = "float32",
    num_samples: Sequence[int] | None = None,
    memories: MemoryStore | None = None,
    guard: Guard | None = None,
    min_devices: int = 1,
    frozen: Set[str] = frozenset(),
    untrained: Untrained | None = None,
    lost: Mapping[int, str] = MappingProxyType({}),
) -> RoundResult:
    """Run one round over the devices that have a rate; those that fail or return a wrong update are left out.

    If so many updates are lost on the way that fewer than ``min_devices`` are left, nothing is merged.

    Args:
        method: the learning method.
        executor: runs the devices.
        params: the full network.
        state: the method's state.
        round_: round, from 1.
        rates: dropout rate of every device that takes part.
        seed: the run's root seed.
        dtype: how values travel, for all devices or by device.
        num_samples: samples per device; None to accept the devices' own figures.
        memories: what devices remember.
        guard: watches the updates.
        min_devices: fewest usable updates; fewer are a RunError.
        frozen: names of parameters that are not trained: devices have them, so they are not sent.
        untrained: the parameters that no device has held so far; those of every usable update are removed.
        lost: why the updates of these devices are lost on the way: they train and send, but are not merged.
    """
    jobs = list(method.plan(state, params, round_, rates, seed)) if rates else []
    merges = len(rates) - len(lost) >= min_devices or bool(rates and not lost)
    unmerged = {k: f"lost: {lost[k]}" if k in lost else TOO_FEW for k in (lost if merges else rates)}
    memories = memories if memories is not None else Forgetful()
    return fold(
        method,
        exchange(method, executor, params, jobs, dtype, memories, frozen),
        params,
        state,
        round_=round_,
        num_samples=num_samples,
        memories=memories,
        guard=guard,
        min_devices=min_devices,
        frozen=frozen,
        untrained=untrained,
        lost=unmerged,
        merges=merges,
    )


def fold(
    method: Method,
    replies: Iterable[tuple[SentJob, Reply]],
    params: Params,
    state: State,
    *,
    round_: int,
    num_samples: Sequence[int] | None,
    memories: MemoryStore,
    guard: Guard | None = None,
    min_devices: int = 1,
    frozen: Set[str] = frozenset(),
    untrained: Untrained | None = None,
    discount: Discount | None = None,
    lost: Mapping[int, str] = MappingProxyType({}),
    merges: bool = True,
) -> RoundResult:
    """Check each reply and merge it into the network before the next one is read.

    Args:
        method: the learning method.
        replies: jobs and replies, at most one per device; jobs may be of earlier rounds.
        params: the full network.
        state: the method's state.
        round_: round, from 1.
        num_samples: samples per device; None to accept the devices' own figures.
        memories: what devices remember.
        guard: watches the updates.
        min_devices: fewest usable updates; fewer are a RunError.
        frozen: names of parameters that are not sent.
        untrained: the parameters that no device has held so far; those of every usable update are removed.
        discount: changes each update after the guard, for example by its staleness.
        lost: the statuses of devices whose updates are not merged.
        merges: whether anything is; if not, the network and the state stay as they are.
    """
    devices = dict[int, DeviceRound]()

    def updates() -> Iterator[tuple[Job, Update]]:
        for sent, reply in replies:
            number = sent.job.device
            update, error = _checked_update(method, sent, reply, num_samples, frozen)
            if update is not None and number in lost:
                update, error = None, lost[number]
            devices[number] = _summary(sent, reply, update, error)
            if update is not None or reply.forgot:
                memories.put(round_, number, reply.memory if update else b"")
            if update is not None:
                if method.returns_weights:
                    update = replace(update, values=_changes(update, params))
                if untrained is not None:
                    untrained.add(update.subnet)
                yield sent.job, update  # merge folds it in before the next reply is read
        if merges:
            _check_enough(list(devices.values()), min_devices, round_)

    def note(device: int, **found: Any) -> None:
        refused: dict[str, Any] = {"loss": None, "num_samples": 0} if "status" in found else {}
        devices[device] = replace(devices[device], **found, **refused)

    if not merges:
        for _ in updates():  # devices train and send, but nothing arrives that could be merged
            pass
        return RoundResult(params, state, [devices[number] for number in sorted(devices)])
    watched = (guard or Guard()).watch(updates(), params, round_, note)
    if discount is not None:
        watched = ((job, discount(job, update)) for job, update in watched)
    merged, new_state = method.merge(state, params, watched)
    _check_merged(watched, params, merged)
    _check_enough(list(devices.values()), min_devices, round_)  # again: the guard may have refused some
    done = [devices[number] for number in sorted(devices)]
    return RoundResult(without_negative_variances(params, merged), checked_state(new_state, "merge"), done)


def exchange(
    method: Method,
    executor: Executor,
    params: Params,
    jobs: Sequence[Job],
    dtype: str | Mapping[int, str],
    memories: MemoryStore,
    frozen: Set[str] = frozenset(),
) -> Iterator[tuple[SentJob, Reply]]:
    """Cut a subnet for every job, send it, and yield the replies in the order of the jobs.

    The executor asks for frames as it has room for them, so only a few are in flight.
    """
    in_flight, unsent, answered, more = deque[SentJob](), list[tuple[SentJob, Reply]](), 0, False

    def parcels() -> Iterator[Parcel]:
        for job in jobs:
            sent, parcel, error = packed(method, params, job, dtype, memories, frozen)
            if parcel is None:
                unsent.append((sent, Reply(error=error)))
            else:
                in_flight.append(sent)
                yield parcel

    for reply in executor.compute(parcels()):
        if more := not in_flight:
            break
        yield in_flight.popleft(), reply
        answered += 1
    if more or answered + len(unsent) < len(jobs):
        raise RunError(
            f"the executor returned {'more' if more else 'fewer'} replies than there are devices ({len(jobs)}). Its "
            "compute() must return one per parcel, in order: a Reply with an error if there is no update."
        )
    yield from unsent


def _changes(update: Update, params: Params) -> Mapping[str, Tensor]:
    """Return the changes that lead from the server's weights to those of an update."""
    return {name: value - gather(params[name], update.subnet[name]) for name, value in update.values.items()}


def packed(
    method: Method,
    params: Params,
    job: Job,
    dtype: str | Mapping[int, str],
    memories: MemoryStore,
    frozen: Set[str],
) -> tuple[SentJob, Parcel | None, str]:
    """Cut the subnet of a job and write its frame; without a parcel if it cannot be written, and why."""
    how = dtype if isinstance(dtype, str) else dtype[job.device]
    subnet, memory = method.cut(job), memories.get(job.device)
    if job.remembered and not memory:  # the device has forgotten: send everything
        job = replace(job, remembered=frozenset())
    try:
        frame = push(params, without(subnet, frozen), job, dtype=how)
    except FrameError as error:
        return SentJob(job, subnet, how, 0), None, str(error)
    return SentJob(job, subnet, how, len(frame)), Parcel(job.device, frame, memory), ""


def push(params: Params, subnet: Subnet, job: Job, *, dtype: str = "float32") -> bytes:
    """Write a frame: the kept weights of a subnet, scaled, and the job."""
    header = Header(kind="job", round=job.round, device=job.device, seed=job.seed, rate=job.rate, dtype=dtype)
    return wire.encode(header, subnet, scaled_values(params, subnet), job.payload, job.remembered)


def pull(
    method: Method,
    data: bytes,
    job: Job,
    subnet: Subnet,
    *,
    dtype: str = "float32",
    num_samples: int | None = None,
    frozen: Set[str] = frozenset(),
) -> Update:
    """Read an update and check that it answers this job.

    Args:
        method: the learning method.
        data: the frame that the device returned.
        job: what the device was asked to do.
        subnet: the subnet that it was sent.
        dtype: how values travel.
        num_samples: samples that the device holds; None to accept its own figure.
        frozen: names of parameters that are not sent.

    Raises:
        FrameError: the frame is damaged, answers another job, or holds impossible values.
    """
    frame = wire.parse(data)
    head = frame.header
    for problem in _mismatches(frame, job, dtype, num_samples):
        raise FrameError(f"device {job.device} {problem}")
    payload = {name: section.tensor() for name, section in frame.sections.items()}
    if method.answer is not None:
        subnet = method.answer(job, payload)
    subnet = without(subnet, frozen)
    flat, largest = wire.decode_flat(frame, subnet)
    if largest > LARGEST:
        raise FrameError(
            f"device {job.device} would change a weight by {largest:.3g}: training diverged. Lower the learning rate."
        )
    return Update(
        device=head.device,
        num_samples=head.num_samples,
        loss=head.loss,
        subnet=subnet,
        values=wire.split(flat, subnet),
        payload=payload,
    )


def _mismatches(frame: Frame, job: Job, dtype: str, num_samples: int | None) -> Iterator[str]:
    """Yield where a frame differs from an update to a job."""
    head = frame.header
    asked = {"kind": "update", "round": job.round, "device": job.device, "seed": job.seed, "rate": job.rate}
    asked |= {"dtype": dtype, "num_samples": head.num_samples if num_samples is None else num_samples}
    for name, expected in asked.items():
        if getattr(head, name) != expected:
            yield f"returned {name} {getattr(head, name)!r}; expected {expected!r}."
    if head.num_samples < 1:
        yield f"trained on {head.num_samples} samples; at least 1 is needed."
    found = {name: (section.dtype, section.shape) for name, section in frame.sections.items()}
    if found != {name: (spec.dtype, tuple(spec.shape)) for name, spec in job.asks.items()}:
        yield f"returned the payload {shortened(found)}; expected {dict(job.asks)}."


def _checked_update(
    method: Method, sent: SentJob, reply: Reply, num_samples: Sequence[int] | None, frozen: Set[str]
) -> tuple[Update | None, str]:
    """Return the update in a reply, or None and the reason why it has no usable one."""
    if reply.error:
        return None, reply.error
    held = None if num_samples is None else num_samples[sent.job.device]
    try:
        job, subnet, dtype, _ = sent
        return pull(method, reply.frame, job, subnet, dtype=dtype, num_samples=held, frozen=frozen), ""
    except FrameError as error:
        return None, str(error)


def _summary(sent: SentJob, reply: Reply, update: Update | None, error: str) -> DeviceRound:
    return DeviceRound(
        device=sent.job.device,
        rate=sent.job.rate,
        num_samples=update.num_samples if update else 0,
        loss=update.loss if update else None,
        push_bytes=sent.push_bytes if reply.sent else 0,
        pull_bytes=len(reply.frame),
        kept={name: piece.size for name, piece in sent.subnet.items()},
        status=error or "ok",
        suspicious="",
        seconds=reply.seconds,
        elapsed=reply.elapsed,
    )


def _check_enough(devices: Sequence[DeviceRound], min_devices: int, round_: int) -> None:
    """Raise if a round has too few usable updates."""
    failed = [device.status for device in devices if device.loss is None]
    if len(devices) - len(failed) >= min_devices:
        return
    different = list(dict.fromkeys(failed))
    reasons = "; ".join(different[:_MOST_REASONS]) or "none took part"
    reasons += f"; and {len(different) - _MOST_REASONS} other reasons" if len(different) > _MOST_REASONS else ""
    if 0 < len(devices) < min_devices:
        reasons = f"only {len(devices)} took part. Lower server.min_devices, or let more take part"
    least = "no device" if min_devices == 1 else f"fewer than {min_devices} devices"
    raise RunError(f"{least} returned a usable update in round {round_}: {reasons}")


def _check_merged(updates: Iterator[tuple[Job, Update]], before: Params, after: Params) -> None:
    """Raise unless a method's merge read all updates and returned a network of the same tensors."""
    if next(updates, None) is not None:
        raise RunError("the method's merge left updates unread; it must read all of them, also those that it drops.")
    kinds = [{name: f"{t.dtype} {list(t.shape)}" for name, t in tensors.items()} for tensors in (before, after)]
    for name in before.keys() | after.keys():
        expected, found = (kind.get(name, "nothing") for kind in kinds)
        if found != expected:
            raise RunError(f"the method's merge returns {found} for {name!r}; expected {expected}.")
