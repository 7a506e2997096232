"""The paper's bounds as functions: Lemma 1, Lemma 2, Theorem 1 and their consequences. NumPy only.

Rates are arrays: one for all devices ``[]``, one per device ``[K]``, or one per round and device ``[..., K]``. Devices
are given by their numbers of samples ``|D_k|``, ``[K]``, which determine K, ``|D|`` and the weights
``p_k = |D_k| / |D|``. Scalar results are NumPy scalars. ``docs/theory.md`` lists where the paper's derivation is loose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feddrop.errors import ConfigError

Floats = npt.NDArray[np.float64]
_ALMOST_ONE = np.nextafter(1.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The constants of the paper's assumptions; :class:`feddrop.theory.Study` measures them.

    Attributes:
        smoothness: L, largest curvature (Assumption 5).
        hessian_norm: A, Frobenius norm of the Hessian (Assumption 1).
        weight_norm: G, norm of the parameters (Assumption 3).
        noise: σ², variance of the gradient of one sample (Assumption 6).
        variance: variance of a device's gradient as an increasing function of its rate, ``[...] -> [...]``, inf where
            unknown; by default Lemma 1's (AG)² γ/(1-γ).
    """

    smoothness: float
    hessian_norm: float
    weight_norm: float
    noise: float
    variance: Callable[[Floats], Floats] | None = None

    def __post_init__(self) -> None:
        for name in ("hessian_norm", "weight_norm", "noise"):
            _numbers(name, getattr(self, name), "at least 0", lambda value: value >= 0)
        _positive("smoothness", self.smoothness)


def odds(rate: npt.ArrayLike) -> Floats:
    """Return γ/(1-γ), the variance of a mask element (eq. Eq:DropoutMask); same shape as ``rate``."""
    gamma = _numbers("rate", rate, "in [0, 1)", lambda value: (value >= 0) & (value < 1))
    return gamma / (1 - gamma)


def unit_odds(rate: npt.ArrayLike) -> Floats:
    """Return 1/sqrt(1-γ) - 1, the variance of a mask element if a fraction sqrt(1-γ) of the units is kept."""
    return np.sqrt(1 + odds(rate)) - 1


def lemma1(rate: npt.ArrayLike, constants: Constants) -> Floats:
    """Bound a gradient's variance over masks, (AG)² γ/(1-γ) (Lemma 1, eq. equ:variance); same shape as ``rate``.

    If the constants have a measured variance, return that instead.
    """
    chance = odds(rate)
    if constants.variance is not None:
        return constants.variance(np.asarray(rate, np.float64))
    return (constants.hessian_norm * constants.weight_norm) ** 2 * chance


def learning_rate(rounds: npt.ArrayLike, constants: Constants) -> Floats:
    """Return the paper's learning rate η = 1/(3·sqrt(T)·L), fixed for all T rounds; same shape as ``rounds``."""
    return 1 / (3 * np.sqrt(_rounds(rounds)) * constants.smoothness)


def lemma2(
    rate: npt.ArrayLike,
    constants: Constants,
    *,
    samples: npt.ArrayLike,
    grad_norm_sq: npt.ArrayLike,
    rounds: npt.ArrayLike,
    lr: npt.ArrayLike | None = None,
    independent: bool = False,
) -> Floats:
    """Bound the expected change of the loss in one round (Lemma 2, eq. equ:lemma_opt; any η: eq. equ:basic3).

        (-η + 2Lη²) ‖g‖² + 2LKη² σ²/|D| + Lη² (AG)² Σ p_k γ_k/(1-γ_k)

    Args:
        rate: γ, ``[]`` or ``[..., K]``.
        constants: L, A, G, σ².
        samples: |D_k|, ``[K]``.
        grad_norm_sq: ‖g(w)‖², broadcast against the rounds ``[...]``.
        rounds: T, the number of rounds for which the learning rate is chosen.
        lr: learning rate η; 1/(3·sqrt(T)·L) by default.
        independent: use the independence of the devices' masks and samples, which the paper loses to Jensen's
            inequality. The bound is then (-η + Lη²/2) ‖g‖² + Lη²/2 (σ²/|D| + (AG)² Σ p_k² γ_k/(1-γ_k)).

    Returns:
        The bound, ``[...]``; if negative, the loss decreases.
    """
    L, eta = constants.smoothness, learning_rate(rounds, constants) if lr is None else _positive("lr", lr)
    count, norm = _samples(samples), np.asarray(grad_norm_sq, np.float64)
    dropped = _dropped(rate, constants, count, independent)
    if independent:
        change = (-eta + L * eta**2 / 2) * norm + L * eta**2 / 2 * (constants.noise / count.sum() + dropped)
    else:
        noise = 2 * len(count) * constants.noise / count.sum()
        change = (-eta + 2 * L * eta**2) * norm + L * eta**2 * (noise + dropped)
    return np.asarray(change)


