"""Remark 1: what FedDrop, PruneFL and FedDST send, by formula and in bytes of real frames."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from feddrop import models, params
from feddrop.config import RunConfig
from feddrop.method import Assignment
from feddrop.methods.feddst import FeddstConfig, feddst
from feddrop.paper.experiment import Experiment, Lookup, Page, markdown_table
from feddrop.paper.scales import Scale
from feddrop.radio import overheads
from feddrop.rounds import push
from feddrop.subnets.cut import SubnetConfig, blueprint, cutter
from feddrop.training import TrainConfig

RATES = (0.0, 0.2, 0.4)
SHAPE, CLASSES = (3, 32, 32), 100
ADJUST_EVERY = 10


def runs(_: Scale) -> list[RunConfig]:
    """Nothing is trained."""
    return []


def frame_bytes(name: str, width: float, rate: float) -> dict[str, float]:
    """Return the mean size of a pushed frame, by method: FedDST's mask comes along every ΔR-th time."""
    model = models.build(name, num_classes=CLASSES, input_shape=SHAPE, width=width, seed=0)
    whole = params.from_model(model)
    subnet = cutter(blueprint(model, SHAPE), SubnetConfig())(1, rate)
    drop = len(push(whole, subnet, Assignment(round=1, device=0, seed=1, rate=rate)))
    if rate == 0:
        return {"FedDrop": float(drop), "FedDST": float(drop)}
    method = feddst(model, SHAPE, train_config=TrainConfig(), rounds=100, sparsity=rate, settings=FeddstConfig())
    (job,) = method.plan(method.init(whole), whole, 1, {0: rate}, 0)
    pieces = method.cut(job)
    masked, plain = len(push(whole, pieces, job)), len(push(whole, pieces, replace(job, masks=None)))
    return {"FedDrop": float(drop), "FedDST": float(np.average([plain, masked], weights=[ADJUST_EVERY - 1, 1]))}


def make(scale: Scale, _: Lookup) -> Page:
    """Tabulate formula and measurement."""
    rows = []
    for scenario, title in (("underfitting", "LeNet"), ("overfitting", "AlexNet")):
        chosen = scale.settings[scenario].model
        model = models.build(chosen.name, num_classes=CLASSES, input_shape=SHAPE, width=chosen.width, seed=0)
        count, flops = models.count_parameters(model), models.forward_flops(model, SHAPE)
        for rate in RATES:
            measured = frame_bytes(chosen.name, chosen.width, rate)
            for entry in overheads(rate, parameters=count, forward_flops=flops, adjust_every=ADJUST_EVERY):
                frame = measured.get(entry.method)
                rows.append(
                    [
                        f"{title}, γ = {rate:g}",
                        entry.method,
                        f"{entry.upload_bits / 8:,.0f}",
                        "" if frame is None else f"{frame:,.0f}",
                        "" if frame is None else f"{frame / (entry.download_bits / 8) - 1:+.2%}",
                        f"{entry.flops:,.0f}",
                    ]
                )
    header = ["", "method", "upload, bytes (formula)", "frame, bytes (measured)", "measured / formula", "forward FLOPs"]
    text = (
        f"Bytes a device and round, ΔR = {ADJUST_EVERY}. Frames hold biases whole and a header of 64 bytes, which the "
        "formula leaves out. PruneFL is not implemented, so nothing was measured for it.\n\n"
        + markdown_table(header, rows)
        + "\n"
    )
    return Page(text=text)


EXPERIMENT = Experiment("overhead", "Communication and compute overhead", "Remark 1", runs, make)
