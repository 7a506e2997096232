"""``[radio]``: a cell and how its band is allocated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from feddrop.config.fields import FROM_PRESET, Settings, setting
from feddrop.config.presets import PRESETS, SITE, SITES, chosen_by_user, contradictions, resolve
from feddrop.errors import shortened

SCHEME_FUNCTIONS = ("max-min", "proportional-fair", "subcarriers", "battery", "time-budget")
"""Schemes that are functions, as a user's own; see :mod:`feddrop.schemes`."""
CUSTOM = "custom"
"""Stands for an object that was passed in Python and cannot be named."""
SCHEMES = ("exact", "primal-dual", "equal", "random", "common", "fixed", "no-dropout", "ideal", *SCHEME_FUNCTIONS)
CHANNELS = ("", "imperfect-csi", "gauss-markov")
OUTCOMES = ("late", "none", "packet-errors")
IDEAL = "ideal"
IGNORES_BAND = "ideal: ignores the band"
"""Marks the results of the scheme ``"ideal"``."""
WITHOUT_DROPOUT = ("no-dropout", IDEAL)
GIVEN_RATES = ("fixed", *WITHOUT_DROPOUT)
"""Schemes whose rates do not depend on the cell."""
IMPORTANCE = "importance"
OBJECTIVES = ("inverse", "inverse-squared", "linear", IMPORTANCE, "importance-normal")
POLICIES = ("error", "leave-out", "stretch")
CONTROLS = ("rate", "share", "power", "cpu")
COSTS = ("measured", "formula")
NOISES = ("density", "literal", "subband")
SIGHTS = ("drawn", "always", "never")
DEVICE_KINDS = (
    *("phone-low", "phone-mid", "phone-high", "pi-4", "pi-5", "jetson-nano", "jetson-orin-nano", "esp32", "nordic-m33"),
    *("phone", "board", "microcontroller"),
)
Arguments = Mapping[str, int | float | str | bool | tuple[float, ...]]
"""Keyword arguments of a function that is named in a setting."""
PACED = ("exact", "equal", "random")
"""Schemes that can choose power and clock in addition to rates."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Radio(Settings):
    """A cell and how its band is allocated; the defaults are the paper's values, or those of another preset.

    Attributes:
        preset: a named cell, which sets all values that are not given.
        scheme: the scheme that allocates rates and shares.
        scheme_settings: keyword arguments of a scheme that is a function, such as ``{ total_j = 50.0 }``.
        objective: what ``"exact"`` minimises, over the kept shares s = 1-γ: ``"inverse"`` Σ w/s (the paper),
            ``"inverse-squared"`` Σ w²/s, ``"linear"`` Σ w(1-s) (adaptive pruning), ``"importance"`` Σ w V(s), where the
            variance V of importance draws is computed from the network in every round, ``"importance-normal"`` the same
            with V of normally distributed weights, which needs no network.
        channel: the model that draws the gains and the server's estimates of them; empty for the fading of this
            section.
        channel_settings: keyword arguments of the channel.
        outcome: which updates are lost on the way: ``"late"`` loses those that miss the deadline over the true channel
            (none under a virtual clock); ``"none"`` loses no update.
        outcome_settings: keyword arguments of the outcome.
        absent_cost: for ``"exact"``: the cost of leaving out a device, per unit of its weight in the objective. A
            device is left out if its φ plus the price of its band exceeds this cost; ``policy`` does not apply. 0
            leaves out no device.
        control: what the scheme chooses in every round: ``"rate"``, and any of ``"share"``, ``"power"`` and ``"cpu"``.
            Without share, the band is split equally; without power or cpu, devices use their maximum.
        policy: what to do in an infeasible round: raise an error, leave out the fewest devices or stretch the deadline.
        bandwidth_hz: bandwidth B that all devices share, in Hz.
        deadline_s: deadline T0 of a round (push, compute and pull), in seconds.
        energy_budget_j: energy budget E0 per device per round, circuit included, in J; inf for no budget, 0 for the
            budget of the device kind.
        circuit_j: energy ξ that a device spends per round on receiving and idling, in J.
        downlink_power_w: power with which the server transmits to each device, in W.
        base_power_w: total transmit power of the server in W, split evenly over the devices; replaces
            ``downlink_power_w`` unless 0.
        noise: noise variance: ``"density"`` is noise_w_hz times B, ``"literal"`` is the number itself, ``"subband"`` is
            noise_w_hz times the device's share of B, the default if gains, distances, propagation or a noise figure are
            given.
        noise_w_hz: noise density in W/Hz; with ``"literal"``, the variance in W.
        noise_figure_db: noise figures of the base station and of a device in dB, relative to -174 dBm/Hz; they replace
            ``noise_w_hz``. Not with ``"literal"``.
        costs: the costs from which rates are chosen, and latency and energy computed: ``"measured"`` frames and counted
            FLOPs, or the paper's ``"formula"``, (1-γ) M_ori Q bits. The other costs are reported too.
        bits_per_parameter: Q of the paper's formula; measured frames have their own size.
        flop_per_cycle: floating-point operations per CPU cycle; 0 for those of the device kind.
        max_rate: θ, the largest rate that a device may get.
        kappa: κ of the Rician fading; 0 is Rayleigh. With propagation, the κ of devices with a line of sight, or
            ``"drawn"`` per device according to the model; other devices have Rayleigh fading.
        path_loss: mean power gain, one number or one per device; with distances, the gain at ``reference_m``.
        distances_m: distance of each device in m, which determines its path loss.
        path_loss_exponent: path loss exponent, for distances.
        reference_m: distance at which ``path_loss`` holds, in m.
        propagation: propagation model of TR 38.901, with devices placed at random; empty to use ``path_loss``.
        carrier_hz: carrier frequency in Hz; 3.5e9 by default with propagation. This setting and the next eight need
            propagation.
        radius_m: radius of the disc in which devices are placed, in m; 250, 100, 25 and 866 for uma, umi, inh and rma.
        min_distance_m: smallest distance from the base station in m; 35, 10, 0 and 35 for uma, umi, inh and rma.
        base_height_m: height of the base station in m; 25, 10, 3 and 35 for uma, umi, inh and rma.
        device_height_m: height of the devices in m; 1.5, or 1 for inh.
        antenna_gain_db: antenna gains of base station and device together in dBi; 8 by default with propagation.
        sight: whether a line of sight is ``"drawn"`` per device, or exists ``"always"`` or ``"never"``.
        shadowing: whether shadowing is drawn, once per run.
        indoor_share: probability that a device is inside a building, for ``"uma"`` and ``"umi"``.
        gains_csv: a ``.csv`` file of measured gains that replace fading, with the columns round (from 1), device (from
            0), uplink and downlink, or uplink_db and downlink_db. Also set the noise.
        gains_array: a ``.npy`` or ``.npz`` file of measured gains: an array ``[rounds, devices]``, or the output of
            Sionna.
        devices_csv: a ``.csv`` file with one row per device and any of the columns cpu_hz, tx_power_w, cpu_constant,
            budget_j, circuit_j and distance_m; other values are drawn or taken from this section. Rows are in order of
            the devices unless there is a column device (from 0).
        devices: the kind of each device: ``"paper"`` draws its values from the three ranges below; a kind sets them,
            and a list of kinds draws one per device.
        cpu_hz: range ``[lowest, highest]`` of CPU frequencies f to draw from, in Hz; empty for the device kind's.
        tx_power_w: range of transmit powers P to draw from, in W; empty for the device kind's.
        cpu_constant: range of CPU constants Ω to draw from, where computing takes Ω f³ watts; empty for the device
            kind's.
        dynamic: whether every round draws which devices are present, and their CPU frequencies and powers.
        min_devices: smallest number of devices present in a dynamic cell.

    Example:
        >>> import feddrop
        >>> feddrop.Radio(preset="indoor", max_rate=0.8)
        Radio(preset='indoor', max_rate=0.8)
    """

    section: ClassVar[str] = "radio"

    preset: str = setting("paper", choices=tuple(PRESETS))
    scheme: str = setting("exact", choices=(*SCHEMES, CUSTOM), custom=True)
    scheme_settings: Arguments = setting({})
    objective: str = setting("inverse", choices=OBJECTIVES, custom=True, only_with={"scheme": ("exact",)})
    channel: str = setting("", choices=(*CHANNELS, CUSTOM), custom=True)
    channel_settings: Arguments = setting({})
    outcome: str = setting("late", choices=(*OUTCOMES, CUSTOM), custom=True)
    outcome_settings: Arguments = setting({})
    absent_cost: float = setting(0.0, ge=0, only_with={"scheme": ("exact",)})
    control: tuple[str, ...] = setting(("rate", "share"), choices=CONTROLS)
    policy: str = setting(FROM_PRESET, choices=POLICIES)
    bandwidth_hz: float = setting(FROM_PRESET, gt=0)
    deadline_s: float = setting(FROM_PRESET, gt=0)
    energy_budget_j: float = setting(FROM_PRESET, ge=0, infinite=True)
    circuit_j: float = setting(0.1, ge=0)
    downlink_power_w: float = setting(FROM_PRESET, gt=0)
    base_power_w: float = setting(FROM_PRESET, ge=0)
    noise: str = setting(FROM_PRESET, choices=NOISES)
    noise_w_hz: float = setting(FROM_PRESET, gt=0)
    noise_figure_db: tuple[float, ...] = setting(FROM_PRESET, ge=0, le=100)
    costs: str = setting("measured", choices=COSTS)
    bits_per_parameter: float = setting(256.0, gt=0)
    flop_per_cycle: float = setting(FROM_PRESET, ge=0)
    max_rate: float = setting(0.9, ge=0, lt=1)
    kappa: float | str = setting(FROM_PRESET, ge=0, choices=("drawn",))
    path_loss: float | tuple[float, ...] = setting(1e-3, gt=0)
    distances_m: tuple[float, ...] = setting((), gt=0)
    path_loss_exponent: float = setting(3.0)
    reference_m: float = setting(1.0, gt=0)
    propagation: str = setting(FROM_PRESET, choices=("", *SITES))
    carrier_hz: float = setting(FROM_PRESET, ge=0)
    radius_m: float = setting(FROM_PRESET, ge=0, le=1e9)
    min_distance_m: float = setting(FROM_PRESET, ge=0)
    base_height_m: float = setting(FROM_PRESET, ge=0)
    device_height_m: float = setting(FROM_PRESET, ge=0)
    antenna_gain_db: float = setting(FROM_PRESET)
    sight: str = setting("drawn", choices=SIGHTS)
    shadowing: bool = setting(True)
    indoor_share: float = setting(FROM_PRESET, ge=0, le=1)
    gains_csv: str = setting("", file=True)
    gains_array: str = setting("", file=True)
    devices_csv: str = setting("", file=True)
    devices: str | tuple[str, ...] = setting(FROM_PRESET, choices=("paper", *DEVICE_KINDS))
    cpu_hz: tuple[float, ...] = setting(FROM_PRESET, gt=0)
    tx_power_w: tuple[float, ...] = setting(FROM_PRESET, gt=0)
    cpu_constant: tuple[float, ...] = setting(FROM_PRESET, gt=0)
    dynamic: bool = setting(False)
    min_devices: int = setting(5, ge=1, only_with={"dynamic": (True,)}, strict=False)

    def complete(self) -> Iterator[str]:
        """Set the fields that come from the preset."""
        given = chosen_by_user({item.name: getattr(self, item.name) for item in fields(self)})
        found = resolve(given)
        yield from contradictions(given, found)
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def defaults(self) -> dict[str, Any]:
        """Return the default of every field: the value under the same preset."""
        normal = Settings.defaults(self)
        return normal | resolve({**normal, "preset": self.preset}) | {"preset": "paper"}

    def problems(self) -> Iterator[str]:
        """Require that control, ranges, the source of gains and the site are consistent."""
        yield from self._control_problems()
        yield from self._function_problems()
        for name in ("cpu_hz", "tx_power_w", "cpu_constant"):
            ends = getattr(self, name)
            if not (self.kinds and not ends) and (len(ends) != 2 or ends[0] > ends[1]):
                yield f"radio.{name} is {list(ends)}; it must be [lowest, highest]."
        given = [name for name in ("gains_csv", "gains_array", "distances_m") if getattr(self, name)]
        if self.propagation and given != ["distances_m"]:
            given.append("propagation")
        if len(given) > 1:
            yield f"radio.{given[0]} and radio.{given[1]} are both given; give one source of gains."
        yield from self._site_problems() if self.propagation else self._no_site_problems()
        yield from self._fading_problems()

    def _fading_problems(self) -> Iterator[str]:
        """Report settings of path loss and fading that have no effect."""
        near = "" if self.distances_m or self.devices_csv else "it needs devices with distances (radio.distances_m)"
        source = next((name for name in ("gains_csv", "gains_array") if getattr(self, name)), "")
        measured = f"gains come from radio.{source}" if source else ""
        idle = {"path_loss_exponent": near, "reference_m": near, "kappa": measured, "path_loss": measured}
        normal = Settings.defaults(self) | {
            name: getattr(self, name) for name in ("preset", "gains_csv", "gains_array")
        }
        normal |= resolve(normal)  # what the preset has beside the same gains is not the user's
        for name, why in idle.items():
            if why and getattr(self, name) != normal[name]:
                yield f"radio.{name} is {shortened(getattr(self, name))}, which has no effect: {why}. Remove it."

    def _control_problems(self) -> Iterator[str]:
        if "rate" not in self.control or len(set(self.control)) < len(self.control):
            yield (
                f'radio.control is {list(self.control)}; it must contain "rate", and each of '
                f"{', '.join(CONTROLS[1:])} at most once."
            )
        if self.chooses and self.scheme not in PACED:
            yield (
                f"radio.control contains {' and '.join(self.chooses)}, which radio.scheme = {self.scheme!r} does not "
                f"choose. Remove it, or set radio.scheme to one of {', '.join(PACED)}."
            )
        if self.absent_cost and "share" not in self.control:
            yield 'radio.absent_cost has no effect without "share" in radio.control. Remove one of them.'
        if self.absent_cost and self.policy == "stretch":
            yield (
                "radio.absent_cost leaves devices out where the deadline is too short, so radio.policy = 'stretch' has "
                "no effect. Remove one of them."
            )
        if "share" not in self.control and self.scheme not in ("exact", "equal"):
            yield (
                f'radio.control lacks "share", so the band is split equally, but radio.scheme is {self.scheme!r}. '
                'Add "share", or set radio.scheme = "exact".'
            )

    def _function_problems(self) -> Iterator[str]:
        """Report arguments of schemes, channels and outcomes that take none."""
        plain = {"scheme": set(SCHEMES) - set(SCHEME_FUNCTIONS), "channel": {""}, "outcome": {"late", "none"}}
        for name, words in plain.items():
            if getattr(self, f"{name}_settings") and getattr(self, name) in words:
                yield (
                    f"radio.{name}_settings is {dict(getattr(self, f'{name}_settings'))}, which has no effect with "
                    f"radio.{name} = {getattr(self, name)!r}. Remove it, or change radio.{name}."
                )

    def _site_problems(self) -> Iterator[str]:
        """Report settings that have no effect with a propagation model."""
        for name, default in (("path_loss", 1e-3), ("path_loss_exponent", 3.0), ("reference_m", 1.0)):
            if getattr(self, name) != default:
                yield (
                    f"radio.{name} is {getattr(self, name)}, which has no effect: path loss comes from "
                    f"radio.propagation = {self.propagation!r}. Remove it, or set radio.propagation = ''."
                )
        if self.distances_m and (self.radius_m or self.min_distance_m):
            yield "radio.distances_m places the devices; remove radio.radius_m and radio.min_distance_m."

    def _no_site_problems(self) -> Iterator[str]:
        """Report settings that have no effect without a propagation model."""
        defaults: dict[str, Any] = dict.fromkeys((*SITE, "indoor_share"), 0.0) | {"sight": "drawn", "shadowing": True}
        for name, default in defaults.items():
            if getattr(self, name) != default:
                yield (
                    f"radio.{name} is {getattr(self, name)!r}, which has no effect without radio.propagation. Remove "
                    "it, or set radio.propagation = 'umi', for example."
                )
        if isinstance(self.kappa, str):
            yield f"radio.kappa is {self.kappa!r}; without radio.propagation it must be a number."

    @property
    def chooses(self) -> tuple[str, ...]:
        """What the allocator chooses in addition to rates and shares: ``"power"``, ``"cpu"``, both or neither."""
        return tuple(name for name in ("power", "cpu") if name in self.control)

    @property
    def band_scheme(self) -> str:
        """The allocation scheme in use: ``scheme``, or an equal split if shares are not chosen."""
        return self.scheme if "share" in self.control else "equal"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of devices that were named; empty for the paper's devices."""
        if self.devices == "paper":
            return ()
        return (self.devices,) if isinstance(self.devices, str) else tuple(self.devices)