@dataclass(frozen=True, slots=True, kw_only=True)
class Theta:
    """The largest uniform rate at which the bound guarantees a decrease of the loss.

    Attributes:
        rate: θ; the bound is negative for every uniform rate below it. 0 if it is never negative.
        at_zero: the bound without dropout; if not negative, no rate guarantees a decrease.
    """

    rate: Floats
    at_zero: Floats

    @property
    def decreases(self) -> npt.NDArray[np.bool_]:
        """Whether the bound guarantees a decrease without dropout."""
        return np.asarray(self.at_zero < 0)

    def __str__(self) -> str:
        if self.rate.ndim:
            return f"θ between {self.rate.min():.3g} and {self.rate.max():.3g}"
        if self.decreases:
            return f"θ = {self.rate:.3g}"
        return f"no θ: even without dropout the bound guarantees no decrease ({self.at_zero:+.2g})"


def theta(
    constants: Constants,
    *,
    samples: npt.ArrayLike,
    grad_norm_sq: npt.ArrayLike,
    rounds: npt.ArrayLike,
    lr: npt.ArrayLike | None = None,
    independent: bool = False,
) -> Theta:
    """Find θ of constraint C4: solve :func:`lemma2` = 0 for one rate for all devices, with the same arguments.

    With the paper's learning rate, γ/(1-γ) = ((3·sqrt(T) - 2) ‖g‖² - 2Kσ²/|D|) / (AG)². So θ increases with the number
    of rounds T (smaller steps) and decreases with the gradient: near a minimum, no dropout rate is safe.
    """

    def bound(rate: Floats) -> Floats:
        each = np.repeat(rate[..., None], len(np.atleast_1d(samples)), -1)
        return lemma2(
            each, constants, samples=samples, grad_norm_sq=grad_norm_sq, rounds=rounds, lr=lr, independent=independent
        )

    at_zero = bound(np.zeros(()))
    low, high = np.zeros_like(at_zero), np.ones_like(at_zero)
    for _ in range(70):  # bisection: the bound increases with the rate
        middle = (low + high) / 2
        below = bound(np.minimum(middle, _ALMOST_ONE)) < 0
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return Theta(rate=low, at_zero=at_zero)


def theorem1(
    rate: npt.ArrayLike, constants: Constants, *, samples: npt.ArrayLike, rounds: npt.ArrayLike, loss_gap: float
) -> Floats:
    """Bound the mean of ‖g‖² over T rounds: G_T of Theorem 1 (eq. eqn:adaptive) before its limit.

        (9L (F(w⁰) - F*) + 2Kσ²/|D| + (AG)² mean_t Σ p_k γ_kt/(1-γ_kt)) / sqrt(T)

    Args:
        rate: γ: ``[]`` or ``[K]`` for every round, or ``[T, K]``.
        constants: L, A, G, σ².
        samples: |D_k|, ``[K]``.
        rounds: T; any shape, unless rates are given per round.
        loss_gap: F(w⁰) - F*; F* is at least 0 for cross-entropy, so the initial loss is an upper bound.
    """
    T = _rounds(rounds)
    gamma = np.asarray(rate, np.float64)
    if gamma.ndim > 1 and (gamma.ndim > 2 or T.ndim or len(gamma) != T):
        raise ConfigError(f"rate has shape {gamma.shape} and rounds is {rounds!r}; it must be [rounds, devices].")
    dropped = _dropped(gamma, constants, samples).mean()
    return np.asarray((_numerator(constants, samples, loss_gap) + dropped) / np.sqrt(T))


