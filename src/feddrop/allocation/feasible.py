"""Can the deadline and the budgets be met at all, and what would it take?

P1 is feasible if and only if the least shares, those at which every device drops as much as it may (rate θ), fit into
the band. A scheme that splits the band equally needs more: every device's least share must be at most 1/K. Both are
one number, the *load*: the band asked for, relative to the band there is. It falls as the deadline grows and as
devices leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from feddrop.allocation.problem import BoolArray, FloatArray, total
from feddrop.allocation.roots import edge
from feddrop.allocation.solution import AnyProblem
from feddrop.errors import ConfigError, InfeasibleError

POLICIES = ("error", "leave-out", "stretch")
FITS = 1.0 + 2.0**-40
"""A load that is over 1 by rounding alone still fits."""

_ROOMY = 1.0 - 2.0**-46
"""Devices that are not left out fit without rounding's help."""

_SPARE = 1.0 - 2.0**-33
"""So full is the band at the smallest deadline or budget, 1e-10 short: what is left decides the rates of devices that
need next to none of it, and must be more than rounding."""

_MOST_J = 1e280
"""Budgets are looked for up to here, and down to its inverse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Why a round is infeasible, and what would make it feasible.

    Attributes:
        round: which round of a batch it is; None for a single round.
        devices: who cannot take part even with the whole band, or, if there is none, who asks for most of it.
        constraints: what holds each of them: ``"deadline"`` or ``"energy"``.
        least_share: smallest share each of them needs at the highest rate; inf where no share does.
        load: band that all devices need together, relative to what there is; inf if no bandwidth would do. Under
            density noise, where a wider band lets in more noise, it is a lower estimate;
            :func:`feddrop.radio.smallest_bandwidth` has the true one.
        deadline_s: smallest deadline that would do; inf if none does.
        budget_j: smallest energy budget that would do, net of circuit energy, if every device that has less gets it;
            inf if none does.
        rate: what to raise so that more may be dropped: ``"max_rate"``, or the ``"rate"`` of the fixed method; empty if
            no rate would do.
        policies: policies that would find an allocation; never the one in use.
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
        """Say it in words.

        Args:
            names: of all devices, by number; a device without a name, or with an empty one, is called by its number.
        """
        where = "" if self.round is None else f"Round {self.round} of the batch: "
        split = " when the band is split equally" if self.equal else ""
        rate = "At the rate given" if self.rate == "rate" else "At the highest rate allowed"
        need = "; ".join(
            f"{_called(device, names)} {_need(share, 'energy budget' if word == 'energy' else word)}"
            for device, word, share in zip(self.devices, self.constraints, self.least_share, strict=True)
        )
        return (
            f"{where}No rates and shares meet the deadline and the energy budgets{split}. "
            f"{rate}, {need}. {' '.join(self._enough())} {self._advice()}"
        )

    def _enough(self) -> list[str]:
        """How much of what would do."""
        late = "none would do" if np.isinf(self.deadline_s) else f"{_up(self.deadline_s)} s"
        wide = "none would do" if np.isinf(self.load) else f"{_up(self.load)} times the present one"
        found = [f"Smallest deadline: {late}.", f"Smallest bandwidth: {wide}."]
        if not np.isinf(self.budget_j):
            joules = f"{_up(self.budget_j)} J net of circuit energy, for every device that has less"
            found.append(f"Smallest energy budget: {joules}.")
        elif np.isinf(self.deadline_s) or "energy" in self.constraints:
            found.append("Smallest energy budget: none would do.")
        return found

    def _advice(self) -> str:
        """What to change, and which policy to choose: only what helps."""
        enough = {"the deadline": self.deadline_s, "the bandwidth": self.load, "the energy budget": self.budget_j}
        rate = {"": [], "rate": ["the rate"]}.get(self.rate, [self.rate])
        change = [name for name, value in enough.items() if not np.isinf(value)]
        change = [*change, *rate] if change else [*rate, "both the deadline and the energy budget"]
        policy = f", or choose the policy {_either([repr(name) for name in self.policies])}" if self.policies else ""
        return f"Raise {_either(change)}{policy}."


def diagnose(problem: AnyProblem, *, equal: bool = False) -> Shortfall | None:
    """Explain why a round is infeasible; None if it is feasible.

    Args:
        problem: one round; of a batch, the first infeasible round is explained.
        equal: whether the band must be split equally.
    """
    over = ~fits(problem, equal=equal)
    return _explain(problem, over, equal) if over.any() else None


def fits(problem: AnyProblem, *, equal: bool = False) -> BoolArray:
    """Whether a round is feasible, ``[..., 1]``.

    Args:
        problem: a round or a batch of rounds.
        equal: whether the band must be split equally.
    """
    return _load(problem.least_share(_top(problem)), everyone(problem), equal) <= FITS


def settle(
    problem: AnyProblem, policy: str, *, equal: bool = False, fixed: bool = False
) -> tuple[AnyProblem, BoolArray]:
    """Make a problem feasible as the policy says.

    Args:
        problem: a round or a batch of rounds.
        policy: ``"error"`` raises InfeasibleError; ``"leave-out"`` leaves out the fewest devices, those that need
            most of the band; ``"stretch"`` takes the smallest deadline that does, round by round.
        equal: whether the band must be split equally.
        fixed: whether the highest rate of the problem is the one rate asked for.

    Returns:
        The problem to solve, and which devices have a part in it, ``[..., num_devices]``.
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
    raise InfeasibleError(_explain(problem, hopeless, equal, policy=policy, fixed=fixed))


