"""The server side of a round: jobs are planned and exchanged, updates checked, watched and merged as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor

from feddrop.errors import RunError, shortened
from feddrop.executors.executor import Executor, Reply
from feddrop.learning.guard import Guard, Looked
from feddrop.methods.method import Job, Method, State, Update, checked_state
from feddrop.simulation.exchange import Forgetful, MemoryStore, SentJob, checked_update, exchange
from feddrop.simulation.untrained import Untrained
from feddrop.subnets.parameters import Params, without_negative_variances
from feddrop.subnets.piece import gather

TOO_FEW = "too few updates arrived"
"""Why an update is lost that arrived, but with too few others to be merged (``server.min_devices``)."""
_MOST_REASONS = 5
"""Reasons for refused updates that an error lists; a fleet can have as many as devices."""
Discount = Callable[[Job, Update], Update]
"""Changes an update before it is merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRound:
    """What one device did in one round."""

    device: int  # device number
    rate: float  # dropout rate γ
    num_samples: int  # samples trained on
    loss: float | None  # mean training loss; None without a usable update
    push_bytes: int  # size of the frame sent to the device; 0 if it was not sent
    pull_bytes: int  # size of the frame that it returned
    kept: Mapping[str, int]  # number of values of every tensor in the subnet
    status: str  # ``"ok"``, or why there is no usable update
    suspicious: str  # what is unusual about an update that was used, or left out; empty otherwise
    seconds: float  # wall time of the device's computation
    elapsed: float = 0.0  # seconds from sending to receiving, by the server's clock; 0 if devices are simulated
    size: float | None = None  # root mean square of the update, in the units of the network's weights; None without one


class RoundResult(NamedTuple):
    """A round's outcome: new parameters and state, and what each device did."""

    params: Params
    state: State
    devices: list[DeviceRound]


def run_round(
    intake: Intake,
    executor: Executor,
    rates: Mapping[int, float],
    seed: int,
    dtype: str | Mapping[int, str] = "float32",
) -> RoundResult:
    """Run one round over the devices that have a rate; those that fail or return a wrong update are left out.

    If so many updates are lost on the way that fewer than ``intake.min_devices`` are left, nothing is merged.

    Args:
        intake: the server's side of the round.
        executor: runs the devices.
        rates: dropout rate of every device that takes part.
        seed: the run's root seed.
        dtype: how values travel, for all devices or by device.
    """
    method, params, memories = intake.method, intake.params, intake.memories
    jobs = planned_jobs(method, intake.state, params, intake.round, rates, seed) if rates else []
    merges = intake.merges(rates)

    def updates() -> Iterator[tuple[Job, Update]]:
        for sent, reply in exchange(method, executor, params, jobs, dtype, memories, intake.frozen):
            update = intake.checked(sent, reply)
            if update is not None:
                yield sent.job, update  # merge folds it in before the next reply is read

    if not merges:
        for _ in updates():  # devices train and send, but nothing arrives that could be merged
            pass
        return RoundResult(params, intake.state, intake.done)
    return intake.merged(updates())


def planned_jobs(
    method: Method, state: State, params: Params, round_: int, rates: Mapping[int, float], seed: int
) -> list[Job]:
    """Return the jobs that a method plans, checked."""
    found: Any = method.plan(state, params, round_, rates, seed)
    jobs = list(found) if isinstance(found, Iterable) else [found]
    if not all(isinstance(job, Job) for job in jobs):
        raise RunError(f"the method's plan returns {shortened(found)}; it must return one feddrop.Job per device.")
    return jobs


