"""Declare each setting once: its default, its range and what it depends on.

A section of the configuration is a frozen dataclass derived from :class:`Section` whose fields are made by
:func:`setting`. The declaration checks values, feeds ``feddrop config`` and docs/config.md, and becomes the JSON schema.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, TypeVar

from feddrop.errors import ConfigError, one_of, shortened

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a setting may be.

    Attributes:
        gt: exclusive lower bound; of every entry, if the setting is a list or a table.
        ge: inclusive lower bound.
        lt: exclusive upper bound.
        le: inclusive upper bound.
        infinite: whether infinity is allowed.
        choices: the words allowed.
        file: whether the setting names a file; relative names are resolved against the TOML file's folder.
        only_with: other settings of the section, with the values under which this one has an effect.
        strict: whether a value without effect is an error; otherwise it is a notice.
    """

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    infinite: bool = False
    choices: tuple[str, ...] = ()
    file: bool = False
    only_with: Mapping[str, tuple[Any, ...]] | None = None
    strict: bool = True

    def check(self, name: str, value: Any) -> None:
        """Raise a ConfigError unless a value, and every entry of a list or table, is allowed."""
        if isinstance(value, tuple):
            for i, entry in enumerate(value):
                self.check(f"{name}[{i}]", entry)
        elif isinstance(value, Mapping):
            for key, entry in value.items():
                self.check(f"{name}[{key!r}]", entry)
        elif isinstance(value, str):
            if self.choices:
                one_of(name, value, self.choices)
        elif isinstance(value, int | float) and not isinstance(value, bool) and not self.allows(value):
            raise ConfigError(f"{name} is {value!r}; it must be {self.range()}.")

    def allows(self, value: float) -> bool:
        """Return whether a number lies in the range."""
        return (
            (math.isfinite(value) or (self.infinite and not math.isnan(value)))
            and (self.gt is None or value > self.gt)
            and (self.ge is None or value >= self.ge)
            and (self.lt is None or value < self.lt)
            and (self.le is None or value <= self.le)
        )

    def range(self) -> str:
        """Return the range in words."""
        low, high = (self.gt if self.ge is None else self.ge), (self.lt if self.le is None else self.le)
        if low is None and high is None:
            return "a finite number"
        if high is None:
            return f"at least {low:g}" if self.gt is None else f"a number above {low:g}"
        if low is None:
            return f"at most {high:g}" if self.lt is None else f"below {high:g}"
        return f"a number in {'[' if self.gt is None else '('}{low:g}, {high:g}{']' if self.lt is None else ')'}"


def setting(default: Any, *, kw_only: bool = True, **limits: Any) -> Any:
    """Declare a field of a section.

    Args:
        default: its default; a mapping is copied for every instance.
        kw_only: False for the one field that may be given by position.
        **limits: what it may be; see :class:`Limits`.
    """
    metadata = {"limits": Limits(**limits)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata, kw_only=kw_only)
    return dataclasses.field(default=default, metadata=metadata, kw_only=kw_only)


class Section:
    """A table of the configuration: converts and checks its fields when it is created."""

    __slots__ = ()
    section: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for item, hint in declared(type(self)):
            name = f"{self.section}.{item.name}".lstrip(".")
            value = getattr(self, item.name)
            if value is not None or types.NoneType not in typing.get_args(hint):
                object.__setattr__(self, item.name, value := convert(value, hint, name))
            if limits := item.metadata.get("limits"):
                limits.check(name, value)
        for line in without_effect(self, strict=True):
            raise ConfigError(f"{line} Remove it, or change {'that' if ' and ' not in line else 'those'}.")
        self.check()

    def check(self) -> None:
        """Raise a ConfigError for values that contradict each other. Sections with such rules override it."""

    def notices(self) -> list[str]:
        """Return one line for every setting that was changed and has no effect, though it may later."""
        return list(without_effect(self, strict=False))


