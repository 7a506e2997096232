"""The planners of a run's rounds: their interface, and the planner for given rates.

A planner chooses the rates of a round with ``decide``, works out its costs afterwards with ``costs``, and knows the
energy ``budgets``. See ``cell_rates.py`` for the planner of a radio cell, which calls schemes, channels and outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from feddrop.allocation import Allocation
from feddrop.config.parsing import parse_json, read_text
from feddrop.errors import ConfigError, shortened
from feddrop.methods.method import Sizes
from feddrop.radio import Channels
from feddrop.radio.plan import NO_STATE, ArrayState
from feddrop.radio.tables import by_device, read_table
from feddrop.simulation.participation import Roster
from feddrop.simulation.round import DeviceRound
from feddrop.subnets.masks import check_rate
from feddrop.subnets.parameters import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """A round as it was planned: the plan of the scheme, checked, and what is lost. Mappings are by device number.

    Attributes:
        rates: dropout rate γ of every device that takes part.
        shares: share ρ of the band, likewise; empty without a radio.
        powers: transmit power P in watts, if it was chosen.
        clocks: CPU frequency f in hertz, if it was chosen.
        dtypes: how values travel, if that was chosen.
        binding: the constraint that limits each device: ``"deadline"``, ``"energy"``, ``"deadline+energy"``,
            ``"rate cap"`` or ``"none"``.
        left_out: present devices that the policy left out.
        deadline_s: the deadline in force, in seconds; longer than requested if the policy stretched it.
        objective: Σ w/(1-γ) over the devices that take part, which the allocator minimises.
        charged_objective: the objective plus 1/(1-θ) for each device left out; None if none is.
        band_price: price μ of the whole band, if absence has a price.
        gap: bound on what was lost by the choice of devices, relative to the objective, if absence has a price.
        remark: what a reader of the record must know, such as that the scheme ignores the band.
        allocation: the allocator's result.
        channels: the true conditions of the round, with the chosen powers and clocks.
        lost: why the update of a device will be lost, for those that will; they train and are billed.
        transmissions: how often each upload is sent on average, ``[num_devices]``; None for once.
        state: what scheme and outcome remember; it becomes the run's when the round is saved.
    """

    rates: Mapping[int, float]
    shares: Mapping[int, float] = field(default_factory=dict)
    powers: Mapping[int, float] = field(default_factory=dict)
    clocks: Mapping[int, float] = field(default_factory=dict)
    dtypes: Mapping[int, str] = field(default_factory=dict)
    binding: Mapping[int, str] = field(default_factory=dict)
    left_out: Sequence[int] = ()
    deadline_s: float | None = None
    objective: float | None = None
    charged_objective: float | None = None
    band_price: float | None = None
    gap: float | None = None
    remark: str | None = None
    allocation: Allocation | None = None
    channels: Channels | None = None
    lost: Mapping[int, str] = field(default_factory=dict)
    transmissions: npt.NDArray[np.float64] | None = None
    state: ArrayState = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a scheme knows about the training.

    Attributes:
        samples: samples that each device trains on per round, over all epochs.
        parameters: trained parameters of the full network.
        flops: FLOPs per sample, forward and with the backward pass, of a subnet given by the values kept per tensor;
            None for the full network.
        sizes: what a subnet of a given rate holds; None if the method cannot predict it.
        dtype: how values travel; ``"auto"`` to choose it per device, see :mod:`feddrop.radio.dtypes`.
    """

    samples: Sequence[int]
    parameters: int
    flops: Callable[[Mapping[str, int] | None], tuple[float, float]]
    sizes: Callable[[float], Sizes] | None
    dtype: str

    def training_flops(self, rate: float, kept: Mapping[str, int]) -> float:
        """Return the FLOPs per sample with which a device at a rate trains, if it was sent the ``kept`` values."""
        sizes = self.sizes(rate) if self.sizes else None
        if sizes is None:
            return self.flops(kept)[1]
        trained = kept if sizes.answered is None else sizes.kept  # more may be trained than travels
        return sizes.work * self.flops(trained)[1]


class RateScheme(Protocol):
    """The interface of a planner, which chooses the rates of every round.

    It may also have ``takes``, names of settings that it uses, and ``kept_settings``, its settings by name for
    ``run.json``.
    """

    def decide(self, round_: int, state: ArrayState = NO_STATE, params: Params | None = None) -> RoundPlan:
        """Plan a round. Round 1 is also planned before the run, so that an impossible plan is found early.

        Args:
            round_: number of the round, from 1.
            state: that of the plan of the round before; empty in the first.
            params: the network before the round, for objectives that look at it.
        """

    def costs(self, plan: RoundPlan, devices: Sequence[DeviceRound]) -> dict[int, dict[str, Any]]:
        """Return the costs of a round as fields of :class:`feddrop.DeviceRecord`, by device; empty if unknown."""

    def budgets(self) -> list[float | None]:
        """Return the energy budget per device in joules, None for no budget; empty if energy is not modelled."""


@dataclass(frozen=True, slots=True)
class PlannedBy:
    """Plans rounds without a cell, in place of a scheme, as the server of real devices does.

    Attributes:
        build: a function from the workload and the participation to the planner.
    """

    build: Callable[[Workload, Roster], RateScheme]


class GivenRates:
    """Rates given by the user, one per device; latency and energy are unknown."""

    def __init__(self, rates: Sequence[float], participation: Roster) -> None:
        self._rates, self._participation = rates, participation

    def decide(self, round_: int, state: ArrayState = NO_STATE, params: Params | None = None) -> RoundPlan:  # noqa: ARG002
        """Return the rates of the devices that take part."""
        return RoundPlan(rates={device: self._rates[device] for device in self._participation.chosen(round_).tolist()})

    def costs(self, plan: RoundPlan, devices: Sequence[DeviceRound]) -> dict[int, dict[str, Any]]:  # noqa: ARG002
        """Return nothing: without a radio, costs are unknown."""
        return {}

    def budgets(self) -> list[float | None]:
        """Return nothing: without a radio, there are no budgets."""
        return []


def read_rates(rate: float | tuple[float, ...] | str, devices: int) -> list[float]:
    """Return one rate per device: from a valid number or list, or from a ``.json`` or ``.csv`` file."""
    if isinstance(rate, str):
        read = _rates_from_file(Path(rate), devices)
        rate = tuple(check_rate(value, f"rate of device {device}") for device, value in enumerate(read))
    rates = [rate] * devices if isinstance(rate, float) else list(rate)
    if len(rates) != devices:
        raise ConfigError(f"rate lists {len(rates)} rates for {devices} devices; give one per device, or one number.")
    return rates


def _rates_from_file(path: Path, devices: int) -> Sequence[float]:
    """Read a JSON list, or the column ``rate`` of a CSV table."""
    kind, name = path.suffix.lower(), repr(str(path))
    if kind == ".json":
        values = parse_json(read_text(path, "the rates"), name)
        if isinstance(values, list):
            return values
        problem = f"{name} holds {shortened(values)}; it must hold a list with one rate per device."
    elif kind != ".csv" and not path.exists():
        problem = f"rate is {path.name!r}; it must be a number in [0, 1), a list of them, or a .json or .csv file."
    else:
        columns, rows = read_table(path, "rates")
        if "rate" in columns:
            return [row.number("rate") for row in (by_device(rows, devices, name) if "device" in columns else rows)]
        problem = f"{name} has no column rate; it needs one, and a column device unless its rows are in order."
    raise ConfigError(problem)
