"""A cell: one server and K devices that share a band.

Noise conventions (the paper calls N0 a variance in its rates and gives sigma² = 1e-13 W/Hz, a density, in its table):

    density   variance = density x B          spectral efficiency does not depend on the share
    literal   variance = the number itself    the same, with far less noise
    subband   variance = density x ρB         the physical one: a narrow sub-band has less noise
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feddrop.allocation import PowerProblem, Problem, SubbandPowerProblem, SubbandProblem
from feddrop.allocation.problem import BoolArray, FloatArray, refuse
from feddrop.allocation.solution import AnyProblem
from feddrop.config.conversion import convert
from feddrop.config.fields import Limits
from feddrop.config.presets import PAPER_NOISE_W_HZ
from feddrop.config.radio import NOISES
from feddrop.errors import ConfigError, one_of, shortened
from feddrop.radio.devices import Dynamics, between, draw_devices
from feddrop.radio.fading import Fading, Rician, gains_of
from feddrop.radio.gains import MeasuredGains
from feddrop.seeds import derive, generator, permutation

_LN2 = float(np.log(2.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """What the server knows about the cell before a round; in a batch, every field has a leading axis of rounds.

    Attributes:
        uplink: power gains |h|², ``[..., num_devices]``.
        downlink: power gains |h|², ``[..., num_devices]``.
        cpu_hz: f, ``[..., num_devices]``.
        tx_power_w: P, ``[..., num_devices]``.
        present: which devices take part, ``[..., num_devices]``.
    """

    uplink: FloatArray
    downlink: FloatArray
    cpu_hz: FloatArray
    tx_power_w: FloatArray
    present: BoolArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A single cell of the paper's section II; arrays are ``[num_devices]``, scalars hold for all devices.

    Attributes:
        cpu_hz: f, cycles per second.
        tx_power_w: P, uplink transmit power.
        cpu_constant: Ω: computing takes Ω f³ watts.
        samples: |D|, samples that a device trains on per round.
        budget_j: E0, joules that a device may spend per round; inf for no budget.
        circuit_j: ξ, joules that a device spends per round on receiving and idling.
        downlink_power_w: transmit power of the server to a device.
        bandwidth_hz: B.
        deadline_s: T0.
        fading: the channel: the source of gains.
        noise: ``"density"``, ``"literal"`` or ``"subband"``.
        noise_w_hz: noise density at the server; the variance itself, in W, under ``"literal"``.
        downlink_noise_w_hz: the same at the devices; None for the server's value.
        bits_per_parameter: Q of the paper's formula.
        flop_per_cycle: floating-point operations per CPU cycle.
        max_rate: θ.
        least_cpu_hz: the lowest clock that may be chosen; a device with a lower f stays at f.
        dynamics: what else changes from round to round; None for a constant cell.
        notes: what is probably in another unit, one line each, as :func:`feddrop.radio.build_cell` found it.

    Example:
        >>> import feddrop
        >>> cell = feddrop.Cell.paper(devices=3, seed=0, deadline_s=8.0)
        >>> channels = cell.draw(1, seed=0)
        >>> feddrop.allocate(cell.problem(channels, parameters=69_656, forward_flops=1_318_560)).share.sum().round(6)
        np.float64(1.0)
    """

    cpu_hz: FloatArray
    tx_power_w: FloatArray
    cpu_constant: FloatArray
    samples: FloatArray
    budget_j: FloatArray
    circuit_j: FloatArray
    downlink_power_w: FloatArray
    bandwidth_hz: float
    deadline_s: float
    fading: Fading
    noise: str = "density"
    noise_w_hz: float = PAPER_NOISE_W_HZ
    downlink_noise_w_hz: float | None = None
    bits_per_parameter: float = 256.0
    flop_per_cycle: FloatArray | float = 16.0
    max_rate: float = 0.9
    least_cpu_hz: FloatArray | float = 0.0
    dynamics: Dynamics | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shape = np.shape(self.cpu_hz)
        if len(shape) != 1 or shape[0] == 0:
            raise ConfigError(f"cpu_hz has shape {list(shape)}; give one value per device.")
        for name in _PER_DEVICE:
            object.__setattr__(self, name, _per_device(name, getattr(self, name), shape))
        for name, limits in _SCALARS.items():
            if (value := getattr(self, name)) is not None or name != "downlink_noise_w_hz":
                object.__setattr__(self, name, _scalar(name, value, limits))
        if problem := next(self.problems(), ""):
            raise ConfigError(problem)

    def problems(self) -> Iterator[str]:
        """Yield one message for each value that is unknown or does not fit the number of devices."""
        yield from Limits(choices=NOISES).problems("noise", self.noise)
        if isinstance(self.fading, MeasuredGains):
            if (have := self.fading.uplink.shape[1]) < self.devices:
                yield f"the gains cover {have} devices, but the cell has {self.devices}; give gains for every device."
        elif isinstance(self.fading, Rician):
            for name in ("path_loss", "kappa"):
                if (size := np.size(getattr(self.fading, name))) not in (1, self.devices):
                    yield f"{name} has {size} values for {self.devices} devices; give one, or one per device."
        if self.dynamics and not 1 <= self.dynamics.min_devices <= self.devices:
            yield f"min_devices is {self.dynamics.min_devices}; it must be between 1 and {self.devices}, the devices."

    @property
    def devices(self) -> int:
        """K."""
        return len(self.cpu_hz)

    @classmethod
    def paper(
        cls,
        devices: int = 10,
        *,
        seed: int,
        samples: npt.ArrayLike = 5000.0,
        bandwidth_hz: float = 10e6,
        deadline_s: float = 8.0,
        budget_j: npt.ArrayLike = np.inf,
        noise: str = "density",
        bits_per_parameter: float = 256.0,
        path_loss: FloatArray | float = 1e-3,
        dynamic: bool = False,
    ) -> Cell:
        """Draw a cell from the paper's table; the arguments set what the table leaves open."""
        drawn = draw_devices(devices, seed=seed)
        return cls(
            cpu_hz=drawn.cpu_hz,
            tx_power_w=drawn.tx_power_w,
            cpu_constant=drawn.cpu_constant,
            samples=np.asarray(samples, dtype=np.float64),
            budget_j=np.asarray(budget_j, dtype=np.float64),
            circuit_j=np.asarray(0.1),
            downlink_power_w=np.asarray(1.0),
            bandwidth_hz=bandwidth_hz,
            deadline_s=deadline_s,
            fading=Rician(path_loss=path_loss),
            noise=noise,
            bits_per_parameter=bits_per_parameter,
            dynamics=Dynamics(min_devices=min(5, devices)) if dynamic else None,
        )

    def draw(self, round: int | Sequence[int], seed: int) -> Channels:  # noqa: A002
        """Draw the conditions of one round or a batch of rounds; they depend on round and seed only."""
        if np.ndim(round):
            drawn = [self.draw(int(one), seed) for one in np.asarray(round)]
            return Channels(**{name: np.stack([getattr(c, name) for c in drawn]) for name in Channels.__slots__})
        return self._conditions(int(np.asarray(round)), seed, "draw")

    @property
    def estimates(self) -> bool:
        """Whether the server plans with estimated gains, which differ from the true ones."""
        return hasattr(self.fading, "estimate")

    def estimate(self, round: int, seed: int) -> Channels:  # noqa: A002
        """Return the conditions of a round as the server estimates them; the true ones unless the channel differs."""
        return self._conditions(round, seed, "estimate" if self.estimates else "draw")

    def _conditions(self, number: int, seed: int, what: str) -> Channels:
        uplink, downlink = gains_of(self.fading, what, self.devices, number, seed)
        cpu_hz, tx_power_w, present = self.cpu_hz, self.tx_power_w, np.ones(self.devices, dtype=np.bool_)
        if self.dynamics is not None:
            few = self.dynamics.min_devices
            count = int(generator(derive(seed, "present", number)).integers(few, self.devices + 1))
            present = permutation(derive(seed, "who", number), self.devices).argsort() < count
            part = generator(derive(seed, "devices", number)).random((self.devices, 2))
            cpu_hz = between(self.dynamics.cpu_hz, part[:, 0])
            tx_power_w = between(self.dynamics.tx_power_w, part[:, 1])
        return Channels(
            uplink=self._effective(uplink, tx_power_w, self.noise_w_hz),
            downlink=self._effective(downlink, self.downlink_power_w, self._noise_at_devices),
            cpu_hz=cpu_hz,
            tx_power_w=tx_power_w,
            present=present,
        )

    def _effective(self, gain: FloatArray, power_w: FloatArray, noise_w_hz: float) -> FloatArray:
        """Return the flat gain with the mean rate of all resources, ``[num_devices]``, from ``[..., resources]``.

        Under subband noise the rate depends on the share, and so does this gain; that of an equal split is used.
        """
        if gain.ndim == 1:
            return gain
        band = {"density": self.bandwidth_hz, "literal": 1.0, "subband": self.bandwidth_hz / self.devices}[self.noise]
        unit = power_w / (noise_w_hz * band)  # signal-to-noise ratio of gain 1
        return np.asarray(np.expm1(np.log1p(gain * unit[:, None]).mean(axis=-1)) / unit)

    @property
    def _noise_at_devices(self) -> float:
        return self.noise_w_hz if self.downlink_noise_w_hz is None else self.downlink_noise_w_hz

    def bits_per_second(self, channels: Channels, share: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return downlink and uplink bits/s at these shares, ``[..., num_devices]`` each (eq. r_downlink, r_k,t)."""
        band = np.asarray(share, dtype=np.float64) * self.bandwidth_hz
        down, up = self.efficiency(channels, share)
        return band * down, band * up

    def efficiency(self, channels: Channels, share: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return downlink and uplink bit/s/Hz at these shares, ``[..., num_devices]`` each."""
        band = np.asarray(share, dtype=np.float64) * self.bandwidth_hz
        down, up = self._signal_to_noise(channels, band if self.noise == "subband" else self.bandwidth_hz)
        return _efficiency(down), _efficiency(up)

    @np.errstate(over="ignore", invalid="ignore")  # the problem refuses infinite values by name
    def problem(
        self,
        channels: Channels,
        *,
        parameters: float | None = None,
        forward_flops: float | None = None,
        push_bits: npt.ArrayLike | None = None,
        pull_bits: npt.ArrayLike | None = None,
        flops: npt.ArrayLike | None = None,
        choose: Collection[str] = (),
    ) -> AnyProblem:
        """Build the allocation problem of one round or a batch of rounds.

        It follows the paper's formula with the number of parameters and the forward FLOPs; or, to bound measured costs,
        uses the values of :func:`feddrop.radio.covering` for frames and FLOPs.

        Args:
            channels: conditions of the round.
            parameters: M_ori, parameters of the full model.
            forward_flops: FLOPs of the full model's forward pass on one sample; training takes three times as many.
            push_bits: bits of the full model's downlink frame, instead of M_ori x Q.
            pull_bits: bits of its uplink frame, instead of M_ori x Q.
            flops: FLOPs to train the full model on all samples of the device, instead of 3 x forward x samples.
            choose: ``"power"``, ``"cpu"`` or both, to be chosen by the allocator, at most as high as in the channels;
                ``least_cpu_hz`` is the lowest clock.
        """
        push = self.model_bits(parameters) if push_bits is None else np.asarray(push_bits, dtype=np.float64)
        pull = self.model_bits(parameters) if pull_bits is None else np.asarray(pull_bits, dtype=np.float64)
        work = self.training_flops(forward_flops) if flops is None else np.asarray(flops, dtype=np.float64)
        held = np.where(channels.present, self.samples, 0.0)
        whole = np.sum(held, axis=-1, keepdims=True)
        rest: dict[str, Any] = {
            "weight": held / np.where(whole > 0, whole, 1.0),
            "deadline_s": np.asarray(self.deadline_s),
            "budget_j": self.budget_j - self.circuit_j,
            "max_rate": np.asarray(self.max_rate),
            "present": None if channels.present.all() else channels.present,
        }
        if choose:
            return self._open(channels, push, pull, work / self.flop_per_cycle, choose, rest)
        compute_s, compute_j = self.work(channels, work)
        rest |= {"compute_s": compute_s, "compute_j": compute_j}
        down, up = self._signal_to_noise(channels, self.bandwidth_hz)
        if self.noise == "subband":
            rest |= {"push_s": push / self.bandwidth_hz, "pull_s": pull / self.bandwidth_hz}
            return SubbandProblem(**rest, snr_down=down, snr_up=up, tx_power_w=channels.tx_power_w)
        pull_s = pull / (self.bandwidth_hz * _efficiency(up))
        push_s = push / (self.bandwidth_hz * _efficiency(down))
        return Problem(**rest, comm_s=push_s + pull_s, upload_j=channels.tx_power_w * pull_s)

    def _open(
        self,
        channels: Channels,
        push: FloatArray,
        pull: FloatArray,
        cycles: FloatArray,
        choose: Collection[str],
        rest: dict[str, Any],
    ) -> PowerProblem:
        """Return the problem that leaves power or clock open; the other one is fixed at its highest value."""
        for name in choose:
            one_of("what to choose", name, ("power", "cpu"))
        if hasattr(self.fading, "work"):
            raise ConfigError(
                "the channel has its own work(cell, channels), so power and clock cannot be chosen. Remove one of them."
            )
        down, up = self._signal_to_noise(channels, self.bandwidth_hz)
        rest |= {
            "download_s": push / (self.bandwidth_hz * _efficiency(down)),
            "cycles": cycles,
            "cpu_hz": channels.cpu_hz,
            "cpu_constant": self.cpu_constant,
            "upload_bits": pull,
            "bandwidth_hz": np.asarray(self.bandwidth_hz),
            "gain_to_noise": up / channels.tx_power_w,
            "tx_power_w": channels.tx_power_w,
            "least_cpu_hz": np.minimum(self.least_cpu_hz, channels.cpu_hz) if "cpu" in choose else channels.cpu_hz,
            "least_tx_power_w": np.asarray(0.0) if "power" in choose else channels.tx_power_w,
        }
        return SubbandPowerProblem(**rest, download_snr=down) if self.noise == "subband" else PowerProblem(**rest)

    def work(self, channels: Channels, flops: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return seconds and joules to compute so many FLOPs: by clock and Ω, or as the channel's ``work`` says."""
        if hasattr(self.fading, "work"):
            per_flop = tuple(np.asarray(part, dtype=np.float64) for part in self.fading.work(self, channels))
            for what, part in zip(("seconds", "joules"), per_flop, strict=True):
                refuse(f"{what} per FLOP", part, np.isfinite(part) & (part >= 0), "finite, not negative", part.shape)
            return flops * per_flop[0], flops * per_flop[1]
        cycles = flops / self.flop_per_cycle
        return cycles / channels.cpu_hz, self.cpu_constant * cycles * channels.cpu_hz**2

    def training_flops(self, forward_flops: float | None) -> FloatArray:
        """Return FLOPs to train the full model on a device's samples, ``[num_devices]``: backward is twice forward."""
        return 3.0 * _scalar("forward_flops", forward_flops, _POSITIVE) * self.samples

    def model_bits(self, parameters: float | None) -> FloatArray:
        """Return the bits of the full model by the paper's formula, M_ori x Q, a scalar."""
        return np.asarray(_scalar("parameters", parameters, _POSITIVE) * self.bits_per_parameter)

    def _signal_to_noise(self, channels: Channels, band_hz: FloatArray | float) -> tuple[FloatArray, FloatArray]:
        band = 1.0 if self.noise == "literal" else np.asarray(band_hz)
        with np.errstate(divide="ignore", over="ignore"):  # a tiny band: infinite, and refused as infeasible
            down = channels.downlink * self.downlink_power_w / (self._noise_at_devices * band)
            return down, channels.uplink * channels.tx_power_w / (self.noise_w_hz * band)


_PER_DEVICE = (
    *("cpu_hz", "tx_power_w", "cpu_constant", "samples", "budget_j", "circuit_j", "downlink_power_w"),
    *("flop_per_cycle", "least_cpu_hz"),
)
_MAY_BE_ZERO = ("samples", "circuit_j", "least_cpu_hz")
_POSITIVE = Limits(gt=0)
_SCALARS = {"max_rate": Limits(ge=0, lt=1)} | dict.fromkeys(
    ("bandwidth_hz", "deadline_s", "noise_w_hz", "downlink_noise_w_hz", "bits_per_parameter"), _POSITIVE
)


def _per_device(name: str, value: Any, shape: tuple[int, ...]) -> FloatArray:
    """Return valid numbers, one per device."""
    try:
        array = np.broadcast_to(np.asarray(value, dtype=np.float64), shape)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name} is {shortened(value)}; give one number, or {shape[0]}, one per device.") from None
    good, rule = (array >= 0, "not negative") if name in _MAY_BE_ZERO else (array > 0, "positive")
    if name != "budget_j":
        good, rule = good & (array < np.inf), f"finite and {rule}"
    refuse(name, array, good, rule, shape)
    return array


def _scalar(name: str, value: float | None, limits: Limits) -> float:
    """Return a valid number."""
    number: float = convert(value, float, name)
    if problem := next(limits.problems(name, number), ""):
        raise ConfigError(problem)
    return number


def _efficiency(signal_to_noise: FloatArray) -> FloatArray:
    """Return bits/s/Hz, accurate for weak signals, too."""
    return np.log1p(signal_to_noise) / _LN2
