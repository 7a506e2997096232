"""Feasibility: whether the deadline and the budgets can be met, and what would be enough.

P1 is feasible if and only if the least shares, those of rate θ, fit into the band. An equal split needs more: the
least share of every device must be at most 1/K. Both are expressed by the *load*, the band needed over the available
band. The load falls as the deadline grows and as devices are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from feddrop.allocation.problem import BoolArray, FloatArray, total
from feddrop.allocation.roots import edge
from feddrop.allocation.solution import AnyProblem
from feddrop.config.radio import POLICIES as POLICIES
from feddrop.errors import ConfigError, InfeasibleError

AnyKind = TypeVar("AnyKind", bound=AnyProblem)

FITS = 1.0 + 2.0**-40  # largest load that fits; it exceeds 1 by rounding only
_ROOMY = 1.0 - 2.0**-46  # largest load of the devices that are not left out
_SPARE = 1.0 - 2.0**-33
"""Load at the smallest deadline or budget. The remaining 1e-10 of the band keeps rounding from deciding the rates of
devices that need almost no band."""

_MOST_J = 1e280  # largest budget that is searched; the smallest is its inverse


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Why a round is infeasible, and what would make it feasible.

    Attributes:
        round: index of the round in a batch; None for a single round.
        devices: devices that are infeasible even with the whole band, or with their part if it must be split equally;
            if there are none, those that need most.
        constraints: the constraint that limits each of them: ``"deadline"`` or ``"energy"``.
        least_share: smallest share of each of them at the highest rate; inf if no share is enough.
        load: band that all devices need over the available band; inf if no bandwidth is enough. It is a lower bound
            under density noise, where a wider band has more noise; :func:`feddrop.radio.smallest_bandwidth` is exact.
        deadline_s: smallest feasible deadline; inf if none is.
        budget_j: smallest feasible energy budget, net of circuit energy, given to every device that has less; inf if
            none is.
        rate: what to raise to allow more dropout: ``"max_rate"``, or the ``"rate"`` of the scheme ``Fixed``; empty if
            no rate is enough; ``"no dropout"`` for the scheme ``NoDropout``.
        policies: policies that would find an allocation, except the current one.
        equal: whether the band must be split equally.
    """

    round: int | None
    devices: list[int]
    constraints: list[str]
    least_share: list[float]
    load: float
    deadline_s: float
    budget_j: float
    rate: str
    policies: list[str]
    equal: bool

    def __str__(self) -> str:
        return self.text()

    def text(self, names: Sequence[str] = ()) -> str:
        """Return the message with the names of all devices, by number; numbers replace empty names."""
        where = "" if self.round is None else f"Round {self.round} of the batch: "
        split = " when the band is split equally" if self.equal else ""
        rates = {"rate": "At the given rate", "no dropout": "Without dropout"}
        rate = rates.get(self.rate, "At the highest rate allowed")
        need = "; ".join(
            f"{_called(device, names)} {_need(share, 'energy budget' if word == 'energy' else word)}"
            for device, word, share in zip(self.devices, self.constraints, self.least_share, strict=True)
        )
        return (
            f"{where}No rates and shares meet the deadline and the energy budgets{split}. "
            f"{rate}, {need}. {' '.join(self._enough())} {self._advice()}"
        )

    def _enough(self) -> list[str]:
        """Return the smallest feasible deadline, bandwidth and budget, one sentence each."""
        late = "none is enough" if np.isinf(self.deadline_s) else f"{_up(self.deadline_s)} s"
        wide = "none is enough" if np.isinf(self.load) else f"{_up(self.load)} times the present one"
        found = [f"Smallest deadline: {late}.", f"Smallest bandwidth: {wide}."]
        if not np.isinf(self.budget_j):
            joules = f"{_up(self.budget_j)} J net of circuit energy, for every device that has less"
            found.append(f"Smallest energy budget: {joules}.")
        elif np.isinf(self.deadline_s) or "energy" in self.constraints:
            found.append("Smallest energy budget: none is enough.")
        return found

    def _advice(self) -> str:
        """Return the changes and policies that help."""
        enough = {"the deadline": self.deadline_s, "the bandwidth": self.load, "the energy budget": self.budget_j}
        rate = {"": [], "no dropout": [], "rate": ["the rate"]}.get(self.rate, [self.rate])
        change = [name for name, value in enough.items() if not np.isinf(value)]
        change = [*change, *rate] if change else [*rate, "both the deadline and the energy budget"]
        policy = f", or choose the policy {_either([repr(name) for name in self.policies])}" if self.policies else ""
        return f"Raise {_either(change)}{policy}."


