"""How fast a device should compute and send: one unknown, λ, the joules that a second is worth to it.

A device that hurries spends more: by its clock, 2ΩC³/τ³ joules for a second less, by its radio (N/g) φ(x). At its best
both are λ, or at a limit. See :mod:`feddrop.allocation.power` for the problem and the derivation.

The unknown here is q = log p with λ = (N/g) φ(p): then power and clock follow without solving anything. p is the
spectral efficiency where power is within its limits, and goes on growing with λ where it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from feddrop.allocation.problem import FloatArray, positive
from feddrop.allocation.roots import root

if TYPE_CHECKING:
    from feddrop.allocation.power import PowerProblem

_NO_TIME = 1e-100
"""Stands for no seconds at all, so that nothing is divided by zero."""

MARGIN = 1.0 - 1e-12
"""The least share leaves so much to spare: more than Newton's method is off by."""

_IDLE = float(np.log(MARGIN))
"""A device that need not drop anything takes so much of the deadline (its logarithm), to save energy."""


_TIE = 2.0**-45
"""Loads so close are the same: full speed then counts as what the deadline asks for."""

_LEAST = 1e-200
TOLERANCE = 2.0**-44


class Link(NamedTuple):
    """What the air takes of the full model, at some shares.

    Attributes:
        down_s: seconds to download.
        down_fall: -d log(down_s) / d log ρ.
        nats: the upload takes nats/x seconds at the spectral efficiency x.
        noise_w: N/g: the power for the spectral efficiency x is noise_w (e^x - 1).
        noise_fall: d log(noise_w) / d log ρ: 0, or 1 under subband noise.
        x_low: spectral efficiency in nats at the lowest power.
        x_high: spectral efficiency in nats at the highest power.
    """

    down_s: FloatArray
    down_fall: FloatArray | float
    nats: FloatArray
    noise_w: FloatArray
    noise_fall: float
    x_low: FloatArray
    x_high: FloatArray

    def pull(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Seconds and joules to upload at the spectral efficiency x."""
        seconds = self.nats / x
        return seconds, self.noise_w * np.expm1(x) * seconds

    def falls(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """How fast seconds and joules on the air fall with log ρ, at the same power."""
        seconds, joules = self.pull(x)
        part = 1.0 + self.noise_fall * np.expm1(-x) / x if self.noise_fall else 1.0
        return self.down_s * self.down_fall + seconds * part, joules * part


class Limits(NamedTuple):
    """What does not depend on λ.

    q is looked for between ``low`` and ``high``; from ``top`` on, clock and power are at their highest.
    """

    log_noise: FloatArray
    x_low: FloatArray
    x_high: FloatArray
    cubic: FloatArray
    log_cubic: FloatArray
    tau_low: FloatArray
    tau_high: FloatArray
    log_even: FloatArray
    low: FloatArray
    top: FloatArray
    high: FloatArray

    def even(self) -> FloatArray:
        """The q at which deadline and energy weigh the same: a first guess."""
        return np.fmin(inverse_log_phi(self.log_even - self.log_noise), self.top)


class Hurry(NamedTuple):
    """Clock and power at a λ.

    Attributes:
        odds: κ/(1-κ) = λ T0/E.
        per_q: d log λ / d q.
        tau: seconds to compute.
        x: spectral efficiency in nats.
        d_tau: d tau / d log λ.
        d_x: d x / d log λ.
    """

    odds: FloatArray
    per_q: FloatArray
    tau: FloatArray
    x: FloatArray
    d_tau: FloatArray
    d_x: FloatArray


def limits(problem: PowerProblem, air: Link) -> Limits:
    """Work out the limits of clock and power, and the λ beyond which nothing changes any more."""
    log_noise = np.log(air.noise_w)
    cubic = problem.cpu_constant * problem.cycles**3
    log_cubic = np.log(2.0 * cubic)
    tau_low = np.maximum(problem.cycles / problem.cpu_hz, _NO_TIME)
    tau_high = np.fmax(problem.cycles / problem.least_cpu_hz, tau_low)
    log_even = np.log(positive(problem.budget_j)) - np.log(problem.deadline_s)
    even = np.where(log_even < np.inf, log_even, -np.inf)
    # A hair more: there both are at their highest exactly.
    full = np.maximum(log_noise + log_phi(air.x_high), log_cubic - 3.0 * np.log(tau_low)) + 1e-9
    most = np.maximum(full, even) + 45.0
    by_power = np.where(air.x_low > 0, log_noise + log_phi(air.x_low), np.inf)
    by_clock = np.where((tau_high < np.inf) & (cubic > 0), log_cubic - 3.0 * np.log(tau_high), np.inf)
    least = np.minimum(np.minimum(by_power, by_clock), np.minimum(log_even, most)) - 60.0
    log_even = np.where(log_even < np.inf, log_even, -np.inf)  # without a budget, any joule for a second
    low, top, high = (inverse_log_phi(value - log_noise) for value in (least, full, most))
    return Limits(log_noise, air.x_low, air.x_high, cubic, log_cubic, tau_low, tau_high, log_even, low, top, high)


def hurry(q: FloatArray, c: Limits) -> Hurry:
    """Clock and power at q, and how they change with λ."""
    p = np.exp(q)
    rest = _rest(p)
    log_rate = c.log_noise + p + np.log(rest)
    free = np.exp((c.log_cubic - log_rate) / 3.0)
    tau = np.minimum(np.maximum(free, c.tau_low), c.tau_high)
    x = np.minimum(np.maximum(p, c.x_low), c.x_high)
    per_q = p * p / rest
    d_tau = np.where(tau == free, tau / -3.0, 0.0)
    return Hurry(np.exp(log_rate - c.log_even), per_q, tau, x, d_tau, np.where(x == p, p / per_q, 0.0))


class Pace(NamedTuple):
    """The best clock and power of devices whose shares are given, all ``[..., num_devices]``.

    Attributes:
        cpu_hz: f.
        tx_power_w: P.
        deadline: D, the part of the deadline that the full model takes.
        energy: E, the part of the budget that the full model takes.
        fall: -dz / d log ρ, the worth of band to a device that is held by the deadline or by energy.
        q: where it was found.
    """

    cpu_hz: FloatArray
    tx_power_w: FloatArray
    deadline: FloatArray
    energy: FloatArray
    fall: FloatArray
    q: FloatArray

    @property
    def z(self) -> FloatArray:
        """The smallest 1/(1-γ), not yet kept between 1 and 1/(1-θ)."""
        return np.maximum(self.deadline, self.energy)


def pace(
    problem: PowerProblem, share: FloatArray, *, guess: FloatArray | None = None, stretch: FloatArray | float = 1.0
) -> Pace:
    """Choose clock and power at given shares: the smallest z or, where nothing need be dropped, the least energy.

    Args:
        problem: a round or a batch of rounds.
        share: of the problem's shape, positive.
        guess: q to begin with.
        stretch: a factor on the deadline.
    """
    with np.errstate(all="ignore"):
        air = problem.link(share)
        c = limits(problem, air)
    deadline_s, budget_j = problem.deadline_s * stretch, positive(problem.budget_j)

    def apart(q: FloatArray) -> tuple[FloatArray, FloatArray]:
        h = hurry(q, c)
        pull_s, pull_j = air.pull(h.x)
        seconds, joules = air.down_s + h.tau + pull_s, c.cubic / h.tau**2 + pull_j
        gap = np.log(seconds / deadline_s) - np.maximum(np.log(joules / budget_j), _IDLE) + _TIE
        # A second less costs λ joules, whether clock or radio saves it.
        change = h.d_tau - pull_s / h.x * h.d_x
        spent = h.odds * budget_j / problem.deadline_s * change
        return gap, h.per_q * (change / seconds + np.where(joules > budget_j, spent / joules, 0.0))

    with np.errstate(all="ignore"):
        # At the top nothing changes with λ, so that Newton's method could not begin there.
        first = np.fmin(c.even() if guess is None else guess, c.top - 1e-6)
        q = root(apart, c.low, c.top, first, tolerance=TOLERANCE)
        h = hurry(q, c)
        pull_s, pull_j = air.pull(h.x)
        even = np.where(q >= c.top, 1.0, np.where(q <= c.low, 0.0, 1.0 - 1.0 / (1.0 + h.odds)))
        fall_s, fall_j = air.falls(h.x)
        return Pace(
            cpu_hz=_within(problem.cycles / h.tau, h.tau, c.tau_low, c.tau_high, problem.cpu_hz, problem.least_cpu_hz),
            tx_power_w=_within(
                air.noise_w * np.expm1(h.x), -h.x, -c.x_high, -c.x_low, problem.tx_power_w, problem.least_tx_power_w
            ),
            deadline=(air.down_s + h.tau + pull_s) / deadline_s,
            energy=(c.cubic / h.tau**2 + pull_j) / budget_j,
            fall=even * fall_s / deadline_s + (1.0 - even) * fall_j / budget_j,
            q=q,
        )


def reach(problem: PowerProblem, z: FloatArray, stretch: FloatArray | float = 1.0) -> tuple[FloatArray, FloatArray]:
    """Largest r = 1/ρ with which a device keeps 1/z of the model, 0 where none does; and the q there.

    For noise that does not depend on the share: then deadline and budget each allow an r in closed form, the first
    growing with λ, the second falling.
    """
    air = problem.link(np.ones(problem.shape))
    c = limits(problem, air)
    deadline_s, budget_j = z * problem.deadline_s * stretch * MARGIN, z * positive(problem.budget_j) * MARGIN

    def sides(h: Hurry) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        pull_s, pull_j = air.pull(h.x)
        return deadline_s - h.tau, air.down_s + pull_s, budget_j - c.cubic / h.tau**2, pull_j

    def apart(q: FloatArray) -> tuple[FloatArray, FloatArray]:
        h = hurry(q, c)
        seconds, per_s, joules, per_j = sides(h)
        seconds, joules = np.maximum(seconds, _LEAST), np.maximum(joules, _LEAST)
        rate = h.odds * np.exp(c.log_even)
        saved = air.nats / h.x**2 * h.d_x
        slope = rate * h.d_tau / joules - saved / per_s + h.d_tau / seconds - rate * saved / per_j
        slope = np.where((seconds > _LEAST) & (joules > _LEAST), h.per_q * slope, -_LEAST)
        return np.log(joules / seconds * (per_s / per_j)), slope

    # Computing must leave time and energy: begin in the middle between the fastest and the slowest that do.
    middle = 0.5 * np.log(deadline_s) + 0.25 * np.log(c.cubic / budget_j)
    first = inverse_log_phi(np.where(np.isfinite(middle), c.log_cubic - 3.0 * middle, c.log_even) - c.log_noise)
    first = np.minimum(np.maximum(np.where(np.isfinite(first), first, c.top), c.low), c.top - 1e-6)
    seconds, _, joules, _ = sides(hurry(first, c))
    hopeless = ~((seconds > 0) & (joules > 0))  # if not there, then nowhere
    low, high = np.where(hopeless, first, c.low), np.where(hopeless, first, c.top)
    q = root(apart, low, high, first, tolerance=TOLERANCE)
    seconds, per_s, joules, per_j = sides(hurry(q, c))
    return np.maximum(np.fmin(seconds / per_s, joules / per_j), 0.0), q


def log_phi(x: FloatArray) -> FloatArray:
    """Logarithm of φ(x) = (x - 1) e^x + 1, for x >= 0."""
    return x + np.log(_rest(x))


def inverse_log_phi(value: FloatArray) -> FloatArray:
    """Logarithm of the x at which log φ has this value."""
    # log φ is convex in log x, and both guesses are at the right of the root: Newton's steps come down to it.
    q = np.where(value < 0, 0.5 * (value + np.log(2.0)), np.log(np.maximum(value, 0.0) + 1.6))
    for _ in range(7):
        p = np.exp(q)
        rest = _rest(p)
        q = q - (p + np.log(rest) - value) * rest / (p * p)
    return q


def _rest(p: FloatArray) -> FloatArray:
    """φ(p) e^-p = p - 1 + e^-p, without cancellation."""
    series = p * p * (1 / 2 - p * (1 / 6 - p * (1 / 24 - p * (1 / 120 - p * (1 / 720 - p / 5040)))))
    return np.where(p < 0.03, series, p + np.expm1(-p))


def _within(
    value: FloatArray, at: FloatArray, low: FloatArray, high: FloatArray, most: FloatArray, least: FloatArray
) -> FloatArray:
    """The value, or exactly its limit where the unknown that it follows from is at one."""
    value = np.where(at <= low, most, np.where(at >= high, least, value))
    return np.minimum(np.maximum(value, least), most)
