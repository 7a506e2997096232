"""The ``[radio]`` table of a configuration: plain numbers and words that describe a cell."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from feddrop.allocation import METHODS, POLICIES
from feddrop.errors import ConfigError, FeddropWarning, one_of
from feddrop.radio.cell import (
    NOISES,
    PAPER_CPU_CONSTANT,
    PAPER_CPU_HZ,
    PAPER_NOISE_W_HZ,
    PAPER_TX_POWER_W,
    Cell,
    Dynamics,
    draw_devices,
)
from feddrop.radio.fading import Fading, Rician, path_loss, read_gains
from feddrop.radio.tables import by_device, read_table

CONTROLS = ("rate", "share", "power", "cpu")
_PACED = ("exact", "equal", "random")
"""Schemes that choose rates, and so the power and clock that go with them."""

DEVICE_COLUMNS = ("cpu_hz", "tx_power_w", "cpu_constant", "budget_j", "circuit_j", "distance_m")


@dataclass(frozen=True, slots=True, kw_only=True)
class RadioConfig:
    """A cell and how its band is shared; the defaults are the paper's table.

    Attributes:
        scheme: method of allocation: ``"exact"``, ``"primal-dual"``, ``"equal"``, ``"random"``, ``"none"`` or
        ``"fixed"``.
        control: what is chosen in every round: ``"rate"``, and any of ``"share"``, ``"power"`` and ``"cpu"``. Without
            share the band is split equally; without power or cpu every device is at its highest.
        policy: what to do in an infeasible round: ``"error"``, ``"leave-out"`` or ``"stretch"``.
        bandwidth_hz: B.
        deadline_s: T0.
        energy_budget_j: E0, for one device and round; inf for no budget.
        circuit_j: ξ.
        downlink_power_w: power with which the server sends to a device.
        noise: ``"density"``, ``"literal"`` or ``"subband"``.
        noise_w_hz: noise density, or the variance in W under ``"literal"``.
        costs: what rates are decided by and latency and energy are reported from: ``"measured"`` frames and counted
            FLOPs, or the paper's ``"formula"``, (1-γ) M_ori Q bits. The other is reported beside it.
        bits_per_parameter: Q of the paper's formula.
        flop_per_cycle: floating-point operations a CPU does in a cycle.
        max_rate: θ.
        kappa: κ of the Rician fading.
        path_loss: mean power gain, for all devices or one a device; with distances, the gain at ``reference_m``.
        distances_m: distance of every device, from which path loss follows; empty for none.
        path_loss_exponent: of the distance.
        reference_m: distance at which ``path_loss`` holds.
        gains_csv: table of measured gains instead of fading; see :func:`feddrop.radio.read_gains`.
        devices_csv: table with a row a device and any of the columns cpu_hz, tx_power_w, cpu_constant, budget_j,
            circuit_j and distance_m; what it lacks is drawn or taken from here. A column device says whose row it is;
            without it they are in order.
        cpu_hz: range of CPU frequencies to draw from, as ``[lowest, highest]``.
        tx_power_w: range of transmit powers to draw from.
        cpu_constant: range of CPU constants to draw from.
        dynamic: whether devices come and go, and CPU frequency and power change, from round to round.
        min_devices: devices that are present at least, in a dynamic cell.
    """

    scheme: str = "exact"
    control: tuple[str, ...] = ("rate", "share")
    policy: str = "error"
    bandwidth_hz: float = 10e6
    deadline_s: float = 8.0
    energy_budget_j: float = np.inf
    circuit_j: float = 0.1
    downlink_power_w: float = 1.0
    noise: str = "density"
    noise_w_hz: float = PAPER_NOISE_W_HZ
    costs: str = "measured"
    bits_per_parameter: float = 256.0
    flop_per_cycle: float = 16.0
    max_rate: float = 0.9
    kappa: float = 10.0
    path_loss: float | tuple[float, ...] = 1e-3
    distances_m: tuple[float, ...] = ()
    path_loss_exponent: float = 3.0
    reference_m: float = 1.0
    gains_csv: str = ""
    devices_csv: str = ""
    cpu_hz: tuple[float, ...] = PAPER_CPU_HZ
    tx_power_w: tuple[float, ...] = PAPER_TX_POWER_W
    cpu_constant: tuple[float, ...] = PAPER_CPU_CONSTANT
    dynamic: bool = False
    min_devices: int = 5

    def __post_init__(self) -> None:
        one_of("radio.scheme", self.scheme, METHODS)
        one_of("radio.policy", self.policy, POLICIES)
        self._check_control()
        one_of("radio.noise", self.noise, NOISES)
        one_of("radio.costs", self.costs, ("measured", "formula"))
        for name in ("cpu_hz", "tx_power_w", "cpu_constant"):
            ends = getattr(self, name)
            if len(ends) != 2 or not 0 < ends[0] <= ends[1] < np.inf:
                raise ConfigError(f"radio.{name} is {list(ends)}; it must be [lowest, highest], both positive.")
        if self.gains_csv and self.distances_m:
            raise ConfigError("radio.gains_csv and radio.distances_m are both given; gains come from one of them.")

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

    def cell(self, devices: int, samples: npt.ArrayLike, seed: int, *, folder: str | Path = ".") -> Cell:
        """Build the cell.

        Args:
            devices: K.
            samples: samples that a device trains on in a round, a scalar or ``[num_devices]``.
            seed: root seed, from which the devices are drawn.
            folder: where the tables are, if their paths are relative.
        """
        table = _read_devices(Path(folder) / self.devices_csv, devices) if self.devices_csv else {}
        cpu_hz, tx_power_w, cpu_constant = (
            (ends[0], ends[1]) for ends in (self.cpu_hz, self.tx_power_w, self.cpu_constant)
        )
        drawn = draw_devices(devices, seed=seed, cpu_hz=cpu_hz, tx_power_w=tx_power_w, cpu_constant=cpu_constant)
        distances = table.get("distance_m", np.asarray(self.distances_m))
        if note := self.noise_note(bool(distances.size)):
            warnings.warn(note, FeddropWarning, stacklevel=2)
        changing = Dynamics(min_devices=self.min_devices, cpu_hz=cpu_hz, tx_power_w=tx_power_w)
        return Cell(
            cpu_hz=table.get("cpu_hz", drawn[0]),
            tx_power_w=table.get("tx_power_w", drawn[1]),
            cpu_constant=table.get("cpu_constant", drawn[2]),
            budget_j=table.get("budget_j", np.asarray(self.energy_budget_j)),
            circuit_j=table.get("circuit_j", np.asarray(self.circuit_j)),
            samples=np.asarray(samples, dtype=np.float64),
            downlink_power_w=np.asarray(self.downlink_power_w),
            bandwidth_hz=self.bandwidth_hz,
            deadline_s=self.deadline_s,
            fading=self._fading(distances, Path(folder)),
            noise=self.noise,
            noise_w_hz=self.noise_w_hz,
            bits_per_parameter=self.bits_per_parameter,
            flop_per_cycle=self.flop_per_cycle,
            max_rate=self.max_rate,
            dynamics=changing if self.dynamic else None,
        )

    def noise_note(self, distances: bool = False) -> str:
        """One line for whoever has gains of the real world beside the noise of the paper; empty for others.

        Args:
            distances: whether a table has the distances of devices.
        """
        real = self.gains_csv or self.distances_m or distances
        if not real or self.noise == "literal" or self.noise_w_hz != PAPER_NOISE_W_HZ:
            return ""
        return (
            "radio.noise_w_hz is the paper's 1e-13 W/Hz, 74 dB above thermal noise (4e-21), and the gains are your "
            "own: for a receiver with a noise figure of 5 dB write radio.noise_w_hz = 1.26e-20."
        )

    def _fading(self, distances_m: npt.NDArray[np.float64], folder: Path) -> Fading:
        if self.gains_csv:
            if distances_m.size:
                raise ConfigError("radio.gains_csv has the gains already; leave out the distances of devices.")
            return read_gains(folder / self.gains_csv)
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


def _read_devices(path: Path, devices: int) -> dict[str, npt.NDArray[np.float64]]:
    """Read a table of devices: in the order of its column ``device``, else of its rows.

    An unknown column, and a device too many, missing or there twice, is an error.
    """
    columns, rows = read_table(path, "devices")
    for name in columns:
        one_of(f"a column of {str(path)!r}", name, ("device", *DEVICE_COLUMNS))
    if "device" in columns:
        rows = by_device(rows, devices, repr(str(path)))
    elif len(rows) != devices:
        raise ConfigError(f"{str(path)!r} has {len(rows)} devices; the cell has {devices}.")
    return {name: np.array([row.number(name) for row in rows]) for name in columns if name != "device"}