def rounds_needed(
    rate: npt.ArrayLike, constants: Constants, *, samples: npt.ArrayLike, loss_gap: float, target: float
) -> Floats:
    """Return the T at which :func:`theorem1` reaches ``target``, not rounded up; ``[...]`` for rates ``[..., K]``."""
    top = _numerator(constants, samples, loss_gap) + _dropped(rate, constants, samples)
    return np.maximum(1.0, (top / _positive("target", target)) ** 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRate:
    """The best uniform rate for a time budget.

    Attributes:
        rate: γ.
        round_s: seconds per round at that rate.
        rounds: number of rounds within the budget.
        bound: :func:`theorem1` after these rounds.
        without: the bound without dropout in the same time.
    """

    rate: float
    round_s: float
    rounds: float
    bound: float
    without: float


def best_rate(
    round_s: Callable[[Floats], npt.ArrayLike],
    constants: Constants,
    *,
    samples: npt.ArrayLike,
    loss_gap: float,
    budget_s: float,
    max_rate: float = 0.9,
) -> BestRate:
    """Find the uniform rate with the lowest bound of Theorem 1 in a given time.

    A higher rate shortens rounds and worsens the bound. After ``budget_s / round_s(γ)`` rounds, the bound is
    B(γ)·sqrt(round_s(γ) / budget_s), where B is the bracket of Theorem 1. So the best rate minimises B(γ)² round_s(γ);
    it does not depend on the budget, and it reaches any target in the least time. If a round takes (1-γ)·c seconds, as
    in the paper's latency model, then 1/(1-γ) = (9L (F(w⁰) - F*) + 2Kσ²/|D|) / (AG)² - 1 if that exceeds 1; otherwise
    dropout does not pay.

    Args:
        round_s: seconds per round as a function of the rate, ``[n] -> [n]``, continuous.
        constants: L, A, G, σ².
        samples: |D_k|, ``[K]``.
        loss_gap: F(w⁰) - F*.
        budget_s: total time in seconds; rounds are not rounded down.
        max_rate: largest rate considered.
    """
    base = _numerator(constants, samples, loss_gap)

    def seconds(rates: Floats) -> Floats:
        return _positive("round_s(rate)", np.broadcast_to(round_s(rates), rates.shape))

    def cost(rates: Floats) -> Floats:
        return (base + lemma1(rates, constants)) ** 2 * seconds(rates)

    low, high = 0.0, float(_numbers("max_rate", max_rate, "in [0, 1)", lambda value: (value >= 0) & (value < 1)))
    budget = float(_positive("budget_s", budget_s))
    for _ in range(12):  # refine the grid around the best of 129 rates, 64-fold each time
        grid = np.linspace(low, high, 129)
        best = int(np.argmin(cost(grid)))
        low, high = float(grid[max(0, best - 1)]), float(grid[min(128, best + 1)])
    rate = float(grid[best])
    ends = np.array([rate, 0.0])
    bound, without = np.sqrt(cost(ends) / budget)
    here = float(seconds(ends)[0])
    return BestRate(rate=rate, round_s=here, rounds=budget / here, bound=float(bound), without=float(without))


def _dropped(rate: npt.ArrayLike, constants: Constants, samples: npt.ArrayLike, independent: bool = False) -> Floats:
    """Return (AG)² Σ p_k γ_k/(1-γ_k), or with p_k² for independent devices: ``[...]``."""
    count = _samples(samples)
    share = count / count.sum()
    gamma = np.asarray(rate, np.float64)
    if gamma.ndim and gamma.shape[-1] != len(count):
        raise ConfigError(f"rate has shape {gamma.shape} for {len(count)} devices; it must be [] or [..., devices].")
    each = np.broadcast_to(gamma, (*gamma.shape[:-1], len(count)))
    return np.asarray(lemma1(each, constants) @ share ** (1 + independent))


def _numerator(constants: Constants, samples: npt.ArrayLike, loss_gap: float) -> float:
    """Return 9L (F(w⁰) - F*) + 2Kσ²/|D|."""
    count = _samples(samples)
    gap = _numbers("loss_gap", loss_gap, "at least 0", lambda value: value >= 0)
    return float(9 * constants.smoothness * gap + 2 * len(count) * constants.noise / count.sum())


def _samples(samples: npt.ArrayLike) -> Floats:
    count = np.asarray(samples, np.float64)
    positive = (count > 0) if count.ndim == 1 and len(count) else np.False_
    return _numbers("samples", samples, "a list of positive numbers, one per device", lambda _: positive)


def _rounds(rounds: npt.ArrayLike) -> Floats:
    return _numbers("rounds", rounds, "at least 1", lambda value: value >= 1)


def _positive(what: str, value: npt.ArrayLike) -> Floats:
    return _numbers(what, value, "above 0", lambda array: array > 0)


def _numbers(what: str, value: npt.ArrayLike, allowed: str, fine: Callable[[Floats], Any]) -> Floats:
    """Return finite numbers for which ``fine`` holds as an array; otherwise raise a ConfigError."""
    array = np.asarray(value, np.float64)
    if not np.all(fine(array) & np.isfinite(array)):
        raise ConfigError(f"{what} is {value!r}; it must be {allowed}.")
    return array
