"""The paper's bounds as functions: Lemma 1, Lemma 2, Theorem 1, and what follows from them. NumPy only.

Rates are arrays: one for all devices ``[]``, one a device ``[K]``, or one a round and device ``[..., K]``. The devices
are given by their samples ``|D_k|``, ``[K]``: from these come K, ``|D|`` and the weights ``p_k = |D_k| / |D|``. A
scalar result is a NumPy scalar. ``docs/theory.md`` says where the paper's derivation is loose.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feddrop.errors import ConfigError

Floats = npt.NDArray[np.float64]
_ALMOST_ONE = np.nextafter(1.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What the paper assumes of the loss; :class:`feddrop.theory.Study` measures it.

    Attributes:
        smoothness: L, largest curvature (Assumption 5).
        hessian_norm: A, Frobenius norm of the Hessian (Assumption 1).
        weight_norm: G, norm of the parameters (Assumption 3).
        noise: σ², variance of the gradient of one sample (Assumption 6).
        variance: variance of a device's gradient as a rising function of its rate, ``[...] -> [...]``, inf where not
            known; Lemma 1's (AG)² γ/(1-γ) unless given.
    """

    smoothness: float
    hessian_norm: float
    weight_norm: float
    noise: float
    variance: Callable[[Floats], Floats] | None = None

    def __post_init__(self) -> None:
        for name in ("smoothness", "hessian_norm", "weight_norm", "noise"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} is {value!r}; it must be a number, 0 or more.")
        if self.smoothness == 0:
            raise ConfigError("smoothness is 0; the learning rate 1/(3·sqrt(T)·L) needs L above 0.")


def odds(rate: npt.ArrayLike) -> Floats:
    """Return γ/(1-γ), the variance of a mask element (eq. Eq:DropoutMask); same shape as ``rate``."""
    gamma = np.asarray(rate, np.float64)
    if not np.all((gamma >= 0) & (gamma < 1)):
        raise ConfigError(f"rate is {rate!r}; every dropout rate must lie in [0, 1).")
    return gamma / (1 - gamma)


def unit_odds(rate: npt.ArrayLike) -> Floats:
    """Return 1/sqrt(1-γ) - 1, the variance of a mask element when a share sqrt(1-γ) of the units is kept."""
    return np.sqrt(1 + odds(rate)) - 1


def lemma1(rate: npt.ArrayLike, constants: Constants) -> Floats:
    """Bound a gradient's variance over masks, (AG)² γ/(1-γ) (Lemma 1, eq. equ:variance); same shape as ``rate``.

    Where the constants carry a variance of their own, return that.
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
        rounds: T, the number of rounds the learning rate is made for.
        lr: another learning rate η in place of 1/(3·sqrt(T)·L).
        independent: use that the devices' masks and samples are independent, which the paper gives away by Jensen's
            inequality. The bound is then (-η + Lη²/2) ‖g‖² + Lη²/2 (σ²/|D| + (AG)² Σ p_k² γ_k/(1-γ_k)).

    Returns:
        The bound, ``[...]``; below 0 the loss goes down.
    """
    L, eta = constants.smoothness, _step(rounds, lr, constants)
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
    """The largest uniform rate at which a bound still promises a lower loss.

    Attributes:
        rate: θ: every uniform rate below it makes the bound negative; 0 where none does.
        at_zero: the bound without dropout; where it is not negative, no rate promises a decrease.
    """

    rate: Floats
    at_zero: Floats

    @property
    def decreases(self) -> npt.NDArray[np.bool_]:
        """Whether the bound promises a decrease at all."""
        return np.asarray(self.at_zero < 0)

    def __str__(self) -> str:
        if self.rate.ndim:
            return f"θ between {self.rate.min():.3g} and {self.rate.max():.3g}"
        if self.decreases:
            return f"θ = {self.rate:.3g}"
        return f"no θ: even without dropout the bound promises no decrease ({self.at_zero:+.2g})"


def theta(
    constants: Constants,
    *,
    samples: npt.ArrayLike,
    grad_norm_sq: npt.ArrayLike,
    rounds: npt.ArrayLike,
    lr: npt.ArrayLike | None = None,
    independent: bool = False,
) -> Theta:
    """Find θ of constraint C4: solve :func:`lemma2` = 0 for one rate for all devices. Arguments as there.

    With the paper's learning rate, γ/(1-γ) = ((3·sqrt(T) - 2) ‖g‖² - 2Kσ²/|D|) / (AG)². So θ grows with the planned
    rounds T (the step shrinks), and falls as the gradient does: near a minimum no dropout rate is safe.
    """

    def bound(rate: Floats) -> Floats:
        each = np.repeat(rate[..., None], len(np.atleast_1d(samples)), -1)
        return lemma2(
            each, constants, samples=samples, grad_norm_sq=grad_norm_sq, rounds=rounds, lr=lr, independent=independent
        )

    at_zero = bound(np.zeros(()))
    low, high = np.zeros_like(at_zero), np.ones_like(at_zero)
    for _ in range(70):  # the bound rises with the rate: halve the interval
        middle = (low + high) / 2
        below = bound(np.minimum(middle, _ALMOST_ONE)) < 0
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return Theta(rate=low, at_zero=at_zero)