def _explain(
    problem: AnyProblem, rounds: BoolArray, equal: bool, *, policy: str = "error", fixed: bool = False
) -> Shortfall:
    """Explain the first of these rounds, ``[..., 1]``; the policy in use is no remedy."""
    number = None
    if len(problem.shape) == 2:
        number = int(np.argmax(rounds))
        problem = _one_round(problem, number)
    present, least = everyone(problem), problem.least_share(_top(problem))
    order = np.argsort(np.where(present, -least, 0.0), kind="stable")
    alone = int(np.sum(present & ~(least <= FITS)))
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
        # A device without anything to spend is over its budget at any rate.
        rate="" if (present & (problem.budget_j <= 0)).any() else "rate" if fixed else "max_rate",
        policies=[name for name, helps in remedies.items() if helps and name != policy],
        equal=equal,
    )


def _one_round(problem: AnyProblem, index: int) -> AnyProblem:
    def pick(value: Any) -> Any:
        return np.broadcast_to(value, problem.shape)[index]

    values: dict[str, Any] = {name: pick(getattr(problem, name)) for name in problem.numbers}
    return replace(problem, **values, present=None if problem.present is None else pick(problem.present))


def everyone(problem: AnyProblem) -> BoolArray:
    """Which devices are present, of the problem's shape; in every round there must be one."""
    if problem.present is None:
        return np.ones(problem.shape, dtype=np.bool_)
    if not problem.present.any(axis=-1).all():
        raise ConfigError("No device is present; a round needs at least one.")
    return np.broadcast_to(problem.present, problem.shape)


def _top(problem: AnyProblem) -> FloatArray:
    return 1.0 / (1.0 - problem.max_rate)


def _load(least: FloatArray, active: BoolArray, equal: bool) -> FloatArray:
    """Band asked for, relative to what there is, ``[..., 1]``."""
    asked = np.where(active, least, 0.0)
    return np.max(asked, axis=-1, keepdims=True) * total(active) if equal else total(asked)


def _fewest_left_out(least: FloatArray, active: BoolArray, equal: bool) -> BoolArray:
    """Keep as many devices as fit. For any number kept, those with the smallest least shares fit best."""
    asked = np.where(active, least, np.inf)
    order = np.argsort(asked, axis=-1, kind="stable")
    ranked = np.take_along_axis(asked, order, axis=-1)
    loads = ranked * np.arange(1, ranked.shape[-1] + 1) if equal else np.cumsum(ranked, axis=-1)
    # Under an equal split the load may dip below 1 again: take the largest number that fits.
    count = np.max(np.where(loads <= _ROOMY, np.arange(1, ranked.shape[-1] + 1), 0), axis=-1, keepdims=True)
    kept = np.zeros(active.shape, dtype=np.bool_)
    np.put_along_axis(kept, order, np.arange(ranked.shape[-1]) < count, axis=-1)
    return kept


def _stretch(problem: AnyProblem, active: BoolArray, equal: bool) -> FloatArray:
    """Smallest factor on the deadline at which the load fits, ``[..., 1]``; inf where the budgets forbid any."""

    def over(log_factor: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):
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
    """Smallest budget of a single round that, given to all who have less, makes the load fit; inf if none does."""

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
    """Logarithm of a load, above 0 where it does not fit; a number even where no band would do."""
    with np.errstate(divide="ignore"):
        return np.where(load < np.inf, np.clip(np.log(load / _SPARE), -700.0, 700.0), 700.0)


def _called(device: int, names: Sequence[str]) -> str:
    return f"device {names[device]!r}" if names and names[device] else f"device {device}"


def _need(share: float, limit: str) -> str:
    """Which part of the band a device needs to meet its limit."""
    if np.isinf(share):
        return f"cannot meet its {limit} with any share of the band"
    part = f"{share:.3g} {'times' if share > 1 else 'of'} the band"
    return f"needs {'about the whole band' if part.startswith('1 ') else part} to meet its {limit}"


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def _up(value: float) -> str:
    """Four significant digits, rounded up: a value that does is shown as one that does."""
    digits = 10.0 ** (3 - np.floor(np.log10(value)))
    return f"{np.ceil(value * digits) / digits:.4g}"
