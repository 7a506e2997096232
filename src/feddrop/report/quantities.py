"""Format numbers for people: bytes, seconds, joules, watts, hertz and percent in a suitable unit."""

from __future__ import annotations

import math

Scale = tuple[float, str]  # A divisor, and the unit of the quotient
_BYTES: tuple[Scale, ...] = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_SECONDS: tuple[Scale, ...] = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
_JOULES: tuple[Scale, ...] = ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"))

_WATTS: tuple[Scale, ...] = ((1e3, "kW"), (1.0, "W"), (1e-3, "mW"), (1e-6, "µW"))
_HERTZ: tuple[Scale, ...] = ((1e9, "GHz"), (1e6, "MHz"), (1e3, "kHz"), (1.0, "Hz"))

UNKNOWN = "–"  # shown instead of an unknown number


def byte_scale(top: float) -> Scale:
    """Return the decimal unit for values up to ``top`` bytes."""
    return _fit(top, _BYTES)


def second_scale(top: float) -> Scale:
    """Return the unit for values up to ``top`` seconds; minutes and hours start at two."""
    return _fit(top / 2 if top >= 60 else top, _SECONDS)


def joule_scale(top: float) -> Scale:
    """Return the unit for values up to ``top`` joules."""
    return _fit(top, _JOULES)


def watt_scale(top: float) -> Scale:
    """Return the unit for values up to ``top`` watts."""
    return _fit(top, _WATTS)


def hertz_scale(top: float) -> Scale:
    """Return the unit for values up to ``top`` hertz."""
    return _fit(top, _HERTZ)


def in_bytes(value: float) -> str:
    """Write a number of bytes: ``12.3 MB``."""
    return _write(value, byte_scale(abs(value)))


def in_seconds(value: float) -> str:
    """Write a duration: ``1.20 s``, ``12.5 min``."""
    return _write(value, second_scale(abs(value)))


def in_joules(value: float) -> str:
    """Write an energy: ``301 J``."""
    return _write(value, joule_scale(abs(value)))


def in_watts(value: float) -> str:
    """Write a power: ``5.00 mW``."""
    return _write(value, watt_scale(abs(value)))


def in_hertz(value: float) -> str:
    """Write a frequency: ``5.20 GHz``."""
    return _write(value, hertz_scale(abs(value)))


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


def _fit(top: float, scales: tuple[Scale, ...]) -> Scale:
    if not math.isfinite(top) or top == 0:
        return next(scale for scale in scales if scale[0] == 1.0)
    # 0.9995 rounds up to the next unit's 1.00
    return next((scale for scale in scales if top >= 0.9995 * scale[0]), scales[-1])


def _write(value: float, scale: Scale) -> str:
    if not math.isfinite(value):
        return UNKNOWN
    return f"{in_digits(value / scale[0])} {scale[1]}"


def how_many(number: int, word: str, plural: str = "s") -> str:
    """Write a count with its noun: "1 round", "2,000 rounds"."""
    return f"{number:,} {word}{plural if number != 1 else ''}"