@dataclass(slots=True)
class Intake:
    """The server's side of a round: checks the replies one by one, keeps what each device did, merges the updates.

    Attributes:
        method: the learning method.
        params: the full network before the round.
        state: the method's state before the round.
        round: round, from 1.
        memories: what devices remember.
        num_samples: samples per device; None to accept the devices' own figures.
        guard: watches the updates.
        min_devices: fewest usable updates; fewer are a RunError.
        frozen: names of parameters that are not trained: devices have them, so they are not sent.
        untrained: the parameters that no device has held so far; those of every usable update are removed.
        lost: why the updates of these devices are lost on the way: they train and send, but are not merged.
        devices: what each device did, by its number.
    """

    method: Method
    params: Params
    state: State
    round: int
    memories: MemoryStore = field(default_factory=Forgetful, kw_only=True)
    num_samples: Sequence[int] | Mapping[int, int] | None = field(default=None, kw_only=True)
    guard: Guard = field(default_factory=Guard, kw_only=True)
    min_devices: int = field(default=1, kw_only=True)
    frozen: Set[str] = field(default=frozenset(), kw_only=True)
    untrained: Untrained | None = field(default=None, kw_only=True)
    lost: Mapping[int, str] = field(default_factory=dict, kw_only=True)
    devices: dict[int, DeviceRound] = field(default_factory=dict, init=False)

    @property
    def done(self) -> list[DeviceRound]:
        """What each device did, in the order of their numbers."""
        return [self.devices[number] for number in sorted(self.devices)]

    def merges(self, rates: Mapping[int, float]) -> bool:
        """Return whether enough updates of these devices can arrive to be merged; otherwise, all are lost."""
        if len(rates) - len(self.lost) >= self.min_devices or (rates and not self.lost):
            return True
        self.lost = {**dict.fromkeys(rates, TOO_FEW), **self.lost}
        return False

    def checked(self, sent: SentJob, reply: Reply) -> Update | None:
        """Return the update in a reply, if it is usable, and keep what the device did."""
        number = sent.job.device
        update, error = checked_update(self.method, sent, reply, self.num_samples, self.frozen)
        if update is not None and number in self.lost:
            update, error = None, f"lost: {self.lost[number]}"
        self.devices[number] = _summary(sent, reply, update, error)
        if update is not None or reply.forgot:
            self.memories.put(self.round, number, reply.memory if update else b"")
        if update is not None and self.untrained is not None:
            self.untrained.add(update.subnet)
        if update is not None and self.method.returns_weights:
            update = replace(update, values=_changes(update, self.params))
        return update

    def merged(
        self,
        updates: Iterable[tuple[Job, Update]],
        discount: Discount | None = None,
        looked: Looked | None = None,
    ) -> RoundResult:
        """Merge checked updates as they arrive, at most one per device.

        Args:
            updates: jobs and updates.
            discount: changes each update after the guard, for example by its staleness.
            looked: what the guard has seen of updates that are merged already.
        """

        def arrived() -> Iterator[tuple[Job, Update]]:
            yield from updates
            self._check_enough()

        watched = self.guard.watch(arrived(), self.params, self.round, self.note, looked)
        if discount is not None:
            watched = ((job, discount(job, update)) for job, update in watched)
        found: Any = self.method.merge(self.state, self.params, watched)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Mapping)):
            raise RunError(f"the method's merge returns {shortened(found)}; it must return (params, state).")
        merged, state = found
        _check_merged(watched, self.params, merged)
        self._check_enough()  # again: the guard may have refused some
        after = without_negative_variances(self.params, merged)
        return RoundResult(after, checked_state(state, "merge"), self.done)

    def note(self, device: int, **found: Any) -> None:
        """Keep what the guard found about an update; one with another status is not used."""
        refused: dict[str, Any] = {"loss": None, "num_samples": 0} if "status" in found else {}
        self.devices[device] = replace(self.devices[device], **found, **refused)

    def _check_enough(self) -> None:
        """Raise if the round has too few usable updates."""
        failed = [device.status for device in self.devices.values() if device.loss is None]
        count, least = len(self.devices), self.min_devices
        if count - len(failed) >= least:
            return
        different = list(dict.fromkeys(status.rstrip(".") for status in failed))
        reasons = "; ".join(different[:_MOST_REASONS]) or "none took part"
        if more := max(0, len(different) - _MOST_REASONS):
            reasons += f"; and {more} other reason{'s' if more > 1 else ''}"
        if 0 < count < least:
            reasons = f"only {count} took part. Lower server.min_devices, or let more take part"
        few = "no device" if least == 1 else f"fewer than {least} devices"
        raise RunError(f"{few} returned a usable update in round {self.round}: {reasons}.")


def _changes(update: Update, params: Params) -> Mapping[str, Tensor]:
    """Return the changes that lead from the server's weights to those of an update."""
    return {name: value - gather(params[name], update.subnet[name]) for name, value in update.values.items()}


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


def _check_merged(updates: Iterator[tuple[Job, Update]], before: Params, after: Params) -> None:
    """Raise unless a method's merge read all updates and returned a network of the same tensors."""
    if next(updates, None) is not None:
        raise RunError("the method's merge left updates unread; it must read all of them, also those that it drops.")
    kinds = [{name: f"{t.dtype} {list(t.shape)}" for name, t in tensors.items()} for tensors in (before, after)]
    for name in before.keys() | after.keys():
        expected, found = (kind.get(name, "nothing") for kind in kinds)
        if found != expected:
            raise RunError(f"the method's merge returns {found} for {name!r}; expected {expected}.")