def without_effect(section: Any, *, strict: bool) -> Iterator[str]:
    """Yield one line for every changed setting of a section that has no effect by its declaration."""
    prefix = f"{section.section}." if section.section else ""
    for item, _ in declared(type(section)):
        limits, value = item.metadata.get("limits"), getattr(section, item.name)
        if limits is None or limits.only_with is None or limits.strict != strict or value == default_of(item):
            continue
        needed = {name: allowed for name, allowed in limits.only_with.items() if getattr(section, name) not in allowed}
        if needed:
            given = " and ".join(f"{prefix}{name} = {getattr(section, name)!r}" for name in needed)
            uses = " and ".join(f"{prefix}{name} = {' or '.join(map(repr, used))}" for name, used in needed.items())
            yield f"{prefix}{item.name} is {shortened(value)}, which has no effect with {given}; it is for {uses}."


def default_of(item: dataclasses.Field[Any]) -> Any:
    """Return the default of a field."""
    return item.default_factory() if item.default is dataclasses.MISSING else item.default  # type: ignore[misc]


@cache
def declared(cls: Any) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    """Return the fields of a section with their types."""
    hints = typing.get_type_hints(cls)
    return tuple((item, hints[item.name]) for item in dataclasses.fields(cls))


def from_table(cls: type[T], table: Mapping[str, Any], prefix: str = "", others: Mapping[str, str] | None = None) -> T:
    """Create a section from plain values.

    Args:
        cls: the section.
        table: its values by key.
        prefix: of the keys in messages, such as ``"radio."``.
        others: keys that only files of other commands have, with the command.
    """
    known = [item.name for item, _ in declared(cls)]
    for key in table:
        if key not in known:
            if command := next((others[other] for other in table if other in others), "") if others else "":
                raise ConfigError(f"unknown key {key!r}: this looks like a file for `feddrop {command}`.")
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" Did you mean {prefix + near[0]!r}?" if near else f" Known keys: {', '.join(known)}."
            raise ConfigError(f"unknown key {prefix + key!r}.{hint}")
    return cls(**table)


def to_table(section: Any) -> dict[str, Any]:
    """Return a section as plain values; keys whose value is None are left out."""
    table: dict[str, Any] = {}
    for item in dataclasses.fields(section):
        value = getattr(section, item.name)
        if hasattr(value, "to_table"):
            table[item.name] = value.to_table()
        elif dataclasses.is_dataclass(value):
            table[item.name] = to_table(value)
        elif value is not None:
            table[item.name] = dict(value) if isinstance(value, Mapping) else value
    return table


def convert(value: Any, hint: Any, name: str) -> Any:
    """Convert a value of TOML or Python, NumPy's and torch's numbers and arrays included, to the type of a field."""
    if hasattr(hint, "read"):
        return hint.read(value, name)
    value = value if dataclasses.is_dataclass(value) else plain(value)
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
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
        if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
            if isinstance(value, Mapping):
                return _convert_table(value, typing.get_args(option)[1], name)
        elif option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(_storable(value, name))
        elif option in (int, str, bool) and type(value) is option:
            return _storable(value, name)
    allowed = " or ".join(_type_name(option) for option in options if option is not types.NoneType)
    raise ConfigError(f"{name} is {shortened(value)}; it must be {allowed}.")


def _convert_table(value: Mapping[Any, Any], inner: Any, name: str) -> dict[str, Any]:
    if wrong := [key for key in value if not isinstance(key, str)]:
        raise ConfigError(f"{name} has the key {shortened(wrong[0])}; it must be a string.")
    return {key: convert(entry, inner, f"{name}.{key}") for key, entry in value.items()}


def _storable(value: Any, name: str) -> Any:
    """Return a number that fits into 64 bits, or a string that UTF-8 can encode; TOML guarantees neither."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(
            f"{name} has {(len(hex(abs(value))) - 2) * 1204 // 1000} digits or so; it must fit into 64 bits."
        )
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ConfigError(f"{name} is {shortened(value)}, which cannot be encoded as UTF-8.")
    return value


def plain(value: Any) -> Any:
    """Convert scalars and arrays, NumPy's and torch's, to plain numbers and tuples; also within tables."""
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(plain(entry) for entry in value) if isinstance(value, list) else value


def _type_name(option: Any) -> str:
    if dataclasses.is_dataclass(option):
        return "a table"
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    return names.get(option, "a list" if typing.get_origin(option) is tuple else "a table")
