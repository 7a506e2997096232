"""The cells of the paper's figures: deadlines at which dropout matters, whatever the scale."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from feddrop import models
from feddrop.allocation import allocate
from feddrop.errors import InfeasibleError
from feddrop.flops import forward_flops
from feddrop.paper.scales import DEVICES, Setting
from feddrop.radio import RadioConfig
from feddrop.seeds import derive

_SHAPES = {"cifar100": ((3, 32, 32), 100, 50_000), "digits": ((1, 32, 32), 10, 1438)}
_ROUNDS = range(1, 21)
BAND_HZ = 10e6


def radio(
    setting: Setting, *, deadline_s: float = 1.0, bandwidth_hz: float = BAND_HZ, scheme: str = "exact"
) -> RadioConfig:
    """Return the paper's cell: its table and its formula; 256 bits a parameter for LeNet, 32 for AlexNet."""
    return RadioConfig(
        scheme=scheme,
        policy="leave-out",
        costs="formula",
        deadline_s=deadline_s,
        bandwidth_hz=bandwidth_hz,
        bits_per_parameter=256.0 if setting.model.name == "lenet" else 32.0,
    )


def mean_rate(setting: Setting, config: RadioConfig, seed: int = 0) -> float:
    """Return the mean rate of a scheme over the first rounds; 1 if a round is infeasible."""
    shape, classes, images = _SHAPES[setting.data]
    parameters, flops = _size(setting.model.name, setting.model.width, shape, classes)
    samples = (setting.figure_limit or images) / DEVICES
    cell = config.cell(DEVICES, samples, derive(seed, "cell"))
    channels = cell.draw(list(_ROUNDS), derive(seed, "channels"))
    try:
        problem = cell.problem(channels, parameters=parameters, forward_flops=flops)
        found = allocate(problem, config.scheme, seed=derive(seed, "shares"))
    except InfeasibleError:
        return 1.0
    return float(np.mean(found.rate))


@lru_cache
def deadline_for(setting: Setting, target: float, scheme: str = "exact") -> float:
    """Return the deadline, to three digits, at which the mean rate of a scheme is near ``target``."""
    low, high = 1e-6, 1e6
    for _ in range(60):
        middle = float(np.sqrt(low * high))
        too_short = mean_rate(setting, radio(setting, deadline_s=middle, scheme=scheme)) > target
        low, high = (middle, high) if too_short else (low, middle)
    return float(f"{high:.3g}")


@lru_cache
def _size(name: str, width: float, shape: tuple[int, ...], classes: int) -> tuple[int, int]:
    model = models.build(models.ModelConfig(name=name, width=width), models.Shapes.of(shape, classes), seed=0)
    return models.count_parameters(model), forward_flops(model, shape)
