"""One direction of the band, shared by the devices that are sending at the moment.

A transfer is given in *full-band seconds*: how long it would take with the whole band to itself. With a share ρ of the
band it progresses at ``speed(ρ)``, which is ρ if the noise does not depend on the share. A device that finishes frees
its share for the others, so shares change while frames are on their way. Times are virtual seconds.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

_UNITS = 2**80
"""Weights are sums of integers in units of 2^-80, so that their sum does not depend on the order of arrivals."""


class Transfer(NamedTuple):
    """A frame to be sent."""

    seconds: float  # full-band seconds
    weight: float = 1.0  # share of the band relative to the weights of others; under fixed shares, the share itself
    snr: float = 0.0  # signal-to-noise ratio over the full band, if the noise shrinks with the share; 0 if it does not

    def speed(self, share: float) -> float:
        """Return the progress per second at a share of the band."""
        if not self.snr:
            return share
        return share * math.log1p(self.snr / share) / math.log1p(self.snr)


class SharedBand(Protocol):
    """A direction of the band. Times must not decrease from call to call."""

    def add(self, now: float, device: int, transfer: Transfer) -> None:
        """Start a transfer of a device that is not sending."""

    def next(self) -> tuple[float, int]:
        """Return when the next transfer ends if nothing changes before, and whose; infinity and -1 if none is sent."""

    def remove(self, now: float, device: int) -> float:
        """End the transfer of a device, done or not; return the full-band seconds that are left."""

    def save(self) -> dict[str, Any]:
        """Return the state as JSON values, from which :meth:`load` continues to the bit."""

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore a saved state."""


class FixedLink:
    """Every device keeps its share for the whole transfer, regardless of other devices."""

    def __init__(self) -> None:
        self._ends: dict[int, tuple[float, float]] = {}  # time, speed
        self._heap: list[tuple[float, int]] = []

    def add(self, now: float, device: int, transfer: Transfer) -> None:
        """Start a transfer; its weight is its share."""
        speed = transfer.speed(transfer.weight)
        self._ends[device] = (now + transfer.seconds / speed, speed)
        heapq.heappush(self._heap, (self._ends[device][0], device))

    def next(self) -> tuple[float, int]:
        """Return when the next transfer ends, and whose."""
        return _earliest(self._heap, self._ends) or (math.inf, -1)

    def remove(self, now: float, device: int) -> float:
        """End a transfer; return the full-band seconds that are left."""
        end, speed = self._ends.pop(device)
        return max(0.0, end - now) * speed

    def save(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"ends": [[device, *known] for device, known in sorted(self._ends.items())]}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Return to a saved state."""
        self._ends = {int(device): (end, speed) for device, end, speed in saved["ends"]}
        self._heap = sorted((end, device) for device, (end, _) in self._ends.items())


class SharedLink:
    """The band is split in proportion to the weights of the devices that are sending; O(log n) per change.

    This is weighted processor sharing. A virtual clock V runs at the rate 1/Σ weights, so a transfer of s full-band
    seconds and weight w that starts at V ends at V + s/w, whatever the others do: one heap of these numbers is enough.
    """

    def __init__(self) -> None:
        self._now, self._virtual, self._total = 0.0, 0.0, 0
        self._weight = 0.0  # the total as a number
        self._ends: dict[int, tuple[float, int]] = {}  # virtual time, weight in units
        self._heap: list[tuple[float, int]] = []

    def add(self, now: float, device: int, transfer: Transfer) -> None:
        """Start a transfer."""
        if transfer.snr:
            raise ValueError("the noise of this transfer depends on its share; use a SubbandLink.")
        self._advance(now)
        weight = max(1, round(transfer.weight * _UNITS))
        end = self._virtual + transfer.seconds / (weight / _UNITS)
        self._ends[device] = (end, weight)
        self._total += weight
        self._weight = self._total / _UNITS
        heapq.heappush(self._heap, (end, device))

    def next(self) -> tuple[float, int]:
        """Return when the next transfer ends if nothing changes before, and whose; ties by device number."""
        top = _earliest(self._heap, self._ends)
        if top is None:
            return math.inf, -1
        return self._now + (top[0] - self._virtual) * self._weight, top[1]

    def remove(self, now: float, device: int) -> float:
        """End a transfer; return the full-band seconds that are left."""
        time, first = self.next()
        end, weight = self._ends[device]
        if device == first and now >= time:  # to the bit: rounding must not delay others that end now, too
            self._now, self._virtual = now, end
        else:
            self._advance(now)
        del self._ends[device]
        self._total -= weight
        self._weight = self._total / _UNITS
        left = (end - self._virtual) * (weight / _UNITS)
        if not self._ends:  # reset V, so that it never grows large against what is added to it
            self._virtual, self._heap = 0.0, []
        return left

    def save(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        ends = [[device, end, str(weight)] for device, (end, weight) in sorted(self._ends.items())]
        return {"now": self._now, "virtual": self._virtual, "ends": ends}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Return to a saved state."""
        self._now, self._virtual = saved["now"], saved["virtual"]
        self._ends = {int(device): (end, int(weight)) for device, end, weight in saved["ends"]}
        self._total = sum(weight for _, weight in self._ends.values())
        self._weight = self._total / _UNITS
        self._heap = sorted((end, device) for device, (end, _) in self._ends.items())

    def _advance(self, now: float) -> None:
        top = _earliest(self._heap, self._ends)
        if top is not None:
            self._virtual = min(top[0], self._virtual + (now - self._now) / self._weight)
        self._now = now


def _earliest(heap: list[tuple[float, int]], ends: Mapping[int, tuple[float, float]]) -> tuple[float, int] | None:
    """Return the first entry of a heap that is not outdated, and drop those before it; None if none is left."""
    while heap and ends.get(heap[0][1], (math.nan,))[0] != heap[0][0]:
        heapq.heappop(heap)
    return heap[0] if heap else None


class SubbandLink:
    """The same split for noise that shrinks with the share, so that speed is not proportional to it; O(n) per change.

    Every change moves the remainder of every transfer. It is also correct for constant noise, where it is the slow twin
    of :class:`SharedLink`.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._left: dict[int, tuple[float, Transfer]] = {}

    def add(self, now: float, device: int, transfer: Transfer) -> None:
        """Start a transfer."""
        self._advance(now)
        self._left[device] = (transfer.seconds, transfer)

    def next(self) -> tuple[float, int]:
        """Return when the next transfer ends if nothing changes before, and whose; ties by device number."""
        speeds = self._speeds()
        ends = ((self._now + left / speeds[device], device) for device, (left, _) in self._left.items())
        return min(ends, default=(math.inf, -1))

    def remove(self, now: float, device: int) -> float:
        """End a transfer; return the full-band seconds that are left."""
        done = self.next() <= (now, device)
        self._advance(now)
        left, _ = self._left.pop(device)
        return 0.0 if done else left

    def save(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        left = [[device, left, *transfer] for device, (left, transfer) in sorted(self._left.items())]
        return {"now": self._now, "left": left}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Return to a saved state."""
        self._now = saved["now"]
        self._left = {int(device): (left, Transfer(*rest)) for device, left, *rest in saved["left"]}

    def _advance(self, now: float) -> None:
        speeds = self._speeds()
        for device, (left, transfer) in self._left.items():
            self._left[device] = (max(0.0, left - (now - self._now) * speeds[device]), transfer)
        self._now = now

    def _speeds(self) -> dict[int, float]:
        total = math.fsum(transfer.weight for _, transfer in self._left.values())
        return {device: transfer.speed(transfer.weight / total) for device, (_, transfer) in self._left.items()}