def diagnose(problem: AnyProblem, *, equal: bool = False) -> Shortfall | None:
    """Return why a round is infeasible, in a batch the first that is; None if all are feasible.

    Args:
        problem: one round or a batch of rounds.
        equal: whether the band must be split equally.
    """
    over = ~fits(problem, equal=equal)
    return _explain(problem, over, equal) if over.any() else None


def fits(problem: AnyProblem, *, equal: bool = False) -> BoolArray:
    """Return whether each round is feasible, ``[..., 1]``; the arguments are those of :func:`diagnose`."""
    return _load(problem.least_share(_top(problem)), everyone(problem), equal) <= FITS


def settle(problem: AnyKind, policy: str, *, equal: bool = False, rate: str = "max_rate") -> tuple[AnyKind, BoolArray]:
    """Make a problem feasible by the policy.

    Args:
        problem: a round or a batch of rounds.
        policy: ``"error"`` raises InfeasibleError; ``"leave-out"`` leaves out the fewest devices, those that need
            most of the band; ``"stretch"`` uses the smallest feasible deadline of each round.
        equal: whether the band must be split equally.
        rate: what ``max_rate`` holds, see :class:`Shortfall`.

    Returns:
        The problem to solve and its active devices, ``[..., num_devices]``.
    """
    active = everyone(problem)
    least = problem.least_share(_top(problem))
    fine = _load(least, active, equal) <= FITS
    if fine.all():
        return problem, active
    hopeless = ~fine
    if policy == "leave-out":
        active = np.where(fine, active, _fewest_left_out(least, active, equal))
        hopeless = total(active) == 0
        if not hopeless.any():
            return problem, active
    elif policy == "stretch":
        factor = np.where(fine, 1.0, _stretch(problem, active, equal))
        hopeless = np.isinf(factor)
        if not hopeless.any():
            longer = problem.deadline_s * (factor if len(problem.shape) == 2 else factor[0])
            return replace(problem, deadline_s=longer), active
    raise InfeasibleError(_explain(problem, hopeless, equal, policy=policy, rate=rate))


def _explain(
    problem: AnyProblem, rounds: BoolArray, equal: bool, *, policy: str = "error", rate: str = "max_rate"
) -> Shortfall:
    """Explain the first of these rounds, ``[..., 1]``; the current policy is not suggested."""
    number = None
    if len(problem.shape) == 2:
        number = int(np.argmax(rounds))
        problem = _one_round(problem, number)
    present, least = everyone(problem), problem.least_share(_top(problem))
    order = np.argsort(np.where(present, -least, 0.0), kind="stable")
    alone = int(np.sum(present & ~(least <= (FITS / present.sum() if equal else FITS))))
    worst = order[: min(alone or 3, 5, int(present.sum()))]
    by_energy = problem.least_share(_top(problem), np.inf)
    deadline_s = float(np.max(problem.deadline_s) * _stretch(problem, present, equal)[0])
    remedies = {"leave-out": _fewest_left_out(least, present, equal).any(), "stretch": deadline_s < np.inf}
    return Shortfall(
        round=number,
        devices=[int(k) for k in worst],
        constraints=["energy" if by_energy[k] >= least[k] else "deadline" for k in worst],
        least_share=[float(least[k]) for k in worst],
        load=float(_load(least, present, equal)[0]),
        deadline_s=deadline_s,
        budget_j=_smallest_budget(problem, present, equal),
        # A device with no energy to spend exceeds its budget at any rate.
        rate="" if rate != "no dropout" and (present & (problem.budget_j <= 0)).any() else rate,
        policies=[name for name, helps in remedies.items() if helps and name != policy],
        equal=equal,
    )


def _one_round(problem: AnyProblem, index: int) -> AnyProblem:
    def pick(value: Any) -> Any:
        return np.broadcast_to(value, problem.shape)[index]

    values: dict[str, Any] = {name: pick(getattr(problem, name)) for name in problem.numbers}
    return replace(problem, **values, present=None if problem.present is None else pick(problem.present))


def everyone(problem: AnyProblem) -> BoolArray:
    """Return which devices are present, ``[..., num_devices]``; every round must have at least one."""
    if problem.present is None:
        return np.ones(problem.shape, dtype=np.bool_)
    if not problem.present.any(axis=-1).all():
        raise ConfigError("No device is present; a round needs at least one.")
    return np.broadcast_to(problem.present, problem.shape)


