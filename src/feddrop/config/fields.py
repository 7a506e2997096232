"""Declare each setting once: its default, its range and what it depends on.

A section of the configuration is a frozen dataclass derived from :class:`Settings` whose fields are made by
:func:`setting`. The declarations validate values and feed ``feddrop config``, docs/config.md and the JSON schema.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from feddrop.config.conversion import convert, declared, did_you_mean
from feddrop.errors import CUSTOM, ConfigError, not_one_of, shortened

_LOGIN = re.compile(r"://[^/:]*:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The values that a setting may have. The limits of a list or a table hold for each of its entries.

    Attributes:
        gt: exclusive lower bound.
        ge: inclusive lower bound.
        lt: exclusive upper bound.
        le: inclusive upper bound.
        zero: whether 0 is allowed in addition.
        infinite: whether infinity is allowed.
        choices: the allowed strings.
        words: the allowed strings of a setting that may also be a list of any strings.
        custom: whether ``"package.module:object"`` is allowed in addition to the choices.
        file: whether the setting names a file; relative names are resolved against the TOML file's folder.
        only_with: other settings of the section, with the values under which this one has an effect; under others, a
            value that differs from the default has no effect.
        strict: whether that is an error; otherwise it is a warning, because the setting belongs to an option that is
            merely not chosen.
    """

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    zero: bool = False
    infinite: bool = False
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    custom: bool = False
    file: bool = False
    only_with: Mapping[str, tuple[Any, ...]] | None = None
    strict: bool = True

    def problems(self, name: str, value: Any) -> Iterator[str]:
        """Yield one message for each entry of a value that is not allowed."""
        if isinstance(value, tuple):
            entry_limits = dataclasses.replace(self, words=())
            for i, entry in enumerate(value):
                yield from entry_limits.problems(f"{name}[{i}]", entry)
        elif isinstance(value, Mapping):
            for key, entry in value.items():
                yield from self.problems(f"{name}[{key!r}]", entry)
        elif isinstance(value, str):
            allowed = self.choices or self.words
            if problem := password_problem(name, value):
                yield problem
            if allowed and value not in allowed and not (self.custom and ":" in value):
                yield not_one_of(name, value, allowed, self._also())
        elif isinstance(value, int | float) and not isinstance(value, bool) and not self.allows(value):
            share = 1 in (self.lt, self.le)  # then a larger number was probably meant in percent
            percent = f" For {value:g} %, write {value / 100:g}." if share and 2 <= value <= 100 else ""
            finite = "" if math.isfinite(value) else "finite and "
            yield f"{name} is {value!r}; it must be {finite}{self.range()}.{percent}"

    def _also(self) -> str:
        """Return what is allowed besides the choices."""
        if self.custom:
            return CUSTOM
        if any(bound is not None for bound in (self.gt, self.ge, self.lt, self.le)):
            return f", or a number that is {self.range()}"
        return ", or a list of names" if self.words else ""

    def allows(self, value: float) -> bool:
        """Return whether a number lies in the range."""
        return (self.zero and value == 0) or (
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
            return "a number"
        if high is None:
            return f"{'0 or ' * self.zero}{'at least' if self.gt is None else 'above'} {low:g}"
        if low is None:
            return f"{'at most' if self.lt is None else 'below'} {high:g}"
        return f"in {'[' if self.gt is None else '('}{low:g}, {high:g}{']' if self.lt is None else ')'}"


def password_problem(name: str, text: str) -> str:
    """Return that a text holds an address with a password, which may contain ``/``, ``:`` and ``@``; else nothing."""
    logins = ((_LOGIN.search(word), word.rfind("@")) for word in text.split())
    if not any(login and login.end() < at for login, at in logins):
        return ""
    return (
        f"{name} holds an address with a password. Settings are saved in config.toml and shown in reports: keep the "
        "password in the environment, as in MLFLOW_TRACKING_PASSWORD."
    )


class _FromPreset:
    def __repr__(self) -> str:
        return "<preset>"


FROM_PRESET: Any = _FromPreset()
"""The default of a setting whose value comes from a preset."""


class Chosen(str):
    """A word that a preset or another setting chose, not the user; it equals the same plain string."""

    __slots__ = ()


def setting(default: Any, *, kw_only: bool = True, **limits: Any) -> Any:
    """Declare a field of a settings class.

    Args:
        default: its default; for an empty table, each instance gets its own.
        kw_only: False for the one field that may be given by position.
        **limits: the allowed values; see :class:`Limits`.
    """
    metadata = {"limits": Limits(**limits)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata, kw_only=kw_only)
    return dataclasses.field(default=default, metadata=metadata, kw_only=kw_only)


class Settings:
    """Base of the configuration's sections: converts and validates the fields of a new object.

    Subclasses are dataclasses with ``repr=False``: :meth:`__repr__` shows only the fields that differ from their
    defaults.
    """

    __slots__ = ()
    section: ClassVar[str] = ""
    """The section's key in TOML; empty at the top level."""

    def __init_subclass__(cls) -> None:
        """Let the ``__init__`` that the dataclass writes reject an unknown setting and suggest the nearest one.

        A dataclass with slots is created twice; the second time, it has its ``__init__``.
        """
        if written := vars(cls).get("__init__"):
            cls.__init__ = _rejecting_unknown(cls, written)  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        for item, hint in declared(type(self)):
            value = getattr(self, item.name)
            optional = types.NoneType in typing.get_args(hint)
            if value is not FROM_PRESET and not isinstance(value, Chosen) and not (optional and value is None):
                object.__setattr__(self, item.name, convert(value, hint, self.key(item.name)))
        found = chain(self._range_problems(), self.complete(), without_effect(self, strict=True), self.problems())
        if problem := next(found, ""):
            raise ConfigError(problem)

    def __repr__(self) -> str:
        normal = self.defaults()
        shown = [
            f"{'' if not item.kw_only else item.name + '='}{getattr(self, item.name)!r}"
            for item, _ in declared(type(self))
            if getattr(self, item.name) != normal[item.name]
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    @classmethod
    def key(cls, name: str) -> str:
        """Return the dotted key of a field, such as ``"train.lr"``."""
        return f"{cls.section}.{name}".lstrip(".")

    def defaults(self) -> dict[str, Any]:
        """Return the default of every field."""
        return {item.name: default_of(item) for item in dataclasses.fields(self)}  # type: ignore[arg-type]

    def complete(self) -> Iterator[str]:
        """Set the fields that come from a preset; yield one message per contradiction."""
        yield from ()

    def problems(self) -> Iterator[str]:
        """Yield one message for each rule between fields that is violated."""
        yield from ()

    def _range_problems(self) -> Iterator[str]:
        for item, _ in declared(type(self)):
            if limits := item.metadata.get("limits"):
                yield from limits.problems(self.key(item.name), getattr(self, item.name))


def _rejecting_unknown(cls: type[Settings], written: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(written)  # keeps the signature for help and completion
    def init(self: Settings, *args: Any, **given: Any) -> None:
        if unknown := given.keys() - {item.name for item in dataclasses.fields(self)}:  # type: ignore[arg-type]
            key = min(unknown)
            raise ConfigError(f"{cls.__name__} has no setting {key!r}.{did_you_mean(type(self), key)}")
        written(self, *args, **given)

    return init


def without_effect(settings: Settings, *, strict: bool) -> Iterator[str]:
    """Yield one message for each non-default setting that has no effect according to its declaration."""
    for item in dataclasses.fields(settings):  # type: ignore[arg-type]
        limits, value = item.metadata.get("limits"), getattr(settings, item.name)
        if limits is None or limits.only_with is None or limits.strict != strict:
            continue
        needed = {
            settings.key(name): (getattr(settings, name), allowed)
            for name, allowed in limits.only_with.items()
            if getattr(settings, name) not in allowed
        }
        if needed and value != settings.defaults()[item.name]:
            given = " and ".join(f"{key} = {other!r}" for key, (other, _) in needed.items())
            uses = " and ".join(f"{key} = {' or '.join(map(repr, allowed))}" for key, (_, allowed) in needed.items())
            what = f"{settings.key(item.name)} is {shortened(value)}"
            yield f"{what}, which has no effect with {given}; it needs {uses}. Remove it, or change the other setting."


def waiting(config: Settings) -> list[str]:
    """Return one line for each non-default setting, of any section, that waits for an option that is not chosen."""
    sections = [getattr(config, item.name) for item in dataclasses.fields(config)]  # type: ignore[arg-type]
    return [line for one in sections if isinstance(one, Settings) for line in without_effect(one, strict=False)]


def default_of(item: dataclasses.Field[Any]) -> Any:
    """Return the default of a field; ``FROM_PRESET`` if a preset decides."""
    return item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
