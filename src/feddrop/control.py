"""Who decides the rates of a round: the user, or the cell.

Both deciders have the same functions: ``decide`` before a round, ``costs`` after it, and the ``budgets`` of energy.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from feddrop import models
from feddrop.allocation import Allocation, allocate
from feddrop.config import RunConfig
from feddrop.errors import ConfigError
from feddrop.radio import Cell, Channels, covering
from feddrop.radio import cost as radio_cost
from feddrop.radio.cost import Cost
from feddrop.rounds import DeviceRound
from feddrop.seeds import derive
from feddrop.subnets.cut import blueprint, sizer
from feddrop.subnets.frames import DTYPES, HEADER_BYTES
from feddrop.subnets.masks import check_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided for a round.

    Attributes:
        rates: dropout rate γ of every device that takes part.
        shares: share ρ of the band, likewise; empty without a radio.
        binding: which constraint holds each device: ``"deadline"``, ``"energy"``, ``"deadline+energy"``,
            ``"rate cap"`` or ``"none"``.
        left_out: present devices that the policy left out.
        deadline_s: the deadline in force; longer than asked for where the policy stretched it.
        objective: Σ w/(1-γ), what the allocator minimises.
        allocation: the allocator's own answer.
        channels: the conditions of the round.
    """

    rates: Mapping[int, float]
    shares: Mapping[int, float] = field(default_factory=dict)
    binding: Mapping[int, str] = field(default_factory=dict)
    left_out: Sequence[int] = ()
    deadline_s: float | None = None
    objective: float | None = None
    allocation: Allocation | None = None
    channels: Channels | None = None


class GivenRates:
    """Rates that the user gave; no radio, no latency, no energy."""

    def __init__(self, rates: Sequence[float]) -> None:
        self._decision = Decision(rates=dict(enumerate(rates)))

    def decide(self, _: int) -> Decision:
        """Return the same rates in every round."""
        return self._decision

    def costs(self, _: Decision, __: Sequence[DeviceRound]) -> dict[int, dict[str, Any]]:
        """Return nothing: without a radio nothing is known of latency and energy."""
        return {}

    def budgets(self) -> list[float | None]:
        """Return nothing: there is no radio."""
        return []


