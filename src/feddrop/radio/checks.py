"""Numbers that a user gave, checked: an error says which setting it is and what it may be."""

from __future__ import annotations

from typing import Any

import numpy as np

from feddrop.allocation.problem import FloatArray
from feddrop.errors import ConfigError


def positive(name: str, value: float | None) -> float:
    """Return a scalar that is finite and positive, else raise a ConfigError."""
    if value is None:
        raise ConfigError(f"{name} is missing.")
    number = plain(name, value)
    if not 0 < number < np.inf:
        raise ConfigError(f"{name} is {number:g}; it must be finite and positive.")
    return number


def numbers(name: str, value: Any) -> FloatArray:
    """Return numbers of any kind as an array, else raise a ConfigError."""
    try:
        return np.asarray(value, dtype=np.float64)
    except OverflowError:
        raise ConfigError(f"{name} is beyond what a number can be.") from None
    except (TypeError, ValueError):
        raise ConfigError(f"{name} must be a number, or one a device.") from None


def plain(name: str, value: Any) -> float:
    """Return a number of any kind as a float, else raise a ConfigError."""
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(f"{name} is beyond what a number can be.") from None
    except (TypeError, ValueError):
        raise ConfigError(f"{name} is {value!r}; it must be a number.") from None
