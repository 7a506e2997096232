"""Describe settings: what they mean, from the docstrings of their classes, and their values, from the declarations."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from feddrop.config.conversion import declared, options_of

if TYPE_CHECKING:
    from feddrop.config.fields import Limits

_ENTRY = re.compile(r"\s*(\w+): (.*)")


def meanings(cls: type[Any], code: str = "") -> dict[str, str]:
    """Return the description of each field, from the Attributes of a settings class and of its bases.

    ``code`` is the quote around code, such as a backtick for Markdown.
    """
    fields = {item.name for item, _ in declared(cls)}
    found: dict[str, list[str]] = {}
    for base in reversed(cls.__mro__):
        current: list[str] | None = None
        for line in inspect.cleandoc(vars(base).get("__doc__") or "").partition("Attributes:\n")[2].splitlines():
            if line and not line.startswith(" "):  # the next section of the docstring, such as Example
                break
            entry = _ENTRY.fullmatch(line)
            if entry and entry[1] in fields:
                current = found[entry[1]] = [entry[2]]
            elif current is not None:
                current.append(line.strip())
    return {key: unquoted(" ".join(lines), code) for key, lines in found.items()}


def summary(cls: type[Any]) -> str:
    """Return the first paragraph of the docstring of a class."""
    return unquoted(" ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split()))


def unquoted(text: str, code: str = "") -> str:
    """Return reStructuredText as plain text with this quote around code."""
    return re.sub(r":\w+:`~?([^`]*)`", r"``\1``", text).replace("``", code).strip()


def allowed(hint: Any, limits: Limits, code: str = "") -> str:
    """Describe the allowed values of a setting; ``code`` is the quote around code."""
    first, *others = (_allowed(option, limits, code) for option in options_of(hint))
    return "; ".join([first, *("or a list of these" if other == f"list of {first}" else other for other in others)])


def _allowed(option: Any, limits: Limits, code: str) -> str:
    origin, inner = typing.get_origin(option), typing.get_args(option)
    if origin is tuple:
        if inner[0] is str:
            return "list of strings" if limits.words else f"list of {_allowed(str, limits, code)}"
        return f"list of numbers {_range(limits, code)}"
    if origin is not None and issubclass(origin, Mapping):
        return f"table of numbers {_allowed(inner[1], limits, code)}".removesuffix(" number")
    if option is bool:
        return f"{code}true{code}, {code}false{code}"
    if option is str:
        words = [f'{code}"{word}"{code}' for word in limits.choices or limits.words]
        words += [f'{code}"package.module:name"{code}'] if limits.custom else []
        return ", ".join(words) or ("file name" if limits.file else "string")
    return ("whole, " if option is int else "") + _range(limits, code)


def _range(limits: Limits, code: str) -> str:
    text = limits.range().replace("at least ", "≥ ").replace("above ", "> ").replace("at most ", "≤ ")
    text = "number" if text == "a number" else text
    return f"{text}, or {code}inf{code}" if limits.infinite else text


_UNITS = {"s": "s", "hz": "Hz", "w": "W", "j": "J", "db": "dB", "m": "m", "w_hz": "W/Hz"}


def unit(key: str) -> str:
    """Return the unit of a setting, which its name ends with; empty if it has none."""
    last = key.rpartition(".")[2]
    if last in ("seconds", "joules", "bytes"):
        return {"seconds": "s", "joules": "J", "bytes": "B"}[last]
    return next((_UNITS[end] for end in sorted(_UNITS, key=len, reverse=True) if last.endswith(f"_{end}")), "")