def theorem1(
    rate: npt.ArrayLike,
    constants: Constants,
    *,
    samples: npt.ArrayLike,
    rounds: npt.ArrayLike,
    loss_gap: float,
) -> Floats:
    """Bound the mean of ‖g‖² over T rounds: G_T of Theorem 1 (eq. eqn:adaptive) before its limit.

        (9L (F(w⁰) - F*) + 2Kσ²/|D| + (AG)² mean_t Σ p_k γ_kt/(1-γ_kt)) / sqrt(T)

    Args:
        rate: γ: ``[]`` or ``[K]`` for every round, or ``[T, K]``.
        constants: L, A, G, σ².
        samples: |D_k|, ``[K]``.
        rounds: T; any shape, unless rates are given by round.
        loss_gap: F(w⁰) - F*; F* is at least 0 for cross-entropy, so the first loss itself is safe.
    """
    T = _rounds(rounds)
    gamma = np.asarray(rate, np.float64)
    if gamma.ndim > 1 and (gamma.ndim > 2 or T.ndim or len(gamma) != T):
        raise ConfigError(
            f"rate has shape {gamma.shape} and rounds is {rounds!r}; rates by round must be [rounds, devices]."
        )
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
    """The uniform rate that is best for a time budget.

    Attributes:
        rate: γ.
        round_s: seconds a round at that rate.
        rounds: rounds that fit the budget.
        bound: what :func:`theorem1` promises after them.
        without: what it promises without dropout in the same time.
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

    A higher rate makes rounds shorter and the bound worse. After ``budget_s / round_s(γ)`` rounds the bound is
    B(γ)·sqrt(round_s(γ) / budget_s), with B the bracket of Theorem 1. So the best rate minimises B(γ)² round_s(γ): it
    depends neither on the budget nor on a target, and it is the one that reaches any target in the least time
    (rounds needed x seconds a round). If a round takes (1-γ)·c seconds, as in the paper's latency model, then
    1/(1-γ) = (9L (F(w⁰) - F*) + 2Kσ²/|D|) / (AG)² - 1 where that is above 1, and dropout does not pay elsewhere.

    Args:
        round_s: seconds a round as a function of the rate, ``[n] -> [n]``, continuous.
        constants: L, A, G, σ².
        samples: |D_k|, ``[K]``.
        loss_gap: F(w⁰) - F*.
        budget_s: time in all, in seconds; rounds are not rounded down.
        max_rate: largest rate considered.
    """
    base = _numerator(constants, samples, loss_gap)

    def seconds(rates: Floats) -> Floats:
        return _positive("round_s(rate)", np.broadcast_to(round_s(rates), rates.shape))

    def cost(rates: Floats) -> Floats:
        return (base + lemma1(rates, constants)) ** 2 * seconds(rates)

    low, high = 0.0, float(max_rate)
    if not 0 <= high < 1:
        raise ConfigError(f"max_rate is {max_rate}; it must lie in [0, 1).")
    budget = float(_positive("budget_s", budget_s))
    for _ in range(12):  # zoom in on the best of 129 rates, 64 times closer each time
        grid = np.linspace(low, high, 129)
        best = int(np.argmin(cost(grid)))
        low, high = float(grid[max(0, best - 1)]), float(grid[min(128, best + 1)])
    rate = float(grid[best])
    ends = np.array([rate, 0.0])
    bound, without = np.sqrt(cost(ends) / budget)
    here = float(seconds(ends)[0])
    return BestRate(rate=rate, round_s=here, rounds=budget / here, bound=float(bound), without=float(without))


def _step(rounds: npt.ArrayLike, lr: npt.ArrayLike | None, constants: Constants) -> Floats:
    """Return the learning rate that is given, else the paper's."""
    return learning_rate(rounds, constants) if lr is None else _positive("lr", lr)


def _dropped(rate: npt.ArrayLike, constants: Constants, samples: npt.ArrayLike, independent: bool = False) -> Floats:
    """Return (AG)² Σ p_k γ_k/(1-γ_k), or with p_k² for independent devices: ``[...]``."""
    count = _samples(samples)
    share = count / count.sum()
    gamma = np.asarray(rate, np.float64)
    if gamma.ndim and gamma.shape[-1] != len(count):
        raise ConfigError(
            f"rate has shape {gamma.shape} for {len(count)} devices; give one rate, or [..., {len(count)}]."
        )
    return np.asarray(
        lemma1(np.broadcast_to(gamma, (*gamma.shape[:-1], len(count))), constants) @ share ** (1 + independent)
    )


def _numerator(constants: Constants, samples: npt.ArrayLike, loss_gap: float) -> float:
    """Return 9L (F(w⁰) - F*) + 2Kσ²/|D|."""
    count = _samples(samples)
    if not (math.isfinite(loss_gap) and loss_gap >= 0):
        raise ConfigError(f"loss_gap is {loss_gap!r}; F(w⁰) - F* must be a number, 0 or more.")
    return float(9 * constants.smoothness * loss_gap + 2 * len(count) * constants.noise / count.sum())


def _samples(samples: npt.ArrayLike) -> Floats:
    count = np.asarray(samples, np.float64)
    if count.ndim != 1 or not len(count) or not np.all((count > 0) & np.isfinite(count)):
        raise ConfigError(f"samples is {samples!r}; give the number of samples of every device, all above 0.")
    return count


def _rounds(rounds: npt.ArrayLike) -> Floats:
    T = np.asarray(rounds, np.float64)
    if not np.all((T >= 1) & np.isfinite(T)):
        raise ConfigError(f"rounds is {rounds!r}; there must be at least 1.")
    return T


def _positive(what: str, value: npt.ArrayLike) -> Floats:
    array = np.asarray(value, np.float64)
    if not np.all((array > 0) & np.isfinite(array)):
        raise ConfigError(f"{what} is {value!r}; it must be above 0.")
    return array
