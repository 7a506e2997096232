"""Server cost of a round against the number of devices: CPU seconds, bytes and memory.

Each device has one sample and devices run one after another; their training time is measured and reported
separately. ``--small`` stops at 20 devices, ``--large`` goes up to 10,000.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import resource
import sys
import time
from functools import partial

import torch
from rich.console import Console
from rich.table import Table

from feddrop import FedDrop, Reply, Setup, Task, Train, build_method
from feddrop.executors import Serial
from feddrop.models import Shapes, build_model
from feddrop.simulation.device import Samples
from feddrop.simulation.round import run_round
from feddrop.subnets import parameters

SIZES = (10, 20) if "--small" in sys.argv else (10, 100, 1_000, 10_000) if "--large" in sys.argv else (10, 100, 1_000)
SHAPES = Shapes.of((3, 32, 32), 10)
RATE = 0.5


class Timed(Serial):
    """Measures the CPU seconds that devices take."""

    seconds = 0.0

    def compute(self, parcels):
        """Train devices in order."""
        for parcel in parcels:
            started = time.process_time()
            reply: Reply = self._device.handle(parcel.frame, parcel.memory)
            self.seconds += time.process_time() - started
            yield reply


def measure(devices: int) -> tuple[float, float, int, float]:
    """Return CPU seconds of the server and of the devices, bytes moved, and peak memory (MB)."""
    torch.set_num_threads(1)
    x, y = torch.randn(1, 3, 32, 32), torch.zeros(1, dtype=torch.int64)
    task = Task(
        setup=Setup(model=build_model("lenet", SHAPES, seed=0), example=x, rounds=1, train=Train(batch_size=1)),
        factory=partial(build_method, FedDrop()),
        samples=Samples(x, y, x, y),
        parts=[torch.zeros(1, dtype=torch.int64)] * devices,
    )
    method, params = task.factory(task.setup), parameters.from_model(task.setup.model)
    with contextlib.closing(Timed(task)) as executor:
        run_round(method, executor, params, {}, round_=1, rates={0: RATE}, seed=3)  # warm-up
        executor.seconds = 0.0
        started = time.process_time()
        rates = dict.fromkeys(range(devices), RATE)
        found = run_round(method, executor, params, {}, round_=1, rates=rates, seed=3).devices
        seconds = time.process_time() - started
    moved = sum(device.push_bytes + device.pull_bytes for device in found)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return seconds - executor.seconds, executor.seconds, moved, peak


def main() -> None:
    """Print the table; each size runs in a new process, so that peak memory is its own."""
    table = Table(title=f"A round of LeNet at rate {RATE:g}, one sample per device")
    for column in ("devices", "server, CPU s", "ms per device", "training, ms each", "bytes moved", "peak memory"):
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
