"""Seconds of the event loop alone, without training, and its growth with devices and events.

A buffered clock keeps all devices busy with jobs whose frames and work are drawn at random. Every job has three events:
downloaded, computed, arrived. Run ``python benchmarks/bench_clock.py``; ``--small`` is what the tests run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from feddrop.config import Clock
from feddrop.simulation.clock import VirtualClock
from feddrop.simulation.events import Transit
from feddrop.simulation.link import SharedBand, SharedLink, SubbandLink, Transfer


class DrawnCrew:
    """Devices whose frames and work are drawn; nothing is trained."""

    def __init__(self, seed: int) -> None:
        self._draw, self.clock = np.random.default_rng(seed), None

    def choose(self, devices: Sequence[int]) -> Sequence[int]:
        """Choose all."""
        return devices

    def start(self, devices: Sequence[int]) -> None:
        """Start a job on each device: a download and some work."""
        for device, (push, work) in zip(devices, self._draw.exponential(size=(len(devices), 2)).tolist(), strict=True):
            self.clock.start(device, Transfer(0.001 * push), work)

    def upload(self, device: int) -> Transfer:  # noqa: ARG002
        """Return an answer of random size."""
        return Transfer(0.001 * float(self._draw.exponential()))

    def counts(self, job: Transit) -> bool:  # noqa: ARG002
        """Count every answer."""
        return True


def seconds_of(devices: int, events: int, link: Callable[[], SharedBand] = SharedLink, seed: int = 0) -> float:
    """Return the CPU seconds of this many events among this many devices."""
    crew = DrawnCrew(seed)
    buffer = max(1, devices // 10)
    crew.clock = clock = VirtualClock(Clock(kind="buffered", buffer=buffer), devices, seed, link)
    started = time.process_time()
    while clock.events.count < events:
        clock.step(crew)
    return time.process_time() - started


def rows(*, small: bool) -> list[tuple[str, str, str, str, str]]:
    """Return what was timed: the link, devices, events, seconds, and microseconds per event."""
    sizes, usual = ((10, 100), 2_000) if small else ((10, 100, 1_000, 10_000), 100_000)
    cases = [("virtual time", SharedLink, devices, usual) for devices in sizes]
    cases += [("virtual time", SharedLink, sizes[-1] // 10, usual * 10)] if not small else []
    cases += [("every transfer moved", SubbandLink, devices, usual // 10) for devices in sizes[:3]]
    found = []
    for name, link, devices, events in cases:
        took = min(seconds_of(devices, events, link) for _ in range(1 if small else 3))
        found.append((name, f"{devices:,}", f"{events:,}", f"{took:.2f}", f"{1e6 * took / events:.1f}"))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="few devices and events")
    table = Table("link", "devices", "events", "seconds", "µs per event", title="The event loop alone")
    for row in rows(small=parser.parse_args().small):
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
