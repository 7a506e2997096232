"""Where the server's time goes beside two worker processes: CPU microseconds per device by stage, and its share of all.

100 of 1,000 devices per round as in ``bench_peers.py``; ``python benchmarks/server_share.py 0.5`` sets the rate. Every
stage is timed without the stages that it calls. ``--blocks 10`` lets the workers merge blocks of 10 devices, which
leaves the sketches' comparison and the sums of the blocks to the server.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import bench_peers as work
from feddrop import FedDrop, Setup, Task, Train, build_method, wire
from feddrop.executors import Processes
from feddrop.learning import means, suspicion
from feddrop.methods.draws import UniformDraw
from feddrop.simulation import exchange
from feddrop.simulation.blocks import run_in_blocks
from feddrop.simulation.device import Samples
from feddrop.simulation.round import Intake, run_round
from feddrop.subnets import parameters

ROUNDS = 4
STAGES = {
    "masks": [(UniformDraw, "cut")],
    "gathering values": [(exchange, "scaled_values")],
    "writing frames": [(wire, "encode")],
    "reading frames": [(exchange, "pull")],
    "marks": [(suspicion.Seen, "add"), (suspicion.Seen, "suspicious")],
    "mean": [(means.Mean, "add"), (means.Mean, "mean")],
}
spent = dict.fromkeys([*STAGES, "planning and checks", "moving frames"], 0.0)
inner = [0.0]


def timed(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that adds its CPU time, without that of timed functions that it calls, to a stage."""

    def wrapped(*args: Any, **settings: Any) -> Any:
        started = time.process_time()
        inner.append(0.0)
        try:
            return function(*args, **settings)
        finally:
            seconds = time.process_time() - started
            spent[stage] += seconds - inner.pop()
            inner[-1] += seconds

    return wrapped


class Timed:
    """An executor whose own time counts as moving frames; that of the parcels that it asks for does not."""

    def __init__(self, executor: Processes) -> None:
        self._executor = executor

    def compute(self, parcels: Any) -> Iterator[Any]:
        """Yield the executor's replies."""
        source, end = iter(parcels), object()
        ask = timed("planning and checks", lambda: next(source, end))

        def asked() -> Iterator[Any]:
            while (parcel := ask()) is not end:
                yield parcel

        replies = self._executor.compute(asked())
        following = timed("moving frames", lambda: next(replies, end))
        while (reply := following()) is not end:
            yield reply


def main(rate: float, size: int) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    for stage, places in STAGES.items():
        for owner, name in places:
            setattr(owner, name, timed(stage, getattr(owner, name)))
    model, (x, y) = work.network(), work.images()
    task = Task(
        setup=Setup(model=model, example=x[:1], rounds=9, train=Train(lr=work.LR, batch_size=work.BATCH)),
        factory=partial(build_method, FedDrop()),
        samples=Samples(x, y, x[:10], y[:10]),
        parts=[work.part_of(device) for device in range(work.DEVICES)],
    )
    method, params = task.factory(task.setup), parameters.from_model(model)
    with closing(Processes(task, 2)) as executor:
        for round_ in range(1, ROUNDS + 2):
            if round_ == 2:  # the first one is a warm-up
                spent.update(dict.fromkeys(spent, 0.0))
                own, all_ = time.process_time(), work.tree_seconds()
            rates = dict.fromkeys(work.cohort(round_), rate)
            intake = Intake(method, params, {}, round_)
            if size:
                means = task.setup.means
                params = run_in_blocks(intake, executor, rates, 3, "float32", means=means, size=size).params
            else:
                params = run_round(intake, Timed(executor), rates, seed=3).params
        own, all_ = time.process_time() - own, work.tree_seconds() - all_
    table = Table(
        title=f"Server beside two workers: {work.COHORT} devices per round, LeNet, rate {rate:g}, blocks of {size or 1}"
    )
    table.add_column("stage")
    table.add_column("µs per device", justify="right")
    devices = ROUNDS * work.COHORT
    for stage, seconds in {
        **spent,
        "the rest": own - sum(spent.values()),
        "server": own,
        "all processes": all_,
    }.items():
        table.add_row(stage, f"{1e6 * seconds / devices:,.0f}")
    Console().print(table)
    print(f"share of the server: {own / all_:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rate", nargs="?", type=float, default=0.5)
    parser.add_argument("--blocks", type=int, default=0, metavar="DEVICES", help="devices per block; 0 for no blocks")
    given = parser.parse_args()
    main(given.rate, given.blocks)
