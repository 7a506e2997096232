"""Who decides the rates of a round: the user, or the cell.

Both deciders have the same functions: ``decide`` before a round, ``costs`` after it, and the ``budgets`` of energy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from feddrop.allocation import Allocation, AnyProblem, allocate, refit, scheme_named
from feddrop.config import Radio
from feddrop.config.parsing import parse_json, read_text
from feddrop.errors import ConfigError, shortened
from feddrop.methods.method import Sizes
from feddrop.radio import Cell, Channels, MeasuredGains, covering
from feddrop.radio import cost as radio_cost
from feddrop.radio.build import build_cell
from feddrop.radio.cost import Cost
from feddrop.radio.dtypes import AUTO, ERRORS, choose_dtypes
from feddrop.radio.tables import by_device, read_table
from feddrop.seeds import derive
from feddrop.simulation.participation import Roster
from feddrop.simulation.round import DeviceRound
from feddrop.subnets.masks import check_rate
from feddrop.wire import frame_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided for a round.

    Attributes:
        rates: dropout rate γ of every device that takes part.
        shares: share ρ of the band, likewise; empty without a radio.
        powers: watts P that each device sends with, where they are chosen.
        clocks: hertz f that each device computes at, where they are chosen.
        wires: how each device's values travel, where that is chosen.
        binding: which constraint holds each device: ``"deadline"``, ``"energy"``, ``"deadline+energy"``,
            ``"rate cap"`` or ``"none"``.
        left_out: present devices that the policy left out.
        deadline_s: the deadline in force; longer than asked for where the policy stretched it.
        objective: Σ w/(1-γ), what the allocator minimises.
        allocation: the allocator's own answer.
        channels: the conditions of the round, with the powers and clocks that were chosen.
    """

    rates: Mapping[int, float]
    shares: Mapping[int, float] = field(default_factory=dict)
    powers: Mapping[int, float] = field(default_factory=dict)
    clocks: Mapping[int, float] = field(default_factory=dict)
    wires: Mapping[int, str] = field(default_factory=dict)
    binding: Mapping[int, str] = field(default_factory=dict)
    left_out: Sequence[int] = ()
    deadline_s: float | None = None
    objective: float | None = None
    allocation: Allocation | None = None
    channels: Channels | None = None


class GivenRates:
    """Rates that the user gave; no radio, no latency, no energy."""

    def __init__(self, rates: Sequence[float], participation: Roster) -> None:
        self._rates, self._participation = rates, participation

    def decide(self, round_: int) -> Decision:
        """Return the rates of the devices that take part."""
        return Decision(rates={device: self._rates[device] for device in self._participation.chosen(round_).tolist()})

    def costs(self, decision: Decision, devices: Sequence[DeviceRound]) -> dict[int, dict[str, Any]]:  # noqa: ARG002
        """Return nothing: without a radio nothing is known of latency and energy."""
        return {}

    def budgets(self) -> list[float | None]:
        """Return nothing: there is no radio."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the radio must know of what is trained.

    Attributes:
        samples: samples that each device trains on in a round, all epochs counted.
        parameters: parameters of the whole network.
        flops: FLOPs of one sample, forward and with the backward pass, of a subnet that keeps so many values of every
            tensor; None for the whole network.
        sizes: what a subnet of a rate holds; None where the method cannot say.
        dtype: how values travel; ``"auto"`` to choose it for every device, see :mod:`feddrop.radio.dtypes`.
    """

    samples: Sequence[int]
    parameters: int
    flops: Callable[[Mapping[str, int] | None], tuple[float, float]]
    sizes: Callable[[float], Sizes] | None
    dtype: str


