"""A LeNet round (10 devices x 1,000 samples, batch 32) against a bare PyTorch loop over the same batches.

The bare loop is what one would write by hand: textbook LeNet (activation, then pooling), ``torch.optim.SGD``, models
averaged at the end of the round. Contenders take turns in one process, so that noise hits all alike; medians are shown.
"""

from __future__ import annotations

import time
from functools import partial
from statistics import median

import torch
from feddrop.training import TrainConfig
from rich.console import Console
from rich.table import Table
from torch import nn

from feddrop import params
from feddrop.executors import Processes, Samples, Serial, Task
from feddrop.methods import feddrop as method_module
from feddrop.methods.feddrop import feddrop
from feddrop.models import Shapes, build
from feddrop.rounds import run_round
from feddrop.seeds import derive, permutation
from feddrop.subnets.cut import SubnetConfig

DEVICES, SAMPLES, BATCH, REPEATS = 10, 1000, 32, 7
CONFIG = TrainConfig(lr=0.01, batch_size=BATCH)
local_sgd_seconds: list[float] = []


def textbook(model: nn.Sequential) -> nn.Sequential:
    """Return the same layers with each activation before its pool, sharing no weights."""
    layers = dict(build("lenet", Shapes.of((3, 32, 32), 100), seed=0).named_children())
    for stage in ("1", "2"):
        layers[f"pool{stage}"], layers[f"act{stage}"] = layers[f"act{stage}"], layers[f"pool{stage}"]
    twin = nn.Sequential(*layers.values())
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        theirs.data.copy_(ours.data)
    return twin


def bare_round(model: nn.Module, samples: Samples, parts: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Federated averaging by hand, and nothing else."""
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


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(DEVICES * SAMPLES, 3, 32, 32, generator=generator)
    y = torch.randint(0, 100, (DEVICES * SAMPLES,), generator=generator)
    samples = Samples(x, y, x[:10], y[:10])
    model = build("lenet", Shapes.of((3, 32, 32), 100), seed=0)
    parts = list(torch.arange(DEVICES * SAMPLES).split(SAMPLES))
    task = Task(
        model=model,
        factory=partial(feddrop, subnet=SubnetConfig(), train_config=CONFIG, rounds=1),
        samples=samples,
        parts=parts,
        train=CONFIG,
    )
    method = task.factory(model, (3, 32, 32))
    whole = params.from_model(model)
    plain_train = method_module.train

    def timed_train(*args, **kwargs):
        started = time.perf_counter()
        value = plain_train(*args, **kwargs)
        local_sgd_seconds.append(time.perf_counter() - started)
        return value

    method_module.train = timed_train
    serial, processes = Serial(task), Processes(task, 2)

    def ours(executor, rate=0.0):
        rates = dict.fromkeys(range(DEVICES), rate)
        return run_round(method, executor, whole, {}, round_=1, rates=rates, seed=3).params

    hand = textbook(model)
    contenders = {
        "bare loop, textbook LeNet, 1 thread": lambda: bare_round(hand, samples, parts, 3),
        "bare loop, our LeNet (pools first)": lambda: bare_round(model, samples, parts, 3),
        "feddrop serial": lambda: ours(serial),
        "feddrop serial, rate 0.3": lambda: ours(serial, 0.3),
        "feddrop processes, 2 workers": lambda: ours(processes),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    shares, results = [], {}
    for _ in range(REPEATS):
        for name, contender in contenders.items():
            local_sgd_seconds.clear()
            started = time.perf_counter()
            results[name] = contender()
            times[name].append(time.perf_counter() - started)
            if name == "feddrop serial":
                shares.append(1.0 - sum(local_sgd_seconds) / times[name][-1])
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
    console.print(f"share of a serial round that is not local SGD: {median(shares):.1%}")
    console.print("bare loop and feddrop end in the same parameters (to float rounding): yes")


if __name__ == "__main__":
    main()
