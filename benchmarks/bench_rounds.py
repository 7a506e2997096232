"""A LeNet round (10 devices x 1,000 samples, batch 32) against a bare PyTorch loop over the same batches.

The bare loop is the usual hand-written one: textbook LeNet (activation, then pooling), ``torch.optim.SGD``, models
averaged at the end of the round. Contenders alternate in one process, so that noise affects all alike; medians are
shown. ``--small`` runs quickly; its times are meaningless.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from feddrop import FedDrop, Method, Setup, Task, Train, build_method
from feddrop.executors import Executor, Processes, Serial
from feddrop.models import Shapes, build_model
from feddrop.seeds import derive, permutation
from feddrop.simulation.device import Samples
from feddrop.simulation.round import Intake, run_round
from feddrop.subnets import parameters

SMALL = "--small" in sys.argv
DEVICES, SAMPLES, BATCH, REPEATS = (2, 64, 32, 1) if SMALL else (10, 1000, 32, 7)
SHAPES = Shapes.of((3, 32, 32), 100)
CONFIG = Train(lr=0.01, batch_size=BATCH)
FACTORY = partial(build_method, FedDrop())


def textbook(model: nn.Sequential) -> nn.Sequential:
    """Return a copy of the network with each activation before its pooling layer."""
    layers = dict(build_model("lenet", SHAPES, seed=0).named_children())
    for stage in ("1", "2"):
        layers[f"pool{stage}"], layers[f"act{stage}"] = layers[f"act{stage}"], layers[f"pool{stage}"]
    twin = nn.Sequential(*layers.values())
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        theirs.data.copy_(ours.data)
    return twin


def bare_round(model: nn.Module, samples: Samples, parts: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Run one round of hand-written federated averaging."""
    start = [p.detach().clone() for p in model.parameters()]
    total = [torch.zeros_like(p) for p in start]
    loss = nn.CrossEntropyLoss()
    for device, part in enumerate(parts):
        with torch.no_grad():
            for p, value in zip(model.parameters(), start, strict=True):
                p.copy_(value)
        optimizer = torch.optim.SGD(model.parameters(), lr=CONFIG.lr)
        order = permutation(derive(derive(seed, "device", 1, device), "order", 0), len(part))
        for batch in part[torch.from_numpy(order)].split(BATCH):
            optimizer.zero_grad()
            loss(model(samples.train_x[batch]), samples.train_y[batch]).backward()
            optimizer.step()
        for sum_, p in zip(total, model.parameters(), strict=True):
            sum_ += p.detach() / DEVICES
    with torch.no_grad():
        for p, value in zip(model.parameters(), start, strict=True):
            p.copy_(value)
    return total


def task_of(model: nn.Module) -> Task:
    """Return a task over random images of CIFAR-100's shape."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(DEVICES * SAMPLES, 3, 32, 32, generator=generator)
    y = torch.randint(0, 100, (DEVICES * SAMPLES,), generator=generator)
    setup = Setup(model=model, example=x[:1], rounds=1, train=CONFIG)
    parts = list(torch.arange(DEVICES * SAMPLES).split(SAMPLES))
    return Task(setup=setup, factory=FACTORY, samples=Samples(x, y, x[:10], y[:10]), parts=parts)


def timed(seconds: list[float]) -> Callable[[Setup], Method]:
    """Return a factory of federated dropout that appends the training seconds of each device."""

    def factory(setup: Setup) -> Method:
        method = FACTORY(setup)

        def local(*args):
            started = time.perf_counter()
            answer = method.local(*args)
            seconds.append(time.perf_counter() - started)
            return answer

        return method._replace(local=local)

    return factory


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    model = build_model("lenet", SHAPES, seed=0)
    task = task_of(model)
    samples, parts = task.samples, task.parts
    method, params = FACTORY(task.setup), parameters.from_model(model)
    training: list[float] = []
    serial, processes = Serial(replace(task, factory=timed(training))), Processes(task, 2)

    def ours(executor: Executor, rate: float = 0.0):
        rates = dict.fromkeys(range(DEVICES), rate)
        return run_round(Intake(method, params, {}, 1), executor, rates, seed=3).params

    by_hand = textbook(model)
    contenders = {
        "bare loop, textbook LeNet, 1 thread": lambda: bare_round(by_hand, samples, parts, 3),
        "bare loop, our LeNet (pools first)": lambda: bare_round(model, samples, parts, 3),
        "feddrop serial": lambda: ours(serial),
        "feddrop serial, rate 0.3": lambda: ours(serial, 0.3),
        "feddrop processes, 2 workers": lambda: ours(processes),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    outside, results = [], {}
    for _ in range(REPEATS):
        for name, contender in contenders.items():
            training.clear()
            started = time.perf_counter()
            results[name] = contender()
            times[name].append(time.perf_counter() - started)
            if name == "feddrop serial":
                outside.append(1.0 - sum(training) / times[name][-1])
    processes.close()
    serial.close()
    bare, *_ = results.values()
    for name in ("feddrop serial", "feddrop processes, 2 workers"):
        for theirs, value in zip(bare, results[name].values(), strict=True):
            torch.testing.assert_close(theirs, value, rtol=1e-3, atol=1e-5)
    table = Table(title=f"LeNet round: {DEVICES} devices x {SAMPLES} samples, batch {BATCH} (median of {REPEATS})")
    for column, justify in (("contender", "left"), ("seconds", "right"), ("ratio", "right")):
        table.add_column(column, justify=justify)
    reference = median(next(iter(times.values())))
    for name, seconds in times.items():
        table.add_row(name, f"{median(seconds):.3f}", f"{median(seconds) / reference:.2f}")
    console = Console()
    console.print(table)
    console.print(f"fraction of a serial round that is not local training: {median(outside):.1%}")
    console.print("bare loop and feddrop end in the same parameters (up to float rounding): yes")


if __name__ == "__main__":
    main()
