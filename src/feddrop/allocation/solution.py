"""The result of an allocation, and how far it is from optimal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from feddrop.allocation.kkt import Multipliers, P1Problem, fit_multipliers, fit_paced, limits_off, loads, with_rest
from feddrop.allocation.objectives import PAPER, Objective
from feddrop.allocation.pace import pace
from feddrop.allocation.power import PowerProblem
from feddrop.allocation.problem import BLOCK, GUARD, BoolArray, FloatArray, Problem, part_of, total
from feddrop.allocation.subband import SubbandProblem
from feddrop.config.display import html_table
from feddrop.config.radio import IGNORES_BAND

AnyProblem = Problem | SubbandProblem | PowerProblem

_SHOWN = 20  # devices in a notebook
_BINDS = 1e-9
_ALL_BUT_ALL = 0.99  # above this rate, rounding may keep more of the model than ``GUARD`` covers
_FULL = 1.0 - 2.0**-50  # largest z, rounding included, at which a device drops nothing


class Status(StrEnum):
    """The outcome of an allocation; the value is its message."""

    OPTIMAL = "optimal"
    CONVERGED = "within the tolerance of the optimum"
    UNCONVERGED = "feasible, but stopped at the pass limit before the tolerance was met"
    FEASIBLE = "feasible, with the lowest rates for the shares of this scheme"
    FIXED = "feasible, with the given rates"
    COMMON = "feasible, with the lowest rate that all devices can share"
    NO_DROPOUT = "feasible, without dropout"
    IDEAL = f"{IGNORES_BAND}; without dropout, every device has the band that it needs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Rates and shares of one round or a batch of rounds; clocks and powers, too, for a :class:`PowerProblem`.

    Attributes:
        problem: the problem that was solved; with the longer deadline if the policy stretched it.
        scheme: name of the scheme.
        status: how the scheme ended.
        rate: γ, ``[..., num_devices]``; 1 for inactive devices.
        share: ρ, ``[..., num_devices]``; 0 for inactive devices.
        active: which devices take part in the round, ``[..., num_devices]``.
        cpu_hz: f in Hz, ``[..., num_devices]``, 0 for inactive devices; None if the problem fixes it.
        tx_power_w: P in W, likewise.
        left_out: which present devices the policy left out, ``[..., num_devices]``.
        objective: Σ w_k φ(1-γ_k) over the active devices, a float or ``[num_rounds]``; their weights are scaled to add
            up to 1. Compare allocations that leave out devices by ``charged_objective``. If absence has a price, the
            objective is over all present devices, with that price for those left out.
        phi: the objective φ; 1/(1-γ), the paper's, unless another was minimised.
        gap: certified bound on what could still be gained, relative to the objective, ``[..., 1]``: the duality gap.
            None if the scheme has no bound, or the KKT conditions prove the optimum (``residual``).
        absence_priced: whether devices were left out because their absence costs less (``Exact(absent_cost=...)``).
        iterations: passes over the devices.
        price: μ, the multiplier of the band, ``[..., 1]``; None for schemes without one.
        history: of the scheme ``PrimalDual``, ``[checks, 4]``: pass, gap, largest violation, band in use.
    """

    problem: AnyProblem
    scheme: str
    status: Status
    rate: FloatArray
    share: FloatArray
    active: BoolArray
    left_out: BoolArray
    objective: float | FloatArray
    iterations: int
    price: FloatArray | None = None
    history: FloatArray | None = None
    cpu_hz: FloatArray | None = None
    tx_power_w: FloatArray | None = None
    phi: Objective = PAPER
    gap: FloatArray | None = None
    absence_priced: bool = False

    def __repr__(self) -> str:
        *rounds, devices = self.rate.shape
        size = "".join(f"{count} rounds, " for count in rounds) + f"{devices} devices"
        value = float(np.mean(self.objective))
        out = f", {int(self.left_out.sum())} left out" if self.left_out.any() else ""
        rate = float(np.mean(self.rate[self.active])) if self.active.any() else float("nan")
        return f"Allocation({self.scheme!r}, {size}{out}: objective {value:.5g}, mean rate {rate:.3g}; {self.status})"

    def _repr_html_(self) -> str:
        """Return one row per device, of the first round of a batch."""
        columns = {
            "rate": self.rate,
            "share": self.share,
            "latency (s)": self.latency_s,
            "energy (J)": self.energy_j,
            **({} if self.cpu_hz is None else {"clock (GHz)": self.cpu_hz / 1e9}),
            **({} if self.tx_power_w is None else {"power (W)": self.tx_power_w}),
            "binds": self.binding,
        }
        devices = self.rate.shape[-1]
        first = [values.reshape(-1, devices)[0][:_SHOWN].tolist() for values in columns.values()]
        note = f"The first {_SHOWN} of {devices:,} devices." if devices > _SHOWN else ""
        note += " The first round of the batch." if self.rate.ndim > 1 else ""
        rows = ((k, *row) for k, row in enumerate(zip(*first, strict=True)))
        return html_table(repr(self), ("device", *columns), rows, note.strip())

    @property
    def costs(self) -> P1Problem:
        """The problem at the chosen clocks and powers: the costs of the full model."""
        if not isinstance(self.problem, PowerProblem):
            return self.problem
        return self.problem.at(*self._chosen)

    @property
    def latency_s(self) -> FloatArray:
        """Seconds to push, compute and pull, ``[..., num_devices]``; 0 for inactive devices."""
        return self._used((costs := self.costs).air(self._share)[0] + costs.compute_s)

    @property
    def energy_j(self) -> FloatArray:
        """Joules to compute and upload, without circuit energy, ``[..., num_devices]``; 0 for inactive devices."""
        return self._used((costs := self.costs).air(self._share)[1] + costs.compute_j)

    @property
    def charged_objective(self) -> float | FloatArray:
        """The objective plus 1/(1-θ) for each device that the policy left out, a float or ``[num_rounds]``.

        The objective covers the devices that take part, so it can fall if more are left out. 1/(1-θ) is the most that a
        round without absentees can cost. Of two allocations for one problem, the one that leaves out fewer devices
        therefore never has the higher charged objective. If absence has a price, the objective contains it already.
        """
        if self.absence_priced:
            return self.objective
        most = np.max(1.0 / (1.0 - np.broadcast_to(self.problem.max_rate, self.problem.shape)), axis=-1)
        value = self.objective + self.left_out.sum(axis=-1) * most
        return float(value) if np.ndim(value) == 0 else value

    @property
    def binding(self) -> npt.NDArray[np.str_]:
        """The binding constraint, ``[..., num_devices]``.

        ``"rate cap"`` if the rate is θ, else ``"deadline"``, ``"energy"``, ``"deadline+energy"`` or ``"none"``;
        ``"left out"`` and ``"absent"`` for inactive devices.
        """
        p = self.problem
        deadline = self.latency_s >= p.deadline_s * (1 - _BINDS)
        energy = self.energy_j >= p.budget_j * (1 - _BINDS)
        cap = (self.rate >= p.max_rate * (1 - _BINDS)) & (p.max_rate > 0)
        word = np.where(deadline & energy, "deadline+energy", np.where(deadline, "deadline", "none"))
        word = np.where(energy & ~deadline, "energy", word)
        word = np.where(cap, "rate cap", word)
        return np.where(self.active, word, np.where(self.left_out, "left out", "absent"))

    @property
    def multipliers(self) -> Multipliers | None:
        """The multipliers that fit the price and the shares; None for schemes without a price."""
        if self.price is None:
            return None
        problem = self.problem
        if not isinstance(problem, PowerProblem):
            return fit_multipliers(problem, self._share, self.price, self._weight)
        lam, nu, clock, power = fit_paced(problem, self._share, *self._chosen, self.price, self._weight)
        return with_rest(self._weight, self.price, lam, nu, clock=clock, power=power)

    @property
    def residual(self) -> float:
        """How far the allocation is from optimal and feasible.

        Of an exact allocation, the largest relative violation of the KKT conditions. Of one by :class:`PrimalDual`,
        whose multipliers are as inexact as its shares, the relative duality gap or the violation of the constraints,
        whichever is larger. Of schemes without a price, the violation of the constraints.

        C1 and C2 are relative to the deadline and the budget, stationarity in z and complementary slackness to the
        device's multipliers, stationarity in the share to the price.
        """
        p, active, share = self.costs, self.active, self._share
        keep = 1.0 - np.where(active, self.rate, 0.0)
        deadline, energy = loads(p, share)
        room_d, room_e = 1.0 - keep * deadline, 1.0 - keep * energy
        room_band = 1.0 - total(self.share)
        worst = [-room_d[active], -room_e[active], -room_band]
        worst += [(self.rate - p.max_rate)[active], -self.rate[active]]
        if self.status in (Status.CONVERGED, Status.UNCONVERGED) and self.gap is not None:
            worst += [self.gap]
        elif (m := self.multipliers) is not None:
            weight = self._weight
            fall_d, fall_e = (side.fall / share for side in p.curves().sides(share))
            size = np.maximum(weight + m.cap, np.finfo(float).tiny)
            z, top = 1.0 / keep, 1.0 / (1.0 - p.max_rate)
            slack = m.deadline * room_d + m.energy * room_e + m.floor * (z - 1.0) + m.cap * (1.0 - z / top)
            still_z = weight - m.deadline - m.energy - m.floor + m.cap
            still_share = m.deadline * fall_d + m.energy * fall_e - m.band
            worst += [np.abs(slack / size)[active], np.abs(still_z / size)[active]]
            if isinstance(self.problem, PowerProblem) and m.clock is not None and m.power is not None:
                worst += [(limits_off(self.problem, *self._chosen, m.clock, m.power) / size)[active]]
            worst += [np.abs(still_share / np.maximum(m.band, np.finfo(float).tiny))[active]]
            whole = np.abs(np.reshape(self.objective, (-1, 1)))  # 0 if only devices without samples are left
            worst += [np.abs(m.band * room_band) / np.where(whole > 0, whole, 1.0)]
        return float(max(0.0, *(np.max(part, initial=0.0) for part in worst)))

    @property
    def _weight(self) -> FloatArray:
        """The derivative of the objective in z, ``[..., num_devices]``: w for the paper's, Σ w z."""
        if self.phi == PAPER:
            return self.problem.weight
        s = np.where(self.active, 1.0 - self.rate, 1.0)
        weight: FloatArray = -self.phi.weights(self.problem.weight) * self.phi.slope(s) * s**2
        return weight

    @property
    def _share(self) -> FloatArray:
        """Shares, with 1 for inactive devices, to divide by."""
        return np.where(self.active, self.share, 1.0)

    @property
    def _chosen(self) -> tuple[FloatArray, FloatArray]:
        """Clocks and powers, positive for inactive devices, too, to divide by."""
        problem = self.problem
        if not isinstance(problem, PowerProblem) or self.cpu_hz is None or self.tx_power_w is None:
            raise TypeError("Clocks and powers are chosen for a PowerProblem only.")
        clock = np.where(self.active, self.cpu_hz, problem.cpu_hz)
        return clock, np.where(self.active, self.tx_power_w, problem.tx_power_w)

    def _used(self, full: FloatArray) -> FloatArray:
        return np.where(self.active, (1.0 - self.rate) * full, 0.0)


