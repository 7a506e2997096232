"""The best clock and power of a device: one unknown, λ, the joules that a second is worth.

A faster device spends more energy. At the optimum, clock and radio pay the same energy per second saved, or are at a
limit; :mod:`feddrop.allocation.power` states the problem and derives this. Here all costs are relative to deadline and
budget: with τ in deadlines, down = d/T0, up = L'/T0, radio = L'(N/g)/E, clock = ΩC³/(T0² E) and a share ρ = 1/r,

    D = r (down + up/x) + τ,     E = r radio (e^x - 1)/x + clock/τ²,     λ = 2 clock/τ³ = (radio/up) φ(x)

The unknown is q = log p with λ = (radio/up) φ(p): power and clock follow in closed form. p is the spectral efficiency
if power is within its limits, and keeps growing with λ if it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from feddrop.allocation.phi import above, below, inverse_log_phi, log_phi, rest_of
from feddrop.allocation.problem import FloatArray
from feddrop.allocation.roots import root

if TYPE_CHECKING:
    from feddrop.allocation.power import PowerProblem

MARGIN = 1.0 - 1e-12  # margin of the least share, larger than the error of Newton's method
TOLERANCE = 2.0**-30  # length of Newton's last step in q; the error after it is its square
_FINE = 2.0**-46  # the same for what remains after computing, which may change a billion times as fast as q
_TIE = 2.0**-45  # loads this close count as equal: the device then runs at full speed
_NO_TIME, _LEAST = 1e-100, 1e-200  # replace 0, to avoid divisions by zero
_SECONDS, _JOULES = 1e60, 1e100  # deadlines and budgets are clipped to these and their inverses


class PacedLink(NamedTuple):
    """Transmission of the full model at given shares."""

    down_s: FloatArray  # seconds to download
    down_fall: FloatArray | float  # -d log(down_s) / d log ρ
    nats: FloatArray  # the upload takes nats/x seconds at the spectral efficiency x
    noise_w: FloatArray  # N/g: the power for the spectral efficiency x is noise_w (e^x - 1)
    noise_fall: float  # d log(noise_w) / d log ρ: 0, or 1 under subband noise
    x_low: FloatArray  # spectral efficiency in nats at the lowest power
    x_high: FloatArray  # spectral efficiency in nats at the highest power

    def pull(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return seconds and joules to upload at the spectral efficiency x."""
        seconds = self.nats / x
        return seconds, self.noise_w * np.expm1(x) * seconds

    def falls(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the negative derivatives of transmission time and energy in log ρ, at constant power."""
        seconds, joules = self.pull(x)
        part = 1.0 + self.noise_fall * np.expm1(-x) / x if self.noise_fall else 1.0
        return self.down_s * self.down_fall + seconds * part, joules * part


class Needs(NamedTuple):
    """Costs relative to deadline and budget, and all else that does not depend on λ.

    ``fast_`` and ``slow_`` are the values at the highest and lowest clock and power. ``ratio`` is radio/up. For λ of
    at least ``full_odds``, clock and power are at their highest.
    """

    down: FloatArray
    up: FloatArray
    radio: FloatArray
    clock: FloatArray
    twice_clock: FloatArray
    ratio: FloatArray
    log_ratio: FloatArray
    fast_tau: FloatArray
    slow_tau: FloatArray
    fast_x: FloatArray
    slow_x: FloatArray
    fast_grown: FloatArray
    slow_grown: FloatArray
    full_odds: FloatArray

    def even(self) -> FloatArray:
        """Return the approximate q at which deadline and energy have equal weights."""
        return above(-self.log_ratio)

    def top(self, passes: int = 5) -> FloatArray:
        """Return the smallest q at which clock and power are at their highest."""
        return inverse_log_phi(np.log(self.full_odds) - self.log_ratio, passes)

    def bounds(self) -> tuple[FloatArray, FloatArray]:
        """Return bounds of q beyond which changes are negligible."""
        still = np.log(self.twice_clock) - 3.0 * np.log(self.slow_tau) - self.log_ratio
        still = np.where((self.slow_tau < np.inf) & (self.clock > 0), still, np.inf)
        floor = np.where(self.slow_x > 0, log_phi(self.slow_x), np.inf)
        even, full = -self.log_ratio, np.log(self.full_odds) - self.log_ratio
        least = np.minimum(np.minimum(floor, still), np.minimum(even, full)) - 60.0
        return below(least), above(np.maximum(full, even) + 45.0)

    def full_speed(self) -> tuple[FloatArray, ...]:
        """Return the relative time and energy of transmission, then of computing, at the highest clock and power."""
        return self._costs(self.fast_x, self.fast_grown, self.fast_tau)

    def at_ease(self) -> tuple[FloatArray, ...] | None:
        """Return the same at the lowest clock and power; None if all lowest powers are 0, which takes forever."""
        if not (self.slow_x > 0).any():
            return None
        return self._costs(self.slow_x, self.slow_grown, self.slow_tau)

    def _costs(self, x: FloatArray, grown: FloatArray, tau: FloatArray) -> tuple[FloatArray, ...]:
        return self.down + self.up / x, self.radio * (grown / x), tau, self.clock / tau**2


def needs(problem: PowerProblem, air: PacedLink, stretch: FloatArray | float = 1.0) -> Needs:
    """Return the relative costs of the devices, with ``stretch`` times the deadline."""
    deadline_s, budget_j = _limits(problem, stretch)
    clock = problem.cpu_constant * problem.cycles**2 * problem.cycles / deadline_s**2 / budget_j
    ratio = air.noise_w * (deadline_s / budget_j)
    fast = np.maximum(problem.cycles / problem.cpu_hz / deadline_s, _NO_TIME)
    slow = np.where(clock > 0, np.fmax(problem.cycles / problem.least_cpu_hz / deadline_s, fast), fast)
    grown = np.expm1(air.x_high)
    by_power = ratio * (rest_of(air.x_high, grown) * (1.0 + grown))
    by_clock = np.where(slow > fast, 2.0 * clock / fast**2 / fast, 0.0)
    return Needs(
        down=air.down_s / deadline_s,
        up=air.nats / deadline_s,
        radio=air.noise_w * air.nats / budget_j,
        clock=clock,
        twice_clock=2.0 * clock,
        ratio=ratio,
        log_ratio=np.log(ratio),
        fast_tau=fast,
        slow_tau=slow,
        fast_x=air.x_high,
        slow_x=air.x_low,
        fast_grown=grown,
        slow_grown=np.expm1(air.x_low),
        full_odds=np.maximum(by_power, by_clock) * (1.0 + 1e-9),  # slightly more: both exactly at their highest
    )


def _limits(problem: PowerProblem, stretch: FloatArray | float) -> tuple[FloatArray, FloatArray]:
    """Return deadlines and budgets that can be divided by."""
    return (
        np.minimum(np.maximum(problem.deadline_s * stretch, 1.0 / _SECONDS), _SECONDS),
        np.minimum(np.maximum(problem.budget_j, 1.0 / _JOULES), _JOULES),
    )


class Hurry(NamedTuple):
    """Clock and power at a λ."""

    odds: FloatArray  # λ, equal to κ/(1-κ), the ratio in which deadline and energy split the device's weight
    per_q: FloatArray  # d log λ / d q
    bend: FloatArray  # d log(per_q) / d q
    tau: FloatArray  # time to compute, in deadlines
    x: FloatArray  # spectral efficiency in nats
    d_tau: FloatArray  # d tau / d log λ
    d_x: FloatArray  # d x / d log λ
    on_d: FloatArray  # transmission time over the whole band, in deadlines
    on_e: FloatArray  # transmission energy over the whole band, in budgets


def hurry(q: FloatArray, c: Needs) -> Hurry:
    """Return clock and power at q, and their derivatives in λ."""
    p = np.exp(q)
    grown = np.expm1(p)
    rest = rest_of(p, grown)
    odds = c.ratio * (rest * (1.0 + grown))
    free = np.exp(np.log(c.twice_clock / odds) / 3.0)
    tau = np.minimum(np.maximum(free, c.fast_tau), c.slow_tau)
    x = np.minimum(np.maximum(p, c.slow_x), c.fast_x)
    power = np.minimum(np.maximum(grown, c.slow_grown), c.fast_grown)
    return Hurry(
        odds=odds,
        per_q=(per_q := p * p / rest),
        bend=2.0 + p - per_q,
        tau=tau,
        x=x,
        d_tau=(tau == free) * (tau / -3.0),
        d_x=(x == p) * (rest / p),
        on_d=c.down + c.up / x,
        on_e=c.radio * (power / x),
    )


class Pace(NamedTuple):
    """The best clock and power of devices at given shares, all ``[..., num_devices]``."""

    cpu_hz: FloatArray  # f in Hz
    tx_power_w: FloatArray  # P in W
    deadline: FloatArray  # D, the latency of the full model in deadlines
    energy: FloatArray  # E, the energy of the full model in budgets
    fall: FloatArray  # -dz / d log ρ, the value of band to a device bound by deadline or energy
    q: FloatArray  # the solution

    @property
    def z(self) -> FloatArray:
        """The smallest 1/(1-γ), not clipped to [1, 1/(1-θ)]."""
        return np.maximum(self.deadline, self.energy)


def pace(
    problem: PowerProblem,
    share: FloatArray,
    *,
    guess: FloatArray | None = None,
    stretch: FloatArray | float = 1.0,
    idle: float = MARGIN,
) -> Pace:
    """Return the best clock and power at given shares: the smallest z or, if no dropout is needed, the least energy.

    Args:
        problem: one round or a batch of rounds.
        share: of the problem's shape, positive.
        guess: first guess of q.
        stretch: a factor on the deadline.
        idle: part of the deadline that a device without dropout uses, to save energy; 0 for the smallest z, even
            below 1.
    """
    with np.errstate(all="ignore"):
        air = problem.link(share)
        c = needs(problem, air, stretch)
        low, top = c.bounds()[0], c.top()

        def gap(deadline: FloatArray, energy: FloatArray) -> FloatArray:
            return np.log(deadline) - np.log(np.maximum(energy, idle)) + _TIE

        def apart(q: FloatArray) -> tuple[FloatArray, FloatArray]:
            h = hurry(q, c)
            deadline, energy = h.on_d + h.tau, h.on_e + c.clock / h.tau**2
            # A second less costs λ joules, whether the clock or the radio saves it.
            change = h.d_tau - c.up / h.x**2 * h.d_x
            return gap(deadline, energy), h.per_q * change * (1.0 / deadline + (energy > idle) * h.odds / energy)

        on_d, on_e, tau, watts = c.full_speed()
        ends = np.zeros(np.shape(on_d), np.bool_), gap(on_d + tau, on_e + watts) >= 0
        if (ease := c.at_ease()) is not None:
            ends = gap(ease[0] + ease[2], ease[1] + ease[3]) <= 0, ends[1]
        # At the top nothing changes with λ, so Newton's method cannot start there.
        first = np.fmin(c.even() if guess is None else guess, top - 1e-6)
        q = root(apart, low, top, first, tolerance=TOLERANCE, ends=ends)
        h = hurry(q, c)
        even = np.where(q >= top, 1.0, np.where(q <= low, 0.0, 1.0 - 1.0 / (1.0 + h.odds)))
        (fall_s, fall_j), (deadline_s, budget_j) = air.falls(h.x), _limits(problem, stretch)
        cpu_hz, tx_power_w = chosen(problem, h.tau, h.x, c, stretch, air)
        return Pace(
            cpu_hz=cpu_hz,
            tx_power_w=tx_power_w,
            deadline=h.on_d + h.tau,
            energy=h.on_e + c.clock / h.tau**2,
            fall=even * fall_s / deadline_s + (1.0 - even) * fall_j / budget_j,
            q=q,
        )


def chosen(
    problem: PowerProblem,
    tau: FloatArray,
    x: FloatArray,
    c: Needs,
    stretch: FloatArray | float = 1.0,
    air: PacedLink | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return clock in Hz and power in W; values at a limit equal it exactly.

    Without ``air``, the noise must not depend on the share.
    """
    p, noise_w = problem, air.noise_w if air else 1.0 / problem.gain_to_noise
    clock = p.cycles / (tau * (p.deadline_s * stretch))
    return (
        _within(clock, tau, c.fast_tau, c.slow_tau, p.cpu_hz, p.least_cpu_hz),
        _within(noise_w * np.expm1(x), -x, -c.fast_x, -c.slow_x, p.tx_power_w, p.least_tx_power_w),
    )


def reach(
    problem: PowerProblem, z: FloatArray, stretch: FloatArray | float = 1.0, c: Needs | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return the largest r = 1/ρ with which a device trains 1/z of the model, 0 if none is, and the q there.

    The noise must not depend on the share. Then deadline and budget each allow an r in closed form; the first increases
    with λ, the second decreases.

    Args:
        problem: one round or a batch of rounds.
        z: 1/(1-γ); may have leading axes before those of the problem.
        stretch: a factor on the deadline.
        c: the relative costs over the whole band, if known.
    """
    c = c or needs(problem, problem.link(np.ones(problem.shape)), stretch)
    low, top = c.bounds()[0], c.top()
    z = z * MARGIN

    def sides(h: Hurry) -> tuple[FloatArray, FloatArray]:
        return z - h.tau, z - c.clock / h.tau**2

    def most(h: Hurry) -> FloatArray:
        seconds, joules = sides(h)
        return np.fmin(seconds / h.on_d, joules / h.on_e)

    def apart(q: FloatArray) -> tuple[FloatArray, FloatArray]:
        h = hurry(q, c)
        seconds, joules = sides(h)
        seconds, joules = np.maximum(seconds, _LEAST), np.maximum(joules, _LEAST)
        saved = c.up / h.x**2 * h.d_x
        slope = h.d_tau * (h.odds / joules + 1.0 / seconds) - saved * (1.0 / h.on_d + h.odds / h.on_e)
        slope = np.where((seconds > _LEAST) & (joules > _LEAST), h.per_q * slope, -_LEAST)
        return np.log(joules / seconds * (h.on_d / h.on_e)), slope

    # Computing must leave time and energy: start midway between the fastest and the slowest clock that do.
    fastest = np.maximum(np.sqrt(c.clock / z), c.fast_tau)
    middle = np.sqrt(fastest * np.minimum(z, c.slow_tau))
    first = inverse_log_phi(np.log(c.twice_clock) - 3.0 * np.log(middle) - c.log_ratio)
    first = np.minimum(np.maximum(np.where(np.isfinite(first), first, top), low), top - 1e-6)
    middling = most(hurry(first, c))
    hopeless = ~(middling > 0)  # infeasible here means infeasible everywhere
    q = root(apart, np.where(hopeless, first, low), np.where(hopeless, first, top), first, tolerance=_FINE)
    r = most(hurry(q, c))
    # If computing takes all but a billionth of time or energy, rounding may leave nothing for transmission.
    return np.maximum(np.fmax(r, middling), 0.0), np.where(middling > r, first, q)


def _within(
    value: FloatArray, at: FloatArray, low: FloatArray, high: FloatArray, most: FloatArray, least: FloatArray
) -> FloatArray:
    """Return the value, or its exact limit if the unknown ``at`` is at a limit."""
    value = np.where(at <= low, most, np.where(at >= high, least, value))
    return np.minimum(np.maximum(value, least), most)
