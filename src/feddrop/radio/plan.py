"""Schemes as functions: what a scheme sees, what it returns, and the check that every plan passes.

A scheme is a function ``f(seen) -> Plan``. It may choose shares only: the run then gives every device the lowest rate
that its share allows. A plan that breaks a limit raises an error that names the device and the excess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from feddrop.allocation import Allocation, AnyProblem, PowerProblem, Status
from feddrop.allocation.feasible import everyone, settle
from feddrop.allocation.kkt import P1Problem
from feddrop.allocation.problem import FloatArray
from feddrop.allocation.solution import finish, objective
from feddrop.errors import ConfigError, errors_of, shortened
from feddrop.radio.cell import Cell, Channels

ArrayState = Mapping[str, npt.NDArray[Any]]
"""What a scheme or an outcome remembers from round to round: arrays by name, saved with the checkpoint."""
NO_STATE: ArrayState = MappingProxyType({})

SLACK = 1e-9
"""Largest relative violation of a limit that counts as rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRound:
    """What a scheme sees before a round.

    Attributes:
        problem: costs of the full network, deadline, budgets, θ and the devices that take part (``problem.present``;
            None for all). It is feasible: the policy has already left out devices or stretched the deadline.
        channels: conditions of the round, as the server estimates them.
        cell: the cell.
        round: number of the round, from 1.
        seed: for random choices of this round.
        state: what the scheme returned in the round before; empty in the first.
        spent_j: joules that each device has spent in all rounds before, as recorded, ``[num_devices]``; None outside a
            run.
        elapsed_s: seconds that all rounds before took, as recorded; None outside a run.
    """

    problem: P1Problem
    channels: Channels
    cell: Cell
    round: int = 1
    seed: int = 0
    state: ArrayState = field(default_factory=dict)
    spent_j: FloatArray | None = None
    elapsed_s: float | None = None

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Which devices take part, ``[num_devices]``."""
        return everyone(self.problem)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a scheme chooses for a round; arrays are ``[num_devices]``.

    Attributes:
        share: shares ρ of the band; 0 leaves a device out of the round.
        rate: dropout rates γ; None for the lowest rates that the shares allow.
        tx_power_w: transmit powers P in watts, at most those of the channels, which None selects.
        cpu_hz: clocks f in hertz, at most those of the channels, which None selects.
        state: arrays by name that the scheme sees in the next round; saved with the checkpoint.

    Example:
        >>> import feddrop
        >>> def by_samples(seen):
        ...     return feddrop.Plan(share=seen.problem.weight)
    """

    share: npt.ArrayLike
    rate: npt.ArrayLike | None = field(default=None, kw_only=True)
    tx_power_w: npt.ArrayLike | None = field(default=None, kw_only=True)
    cpu_hz: npt.ArrayLike | None = field(default=None, kw_only=True)
    state: ArrayState = field(default_factory=dict, kw_only=True)


SchemeFunction = Callable[[SeenRound], Plan]


def plan_round(scheme: SchemeFunction, seen: SeenRound, name: str, costs: Mapping[str, Any]) -> tuple[Allocation, Plan]:
    """Call a scheme and check its plan.

    Args:
        scheme: the function.
        seen: what it sees.
        name: its name, for messages and records.
        costs: figures of the full network, as :meth:`feddrop.Cell.problem` takes them.

    Returns:
        The allocation, with the lowest rates for the shares if the plan has none; and the plan, with checked arrays.
    """
    with errors_of(f"scheme {name!r}, round {seen.round}"):
        found = scheme(seen)
    plan = checked(found, seen, name)
    problem: AnyProblem = seen.problem
    if plan.tx_power_w is not None or plan.cpu_hz is not None:
        problem = replace(
            seen.cell.problem(paced(plan, seen.channels), **costs), deadline_s=problem.deadline_s, present=seen.present
        )
    return fitted(plan, problem, f"scheme {name!r}, round {seen.round}", name), plan


def settled(problem: AnyProblem, policy: str) -> P1Problem:
    """Return the problem that a scheme sees: feasible by the policy, as :func:`feddrop.allocate` makes it."""
    if isinstance(problem, PowerProblem):
        raise ConfigError(
            "radio.control includes power or clock, but a scheme function sees both as fixed. Set radio.control = "
            '["rate", "share"].'
        )
    longer, active = settle(problem, policy)
    return replace(longer, present=None if active.all() else active)


def paced(plan: Plan, channels: Channels) -> Channels:
    """Return the channels at the powers and clocks of a checked plan."""
    chosen: dict[str, Any] = {
        name: np.where(np.asarray(plan.share) > 0, getattr(plan, name), getattr(channels, name))
        for name in ("tx_power_w", "cpu_hz")
        if getattr(plan, name) is not None
    }
    return replace(channels, **chosen)


