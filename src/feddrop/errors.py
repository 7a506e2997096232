"""The exceptions of feddrop. Each message says what was given, what is allowed and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


class FeddropError(Exception):
    """Base class of all errors that feddrop raises.

    Example:
        >>> import feddrop
        >>> try:
        ...     feddrop.RunConfig(rounds=0)
        ... except feddrop.FeddropError as error:
        ...     print(error)
        rounds is 0; it must be at least 1.
    """


class ConfigError(FeddropError, ValueError):
    """An invalid setting or argument."""


class DataError(FeddropError):
    """A missing, damaged or inconsistent data set."""


class SubnetError(FeddropError):
    """A subnet that cannot be cut from this network."""


class FrameError(FeddropError):
    """Bytes that are not a valid frame for this network."""


class TrainingError(FeddropError):
    """Local training that failed on a device."""


class RunError(FeddropError):
    """A run that cannot start, continue or be resumed."""


class InfeasibleError(FeddropError):
    """No rates and shares meet the deadline and the energy budgets."""


class FeddropWarning(UserWarning):
    """Something that works but is probably a mistake; the message says what to do."""


def shortened(value: object, longest: int = 80) -> str:
    """Return the ``repr`` of a value on one line, truncated for a message; integers may have any number of digits."""
    text = hex(value) if isinstance(value, int) and abs(value) > 10**longest else repr(value)
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def clean(text: object, longest: int | None = None) -> str:
    """Return text as one printable line, without control characters or terminal escapes, cut at ``longest``."""
    line = "".join(c if c.isprintable() else " " for c in str(text)).strip()
    return line if longest is None or len(line) <= longest else line[: longest - 1] + "…"


def one_of(what: str, given: str, allowed: Iterable[str]) -> str:
    """Return ``given`` if it is allowed; otherwise raise a ConfigError that suggests the nearest allowed word."""
    words = sorted(allowed)
    if given in words:
        return given
    raise ConfigError(not_one_of(what, given, words))


def not_one_of(what: str, given: str, allowed: Iterable[str], also: str = "") -> str:
    """Return the message for a word that is not allowed, with the nearest one that is; ``also`` ends the list."""
    words = sorted(allowed)
    near = difflib.get_close_matches(str(given), words, n=1) or [one for one in _MEANT.get(given, ()) if one in words]
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    listed = f"{'one of ' * (len(words) > 1)}{', '.join(map(repr, words))}{also}"
    return f"{what} is {shortened(given)}; it must be {listed}.{hint}"


CUSTOM = ' or "package.module:name"'
"""Ends the list of allowed words if a custom object is allowed, too."""

_MEANT = {"none": ("no-dropout", "ideal")}
"""Words that are not allowed, and the allowed words that they may stand for."""


def within(what: str, given: float, low: float, high: float) -> float:
    """Return a number if it lies in ``[low, high]``; otherwise raise a ConfigError."""
    if low <= given <= high:
        return given
    raise ConfigError(f"{what} is {given}; it must be from {low} to {high}.")


def named_object(name: str, what: str) -> Any:
    """Import ``"package.module:object"``, the value of the setting ``what``."""
    module, _, attribute = name.partition(":")
    try:
        if not all(part.isidentifier() for part in module.split(".")):
            raise ImportError(f"{module!r} is not the name of a module")
        found = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f'{what} is {name!r}, which cannot be imported: {error}. Write "package.module:name", where the module is '
            "installed or in the current folder."
        ) from None
    return found


@contextmanager
def errors_of(where: str) -> Iterator[None]:
    """Turn an error of a user's scheme, channel or outcome into one that names it."""
    try:
        yield
    except FeddropError:
        raise
    except Exception as error:
        raise RunError(f"{where}: it raised {type(error).__name__}: {clean(error, 200)}.") from error