def finish(
    problem: AnyProblem,
    *,
    share: FloatArray,
    active: BoolArray,
    scheme: str = "exact",
    status: Status = Status.OPTIMAL,
    iterations: int = 1,
    price: FloatArray | None = None,
    history: FloatArray | None = None,
    guess: FloatArray | None = None,
    paces: tuple[FloatArray, ...] | None = None,
    phi: Objective = PAPER,
    gap: FloatArray | None = None,
) -> Allocation:
    """Give every active device the lowest rate that its share allows; return the allocation, by default the optimum.

    For a :class:`PowerProblem`, each device gets the clock and power of its lowest rate: those in ``paces`` if they are
    known; otherwise the search for them starts at ``guess``. ``phi`` is the objective.
    """
    clock: FloatArray | None = None
    power: FloatArray | None = None
    everyone = bool(active.all())
    if isinstance(problem, PowerProblem):
        cpu_hz, tx_power_w = paces or _paces(problem, np.where(active, share, 1.0), guess)
        clock, power = np.where(active, cpu_hz, 0.0), np.where(active, tx_power_w, 0.0)
        rate = _lowest_rates(problem.at(cpu_hz, tx_power_w), share, active, everyone)
    else:
        rate = _lowest_rates(problem, share, active, everyone)
    return Allocation(
        problem=problem,
        scheme=scheme,
        status=status,
        rate=rate,
        share=share if everyone else np.where(active, share, 0.0),
        active=active,
        left_out=~active if problem.present is None else problem.present & ~active,
        objective=objective(problem, rate, active, phi),
        iterations=iterations,
        price=price,
        history=history,
        phi=phi,
        gap=gap,
        cpu_hz=clock,
        tx_power_w=power,
    )


