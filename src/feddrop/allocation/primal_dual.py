"""The paper's Algorithm 1: closed forms for rates and shares, gradient steps for the multipliers.

With x_k = sqrt(1-γ_k), and C1, C2 divided by T0 and E_k, one pass is

    x_k = (w_k / (λ_k (a_k/ρ_k + b_k)/T0 + ν_k (c_k/ρ_k + d_k)/E_k))^(1/4), clipped to [sqrt(1-θ), 1]     eq. gamma1
    ρ_k = x_k sqrt((λ_k a_k/T0 + ν_k c_k/E_k) / μ)                                                        eq. rho1
    μ   = max(μ   + η_μ  (Σ ρ_k - 1), 0)
    λ_k = max(λ_k + η_λk (latency_k/T0 - 1), 0)
    ν_k = max(ν_k + η_νk (energy_k/E_k - 1), 0)

The paper leaves the step sizes open. Ours are relative, so that neither units nor the number of devices matter:

- η_λk = λ_k and η_νk = ν_k. Latency goes like λ^(-1/2), so this is half a Newton step in log λ.
- η_μ = μ / Σ ρ_k over the devices whose rate is between its bounds: only these answer to the price. The multipliers of
  the others are scaled along with μ, which leaves their shares where they are.
- A step at most doubles λ_k or ν_k, and changes μ by at most a tenth. λ_k and ν_k stay above 1e-6 of the weight: one
  that has all but vanished would take as many passes to come back.

The paper leaves the stop open too. Ours is the duality gap, which proves how far from the optimum one can be. From
above: the shares of the pass, scaled into the band, with the best rates for them. From below: the Lagrangian at the
multipliers of the pass, minimised over ρ in closed form, and over x bounded by its tangent, since it is convex in x.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from feddrop.allocation.problem import GUARD, BoolArray, FloatArray, Problem, positive, total
from feddrop.allocation.roots import BAND
from feddrop.allocation.solution import Allocation, Status, finish
from feddrop.errors import ConfigError

_SMALL = 1e-200
"""Keeps devices without a part out of divisions by zero."""

_FLOOR = 1e-6
_WARM = 0.3
"""Parts of the weight below which multipliers never fall, and do not start when warm."""


def solve(
    problem: Problem,
    active: BoolArray,
    *,
    warm: Allocation | None = None,
    tolerance: float = 5e-5,
    limit: int = 20_000,
    every: int = 10,
) -> Allocation:
    """Run Algorithm 1; the problem must be feasible for the active devices.

    Args:
        problem: a round or a batch of rounds.
        active: devices that have a part, ``[..., num_devices]``.
        warm: allocation of an earlier round of the same shape, whose multipliers are the first guess.
        tolerance: relative duality gap at which to stop.
        limit: most passes.
        every: passes between two looks at the gap.
    """
    p = _scaled(problem, active)
    count = total(_of(active, np.ones(())))
    # Devices without samples weigh nothing, but need their share all the same.
    weighty = _of(active, np.maximum(p.w, 1e-2 * total(p.w) / count + _SMALL))
    floor = _FLOOR * weighty
    rho = _of(active, 1.0 / count)
    lam, nu, mu = _first_guess(warm, weighty, total(p.w * np.maximum(p.a, p.c)) * count + _SMALL)
    best, history, status = _Best(rho, mu), [], Status.UNCONVERGED
    with np.errstate(divide="ignore", invalid="ignore"):
        for number in range(1, limit + 1):
            on_air, at_home = lam * p.a + nu * p.c, lam * p.b + nu * p.d
            x = np.minimum(np.maximum((p.w / (on_air / rho + at_home)) ** 0.25, p.x_least), 1.0)
            x = np.where(active, x, 1.0)
            rho = np.maximum(x * np.sqrt(on_air / mu), _SMALL)
            late, spent = x**2 * (p.a / rho + p.b) - 1.0, x**2 * (p.c / rho + p.d) - 1.0
            band = total(_of(active, rho))
            if number % every == 0 or number == limit:
                bound = _bound(p.w, x, p.x_least, on_air, at_home, mu) - total(lam + nu) - mu
                gap = best.look(p, active, rho / band, mu, bound)
                history.append((number, gap, max(late.max(), spent.max(), 0.0), band.max()))
                if gap <= tolerance:
                    status = Status.CONVERGED
                    break
            between = (x > p.x_least) & (x < 1.0)
            factor, along = _price_step(rho, band, between)
            mu = np.maximum(mu * factor, _SMALL)
            lam = np.maximum(lam * along * (1.0 + np.minimum(late, 1.0)), floor)
            nu = np.maximum(nu * along * (1.0 + np.minimum(spent, 1.0)), floor)
    return finish(
        problem,
        share=best.share,
        active=active,
        method="primal-dual",
        status=status,
        iterations=number,
        price=best.price,
        history=np.asarray(history),
    )


def _price_step(rho: FloatArray, band: FloatArray, between: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Factor on μ, and on λ and ν of each device: those whose rate is at a bound go along with the price."""
    answering = total(np.where(between, rho, 0.0))
    factor = 1.0 + np.minimum(np.maximum((band - 1.0) / np.maximum(answering, 0.01), -0.1), 0.1)
    return factor, np.where(between, 1.0, factor)


