"""When a server step is due: after the first m answers, at the end of a window, or when a buffer is full.

This file decides which devices start when and which answers count; it knows neither networks nor bytes. Its server side
is a :class:`Crew`, which cuts subnets and trains them. Everything is a function of the seed, so a run that returns to a
saved state repeats every event.
"""

from __future__ import annotations

import copy
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from feddrop.config import Clock
from feddrop.errors import RunError
from feddrop.seeds import derive
from feddrop.simulation.availability import Availability
from feddrop.simulation.events import ARRIVED, COMPUTED, VANISHED, Events, Transit
from feddrop.simulation.link import FixedLink, SharedBand, SharedLink, SubbandLink, Transfer
from feddrop.storage.records import DROPPED

_WAVES = 1000
"""Attempts to get enough answers in one step; more mean that devices are never online for long enough."""


class Ended(NamedTuple):
    """A job that ended: what it took, how it ended, and whether it is an answer that counts."""

    job: Transit
    what: str
    counts: bool = False


class Crew(Protocol):
    """The server side of a clock."""

    def choose(self, devices: Sequence[int]) -> Sequence[int]:
        """Choose the devices of a round among those that are idle and online."""

    def start(self, devices: Sequence[int]) -> None:
        """Start a job on each of these devices, except those that are left out."""

    def upload(self, device: int) -> Transfer:
        """Return the size of a device's answer; called when its computation ends."""

    def counts(self, job: Transit) -> bool:
        """Return whether an answer that arrived counts: the device did not fail, and it is not too stale."""


def link_for(config: Clock, noise: str) -> Callable[[], SharedBand]:
    """Return the class of the links between devices and server."""
    if config.sharing == "fixed":
        return FixedLink
    return SubbandLink if noise == "subband" else SharedLink