class RadioRates:
    """Rates and shares from the cell: channels are drawn, the allocator decides.

    With ``costs = "measured"`` the allocator is told of a full model a little larger than it is, so that the *measured*
    frames and FLOPs of every subnet (headers, biases, rounding) stay within what it planned with; see
    :func:`feddrop.radio.covering`.
    """

    def __init__(self, config: RunConfig, model: nn.Module, input_shape: tuple[int, ...], samples: list[int]) -> None:
        if config.radio is None:
            raise ConfigError("the configuration has no [radio] section.")
        if config.method == "feddst":
            raise ConfigError(
                "[radio] decides a rate for every device, and 'feddst' has one sparsity for all. Remove [radio]."
            )
        self._radio, self._seed = config.radio, config.seed
        self._fixed = read_rates(config.rate, len(samples)) if config.radio.scheme == "fixed" else None
        trained = [count * config.train.epochs for count in samples]
        self.cell: Cell = config.radio.cell(len(samples), trained, derive(config.seed, "cell"))
        self._by_layer = models.layer_flops(model, input_shape)
        self._sizes = {name: tensor.numel() for name, tensor in model.named_parameters()}
        self._formula: dict[str, Any] = {
            "parameters": models.count_parameters(model),
            "forward_flops": sum(self._by_layer.values()),
        }
        self._cover = self._covers(config, model, input_shape) if config.radio.costs == "measured" else None
        self._last: tuple[int, Allocation] | None = None

    def decide(self, round_: int) -> Decision:
        """Draw the channels of a round and allocate."""
        if self._radio.scheme == "primal-dual":  # resumed: warm starts are replayed, so that they are the same
            if self._last and self._last[0] >= round_:
                self._last = None
            for missed in range(self._last[0] + 1 if self._last else 1, round_):
                self._decide(missed)
        return self._decide(round_)

    def _decide(self, round_: int) -> Decision:
        channels = self.cell.draw(round_, derive(self._seed, "channels"))
        top = self._radio.max_rate
        allocation = self._allocate(round_, channels, top)
        while self._cover and self._radio.scheme not in ("fixed", "random") and (highest := _highest(allocation)) < top:
            # The less is dropped, the closer the cover: what was feasible stays so, and rates can only fall.
            top = highest
            allocation = self._allocate(round_, channels, top)
        self._last = (round_, allocation)
        active, binding = [int(device) for device in np.flatnonzero(allocation.active)], allocation.binding
        return Decision(
            rates={device: float(allocation.rate[device]) for device in active},
            shares={device: float(allocation.share[device]) for device in active},
            binding={device: str(binding[device]) for device in active},
            left_out=[int(device) for device in np.flatnonzero(allocation.left_out)],
            deadline_s=float(np.max(allocation.problem.deadline_s)),
            objective=float(allocation.objective),
            allocation=allocation,
            channels=channels,
        )

    def _allocate(self, round_: int, channels: Channels, top: float) -> Allocation:
        """Allocate with rates up to ``top``."""
        full = self._cover(top) if self._cover else self._formula
        return allocate(
            replace(self.cell, max_rate=top).problem(channels, **full),
            self._radio.scheme,
            policy=self._radio.policy,
            seed=derive(self._seed, "shares", round_),
            rate=self._fixed,
            warm=self._last[1] if self._last else None,
        )

    def costs(self, decision: Decision, devices: Sequence[DeviceRound]) -> dict[int, dict[str, Any]]:
        """Work out latency and energy of every device, from what was measured and by the paper's formula."""
        if decision.allocation is None or decision.channels is None:
            return {}
        count = self.cell.devices
        push, pull, flops = np.zeros(count), np.zeros(count), np.zeros(count)
        for entry in devices:
            push[entry.device], pull[entry.device] = entry.push_bytes, entry.pull_bytes
            flops[entry.device] = 3.0 * self._forward(entry.kept) * self.cell.samples[entry.device]
        rate, share = np.minimum(decision.allocation.rate, 1.0), decision.allocation.share
        formula = radio_cost(self.cell, decision.channels, rate, share, **self._formula)
        measured = radio_cost(self.cell, decision.channels, rate, share, push_bytes=push, pull_bytes=pull, flops=flops)
        first, second, name = (
            (measured, formula, "formula") if self._radio.costs == "measured" else (formula, measured, "measured")
        )
        return {entry.device: _cost_record(first, second, name, entry.device) for entry in devices}

    def budgets(self) -> list[float | None]:
        """Return the energy budget of every device in joules; None for no budget."""
        return [
            float(budget) if math.isfinite(budget) else None
            for budget in np.broadcast_to(self.cell.budget_j, self.cell.devices)
        ]

    def _covers(
        self, config: RunConfig, model: nn.Module, input_shape: tuple[int, ...]
    ) -> Callable[[float], dict[str, Any]]:
        """Return the function from the highest rate to figures of a full model that cover every subnet's real costs."""
        if config.subnet.count != "exact":
            raise ConfigError(
                f"subnet.count is {config.subnet.count!r}, so that a subnet's size is random and no deadline can be "
                'promised by measured costs. Use subnet.count = "exact" or radio.costs = "formula".'
            )
        if config.subnet.level == "unit" and config.subnet.layer_rates:
            raise ConfigError(
                "subnet.layer_rates at the unit level let a subnet grow with its rate, so that no deadline can be "
                'promised by measured costs. Leave them out, or use radio.costs = "formula".'
            )
        sizes = lru_cache(maxsize=4096)(sizer(blueprint(model, input_shape, level=config.subnet.level), config.subnet))
        wire = DTYPES[config.execution.wire].itemsize
        scales = 4 * len(sizes(0.0)) if config.execution.wire == "int8" else 0

        @lru_cache
        def cover(top: float) -> dict[str, Any]:
            frame = covering(lambda rate: 8.0 * (HEADER_BYTES + scales + wire * sum(sizes(rate).values())), top)
            forward = covering(lambda rate: self._forward(sizes(rate)), top)
            return {"push_bits": frame, "pull_bits": frame, "flops": 3.0 * forward * self.cell.samples}

        return cover

    def _forward(self, kept: Mapping[str, int]) -> float:
        """Count the FLOPs of a subnet's forward pass: each layer's, times the share of its weights that is kept."""
        total = 0.0
        for layer, flops in self._by_layer.items():
            name = f"{layer}.weight" if layer else "weight"
            total += flops * kept[name] / self._sizes[name] if name in kept else flops
        return total


def controller(
    config: RunConfig, model: nn.Module, input_shape: tuple[int, ...], samples: list[int]
) -> GivenRates | RadioRates:
    """Return who decides the rates of a run: the cell where there is a radio, else the user."""
    if config.radio is not None:
        return RadioRates(config, model, input_shape, samples)
    return GivenRates(read_rates(config.rate, len(samples)))


def read_rates(rate: float | tuple[float, ...] | str, devices: int) -> list[float]:
    """Return one rate a device: from one number, a list, or a file (``.json`` list, or ``.csv`` with a column rate)."""
    if isinstance(rate, str):
        rate = _rates_from_file(Path(rate))
    rates = [rate] * devices if isinstance(rate, int | float) else list(rate)
    if len(rates) != devices:
        raise ConfigError(f"rate lists {len(rates)} rates for {devices} devices; give one a device, or one for all.")
    return [check_rate(value, f"rate of device {device}") for device, value in enumerate(rates)]


def _rates_from_file(path: Path) -> tuple[float, ...]:
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"cannot read the rates in {str(path)!r}: {error.strerror}.") from None
    with suppress(ValueError, KeyError, TypeError):
        if path.suffix == ".json":
            return tuple(float(value) for value in json.loads(text))
        rows = list(csv.DictReader(text.splitlines()))
        return tuple(float(row["rate"]) for row in rows)
    raise ConfigError(f"{str(path)!r} holds no rates: write a JSON list, or a CSV with a column named rate.")


def _highest(allocation: Allocation) -> float:
    """Return the highest rate in use, rounded up to a whole percent, so that covers are few."""
    return math.ceil(100.0 * float(np.max(allocation.rate, where=allocation.active, initial=0.0))) / 100.0


def _cost_record(first: Cost, second: Cost, name: str, device: int) -> dict[str, float]:
    """Return latency and energy of one device, and beside them those by the other way of counting."""
    return {
        "latency_s": float(first.latency_s[device]),
        "energy_j": float(first.energy_j[device]),
        f"{name}_latency_s": float(second.latency_s[device]),
        f"{name}_energy_j": float(second.energy_j[device]),
    }
