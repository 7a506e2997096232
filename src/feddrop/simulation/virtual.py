"""A server step under a virtual clock: advance the clock until it is due, and merge the answers that count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from feddrop.config import Radio, RunConfig
from feddrop.executors import Executor
from feddrop.radio.plan import ArrayState
from feddrop.simulation.clock import Ended, VirtualClock, link_for
from feddrop.simulation.events import ARRIVED
from feddrop.simulation.exchange import MemoryStore
from feddrop.simulation.flights import Flight, Flights, unanswered
from feddrop.simulation.preparation import Prepared
from feddrop.simulation.recording import counted
from feddrop.simulation.round import DeviceRound, RoundResult
from feddrop.simulation.schemes import RoundPlan
from feddrop.storage import DeviceRecord, RoundRecord
from feddrop.storage.records import LOST, STALE

if TYPE_CHECKING:
    from feddrop.simulation.server import ServerState


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualStep:
    """What happened up to a server step."""

    plan: RoundPlan  # what the scheme chose for the devices that were started first
    result: RoundResult  # the merged network, and the devices whose answers arrived
    entries: Sequence[DeviceRecord]  # one record per job that ended
    clock: VirtualClock  # the clock at the step
    under_way: Mapping[int, Flight]  # the jobs that are still under way
    cell: ArrayState  # what the scheme remembers

    def recorded(self, record: RoundRecord, start_s: float) -> RoundRecord:
        """Return the record of the step with the jobs that ended in it, its time and its energy."""
        rates = [entry.rate for entry in self.entries if entry.took_part and entry.rate is not None]
        return replace(
            record,
            push_bytes=sum(entry.push_bytes for entry in self.entries),
            pull_bytes=sum(entry.pull_bytes for entry in self.entries),
            latency_s=self.clock.events.now - start_s,
            energy_j=sum(entry.energy_j or 0.0 for entry in self.entries),
            counts=counted(self.entries),
            mean_rate=sum(rates) / len(rates) if rates else None,
            devices=tuple(self.entries),
        )


def first_clock(config: RunConfig, radio: Radio, devices: int) -> VirtualClock:
    """Return the virtual clock of a run at its start."""
    return VirtualClock(
        config.clock,
        devices,
        config.seed,
        link_for(config.clock, radio.noise),
        window_s=config.clock.window_s or radio.deadline_s,
        least=config.server.min_devices,
    )


def virtual_step(
    ready: Prepared, server: ServerState, clock: VirtualClock, executor: Executor, memories: MemoryStore
) -> VirtualStep:
    """Advance the clock until a server step is due, and merge the answers that count, by job and device."""
    clock, round_ = clock.copied(), server.round + 1
    crew = Flights(ready, server, clock, executor, memories)
    ended = clock.step(crew)
    flights = [crew.of(one.job) for one in ended]
    for one in ended:  # a device that vanished may have been asked again
        if one.job.device not in clock.events.jobs:
            crew.under_way.pop(one.job.device, None)
    crew.train()  # before the network changes
    ends = [_how_it_ended(one, flight, crew) for one, flight in zip(ended, flights, strict=True)]
    arrived = {one.job.device: n for n, one in enumerate(ended) if ends[n] == ARRIVED}
    order = sorted(arrived.values(), key=lambda n: (flights[n].sent.job.round, ended[n].job.device))
    intake = server.intake(ready, memories)
    updates = (
        (flight.sent.job, update)
        for flight in (flights[n] for n in order)
        if flight.reply is not None and (update := intake.checked(flight.sent, flight.reply)) is not None
    )
    result = intake.merged(updates, crew.discounted)
    done = {device.device: device for device in result.devices}
    entries = [
        _entry(one, flight, done[one.job.device] if n in order else None, ends[n], round_)
        for n, (one, flight) in enumerate(zip(ended, flights, strict=True))
    ]
    plan = crew.plans[0] if crew.plans else RoundPlan(rates={})
    left_out = sorted({k for one in crew.plans for k in one.left_out} - {e.device for e in entries} - {*crew.under_way})
    entries = sorted(entries, key=lambda entry: (entry.device, entry.start_s or 0.0))
    entries += [DeviceRecord(device=k, rate=1.0, share=0.0, status="left out") for k in left_out]
    return VirtualStep(plan=plan, result=result, entries=entries, clock=clock, under_way=crew.under_way, cell=crew.cell)


def _how_it_ended(one: Ended, flight: Flight, crew: Flights) -> str:
    """Return whether an answer arrived, or the status of a job without one."""
    if one.what != ARRIVED:
        return one.what
    if flight.pace.lost and flight.reply is not None and not flight.reply.error:
        return f"{LOST}: {flight.pace.lost}"
    return STALE if crew.is_stale(flight.sent.job) else ARRIVED


def _entry(one: Ended, flight: Flight, done: DeviceRound | None, status: str, round_: int) -> DeviceRecord:
    """Return the record of a job that ended; ``done`` is its answer, unless its device failed and was asked again."""
    failed = flight.reply.error if flight.reply is not None and status == ARRIVED else ""
    job, found = one.job, done or unanswered(flight, one.job, failed or status)
    about: dict[str, Any] = dict(flight.pace.record)
    return DeviceRecord(
        device=job.device,
        rate=found.rate,
        samples=found.num_samples,
        push_bytes=found.push_bytes,
        pull_bytes=found.pull_bytes,
        latency_s=job.seconds,
        energy_j=flight.pace.energy_j(job),
        loss=found.loss,
        status=found.status,
        suspicious=found.suspicious or None,
        update_size=found.size,
        push_s=job.push_s,
        compute_s=job.compute_s,
        pull_s=job.pull_s,
        start_s=job.start_s,
        staleness=round_ - flight.sent.job.round,
        **about,
    )