class RadioRates:
    """Rates and shares from the cell, power and clock where they are open: channels are drawn, the allocator decides.

    With ``costs = "measured"`` the allocator is told of a full model a little larger than it is, so that the *measured*
    frames and FLOPs of every subnet (headers, biases, rounding) stay within what it planned with; see
    :func:`feddrop.radio.covering`.
    """

    def __init__(
        self,
        radio: Radio,
        work: Workload,
        participation: Roster,
        seed: int,
        fixed: Sequence[float] | None = None,
        gains: MeasuredGains | None = None,
    ) -> None:
        self._radio, self._seed, self._work, self._participation = radio, seed, work, participation
        self._fixed = list(fixed) if fixed is not None else None
        self.cell: Cell = build_cell(radio, len(work.samples), list(work.samples), derive(seed, "cell"), gains=gains)
        self._formula: dict[str, Any] = {"parameters": work.parameters, "forward_flops": work.flops(None)[0]}
        kinds = ERRORS if work.dtype == AUTO else (work.dtype,)
        self._covers = {wire: covers(replace(work, dtype=wire)) for wire in kinds if radio.costs == "measured"}
        self._last: tuple[int, Allocation] | None = None

    def check(self, rounds: int) -> None:
        """Refuse a cell that none of those who take part is in, in one of so many rounds: before a run, not midway."""
        if self.cell.dynamics is not None and not self._participation.everyone:
            for round_ in range(1, rounds + 1):
                self._present(round_, self.cell.draw(round_, derive(self._seed, "channels")))

    def decide(self, round_: int) -> Decision:
        """Draw the channels of a round and allocate."""
        if self._radio.scheme == "primal-dual":  # resumed: warm starts are replayed, so that they are the same
            if self._last and self._last[0] >= round_:
                self._last = None
            for missed in range(self._last[0] + 1 if self._last else 1, round_):
                self._decide(missed)
        return self._decide(round_)

    def _decide(self, round_: int) -> Decision:
        channels = self._present(round_, self.cell.draw(round_, derive(self._seed, "channels")))

        def solve(wires: Sequence[str]) -> Allocation:
            return self._tight(round_, channels, wires)

        count, given = self.cell.devices, self._work.dtype
        wires, allocation = choose_dtypes(solve, count) if given == AUTO else ([given] * count, solve([given] * count))
        self._last = (round_, allocation)
        active, binding = [int(device) for device in np.flatnonzero(allocation.active)], allocation.binding
        chosen = self._chosen(allocation, channels)
        return Decision(
            rates={device: float(allocation.rate[device]) for device in active},
            shares={device: float(allocation.share[device]) for device in active},
            powers={device: float(chosen.tx_power_w[device]) for device in active if "power" in self._radio.chooses},
            wires={device: wires[device] for device in active if given == AUTO},
            clocks={device: float(chosen.cpu_hz[device]) for device in active if "cpu" in self._radio.chooses},
            binding={device: str(binding[device]) for device in active},
            left_out=[int(device) for device in np.flatnonzero(allocation.left_out)],
            deadline_s=float(np.max(allocation.problem.deadline_s)),
            objective=float(allocation.objective),
            allocation=allocation,
            channels=chosen,
        )

    def _tight(self, round_: int, channels: Channels, wires: Sequence[str]) -> Allocation:
        """Allocate, and again with every device under the cover of its own rate, as long as rates fall.

        Who takes part, and until when, is decided once, under the first cover, that of rate θ. No rate rises above
        that of the allocation before, so that what was feasible stays so. Shares that are given or drawn stay as they
        are: drawn again at lower rates they would become ever fairer.
        """
        tops = np.full(len(wires), self._radio.max_rate) if self._fixed is None else np.asarray(self._fixed)
        full = self._full(wires, tops)
        first = allocation = self._allocate(round_, self._problem(channels, full))
        if not self._covers or self._radio.band_scheme == "fixed":
            return first
        while not np.array_equal(lower := np.minimum(_percent(allocation), tops), tops):
            tops, closer = lower, self._full(wires, lower)
            full = {name: np.minimum(full[name], closer[name]) for name in full}  # what covers more covers less too
            problem = replace(self._problem(channels, full), deadline_s=first.problem.deadline_s)
            if self._radio.band_scheme in ("equal", "random"):
                allocation = refit(allocation, problem)
            else:
                allocation = self._allocate(round_, replace(problem, max_rate=tops, present=first.active))
        plain = replace(allocation.problem, max_rate=first.problem.max_rate, present=first.problem.present)
        return replace(allocation, problem=plain, left_out=first.left_out)

    def _chosen(self, allocation: Allocation, channels: Channels) -> Channels:
        """The conditions of the round at the powers and clocks that were chosen."""
        if allocation.cpu_hz is None or allocation.tx_power_w is None:
            return channels
        return replace(
            channels,
            cpu_hz=np.where(allocation.active, allocation.cpu_hz, channels.cpu_hz),
            tx_power_w=np.where(allocation.active, allocation.tx_power_w, channels.tx_power_w),
        )

    def _present(self, round_: int, channels: Channels) -> Channels:
        """Leave only those devices in the cell that take part."""
        chosen = self._participation.chosen(round_)
        if len(chosen) == self.cell.devices:
            return channels
        present = np.zeros(self.cell.devices, bool)
        present[chosen] = True
        present &= channels.present
        if not present.any():
            raise ConfigError(
                f"none of the devices chosen for round {round_} is in the cell. Let more take part, or raise "
                "radio.min_devices."
            )
        return replace(channels, present=present)

    def _allocate(self, round_: int, problem: AnyProblem) -> Allocation:
        scheme = scheme_named(self._radio.band_scheme, seed=derive(self._seed, "shares", round_), rate=self._fixed)
        return allocate(problem, scheme, policy=self._radio.policy, warm=self._last[1] if self._last else None)

    def _full(self, wires: Sequence[str], tops: npt.NDArray[np.float64]) -> dict[str, Any]:
        """The figures of the full model, as long as the rate of each device is at most its top."""
        if not self._covers:
            return self._formula
        of = list(zip(wires, tops.tolist(), strict=True))
        covers = {pair: self._covers[pair[0]](pair[1]) for pair in dict.fromkeys(of)}
        full = {name: np.array([covers[pair][name] for pair in of]) for name in ("push_bits", "pull_bits", "flops")}
        return full | {"flops": full["flops"] * self.cell.samples}

    def _problem(self, channels: Channels, full: dict[str, Any]) -> AnyProblem:
        return self.cell.problem(channels, **full, choose=self._radio.chooses)

    def costs(self, decision: Decision, devices: Sequence[DeviceRound]) -> dict[int, dict[str, Any]]:
        """Work out latency and energy of every device, from what was measured and by the paper's formula."""
        if decision.allocation is None or decision.channels is None:
            return {}
        count = self.cell.devices
        push, pull, flops = np.zeros(count), np.zeros(count), np.zeros(count)
        for entry in devices:
            push[entry.device], pull[entry.device] = entry.push_bytes, entry.pull_bytes
            work = self._work.sizes(entry.rate).work if self._work.sizes else 1.0
            flops[entry.device] = work * self._work.flops(entry.kept)[1] * self.cell.samples[entry.device]
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


