"""The server half of a round, as the paper tells it: generation, push, (computation,) pull, aggregation.

Server and device meet only in bytes: ``push`` ends in a frame, ``pull`` begins with one, and what lies between stands
in ``device.py``. So bytes are measured, not estimated, and an executor has only bytes to move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from feddrop import wire
from feddrop.errors import FrameError, RunError, shortened
from feddrop.executors.executor import Executor, Parcel, Reply
from feddrop.learning.guard import LARGEST, Guard
from feddrop.methods.method import Job, Method, State, Update, checked_state
from feddrop.subnets.parameters import Params, without_negative_variances
from feddrop.subnets.piece import Subnet, gather
from feddrop.wire import Header

_TOLD = 5
"""Reasons for which updates were refused that an error names: a fleet has as many as devices."""


class Memories(Protocol):
    """What devices remember between rounds; in a simulation the run keeps it for them."""

    def get(self, device: int) -> bytes:
        """Return the memory of a device; empty where it has none."""
        ...

    def put(self, round_: int, device: int, memory: bytes) -> None:
        """Keep the memory of a device after a round."""
        ...


class Forgetful(dict[int, bytes]):
    """Memories that are kept in memory alone."""

    def get(self, device: int) -> bytes:  # type: ignore[override]
        """Return the memory of a device; empty where it has none."""
        return super().get(device, b"")

    def put(self, _: int, device: int, memory: bytes) -> None:
        """Keep the memory of a device."""
        self[device] = memory


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRound:
    """What one device did in one round.

    Attributes:
        device: device number.
        rate: dropout rate γ.
        num_samples: samples trained on.
        loss: mean training loss; None where nothing usable came back.
        push_bytes: size of the frame sent to the device.
        pull_bytes: size of the frame that came back.
        kept: how many values of every tensor the subnet holds.
        status: ``"ok"``, or why the update was refused.
        suspicious: what is odd about an update that was used, or left out; empty otherwise.
        seconds: wall time of the device's computation.
        elapsed: seconds from sending to receiving, by the server's clock; 0 where devices are simulated.
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


class RoundResult(NamedTuple):
    """A round's outcome: new parameters and state, and what each device did."""

    params: Params
    state: State
    devices: list[DeviceRound]


def push(params: Params, subnet: Subnet, job: Job, *, dtype: str = "float32") -> bytes:
    """Push: write the subnet's kept weights, scaled, into a frame, with what else the device must know."""
    values = {}
    for name, piece in subnet.items():
        kept = gather(params[name], piece)
        values[name] = kept if piece.scale == 1.0 else kept * piece.scale
    header = Header(kind="job", round=job.round, device=job.device, seed=job.seed, rate=job.rate, dtype=dtype)
    return wire.encode(header, subnet, values, job.payload, job.remembered)


def pull(
    method: Method,
    data: bytes,
    job: Job,
    subnet: Subnet,
    *,
    dtype: str = "float32",
    num_samples: int | None = None,
) -> Update:
    """Pull: read an update and check that it answers this job, and nothing else.

    Args:
        method: the method.
        data: the frame that came back.
        job: what the device was to do.
        subnet: what it was sent.
        dtype: how values were to travel.
        num_samples: how many samples the device is known to hold; None to believe what it says.

    Raises:
        FrameError: the frame is damaged, answers something else, or says what cannot be.
    """
    frame = wire.parse(data)
    head, who = frame.header, f"device {job.device}"
    asked = Header(
        kind="update",
        round=job.round,
        device=job.device,
        seed=job.seed,
        rate=job.rate,
        dtype=dtype,
        num_samples=head.num_samples if num_samples is None else num_samples,
        loss=head.loss,
    )
    for name in Header.__dataclass_fields__:
        if getattr(head, name) != getattr(asked, name):
            raise FrameError(f"{who} answered with {name} {getattr(head, name)!r}; {getattr(asked, name)!r} was due.")
    if head.num_samples < 1:
        raise FrameError(f"{who} says it trained on {head.num_samples} samples; at least 1 is needed.")
    sent = {name: (section.dtype, section.shape) for name, section in frame.sections.items()}
    if sent != {name: (spec.dtype, tuple(spec.shape)) for name, spec in job.asks.items()}:
        raise FrameError(f"{who} answered with payload {shortened(sent)}; {dict(job.asks)} was due.")
    payload = {name: section.tensor() for name, section in frame.sections.items()}
    if method.answer is not None:
        subnet = method.answer(job, payload)
    values = wire.decode(frame, subnet)
    largest = max((float(value.abs().max()) for value in values.values() if len(value)), default=0.0)
    if largest > LARGEST:
        raise FrameError(f"{who} would change a weight by {largest:.3g}: training diverged. Lower the learning rate.")
    return Update(
        device=head.device, num_samples=head.num_samples, loss=head.loss, subnet=subnet, values=values, payload=payload
    )


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
    memories: Memories | None = None,
    guard: Guard | None = None,
    min_devices: int = 1,
) -> RoundResult:
    """Run one round over the devices that have a rate, and return the new network.

    An update that is damaged or says what cannot be is left out, and the round goes on without that device; so it does
    without a device that failed. A round with fewer than ``min_devices`` usable updates is an error.

    Args:
        method: the method.
        executor: runs the devices.
        params: the network.
        state: what the method remembers.
        round_: round, from 1.
        rates: dropout rate of every device that takes part.
        seed: the run's root seed.
        dtype: how values travel, for all or by device.
        num_samples: how many samples each device holds; None to believe what devices say.
        memories: what devices remember.
        guard: watches the updates.
        min_devices: usable updates that a round needs.
    """
    sent = _Traffic(
        method=method,
        jobs=list(method.plan(state, params, round_, rates, seed)),
        params=params,
        round=round_,
        dtype=dtype,
        num_samples=num_samples,
        memories=Forgetful() if memories is None else memories,
        min_devices=min_devices,
    )
    replies = executor.compute(sent.parcels())
    updates = (guard or Guard()).watch(sent.pulled(replies), sent.mark)
    new, new_state = method.merge(state, params, updates)  # aggregation, as updates come in
    _check_merged(updates, params, new)
    new = without_negative_variances(params, new)
    return RoundResult(new, checked_state(new_state, "merge"), [sent.done[device] for device in sorted(sent.done)])


