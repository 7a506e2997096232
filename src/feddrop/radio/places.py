"""Devices dropped at random into a disc around the base station: where they are, what they see, what that costs in dB.

All of this is drawn once for a run and stays: devices do not move. Only the small-scale fading, whose mean is 1, is
drawn anew in every round. Further devices change nobody's place.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feddrop.allocation.problem import BoolArray, FloatArray, refuse
from feddrop.config.radio import SIGHTS
from feddrop.errors import ConfigError, FeddropWarning, one_of, within
from feddrop.radio.fading import Rician
from feddrop.radio.propagation import (
    MODELS,
    Link,
    beyond_breakpoint,
    path_loss_db,
    sight_probability,
    surroundings_m,
    wall_db,
)
from feddrop.seeds import derive, generator

_INDOORS = ("uma", "umi")
_INDOOR_SHADOW_DB = 7.0
_HIGH_LOSS = 0.2
"""Share of buildings with coated glass."""
_DEEPEST_M = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A site: the model of TR 38.901, the carrier, heights, and the disc that devices are dropped into.

    Attributes:
        model: ``"uma"``, ``"umi"``, ``"inh-mixed"``, ``"inh-open"`` or ``"rma"``.
        carrier_hz: carrier frequency.
        radius_m: of the disc.
        min_distance_m: closest a device is dropped.
        base_height_m: h_B.
        device_height_m: h_D.
        antenna_gain_db: of base station and device together, dBi.
        sight: whether a line of sight is ``"drawn"`` by its probability, or there ``"always"`` or ``"never"``.
        shadowing: whether shadowing is drawn.
        indoor_share: probability that a device is in a building; ``uma`` and ``umi`` only.
        kappa: κ of the devices with a line of sight; None to draw it as the model has it. All others have 0.
    """

    model: str
    carrier_hz: float
    radius_m: float
    min_distance_m: float
    base_height_m: float
    device_height_m: float
    antenna_gain_db: float = 0.0
    sight: str = "drawn"
    shadowing: bool = True
    indoor_share: float = 0.0
    kappa: float | None = None

    def __post_init__(self) -> None:
        model = MODELS[one_of("radio.propagation", self.model, MODELS)]
        one_of("radio.sight", self.sight, SIGHTS)
        self._within("carrier_hz", (1e9 * model.ghz[0], 1e9 * model.ghz[1]))
        for name, allowed in (("base_height_m", model.base_m), ("device_height_m", model.device_m)):
            if allowed[0] < allowed[1]:
                self._within(name, allowed)
            elif getattr(self, name) != allowed[0]:
                self._note_height(name, allowed[0])
        within("radio.indoor_share", self.indoor_share, 0.0, 1.0)
        within("radio.antenna_gain_db", self.antenna_gain_db, -100.0, 100.0)
        if self.indoor_share and self.model not in _INDOORS:
            raise ConfigError(
                f"radio.indoor_share is {self.indoor_share:g}, but {self.model!r} has no loss into buildings; only "
                f"{' and '.join(_INDOORS)} have."
            )
        if not 0 <= self.min_distance_m <= self.radius_m:
            raise ConfigError(
                f"radio.min_distance_m is {self.min_distance_m:g} and radio.radius_m {self.radius_m:g}; devices are "
                "dropped between them, so write 0 <= min_distance_m <= radius_m."
            )
        if self.kappa is not None and not 0 <= self.kappa < np.inf:
            raise ConfigError(f"radio.kappa is {self.kappa:g}; it must be 0 or more, and finite.")

    def _within(self, name: str, allowed: tuple[float, float]) -> None:
        value = getattr(self, name)
        if not allowed[0] <= value <= allowed[1]:
            raise ConfigError(
                f"radio.{name} is {value:g}; the model {self.model!r} of TR 38.901 holds from {allowed[0]:g} to "
                f"{allowed[1]:g}."
            )

    def _note_height(self, name: str, nominal: float) -> None:
        value = getattr(self, name)
        if not 0 < value < 1000:
            raise ConfigError(f"radio.{name} is {value:g}; it must be a height in metres, {nominal:g} by the model.")
        warnings.warn(
            f"radio.{name} is {value:g}; the model {self.model!r} of TR 38.901 is given for {nominal:g}. The formulas "
            "take it, but the report does not vouch for it.",
            FeddropWarning,
            stacklevel=2,
        )

    def drop(self, devices: int, seed: int, distances_m: npt.ArrayLike | None = None) -> Dropped:
        """Drop devices uniformly over the disc, and draw what stays with each of them for the run.

        Args:
            devices: K.
            seed: from which everything is drawn.
            distances_m: horizontal distances instead, ``[num_devices]``.
        """
        spot = generator(derive(seed, "spot")).random((devices, 2))
        inner, outer = self.min_distance_m**2, self.radius_m**2
        distance = np.sqrt(inner + (outer - inner) * spot[:, 0])
        if distances_m is not None:
            distance = np.asarray(distances_m, dtype=np.float64)
            if distance.shape != (devices,):
                raise ConfigError(f"distances_m has {distance.size} values for {devices} devices.")
        self._check_distance(distance)
        chance = generator(derive(seed, "sight")).random((devices, 2))
        sight = self._sight(distance, chance[:, 0])
        around = surroundings_m(distance, self.device_height_m, chance[:, 1]) if self.model == "uma" else 1.0
        link = Link(distance, self.carrier_hz / 1e9, self.base_height_m, self.device_height_m, around)
        indoor, wall = self._buildings(devices, seed)
        return Dropped(
            place=self,
            distance_m=distance,
            angle_rad=2.0 * np.pi * spot[:, 1],
            sight=sight,
            indoor=indoor,
            path_loss_db=path_loss_db(self.model, link, sight) + wall,
            shadow_db=self._shadow(link, sight, indoor, seed),
            kappa=self._kappa(sight & ~indoor, seed),
        )

    def _check_distance(self, distance: FloatArray) -> None:
        """Refuse devices that are closer or farther than the model is given for."""
        low, high = MODELS[self.model].distance_m
        indoors = self.model.startswith("inh")
        metres = np.hypot(distance, self.base_height_m - self.device_height_m) if indoors else distance
        rule = f"from {low:g} to {high:g} m, where {self.model!r} holds{', heights included' * indoors}"
        refuse("distance_m", metres, (metres >= low) & (metres <= high), rule, distance.shape)

    def _sight(self, distance: FloatArray, chance: FloatArray) -> BoolArray:
        if self.sight != "drawn":
            return np.full(distance.shape, self.sight == "always")
        return np.asarray(chance < sight_probability(self.model, distance, self.device_height_m))

    def _shadow(self, link: Link, sight: BoolArray, indoor: BoolArray, seed: int) -> FloatArray:
        normal = generator(derive(seed, "shadow")).standard_normal(link.distance_m.shape)
        if not self.shadowing:
            return np.zeros_like(normal)
        near, without = MODELS[self.model].shadow_db
        far = 6.0 if self.model == "rma" else near
        spread = np.where(sight, np.where(beyond_breakpoint(link), far, near), without)
        return np.asarray(normal * np.where(indoor, _INDOOR_SHADOW_DB, spread))

    def _buildings(self, devices: int, seed: int) -> tuple[BoolArray, FloatArray]:
        """Who is in a building, and the loss of wall and rooms, dB: its outer wall, 0.5 dB a metre, and a spread."""
        random = generator(derive(seed, "indoor"))
        draw, normal = random.random((devices, 4)), generator(derive(seed, "wall")).standard_normal(devices)
        indoor = draw[:, 0] < self.indoor_share
        high_loss = draw[:, 1] < _HIGH_LOSS
        depth = _DEEPEST_M * np.minimum(draw[:, 2], draw[:, 3])
        loss = wall_db(self.carrier_hz / 1e9, high_loss) + 0.5 * depth + normal * np.where(high_loss, 6.5, 4.4)
        return indoor, np.where(indoor, loss, 0.0)

    def _kappa(self, sight: BoolArray, seed: int) -> FloatArray:
        mean, spread = MODELS[self.model].kappa_db
        drawn = 10.0 ** ((mean + spread * generator(derive(seed, "kappa")).standard_normal(sight.shape)) / 10.0)
        return np.where(sight, drawn if self.kappa is None else self.kappa, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Devices where they were dropped, ``[num_devices]`` each.

    Attributes:
        place: the site.
        distance_m: horizontal distance to the base station.
        angle_rad: direction, for pictures; nothing depends on it.
        sight: who has a line of sight.
        indoor: who is in a building.
        path_loss_db: walls included.
        shadow_db: added to it.
        kappa: κ of the fading; 0, which is Rayleigh fading, without a line of sight and in buildings.
    """

    place: Place
    distance_m: FloatArray
    angle_rad: FloatArray
    sight: BoolArray
    indoor: BoolArray
    path_loss_db: FloatArray
    shadow_db: FloatArray
    kappa: FloatArray

    @property
    def gain(self) -> FloatArray:
        """Mean power gain of every device's link, antennas included."""
        return np.asarray(10.0 ** ((self.place.antenna_gain_db - self.path_loss_db - self.shadow_db) / 10.0))

    @property
    def fading(self) -> Rician:
        """The fading around that gain."""
        return Rician(kappa=self.kappa, path_loss=self.gain)
