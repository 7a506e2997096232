"""Path loss and line of sight by 3GPP TR 38.901 (V16.1), Tables 7.4.1-1, 7.4.2-1, 7.4.3-2 and 7.5-6.

d is the horizontal distance in metres, D = √(d² + (h_B - h_D)²) the straight one, f the carrier in GHz. Without a line
of sight to the base station, the loss is the larger of the two columns:

    model  with a line of sight, dB                            without, dB
    uma    28 + 22 lg D + 20 lg f                              13.54 + 39.08 lg D + 20 lg f - 0.6 (h_D - 1.5)
           d > d': 28 + 40 lg D + 20 lg f
                   - 9 lg(d'² + (h_B - h_D)²)
    umi    32.4 + 21 lg D + 20 lg f                            22.4 + 35.3 lg D + 21.3 lg f - 0.3 (h_D - 1.5)
           d > d': 32.4 + 40 lg D + 20 lg f
                   - 9.5 lg(d'² + (h_B - h_D)²)
    inh    32.4 + 17.3 lg D + 20 lg f                          17.3 + 38.3 lg D + 24.9 lg f
    rma    in ``_rma``

d' = 4 (h_B - h_E)(h_D - h_E) f/c is the breakpoint, and h_E the height of the surroundings, 1 m except for high
devices. c is 3.0e8 m/s, as in the report. The losses are means over places; shadowing, normal in dB, is added in
:mod:`feddrop.radio.places`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feddrop.allocation.problem import BoolArray, FloatArray
from feddrop.radio.devices import Range

LIGHT = 3.0e8
STREET_M, BUILDING_M = 20.0, 5.0  # default width of streets and height of buildings in the rural model


class Link(NamedTuple):
    """Positions of devices relative to the base station; arrays are ``[num_devices]``."""

    distance_m: FloatArray  # d, horizontal
    ghz: float  # f, the carrier
    base_m: float  # h_B, height of the base station
    device_m: float  # h_D, height of the devices
    around_m: FloatArray | float = 1.0  # h_E, height of their surroundings

    @property
    def straight_m(self) -> FloatArray:
        """The straight distance D."""
        return np.hypot(self.distance_m, self.base_m - self.device_m)

    @property
    def breakpoint_m(self) -> FloatArray:
        """The distance d' from which the loss grows faster."""
        return np.asarray(
            4.0 * (self.base_m - self.around_m) * (self.device_m - self.around_m) * self.ghz * 1e9 / LIGHT
        )


class Propagation(NamedTuple):
    """A model of the report and where it is valid."""

    losses: Callable[[Link], tuple[FloatArray, FloatArray]]  # of a link with and without a line of sight, dB
    sight: Callable[[FloatArray, float], FloatArray]  # probability of a line of sight, from distance and height
    shadow_db: tuple[float, float]  # standard deviation of the shadowing with and without a line of sight
    kappa_db: tuple[float, float]  # mean and standard deviation of κ with a line of sight
    distance_m: Range  # shortest and longest distance: straight indoors, else horizontal
    ghz: Range  # lowest and highest carrier
    base_m: Range  # lowest and highest base station
    device_m: Range  # lowest and highest device


def path_loss_db(model: str, link: Link, sight: npt.ArrayLike) -> FloatArray:
    """Return the path loss of links with or without a line of sight in dB, ``[num_devices]``, without shadowing."""
    with_sight, without = MODELS[model].losses(link)
    return np.where(sight, with_sight, np.maximum(with_sight, without))


def sight_probability(model: str, distance_m: npt.ArrayLike, device_m: float = 1.5) -> FloatArray:
    """Return the probability of a line of sight at these distances and this height."""
    return MODELS[model].sight(np.asarray(distance_m, dtype=np.float64), device_m)


def surroundings_m(distance_m: FloatArray, device_m: float, draw: FloatArray) -> FloatArray:
    """Return h_E of the ``uma`` model: 1 m, or for devices above 13 m sometimes a roof below them.

    ``draw`` holds a random number in [0, 1) per device.
    """
    heights = np.arange(12.0, device_m - 1.5 + 1e-9, 3.0)
    if not heights.size:
        return np.ones_like(draw)
    low = 1.0 / (1.0 + _high(distance_m, device_m))
    which = np.clip((draw - low) / np.maximum(1.0 - low, 1e-12) * len(heights), 0, len(heights) - 1).astype(np.int64)
    return np.where(draw < low, 1.0, heights[which])


def wall_db(ghz: float, high_loss: npt.ArrayLike) -> FloatArray:
    """Return the loss in dB of a building's outer wall: glass and concrete, or coated glass and concrete."""
    glass, coated, concrete = (10.0 ** (-loss / 10.0) for loss in (2 + 0.2 * ghz, 23 + 0.3 * ghz, 5 + 4 * ghz))
    low = 5.0 - 10.0 * np.log10(0.3 * glass + 0.7 * concrete)
    high = 5.0 - 10.0 * np.log10(0.7 * coated + 0.3 * concrete)
    return np.asarray(np.where(high_loss, high, low))


def beyond_breakpoint(link: Link) -> BoolArray:
    """Return which links of the rural model are beyond the breakpoint, where shadowing is stronger."""
    return np.asarray(link.distance_m > _rural_breakpoint_m(link))


