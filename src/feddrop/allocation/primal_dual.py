"""The paper's Algorithm 1: closed forms for rates and shares, gradient steps for the multipliers.

With x_k = sqrt(1-γ_k), and C1 and C2 divided by T0 and E_k, one pass is

    x_k = (w_k / (λ_k (a_k/ρ_k + b_k)/T0 + ν_k (c_k/ρ_k + d_k)/E_k))^(1/4), clipped to [sqrt(1-θ), 1]     eq. gamma1
    ρ_k = x_k sqrt((λ_k a_k/T0 + ν_k c_k/E_k) / μ)                                                        eq. rho1
    μ   = max(μ   + η_μ  (Σ ρ_k - 1), 0)
    λ_k = max(λ_k + η_λk (latency_k/T0 - 1), 0)
    ν_k = max(ν_k + η_νk (energy_k/E_k - 1), 0)

The paper leaves the step sizes η open; ``PrimalDual.steps`` sets them (:class:`RelativeSteps`, :class:`ConstantSteps`,
or a function). Whatever they are, λ_k and ν_k stay above 1e-6 of the weight: one that has almost vanished would need
many passes to grow back.

The paper leaves the stopping rule open, too. Ours is the duality gap, which bounds the distance to the optimum. The
upper bound is the objective of the pass's shares, scaled into the band, with the best rates for them. The lower bound
is the Lagrangian at the pass's multipliers, minimised over ρ in closed form; over x it is convex, and its tangent is
below it. :attr:`Allocation.gap` is that gap, and :attr:`Allocation.residual` the gap or the violation of the
constraints, whichever is larger. The KKT conditions at the last multipliers would say little: a multiplier
that is off by half changes the objective by its square.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from feddrop.allocation.feasible import settle
from feddrop.allocation.problem import GUARD, BoolArray, FloatArray, Problem, positive, total
from feddrop.allocation.roots import BAND
from feddrop.allocation.solution import Allocation, AnyProblem, Status, finish
from feddrop.errors import ConfigError

_SMALL = 1e-200  # keeps inactive devices from causing divisions by zero
_FLOOR, _WARM = 1e-6, 0.3  # smallest λ_k and ν_k relative to the weight, in any pass and at a warm start


class Pass(NamedTuple):
    """One pass of Algorithm 1, from which a step rule computes the next multipliers.

    Attributes:
        number: counted from 1.
        mu: μ, ``[..., 1]``.
        lam: λ, ``[..., num_devices]``.
        nu: ν, ``[..., num_devices]``.
        share: ρ, ``[..., num_devices]``; 1e-200 for inactive devices.
        band: Σ ρ over the active devices, ``[..., 1]``.
        late: latency/T0 - 1, ``[..., num_devices]``.
        spent: energy/E - 1, ``[..., num_devices]``.
        free: devices whose rate is strictly between 0 and θ, ``[..., num_devices]``.
    """

    number: int
    mu: FloatArray
    lam: FloatArray
    nu: FloatArray
    share: FloatArray
    band: FloatArray
    late: FloatArray
    spent: FloatArray
    free: BoolArray


StepRule = Callable[[Pass], tuple[FloatArray, FloatArray, FloatArray]]  # from a pass to the next μ, λ and ν


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeSteps:
    """Steps in proportion to the multipliers, so that neither units nor the number of devices matter.

    - η_λk = ``deadline`` λ_k and η_νk = ``energy`` ν_k. Latency is proportional to λ^(-1/2), so 1 is half a Newton
      step in log λ. The relative violation counts as at most 1.
    - η_μ = ``band`` μ / Σ ρ_k over the devices whose rate is strictly between its bounds: only these react to the
      price. The multipliers of the others are scaled with μ, which keeps their shares. μ changes by at most a tenth.
    """

    band: float = 1.0
    deadline: float = 1.0
    energy: float = 1.0

    def __call__(self, at: Pass) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the next μ, λ and ν."""
        reacting = total(np.where(at.free, at.share, 0.0))
        change = self.band * ((at.band - 1.0) / np.maximum(reacting, 0.01))
        factor = 1.0 + np.minimum(np.maximum(change, -0.1), 0.1)
        along = np.where(at.free, 1.0, factor)
        lam = at.lam * along * (1.0 + self.deadline * np.minimum(at.late, 1.0))
        nu = at.nu * along * (1.0 + self.energy * np.minimum(at.spent, 1.0))
        return at.mu * factor, lam, nu


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantSteps:
    """The gradient steps as the paper writes them: η_μ = ``band``, η_λ = ``deadline`` and η_ν = ``energy``.

    Pass t uses η / t^``decay``: 0 for constant steps, 0.5 for the usual diminishing ones. The multipliers are
    dimensionless (C1 and C2 are divided by T0 and E); λ_k and ν_k are of the order of the weight w_k. A relative
    violation counts as at most 1. Constant steps may circle around the optimum instead of converging.
    """

    band: float
    deadline: float
    energy: float
    decay: float = 0.0

    def __call__(self, at: Pass) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the next μ, λ and ν."""
        scale = float(at.number) ** -self.decay
        mu = at.mu + scale * self.band * np.minimum(at.band - 1.0, 1.0)
        lam = at.lam + scale * self.deadline * np.minimum(at.late, 1.0)
        return mu, lam, at.nu + scale * self.energy * np.minimum(at.spent, 1.0)


class FirstMultipliers(NamedTuple):
    """Multipliers of the first pass, positive numbers or arrays: μ of the band, λ of the deadline, ν of energy.

    Attributes:
        band: μ, a number or one per round, ``[num_rounds, 1]``.
        deadline: λ, a number, ``[num_devices]`` or ``[num_rounds, num_devices]``.
        energy: ν, likewise.
    """

    band: npt.ArrayLike
    deadline: npt.ArrayLike
    energy: npt.ArrayLike


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimalDual:
    """The paper's Algorithm 1, for problems with fixed power and clock and noise independent of the share.

    Attributes:
        tolerance: relative duality gap at which the iteration stops.
        steps: the step sizes: :class:`RelativeSteps`, :class:`ConstantSteps`, or a function from a :class:`Pass` to
            the next μ, λ and ν.
        start: the first multipliers: :class:`FirstMultipliers`, or an earlier allocation of the same shape by
            :class:`~feddrop.allocation.Exact` or this scheme. None for half the weight, at an equal split.
        max_passes: passes after which the iteration stops with ``Status.UNCONVERGED``.
        check_every: passes between two evaluations of the gap.

    Example:
        >>> from feddrop.allocation import ConstantSteps, PrimalDual, Problem, allocate
        >>> cell = Problem(weight=[0.5, 0.5], comm_s=[2.0, 8.0], compute_s=0.1, upload_j=0.0, compute_j=0.0,
        ...                deadline_s=10.0, budget_j=float("inf"), max_rate=0.9)
        >>> steps = ConstantSteps(band=0.1, deadline=0.05, energy=0.05)
        >>> allocate(cell, PrimalDual(tolerance=1e-6, steps=steps)).status
        <Status.CONVERGED: 'within the tolerance of the optimum'>
    """

    name: ClassVar[str] = "primal-dual"

    tolerance: float = 5e-5
    steps: StepRule = RelativeSteps()
    start: FirstMultipliers | Allocation | None = None
    max_passes: int = 20_000
    check_every: int = 10

    def __post_init__(self) -> None:
        if not (self.tolerance > 0 and self.max_passes >= 1 and self.check_every >= 1):
            raise ConfigError(
                f"tolerance is {self.tolerance}, max_passes {self.max_passes} and check_every {self.check_every}; they "
                "must be positive."
            )

    def solve(self, problem: AnyProblem, policy: str = "error") -> Allocation:
        """Run Algorithm 1; see :meth:`feddrop.allocation.scheme.Scheme.solve`."""
        if not isinstance(problem, Problem):
            raise ConfigError(
                "The closed forms of the scheme 'primal-dual' hold neither under subband noise nor if power and clock "
                "are chosen; use the scheme 'exact', or set radio.noise = 'density'."
            )
        settled, active = settle(problem, policy)
        p = _scaled(settled, active)
        count = total(_of(active, np.ones(())))
        # Devices without samples weigh nothing, but need their share all the same.
        weighty = _of(active, np.maximum(p.w, 1e-2 * total(p.w) / count + _SMALL))
        floor = _FLOOR * weighty
        rho = _of(active, 1.0 / count)
        lam, nu, mu = _first(self.start, weighty, total(p.w * np.maximum(p.a, p.c)) * count + _SMALL)
        best, history, status = _Best(rho, mu), [], Status.UNCONVERGED
        with np.errstate(divide="ignore", invalid="ignore"):
            for number in range(1, self.max_passes + 1):
                on_air, at_home = lam * p.a + nu * p.c, lam * p.b + nu * p.d
                x = np.minimum(np.maximum((p.w / (on_air / rho + at_home)) ** 0.25, p.x_least), 1.0)
                x = np.where(active, x, 1.0)
                rho = np.maximum(x * np.sqrt(on_air / mu), _SMALL)
                late, spent = x**2 * (p.a / rho + p.b) - 1.0, x**2 * (p.c / rho + p.d) - 1.0
                band = total(_of(active, rho))
                if number % self.check_every == 0 or number == self.max_passes:
                    bound = _bound(p.w, x, p.x_least, on_air, at_home, mu) - total(lam + nu) - mu
                    gap = best.look(p, active, rho / band, mu, bound)
                    history.append((number, gap, max(late.max(), spent.max(), 0.0), band.max()))
                    if gap <= self.tolerance:
                        status = Status.CONVERGED
                        break
                free = (x > p.x_least) & (x < 1.0)
                mu, lam, nu = self.steps(Pass(number, mu, lam, nu, rho, band, late, spent, free))
                mu, lam, nu = np.maximum(mu, _SMALL), np.maximum(lam, floor), np.maximum(nu, floor)
        return finish(
            settled,
            share=best.share,
            active=active,
            scheme=self.name,
            status=status,
            iterations=number,
            price=best.price,
            history=np.asarray(history),
            gap=best.gap(),
        )


class _Scaled(NamedTuple):
    """The problem with C1 and C2 divided by T0 and E, 0 for inactive devices; least shares and the remaining band."""

    a: FloatArray
    b: FloatArray
    c: FloatArray
    d: FloatArray
    w: FloatArray
    x_least: FloatArray
    least: FloatArray
    spare: FloatArray


def _scaled(problem: Problem, active: BoolArray) -> _Scaled:
    deadline, budget = problem.deadline_s * GUARD, positive(problem.budget_j) * GUARD
    least = _of(active, problem.least_share(1.0 / (1.0 - problem.max_rate)))
    return _Scaled(
        a=_of(active, problem.comm_s / deadline),
        b=_of(active, problem.compute_s / deadline),
        c=_of(active, problem.upload_j / budget),
        d=_of(active, problem.compute_j / budget),
        w=_of(active, problem.weight),
        x_least=np.sqrt(1.0 - problem.max_rate),
        least=least,
        spare=np.maximum(BAND - total(least), 0.0),
    )


class _Best:
    """The best shares and the best lower bound so far; the optimum lies between them."""

    def __init__(self, share: FloatArray, price: FloatArray) -> None:
        self.share, self.price = share, price
        self.upper, self.lower = np.full_like(price, np.inf), np.full_like(price, -np.inf)

    def look(self, p: _Scaled, active: BoolArray, share: FloatArray, price: FloatArray, bound: FloatArray) -> float:
        """Update both with those of a pass and return the relative gap."""
        repaired = _into_band(share, p.least, p.spare)
        late, spent = _of(active, p.a / repaired + p.b), _of(active, p.c / repaired + p.d)
        value = total(p.w * np.maximum(1.0, np.maximum(late, spent)))
        self.share = np.where(value < self.upper, repaired, self.share)
        self.price = np.where(bound > self.lower, price, self.price)
        self.upper, self.lower = np.minimum(self.upper, value), np.maximum(self.lower, bound)
        return float(np.max(self.gap()))

    def gap(self) -> FloatArray:
        """Return the relative gap of each round, ``[..., 1]``."""
        return np.maximum(self.upper - self.lower, 0.0) / np.maximum(self.upper, _SMALL)


def _bound(
    w: FloatArray, x: FloatArray, x_least: FloatArray, on_air: FloatArray, at_home: FloatArray, mu: FloatArray
) -> FloatArray:
    """Return a lower bound of Σ min over x, ρ of w/x² + x² (on_air/ρ + at_home) + μρ, ``[..., 1]``.

    The minimum over ρ is w/x² + at_home x² + 2 x sqrt(on_air μ). It is convex in x, so its tangent at x is a lower
    bound on [x_least, 1].
    """
    root = np.sqrt(on_air * mu)
    value = w / x**2 + at_home * x**2 + 2 * x * root
    slope = -2 * w / x**3 + 2 * at_home * x + 2 * root
    return total(value + np.minimum(slope * (x_least - x), slope * (1.0 - x)))


def _into_band(share: FloatArray, least: FloatArray, spare: FloatArray) -> FloatArray:
    """Give each device its least share, and the remaining band in proportion to the demand above that."""
    above = np.maximum(share - least, 0.0)
    return least + above * (spare / np.maximum(total(above), _SMALL))


def _first(
    start: FirstMultipliers | Allocation | None, weighty: FloatArray, mu: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the first λ, ν and μ of P2, the problem in x.

    Those of an earlier allocation belong to P1, the problem in z: λ z, ν z and μ are those of P2.
    """
    if start is None:
        return 0.5 * weighty, 0.5 * weighty, mu
    if isinstance(start, FirstMultipliers):
        return _given(start, weighty, mu)
    multipliers = start.multipliers
    if multipliers is None or start.share.shape != weighty.shape:
        raise ConfigError(
            f"the allocation to start from is by {start.scheme!r}, shape {list(start.share.shape)}; it must be by "
            f"'exact' or 'primal-dual', shape {list(weighty.shape)}."
        )
    z = 1.0 / (1.0 - np.where(start.active, start.rate, 0.0))
    few = _WARM * weighty
    lam = np.maximum(np.where(start.active, multipliers.deadline * z, weighty), few)
    nu = np.maximum(np.where(start.active, multipliers.energy * z, weighty), few)
    return lam, nu, np.maximum(multipliers.band, 1e-3 * mu)


def _given(start: FirstMultipliers, weighty: FloatArray, mu: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    found = {}
    for name, shape in (("band", mu.shape), ("deadline", weighty.shape), ("energy", weighty.shape)):
        try:
            value = np.broadcast_to(np.asarray(getattr(start, name), dtype=np.float64), shape)
        except (TypeError, ValueError):
            value = np.full(shape, np.nan)
        if not ((value > 0) & (value < np.inf)).all():
            raise ConfigError(
                f"{name} of the first multipliers is {getattr(start, name)}; it must be positive and finite, a number "
                f"or an array of shape {list(shape)}."
            )
        found[name] = value
    lam, nu = (np.maximum(_of(weighty > 0, found[name]), _FLOOR * weighty) for name in ("deadline", "energy"))
    return lam, nu, found["band"]


def _of(active: BoolArray, values: FloatArray) -> FloatArray:
    """Return the values of active devices and 0 for the others."""
    return np.where(active, values, 0.0)
