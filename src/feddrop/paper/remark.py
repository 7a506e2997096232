"""Remark 1: what FedDrop, PruneFL and FedDST send and compute, by formula and in bytes of real frames."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from feddrop import models, params, wire
from feddrop.config import RunConfig
from feddrop.flops import forward_flops
from feddrop.methods import named
from feddrop.methods.method import Payload, Setup
from feddrop.paper.experiment import Experiment, Lookup, Page, Verdict, markdown_table, outcome
from feddrop.paper.scales import Scale
from feddrop.radio import overheads
from feddrop.subnets.piece import Subnet, whole

RATES = (0.1, 0.2, 0.4)
SHAPE, CLASSES = (3, 32, 32), 100
ADJUST_EVERY = 10


class Traffic(NamedTuple):
    """Bytes a device and round, on average over ΔR rounds."""

    down: float
    up: float


def runs(_: Scale) -> list[RunConfig]:
    """Nothing is trained."""
    return []


def traffic(model: nn.Module, rate: float) -> dict[str, Traffic]:
    """Return what each method sends, in bytes of real frames.

    PruneFL has one mask for all devices, as FedDST has; a new one goes down, and the gradient of every weight comes up
    in a frame of its own, once in ΔR rounds. Only the sizes matter here, so FedDST's mask stands for both.
    """
    start = params.from_model(model)
    setup = Setup(model=model, example=torch.zeros(1, *SHAPE), rounds=100, rates=[rate])
    ours, method = (named(name).factory()(setup) for name in ("feddrop", "feddst"))
    (job,) = method.plan(method.init(start), start, 1, {0: rate}, 0)
    dropped = _bytes(ours.cut(job), rate)
    sparse, masked = _bytes(method.cut(job), rate), _bytes(method.cut(job), rate, job.payload)
    gradient = _bytes({name: whole(tensor.shape) for name, tensor in start.items()}, 0.0)
    with_mask = sparse + (masked - sparse) / ADJUST_EVERY
    return {
        "FedDrop": Traffic(dropped, dropped),
        "PruneFL": Traffic(with_mask, sparse + gradient / ADJUST_EVERY),
        "FedDST": Traffic(with_mask, with_mask),
    }


def _bytes(subnet: Subnet, rate: float, payload: Payload | None = None) -> int:
    header = wire.Header(kind="update", round=1, device=0, seed=1, rate=rate)
    return len(wire.encode(header, subnet, {name: torch.zeros(piece.size) for name, piece in subnet.items()}, payload))


def make(scale: Scale, _: Lookup) -> Page:
    """Tabulate formula and measurement."""
    rows, more = [], []
    least: list[bool | None] = []
    for scenario, title in (("underfitting", "LeNet"), ("overfitting", "AlexNet")):
        chosen = scale.settings[scenario].model
        model = models.build(
            models.ModelConfig(name=chosen.name, width=chosen.width), models.Shapes.of(SHAPE, CLASSES), seed=0
        )
        count, flops = models.count_parameters(model), forward_flops(model, SHAPE)
        for rate in RATES:
            measured = traffic(model, rate)
            drop, *others = (one.down + one.up for one in measured.values())
            least += [drop < other for other in others]
            more.append(max(others) / drop - 1)
            for entry in overheads(rate, parameters=count, forward_flops=flops, adjust_every=ADJUST_EVERY):
                ours = measured[entry.method]
                rows.append(
                    [
                        f"{title}, γ = {rate:g}",
                        entry.method,
                        *_pair(entry.download_bits / 8, ours.down),
                        *_pair(entry.upload_bits / 8, ours.up),
                        f"{entry.flops:,.0f}",
                    ]
                )
    header = ["", "method", "down, formula", "down, frames", "up, formula", "up, frames", "forward FLOPs"]
    text = (
        f"Bytes a device and round, ΔR = {ADJUST_EVERY}; in brackets, frames against formula. Frames hold biases whole "
        "and a header of 64 bytes, which the formula leaves out; PruneFL's new mask must also reach the devices, which "
        "the remark does not count. PruneFL is not a method of this package: its frames are real, its training is "
        "not.\n\n" + markdown_table(header, rows) + "\n"
    )
    verdict = Verdict("overhead", f"the others send up to {max(more):.1%} more bytes", outcome(least))
    return Page(text=text, verdicts=[verdict])


def _pair(formula: float, measured: float) -> tuple[str, str]:
    return f"{formula:,.0f}", f"{measured:,.0f} ({measured / formula - 1:+.2%})"


EXPERIMENT = Experiment("overhead", "Communication and compute overhead", "Remark 1", runs, make)
