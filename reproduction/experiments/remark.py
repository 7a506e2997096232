"""Remark 1: traffic and FLOPs of FedDrop, PruneFL and FedDST, by formula and in bytes of real frames."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from feddrop import models, wire
from feddrop.comparison import Comparison
from feddrop.config import FedDrop, FedDST, Model, RunConfig
from feddrop.methods import build_method
from feddrop.methods.method import Payload, Setup
from feddrop.models.flops import forward_flops
from feddrop.radio import overheads
from feddrop.subnets import parameters
from feddrop.subnets.piece import Subnet, full_piece
from reproduction.experiments.accuracy import Row, config_of
from reproduction.framework.experiment import Experiment, Lookup, Page, markdown_table
from reproduction.framework.scales import DEVICES, Scale
from reproduction.framework.verdicts import verdict

RATES = (0.1, 0.2, 0.4)
SHAPE, CLASSES = (3, 32, 32), 100
ADJUST_EVERY = 10
TITLES = {"underfitting": "LeNet", "overfitting": "AlexNet"}


class Traffic(NamedTuple):
    """Bytes per device per round, averaged over ΔR rounds."""

    down: float
    up: float


def runs(_: Scale) -> list[RunConfig]:
    """Return no runs: nothing is trained."""
    return []


def traffic(model: nn.Module, rate: float) -> dict[str, Traffic]:
    """Return the traffic of each method in bytes of real frames.

    PruneFL has one mask for all devices, as FedDST has. Once in ΔR rounds a new mask is sent down, and the gradient of
    every weight is sent up in a separate frame. Only sizes matter here, so FedDST's mask is used for both.
    """
    start = parameters.from_model(model)
    setup = Setup(model=model, example=torch.zeros(1, *SHAPE), rounds=100, rates=[rate])
    ours, method = (build_method(settings, setup) for settings in (FedDrop(), FedDST()))
    (job,) = method.plan(method.init(start), start, 1, {0: rate}, 0)
    dropped = _bytes(ours.cut(job), rate)
    sparse, masked = _bytes(method.cut(job), rate), _bytes(method.cut(job), rate, job.payload)
    gradient = _bytes({name: full_piece(tensor.shape) for name, tensor in start.items()}, 0.0)
    with_mask = sparse + (masked - sparse) / ADJUST_EVERY
    return {
        "FedDrop": Traffic(dropped, dropped),
        "PruneFL": Traffic(with_mask, sparse + gradient / ADJUST_EVERY),
        "FedDST": Traffic(with_mask, with_mask),
    }


def _bytes(subnet: Subnet, rate: float, payload: Payload | None = None) -> int:
    header = wire.Header(kind="update", round=1, device=0, seed=1, rate=rate)
    return len(wire.encode(header, subnet, {name: torch.zeros(piece.size) for name, piece in subnet.items()}, payload))


def as_trained(scale: Scale, find: Lookup) -> dict[str, tuple[float, float]]:
    """Return what FedDrop and FedDST sent in the runs of the table, in bytes per device per round, both ways."""
    found = {}
    for scenario, title in TITLES.items():
        for rate in scale.still_rates:
            pair = [
                find(config_of(scale, Row(scenario, "dirichlet", method), rate)) for method in ("feddrop", "feddst")
            ]
            sent = [
                float(np.mean(r.values("push_bytes") + r.values("pull_bytes"))) / DEVICES for r in pair if r is not None
            ]
            if len(sent) == len(pair):
                found[f"{title}, γ = {rate:g}"] = (sent[0], sent[1])
    return found


def _model(scale: Scale, scenario: str) -> nn.Module:
    chosen = scale.settings[scenario].model
    return models.build_model(Model(chosen.name, width=chosen.width), models.Shapes.of(SHAPE, CLASSES), seed=0)


def measure(scale: Scale) -> dict[str, Any]:
    """Count bytes and FLOPs for both networks."""
    found = []
    for scenario, title in TITLES.items():
        model = _model(scale, scenario)
        count, flops = models.count_parameters(model), forward_flops(model, SHAPE)
        for rate in RATES:
            measured = traffic(model, rate)
            formula = overheads(rate, parameters=count, forward_flops=flops, adjust_every=ADJUST_EVERY)
            found.append(
                {
                    "network": title,
                    "rate": rate,
                    "methods": [
                        {
                            "method": entry.method,
                            "formula": [entry.download_bits / 8, entry.upload_bits / 8],
                            "frames": list(measured[entry.method]),
                            "flops": entry.flops,
                        }
                        for entry in formula
                    ],
                }
            )
    return {"cases": found}


def make(scale: Scale, find: Lookup, facts: dict[str, Any]) -> Page:
    """Tabulate formula and measurement; judge what the remark counts and what our runs sent."""
    rows, trained, points = [], [], []
    for case in facts["cases"]:
        at = f"{case['network']}, γ = {case['rate']:g}"
        total = {entry["method"]: sum(entry["frames"]) for entry in case["methods"]}
        points += [
            Comparison(f"{at}: all layers dropped, against {other}", certain=total["FedDrop"] < total[other])
            for other in ("PruneFL", "FedDST")
        ]
        for entry in case["methods"]:
            cells = [_pair(f, m) for f, m in zip(entry["formula"], entry["frames"], strict=True)]
            rows.append([at, entry["method"], *(text for cell in cells for text in cell), f"{entry['flops']:,.0f}"])
    for at, (drop, dst) in as_trained(scale, find).items():
        if at.startswith(TITLES["underfitting"]):
            points.append(Comparison(f"{at}: as trained in the table, against FedDST", certain=drop < dst))
        trained.append([at, f"{drop:,.0f}", f"{dst:,.0f}", f"{drop / dst - 1:+.2%}"])
    header = ["", "method", "down, formula", "down, frames", "up, formula", "up, frames", "forward FLOPs"]
    text = (
        f"Bytes per device per round if all layers are dropped and FedDST's mask moves every ΔR = {ADJUST_EVERY} "
        "rounds; in brackets, frames relative to the formula. Frames contain all biases and a header of 64 bytes, "
        "which the formula omits. PruneFL's new mask must also reach the devices, which the remark does not count. "
        "PruneFL's frames are real, but it was not trained here.\n\n"
        + markdown_table(header, rows)
        + "\n\n**As trained in the table**, non-IID, first seed, FedDST with the α of its paper, both ways. On "
        "AlexNet, FedDrop drops fully-connected layers only while FedDST's mask covers all, so equal rates are not "
        "equal sparsities.\n\n"
        + (markdown_table(["", "FedDrop", "FedDST", "FedDrop sends more by"], trained) if trained else "Not run.")
        + "\n"
    )
    note = (
        "AlexNet as trained is not compared: its convolutions are kept, so equal rates are not the equal sparsity that "
        "the remark is about"
    )
    return Page(text=text, verdicts=[verdict("overhead", points, note)])


def _pair(formula: float, measured: float) -> tuple[str, str]:
    return f"{formula:,.0f}", f"{measured:,.0f} ({measured / formula - 1:+.2%})"


EXPERIMENT = Experiment("overhead", "Communication and compute overhead", "Remark 1", runs, make, measure)
