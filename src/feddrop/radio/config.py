"""The ``[radio]`` table of a configuration: plain numbers and words that describe a cell."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feddrop.allocation import METHODS, POLICIES
from feddrop.errors import ConfigError, FeddropWarning, one_of
from feddrop.radio.cell import NOISES, PAPER_NOISE_W_HZ, Cell
from feddrop.radio.checks import plain, positive
from feddrop.radio.devices import (
    PAPER_CPU_CONSTANT,
    PAPER_CPU_HZ,
    PAPER_TX_POWER_W,
    Drawn,
    Dynamics,
    Range,
    draw_devices,
    draw_kinds,
    kind_names,
    read_devices,
)
from feddrop.radio.fading import Fading, Rician, path_loss
from feddrop.radio.gains import Measured, read_arrays, read_gains
from feddrop.radio.places import SIGHTS, Place, noise_density
from feddrop.radio.presets import OF_PRESET, SITE, resolve

CONTROLS = ("rate", "share", "power", "cpu")
_PACED = ("exact", "equal", "random")
"""Schemes that choose rates, and so the power and clock that go with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RadioConfig:
    """A cell and how its band is shared; the defaults are the paper's table, or those of another preset.

    Attributes:
        preset: where the values come from that are not given: ``"paper"``, ``"urban-macro"``, ``"urban-micro"`` or
            ``"indoor"``.
        scheme: method of allocation: ``"exact"``, ``"primal-dual"``, ``"equal"``, ``"random"``, ``"none"`` or
            ``"fixed"``.
        control: what is chosen in every round: ``"rate"``, and any of ``"share"``, ``"power"`` and ``"cpu"``. Without
            share the band is split equally; without power or cpu every device is at its highest.
        policy: what to do in an infeasible round: ``"error"``, ``"leave-out"`` or ``"stretch"``.
        bandwidth_hz: band B that all devices share, in Hz.
        deadline_s: T0, seconds of a round: push, compute and pull.
        energy_budget_j: E0, joules of one device and round, circuit included; inf for no budget, 0 for that of
            its kind.
        circuit_j: ξ, joules that a device spends in a round on receiving and idling.
        downlink_power_w: power with which the server sends to a device.
        base_power_w: power of the server in all, split evenly over the devices, in place of downlink_power_w; 0 for
            none.
        noise: its variance: ``"density"`` is noise_w_hz times B, ``"literal"`` the number itself, ``"subband"``
            noise_w_hz times the device's part of B.
        noise_w_hz: noise density, or the variance in W under ``"literal"``.
        noise_figure_db: noise figures of base station and device, above -174 dBm/Hz, in place of noise_w_hz; empty for
            none.
        costs: what rates are decided by and latency and energy are reported from: ``"measured"`` frames and counted
            FLOPs, or the paper's ``"formula"``, (1-γ) M_ori Q bits. The other is reported beside it.
        bits_per_parameter: Q of the paper's formula, which decides where costs are ``"formula"``; measured frames have
            their own size.
        flop_per_cycle: floating-point operations a CPU does in a cycle; 0 for those of its kind.
        max_rate: θ, the highest rate that a device may be given.
        kappa: κ of the Rician fading; with a model of propagation, that of devices with a line of sight, or
            ``"drawn"`` as the model has it.
        path_loss: mean power gain, for all devices or one a device; with distances, the gain at ``reference_m``.
        distances_m: distance of every device, from which path loss follows; empty for none.
        path_loss_exponent: of the distance.
        reference_m: distance at which ``path_loss`` holds.
        propagation: model of TR 38.901 that path loss comes from: ``"uma"``, ``"umi"``, ``"inh-mixed"``, ``"inh-open"``
            or ``"rma"``; empty for ``path_loss``.
        carrier_hz: carrier frequency, for propagation.
        radius_m: of the disc that devices are dropped into, for propagation.
        min_distance_m: closest a device is dropped.
        base_height_m: height of the base station.
        device_height_m: height of the devices.
        antenna_gain_db: antenna gains of base station and device together, dBi.
        sight: whether a line of sight is ``"drawn"``, or there ``"always"`` or ``"never"``.
        shadowing: whether shadowing is drawn, once for a run.
        indoor_share: probability that a device is in a building, for ``"uma"`` and ``"umi"``.
        gains_csv: table of measured gains instead of fading; see :func:`feddrop.radio.read_gains`.
        gains_array: the same as a ``.npy`` or ``.npz`` file; see :func:`feddrop.radio.read_arrays`.
        devices_csv: table with a row a device and any of the columns cpu_hz, tx_power_w, cpu_constant, budget_j,
            circuit_j and distance_m; what it lacks is drawn or taken from here. A column device says whose row it is;
            without it they are in order.
        devices: what devices are: ``"paper"``, or a kind or several to draw from: ``"phone"``, ``"board"``,
            ``"microcontroller"``, ``"phone-low"``, ``"pi-4"``, ...
        cpu_hz: range of CPU frequencies to draw from, as ``[lowest, highest]``; empty for that of the kind.
        tx_power_w: range of transmit powers to draw from, likewise.
        cpu_constant: range of CPU constants to draw from, likewise.
        dynamic: whether devices come and go, and CPU frequency and power change, from round to round.
        min_devices: devices that are present at least, in a dynamic cell.
    """

    preset: str = "paper"
    scheme: str = "exact"
    control: tuple[str, ...] = ("rate", "share")
    policy: str = OF_PRESET
    bandwidth_hz: float = OF_PRESET
    deadline_s: float = OF_PRESET
    energy_budget_j: float = OF_PRESET
    circuit_j: float = 0.1
    downlink_power_w: float = OF_PRESET
    base_power_w: float = OF_PRESET
    noise: str = OF_PRESET
    noise_w_hz: float = OF_PRESET
    noise_figure_db: tuple[float, ...] = OF_PRESET
    costs: str = "measured"
    bits_per_parameter: float = 256.0
    flop_per_cycle: float = OF_PRESET
    max_rate: float = 0.9
    kappa: float | str = OF_PRESET
    path_loss: float | tuple[float, ...] = 1e-3
    distances_m: tuple[float, ...] = ()
    path_loss_exponent: float = 3.0
    reference_m: float = 1.0
    propagation: str = OF_PRESET
    carrier_hz: float = OF_PRESET
    radius_m: float = OF_PRESET
    min_distance_m: float = OF_PRESET
    base_height_m: float = OF_PRESET
    device_height_m: float = OF_PRESET
    antenna_gain_db: float = OF_PRESET
    sight: str = "drawn"
    shadowing: bool = True
    indoor_share: float = OF_PRESET
    gains_csv: str = ""
    gains_array: str = ""
    devices_csv: str = ""
    devices: str | tuple[str, ...] = OF_PRESET
    cpu_hz: tuple[float, ...] = OF_PRESET
    tx_power_w: tuple[float, ...] = OF_PRESET
    cpu_constant: tuple[float, ...] = OF_PRESET
    dynamic: bool = False
    min_devices: int = 5

    def __post_init__(self) -> None:
        for name, value in resolve({item.name: getattr(self, item.name) for item in fields(self)}).items():
            object.__setattr__(self, name, value)
        one_of("radio.scheme", self.scheme, METHODS)
        one_of("radio.policy", self.policy, POLICIES)
        self._check_control()
        one_of("radio.noise", self.noise, NOISES)
        one_of("radio.costs", self.costs, ("measured", "formula"))
        one_of("radio.sight", self.sight, SIGHTS)
        for name in ("bandwidth_hz", "deadline_s", "downlink_power_w", "noise_w_hz", "bits_per_parameter"):
            positive(f"radio.{name}", getattr(self, name))
        if not 0 <= plain("radio.max_rate", self.max_rate) < 1:
            raise ConfigError(f"radio.max_rate is {self.max_rate:g}; it must be at least 0 and below 1.")
        kinds = kind_names(self._kinds)
        for name in ("cpu_hz", "tx_power_w", "cpu_constant"):
            ends = getattr(self, name)
            if not (kinds and not ends) and (len(ends) != 2 or not 0 < ends[0] <= ends[1] < np.inf):
                raise ConfigError(f"radio.{name} is {list(ends)}; it must be [lowest, highest], both positive.")
        self._check_sources()
        self._check_site()

    def without_effect(self) -> list[str]:
        """Say which settings differ from their defaults and change nothing, a line each."""
        near = not self.distances_m and not self.devices_csv
        measured = next((name for name in ("gains_csv", "gains_array") if getattr(self, name)), "")
        idle = {
            "min_devices": "" if self.dynamic else "it is for radio.dynamic = true",
            "path_loss_exponent": "it is for devices with distances, radio.distances_m" if near else "",
            "reference_m": "it is for devices with distances, radio.distances_m" if near else "",
            "kappa": f"radio.{measured} has the gains" if measured else "",
            "path_loss": f"radio.{measured} has the gains" if measured else "",
        }
        default = RadioConfig()
        return [
            f"radio.{name} has no effect: {why}."
            for name, why in idle.items()
            if why and getattr(self, name) != getattr(default, name)
        ]

    def _check_control(self) -> None:
        for name in self.control:
            one_of("an entry of radio.control", name, CONTROLS)
        if "rate" not in self.control or len(set(self.control)) < len(self.control):
            raise ConfigError(
                f'radio.control is {list(self.control)}; it must have "rate", and each of '
                f"{', '.join(CONTROLS[1:])} at most once."
            )
        if self.chooses and self.scheme not in _PACED:
            raise ConfigError(
                f"radio.control has {' and '.join(self.chooses)}, which the scheme {self.scheme!r} does not choose. "
                f"Leave them out, or set radio.scheme to one of {', '.join(_PACED)}."
            )
        if "share" not in self.control and self.scheme not in ("exact", "equal"):
            raise ConfigError(
                f'radio.control is without "share", which splits the band equally, but radio.scheme is '
                f'{self.scheme!r}. Add "share", or set radio.scheme = "exact".'
            )

    @property
    def chooses(self) -> tuple[str, ...]:
        """What the allocator chooses besides rates and shares: ``"power"``, ``"cpu"``, both or nothing."""
        return tuple(name for name in ("power", "cpu") if name in self.control)

    @property
    def method(self) -> str:
        """The method of allocation: the scheme, or an equal split where shares are not chosen."""
        return self.scheme if "share" in self.control else "equal"

    def _check_sources(self) -> None:
        """Gains come from one place."""
        given = [name for name in ("gains_csv", "gains_array", "distances_m") if getattr(self, name)]
        if self.propagation and given != ["distances_m"]:
            given.append("propagation")
        if len(given) > 1:
            raise ConfigError(f"radio.{given[0]} and radio.{given[1]} are both given; gains come from one of them.")

    def _check_site(self) -> None:
        """What has no effect is an error: keys of a site without a model of propagation, and path loss beside one."""
        if self.propagation:
            for name, default in (("path_loss", 1e-3), ("path_loss_exponent", 3.0), ("reference_m", 1.0)):
                if getattr(self, name) != default:
                    raise ConfigError(
                        f"radio.{name} is {getattr(self, name)}, which has no effect: radio.propagation is "
                        f"{self.propagation!r}, and path loss comes from it. Remove it, or set radio.propagation = ''."
                    )
            if self.distances_m and (self.radius_m or self.min_distance_m):
                raise ConfigError("radio.distances_m says where devices are; leave out radius_m and min_distance_m.")
            self.place()
            return
        defaults: dict[str, Any] = dict.fromkeys((*SITE, "indoor_share"), 0.0) | {"sight": "drawn", "shadowing": True}
        for name in (name for name, default in defaults.items() if getattr(self, name) != default):
            raise ConfigError(
                f"radio.{name} is {getattr(self, name)!r}, which has no effect without a model of propagation. Remove "
                "it, or set radio.propagation = 'umi', say."
            )
        if isinstance(self.kappa, str):
            raise ConfigError(f"radio.kappa is {self.kappa!r}; without radio.propagation it must be a number.")

    @property
    def _kinds(self) -> tuple[str, ...]:
        """The kinds of devices that were named; none for the paper's."""
        if self.devices == "paper":
            return ()
        return (self.devices,) if isinstance(self.devices, str) else tuple(self.devices)

    def place(self) -> Place | None:
        """The site that devices are dropped around; None without a model of propagation."""
        if not self.propagation:
            return None
        if isinstance(self.kappa, str):
            one_of("radio.kappa", self.kappa, ("drawn",))
        return Place(
            model=self.propagation,
            carrier_hz=self.carrier_hz,
            radius_m=self.radius_m,
            min_distance_m=self.min_distance_m,
            base_height_m=self.base_height_m,
            device_height_m=self.device_height_m,
            antenna_gain_db=self.antenna_gain_db,
            sight=self.sight,
            shadowing=self.shadowing,
            indoor_share=self.indoor_share,
            kappa=None if isinstance(self.kappa, str) else self.kappa,
        )

    def cell(
        self,
        devices: int,
        samples: npt.ArrayLike,
        seed: int,
        *,
        folder: str | Path = ".",
        gains: Measured | None = None,
    ) -> Cell:
        """Build the cell.

        Args:
            devices: K.
            samples: samples that a device trains on in a round, a scalar or ``[num_devices]``.
            seed: root seed, from which the devices are drawn.
            folder: where the tables are, if their paths are relative.
            gains: measured gains, in place of those that the configuration names.
        """
        table = read_devices(Path(folder) / self.devices_csv, devices) if self.devices_csv else {}
        self._check_table(table)
        drawn = self._draw(devices, seed)
        distances = table.get("distance_m", np.asarray(self.distances_m))
        fading = self._fading(distances, devices, seed, Path(folder), gains)
        idle = fading.idle(devices) if isinstance(fading, Measured) else ""
        for note in filter(None, (self.noise_note(bool(distances.size) or gains is not None), idle)):
            warnings.warn(note, FeddropWarning, stacklevel=2)
        changing = Dynamics(min_devices=self.min_devices, cpu_hz=drawn.cpu_range, tx_power_w=drawn.power_range)
        power = self.base_power_w / devices if self.base_power_w else self.downlink_power_w
        return Cell(
            cpu_hz=table.get("cpu_hz", drawn.cpu_hz),
            tx_power_w=table.get("tx_power_w", drawn.tx_power_w),
            cpu_constant=table.get("cpu_constant", drawn.cpu_constant),
            budget_j=table.get("budget_j", _own(self.energy_budget_j, drawn.budget_j)),
            circuit_j=table.get("circuit_j", np.asarray(self.circuit_j)),
            samples=np.asarray(samples, dtype=np.float64),
            downlink_power_w=np.asarray(power),
            bandwidth_hz=self.bandwidth_hz,
            deadline_s=self.deadline_s,
            fading=fading,
            noise=self.noise,
            noise_w_hz=self.noise_w_hz,
            downlink_noise_w_hz=noise_density(self.noise_figure_db[1]) if self.noise_figure_db else None,
            bits_per_parameter=self.bits_per_parameter,
            flop_per_cycle=_own(self.flop_per_cycle, drawn.flop_per_cycle),
            max_rate=self.max_rate,
            least_cpu_hz=drawn.least_cpu_hz,
            dynamics=changing if self.dynamic else None,
        )

    def _check_table(self, table: Mapping[str, object]) -> None:
        """Refuse columns of the devices' table that would have no effect, or leave a setting without one."""
        anew = [name for name in ("cpu_hz", "tx_power_w") if name in table]
        if self.dynamic and anew:
            raise ConfigError(
                f"radio.devices_csv gives {' and '.join(anew)}, which radio.dynamic = true draws anew in every round. "
                "Leave the columns out and give ranges, or set radio.dynamic = false."
            )
        if self.distances_m and "distance_m" in table:
            raise ConfigError(
                "radio.devices_csv has a column distance_m, and radio.distances_m is given too; leave out one of them."
            )

    def _draw(self, devices: int, seed: int) -> Drawn:
        """Draw the devices: from the kinds that were named, and from the ranges that were given."""
        paper = {"cpu_hz": PAPER_CPU_HZ, "tx_power_w": PAPER_TX_POWER_W, "cpu_constant": PAPER_CPU_CONSTANT}
        ranges: dict[str, Range] = {name: getattr(self, name) or ends for name, ends in paper.items()}
        drawn = draw_devices(devices, seed=seed, **ranges)
        if not self._kinds:
            return drawn
        kinds = draw_kinds(self._kinds, devices, seed=seed)
        own: dict[str, Any] = {name: getattr(drawn, name) for name in paper if getattr(self, name)}
        own |= {"cpu_range": drawn.cpu_range} if self.cpu_hz else {}
        own |= {"power_range": drawn.power_range} if self.tx_power_w else {}
        return kinds._replace(**own)

    def noise_note(self, real: bool = False) -> str:
        """One line for whoever has gains of the real world beside the noise of the paper; empty for others.

        Args:
            real: whether gains, or the distances of devices, come from elsewhere.
        """
        real = real or bool(self.gains_csv or self.gains_array or self.distances_m)
        if not real or self.noise == "literal" or self.noise_w_hz != PAPER_NOISE_W_HZ:
            return ""
        return (
            "radio.noise_w_hz is the paper's 1e-13 W/Hz, 74 dB above thermal noise (4e-21), and the gains are your "
            "own: for a receiver with a noise figure of 5 dB write radio.noise_w_hz = 1.26e-20."
        )

    def _fading(
        self, distances_m: npt.NDArray[np.float64], devices: int, seed: int, folder: Path, gains: Measured | None
    ) -> Fading:
        measured = gains is not None or bool(self.gains_csv or self.gains_array)
        if measured and distances_m.size:
            raise ConfigError("the gains are measured already; leave out the distances of devices.")
        if gains is not None:
            for name in ("gains_csv", "gains_array", "propagation"):
                if getattr(self, name):
                    raise ConfigError(f"gains are given, and radio.{name} too; gains come from one of them.")
            return gains
        if self.gains_csv:
            return read_gains(folder / self.gains_csv)
        if self.gains_array:
            return read_arrays(folder / self.gains_array)
        if place := self.place():
            return place.drop(devices, seed, distances_m if distances_m.size else None).fading
        if isinstance(self.kappa, str):
            raise ConfigError(f"radio.kappa is {self.kappa!r}; without radio.propagation it must be a number.")
        if distances_m.size == 0:
            return Rician(kappa=self.kappa, path_loss=np.asarray(self.path_loss))
        if isinstance(self.path_loss, tuple):
            raise ConfigError("radio.path_loss is a list; with distances it is one number, the gain at reference_m.")
        loss = path_loss(
            distances_m,
            exponent=self.path_loss_exponent,
            reference_m=self.reference_m,
            at_reference=self.path_loss,
        )
        return Rician(kappa=self.kappa, path_loss=loss)


def _own(given: float, of_kind: npt.NDArray[np.float64] | None) -> Any:
    """Return what was given, or where that is 0 what the kinds of devices have."""
    return of_kind if of_kind is not None and given == 0.0 else np.asarray(given)
