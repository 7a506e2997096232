"""Rates chosen by the cell: channels are drawn, the allocator plans the round."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from feddrop.allocation import OBJECTIVES, Allocation, AnyProblem, Exact, Scheme, Status, allocate, refit, scheme_named
from feddrop.config import Radio
from feddrop.config.radio import GIVEN_RATES, IGNORES_BAND, WITHOUT_DROPOUT
from feddrop.errors import ConfigError
from feddrop.radio import Cell, Channels, MeasuredGains, covering
from feddrop.radio import cost as radio_cost
from feddrop.radio.build import build_cell
from feddrop.radio.dtypes import AUTO, ERRORS, choose_dtypes
from feddrop.seeds import derive
from feddrop.simulation.participation import Roster
from feddrop.simulation.round import DeviceRound
from feddrop.simulation.schemes import Plan, Workload
from feddrop.wire import frame_bytes


class CellRates:
    """Rates and shares that a radio cell chooses; also powers and clocks, if the configuration leaves them open.

    With ``costs = "measured"`` the allocator plans with a full model slightly larger than the real one, so that the
    *measured* frames and FLOPs of every subnet (headers, biases, rounding) stay within the plan; see
    :func:`feddrop.radio.covering`.

    Args:
        radio: the cell and how it is shared.
        work: what is trained.
        participation: chooses the devices of a round.
        seed: the run's root seed.
        fixed: one rate per device, for the scheme ``"fixed"``.
        gains: measured gains in place of the channel model.
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
        top = 0.0 if radio.band_scheme in WITHOUT_DROPOUT else radio.max_rate
        self._tops = np.full(len(work.samples), top) if fixed is None else np.asarray(self._fixed)
        self.cell: Cell = build_cell(radio, len(work.samples), list(work.samples), derive(seed, "cell"), gains=gains)
        self._formula: dict[str, Any] = {"parameters": work.parameters, "forward_flops": work.flops(None)[0]}
        dtypes = ERRORS if work.dtype == AUTO else (work.dtype,)
        self._covers = {dtype: covers(replace(work, dtype=dtype)) for dtype in dtypes if radio.costs == "measured"}
        self._last: tuple[int, Allocation] | None = None

    def first_empty_round(self, rounds: int) -> int | None:
        """Return the first of so many rounds in which no device that takes part is in the cell."""
        if self.cell.dynamics is None or self._participation.everyone:
            return None
        return next((t for t in range(1, rounds + 1) if not self._channels(t).present.any()), None)

    def decide(self, round_: int) -> Plan:
        """Draw the channels of a round and allocate."""
        if self._radio.scheme == "primal-dual":  # after a resume, replay the warm starts so that they are the same
            if self._last and self._last[0] >= round_:
                self._last = None
            for missed in range(self._last[0] + 1 if self._last else 1, round_):
                self._decide(missed)
        return self._decide(round_)

    def _decide(self, round_: int) -> Plan:
        channels = self._channels(round_)

        def solve(dtypes: Sequence[str]) -> Allocation:
            return self._tight(round_, channels, dtypes)

        count, given = self.cell.devices, self._work.dtype
        dtypes, allocation = choose_dtypes(solve, count) if given == AUTO else ([given] * count, solve([given] * count))
        self._last = (round_, allocation)
        active, binding = [int(device) for device in np.flatnonzero(allocation.active)], allocation.binding
        chosen = self._chosen(allocation, channels)
        return Plan(
            rates={device: float(allocation.rate[device]) for device in active},
            shares={device: float(allocation.share[device]) for device in active},
            powers={device: float(chosen.tx_power_w[device]) for device in active if "power" in self._radio.chooses},
            dtypes={device: dtypes[device] for device in active if given == AUTO},
            clocks={device: float(chosen.cpu_hz[device]) for device in active if "cpu" in self._radio.chooses},
            binding={device: str(binding[device]) for device in active},
            left_out=[int(device) for device in np.flatnonzero(allocation.left_out)],
            deadline_s=float(np.max(allocation.problem.deadline_s)),
            objective=float(allocation.objective),
            charged_objective=float(allocation.charged_objective) if allocation.left_out.any() else None,
            remark=IGNORES_BAND if allocation.status is Status.IDEAL else None,
            allocation=allocation,
            channels=chosen,
        )

    def _tight(self, round_: int, channels: Channels, dtypes: Sequence[str]) -> Allocation:
        """Allocate, then again with the cover of each device's rate, as long as rates fall.

        The first cover, that of rate θ, decides the devices and the deadline. No rate rises above that of the
        allocation before, so that the problem stays feasible. Shares that are given or drawn are kept: drawn again
        at lower rates, they would become ever more equal.
        """
        tops = self._tops
        full = self._full(dtypes, tops)
        first = allocation = self._allocate(round_, self._problem(channels, full))
        if not self._covers or self._radio.band_scheme in GIVEN_RATES:
            return first
        while not np.array_equal(lower := np.minimum(_percent(allocation), tops), tops):
            tops, closer = lower, self._full(dtypes, lower)
            full = {name: np.minimum(full[name], closer[name]) for name in full}  # either covers the lower rates
            problem = replace(self._problem(channels, full), deadline_s=first.problem.deadline_s)
            if self._radio.band_scheme in ("equal", "random"):
                allocation = refit(allocation, problem)
            else:
                allocation = self._allocate(round_, replace(problem, max_rate=tops, present=first.active))
        plain = replace(allocation.problem, max_rate=first.problem.max_rate, present=first.problem.present)
        return replace(allocation, problem=plain, left_out=first.left_out)

    def _chosen(self, allocation: Allocation, channels: Channels) -> Channels:
        """Return the conditions of the round at the chosen powers and clocks."""
        if allocation.cpu_hz is None or allocation.tx_power_w is None:
            return channels
        return replace(
            channels,
            cpu_hz=np.where(allocation.active, allocation.cpu_hz, channels.cpu_hz),
            tx_power_w=np.where(allocation.active, allocation.tx_power_w, channels.tx_power_w),
        )

    def _channels(self, round_: int) -> Channels:
        """Draw the channels of a round; only devices that take part are present."""
        channels, chosen = self.cell.draw(round_, derive(self._seed, "channels")), self._participation.chosen(round_)
        if len(chosen) == self.cell.devices:
            return channels
        present = np.zeros(self.cell.devices, bool)
        present[chosen] = True
        return replace(channels, present=present & channels.present)

    def _allocate(self, round_: int, problem: AnyProblem) -> Allocation:
        scheme: Scheme = scheme_named(
            self._radio.band_scheme, seed=derive(self._seed, "shares", round_), rate=self._fixed
        )
        if self._radio.objective != "inverse":
            scheme = Exact(OBJECTIVES[self._radio.objective])
        return allocate(problem, scheme, policy=self._radio.policy, warm=self._last[1] if self._last else None)

    def _full(self, dtypes: Sequence[str], tops: npt.NDArray[np.float64]) -> dict[str, Any]:
        """Return the figures of the full model, valid while the rate of each device is at most its top."""
        if not self._covers:
            return self._formula
        of = list(zip(dtypes, tops.tolist(), strict=True))
        covers = {pair: self._covers[pair[0]](pair[1]) for pair in dict.fromkeys(of)}
        full = {name: np.array([covers[pair][name] for pair in of]) for name in ("push_bits", "pull_bits", "flops")}
        return full | {"flops": full["flops"] * self.cell.samples}

    def _problem(self, channels: Channels, full: dict[str, Any]) -> AnyProblem:
        return self.cell.problem(channels, **full, choose=self._radio.chooses)

    def costs(self, plan: Plan, devices: Sequence[DeviceRound]) -> dict[int, dict[str, Any]]:
        """Return what every device cost, from measured sizes and by the paper's formula."""
        if plan.allocation is None or plan.channels is None:
            return {}
        count = self.cell.devices
        push, pull, flops = np.zeros(count), np.zeros(count), np.zeros(count)
        for entry in devices:
            push[entry.device], pull[entry.device] = entry.push_bytes, entry.pull_bytes
            work = self._work.sizes(entry.rate).work if self._work.sizes else 1.0
            flops[entry.device] = work * self._work.flops(entry.kept)[1] * self.cell.samples[entry.device]
        rate, share = np.minimum(plan.allocation.rate, 1.0), plan.allocation.share
        formula = radio_cost(self.cell, plan.channels, rate, share, **self._formula)
        measured = radio_cost(self.cell, plan.channels, rate, share, push_bytes=push, pull_bytes=pull, flops=flops)
        first, second, name = (
            (measured, formula, "formula") if self._radio.costs == "measured" else (formula, measured, "measured")
        )
        down, up = self.cell.efficiency(plan.channels, np.where(share > 0, share, 1.0))
        found = {
            "latency_s": first.latency_s,
            "energy_j": first.energy_j,
            f"{name}_latency_s": second.latency_s,
            f"{name}_energy_j": second.energy_j,
            "push_s": first.push_s,
            "compute_s": first.compute_s,
            "pull_s": first.pull_s,
            "downlink_efficiency": down,
            "uplink_efficiency": up,
            "flops": flops,
        }
        if self.cell.dynamics is not None:
            found |= {"tx_power_w": plan.channels.tx_power_w, "cpu_hz": plan.channels.cpu_hz}
        return {d.device: {key: float(values[d.device]) for key, values in found.items()} for d in devices}

    def budgets(self) -> list[float | None]:
        """Return the energy budget per device in joules; None for no budget."""
        budgets = np.broadcast_to(self.cell.budget_j, self.cell.devices).tolist()
        return [budget if math.isfinite(budget) else None for budget in budgets]


def covers(work: Workload) -> Callable[[float], dict[str, float]]:
    """Return a function from the highest rate to the figures of a full model that cover every subnet's real costs.

    The figures are the bits of a frame in each direction and the FLOPs per sample.
    """
    if work.sizes is None:
        raise ConfigError(
            "with these settings the method cannot predict the size of a subnet, so measured costs cannot guarantee a "
            'deadline. Use an exact count, no layer rates and thresholds per layer, or radio.costs = "formula".'
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
        return {"push_bits": covering(push, top), "pull_bits": covering(pull, top), "flops": covering(flops, top)}

    return cover


def _percent(allocation: Allocation) -> npt.NDArray[np.float64]:
    """Return the rates rounded up to a full percent, so that there are few covers; at most θ."""
    return np.minimum(np.ceil(100.0 * allocation.rate) / 100.0, allocation.problem.max_rate)