def _top(problem: AnyProblem) -> FloatArray:
    return 1.0 / (1.0 - problem.max_rate)


def _load(least: FloatArray, active: BoolArray, equal: bool) -> FloatArray:
    """Return the load, ``[..., 1]``."""
    asked = np.where(active, least, 0.0)
    return np.max(asked, axis=-1, keepdims=True) * total(active) if equal else total(asked)


def _fewest_left_out(least: FloatArray, active: BoolArray, equal: bool) -> BoolArray:
    """Return the largest set of devices that fits: those with the smallest least shares."""
    asked = np.where(active, least, np.inf)
    order = np.argsort(asked, axis=-1, kind="stable")
    ranked = np.take_along_axis(asked, order, axis=-1)
    loads = ranked * np.arange(1, ranked.shape[-1] + 1) if equal else np.cumsum(ranked, axis=-1)
    # Under an equal split the load is not monotone in the number of devices: take the largest number that fits.
    count = np.max(np.where(loads <= _ROOMY, np.arange(1, ranked.shape[-1] + 1), 0), axis=-1, keepdims=True)
    kept = np.zeros(active.shape, dtype=np.bool_)
    np.put_along_axis(kept, order, np.arange(ranked.shape[-1]) < count, axis=-1)
    return kept


@np.errstate(over="ignore")
def _stretch(problem: AnyProblem, active: BoolArray, equal: bool) -> FloatArray:
    """Return the smallest feasible factor on the deadline, ``[..., 1]``; inf if the budgets rule out any."""

    def over(log_factor: FloatArray) -> FloatArray:
        return _over(_load(problem.least_share(_top(problem), np.exp(log_factor)), active, equal))

    low = np.zeros((*problem.shape[:-1], 1))
    never = over(np.full_like(low, np.inf)) > 0
    if never.all():
        return np.full_like(low, np.inf)
    f_low = over(low)
    high = np.where(never | (f_low <= 0), 0.0, np.log(2.0))
    while (late := ((f_high := over(high)) > 0) & (high > 0)).any():
        low, f_low, high = np.where(late, high, low), np.where(late, f_high, f_low), np.where(late, 2.0 * high, high)
    return np.where(never, np.inf, np.exp(edge(over, (low, f_low), (high, f_high), width=1e-13)))


def _smallest_budget(problem: AnyProblem, active: BoolArray, equal: bool) -> float:
    """Return the smallest budget of one round that is feasible if given to all devices with less; inf if none is."""

    def over(log_budget: FloatArray) -> FloatArray:
        richer = replace(problem, budget_j=np.maximum(problem.budget_j, np.exp(log_budget)))
        return _over(_load(richer.least_share(_top(problem)), active, equal))

    most, step, high = np.log(_MOST_J), np.log(16.0), np.zeros(1)
    if over(np.full(1, most)) > 0:
        return np.inf
    low, f_low = high, (f_high := over(high))
    while f_high > 0:
        low, f_low, high, step = high, f_high, np.minimum(high + step, most), 2.0 * step
        f_high = over(high)
    while f_low <= 0 and low > -most:
        high, f_high, low, step = low, f_low, np.maximum(low - step, -most), 2.0 * step
        f_low = over(low)
    return float(np.exp(edge(over, (low, f_low), (high, f_high), width=1e-13))[0])


def _over(load: FloatArray) -> FloatArray:
    """Return the logarithm of a load, positive if it does not fit; finite even for an infinite load."""
    with np.errstate(divide="ignore"):
        return np.where(load < np.inf, np.clip(np.log(load / _SPARE), -700.0, 700.0), 700.0)


def _called(device: int, names: Sequence[str]) -> str:
    return f"device {names[device]!r}" if names and names[device] else f"device {device}"


def _need(share: float, limit: str) -> str:
    """Return how much of the band a device needs to meet its limit."""
    if np.isinf(share):
        return f"cannot meet its {limit} with any share of the band"
    part = f"{share:.3g} {'times' if share > 1 else 'of'} the band"
    return f"needs {'about the whole band' if part.startswith('1 ') else part} to meet its {limit}"


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def _up(value: float) -> str:
    """Return four significant digits, rounded up, so that the printed value is feasible, too."""
    digits = 10.0 ** (3 - np.floor(np.log10(value)))
    return f"{np.ceil(value * digits) / digits:.4g}"