class _Scaled(NamedTuple):
    """The problem with C1 and C2 divided by T0 and E, 0 for devices without a part; least shares, and band to spare."""

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
    """The best shares and the best bound so far: between them is the optimum."""

    def __init__(self, share: FloatArray, price: FloatArray) -> None:
        self.share, self.price = share, price
        self.upper, self.lower = np.full_like(price, np.inf), np.full_like(price, -np.inf)

    def look(self, p: _Scaled, active: BoolArray, share: FloatArray, price: FloatArray, bound: FloatArray) -> float:
        """Take the shares and the bound of a pass into account; return the relative gap."""
        repaired = _into_band(share, p.least, p.spare)
        late, spent = _of(active, p.a / repaired + p.b), _of(active, p.c / repaired + p.d)
        value = total(p.w * np.maximum(1.0, np.maximum(late, spent)))
        self.share = np.where(value < self.upper, repaired, self.share)
        self.price = np.where(bound > self.lower, price, self.price)
        self.upper, self.lower = np.minimum(self.upper, value), np.maximum(self.lower, bound)
        return float(np.max((self.upper - self.lower) / np.maximum(self.upper, _SMALL)))


def _bound(
    w: FloatArray, x: FloatArray, x_least: FloatArray, on_air: FloatArray, at_home: FloatArray, mu: FloatArray
) -> FloatArray:
    """A lower bound of Σ min over x, ρ of w/x² + x² (on_air/ρ + at_home) + μρ, ``[..., 1]``.

    The minimum over ρ leaves w/x² + at_home x² + 2 x sqrt(on_air μ), convex in x: no point of [x_least, 1] is below the
    tangent at x.
    """
    root = np.sqrt(on_air * mu)
    value = w / x**2 + at_home * x**2 + 2 * x * root
    slope = -2 * w / x**3 + 2 * at_home * x + 2 * root
    return total(value + np.minimum(slope * (x_least - x), slope * (1.0 - x)))


def _into_band(share: FloatArray, least: FloatArray, spare: FloatArray) -> FloatArray:
    """Give everyone the least share, and what is left in proportion to what each asks for above that."""
    above = np.maximum(share - least, 0.0)
    return least + above * (spare / np.maximum(total(above), _SMALL))


def _first_guess(
    warm: Allocation | None, weighty: FloatArray, mu: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Multipliers of P2, the problem in x, from those of an earlier allocation, which are of P1 in z: λ z, ν z, μ."""
    if warm is None:
        return 0.5 * weighty, 0.5 * weighty, mu
    multipliers = warm.multipliers
    if multipliers is None or warm.share.shape != weighty.shape:
        raise ConfigError(
            f"warm must be an allocation by 'exact' or 'primal-dual' of shape {list(weighty.shape)}; "
            f"it is one by {warm.method!r} of shape {list(warm.share.shape)}."
        )
    z = 1.0 / (1.0 - np.where(warm.active, warm.rate, 0.0))
    few = _WARM * weighty
    lam = np.maximum(np.where(warm.active, multipliers.deadline * z, weighty), few)
    nu = np.maximum(np.where(warm.active, multipliers.energy * z, weighty), few)
    return lam, nu, np.maximum(multipliers.band, 1e-3 * mu)


def _of(active: BoolArray, values: FloatArray) -> FloatArray:
    """Values of the active devices, 0 for the others."""
    return np.where(active, values, 0.0)