def checked(plan: Plan, seen: SeenRound, name: str) -> Plan:
    """Return a plan with arrays of numbers; a ConfigError names what is wrong with their form, sum or range."""
    where, devices = f"scheme {name!r}, round {seen.round}", seen.cell.devices
    if not isinstance(plan, Plan):
        raise ConfigError(f"{where}: it returned {shortened(plan)}; it must return feddrop.Plan(share, ...).")
    share = _numbers(plan.share, "share", where, devices)
    _refuse(share >= 0, "share", share, "at least 0", where)
    _refuse(seen.present | (share == 0), "share", share, "0, since the device takes no part in the round", where)
    if (total := float(share.sum())) > 1.0 + SLACK:
        raise ConfigError(f"{where}: the shares add up to {total:.10g}; they must add up to at most 1.")
    found: dict[str, Any] = {"share": share}
    active = share > 0
    if plan.rate is not None:
        found["rate"] = rate = _numbers(plan.rate, "rate", where, devices)
        top = np.broadcast_to(seen.problem.max_rate, (devices,))
        good = ~active | ((rate >= 0) & (rate <= top * (1 + SLACK)))
        _refuse(good, "rate", rate, f"from 0 to max_rate, {float(top.max()):g}", where)
        found["rate"] = np.minimum(rate, top)
    for key, least in (("tx_power_w", 0.0), ("cpu_hz", seen.cell.least_cpu_hz)):
        if getattr(plan, key) is not None:
            value, most = _numbers(getattr(plan, key), key, where, devices), getattr(seen.channels, key)
            good = ~active | ((value > 0) & (value >= np.minimum(least, most)) & (value <= most * (1 + SLACK)))
            _refuse(good, key, value, "positive and at most that of the channels", where)
            found[key] = np.minimum(value, most)
    return replace(plan, **found, state=arrays(plan.state, f"{where}: state"))


def fitted(plan: Plan, problem: AnyProblem, where: str, name: str) -> Allocation:
    """Return the allocation of a checked plan; a ConfigError names the device that misses its deadline or budget."""
    share, least = np.asarray(plan.share, dtype=np.float64), problem.least_share(1.0 / (1.0 - problem.max_rate))
    active = share > 0
    for device in np.flatnonzero(active & (least > share * (1 + SLACK)))[:1]:
        raise ConfigError(
            f"{where}: device {device} has a share of {share[device]:.6g}, with which it misses its deadline or its "
            f"energy budget at the highest rate; it needs {least[device]:.6g}, or a share of 0 to leave it out."
        )
    found = finish(problem, share=share, active=active, scheme=name, status=Status.FEASIBLE)
    if plan.rate is None:
        return found
    rate = np.where(active, plan.rate, 1.0)
    given = replace(found, rate=rate, status=Status.FIXED, objective=objective(problem, rate, active))
    for what, unit, used, limit in (
        ("deadline", "s", given.latency_s, problem.deadline_s),
        ("energy budget", "J", given.energy_j, problem.budget_j),
    ):
        most = np.broadcast_to(limit, used.shape)
        for device in np.flatnonzero(active & (used > most * (1 + SLACK)))[:1]:
            raise ConfigError(
                f"{where}: device {device} exceeds its {what} of {most[device]:.6g} {unit} by "
                f"{used[device] - most[device]:.3g} {unit} at share {share[device]:.6g} and rate {rate[device]:.6g}. "
                f"Its rate must be at least {found.rate[device]:.6g}."
            )
    return given


def check_allocation(found: Allocation, channels: Channels, cell: Cell, round_: int, name: str) -> None:
    """Check what an object with ``solve`` returned, as a plan is checked."""
    seen = SeenRound(problem=found.costs, channels=channels, cell=cell, round=round_)
    plan = checked(Plan(found.share, rate=np.where(found.active, found.rate, 0.0)), seen, name)
    fitted(plan, found.costs, f"scheme {name!r}, round {round_}", name)


def arrays(state: Any, what: str) -> dict[str, npt.NDArray[Any]]:
    """Return a state as arrays by name, sorted; a ConfigError if it holds something that a checkpoint cannot."""
    if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state):
        raise ConfigError(f"{what} is {shortened(state)}; it must map names to arrays.")
    found = {}
    for key, value in sorted(state.items()):
        array = np.array(value)
        if array.dtype.kind not in "bif" or array.dtype.itemsize > 8:
            raise ConfigError(f"{what}[{key!r}] is {shortened(value)}; it must be an array of numbers or booleans.")
        found[key] = array
    return found


@dataclass(frozen=True, slots=True)
class FunctionScheme:
    """A scheme function as an allocation scheme, to :func:`feddrop.allocate` one round without a run."""

    function: SchemeFunction  # the scheme
    name: str  # its name
    cell: Cell  # the cell
    channels: Channels  # conditions of the round
    costs: Mapping[str, Any]  # figures of the full network, as :meth:`feddrop.Cell.problem` takes them
    round: int = 1  # number of the round
    seed: int = 0  # for random choices

    def solve(self, problem: AnyProblem, policy: str = "error") -> Allocation:
        """Plan one round; see :meth:`feddrop.allocation.scheme.Scheme.solve`."""
        able = settled(problem, policy)
        seen = SeenRound(problem=able, channels=self.channels, cell=self.cell, round=self.round, seed=self.seed)
        found, _ = plan_round(self.function, seen, self.name, self.costs)
        return replace(found, left_out=everyone(problem) & ~found.active)


def _numbers(value: npt.ArrayLike, what: str, where: str, devices: int) -> FloatArray:
    """Return one finite number per device."""
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        array = np.empty(0)
    if array.shape != (devices,):
        raise ConfigError(f"{where}: {what} is {shortened(value)}; it must list {devices} numbers, one per device.")
    _refuse(np.isfinite(array), what, array, "finite", where)
    return array


def _refuse(good: npt.NDArray[np.bool_], what: str, values: FloatArray, rule: str, where: str) -> None:
    for device in np.flatnonzero(~good)[:1]:
        raise ConfigError(f"{where}: {what} of device {device} is {values[device]:g}; it must be {rule}.")
