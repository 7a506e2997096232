r"""Rate, share, transmit power and clock speed of a round, chosen together.

The paper fixes every device's power and clock. Here they are chosen, too, within the device's limits. For the *full*
model over the *whole* band, device k downloads in d_k seconds; its C_k cycles at f hertz take C_k/f seconds and
Ω_k C_k f² joules; it uploads L_k bits at ρB log2(1 + P g_k/N). With s = 1-γ the part that is kept:

    minimise    Σ w_k / s_k     over s, ρ, f, P
    subject to  s (d/ρ + C/f + L/(ρ B log2(1 + P g/N)))         <= T0          deadline
                s (Ω C f² + P L/(ρ B log2(1 + P g/N)))          <= E           energy, net of the circuit's
                Σ ρ <= 1,   1-θ <= s <= 1,   f_min <= f <= f_max,   P_min <= P <= P_max

**Convex in other variables.** Let z = 1/s, r >= 1/ρ, and let τ = C/f be the seconds to compute and t the seconds to
upload the *full* model. With L' = L ln2/B and x = L' r/t, the spectral efficiency in nats,
P = (N/g)(e^x - 1), and the problem reads

    minimise    Σ w z           over z, ρ, r, τ, t
    subject to  D = (d r + τ + t) / T0                              <= z
                E = (Ω C³/τ² + t (N/g)(e^(L' r/t) - 1)) / E         <= z
                r >= 1/ρ,   Σ ρ <= 1,   1 <= z <= 1/(1-θ),   C/f_max <= τ <= C/f_min,
                L' r/x_max <= t <= L' r/x_min

t e^(L' r/t) is the perspective of the exponential, hence convex; Ω C³/τ² and 1/ρ are convex; the rest is linear. The
change of variables is smooth and one to one, so a point that satisfies the KKT conditions in (z, ρ, f, P) is optimal.

**A device with a given share** takes the smallest z = max(1, D, E). A faster clock or a higher power lowers D and
raises E. Either the deadline binds even at full speed; or D = E, and clock and radio cost the same joules per second,

    2 Ω C³/τ³ = λ = (N/g) φ(x),      φ(x) = (x - 1) e^x + 1

so τ = (2ΩC³/λ)^(1/3) and x = φ⁻¹(λ g/N) = 1 + W((λ g/N - 1)/e), with Lambert's W, each clipped to its limits. D
decreases and E increases in the one unknown λ. The search is for p with λ = (N/g) φ(p), which avoids W.

**A device at a price** μ for the band: min over (τ, x, r) of max(D, E) + (μ/w)/r is a saddle point. With the weight κ
on D and 1-κ on E, where κ/(1-κ) = λ T0/E, the least over τ and x is as above, and the least over r is

    r = sqrt(μ / (w slope)),    slope = κ (d + L'/x)/T0 + (1-κ) L' (N/g) (e^x - 1)/(x E)        = dz/dr

The remaining function of κ is concave with derivative D - E: again one unknown with one sign change, found by Newton's
method. The demand decreases with μ; the price at which it fills the band is found as for P1 (``roots.clear``).

**KKT conditions.** With multipliers λ_D, λ_E >= 0 of deadline and energy, μ of the band, α and β of z >= 1 and
z <= 1/(1-θ), and η of the limits of power and clock: constraints, complementary slackness, and

    w - λ_D - λ_E - α + β = 0                                                       stationary in z
    -λ_D ∂D/∂ρ - λ_E ∂E/∂ρ = μ                          (f, P held)                 in ρ
    -λ_D (C/f)/T0 + 2 λ_E Ω C f²/E + η_f = 0                                        in log f
    -λ_D t h/T0 + λ_E P t (1 - h)/E + η_P = 0,          h = (1 - e^-x)/x            in log P

η_f and η_P are positive only if f or P is at its highest, negative only if it is at its lowest.

**Subband noise** (:class:`SubbandPowerProblem`): N = n ρB. The upload takes L'/(ρx) seconds and (nB/g) L' (e^x - 1)/x
joules, for any ρ. In the logarithms of z, ρ, τ, t the problem is convex: (e^x - 1)/x is a power series with
positive coefficients; d(ρ) = const/(ρ ln(1 + S/ρ)) is log-convex, since ln(1+q) <= q; and the limit of power,
x <= ln(1 + P_max g/(nBρ)), is log-concave, since the logarithm of ln(1 + e^v) is concave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from feddrop.allocation.pace import MARGIN, Pace, PacedLink, needs, pace, reach
from feddrop.allocation.problem import (
    BoolArray,
    Curves,
    FloatArray,
    Problem,
    RoundProblem,
    Side,
    coerce,
    part_of,
    refuse,
)
from feddrop.allocation.roots import root
from feddrop.allocation.subband import NARROW, WIDE, SubbandProblem, link

_LN2 = float(np.log(2.0))
_TOLERANCE = 2.0**-38
"""Length of Newton's last step in log ρ; the error after it is far smaller, and ``MARGIN`` covers it."""

