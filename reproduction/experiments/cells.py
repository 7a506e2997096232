"""The cells of the figures, with deadlines at which dropout matters at every scale."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from feddrop import models
from feddrop.allocation import Fixed, allocate, diagnose, scheme_named
from feddrop.config import Model, Radio
from feddrop.errors import InfeasibleError
from feddrop.models.flops import forward_flops
from feddrop.radio import build_cell, cost
from feddrop.seeds import derive
from reproduction.framework.scales import DEVICES, Setting

_SHAPES = {"cifar100": ((3, 32, 32), 100, 50_000), "digits": ((1, 32, 32), 10, 1438)}
ROUNDS = range(1, 21)
BAND_HZ = 10e6


def radio(
    setting: Setting,
    *,
    deadline_s: float = 1.0,
    bandwidth_hz: float = BAND_HZ,
    scheme: str = "exact",
    costs: str | None = None,
) -> Radio:
    """Return the paper's cell.

    If all layers are dropped, costs follow the paper's formula: (1-γ) of everything, 256 bits per parameter. If some
    layers are kept, costs are measured, from frames of 32 bits per value and counted FLOPs: the formula would charge
    the kept layers only (1-γ) of their cost.
    """
    costs = costs or ("formula" if setting.layers == "all" else "measured")
    return Radio(
        scheme=scheme,
        policy="leave-out",
        costs=costs,
        deadline_s=deadline_s,
        bandwidth_hz=bandwidth_hz,
        bits_per_parameter=256.0 if setting.model.name == "lenet" else 32.0,
    )


def mean_rate(setting: Setting, config: Radio, seed: int = 0) -> float:
    """Return the mean rate of a scheme over the first rounds; 1 if any of them is infeasible."""
    parameters, flops = size_of(setting)
    cell = build_cell(config, DEVICES, samples_of(setting), derive(seed, "cell"))
    channels = cell.draw(list(ROUNDS), derive(seed, "channels"))
    try:
        problem = cell.problem(channels, parameters=parameters, forward_flops=flops)
        found = allocate(problem, scheme_named(config.scheme, seed=derive(seed, "shares")))
    except InfeasibleError:
        return 1.0
    return float(np.mean(found.rate))


def played(setting: Setting, config: Radio, seed: int, rounds: int) -> dict[str, Any]:
    """Allocate the rounds of a run as the run does, without training.

    Returns:
        Means over the rounds of ``rate``, ``objective`` and the shares of devices limited by the deadline
        (``held_deadline``) and by energy (``held_energy``); ``objectives`` per round.
    """
    parameters, flops = size_of(setting)
    cell = build_cell(config, DEVICES, samples_of(setting), derive(seed, "cell"))
    objectives, rates, held = [], [], []
    found = None
    for round_ in range(1, rounds + 1):
        channels = cell.draw(round_, derive(seed, "channels"))
        problem = cell.problem(channels, parameters=parameters, forward_flops=flops, choose=config.chooses)
        seeded = derive(seed, "shares", round_)
        found = allocate(problem, scheme_named(config.band_scheme, seed=seeded), policy=config.policy, warm=found)
        objectives.append(float(found.objective))
        rates.append(float(np.mean(found.rate, where=found.active)))
        binding = [str(word) for word in found.binding[found.active]]
        held.append([np.mean([name in word for word in binding]) for name in ("deadline", "energy")])
    deadline, energy = np.mean(held, axis=0)
    return {
        "rate": float(np.mean(rates)),
        "objective": float(np.mean(objectives)),
        "held_deadline": float(deadline),
        "held_energy": float(energy),
        "objectives": objectives,
    }


def full_network(setting: Setting, seed: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds and joules of every round without dropout in the cell.

    The band is split so that all devices finish together, at the smallest deadline for which rate 0 is feasible.
    """
    parameters, flops = size_of(setting)
    config = radio(setting, scheme="fixed")
    cell = build_cell(config, DEVICES, samples_of(setting), derive(seed, "cell"))
    seconds, joules = [], []
    for round_ in range(1, rounds + 1):
        channels = cell.draw(round_, derive(seed, "channels"))
        hasty = replace(cell, deadline_s=1e-3).problem(channels, parameters=parameters, forward_flops=flops)
        found = allocate(hasty, Fixed(0.0), policy="stretch")
        spent = cost(cell, channels, found.rate, found.share, parameters=parameters, forward_flops=flops)
        seconds.append(float(np.max(spent.latency_s)))
        joules.append(float(np.sum(spent.energy_j)))
    return seconds, joules


def feasible_rounds(setting: Setting, config: Radio, seed: int, rounds: int) -> int:
    """Count the rounds of a run in which no device must be left out."""
    parameters, flops = size_of(setting)
    cell = build_cell(config, DEVICES, samples_of(setting), derive(seed, "cell"))
    drawn = (cell.draw(round_, derive(seed, "channels")) for round_ in range(1, rounds + 1))
    return sum(diagnose(cell.problem(one, parameters=parameters, forward_flops=flops)) is None for one in drawn)


@lru_cache
def deadline_for(setting: Setting, target: float, scheme: str = "exact") -> float:
    """Return the deadline, to three digits, at which the mean rate of a scheme by the paper's formula is ``target``.

    It is found in the cell of seed 0 and used for all seeds.
    """
    low, high = 1e-6, 1e6
    for _ in range(60):
        middle = float(np.sqrt(low * high))
        too_short = mean_rate(setting, radio(setting, deadline_s=middle, scheme=scheme)) > target
        low, high = (middle, high) if too_short else (low, middle)
    return float(f"{high:.3g}")


def samples_of(setting: Setting) -> float:
    """Return the mean number of images per device in the figures."""
    return (setting.figure_limit or _SHAPES[setting.data][2]) / DEVICES


def size_of(setting: Setting) -> tuple[int, int]:
    """Return the number of parameters of a network and the FLOPs of its forward pass."""
    shape, classes, _ = _SHAPES[setting.data]
    return _size(setting.model.name, setting.model.width, shape, classes)


@lru_cache
def _size(name: str, width: float, shape: tuple[int, ...], classes: int) -> tuple[int, int]:
    model = models.build_model(Model(name, width=width), models.Shapes.of(shape, classes), seed=0)
    return models.count_parameters(model), forward_flops(model, shape)
