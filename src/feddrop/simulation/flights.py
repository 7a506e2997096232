"""The jobs under way in a virtual clock: what was sent, what will come back, and how they are saved.

A job is cut from the network at its start. It is trained before its answer is needed and before the network changes,
together with all other waiting jobs, so that executors get several at a time. The clock schedules the *arrival* of the
answer. A checkpoint holds every job under way with its frame, as tensors and JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from feddrop.errors import RunError
from feddrop.executors import Executor, Parcel, Reply
from feddrop.methods.method import Job, Method, Spec, Update
from feddrop.seeds import derive, generator
from feddrop.simulation.clock import VirtualClock
from feddrop.simulation.events import Transit
from feddrop.simulation.exchange import MemoryStore, SentJob, packed
from feddrop.simulation.job_pace import CellPace, JobPace
from feddrop.simulation.link import Transfer
from feddrop.simulation.preparation import Prepared
from feddrop.simulation.round import DeviceRound, planned_jobs
from feddrop.simulation.schemes import RoundPlan

if TYPE_CHECKING:
    from feddrop.simulation.server import ServerState


@dataclass(slots=True, kw_only=True)
class Flight:
    """One job under way."""

    sent: SentJob  # the job, its subnet and its frame's size
    pace: JobPace  # its seconds and joules in the cell
    parcel: Parcel | None  # what the device gets; None once it has trained
    reply: Reply | None = None  # what it returns; None before it has trained


class Flights:
    """The server side of a clock during one step (a :class:`feddrop.simulation.clock.Crew`).

    Attributes:
        under_way: the jobs under way, by device.
        plans: the plans by which devices were started in this step.
        cell: what the scheme remembers.
    """

    def __init__(
        self, ready: Prepared, server: ServerState, clock: VirtualClock, executor: Executor, memories: MemoryStore
    ) -> None:
        self._ready, self._server, self._round = ready, server, server.round + 1
        self._clock, self._executor, self._memories = clock, executor, memories
        self.cell = server.cell
        self.under_way, self.plans = dict(server.under_way), list[RoundPlan]()
        self._by_serial = {clock.events.jobs[device].serial: flight for device, flight in self.under_way.items()}
        config, scheme = ready.config, ready.scheme
        costs = config.radio.costs if config.radio else "measured"
        self._pace = CellPace(getattr(scheme, "cell"), ready.work, costs, config.clock.sharing)  # noqa: B009

    def choose(self, devices: Sequence[int]) -> Sequence[int]:
        """Choose the devices of a round among these."""
        chosen: list[int] = self._ready.roster.chosen(self._round, devices).tolist()
        return chosen

    def start(self, devices: Sequence[int]) -> None:
        """Plan for these devices and all that are busy, cut subnets, and start the downloads."""
        ready, config, params = self._ready, self._ready.config, self._server.params
        events = self._clock.events
        with ready.roster.holding({*devices, *events.jobs}, start=events.serial + 1):
            plan = ready.scheme.decide(self._round, self.cell, params)
        self.cell = plan.state
        self.plans.append(plan)
        rates = {device: plan.rates[device] for device in devices if device in plan.rates}
        if not rates:
            return
        for job in planned_jobs(ready.method, self._server.state, params, self._round, rates, config.seed):
            dtype = plan.dtypes or config.execution.dtype
            sent, parcel, error = packed(ready.method, params, job, dtype, self._memories, ready.frozen)
            pace, push, work_s = self._pace.of(plan, sent)
            reply = None if parcel is not None else Reply(error=error, sent=False)
            flight = Flight(sent=sent, pace=pace, parcel=parcel, reply=reply)
            work_s = work_s * self._slowdown(job) if parcel is not None else 0.0
            transit = self._clock.start(job.device, push, work_s)
            self.under_way[job.device] = self._by_serial[transit.serial] = flight

    def _slowdown(self, job: Job) -> float:
        """Return how many times as long as planned a job computes."""
        spread = self._ready.config.clock.slowdown
        if not spread:
            return 1.0
        drawn = generator(derive(self._ready.config.seed, "slowdown", job.round, job.device)).standard_normal()
        return math.exp(spread * float(drawn))

    def upload(self, device: int) -> Transfer:
        """Return the size of a device's answer; if it is not known yet, train all waiting jobs."""
        if self.under_way[device].reply is None:
            self.train()
        flight = self.under_way[device]
        return flight.pace.pull(len(flight.reply.frame) if flight.reply else 0)

    def of(self, job: Transit) -> Flight:
        """Return what was sent with a job; its device may have another one since."""
        return self._by_serial[job.serial]

    def train(self) -> None:
        """Train every job that has not been trained yet."""
        waiting = [flight for flight in self.under_way.values() if flight.reply is None]
        parcels = (flight.parcel for flight in waiting if flight.parcel is not None)
        replies = list(self._executor.compute(parcels)) if waiting else []
        if len(replies) != len(waiting):
            counts = f"{len(replies)} replies to {len(waiting)} parcels"
            raise RunError(f"the executor returned {counts}. Its compute() must return one per parcel, in order.")
        for flight, reply in zip(waiting, replies, strict=True):
            flight.reply, flight.parcel = reply, None

    def counts(self, job: Transit) -> bool:
        """Return whether an answer counts: it was not lost, the device did not fail, and it is not too stale."""
        flight = self.of(job)
        usable = flight.reply is not None and not flight.reply.error and not flight.pace.lost
        return usable and not self.is_stale(flight.sent.job)

    def is_stale(self, job: Job) -> bool:
        """Return whether a job is older than the bound on staleness."""
        most = self._ready.config.clock.max_staleness
        return 0 < most < self._round - job.round

    def discounted(self, job: Job, update: Update) -> Update:
        """Return an update with its staleness weight applied."""
        config, age = self._ready.config.clock, self._round - job.round
        if not age or not config.staleness_power:
            return update
        factor = (1.0 + age) ** -config.staleness_power
        if config.staleness_on == "weight":
            return replace(update, weight=update.weight * factor)
        return replace(update, values={name: value * factor for name, value in update.values.items()})


