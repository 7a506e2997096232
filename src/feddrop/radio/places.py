"""Devices dropped at random into a disc around the base station: positions, lines of sight, path loss, shadowing.

All of this is drawn once per run: devices do not move. Only the small-scale fading, whose mean is 1, is drawn in every
round. The position of a device does not depend on the number of devices.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feddrop.allocation.problem import BoolArray, FloatArray, refuse
from feddrop.errors import ConfigError, FeddropWarning
from feddrop.radio import propagation
from feddrop.radio.fading import Rician
from feddrop.radio.propagation import MODELS, Link
from feddrop.seeds import derive, generator

_INDOORS = ("uma", "umi")
_INDOOR_SHADOW_DB = 7.0
_HIGH_LOSS = 0.2  # share of buildings with coated glass
_DEEPEST_M = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A site: the model of TR 38.901, the carrier, heights, and the disc that devices are dropped into.

    ``[radio]`` declares the range of each value; this class checks what depends on the model.
    """

    model: str  # ``"uma"``, ``"umi"``, ``"inh-mixed"``, ``"inh-open"`` or ``"rma"``
    carrier_hz: float  # carrier frequency
    radius_m: float  # radius of the disc
    min_distance_m: float  # smallest distance of a device
    base_height_m: float  # h_B
    device_height_m: float  # h_D
    antenna_gain_db: float = 0.0  # sum of the antenna gains of base station and device, dBi
    sight: str = "drawn"  # line of sight: ``"drawn"`` by its probability, ``"always"`` or ``"never"``
    shadowing: bool = True  # whether shadowing is drawn
    indoor_share: float = 0.0  # probability that a device is in a building; ``uma`` and ``umi`` only
    kappa: float | None = None  # κ of devices with a line of sight, None to draw it by the model; others have 0

    def __post_init__(self) -> None:
        if problem := next(self.problems(), ""):
            raise ConfigError(problem)
        for name, (nominal, highest) in self._heights().items():
            if nominal == highest != getattr(self, name):
                warnings.warn(
                    f"radio.{name} is {getattr(self, name):g}; TR 38.901 gives {self.model!r} only for {nominal:g}. "
                    "The formulas accept other heights, but the report does not cover them.",
                    FeddropWarning,
                    stacklevel=2,
                )

    def _heights(self) -> dict[str, tuple[float, float]]:
        return {"base_height_m": MODELS[self.model].base_m, "device_height_m": MODELS[self.model].device_m}

    def problems(self) -> Iterator[str]:
        """Yield one message for each value that the model does not allow."""
        ghz = MODELS[self.model].ghz
        ranges = {"carrier_hz": (1e9 * ghz[0], 1e9 * ghz[1]), "antenna_gain_db": (-100.0, 100.0)}
        ranges |= {name: ends if ends[0] < ends[1] else (1e-3, 1e3) for name, ends in self._heights().items()}
        for name, (low, high) in ranges.items():
            if not low <= (value := getattr(self, name)) <= high:
                yield f"radio.{name} is {value:g}; in {self.model!r} of TR 38.901 it must be from {low:g} to {high:g}."
        if self.indoor_share and self.model not in _INDOORS:
            yield (
                f"radio.indoor_share is {self.indoor_share:g}, but {self.model!r} has no loss into buildings; only "
                f"{' and '.join(_INDOORS)} have one."
            )
        if not 0 <= self.min_distance_m <= self.radius_m:
            yield (
                f"radio.min_distance_m is {self.min_distance_m:g} and radio.radius_m {self.radius_m:g}; write 0 <= "
                "min_distance_m <= radius_m."
            )

    def drop(self, devices: int, seed: int, distances_m: npt.ArrayLike | None = None) -> Dropped:
        """Drop devices uniformly over the disc, and draw their properties for the run.

        Args:
            devices: K.
            seed: seed of all draws.
            distances_m: given horizontal distances, ``[num_devices]``.
        """
        spot = generator(derive(seed, "spot")).random((devices, 2))
        inner, outer = self.min_distance_m**2, self.radius_m**2
        distance = np.sqrt(inner + (outer - inner) * spot[:, 0])
        if distances_m is not None:
            distance = np.asarray(distances_m, dtype=np.float64)
            if distance.shape != (devices,):
                raise ConfigError(f"distances_m has {distance.size} values for {devices} devices; give one per device.")
        low, high = MODELS[self.model].distance_m
        indoors = self.model.startswith("inh")
        metres = np.hypot(distance, self.base_height_m - self.device_height_m) if indoors else distance
        rule = f"from {low:g} to {high:g} m, where {self.model!r} is valid{', heights included' * indoors}"
        refuse("distance_m", metres, (metres >= low) & (metres <= high), rule, distance.shape)
        chance = generator(derive(seed, "sight")).random((devices, 2))
        sight = self._sight(distance, chance[:, 0])
        height = self.device_height_m
        around = propagation.surroundings_m(distance, height, chance[:, 1]) if self.model == "uma" else 1.0
        link = Link(distance, self.carrier_hz / 1e9, self.base_height_m, height, around)
        indoor, wall = self._buildings(devices, seed)
        return Dropped(
            place=self,
            distance_m=distance,
            angle_rad=2.0 * np.pi * spot[:, 1],
            sight=sight,
            indoor=indoor,
            path_loss_db=propagation.path_loss_db(self.model, link, sight) + wall,
            shadow_db=self._shadow(link, sight, indoor, seed),
            kappa=self._kappa(sight & ~indoor, seed),
        )

    def _sight(self, distance: FloatArray, chance: FloatArray) -> BoolArray:
        if self.sight != "drawn":
            return np.full(distance.shape, self.sight == "always")
        return np.asarray(chance < propagation.sight_probability(self.model, distance, self.device_height_m))

    def _shadow(self, link: Link, sight: BoolArray, indoor: BoolArray, seed: int) -> FloatArray:
        normal = generator(derive(seed, "shadow")).standard_normal(link.distance_m.shape)
        if not self.shadowing:
            return np.zeros_like(normal)
        near, without = MODELS[self.model].shadow_db
        far = 6.0 if self.model == "rma" else near
        spread = np.where(sight, np.where(propagation.beyond_breakpoint(link), far, near), without)
        return np.asarray(normal * np.where(indoor, _INDOOR_SHADOW_DB, spread))

    def _buildings(self, devices: int, seed: int) -> tuple[BoolArray, FloatArray]:
        """Return which devices are in a building, and the loss of wall and rooms, dB: 0.5 dB per metre inside."""
        random = generator(derive(seed, "indoor"))
        draw, normal = random.random((devices, 4)), generator(derive(seed, "wall")).standard_normal(devices)
        indoor = draw[:, 0] < self.indoor_share
        high_loss = draw[:, 1] < _HIGH_LOSS
        depth = _DEEPEST_M * np.minimum(draw[:, 2], draw[:, 3])
        wall, spread = propagation.wall_db(self.carrier_hz / 1e9, high_loss), np.where(high_loss, 6.5, 4.4)
        return indoor, np.where(indoor, wall + 0.5 * depth + normal * spread, 0.0)

    def _kappa(self, sight: BoolArray, seed: int) -> FloatArray:
        mean, spread = MODELS[self.model].kappa_db
        drawn = 10.0 ** ((mean + spread * generator(derive(seed, "kappa")).standard_normal(sight.shape)) / 10.0)
        return np.where(sight, drawn if self.kappa is None else self.kappa, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Dropped devices, ``[num_devices]`` each."""

    place: Place  # the site
    distance_m: FloatArray  # horizontal distance to the base station
    angle_rad: FloatArray  # direction, only for pictures
    sight: BoolArray  # devices with a line of sight
    indoor: BoolArray  # devices in a building
    path_loss_db: FloatArray  # path loss, including walls
    shadow_db: FloatArray  # shadowing, in addition
    kappa: FloatArray  # κ of the fading; 0 (Rayleigh fading) without a line of sight and in buildings

    @property
    def gain(self) -> FloatArray:
        """Mean power gain of every device's link, including antennas."""
        return np.asarray(10.0 ** ((self.place.antenna_gain_db - self.path_loss_db - self.shadow_db) / 10.0))

    @property
    def fading(self) -> Rician:
        """The fading around that gain."""
        return Rician(kappa=self.kappa, path_loss=self.gain)
