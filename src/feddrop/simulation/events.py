"""Events in the cell, in virtual seconds: downloads, computations and uploads end, and devices vanish.

This file knows neither networks nor learning: an event queue over two links (:mod:`feddrop.simulation.link`) and a heap
of timers. An event costs O(log n) for n devices. Simultaneous events are ordered by device number.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from feddrop.simulation.link import SharedBand, Transfer

DOWNLOADED, COMPUTED, ARRIVED, VANISHED = "downloaded", "computed", "arrived", "vanished"


class Event(NamedTuple):
    """Something that happened: when, to which device, and what."""

    time: float
    device: int
    what: str


@dataclass(slots=True, kw_only=True)
class Transit:
    """A job under way, or what it took once it ended. Durations are those so far."""

    device: int  # device number
    serial: int  # number of the job, from 1, in the order of starts
    start_s: float  # when the download started
    until_s: float  # when the device goes offline; infinity if never
    phase: str  # what it is doing: ``"download"``, ``"compute"``, ``"ready"`` to upload, or ``"upload"``
    since_s: float  # when that began
    push_s: float = 0.0  # seconds of the download
    compute_s: float = 0.0  # seconds of the computation
    pull_s: float = 0.0  # seconds of the upload
    push_share: float = 0.0  # the part of the download that is done
    pull_share: float = 0.0  # the part of the upload that is done
    work_s: float = 0.0  # seconds that the computation takes
    transfer_s: float = 0.0  # full-band seconds of the current transfer

    @property
    def seconds(self) -> float:
        """Seconds from the start of the download to the end of the job."""
        return self.push_s + self.compute_s + self.pull_s


class Events:
    """The jobs under way and the clock.

    Start a job with :meth:`start`; :meth:`step` moves the clock to the next event and returns it. After ``"computed"``,
    give the size of the upload with :meth:`upload`. ``"arrived"`` and ``"vanished"`` end a job.

    Attributes:
        now: virtual seconds since the start.
        count: number of events so far.
        serial: number of jobs started so far.
        jobs: the jobs under way, by device.

    Args:
        link: creates the downlink and the uplink.
    """

    def __init__(self, link: Callable[[], SharedBand]) -> None:
        self.now, self.count, self.serial = 0.0, 0, 0
        self.jobs: dict[int, Transit] = {}
        self._down, self._up = link(), link()
        self._computing: list[tuple[float, int, int]] = []  # time, device, serial
        self._leaving: list[tuple[float, int, int]] = []
        self._upcoming: tuple[float, int, int] | None = None  # the next event, until something changes

    def start(self, device: int, push: Transfer, work_s: float, *, until_s: float = math.inf) -> Transit:
        """Start a job now: a download, then a computation.

        Args:
            device: device number; it must have no job.
            push: the download.
            work_s: seconds of the computation.
            until_s: when the device goes offline; the job is lost unless its upload ended by then.
        """
        if device in self.jobs:
            raise ValueError(f"device {device} already has a job.")
        self.serial += 1
        job = Transit(
            device=device,
            serial=self.serial,
            start_s=self.now,
            until_s=until_s,
            phase="download",
            since_s=self.now,
            work_s=work_s,
            transfer_s=push.seconds,
        )
        self.jobs[device] = job
        self._down.add(self.now, device, push)
        self._upcoming = None
        if until_s < math.inf:
            heapq.heappush(self._leaving, (until_s, device, job.serial))
        return job

    def upload(self, device: int, pull: Transfer) -> None:
        """Start the upload of a device whose computation has ended."""
        job = self.jobs[device]
        if job.phase != "ready":
            raise ValueError(f"device {device} cannot upload during {job.phase}.")
        job.phase, job.since_s, job.transfer_s = "upload", self.now, pull.seconds
        self._up.add(self.now, device, pull)
        self._upcoming = None

    def next_s(self) -> float:
        """Return when the next event is; infinity without events."""
        return self._next()[0]

    def step(self) -> tuple[Event, Transit]:
        """Move the clock to the next event; return it with its job."""
        time, device, rank = self._next()
        if rank < 0:
            raise ValueError("there is no event to come.")
        time = max(self.now, time)  # rounding must not turn the clock back
        self.now, job = time, self.jobs[device]
        self.count += 1
        if rank == _LEAVE:
            return Event(time, device, VANISHED), self.cancel(device)
        if rank == _DOWN:
            self._end_phase(job)
            job.phase, job.since_s = "compute", time
            heapq.heappush(self._computing, (time + job.work_s, device, job.serial))
            return Event(time, device, DOWNLOADED), job
        if rank == _COMPUTE:
            self._end_phase(job)
            job.phase, job.since_s = "ready", time
            return Event(time, device, COMPUTED), job
        return Event(time, device, ARRIVED), self.cancel(device)

    def advance(self, time: float) -> None:
        """Move the clock to a time before the next event."""
        if not self.now <= time <= self.next_s():
            raise ValueError(f"cannot move from {self.now} s to {time} s; the next event is at {self.next_s()} s.")
        self.now = time

    def cancel(self, device: int) -> Transit:
        """End the job of a device now, done or not; its share of the band is free for others."""
        job = self.jobs[device]
        self._end_phase(job)
        del self.jobs[device]
        return job

    def save(self) -> dict[str, Any]:
        """Return the state as JSON values, from which :meth:`load` continues to the bit."""
        return {
            "now": self.now,
            "count": self.count,
            "serial": self.serial,
            "jobs": [asdict(job) for job in self.jobs.values()],
            "down": self._down.save(),
            "up": self._up.save(),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Return to a saved state."""
        self.now, self.count, self.serial = saved["now"], saved["count"], saved["serial"]
        self._upcoming = None
        self.jobs = {job["device"]: Transit(**job) for job in saved["jobs"]}
        self._down.load(saved["down"])
        self._up.load(saved["up"])
        jobs = list(self.jobs.values())
        self._computing = sorted((j.since_s + j.work_s, j.device, j.serial) for j in jobs if j.phase == "compute")
        self._leaving = sorted((j.until_s, j.device, j.serial) for j in jobs if j.until_s < math.inf)

    def _next(self) -> tuple[float, int, int]:
        """Return time, device and rank of the next event; a device that vanishes at the moment it ends, ends."""
        if self._upcoming is None:
            self._upcoming = self._found()
        return self._upcoming

    def _found(self) -> tuple[float, int, int]:
        down, up = self._down.next(), self._up.next()
        found = [(*down, _DOWN)] if down[1] >= 0 else []
        if up[1] >= 0:
            found.append((*up, _UP))
        for rank, heap, phase in ((_COMPUTE, self._computing, "compute"), (_LEAVE, self._leaving, "")):
            while heap and not self._current(heap[0], phase):
                heapq.heappop(heap)
            if heap:
                found.append((heap[0][0], heap[0][1], rank))
        return min(found, default=(math.inf, -1, -1))

    def _current(self, entry: tuple[float, int, int], phase: str) -> bool:
        job = self.jobs.get(entry[1])
        return job is not None and job.serial == entry[2] and phase in ("", job.phase)

    def _end_phase(self, job: Transit) -> None:
        """Record what a job has done of its current phase."""
        self._upcoming, lasted = None, self.now - job.since_s
        if job.phase == "download":
            left = self._down.remove(self.now, job.device)
            job.push_s, job.push_share = lasted, _done(left, job.transfer_s)
        elif job.phase == "compute":
            job.compute_s = lasted
        elif job.phase == "upload":
            left = self._up.remove(self.now, job.device)
            job.pull_s, job.pull_share = lasted, _done(left, job.transfer_s)


_DOWN, _COMPUTE, _UP, _LEAVE = range(4)


def _done(left: float, whole: float) -> float:
    """Return the part of a transfer that is done."""
    return 1.0 - left / whole if left > 0 else 1.0
