"""``[radio]``: a cell, described by plain numbers and words."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from feddrop.config.fields import Section, convert, declared, setting
from feddrop.config.presets import OF_PRESET, PRESETS, SITE, SITES, resolve
from feddrop.errors import ConfigError

SCHEMES = ("exact", "primal-dual", "equal", "random", "none", "fixed")
POLICIES = ("error", "leave-out", "stretch")
CONTROLS = ("rate", "share", "power", "cpu")
NOISES = ("density", "literal", "subband")
SIGHTS = ("drawn", "always", "never")
DEVICE_KINDS = (
    *("phone-low", "phone-mid", "phone-high", "pi-4", "pi-5", "jetson-nano", "jetson-orin-nano", "esp32", "nordic-m33"),
    *("phone", "board", "microcontroller"),
)
_PACED = ("exact", "equal", "random")
"""Schemes that choose rates, and so the power and clock that go with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Radio(Section):
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

    section: ClassVar[str] = "radio"

    preset: str = setting("paper", choices=tuple(PRESETS))
    scheme: str = setting("exact", choices=SCHEMES)
    control: tuple[str, ...] = setting(("rate", "share"), choices=CONTROLS)
    policy: str = setting(OF_PRESET, choices=POLICIES)
    bandwidth_hz: float = setting(OF_PRESET, gt=0)
    deadline_s: float = setting(OF_PRESET, gt=0)
    energy_budget_j: float = setting(OF_PRESET, ge=0, infinite=True)
    circuit_j: float = setting(0.1, ge=0)
    downlink_power_w: float = setting(OF_PRESET, gt=0)
    base_power_w: float = setting(OF_PRESET, ge=0)
    noise: str = setting(OF_PRESET, choices=NOISES)
    noise_w_hz: float = setting(OF_PRESET, gt=0)
    noise_figure_db: tuple[float, ...] = setting(OF_PRESET, ge=0, le=100)
    costs: str = setting("measured", choices=("measured", "formula"))
    bits_per_parameter: float = setting(256.0, gt=0)
    flop_per_cycle: float = setting(OF_PRESET, ge=0)
    max_rate: float = setting(0.9, ge=0, lt=1)
    kappa: float | str = setting(OF_PRESET, ge=0, choices=("drawn",))
    path_loss: float | tuple[float, ...] = setting(1e-3, gt=0)
    distances_m: tuple[float, ...] = setting((), gt=0)
    path_loss_exponent: float = setting(3.0)
    reference_m: float = setting(1.0, gt=0)
    propagation: str = setting(OF_PRESET, choices=("", *SITES))
    carrier_hz: float = setting(OF_PRESET, ge=0)
    radius_m: float = setting(OF_PRESET, ge=0)
    min_distance_m: float = setting(OF_PRESET, ge=0)
    base_height_m: float = setting(OF_PRESET, ge=0)
    device_height_m: float = setting(OF_PRESET, ge=0)
    antenna_gain_db: float = setting(OF_PRESET)
    sight: str = setting("drawn", choices=SIGHTS)
    shadowing: bool = setting(True)
    indoor_share: float = setting(OF_PRESET, ge=0, le=1)
    gains_csv: str = setting("", file=True)
    gains_array: str = setting("", file=True)
    devices_csv: str = setting("", file=True)
    devices: str | tuple[str, ...] = setting(OF_PRESET, choices=("paper", *DEVICE_KINDS))
    cpu_hz: tuple[float, ...] = setting(OF_PRESET, gt=0)
    tx_power_w: tuple[float, ...] = setting(OF_PRESET, gt=0)
    cpu_constant: tuple[float, ...] = setting(OF_PRESET, gt=0)
    dynamic: bool = setting(False)
    min_devices: int = setting(5, ge=1, only_with={"dynamic": (True,)}, strict=False)

    def __post_init__(self) -> None:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        for item, hint in declared(type(self)):
            if values[item.name] is not OF_PRESET:
                values[item.name] = convert(values[item.name], hint, f"radio.{item.name}")
                item.metadata["limits"].check(f"radio.{item.name}", values[item.name])
        for name, value in resolve(values).items():
            object.__setattr__(self, name, value)
        Section.__post_init__(self)

    def check(self) -> None:
        """Control, ranges, sources of gains and the site fit together."""
        self._check_control()
        for name in ("cpu_hz", "tx_power_w", "cpu_constant"):
            ends = getattr(self, name)
            if not (self.kinds and not ends) and (len(ends) != 2 or ends[0] > ends[1]):
                raise ConfigError(f"radio.{name} is {list(ends)}; it must be [lowest, highest], both positive.")
        self._check_sources()
        self._check_site()

    def notices(self) -> list[str]:
        """Return one line for every setting that was changed and has no effect."""
        near = "" if self.distances_m or self.devices_csv else "it is for devices with distances, radio.distances_m"
        source = next((name for name in ("gains_csv", "gains_array") if getattr(self, name)), "")
        measured = f"radio.{source} has the gains" if source else ""
        idle = {"path_loss_exponent": near, "reference_m": near, "kappa": measured, "path_loss": measured}
        default = Radio()
        return Section.notices(self) + [
            f"radio.{name} has no effect: {why}."
            for name, why in idle.items()
            if why and getattr(self, name) != getattr(default, name)
        ]

    def _check_control(self) -> None:
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
    def band_scheme(self) -> str:
        """The allocation scheme in force: the scheme, or an equal split if shares are not chosen."""
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
    def kinds(self) -> tuple[str, ...]:
        """The kinds of devices that were named; none for the paper's."""
        if self.devices == "paper":
            return ()
        return (self.devices,) if isinstance(self.devices, str) else tuple(self.devices)
