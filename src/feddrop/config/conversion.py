"""Convert between plain values, as TOML and JSON have them, and settings objects."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from feddrop.errors import ConfigError, shortened

T = TypeVar("T")


def declared(cls: Any) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    """Return the fields of a settings class with their types."""
    return _declared(cls)


@cache
def _declared(cls: Any) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    hints = typing.get_type_hints(cls)
    return tuple((item, hints[item.name]) for item in dataclasses.fields(cls))


def from_table(cls: type[T], table: Mapping[str, Any], prefix: str = "", others: Mapping[str, str] | None = None) -> T:
    """Create a settings object from plain values; ``others`` are keys of files for other commands, by key.

    ``prefix`` precedes the keys in messages, such as ``"radio."``.
    """
    known = [item.name for item, _ in declared(cls)]
    if unknown := [key for key in table if key not in known]:
        if command := next((others[other] for other in table if others and other in others), ""):
            raise ConfigError(f"unknown key {unknown[0]!r}: this looks like a file for `feddrop {command}`.")
        raise ConfigError(f"unknown key {prefix + unknown[0]!r}.{did_you_mean(cls, unknown[0], prefix)}")
    return cls(**table)


def did_you_mean(cls: Any, key: str, prefix: str = "") -> str:
    """Return a hint for a key that a settings class lacks: the nearest of its keys, or of those of its sections."""
    known = [item.name for item, _ in declared(cls)]
    sections = [(item.name, one) for item, hint in declared(cls) for one in options_of(hint) if is_section(one)]
    below = [f"{name}.{inner.name}" for name, one in sections for inner, _ in declared(one)]
    exact = [one for one in below if one.rpartition(".")[2] == key]
    if near := exact or difflib.get_close_matches(key, known, n=1):
        return f" Did you mean {' or '.join(repr(prefix + one) for one in near)}?"
    return f" Known keys: {', '.join(known)}." if known else f" {cls.__name__} has no settings."


def is_section(option: Any) -> bool:
    """Return whether the type of a field is a settings class."""
    return isinstance(option, type) and dataclasses.is_dataclass(option)


def to_table(settings: Any) -> dict[str, Any]:
    """Return a settings object as plain values; keys whose value is None are left out."""
    table: dict[str, Any] = {}
    for item in dataclasses.fields(settings):
        value = getattr(settings, item.name)
        if hasattr(value, "to_table"):
            table[item.name] = value.to_table()
        elif dataclasses.is_dataclass(value):
            table[item.name] = to_table(value)
        elif value is not None:
            table[item.name] = dict(value) if isinstance(value, Mapping) else value
    return table


def convert(value: Any, hint: Any, name: str) -> Any:
    """Convert a value from TOML or Python, including NumPy and torch numbers and arrays, to the type of a field."""
    if hasattr(hint, "read"):
        return hint.read(value, name)
    value = value if dataclasses.is_dataclass(value) else plain(value)
    options = options_of(hint)
    for option in options:
        if dataclasses.is_dataclass(option):
            if isinstance(value, typing.cast(type, option)):
                return value
            if isinstance(value, Mapping):
                return from_table(typing.cast(type[Any], option), value, f"{name}.")
            continue
        origin = typing.get_origin(option)
        if origin is tuple and isinstance(value, list | tuple):
            inner = typing.get_args(option)[0]
            return tuple(convert(entry, inner, f"{name}[{i}]") for i, entry in enumerate(value))
        if origin is not None and issubclass(origin, Mapping):
            if isinstance(value, Mapping):
                return _convert_table(value, typing.get_args(option)[1], name)
        elif option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(_storable(value, name))
        elif option in (int, str, bool) and type(value) is option:
            return _storable(value, name)
    allowed = " or ".join(map(_type_name, options))
    section = any(map(dataclasses.is_dataclass, options)) and not isinstance(value, str | int | float | tuple)
    hint = " Custom networks, data and functions are arguments of feddrop.run, not settings." if section else ""
    raise ConfigError(f"{name} is {shortened(value)}; it must be {allowed}.{hint}")


def options_of(hint: Any) -> tuple[Any, ...]:
    """Return the types that a field may have, without None."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return tuple(option for option in options if option is not types.NoneType)


def _convert_table(value: Mapping[Any, Any], inner: Any, name: str) -> dict[str, Any]:
    if wrong := [key for key in value if not isinstance(key, str)]:
        raise ConfigError(f"{name} has the key {shortened(wrong[0])}; it must be a string.")
    return {key: convert(entry, inner, f"{name}.{key}") for key, entry in value.items()}


def _storable(value: Any, name: str) -> Any:
    """Return a number that fits into 64 bits, or a string that UTF-8 can encode; TOML guarantees neither."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        digits = (len(hex(abs(value))) - 2) * 1204 // 1000
        raise ConfigError(f"{name} has about {digits} digits; it must fit into 64 bits.")
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ConfigError(f"{name} is {shortened(value)}, which cannot be encoded as UTF-8.")
    return value


def plain(value: Any) -> Any:
    """Convert NumPy and torch scalars and arrays to plain numbers and tuples, also within tables."""
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(plain(entry) for entry in value) if isinstance(value, list) else value


def _type_name(option: Any) -> str:
    if dataclasses.is_dataclass(option):
        return f"a table, or feddrop.{typing.cast(type, option).__name__}(...) in Python"
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    return names.get(option, "a list" if typing.get_origin(option) is tuple else "a table")