def _lowest_rates(problem: P1Problem, share: FloatArray, active: BoolArray, everyone: bool) -> FloatArray:
    """Return the lowest rates that the shares allow; 1 for inactive devices."""
    rate, count = np.empty(problem.shape), problem.shape[-1]
    for first in range(0, count, BLOCK):  # blocks that fit into the cache
        block = slice(first, first + BLOCK)
        part = part_of(problem, block) if count > BLOCK else problem
        here = share[..., block]
        z, keep = loads(part, here if everyone else np.where(active[..., block], here, 1.0))
        np.maximum(z, keep, out=z)
        np.divide(-GUARD, z, out=keep)
        keep += 1.0
        np.putmask(keep, z <= _FULL, 0.0)  # rounding would leave rates of 1e-16
        np.minimum(keep, part.max_rate, out=rate[..., block])
        if np.max(part.max_rate) > _ALL_BUT_ALL:
            _round_up(rate[..., block], z, part.max_rate)
    return rate if everyone else np.where(active, rate, 1.0)


def _round_up(rate: FloatArray, z: FloatArray, max_rate: FloatArray) -> None:
    """Raise rates that keep more than 1/z after rounding, in place."""
    above = (1.0 - rate) * z > _FULL
    np.copyto(rate, np.minimum(np.nextafter(rate, 1.0), max_rate), where=above)


