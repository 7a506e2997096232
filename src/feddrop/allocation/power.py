r"""Rate, share, transmit power and clock speed of a round, chosen together.

The paper fixes every device's power and clock. Here they are chosen too, within the device's limits. For the *full*
model over the *whole* band, device k takes d_k seconds to download; its C_k cycles at f hertz take C_k/f seconds and
Ω_k C_k f² joules; its L_k bits go up at ρB log2(1 + P g_k/N). With s = 1-γ the part that is kept:

    minimise    Σ w_k / s_k     over s, ρ, f, P
    subject to  s (d/ρ + C/f + L/(ρ B log2(1 + P g/N)))         <= T0          deadline
                s (Ω C f² + P L/(ρ B log2(1 + P g/N)))          <= E           energy, net of the circuit's
                Σ ρ <= 1,   1-θ <= s <= 1,   f_min <= f <= f_max,   P_min <= P <= P_max

**Convex, seen the right way.** Let z = 1/s, r >= 1/ρ, and let a device plan *per unit of the full model*: τ = C/f
seconds to compute and t seconds to upload. With L' = L ln2/B and x = L' r/t, the spectral efficiency in nats,
P = (N/g)(e^x - 1), and the problem reads

    minimise    Σ w z           over z, ρ, r, τ, t
    subject to  D = (d r + τ + t) / T0                              <= z
                E = (Ω C³/τ² + t (N/g)(e^(L' r/t) - 1)) / E         <= z
                r >= 1/ρ,   Σ ρ <= 1,   1 <= z <= 1/(1-θ),   C/f_max <= τ <= C/f_min,
                L' r/x_max <= t <= L' r/x_min

t e^(L' r/t) is the perspective of the exponential, so convex; Ω C³/τ² and 1/ρ are convex; the rest is linear. The
change of variables is smooth and one to one, so a point that satisfies the KKT conditions in (z, ρ, f, P) is optimal.

**A device with a given share** takes the smallest z = max(1, D, E). D falls and E grows as it hurries. Either full
speed leaves energy to spare and the deadline decides; or D = E, and both ways to hurry cost the same joules a second,

    2 Ω C³/τ³ = λ = (N/g) φ(x),      φ(x) = (x - 1) e^x + 1

so τ = (2ΩC³/λ)^(1/3) and x = φ⁻¹(λ g/N) = 1 + W((λ g/N - 1)/e), Lambert's function, each kept within its limits. One
unknown, λ, in which D falls and E grows. We look for p, with λ = (N/g) φ(p), so that no W is needed.

**A device at a price** μ for the band: min over (τ, x, r) of max(D, E) + (μ/w)/r is a saddle point. With the weight κ
on D and 1-κ on E, where κ/(1-κ) = λ T0/E, the least over τ and x is as above, and the least over r is

    r = sqrt(μ / (w slope)),    slope = κ (d + L'/x)/T0 + (1-κ) L' (N/g) (e^x - 1)/(x E)        = dz/dr

What is left is concave in κ, and its derivative is D - E: again one unknown, with one sign change, by Newton's method.
The share asked for falls with μ; the price at which shares fill the band is found as for P1 (``roots.clear``).

**KKT conditions.** With multipliers λ_D, λ_E >= 0 of deadline and energy, μ of the band, α and β of z >= 1 and
z <= 1/(1-θ), and η of the limits of power and clock: constraints, complementary slackness, and

    w - λ_D - λ_E - α + β = 0                                                       stationary in z
    -λ_D ∂D/∂ρ - λ_E ∂E/∂ρ = μ                          (f, P held)                 in ρ
    -λ_D (C/f)/T0 + 2 λ_E Ω C f²/E + η_f = 0                                        in log f
    -λ_D t h/T0 + λ_E P t (1 - h)/E + η_P = 0,          h = (1 - e^-x)/x            in log P

η_f and η_P are positive only where f or P is at its most, negative only where at its least.

**Subband noise** (:class:`SubbandPowerProblem`): N = n ρB. The upload takes L'/(ρx) seconds and (nB/g) L' (e^x - 1)/x
joules, whatever ρ is. In the logarithms of z, ρ, τ, t the problem is convex: (e^x - 1)/x is a power series with
positive coefficients; d(ρ) = const/(ρ ln(1 + S/ρ)) is log-convex, since ln(1+q) <= q; and the limit of power,
x <= ln(1 + P_max g/(nBρ)), is log-concave, since the logarithm of ln(1 + e^v) is concave.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from feddrop.allocation.pace import MARGIN, PacedLink, Pace, needs, pace, reach
from feddrop.allocation.problem import BoolArray, FloatArray, Problem, coerce, refuse
from feddrop.allocation.roots import root
from feddrop.allocation.subband import NARROW, WIDE, SubbandProblem, link

_LN2 = float(np.log(2.0))
_TOLERANCE = 2.0**-38
"""Of log ρ, at Newton's last step; the error after it is far smaller, and ``MARGIN`` covers it."""

