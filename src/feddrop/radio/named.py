"""Find the scheme, channel, outcome or objective that a ``[radio]`` section names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from feddrop.allocation import OBJECTIVES, CustomCost, Objective
from feddrop.config.radio import CUSTOM
from feddrop.errors import ConfigError, named_object, not_one_of, one_of, shortened


def function_named(key: str, name: str, settings: Mapping[str, Any], table: Mapping[str, Callable[..., Any]]) -> Any:
    """Return what a setting names, with its keyword arguments.

    Args:
        key: the setting, such as ``"radio.scheme"``.
        name: its value: a key of the table, or ``"package.module:object"``, which is imported.
        settings: keyword arguments.
        table: the functions and classes by name.
    """
    if name == CUSTOM:
        raise ConfigError(f"{key} is 'custom', so the run needs {key.partition('.')[2]}=... in Python. Pass it.")
    found = named_object(name, key) if ":" in name else table[one_of(key, name, table)]
    if settings and not callable(found):
        raise ConfigError(f"{key}_settings is given, but {name!r} is an object that takes no settings. Remove them.")
    if callable(found):
        _check_arguments(f"{key}_settings", found, settings)
    return partial(found, **settings) if settings else found


def _check_arguments(key: str, function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Raise unless a function has these keyword arguments, and needs no others."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # it has no signature
        return
    needed = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    if missing := [name for name in needed if name not in settings]:
        raise ConfigError(f"{key} lacks {' and '.join(missing)}. Add {', '.join(f'{key}.{one}' for one in missing)}.")
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return
    known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY or one.default is not one.empty]
    for name in settings:
        if name not in known:
            raise ConfigError(not_one_of(f"a key of {key}", name, known) if known else f"{key} has no key {name!r}.")


def takes(given: Any, count: int) -> bool:
    """Return whether something can be called with this many arguments, as far as its signature shows."""
    if not callable(given):
        return False
    try:
        inspect.signature(given).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # it has no signature
        pass
    return True


def built_on(channel: Callable[..., Any], fading: Any) -> Any:
    """Call a class or function with a fading: as ``fading`` or as its first argument, if it takes one."""
    try:
        known = [*inspect.signature(channel).parameters.values()]
    except ValueError:  # it has no signature
        return channel(fading)
    if any(one.name == "fading" and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) for one in known):
        return channel(fading=fading)
    needs = known and known[0].default is known[0].empty
    return channel(fading) if needs and known[0].kind.name not in ("KEYWORD_ONLY", "VAR_KEYWORD") else channel()


def objective_named(name: str) -> Objective:
    """Return an objective by its name in TOML; ``"package.module:object"`` is imported.

    The object has ``value(s)`` and ``slope(s)``, or is a pair of these functions.
    """
    if ":" not in name:
        return OBJECTIVES[one_of("radio.objective", name, OBJECTIVES)]
    return as_objective(named_object(name, "radio.objective"), name)


def as_objective(given: Any, name: str) -> Objective:
    """Return a user's objective: an object or class with ``value`` and ``slope``, or a pair of functions, checked."""
    found = given() if isinstance(given, type) else given
    value, slope = found if isinstance(found, tuple) and len(found) == 2 else (
        getattr(found, "value", None), getattr(found, "slope", None)
    )  # fmt: skip
    if not (callable(value) and callable(slope)):
        raise ConfigError(
            f"the objective {name} is {shortened(found)}; it must have value(s) and slope(s), or be a pair of them."
        )
    checked = CustomCost(value, slope)
    return found if hasattr(found, "weights") else checked