def unanswered(flight: Flight, job: Transit, status: str) -> DeviceRound:
    """Return the round of a device whose answer does not count; it is billed for what it has sent."""
    sent, reply = flight.sent, flight.reply
    pull = len(reply.frame) if reply is not None else 0
    return DeviceRound(
        device=job.device,
        rate=sent.job.rate,
        num_samples=0,
        loss=None,
        push_bytes=math.ceil(sent.push_bytes * job.push_share),
        pull_bytes=math.ceil(pull * job.pull_share),
        kept={name: piece.size for name, piece in sent.subnet.items()},
        status=status,
        suspicious="",
        seconds=reply.seconds if reply is not None else 0.0,
    )


# --- saving


def save_flights(clock: VirtualClock, under_way: Mapping[int, Flight]) -> dict[str, Tensor]:
    """Return the clock and the jobs under way as tensors; every job must have been trained."""
    found, jobs = dict[str, Tensor](), list[dict[str, Any]]()
    for device, flight in under_way.items():
        job, reply = flight.sent.job, flight.reply
        if reply is None:
            raise ValueError(f"the job of device {device} has not been trained.")
        jobs.append(
            {
                "job": {"round": job.round, "device": device, "seed": str(job.seed), "rate": job.rate},
                "remembered": sorted(job.remembered),
                "asks": {name: [spec.dtype, list(spec.shape)] for name, spec in job.asks.items()},
                "dtype": flight.sent.dtype,
                "push_bytes": flight.sent.push_bytes,
                "pace": asdict(flight.pace),
                "reply": {"error": reply.error, "forgot": reply.forgot, "sent": reply.sent},
            }
        )
        found |= {f"payload/{device}/{name}": tensor for name, tensor in job.payload.items()}
        found |= {f"frame/{device}": _to_tensor(reply.frame), f"memory/{device}": _to_tensor(reply.memory)}
    text = json.dumps({"clock": clock.save(), "jobs": jobs})
    return found | {"json": _to_tensor(text.encode())}


def load_flights(clock: VirtualClock, method: Method, saved: Mapping[str, Tensor]) -> dict[int, Flight]:
    """Restore the clock; return the jobs under way."""
    try:
        text = json.loads(_to_bytes(saved["json"]))
        clock.load(text["clock"])
        return {one["job"]["device"]: _flight(method, one, saved) for one in text["jobs"]}
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"the state of the clock in the checkpoint is unreadable ({error}). Start a new run.") from None


def _flight(method: Method, one: Mapping[str, Any], saved: Mapping[str, Tensor]) -> Flight:
    device = one["job"]["device"]
    prefix = f"payload/{device}/"
    job = Job(
        round=one["job"]["round"],
        device=device,
        seed=int(one["job"]["seed"]),
        rate=one["job"]["rate"],
        payload={name.removeprefix(prefix): tensor for name, tensor in saved.items() if name.startswith(prefix)},
        remembered=frozenset(one["remembered"]),
        asks={name: Spec(dtype, tuple(shape)) for name, (dtype, shape) in one["asks"].items()},
    )
    sent = SentJob(job, method.cut(job), one["dtype"], one["push_bytes"])
    frame, memory = (_to_bytes(saved[f"{what}/{device}"]) for what in ("frame", "memory"))
    reply = Reply(frame=frame, memory=memory, **one["reply"])
    return Flight(sent=sent, pace=JobPace(**one["pace"]), parcel=None, reply=reply)


def _to_tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8))


def _to_bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()
