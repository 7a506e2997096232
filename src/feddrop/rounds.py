"""A round, as the paper tells it: generation, push, computation, pull, aggregation.

Server and device meet only in bytes: ``push`` ends in a frame and ``compute`` begins with one, ``compute`` ends in a
frame and ``pull`` begins with one. So bytes are measured, not estimated, and an executor has only bytes to move.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from feddrop.errors import FrameError, RunError
from feddrop.method import Assignment, Batches, Method, State, Update
from feddrop.params import Params
from feddrop.subnets import frames
from feddrop.subnets.frames import Header, Masks
from feddrop.subnets.piece import Subnet, gather, to_device_shape

LARGEST = 1e6
"""No honest update changes a weight by more; what is larger would overflow the network of all."""


class Pushed(NamedTuple):
    """What a device computes with: the frame it was sent, and the masks it remembers, which did not travel."""

    frame: bytes
    masks: Masks | None = None


class Reply(NamedTuple):
    """What comes back from a device: a frame, or the reason why there is none; and how long it computed."""

    frame: bytes
    error: str
    seconds: float


class Executor(Protocol):
    """Runs devices: takes subnet frames, gives replies in the same order, holding only a few at a time."""

    def compute(self, pushed: Iterable[Pushed]) -> Iterator[Reply]:
        """Let devices train on the subnets in these frames."""
        ...

    def evaluate(self, whole: Params) -> tuple[float, float]:
        """Return mean loss and accuracy of the whole network on the test set."""
        ...

    def close(self) -> None:
        """Stop, and free what was held."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRound:
    """What one device did in one round.

    Attributes:
        device: device number.
        rate: dropout rate γ.
        samples: samples trained on.
        loss: mean training loss; None where nothing usable came back.
        push_bytes: size of the frame sent to the device.
        pull_bytes: size of the frame that came back.
        kept: how many values of every tensor the subnet holds.
        status: ``"ok"``, or why the update was refused.
        seconds: wall time of the device's computation.
    """

    device: int
    rate: float
    samples: int
    loss: float | None
    push_bytes: int
    pull_bytes: int
    kept: Mapping[str, int]
    status: str
    seconds: float


class RoundResult(NamedTuple):
    """A round's outcome: new parameters and state, and what each device did."""

    params: Params
    state: State
    devices: list[DeviceRound]


def generate(method: Method, assignment: Assignment) -> Subnet:
    """Generation: choose the device's subnet."""
    return method.cut(assignment)


def push(whole: Params, subnet: Subnet, assignment: Assignment, *, dtype: str = "float32") -> bytes:
    """Push: write the subnet's kept weights, scaled, into a frame; with masks that the device does not know yet."""
    values = {}
    for name, piece in subnet.items():
        kept = gather(whole[name], piece)
        values[name] = kept if piece.scale == 1.0 else kept * piece.scale
    header = Header(
        kind="subnet",
        round=assignment.round,
        device=assignment.device,
        seed=assignment.seed,
        rate=assignment.rate,
        level=assignment.level,
        dtype=dtype,
    )
    return frames.encode(header, subnet, values, None if assignment.remembered else assignment.masks)


def compute(
    method: Method,
    pushed: Pushed,
    batches_for: Callable[[Assignment], Batches],
    weights: Mapping[str, tuple[int, ...]] | None = None,
) -> bytes:
    """Computation, on the device: read the subnet, train it on local data, write the update.

    Args:
        method: the method, as the server has it.
        pushed: the frame, and what the device remembers.
        batches_for: gives the local minibatches for an assignment.
        weights: shapes of the tensors whose masks travel, for methods that send masks.
    """
    frame = frames.parse(pushed.frame)
    head = frame.header
    shapes = weights or {}
    assignment = Assignment(
        round=head.round,
        device=head.device,
        seed=head.seed,
        rate=head.rate,
        level=head.level,
        masks=frames.decode_masks(frame, shapes) if head.masked else pushed.masks,
        remembered=not head.masked and pushed.masks is not None,
    )
    subnet = method.cut(assignment)
    kept = frames.decode(frame, subnet, _bits(shapes))
    values = {name: to_device_shape(kept[name], piece) for name, piece in subnet.items()}
    update = method.local(subnet, values, assignment, batches_for(assignment))
    if not math.isfinite(update.loss):
        raise FrameError(f"training loss became {update.loss}: training diverged. Lower the learning rate.")
    header = replace(head, kind="update", samples=update.samples, loss=update.loss)
    return frames.encode(header, update.subnet, update.values, update.masks)