def refit(allocation: Allocation, problem: AnyProblem) -> Allocation:
    """Return an allocation with the same shares, devices and deadline, and the lowest rates for another problem."""
    return finish(
        replace(problem, deadline_s=allocation.problem.deadline_s),
        share=allocation.share,
        active=allocation.active,
        scheme=allocation.scheme,
        status=allocation.status,
    )


def _paces(problem: PowerProblem, share: FloatArray, guess: FloatArray | None) -> tuple[FloatArray, FloatArray]:
    """Return the clocks and powers of the lowest rates."""
    cpu_hz, tx_power_w = np.empty(problem.shape), np.empty(problem.shape)
    for first in range(0, problem.shape[-1], BLOCK):
        block = slice(first, first + BLOCK)
        found = pace(part_of(problem, block), share[..., block], guess=None if guess is None else guess[..., block])
        cpu_hz[..., block], tx_power_w[..., block] = found.cpu_hz, found.tx_power_w
    return cpu_hz, tx_power_w


def objective(problem: AnyProblem, rate: FloatArray, active: BoolArray, phi: Objective = PAPER) -> float | FloatArray:
    """Return Σ w_k φ(1-γ_k) over the active devices: a float, or ``[num_rounds]``.

    If some devices are inactive, the weights of the others are scaled to add up to 1.
    """
    keep = 1.0 - rate
    if phi is not PAPER and phi != PAPER:
        weight = np.where(active, problem.weight, 0.0)
        whole = 1.0 if active.all() else total(weight)
        costs = phi.weights(weight / np.where(whole > 0, whole, 1.0)) * phi.value(np.where(active, keep, 1.0))
        value = np.add.reduce(np.where(active, costs, 0.0), axis=-1)
    elif active.all():
        value = np.add.reduce(np.divide(problem.weight, keep, out=keep), axis=-1)
    else:
        weight = np.where(active, problem.weight, 0.0)
        whole = np.add.reduce(weight, axis=-1)
        value = np.add.reduce(weight / np.where(active, keep, 1.0), axis=-1) / np.where(whole > 0, whole, 1.0)
    return float(value) if value.ndim == 0 else value
