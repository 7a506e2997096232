"""Outcomes as functions: which updates of a round are lost on the way.

An outcome is a function ``f(plan, truth, costs, state) -> (lost, state)``. It is called before anything is merged, with
the true channels and the costs of the round over them. A lost update is not merged, but its device is billed for what
it sent and computed. Costs assume the frame size that the method predicts; frames with coded masks may be smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feddrop.allocation.problem import FloatArray
from feddrop.errors import ConfigError, errors_of, shortened
from feddrop.radio.cell import Cell, Channels
from feddrop.radio.cost import Cost
from feddrop.radio.plan import NO_STATE, ArrayState, Plan, arrays

TOLERANCE = 1e-6
"""Smallest relative excess over the deadline that counts as late; rates are solved to meet it exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The true conditions of a round; arrays are ``[num_devices]``.

    Attributes:
        channels: the true conditions, with the powers and clocks that the plan chose.
        cell: the cell.
        deadline_s: the deadline in force; infinite under a virtual clock.
        round: number of the round, from 1.
        seed: for random choices of this round.
    """

    channels: Channels
    cell: Cell
    deadline_s: float
    round: int = 1
    seed: int = 0


class Outcome(NamedTuple):
    """Which updates of a round are lost, and how often uploads are sent.

    Attributes:
        lost: booleans ``[num_devices]``, or the reasons of the lost devices by number.
        state: arrays by name that the outcome sees in the next round; saved with the checkpoint.
        transmissions: mean number of times each upload is sent, ``[num_devices]``; multiplies its seconds and joules.
            None for once.
    """

    lost: npt.ArrayLike | Mapping[int, str]
    state: ArrayState = NO_STATE
    transmissions: npt.ArrayLike | None = None


OutcomeFunction = Callable[[Plan, Truth, Cost, ArrayState], Any]


class Losses(NamedTuple):
    """A checked outcome: the reason of every lost device by number, the state, and transmissions per device."""

    lost: Mapping[int, str] = MappingProxyType({})
    state: ArrayState = NO_STATE
    transmissions: FloatArray | None = None


def late(plan: Plan, truth: Truth, costs: Cost, state: ArrayState) -> Outcome:  # noqa: ARG001
    """Lose the updates that are later than the deadline over the true channels; the default."""
    return Outcome(late_devices(truth, costs), state)


def late_devices(truth: Truth, costs: Cost) -> dict[int, str]:
    """Return by how much devices are late, for those that are."""
    over = costs.latency_s - truth.deadline_s
    return {int(k): f"late by {over[k]:.3g} s" for k in np.flatnonzero(over > truth.deadline_s * TOLERANCE)}


def none(plan: Plan, truth: Truth, costs: Cost, state: ArrayState) -> Outcome:  # noqa: ARG001
    """Lose nothing: late updates count."""
    return Outcome({}, state)


def settle_losses(
    outcome: OutcomeFunction, plan: Plan, truth: Truth, costs: Cost, state: ArrayState, name: str
) -> Losses:
    """Call an outcome and check what it returns; devices without a share cannot be lost."""
    where, devices, part = f"outcome {name!r}, round {truth.round}", truth.cell.devices, np.asarray(plan.share) > 0
    with errors_of(where):
        found = outcome(plan, truth, costs, state)
    if not isinstance(found, tuple) or not 2 <= len(found) <= 3:
        raise ConfigError(f"{where}: it returned {shortened(found)}; it must return (lost, state).")
    lost, kept, times = Outcome(*found)
    if isinstance(lost, Mapping):
        reasons = {int(device): str(reason) for device, reason in lost.items()}
        if wrong := [device for device in reasons if not 0 <= device < devices]:
            raise ConfigError(f"{where}: it lost device {wrong[0]}; devices have the numbers 0 to {devices - 1}.")
    else:
        marks = np.asarray(lost)
        if marks.shape != (devices,) or marks.dtype != np.bool_:
            raise ConfigError(
                f"{where}: lost is {shortened(lost)}; it must be {devices} booleans, or reasons by device number."
            )
        reasons = {int(device): "not received" for device in np.flatnonzero(marks)}
    if times is not None:
        times = np.broadcast_to(np.asarray(times, dtype=np.float64), (devices,))
        if not (np.isfinite(times) & (times >= 0)).all():
            raise ConfigError(f"{where}: transmissions are {shortened(times)}; they must be finite and at least 0.")
    return Losses(
        {device: reasons[device] for device in sorted(reasons) if part[device]},
        arrays(kept, f"{where}: state"),
        times,
    )


def with_transmissions(costs: Cost, transmissions: FloatArray | None) -> Cost:
    """Return costs whose uploads are sent several times."""
    if transmissions is None:
        return costs
    return replace(costs, pull_s=costs.pull_s * transmissions, upload_j=costs.upload_j * transmissions)
