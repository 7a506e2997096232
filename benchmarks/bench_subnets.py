"""Training time of unit-level subnets, and throughput of frames.

``--small`` runs quickly; its times are meaningless.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from feddrop import Job, Model, wire
from feddrop.config import Subnets
from feddrop.models import Shapes, build_model
from feddrop.simulation.exchange import push
from feddrop.subnets import parameters
from feddrop.subnets.blueprint import Blueprint
from feddrop.subnets.cut import cutter, kept_units
from feddrop.subnets.units import shrink

SMALL = "--small" in sys.argv
REPEATS = 1 if SMALL else 5
MODEL = Model("alexnet", width=0.1 if SMALL else 1.0)


def step_seconds(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Time one step of SGD."""
    weights = list(network.parameters())
    started = time.perf_counter()
    gradients = torch.autograd.grad(nn.functional.cross_entropy(network(x), y), weights)
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.add_(gradient, alpha=-0.01)
    return time.perf_counter() - started


def timed(call):
    """Return the result of a call and its duration in seconds."""
    started = time.perf_counter()
    value = call()
    return value, time.perf_counter() - started


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    console = Console()
    model = build_model(MODEL, Shapes.of((3, 32, 32), 100), seed=0)
    params = parameters.from_model(model)
    blueprint = Blueprint(model, (3, 32, 32))
    cut = cutter(blueprint, Subnets(level="unit"))
    x, y = torch.randn(32, 3, 32, 32), torch.randint(0, 100, (32,))
    networks = {0.0: model}
    for rate in (0.2, 0.5, 0.75):
        networks[rate] = shrink(model, blueprint.units, kept_units(blueprint.units, cut(1, rate)))
    times: dict[float, list[float]] = {rate: [] for rate in networks}
    for _ in range(REPEATS):
        for rate, network in networks.items():
            times[rate].append(step_seconds(network, x, y))
    table = Table(title="AlexNet, unit level: one local step of 32 samples, 1 thread")
    for column in ("rate", "parameters", "seconds", "ratio"):
        table.add_column(column, justify="right")
    for rate, seconds in times.items():
        count = sum(p.numel() for p in networks[rate].parameters())
        table.add_row(f"{rate}", f"{count:,}", f"{median(seconds):.3f}", f"{median(seconds) / median(times[0.0]):.2f}")
    console.print(table)

    table = Table(title="AlexNet frames against a copy of the same bytes (GB/s of frame)")
    for column in ("level", "rate", "MB", "cut s", "encode", "decode", "copy"):
        table.add_column(column, justify="right")
    for level in ("weight", "unit"):
        cut = cutter(blueprint, Subnets(level=level))
        for rate in (0.0, 0.5, 0.9):
            rows = []
            for _ in range(REPEATS):
                subnet, cut_s = timed(lambda c=cut, r=rate: c(1, r))
                job = Job(round=1, device=0, seed=1, rate=rate)
                frame, encode_s = timed(lambda s=subnet, j=job: push(params, s, j))
                _, decode_s = timed(lambda s=subnet, f=frame: wire.decode(wire.parse(f), s))
                _, copy_s = timed(lambda f=frame: np.frombuffer(f, np.uint8).copy())
                rows.append((cut_s, encode_s, decode_s, copy_s))
            cut_s, *speeds = (median(column) for column in zip(*rows, strict=True))
            size = len(frame)
            cells = [f"{size / 1e9 / seconds:.2f}" for seconds in speeds]
            table.add_row(level, f"{rate}", f"{size / 1e6:.1f}", f"{cut_s:.2f}", *cells)
    console.print(table)


if __name__ == "__main__":
    main()
