"""How the server and the devices exchange frames: jobs are pushed, updates are pulled.

``packed`` cuts a subnet and writes its frame, ``pull`` reads a reply and checks that it answers the job; ``device.py``
does the rest. So bytes are measured, not estimated, and executors only move bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple, Protocol

from feddrop import wire
from feddrop.errors import FrameError, RunError, shortened
from feddrop.executors.executor import Computes, Parcel, Reply
from feddrop.learning.guard import LARGEST
from feddrop.methods.method import Job, Method, Update, checked_subnet
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Subnet, scaled_values, without
from feddrop.wire import Header
from feddrop.wire.frame import Frame


class SentJob(NamedTuple):
    """A job on its way: its subnet, the dtype of its values, and the size of its frame."""

    job: Job
    subnet: Subnet
    dtype: str
    push_bytes: int


class MemoryStore(Protocol):
    """Stores the memory of each device between rounds; a run uses :class:`feddrop.storage.memories.Memories`."""

    def get(self, device: int) -> bytes:
        """Return the memory of a device; empty if it has none."""

    def put(self, round_: int, device: int, memory: bytes) -> None:
        """Store the memory of a device after a round; empty to forget it."""


class Forgetful(dict[int, bytes]):
    """Memories that last as long as the process."""

    def get(self, device: int) -> bytes:  # type: ignore[override]
        """Return the memory of a device; empty if it has none."""
        return super().get(device, b"")

    def put(self, _: int, device: int, memory: bytes) -> None:
        """Store the memory of a device."""
        self[device] = memory


def exchange(
    method: Method,
    executor: Computes,
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


def packed(
    method: Method,
    params: Params,
    job: Job,
    dtype: str | Mapping[int, str],
    memories: MemoryStore,
    frozen: Set[str],
) -> tuple[SentJob, Parcel | None, str]:
    """Cut the subnet of a job and write its frame; if the frame cannot be written, return the reason, not a parcel."""
    how = dtype if isinstance(dtype, str) else dtype[job.device]
    subnet, memory = checked_subnet(method.cut(job)), memories.get(job.device)
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


def checked_update(
    method: Method,
    sent: SentJob,
    reply: Reply,
    num_samples: Sequence[int] | Mapping[int, int] | None,
    frozen: Set[str],
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
