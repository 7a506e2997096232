"""Rates chosen by the cell: channels are drawn, the allocator plans the round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from feddrop.allocation import Allocation, AnyProblem, Exact, Objective, Scheme, Status, allocate, refit, scheme_named
from feddrop.allocation.feasible import everyone
from feddrop.allocation.objectives import PAPER
from feddrop.allocation.scheduling import with_absence
from feddrop.config import Radio
from feddrop.config.radio import IGNORES_BAND, WITHOUT_DROPOUT
from feddrop.radio import Cell, Channels, MeasuredGains
from feddrop.radio import cost as radio_cost
from feddrop.radio.build import build_cell
from feddrop.radio.dtypes import AUTO, ERRORS, choose_dtypes
from feddrop.radio.outcome import Losses, Truth, late, settle_losses, with_transmissions
from feddrop.radio.plan import (
    NO_STATE,
    ArrayState,
    Plan,
    SchemeFunction,
    SeenRound,
    check_allocation,
    paced,
    plan_round,
    settled,
)
from feddrop.seeds import derive
from feddrop.simulation.cell_hooks import CellHooks
from feddrop.simulation.covers import Predicted, covers, predicted
from feddrop.simulation.custom import CustomObjects
from feddrop.simulation.participation import Roster
from feddrop.simulation.round import DeviceRound
from feddrop.simulation.schemes import RoundPlan, Workload
from feddrop.simulation.spent import JOULES, SECONDS, so_far
from feddrop.subnets.parameters import Params

_SOLVED, _SPLIT = ("exact", "primal-dual", "common"), ("equal", "random")
"""Schemes that solve the problem again at lower rates, and those that keep their shares."""
_NOTHING = Predicted(0.0, 0.0, 0.0)
_UNPREDICTABLE = (
    'so measured costs cannot guarantee a deadline. Use radio.costs = "formula"; or method.count = "exact", '
    'method.threshold = "layer" and no layer rates.'
)


class _Allocated(NamedTuple):
    """An allocation, the channels it is for, how values travel per device, and the plan of a function."""

    allocation: Allocation
    channels: Channels
    dtypes: Sequence[str]
    plan: Plan | None


class CellRates:
    """Rates and shares that a radio cell chooses; also powers and clocks, if the configuration leaves them open.

    A round is planned with the channels that the server estimates and costed with the true ones: the scheme chooses a
    plan, which is checked, and the outcome says which updates are lost.

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
        hooks: scheme, channel, outcome and objective; None for those that the section names.
    """

    def __init__(
        self,
        radio: Radio,
        work: Workload,
        participation: Roster,
        seed: int,
        fixed: Sequence[float] | None = None,
        gains: MeasuredGains | None = None,
        hooks: CellHooks | None = None,
    ) -> None:
        self._radio, self._seed, self._work, self._participation = radio, seed, work, participation
        self._hooks = hooks or CellHooks(radio, CustomObjects())
        self._fixed = list(fixed) if fixed is not None else None
        top = 0.0 if radio.band_scheme in WITHOUT_DROPOUT else radio.max_rate
        self._tops = np.full(len(work.samples), top) if fixed is None else np.asarray(self._fixed)
        count, channel = len(work.samples), self._hooks.channel
        self.cell: Cell = build_cell(
            radio, count, list(work.samples), derive(seed, "cell"), gains=gains, channel=channel
        )
        self._formula: dict[str, Any] = {"parameters": work.parameters, "forward_flops": work.flops(None)[0]}
        dtypes = ERRORS if work.dtype == AUTO else (work.dtype,)
        measured = dtypes if radio.costs == "measured" else ()
        self._predicted = {dtype: predicted(replace(work, dtype=dtype), _UNPREDICTABLE) for dtype in measured}
        self._covers = {dtype: covers(size_at) for dtype, size_at in self._predicted.items()}
        self._last: tuple[int, Allocation] | None = None

    def first_empty_round(self, rounds: int) -> int | None:
        """Return the first of so many rounds in which no device that takes part is in the cell."""
        if self.cell.dynamics is None or self._participation.everyone:
            return None
        return next((t for t in range(1, rounds + 1) if not self._among(t, self._draw(t)).present.any()), None)

    def common_rate(self, rounds: int) -> float:
        """Return the lowest rate with which every device that takes part can meet every one of so many rounds."""
        able = (t for t in range(1, rounds + 1) if self._among(t, self._draw(t)).present.any())
        found = (self._allocated(t, NO_STATE, None).allocation for t in able)
        return max(float(one.rate[one.active].max()) for one in found)

    def decide(self, round_: int, state: ArrayState = NO_STATE, params: Params | None = None) -> RoundPlan:
        """Draw the channels of a round, allocate by what the server estimates, and find what is lost."""
        if self._kind == "primal-dual":  # after a resume, replay the warm starts so that they are the same
            if self._last and self._last[0] >= round_:
                self._last = None
            for missed in range(self._last[0] + 1 if self._last else 1, round_):
                self._allocated(missed, NO_STATE, params)
        found = self._allocated(round_, state, params)
        truth = self._paced(found, self._among(round_, self._draw(round_)) if self.cell.estimates else found.channels)
        losses = self._losses(round_, found, truth, state)
        allocation = found.allocation
        active, binding = [int(device) for device in np.flatnonzero(allocation.active)], allocation.binding
        power, clock = (
            name in self._radio.chooses or (found.plan is not None and getattr(found.plan, key) is not None)
            for name, key in (("power", "tx_power_w"), ("cpu", "cpu_hz"))
        )
        return RoundPlan(
            rates={device: float(allocation.rate[device]) for device in active},
            shares={device: float(allocation.share[device]) for device in active},
            powers={device: float(truth.tx_power_w[device]) for device in active if power},
            dtypes={device: found.dtypes[device] for device in active if self._work.dtype == AUTO},
            clocks={device: float(truth.cpu_hz[device]) for device in active if clock},
            binding={device: str(binding[device]) for device in active},
            left_out=[int(device) for device in np.flatnonzero(allocation.left_out)],
            deadline_s=float(np.max(allocation.problem.deadline_s)),
            objective=float(allocation.objective),
            charged_objective=float(allocation.charged_objective) if allocation.left_out.any() else None,
            band_price=float(np.max(allocation.price))
            if allocation.absence_priced and allocation.price is not None
            else None,
            gap=float(np.max(allocation.gap)) if allocation.absence_priced and allocation.gap is not None else None,
            remark=IGNORES_BAND if allocation.status is Status.IDEAL else None,
            allocation=allocation,
            channels=truth,
            lost=losses.lost,
            transmissions=losses.transmissions,
            state=_joined(scheme=found.plan.state if found.plan else {}, outcome=losses.state)
            | (so_far(state, self.cell.devices) if self._function else {}),
        )

    def _allocated(self, round_: int, state: ArrayState, params: Params | None) -> _Allocated:
        """Allocate a round by the channels that the server estimates."""
        seed = derive(self._seed, "channels")
        channels = self._among(round_, self.cell.estimate(round_, seed))
        objective, plans = self._hooks.objective(params), dict[tuple[str, ...], Plan]()

        def solve(dtypes: Sequence[str]) -> Allocation:
            if self._function is None:
                return self._tight(round_, channels, dtypes, objective)
            found, plans[tuple(dtypes)] = self._by_function(self._function, round_, channels, dtypes, state)
            return found

        count, given = self.cell.devices, self._work.dtype
        dtypes, allocation = choose_dtypes(solve, count) if given == AUTO else ([given] * count, solve([given] * count))
        self._last = (round_, allocation)
        return _Allocated(allocation, channels, dtypes, plans.get(tuple(dtypes)))

    @property
    def _kind(self) -> str:
        """The name of the scheme; an object that was given has its own."""
        return getattr(self._hooks.scheme, "name", self._radio.band_scheme)

    @property
    def _function(self) -> SchemeFunction | None:
        """The scheme, if it is a function."""
        scheme = self._hooks.scheme
        return None if scheme is None or hasattr(scheme, "solve") else scheme

    def _by_function(
        self, scheme: SchemeFunction, round_: int, channels: Channels, dtypes: Sequence[str], state: ArrayState
    ) -> tuple[Allocation, Plan]:
        """Plan a round by a function; if it leaves the rates open, lower them to what the covers of lower rates allow.

        The function is called once, with the cover of rate θ, which holds for all rates.
        """
        tops = self._tops
        full = self._full(dtypes, tops)
        asked = self._problem(channels, full)
        spent = so_far(state, self.cell.devices)
        seen = SeenRound(
            problem=settled(asked, self._radio.policy),
            channels=channels,
            cell=self.cell,
            round=round_,
            seed=derive(self._seed, "scheme", round_),
            state=_part(state, "scheme"),
            spent_j=spent[JOULES],
            elapsed_s=float(spent[SECONDS][0]),
        )
        allocation, plan = plan_round(scheme, seen, self._radio.scheme, full)
        limits = allocation.problem
        chosen = paced(plan, channels)
        while self._covers and plan.rate is None:
            lower = np.where(allocation.active, np.minimum(_percent(allocation), tops), tops)
            if np.array_equal(lower, tops):
                break
            tops, closer = lower, self._full(dtypes, lower)
            full = {name: np.minimum(full[name], closer[name]) for name in full}  # either covers the lower rates
            allocation = refit(allocation, self._problem(chosen, full))
        plain = replace(allocation.problem, max_rate=limits.max_rate, present=asked.present)
        return replace(allocation, problem=plain, left_out=everyone(asked) & ~allocation.active), plan

    def _tight(self, round_: int, channels: Channels, dtypes: Sequence[str], objective: Objective | None) -> Allocation:
        """Allocate, then again with the cover of each device's rate, as long as rates fall.

        The first cover, that of rate θ, decides the devices and the deadline. No rate rises above that of the
        allocation before, so that the problem stays feasible. Shares that are given or drawn are kept: drawn again
        at lower rates, they would become ever more equal.
        """
        tops = self._tops
        full = self._full(dtypes, tops)
        absent_cost = self._radio.absent_cost or None
        first = allocation = self._allocate(round_, self._problem(channels, full), objective, absent_cost)
        if self._hooks.scheme is not None and first.status is not Status.IDEAL:
            check_allocation(first, channels, self.cell, round_, self._kind)
        if not self._covers or self._kind not in (*_SOLVED, *_SPLIT):
            return first
        while not np.array_equal(lower := np.minimum(_percent(allocation), tops), tops):
            tops, closer = lower, self._full(dtypes, lower)
            full = {name: np.minimum(full[name], closer[name]) for name in full}  # either covers the lower rates
            problem = replace(self._problem(channels, full), deadline_s=first.problem.deadline_s)
            if self._kind in _SPLIT:
                allocation = refit(allocation, problem)
            else:
                allocation = self._allocate(round_, replace(problem, max_rate=tops, present=first.active), objective)
        plain = replace(allocation.problem, max_rate=first.problem.max_rate, present=first.problem.present)
        closest = replace(allocation, problem=plain, left_out=first.left_out)
        return with_absence(closest, absent_cost, first.gap) if absent_cost else closest

    def _paced(self, found: _Allocated, channels: Channels) -> Channels:
        """Return conditions of the round at the chosen powers and clocks."""
        allocation = found.allocation
        if found.plan is not None:
            return paced(found.plan, channels)
        if allocation.cpu_hz is None or allocation.tx_power_w is None:
            return channels
        return replace(
            channels,
            cpu_hz=np.where(allocation.active, allocation.cpu_hz, channels.cpu_hz),
            tx_power_w=np.where(allocation.active, allocation.tx_power_w, channels.tx_power_w),
        )

    def _draw(self, round_: int) -> Channels:
        return self.cell.draw(round_, derive(self._seed, "channels"))

    def _among(self, round_: int, channels: Channels) -> Channels:
        """Return the conditions of a round in which only devices that take part are present."""
        chosen = self._participation.chosen(round_)
        if len(chosen) == self.cell.devices:
            return channels
        present = np.zeros(self.cell.devices, bool)
        present[chosen] = True
        return replace(channels, present=present & channels.present)

    def _losses(self, round_: int, found: _Allocated, truth: Channels, state: ArrayState) -> Losses:
        """Ask the outcome which updates are lost. Plans hold the deadline, so without estimates none is late.

        Under a virtual clock there is no deadline, and every start of devices has another seed.
        """
        allocation, outcome, start = found.allocation, self._hooks.outcome, self._participation.start
        if allocation.status is Status.IDEAL or (outcome is late and (start or not self.cell.estimates)):
            return Losses()
        rate, share = np.minimum(allocation.rate, 1.0), allocation.share
        sizes: dict[str, Any] = self._formula
        if self._radio.costs == "measured":
            active = allocation.active.tolist()
            each = [
                self._predicted[dtype](gamma) if takes_part else _NOTHING
                for dtype, gamma, takes_part in zip(found.dtypes, rate.tolist(), active, strict=True)
            ]
            push, pull, flops = np.array(each).T
            sizes = {"push_bytes": push, "pull_bytes": pull, "flops": flops * self.cell.samples}
        plan = replace(found.plan or Plan(share), share=share, rate=rate)
        happened = Truth(
            channels=truth,
            cell=self.cell,
            deadline_s=math.inf if start else float(np.max(allocation.problem.deadline_s)),
            round=round_,
            seed=derive(self._seed, "outcome", round_, *([start] if start else [])),
        )
        costs = radio_cost(self.cell, truth, rate, share, **sizes)
        return settle_losses(outcome, plan, happened, costs, _part(state, "outcome"), self._radio.outcome)

    def _allocate(
        self, round_: int, problem: AnyProblem, objective: Objective | None, absent_cost: float | None = None
    ) -> Allocation:
        given = self._hooks.scheme
        scheme: Scheme = (
            cast(Scheme, given)
            if given is not None
            else scheme_named(self._radio.band_scheme, seed=derive(self._seed, "shares", round_), rate=self._fixed)
        )
        if objective is not None or absent_cost is not None:
            scheme = Exact(objective or PAPER, absent_cost)
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

    def costs(self, plan: RoundPlan, devices: Sequence[DeviceRound]) -> dict[int, dict[str, Any]]:
        """Return what every device cost, from measured sizes and by the paper's formula."""
        if plan.allocation is None or plan.channels is None:
            return {}
        count = self.cell.devices
        push, pull, flops = np.zeros(count), np.zeros(count), np.zeros(count)
        for entry in devices:
            push[entry.device], pull[entry.device] = entry.push_bytes, entry.pull_bytes
            flops[entry.device] = self._work.training_flops(entry.rate, entry.kept) * self.cell.samples[entry.device]
        rate, share = np.minimum(plan.allocation.rate, 1.0), plan.allocation.share
        formula, measured = (
            with_transmissions(radio_cost(self.cell, plan.channels, rate, share, **sizes), plan.transmissions)
            for sizes in (self._formula, {"push_bytes": push, "pull_bytes": pull, "flops": flops})
        )
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
        if plan.transmissions is not None:
            found["transmissions"] = plan.transmissions
        if self.cell.dynamics is not None:
            found |= {"tx_power_w": plan.channels.tx_power_w, "cpu_hz": plan.channels.cpu_hz}
        return {d.device: {key: float(values[d.device]) for key, values in found.items()} for d in devices}

    def budgets(self) -> list[float | None]:
        """Return the energy budget per device in joules; None for no budget."""
        budgets = np.broadcast_to(self.cell.budget_j, self.cell.devices).tolist()
        return [budget if math.isfinite(budget) else None for budget in budgets]


def _joined(**parts: ArrayState) -> dict[str, npt.NDArray[Any]]:
    """Return the states of scheme and outcome as one."""
    return {f"{part}/{name}": array for part, state in parts.items() for name, array in state.items()}


def _part(state: ArrayState, part: str) -> dict[str, npt.NDArray[Any]]:
    """Return copies of the scheme's or the outcome's arrays, so that neither can change the state of the run."""
    begin = f"{part}/"
    return {name.removeprefix(begin): array.copy() for name, array in state.items() if name.startswith(begin)}


def _percent(allocation: Allocation) -> npt.NDArray[np.float64]:
    """Return the rates rounded up to a full percent, so that there are few covers; at most θ."""
    return np.minimum(np.ceil(100.0 * allocation.rate) / 100.0, allocation.problem.max_rate)