def pull(method: Method, data: bytes, assignment: Assignment, subnet: Subnet, samples: int | None = None) -> Update:
    """Pull: read an update and check that it answers this assignment.

    Args:
        method: the method.
        data: the frame that came back.
        assignment: what the device was to do.
        subnet: what it was sent; a frame with masks of its own says what came back instead.
        samples: how many samples the device is known to hold; None to believe what it says.

    Raises:
        FrameError: the frame is damaged, answers something else, or says what cannot be.
    """
    frame = frames.parse(data)
    head = frame.header
    asked = ("update", assignment.round, assignment.device, assignment.seed)
    if (head.kind, head.round, head.device, head.seed) != asked:
        raise FrameError(
            f"device {assignment.device} answered with kind {head.kind!r}, round {head.round}, device {head.device}; "
            f"an update for round {assignment.round} was due."
        )
    if head.masked and not assignment.readjusts:
        raise FrameError(f"device {assignment.device} answered with masks, which were not due in this round.")
    if samples is not None and head.samples != samples:
        raise FrameError(f"device {assignment.device} says it has {head.samples} samples; it has {samples}.")
    shapes = {name: mask.shape for name, mask in (assignment.masks or {}).items()}
    masks = frames.decode_masks(frame, shapes)
    if masks is not None:
        subnet = method.cut(replace(assignment, masks=masks))
    values = frames.decode(frame, subnet, _bits(shapes))
    largest = max((float(value.abs().max()) for value in values.values() if len(value)), default=0.0)
    if largest > LARGEST:
        raise FrameError(
            f"device {assignment.device} would change a weight by {largest:.3g}: training diverged. Lower the learning "
            "rate."
        )
    return Update(device=head.device, samples=head.samples, loss=head.loss, subnet=subnet, values=values, masks=masks)


def aggregate(method: Method, state: State, whole: Params, updates: Iterable[Update]) -> tuple[Params, State]:
    """Aggregation: fold the updates, as they arrive, into the whole network."""
    return method.merge(state, whole, updates)


def run_round(
    method: Method,
    executor: Executor,
    whole: Params,
    state: State,
    *,
    round_: int,
    rates: Mapping[int, float],
    seed: int,
    dtype: str = "float32",
    samples: Sequence[int] | None = None,
) -> RoundResult:
    """Run one round over the devices that have a rate, and return the new network.

    An update that is damaged or says what cannot be is left out, and the round goes on without that device; so it does
    without a device that failed. A round in which no device is left is an error.

    Args:
        method: the method.
        executor: runs the devices.
        whole: the network.
        state: what the method remembers.
        round_: round, from 1.
        rates: dropout rate of every device that takes part.
        seed: the run's root seed.
        dtype: how values travel.
        samples: how many samples each device holds; None to believe what devices say.
    """
    under_way: list[tuple[Assignment, Subnet, int]] = []
    done: list[DeviceRound] = []

    def pushed() -> Iterator[Pushed]:
        for assignment in method.plan(state, whole, round_, rates, seed):
            subnet = generate(method, assignment)
            frame = push(whole, subnet, assignment, dtype=dtype)
            under_way.append((assignment, subnet, len(frame)))
            yield Pushed(frame, assignment.masks if assignment.remembered else None)

    def updates() -> Iterator[Update]:
        for reply in executor.compute(pushed()):
            assignment, subnet, push_bytes = under_way.pop(0)
            update: Update | None = None
            status = reply.error
            if not status:
                try:
                    held = None if samples is None else samples[assignment.device]
                    update = pull(method, reply.frame, assignment, subnet, held)
                except FrameError as refused:
                    status = str(refused)
            done.append(
                DeviceRound(
                    device=assignment.device,
                    rate=assignment.rate,
                    samples=update.samples if update else 0,
                    loss=update.loss if update else None,
                    push_bytes=push_bytes,
                    pull_bytes=len(reply.frame),
                    kept={name: piece.size for name, piece in subnet.items()},
                    status=status or "ok",
                    seconds=reply.seconds,
                )
            )
            if update:
                yield update
        if all(device.loss is None for device in done):
            reasons = "; ".join(dict.fromkeys(device.status for device in done)) or "no device took part"
            raise RunError(f"no device returned a usable update in round {round_}: {reasons}")

    new, new_state = aggregate(method, state, whole, updates())
    return RoundResult(new, new_state, done)


def answer(work: Callable[[], bytes]) -> Reply:
    """Run a device's computation and time it; a failure of that device becomes a reply, not an exception."""
    started = time.perf_counter()
    try:
        frame, error = work(), ""
    except FrameError as failure:
        frame, error = b"", str(failure)
    except Exception as failure:  # whatever happens on a device, the server and the other devices go on
        frame, error = b"", f"{type(failure).__name__}: {failure}"
    return Reply(frame, error, time.perf_counter() - started)


def _bits(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())
