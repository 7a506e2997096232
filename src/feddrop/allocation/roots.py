"""Three safeguarded searches: one root per device, the price that clears the band, and an edge without derivatives.

All keep a bracket. The first two take Newton's step if it falls inside. Otherwise, and if steps do not shrink fast
enough (the first) or on every eighth pass (the second), they bisect: the number of passes is bounded by the bits of a
float, regardless of the number of devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from feddrop.allocation.problem import BoolArray, FloatArray

PASSES = 400
Values = tuple[FloatArray, FloatArray]  # of functions, and their derivatives
BAND = 1.0 - 2.0**-47  # sum of the shares: slightly less than 1, so that they fit into the band after rounding


def root(
    f: Callable[[FloatArray], Values],
    low: FloatArray,
    high: FloatArray,
    x: FloatArray,
    *,
    tolerance: float = 2.0**-51,
    ends: tuple[BoolArray, BoolArray] | None = None,
) -> FloatArray:
    """Find where decreasing functions cross zero, elementwise.

    Args:
        f: returns values and derivatives at x.
        low: left ends of the brackets; returned if the function is not positive there.
        high: right ends; returned if the function is not negative there.
        x: first guesses.
        tolerance: length of the last step; relative to x if that exceeds 1.
        ends: where the function is not positive at the left end, and where it is not negative at the right end, if
            known.
    """
    at_low, at_high = ends or (f(low)[0] <= 0, f(high)[0] >= 0)
    found = at_low | at_high
    x = np.where(at_low, low, np.where(at_high, high, np.minimum(np.maximum(x, low), high)))
    if found.all():
        return x
    before = high - low
    for _ in range(PASSES):
        value, slope = f(x)
        right = value > 0
        low, high = np.where(right, x, low), np.where(right, high, x)
        step = x - value / slope
        inside = np.minimum(np.maximum(step, low), high)
        scale = np.maximum(1.0, np.abs(x))
        # A step that leaves the bracket by rounding only goes to its end.
        usable = (np.abs(step - inside) <= 2.0**-40 * scale) & (np.abs(step - x) <= 0.5 * before)
        new = np.where(found, x, np.where(usable, inside, 0.5 * (low + high)))
        before = np.abs(new - x)
        # Freeze converged entries; bisection would move them. A short bisection is not convergence.
        found = found | ((before <= tolerance * scale) & (usable | (high - low <= 2.0**-50 * scale)))
        x = new
        if found.all():
            break
    return x


def edge(
    f: Callable[[FloatArray], FloatArray],
    low: tuple[FloatArray, FloatArray],
    high: tuple[FloatArray, FloatArray],
    *,
    width: float,
) -> FloatArray:
    """Find where decreasing functions reach zero, elementwise: the smallest x found at which they are not positive.

    The arguments are those of :func:`narrow`.
    """
    return narrow(f, low, high, width=width)[1][0]


def narrow(
    f: Callable[[FloatArray], FloatArray],
    low: tuple[FloatArray, FloatArray],
    high: tuple[FloatArray, FloatArray],
    *,
    width: float,
) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
    """Narrow brackets of the zeros of decreasing functions, elementwise.

    Chandrupatla's method: inverse quadratic interpolation through the last three points if they look like a smooth
    curve, bisection otherwise. It takes about ten calls; bisection would take 45.

    Args:
        f: returns the values at x, all finite.
        low: left ends of the brackets, where the functions are positive, and the values there; an end equal to the
            right one is the answer.
        high: right ends, where the functions are not positive, and the values there.
        width: final width of the brackets; wider if the precision of a float requires it.

    Returns:
        The left ends and the values there, and the right ends and the values there.
    """
    (a, fa), (b, fb) = low, high
    c, fc, part = a, fa, np.full_like(a, 0.5)
    for _ in range(PASSES):
        wide = np.maximum(width, 2.0**-50 * np.abs(b))
        if not (np.abs(b - a) > wide).any():
            break
        x = a + part * (b - a)
        fx = f(x)
        # The edge is between a and b; c is the previous point on a's side.
        same = (fx <= 0) == (fa <= 0)
        b, fb, c, fc = (np.where(same, *pair) for pair in ((b, a), (fb, fa), (a, b), (fa, fb)))
        a, fa = x, fx
        with np.errstate(all="ignore"):
            at, height = (a - b) / (c - b), (fa - fb) / (fc - fb)
            smooth = (height**2 < at) & ((1.0 - height) ** 2 < 1.0 - at)
            part = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
            least = 0.5 * wide / np.abs(b - a)
        part = np.where(smooth & (least < 0.5), np.minimum(np.maximum(part, least), 1.0 - least), 0.5)
    right = fa <= 0
    return (np.where(right, b, a), np.where(right, fb, fa)), (np.where(right, a, b), np.where(right, fa, fb))


Total = Callable[[FloatArray], FloatArray]


def clear(demand: Total, slope: Total, start: FloatArray, settled: BoolArray) -> tuple[FloatArray, int]:
    """Find s = 1/sqrt(μ) at which the demand fills the band, one s per round.

    Args:
        demand: from s, ``[..., 1]``, to the total demand, ``[..., 1]``. It must not decrease with s, and must cross 1
            in rounds that are not settled.
        slope: the derivative of the total in log s; called only at the s of the last demand.
        start: first guess of s, ``[..., 1]``.
        settled: rounds that stay at their first guess, ``[..., 1]``.

    Returns:
        s, at which ``demand`` was last called, and the number of passes over the devices.
    """
    if start.size == 1 and not settled.all():
        return _clear_one(demand, slope, start)
    s = start
    low, high = np.zeros_like(s), np.full_like(s, np.inf)
    number = 0
    while number < PASSES and not settled.all():
        number += 1
        excess = demand(s) - BAND
        settled = settled | (np.abs(excess) <= 2.0**-48)
        if settled.all():
            break
        short = excess < 0
        low, high = np.where(short, s, low), np.where(short, high, s)
        new = s - s * (excess / slope(s))
        usable = (new > low) & (new < high)
        if number % 8 == 0 or not usable.all():
            middle = np.where(high == np.inf, 4 * s, np.where(low == 0, s / 4, np.sqrt(low) * np.sqrt(high)))
            new = np.where(usable & (number % 8 != 0), new, middle)
        new = np.where(settled, s, new)
        settled = settled | (new == s)
        s = new
    return s, number


def _clear_one(demand: Total, slope: Total, start: FloatArray) -> tuple[FloatArray, int]:
    """Do the same for one round in Python floats, which are faster than arrays of size 1."""
    s, low, high = start, 0.0, np.inf
    for number in range(1, PASSES + 1):
        excess, here = demand(s).item() - BAND, s.item()
        if abs(excess) <= 2.0**-48:
            break
        low, high = (here, high) if excess < 0 else (low, here)
        moving = slope(s).item() if number % 8 else 0.0
        new = here - here * excess / moving if moving > 0 else here
        if not low < new < high:
            new = 4 * here if high == np.inf else here / 4 if low == 0 else math.sqrt(low) * math.sqrt(high)
        if new == here:
            break
        s = start.copy()
        s[...] = new
    return s, number