class VirtualClock:
    """The clock of a run: the events in the cell, whose links ``link`` creates, and who is idle.

    A step takes at least ``least`` answers, and those of ``window_s`` seconds if the clock has windows.
    """

    def __init__(
        self,
        config: Clock,
        devices: int,
        seed: int,
        link: Callable[[], SharedBand],
        *,
        window_s: float = math.inf,
        least: int = 1,
    ) -> None:
        self._config, self._devices, self._seed, self._least = config, devices, seed, least
        self._window_s = window_s if config.kind == "window" else math.inf
        self._busy = min(config.concurrency or devices, devices)
        self._link = link
        self.events, self.availability = Events(link), Availability(config, devices, seed)
        self._idle, self._picks = list(range(devices)), 0
        self._asleep: list[tuple[float, int]] = []  # when idle devices come online
        self._resting: dict[int, bool] = {}  # devices that ended in this step, and whether they may be asked again

    def step(self, crew: Crew) -> list[Ended]:
        """Advance the clock until a server step is due; return the jobs that ended, in the order of their ends."""
        return self._buffered(crew) if self._config.kind == "buffered" else self._cohort(crew)

    def start(self, device: int, push: Transfer, work_s: float) -> Transit:
        """Start a job on a device that is online."""
        until = self.availability.until(device, self.events.now)
        return self.events.start(device, push, work_s, until_s=until)

    def copied(self) -> VirtualClock:
        """Return an independent copy."""
        other = copy.copy(self)
        other.events = Events(self._link)
        other.load(self.save())
        return other

    def save(self) -> dict[str, Any]:
        """Return the state as JSON values, from which :meth:`load` continues to the bit."""
        resting = [[device, again] for device, again in self._resting.items()]
        return {
            "events": self.events.save(),
            "idle": list(self._idle),
            "picks": self._picks,
            "asleep": list(self._asleep),
            "resting": resting,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Return to a saved state."""
        self.events.load(saved["events"])
        self._idle, self._picks = list(saved["idle"]), saved["picks"]
        self._asleep = [(time, device) for time, device in saved["asleep"]]
        self._resting = dict(saved["resting"])

    # --- the first m, and windows

    def _cohort(self, crew: Crew) -> list[Ended]:
        """Start a cohort, and wait until enough answers have arrived or the window ends."""
        ended, waves, wanted = list[Ended](), 0, self._config.count or math.inf
        end_s, answers = math.inf, 0
        while answers < wanted:
            if not waves or not self.events.jobs:
                if waves and answers >= self._least:
                    break  # nobody is left to answer
                self._check_waves(waves)
                self._start_cohort(crew, {one.job.device for one in ended if one.counts})
                end_s = self.events.now + self._window_s
                waves += 1
                continue
            if self.events.next_s() > end_s and answers >= self._least:
                self.events.advance(max(self.events.now, end_s))
                break
            if (one := self._event(crew)) is not None:
                ended.append(one)
                answers += one.counts
        if self._config.late == "drop":
            ended += [Ended(self.events.cancel(device), DROPPED) for device in sorted(self.events.jobs)]
        return ended

    def _start_cohort(self, crew: Crew, answered: set[int]) -> None:
        """Start the devices that the server chooses among those that are idle, online and have not answered yet.

        If there are none, wait until one comes online, unless other devices are still busy.
        """
        now = self.events.now
        idle = [device for device in range(self._devices) if device not in self.events.jobs and device not in answered]
        there = [device for device in idle if self.availability.online(device, now)]
        if not there and not self.events.jobs:
            wake = min((self.availability.next_available(device, now) for device in idle), default=math.inf)
            self._check_wake(wake)
            self.events.advance(wake)
            there = [device for device in idle if self.availability.online(device, wake)]
        if there:
            crew.start(crew.choose(there))

    # --- buffered

    def _buffered(self, crew: Crew) -> list[Ended]:
        """Keep devices busy until the buffer is full.

        A device that has answered is asked again only in the next step; one that vanished, once it is back.
        """
        self._rested(all_of_them=True)
        ended, answers, waves = list[Ended](), 0, 0
        gone, most = 0, _WAVES + 10 * self._devices  # devices that vanished since the last answer
        while answers < self._config.buffer and not (gone >= most and answers >= self._least):
            if gone >= most:
                self._check_waves(gone)
            self._fill(crew)
            free = len(self.events.jobs) < self._busy
            wake = self._asleep[0][0] if self._asleep and free else math.inf
            time = self.events.next_s()
            if time == wake == math.inf:
                if answers >= self._least:
                    break
                waves += 1
                self._check_waves(waves)
                if not self._rested(all_of_them=False):
                    self._check_wake(math.inf)
            elif wake < time:
                self.events.advance(max(self.events.now, wake))
                while self._asleep and self._asleep[0][0] <= self.events.now:
                    self._idle.append(heapq.heappop(self._asleep)[1])
            elif (one := self._event(crew)) is not None:
                ended.append(one)
                answers += one.counts
                if one.what == VANISHED:
                    self._idle.append(one.job.device)
                    gone += 1
                else:
                    self._resting[one.job.device] = not one.counts
                    gone = 0
        return ended

    def _fill(self, crew: Crew) -> None:
        """Start devices drawn at random from the idle ones that are online, as many as may be busy."""
        chosen, now = list[int](), self.events.now
        while self._idle and len(self.events.jobs) + len(chosen) < self._busy:
            at = derive(self._seed, "dispatch", self._picks) % len(self._idle)
            self._picks += 1
            self._idle[at], self._idle[-1] = self._idle[-1], self._idle[at]
            device = self._idle.pop()
            wake = self.availability.next_available(device, now)
            if wake <= now:
                chosen.append(device)
            elif wake < math.inf:
                heapq.heappush(self._asleep, (wake, device))
        if chosen:
            crew.start(sorted(chosen))
            for device in sorted(set(chosen) - self.events.jobs.keys()):  # left out by the scheme
                self._resting[device] = False

    def _rested(self, *, all_of_them: bool) -> bool:
        """Make devices idle again: all that ended, or those that ended without an answer; return whether any."""
        back = [device for device in sorted(self._resting) if all_of_them or self._resting[device]]
        for device in back:
            del self._resting[device]
        self._idle += back
        return bool(back)

    # --- both

    def _event(self, crew: Crew) -> Ended | None:
        """Process the next event; return its job if it ended."""
        event, job = self.events.step()
        if event.what == COMPUTED:
            self.events.upload(event.device, crew.upload(event.device))
        if event.what == VANISHED:
            return Ended(job, VANISHED)
        return Ended(job, ARRIVED, crew.counts(job)) if event.what == ARRIVED else None

    def _check_waves(self, waves: int) -> None:
        if waves >= _WAVES:
            raise RunError(
                f"after {_WAVES} attempts, fewer than {self._least} devices have answered by {self.events.now:g} s. "
                "Keep devices online for longer (clock.trace, clock.pattern), lose fewer answers (radio.outcome), or "
                "lower server.min_devices."
            )

    def _check_wake(self, wake: float) -> None:
        if wake == math.inf:
            raise RunError(
                f"fewer than {self._least} devices can answer after {self.events.now:g} s: no other comes online or "
                "gets a rate. Extend clock.trace, or end the run earlier with seconds."
            )