def covers(work: Workload) -> Callable[[float], dict[str, float]]:
    """Return the function from the highest rate to figures of a full model that cover every subnet's real costs.

    Those are the bits of a frame each way, and the FLOPs of a sample.
    """
    if work.dtype == AUTO:
        raise ConfigError('execution.dtype is "auto", which is chosen for the devices of a [radio] that is simulated.')
    if work.sizes is None:
        raise ConfigError(
            "the method cannot say how large a subnet of a rate is with these settings, so that no deadline can be "
            "promised by measured costs. Use others (an exact count, no layer rates, a threshold by layer), or "
            'radio.costs = "formula".'
        )
    sizes = lru_cache(maxsize=4096)(work.sizes)

    def push(rate: float) -> float:
        return 8.0 * (frame_bytes(sizes(rate).kept, work.dtype) + sizes(rate).push_bytes)

    def pull(rate: float) -> float:
        up = sizes(rate).answered or sizes(rate).kept
        return 8.0 * (frame_bytes(up, work.dtype) + sizes(rate).pull_bytes)

    def flops(rate: float) -> float:
        return sizes(rate).work * work.flops(sizes(rate).kept)[1]

    @lru_cache
    def cover(top: float) -> dict[str, float]:
        return {
            "push_bits": covering(push, top),
            "pull_bits": covering(pull, top),
            "flops": covering(flops, top),
        }

    return cover


class Rates(Protocol):
    """Who decides the rates of a run.

    One may also have ``takes``, the settings that it takes into account, and ``kept_settings``, those of its own by
    name, which ``run.json`` then tells.
    """

    def decide(self, round_: int) -> Decision:
        """Decide before a round. Round 1 is also asked for before the run, so that what cannot work is an error."""
        ...

    def costs(self, decision: Decision, devices: Sequence[DeviceRound]) -> dict[int, dict[str, Any]]:
        """Return what a round took, by device: fields of a :class:`feddrop.storage.DeviceRecord`; or nothing."""
        ...

    def budgets(self) -> list[float | None]:
        """Return the energy budget of every device in joules, None for no budget; empty where there is no energy."""
        ...


def read_rates(rate: float | tuple[float, ...] | str, devices: int) -> list[float]:
    """Return one rate a device: from one number, a list, or a file (``.json`` list, or ``.csv`` with a column rate)."""
    if isinstance(rate, str):
        rate = tuple(_rates_from_file(Path(rate), devices))
    rates = [rate] * devices if isinstance(rate, int | float) else list(rate)
    if len(rates) != devices:
        raise ConfigError(f"rate lists {len(rates)} rates for {devices} devices; give one a device, or one for all.")
    return [check_rate(value, f"rate of device {device}") for device, value in enumerate(rates)]


def _rates_from_file(path: Path, devices: int) -> Sequence[float]:
    kind = path.suffix.lower()
    if kind not in (".json", ".csv") and not path.exists():
        raise ConfigError(
            f"rate is {path.name!r}; it must be a number in [0, 1), a list of one a device, or the name of a .json or "
            ".csv file."
        )
    if kind == ".json":
        if not isinstance(values := parse_json(read_text(path, "the rates"), repr(str(path))), list):
            raise ConfigError(f"{str(path)!r} holds {shortened(values)}; it must hold a list, a rate a device.")
        return values
    columns, rows = read_table(path, "rates")
    if "rate" not in columns:
        raise ConfigError(
            f"{str(path)!r} holds no rates: write a JSON list, or a CSV with a column rate (and one named device, if "
            "the rows are not in order)."
        )
    if "device" in columns:
        rows = by_device(rows, devices, repr(str(path)))
    return [row.number("rate") for row in rows]


def _percent(allocation: Allocation) -> npt.NDArray[np.float64]:
    """Return the rates rounded up to a whole percent, so that covers are few; at most θ."""
    return np.minimum(np.ceil(100.0 * allocation.rate) / 100.0, allocation.problem.max_rate)


def _cost_record(first: Cost, second: Cost, name: str, device: int) -> dict[str, float]:
    """Return latency and energy of one device, and beside them those by the other way of counting."""
    return {
        "latency_s": float(first.latency_s[device]),
        "energy_j": float(first.energy_j[device]),
        f"{name}_latency_s": float(second.latency_s[device]),
        f"{name}_energy_j": float(second.energy_j[device]),
    }