_FIRST = -3.0
"""Of log ρ to begin with: so far below that of a spectral efficiency of 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerProblem:
    """Rate, share, power and clock of one round, or of several at once; see :mod:`feddrop.allocation.power`.

    Every field may be a scalar, ``[num_devices]`` or ``[num_rounds, num_devices]``; they are broadcast together. All
    costs are of the *full* model over the *whole* band.

    Attributes:
        weight: w, the device's part |D_k|/|D| of the samples.
        download_s: d, seconds to download the model.
        cycles: C, CPU cycles to train it on the device's samples.
        cpu_hz: f_max, the highest clock speed.
        cpu_constant: Ω: a cycle at f hertz takes Ω f² joules.
        upload_bits: L.
        bandwidth_hz: B.
        gain_to_noise: g/N in 1/W, N being the noise power over the whole band.
        tx_power_w: P_max, the highest transmit power.
        deadline_s: T0.
        budget_j: E, joules a device may spend in the round, net of its circuit energy; inf for no budget.
        max_rate: θ, the highest rate allowed.
        least_cpu_hz: the lowest clock speed; as high as ``cpu_hz`` for a clock that cannot be chosen.
        least_tx_power_w: the lowest transmit power; as high as ``tx_power_w`` for a power that cannot be chosen.
        present: which devices take part in the round; None for all. The others get no share.
        shape: ``(num_devices,)`` or ``(num_rounds, num_devices)``.
        numbers: names of the fields that hold numbers.
    """

    numbers: ClassVar[tuple[str, ...]] = (
        *("weight", "download_s", "cycles", "cpu_hz", "cpu_constant", "upload_bits", "bandwidth_hz", "gain_to_noise"),
        *("tx_power_w", "deadline_s", "budget_j", "max_rate", "least_cpu_hz", "least_tx_power_w"),
    )

    weight: FloatArray
    download_s: FloatArray
    cycles: FloatArray
    cpu_hz: FloatArray
    cpu_constant: FloatArray
    upload_bits: FloatArray
    bandwidth_hz: FloatArray
    gain_to_noise: FloatArray
    tx_power_w: FloatArray
    deadline_s: FloatArray
    budget_j: FloatArray
    max_rate: FloatArray
    least_cpu_hz: FloatArray = 0.0  # type: ignore[assignment]  # numbers of any kind become arrays
    least_tx_power_w: FloatArray = 0.0  # type: ignore[assignment]
    present: BoolArray | None = None
    shape: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        coerce(self)
        refuse("tx_power_w", self.tx_power_w, self.tx_power_w > 0, "positive", self.shape)
        for least, most in (("least_cpu_hz", "cpu_hz"), ("least_tx_power_w", "tx_power_w")):
            low, high = getattr(self, least), getattr(self, most)
            refuse(least, low, low <= high, f"at most {most}", self.shape)

    def link(self, share: FloatArray) -> PacedLink:
        """What the air takes of the full model at these shares."""
        snr = self.gain_to_noise
        return PacedLink(self.download_s / share, 1.0, self._nats() / share, 1.0 / snr, 0.0, *self._limits(snr))

    def at(self, cpu_hz: FloatArray, tx_power_w: FloatArray) -> Problem | SubbandProblem:
        """The paper's P1 that is left when clock and power are given."""
        pull_s = self._nats() / np.log1p(tx_power_w * self.gain_to_noise)
        return Problem(
            weight=self.weight,
            comm_s=self.download_s + pull_s,
            compute_s=self.cycles / cpu_hz,
            upload_j=tx_power_w * pull_s,
            compute_j=self.cpu_constant * self.cycles * cpu_hz**2,
            deadline_s=self.deadline_s,
            budget_j=self.budget_j,
            max_rate=self.max_rate,
            present=self.present,
        )

    def least_share(self, z: FloatArray, stretch: FloatArray | float = 1.0) -> FloatArray:
        """Smallest share with which a device keeps 1/z of the model in time and in budget; inf where none does."""
        with np.errstate(all="ignore"):
            share = 1.0 / reach(self, np.asarray(z), stretch)[0]
            return np.where(self.budget_j > 0, share, np.inf)

    def _nats(self) -> FloatArray:
        return self.upload_bits * _LN2 / self.bandwidth_hz

    def _limits(self, gain_to_noise: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Spectral efficiency in nats at the lowest and at the highest power."""
        least = self.least_tx_power_w * gain_to_noise if self.least_tx_power_w.any() else np.zeros(())
        return np.log1p(least), np.log1p(self.tx_power_w * gain_to_noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubbandPowerProblem(PowerProblem):
    """The same where a device's noise is that of its own sub-band, ρ times that of the whole band.

    Attributes:
        download_snr: signal-to-noise ratio of the downlink over the whole band, at which ``download_s`` holds.
        numbers: names of the fields that hold numbers.
    """

    numbers: ClassVar[tuple[str, ...]] = (*PowerProblem.numbers, "download_snr")

    download_snr: FloatArray

    def link(self, share: FloatArray) -> PacedLink:
        """What the air takes of the full model at these shares."""
        snr = self.gain_to_noise / share
        down = link(self.download_snr, share)
        nats = self._nats() / share
        return PacedLink(self._push_s() * down.cost, down.fall, nats, 1.0 / snr, 1.0, *self._limits(snr))

    def at(self, cpu_hz: FloatArray, tx_power_w: FloatArray) -> Problem | SubbandProblem:
        """The paper's P1 that is left when clock and power are given."""
        return SubbandProblem(
            weight=self.weight,
            push_s=self._push_s(),
            pull_s=self.upload_bits / self.bandwidth_hz,
            snr_down=self.download_snr,
            snr_up=tx_power_w * self.gain_to_noise,
            tx_power_w=tx_power_w,
            compute_s=self.cycles / cpu_hz,
            compute_j=self.cpu_constant * self.cycles * cpu_hz**2,
            deadline_s=self.deadline_s,
            budget_j=self.budget_j,
            max_rate=self.max_rate,
            present=self.present,
        )

    def least_share(self, z: FloatArray, stretch: FloatArray | float = 1.0) -> FloatArray:
        """Smallest share with which a device keeps 1/z of the model in time and in budget; inf where none does.

        z may have axes before those of the problem.
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

            # Whoever is hopeless stays at the first share: far from there, the others would wait for his pace.
            low, high = np.where(hopeless, first, NARROW), np.full(z.shape, WIDE)
            y = root(over, low, high, first, tolerance=_TOLERANCE, ends=(hopeless, np.zeros_like(hopeless)))
            return np.where((self.budget_j > 0) & ~hopeless, np.exp(y), np.inf)

    def _endless(self, z: FloatArray, stretch: FloatArray | float) -> tuple[BoolArray, FloatArray, FloatArray]:
        """What an endless band would do; there a bit costs the same joules at any power.

        Returns:
            Who needs more than z even then; for the others, a little less than what they need then (in log ρ the
            logarithm of what is above that is nearly a line); and a log ρ that is rather too small, to begin with.
        """
        c = needs(self, self.link(np.ones(self.shape)), stretch)
        on_air = c.down * np.log1p(self.download_snr) / self.download_snr
        on_air = on_air + c.up / (self.gain_to_noise * self.tx_power_w)
        tau = np.fmax(np.sqrt(c.clock / (z - c.radio)), c.fast_tau)
        reached = (c.radio < z) & (tau <= c.slow_tau) & (on_air + tau < z)
        for _ in range(3):  # from where energy needs z to where it needs as much as the deadline; never beyond
            gap = c.radio + c.clock / tau**2 - on_air - tau
            tau = tau + np.maximum(gap, 0.0) / (1.0 + 2.0 * c.clock / tau**3)
        floor = np.maximum(on_air + np.minimum(tau, c.slow_tau), c.radio + c.clock / c.slow_tau**2)
        return ~(reached & (floor < z)), floor, np.log((c.down + c.up) / z) + _FIRST

    def _push_s(self) -> FloatArray:
        """Seconds to download at 1 bit/s/Hz over the whole band."""
        return self.download_s * np.log1p(self.download_snr) / _LN2
