"""Overhead of Ray against worker processes: a LeNet round, and many devices with one sample each.

Contenders alternate in one process, so that noise affects all alike; medians are shown. With one sample per device the
time is almost only overhead. ``--small`` runs quickly; its times are meaningless.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from importlib.util import find_spec
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from feddrop import FedDrop, Setup, Task, Train, build_method
from feddrop.executors import Executor, Processes, Ray, Serial
from feddrop.models import Shapes, build_model
from feddrop.simulation.device import Samples
from feddrop.simulation.round import Intake, run_round
from feddrop.subnets import parameters

SMALL = "--small" in sys.argv
WORKERS = 1 if SMALL else 2
SIZES = (
    {"LeNet round": (2, 8)}
    if SMALL
    else {
        "LeNet round": (10, 1000),
        "devices with one sample": (200, 1),
    }
)
REPEATS = 1 if SMALL else 7
SHAPES = Shapes.of((3, 32, 32), 10)


def task_of(devices: int, samples: int) -> Task:
    """Return a task over random images."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(devices * samples, 3, 32, 32, generator=generator)
    y = torch.randint(0, 10, (devices * samples,), generator=generator)
    train = Train(lr=0.01, batch_size=32)
    return Task(
        setup=Setup(model=build_model("lenet", SHAPES, seed=0), example=x[:1], rounds=1, train=train),
        factory=partial(build_method, FedDrop()),
        samples=Samples(x, y, x[:10], y[:10]),
        parts=list(torch.arange(devices * samples).split(samples)),
    )


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    console = Console()
    for title, (devices, samples) in SIZES.items():
        task = task_of(devices, samples)
        method, params = task.factory(task.setup), parameters.from_model(task.setup.model)
        rates = dict.fromkeys(range(devices), 0.3)
        made = {"serial": Serial, f"processes, {WORKERS} workers": partial(Processes, workers=WORKERS)}
        if find_spec("ray"):
            made[f"Ray, {WORKERS} workers"] = partial(Ray, workers=WORKERS, address="local")
        starts: dict[str, float] = {}
        executors: dict[str, Executor] = {}
        for name, factory in made.items():
            started = time.perf_counter()
            executors[name] = factory(task)
            starts[name] = time.perf_counter() - started
        times: dict[str, list[float]] = {name: [] for name in executors}
        results = {}
        for repeat in range(REPEATS + 1):
            for name, executor in executors.items():
                started = time.perf_counter()
                results[name] = run_round(Intake(method, params, {}, 1), executor, rates, seed=3).params
                if repeat:  # the first round is a warm-up
                    times[name].append(time.perf_counter() - started)
        for executor in executors.values():
            executor.close()
        first, *others = results.values()
        assert all(torch.equal(first[name], other[name]) for other in others for name in first)
        table = Table(title=f"{title}: {devices} devices x {samples} samples (median of {REPEATS})")
        for column in ("executor", "seconds per round", "ms per device", "seconds to start"):
            table.add_column(column, justify="left" if column == "executor" else "right")
        for name, seconds in times.items():
            middle = median(seconds)
            table.add_row(name, f"{middle:.3f}", f"{1000 * middle / devices:.2f}", f"{starts[name]:.1f}")
        console.print(table)
    console.print("all executors end in the same parameters, bit for bit: yes")


if __name__ == "__main__":
    main()
