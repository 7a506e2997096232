"""What grows with the number of devices: seconds, bytes and memory of a round, at the server.

A device has one sample, and all are computed one after another, so the seconds are those of the server and of moving
frames; what devices take for their training comes on top. Seconds are those of the CPU: what else is at work on the
machine does not count. ``--small`` stops at 20 devices, ``--large`` goes to 10,000.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import resource
import sys
import time

import torch
from rich.console import Console
from rich.table import Table

from feddrop import Reply, Setup, Task, Train
from feddrop.executors import Serial
from feddrop.models import Shapes, build_model
from feddrop.simulation.device import Samples
from feddrop.simulation.round import run_round
from feddrop.subnets import parameters

SIZES = (10, 20) if "--small" in sys.argv else (10, 100, 1_000, 10_000) if "--large" in sys.argv else (10, 100, 1_000)
SHAPES = Shapes.of((3, 32, 32), 10)
RATE = 0.5


class Watched(Serial):
    """Counts what devices themselves take."""

    seconds = 0.0

    def compute(self, parcels):
        """Let devices train, in order."""
        for parcel in parcels:
            started = time.process_time()
            reply: Reply = self._device.handle(parcel.frame, parcel.memory)
            self.seconds += time.process_time() - started
            yield reply


def measure(devices: int) -> tuple[float, float, int, float]:
    """Return the server's seconds of CPU, the devices' seconds, bytes up and down, and the peak of memory (MB)."""
    torch.set_num_threads(1)
    x, y = torch.randn(1, 3, 32, 32), torch.zeros(1, dtype=torch.int64)
    task = Task(
        setup=Setup(model=build_model("lenet", SHAPES, seed=0), example=x, rounds=1, train=Train(batch_size=1)),
        factory=named("feddrop").factory(),
        samples=Samples(x, y, x, y),
        parts=[torch.zeros(1, dtype=torch.int64)] * devices,
    )
    method, whole = task.factory(task.setup), parameters.from_model(task.setup.model)
    with contextlib.closing(Watched(task)) as executor:
        run_round(method, executor, whole, {}, round_=1, rates={0: RATE}, seed=3)  # warms up
        executor.seconds = 0.0
        started = time.process_time()
        rates = dict.fromkeys(range(devices), RATE)
        found = run_round(method, executor, whole, {}, round_=1, rates=rates, seed=3).devices
        seconds = time.process_time() - started
    moved = sum(device.push_bytes + device.pull_bytes for device in found)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return seconds - executor.seconds, executor.seconds, moved, peak


def main() -> None:
    """Print the table; every size in a process of its own, whose memory is its own."""
    table = Table(title=f"A round of LeNet at rate {RATE:g}, one sample a device")
    for column in ("devices", "server, CPU s", "ms a device", "devices, ms each", "bytes moved", "peak memory"):
        table.add_column(column, justify="right")
    for devices in SIZES:
        with multiprocessing.get_context("spawn").Pool(1) as alone:
            server, training, moved, peak = alone.apply(measure, (devices,))
        row = (f"{server:.2f}", f"{1000 * server / devices:.2f}", f"{1000 * training / devices:.2f}")
        print(f"{devices:,} devices: done", file=sys.stderr, flush=True)
        table.add_row(f"{devices:,}", *row, f"{moved / 1e6:,.1f} MB", f"{peak:,.0f} MB")
    Console().print(table)


if __name__ == "__main__":
    main()
