"""Format numbers for people: bytes, seconds, joules, watts, hertz and percent in a suitable unit."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

Scale = tuple[float, str]  # a divisor, and the unit of the quotient
UNKNOWN = "–"  # shown instead of an unknown number


def in_percent(fraction: float, digits: int = 1) -> str:
    """Write a fraction as percent: ``94.2 %``."""
    return f"{100 * fraction:z.{digits}f} %" if math.isfinite(fraction) else UNKNOWN


def in_digits(value: float) -> str:
    """Write a number with three significant digits or as an integer; below 0.0001 and from 1e9 with an exponent."""
    if not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(float(f"{value:.3g}"))))  # rounded first: 0.9999 is 1.00
    return f"{value:,.{max(0, digits)}f}" if -7 < digits < 7 else f"{value:.2e}"


def _fit(scales: tuple[Scale, ...], top: float) -> Scale:
    if not math.isfinite(top) or top == 0:
        return next(scale for scale in scales if scale[0] == 1.0)
    # 0.9995 rounds up to the next unit's 1.00
    return next((scale for scale in scales if top >= 0.9995 * scale[0]), scales[-1])


def _write(scale_of: Callable[[float], Scale], value: float) -> str:
    if not math.isfinite(value):
        return UNKNOWN
    scale, unit = scale_of(abs(value))
    return f"{in_digits(value / scale)} {unit}"


# The unit for values up to a number of bytes, joules, watts or hertz.
byte_scale = partial(_fit, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")))
joule_scale = partial(_fit, ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ")))
watt_scale = partial(_fit, ((1e3, "kW"), (1.0, "W"), (1e-3, "mW"), (1e-6, "µW")))
hertz_scale = partial(_fit, ((1e9, "GHz"), (1e6, "MHz"), (1e3, "kHz"), (1.0, "Hz")))


def second_scale(top: float) -> Scale:
    """Return the unit for values up to ``top`` seconds; minutes and hours start at two."""
    scales = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
    return _fit(scales, top / 2 if top >= 60 else top)


def bare(_: float) -> Scale:
    """Return no unit."""
    return 1.0, ""


class Resource(NamedTuple):
    """What a run spends: its unit, the unit for values up to a size, and its name in a table and along an axis."""

    unit: str
    scale: Callable[[float], Scale]
    title: str
    axis: str


RESOURCES = {
    "rounds": Resource("rounds", bare, "rounds", "round"),
    "bytes": Resource("B", byte_scale, "traffic", "traffic"),
    "seconds": Resource("s", second_scale, "time", "simulated time"),
    "joules": Resource("J", joule_scale, "energy", "energy"),
}


in_bytes = partial(_write, byte_scale)  # 12.3 MB
in_seconds = partial(_write, second_scale)  # 1.20 s, 12.5 min
in_joules = partial(_write, joule_scale)  # 301 J
in_watts = partial(_write, watt_scale)  # 5.00 mW
in_hertz = partial(_write, hertz_scale)  # 5.20 GHz


def how_many(number: int, word: str, plural: str = "s") -> str:
    """Write a count with its noun: "1 round", "2,000 rounds"."""
    return f"{number:,} {word}{plural if number != 1 else ''}"