def _check_merged(updates: Iterator[tuple[Job, Update]], before: Params, after: Params) -> None:
    """Raise unless a method's merge went through all updates and gave a network of the same tensors."""
    if next(updates, None) is not None:
        raise RunError("the method's merge left updates unread; it must go through all of them, also those it drops.")
    for name in before.keys() | after.keys():
        due, found = (given.get(name) for given in (before, after))
        if due is None or found is None or (due.shape, due.dtype) != (found.shape, found.dtype):
            kinds = [f"{t.dtype} {list(t.shape)}" if t is not None else "nothing" for t in (found, due)]
            raise RunError(f"the method's merge gives {kinds[0]} for {name!r}; {kinds[1]} was due.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traffic:
    """What is on its way in a round: parcels go out while updates come in, in the same order."""

    method: Method
    jobs: Sequence[Job]
    params: Params
    round: int
    dtype: str | Mapping[int, str]
    num_samples: Sequence[int] | None
    memories: Memories
    min_devices: int
    under_way: deque[tuple[Job, Subnet, int]] = field(default_factory=deque)
    done: dict[int, DeviceRound] = field(default_factory=dict)

    def parcels(self) -> Iterator[Parcel]:
        """Cut a subnet for every job and send it."""
        for job in self.jobs:
            subnet = self.method.cut(job)  # generation
            memory = self.memories.get(job.device)
            if job.remembered and not memory:  # it has forgotten
                job = replace(job, remembered=frozenset())
            try:
                frame = push(self.params, subnet, job, dtype=self._dtype(job))
            except FrameError as refused:
                self.done[job.device] = _record(job, subnet, 0, Reply(error=str(refused)), None)
                continue
            self.under_way.append((job, subnet, len(frame)))
            yield Parcel(job.device, frame, memory)

    def pulled(self, replies: Iterable[Reply]) -> Iterator[tuple[Job, Update]]:
        """Give the updates that are usable; too few of them are an error, and so is an executor that miscounts."""
        more = False
        for reply in replies:
            if more := not self.under_way:
                break
            job, subnet, push_bytes = self.under_way.popleft()
            update: Update | None = None
            if not reply.error:
                try:
                    update = self._update(reply.frame, job, subnet)
                except FrameError as refused:
                    reply = reply._replace(error=str(refused))
            self.done[job.device] = _record(job, subnet, push_bytes, reply, update)
            if update is not None:
                self.memories.put(self.round, job.device, reply.memory)
                yield job, update
            elif reply.forgot:
                self.memories.put(self.round, job.device, b"")
        if more or len(self.done) < len(self.jobs):
            raise RunError(
                f"the executor gave {'more' if more else 'fewer'} replies than there were devices ({len(self.jobs)}). "
                "Its compute() must give one for every parcel, in their order: a Reply with an error where there is "
                "no update."
            )
        self._check_enough()

    def mark(self, device: int, reason: str) -> None:
        """Note what is odd about the update of a device."""
        self.done[device] = replace(self.done[device], suspicious=reason)

    def _update(self, frame: bytes, job: Job, subnet: Subnet) -> Update:
        held = None if self.num_samples is None else self.num_samples[job.device]
        return pull(self.method, frame, job, subnet, dtype=self._dtype(job), num_samples=held)

    def _dtype(self, job: Job) -> str:
        return self.dtype if isinstance(self.dtype, str) else self.dtype[job.device]

    def _check_enough(self) -> None:
        failed = [device.status for device in self.done.values() if device.loss is None]
        if len(self.done) - len(failed) < self.min_devices:
            reasons = "; ".join(told[:_TOLD]) if (told := list(dict.fromkeys(failed))) else "none took part"
            reasons += f"; and {len(told) - _TOLD} other reasons" if len(told) > _TOLD else ""
            if 0 < len(self.done) < self.min_devices:
                reasons = f"only {len(self.done)} took part. Lower server.min_devices, or let more take part"
            least = "no device" if self.min_devices == 1 else f"fewer than {self.min_devices} devices"
            raise RunError(f"{least} returned a usable update in round {self.round}: {reasons}")


def _record(job: Job, subnet: Subnet, push_bytes: int, reply: Reply, update: Update | None) -> DeviceRound:
    return DeviceRound(
        device=job.device,
        rate=job.rate,
        num_samples=update.num_samples if update else 0,
        loss=update.loss if update else None,
        push_bytes=push_bytes,
        pull_bytes=len(reply.frame),
        kept={name: piece.size for name, piece in subnet.items()},
        status=reply.error or "ok",
        suspicious="",
        seconds=reply.seconds,
        elapsed=reply.elapsed,
    )
