"""Sweep files: a base configuration, lists to cross, and named variants; each combination is a run."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from feddrop.config import RunConfig, locate
from feddrop.config.parsing import flat, read_toml, user_path
from feddrop.errors import ConfigError, one_of, shortened

MOST = 10_000
"""Runs of a sweep, at most: more is a slip."""
LONGEST = 100
"""Letters of a run's name."""
_KEYS = ("base", "grid", "variants")
_PLAIN = re.compile(r"[^\w.,=+-]+")


def read_sweep(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, RunConfig]:
    """Read a sweep file.

    Args:
        path: the file. ``base`` names a configuration file or is a table of settings; ``[grid]`` holds a list for each
            setting that is varied; each of ``[[variants]]`` has a ``name`` and settings. Every variant is crossed with
            every combination of the grid.
        overrides: ``"section.key=value"`` settings that hold for all runs.

    Returns:
        A configuration a run, by a name made of what is varied.
    """
    table = read_toml(path, "the sweep")
    of_a_run = {one.name for one in dataclasses.fields(RunConfig)}
    if any(key in of_a_run for key in table) and not any(key in _KEYS for key in table):
        raise ConfigError(
            f"{str(path)!r} has none of the keys of a sweep: {', '.join(_KEYS)}. `feddrop run` takes the settings of "
            "one run; a sweep takes such a file as its base."
        )
    for key in table:
        one_of("a key of the sweep", key, _KEYS)
    folder = Path(path).parent.absolute()
    base = _base(table.get("base", {}), folder)
    variants = _variants(table.get("variants", []), folder)
    grid = _grid(table.get("grid", {}))
    varied = {*grid, *(key for _, variant in variants for key in flat(variant))}
    for key, said in itertools.product(sorted(varied), (one.partition("=")[0].strip() for one in overrides)):
        if f"{key}.".startswith(f"{said}.") or f"{said}.".startswith(f"{key}."):  # or a section, and a key of it
            raise ConfigError(f"{key} is varied by the sweep, and given by --set {said}. Leave out one of them.")
    count = len(variants) * _product([len(values) for values in grid.values()])
    if count > MOST:
        raise ConfigError(f"the sweep makes {count} runs; at most {MOST} are taken. Shorten its lists.")
    runs: dict[str, RunConfig] = {}
    seen: dict[str, str] = {}
    for (label, variant), values in itertools.product(variants, itertools.product(*grid.values())):
        settings = merged(base, variant)
        cell = dict(zip(grid, values, strict=True))
        for key in sorted(cell, key=lambda key: not f"{key}.name".startswith("method.name")):  # the method first
            settings = merged(settings, _nested(key, cell[key]))
        name = _name(label, cell)
        if name in runs:  # of a number and a text, or of two whose short digests are the same
            name = _name(label, cell, digest_size=8)
        try:
            locate(settings, folder)
            config = RunConfig.from_toml(tomli_w.dumps(settings), overrides)
        except ConfigError as error:
            raise ConfigError(f"run {name or 'base'}: {error}") from None
        first = seen.setdefault(repr(config), name)
        if first != name:
            raise ConfigError(f"runs {first} and {name} are the same. Leave out one of them.")
        runs[name or "base"] = config
    return runs


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Lay settings over others, section by section; another method comes without the settings of the one before."""
    found = dict(base)
    for key, value in more.items():
        before, over = found.get(key), value
        if key == "method":
            before, over = _as_table(before), _as_table(value)
            if over.get("name", before.get("name")) != before.get("name", "feddrop"):
                before = {}
        sections = isinstance(before, Mapping) and isinstance(over, Mapping)
        found[key] = merged(before, over) if sections else over  # type: ignore[arg-type]
    return found


def _as_table(method: Any) -> dict[str, Any]:
    """Return a method as a table: a name alone will do."""
    return dict(method) if isinstance(method, Mapping) else {} if method is None else {"name": method}


def _base(given: Any, folder: Path) -> dict[str, Any]:
    if isinstance(given, Mapping):
        table = dict(given)
        locate(table, folder)
        return table
    if not isinstance(given, str):
        raise ConfigError(f"base is {shortened(given)}; it must be the name of a TOML file, or a table of settings.")
    path = folder / user_path(given)
    table = read_toml(path, "the base configuration")
    locate(table, path.parent.absolute())
    return table


def _variants(given: Any, folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the variants by name; one without a name, and settings, where there are none."""
    if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
        raise ConfigError("variants must be tables: write each as [[variants]], a name and settings.")
    found: dict[str, dict[str, Any]] = {}
    for number, one in enumerate(given, 1):
        settings = dict(one)
        name = settings.pop("name", None)
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f'variant {number} has no name. Add name = "..." to it.')
        if name in found:
            raise ConfigError(f"two variants are called {name!r}. Give each a name of its own.")
        locate(settings, folder)
        found[name] = settings
    return list(found.items()) or [("", {})]


def _grid(given: Any) -> dict[str, list[Any]]:
    """Return the lists of the grid by dotted keys."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"grid is {shortened(given)}; it must be a table: a list for each setting.")
    grid = flat(given)
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(
                f"grid.{key} is {shortened(values)}; it must be a list of values. What is the same in all runs stands "
                "in base."
            )
        if len({json.dumps(value, sort_keys=True, default=str) for value in values}) < len(values):
            raise ConfigError(f"grid.{key} is {shortened(values)}; it names a value twice.")
    return grid


def _nested(key: str, value: Any) -> dict[str, Any]:
    *sections, last = key.split(".")
    table: dict[str, Any] = {last: value}
    for section in reversed(sections):
        table = {section: table}
    return table


def _name(label: str, cell: Mapping[str, Any], digest_size: int = 0) -> str:
    """Make the name of a run, and of its folder: what is varied, and a digest where that is not said in full.

    Args:
        label: of the variant.
        cell: what is varied.
        digest_size: bytes of the digest; 0 for 3 where there must be one.
    """
    words = [f"{key.removesuffix('.name')}={_word(value)}" for key, value in cell.items()]
    full = ",".join([*([label] if label else []), *words])
    name = _PLAIN.sub("-", full).strip("-.")[:LONGEST]
    plain = name == full and all(isinstance(value, str | int | float) for value in cell.values())
    if (plain and not digest_size) or not full:
        return name
    said = json.dumps([label, cell], default=str).encode()
    return f"{name}-{hashlib.blake2b(said, digest_size=digest_size or 3).hexdigest()}"


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("name", "table"))
    return "list" if isinstance(value, list) else str(value)


def _product(sizes: list[int]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count