_FIRST = -3.0  # first guess of log ρ, relative to that of a spectral efficiency of 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerProblem(RoundProblem):
    """Rate, share, power and clock of a round, as stated in :mod:`feddrop.allocation.power`.

    All costs are of the *full* model over the *whole* band. ``weight``, ``deadline_s``, ``budget_j``, ``max_rate`` and
    ``present`` are as in :class:`feddrop.Problem`.

    Attributes:
        download_s: d, seconds to download the model.
        cycles: C, CPU cycles to train it on the device's samples.
        cpu_hz: f_max, the highest clock speed.
        cpu_constant: Ω: a cycle at f hertz takes Ω f² joules.
        upload_bits: L.
        bandwidth_hz: B.
        gain_to_noise: g/N in 1/W, N being the noise power over the whole band.
        tx_power_w: P_max, the highest transmit power.
        least_cpu_hz: the lowest clock speed; equal to ``cpu_hz`` for a fixed clock.
        least_tx_power_w: the lowest transmit power; equal to ``tx_power_w`` for a fixed power.
    """

    numbers: ClassVar[tuple[str, ...]] = (
        *(*RoundProblem.numbers, "download_s", "cycles", "cpu_hz", "cpu_constant", "upload_bits", "bandwidth_hz"),
        *("gain_to_noise", "tx_power_w", "least_cpu_hz", "least_tx_power_w"),
    )

    download_s: FloatArray
    cycles: FloatArray
    cpu_hz: FloatArray
    cpu_constant: FloatArray
    upload_bits: FloatArray
    bandwidth_hz: FloatArray
    gain_to_noise: FloatArray
    tx_power_w: FloatArray
    least_cpu_hz: FloatArray = 0.0  # type: ignore[assignment]  # converted to an array
    least_tx_power_w: FloatArray = 0.0  # type: ignore[assignment]

    def __post_init__(self) -> None:
        coerce(self)
        refuse("tx_power_w", self.tx_power_w, self.tx_power_w > 0, "positive", self.shape)
        for least, most in (("least_cpu_hz", "cpu_hz"), ("least_tx_power_w", "tx_power_w")):
            low, high = getattr(self, least), getattr(self, most)
            refuse(least, low, low <= high, f"at most {most}", self.shape)

    def link(self, share: FloatArray) -> PacedLink:
        """Return the transmission of the full model at these shares."""
        snr = self.gain_to_noise
        return PacedLink(self.download_s / share, 1.0, self._nats() / share, 1.0 / snr, 0.0, *self._limits(snr))

    def at(self, cpu_hz: FloatArray, tx_power_w: FloatArray) -> Problem | SubbandProblem:
        """Return the paper's P1 at this clock and power."""
        pull_s = self._nats() / np.log1p(tx_power_w * self.gain_to_noise)
        return Problem(comm_s=self.download_s + pull_s, upload_j=tx_power_w * pull_s, **self._at_clock(cpu_hz))

    def _at_clock(self, cpu_hz: FloatArray) -> dict[str, Any]:
        """Return the fields of P1 that do not depend on the radio."""
        shared: dict[str, Any] = {name: getattr(self, name) for name in (*RoundProblem.numbers, "present")}
        compute_j = self.cpu_constant * self.cycles * cpu_hz**2
        return shared | {"compute_s": self.cycles / cpu_hz, "compute_j": compute_j}

    def curves(self, block: slice = slice(None)) -> Curves:
        """Return the smallest z of a block of devices, at the best clock and power, as a function of the share."""
        return _PacedCurves(part_of(self, block))

    def least_share(self, z: FloatArray, stretch: FloatArray | float = 1.0) -> FloatArray:
        """Return the smallest share with which a device trains 1/z of the model in time and budget; inf if none is."""
        with np.errstate(all="ignore"):
            share = 1.0 / reach(self, np.asarray(z), stretch)[0]
            return np.where(self.budget_j > 0, share, np.inf)

    def _nats(self) -> FloatArray:
        return self.upload_bits * _LN2 / self.bandwidth_hz

    def _limits(self, gain_to_noise: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the spectral efficiency in nats at the lowest and at the highest power."""
        least = self.least_tx_power_w * gain_to_noise if self.least_tx_power_w.any() else np.zeros(())
        return np.log1p(least), np.log1p(self.tx_power_w * gain_to_noise)


class _PacedCurves:
    """z at the best clock and power; the last solution is the first guess of the next."""

    def __init__(self, part: PowerProblem) -> None:
        self._part, self._guess = part, np.zeros(())

    def sides(self, share: FloatArray) -> tuple[Side, ...]:
        known = self._guess.shape == share.shape
        found = pace(self._part, share, guess=self._guess if known else None)
        self._guess = found.q
        return (Side(found.z, found.fall, np.full((), -1.0)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubbandPowerProblem(PowerProblem):
    """The same under subband noise: a device's noise is ρ times that of the whole band.

    Attributes:
        download_snr: signal-to-noise ratio of the downlink over the whole band, at which ``download_s`` holds.
        numbers: names of the fields that hold numbers.
    """

    numbers: ClassVar[tuple[str, ...]] = (*PowerProblem.numbers, "download_snr")

    download_snr: FloatArray

    def link(self, share: FloatArray) -> PacedLink:
        """Return the transmission of the full model at these shares."""
        snr = self.gain_to_noise / share
        down = link(self.download_snr, share)
        nats = self._nats() / share
        return PacedLink(self._push_s() * down.cost, down.fall, nats, 1.0 / snr, 1.0, *self._limits(snr))

    def at(self, cpu_hz: FloatArray, tx_power_w: FloatArray) -> Problem | SubbandProblem:
        """Return the paper's P1 at this clock and power."""
        return SubbandProblem(
            push_s=self._push_s(),
            pull_s=self.upload_bits / self.bandwidth_hz,
            snr_down=self.download_snr,
            snr_up=tx_power_w * self.gain_to_noise,
            tx_power_w=tx_power_w,
            **self._at_clock(cpu_hz),
        )

    def least_share(self, z: FloatArray, stretch: FloatArray | float = 1.0) -> FloatArray:
        """Return the smallest share with which a device trains 1/z of the model in time and budget; inf if none is.

        z may have leading axes before those of the problem.
        """
        z = np.broadcast_to(z, np.broadcast_shapes(np.shape(z), self.shape)) * MARGIN
        found: Pace | None = None
        with np.errstate(all="ignore"):
            hopeless, floor, first = self._endless(z, stretch)
            level = np.log(z - floor)

            def over(y: FloatArray) -> tuple[FloatArray, FloatArray]:
                nonlocal found
                found = pace(self, np.exp(y), stretch=stretch, guess=found.q if found else None, idle=0.0)
                return np.log(found.z - floor) - level, -found.fall / (found.z - floor)

            # Infeasible devices stay at the first share; elsewhere their slow iteration would delay the others.
            low, high = np.where(hopeless, first, NARROW), np.full(z.shape, WIDE)
            y = root(over, low, high, first, tolerance=_TOLERANCE, ends=(hopeless, np.zeros_like(hopeless)))
            return np.where((self.budget_j > 0) & ~hopeless, np.exp(y), np.inf)

    def _endless(self, z: FloatArray, stretch: FloatArray | float) -> tuple[BoolArray, FloatArray, FloatArray]:
        """Return the limit of an infinite band, where a bit costs the same energy at any power.

        Returns:
            Which devices need more than z even then; for the others, a lower bound of z (the logarithm of the excess
            over it is almost linear in log ρ); and a first log ρ, rather too small.
        """
        c = needs(self, self.link(np.ones(self.shape)), stretch)
        on_air = c.down * np.log1p(self.download_snr) / self.download_snr
        on_air = on_air + c.up / (self.gain_to_noise * self.tx_power_w)
        tau = np.fmax(np.sqrt(c.clock / (z - c.radio)), c.fast_tau)
        reached = (c.radio < z) & (tau <= c.slow_tau) & (on_air + tau < z)
        for _ in range(3):  # towards equal loads of energy and deadline, from below
            gap = c.radio + c.clock / tau**2 - on_air - tau
            tau = tau + np.maximum(gap, 0.0) / (1.0 + 2.0 * c.clock / tau**3)
        floor = np.maximum(on_air + np.minimum(tau, c.slow_tau), c.radio + c.clock / c.slow_tau**2)
        return ~(reached & (floor < z)), floor, np.log((c.down + c.up) / z) + _FIRST

    def _push_s(self) -> FloatArray:
        """Return seconds to download at 1 bit/s/Hz over the whole band."""
        return self.download_s * np.log1p(self.download_snr) / _LN2