def _uma(link: Link) -> tuple[FloatArray, FloatArray]:
    straight, carrier = _lg(link.straight_m), 20.0 * _lg(link.ghz)
    near = 28.0 + 22.0 * straight + carrier
    far = 28.0 + 40.0 * straight + carrier - 9.0 * _bend(link)
    without = 13.54 + 39.08 * straight + carrier - 0.6 * (link.device_m - 1.5)
    return np.where(link.distance_m > link.breakpoint_m, far, near), without


def _umi(link: Link) -> tuple[FloatArray, FloatArray]:
    straight, carrier = _lg(link.straight_m), 20.0 * _lg(link.ghz)
    near = 32.4 + 21.0 * straight + carrier
    far = 32.4 + 40.0 * straight + carrier - 9.5 * _bend(link)
    without = 22.4 + 35.3 * straight + 21.3 * _lg(link.ghz) - 0.3 * (link.device_m - 1.5)
    return np.where(link.distance_m > link.breakpoint_m, far, near), without


def _inh(link: Link) -> tuple[FloatArray, FloatArray]:
    straight, carrier = _lg(link.straight_m), _lg(link.ghz)
    return 32.4 + 17.3 * straight + 20.0 * carrier, 17.3 + 38.3 * straight + 24.9 * carrier


def _rma(link: Link) -> tuple[FloatArray, FloatArray]:
    def near(metres: FloatArray) -> FloatArray:
        power = BUILDING_M**1.72
        free_space = 20.0 * _lg(40.0 * np.pi * metres * link.ghz / 3.0)
        slope = min(0.03 * power, 10.0) * _lg(metres) + 0.002 * _lg(BUILDING_M) * metres
        return np.asarray(free_space + slope - min(0.044 * power, 14.77))

    straight, bend = link.straight_m, _rural_breakpoint_m(link)
    with_sight = np.where(link.distance_m > bend, near(bend) + 40.0 * _lg(straight / bend), near(straight))
    without = (
        161.04
        - 7.1 * _lg(STREET_M)
        + 7.5 * _lg(BUILDING_M)
        - (24.37 - 3.7 * (BUILDING_M / link.base_m) ** 2) * _lg(link.base_m)
        + (43.42 - 3.1 * _lg(link.base_m)) * (_lg(straight) - 3.0)
        + 20.0 * _lg(link.ghz)
        - (3.2 * _lg(11.75 * link.device_m) ** 2 - 4.97)
    )
    return with_sight, without


def _rural_breakpoint_m(link: Link) -> FloatArray:
    return np.asarray(2.0 * np.pi * link.base_m * link.device_m * link.ghz * 1e9 / LIGHT)


def _bend(link: Link) -> FloatArray:
    return _lg(link.breakpoint_m**2 + (link.base_m - link.device_m) ** 2)


def _lg(value: npt.ArrayLike) -> FloatArray:
    return np.asarray(np.log10(value))


def _high(distance_m: FloatArray, device_m: float) -> FloatArray:
    """Return C of the ``uma`` model, which raises the probability of a line of sight of high devices."""
    height = ((device_m - 13.0) / 10.0) ** 1.5 if device_m > 13.0 else 0.0
    far = 1.25 * (distance_m / 100.0) ** 3 * np.exp(-distance_m / 150.0)
    return np.where(distance_m > 18.0, height * far, 0.0)


def _street(distance_m: FloatArray, scale_m: float) -> FloatArray:
    near = 18.0 / np.maximum(distance_m, 18.0)
    return near + np.exp(-distance_m / scale_m) * (1.0 - near)


def _fall(distance_m: FloatArray, first_m: float, scale_m: float) -> FloatArray:
    return np.exp(-np.maximum(distance_m - first_m, 0.0) / scale_m)


def _sight_uma(distance_m: FloatArray, height_m: float) -> FloatArray:
    return np.minimum(_street(distance_m, 63.0) * (1.0 + _high(distance_m, height_m)), 1.0)


def _sight_umi(distance_m: FloatArray, _: float) -> FloatArray:
    return _street(distance_m, 36.0)


def _sight_rma(distance_m: FloatArray, _: float) -> FloatArray:
    return _fall(distance_m, 10.0, 1000.0)


def _sight_mixed(distance_m: FloatArray, _: float) -> FloatArray:
    return np.where(distance_m <= 6.5, _fall(distance_m, 1.2, 4.7), 0.32 * _fall(distance_m, 6.5, 32.6))


def _sight_open(distance_m: FloatArray, _: float) -> FloatArray:
    return np.where(distance_m <= 49.0, _fall(distance_m, 5.0, 70.8), 0.54 * _fall(distance_m, 49.0, 211.7))


_INDOORS: tuple[Range, ...] = ((3.0, 8.03), (7.0, 4.0), (1.0, 150.0), (0.5, 100.0), (3.0, 3.0), (1.0, 1.0))
MODELS: dict[str, Propagation] = {
    "uma": Propagation(_uma, _sight_uma, (4.0, 6.0), (9.0, 3.5), (10.0, 5e3), (0.5, 100.0), (25.0, 25.0), (1.5, 22.5)),
    "umi": Propagation(_umi, _sight_umi, (4.0, 7.82), (9.0, 5.0), (10.0, 5e3), (0.5, 100.0), (10.0, 10.0), (1.5, 22.5)),
    "inh-mixed": Propagation(_inh, _sight_mixed, *_INDOORS),
    "inh-open": Propagation(_inh, _sight_open, *_INDOORS),
    "rma": Propagation(_rma, _sight_rma, (4.0, 8.0), (7.0, 4.0), (10.0, 5e3), (0.5, 30.0), (10.0, 150.0), (1.0, 10.0)),
}
