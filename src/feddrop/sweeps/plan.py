"""Sweep files: a base configuration, a grid of values and named variants; each combination is a run."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from feddrop.config import RunConfig, locate
from feddrop.config.parsing import flat, is_under, read_toml, user_path
from feddrop.errors import ConfigError, not_one_of, shortened
from feddrop.simulation.preflight import check_config

MOST = 10_000
"""Largest number of runs; more are probably a mistake."""
LONGEST = 100
"""Longest name of a run, in characters."""
_KEYS = ("base", "grid", "variants")
_PLAIN = re.compile(r"[^\w.,=+-]+")


def read_sweep(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, RunConfig]:
    """Read a sweep file.

    Args:
        path: the file. ``base`` names a configuration file or is a table of settings; ``[grid]`` has a list of values
            per varied setting; each of ``[[variants]]`` has a ``name`` and settings. Every variant is combined with
            every combination of the grid.
        overrides: ``"section.key=value"`` settings for all runs.

    Returns:
        One configuration per run, by a name made of the varied settings.
    """
    table = read_toml(path, "the sweep")
    for problem in _problems(str(path), table):
        raise ConfigError(problem)
    folder = Path(path).parent.absolute()
    base = _base(table.get("base", {}), folder)
    variants = _variants(table.get("variants", []), folder)
    grid: dict[str, list[Any]] = flat(table.get("grid", {}))
    for problem in conflicts(variants, grid, overrides):
        raise ConfigError(problem)
    runs: dict[str, RunConfig] = {}
    seen: dict[str, str] = {}
    for (label, variant), values in itertools.product(variants, itertools.product(*grid.values())):
        cell = dict(zip(grid, values, strict=True))
        name = run_name(label, cell)
        if name in runs:  # a number and a string, or equal short digests
            name = run_name(label, cell, digest_size=8)
        try:
            config = configured(inherited(base, variant), cell, folder, overrides)
        except ConfigError as error:
            raise ConfigError(f"run {name or 'base'}: {error}") from None
        first = seen.setdefault(config.to_toml(), name)
        if first != name:
            raise ConfigError(f"runs {first} and {name} are identical. Remove one of them.")
        runs[name or "base"] = config
    return runs


def _problems(path: str, table: Mapping[str, Any]) -> Iterator[str]:
    """Yield one message for each mistake in the form of a sweep file."""
    run_keys = {item.name for item in dataclasses.fields(RunConfig)}
    if not table.keys() & {*_KEYS} and table.keys() & run_keys:
        yield (
            f"{path!r} has none of the keys of a sweep: {', '.join(_KEYS)}. It looks like a file for `feddrop run`; a "
            "sweep can use it as its base."
        )
    yield from (not_one_of("a key of the sweep", key, _KEYS) for key in table if key not in _KEYS)
    base, grid, variants = table.get("base", {}), table.get("grid", {}), table.get("variants", [])
    if not isinstance(base, str | Mapping):
        yield f"base is {shortened(base)}; it must be the name of a TOML file or a table of settings."
    if not isinstance(grid, Mapping):
        yield f"grid is {shortened(grid)}; it must be a table with one list per setting."
    for key, values in flat(grid).items():
        if not isinstance(values, list) or not values:
            yield f"grid.{key} is {shortened(values)}; it must be a list. Put a single value into base."
        elif len({json.dumps(value, sort_keys=True, default=str) for value in values}) < len(values):
            yield f"grid.{key} is {shortened(values)}; it contains a value twice."
    if not isinstance(variants, list) or not all(isinstance(one, Mapping) for one in variants):
        yield "variants must be tables: write each as [[variants]] with a name and settings."
    names = [one.get("name") for one in variants]
    for number, name in enumerate(names, 1):
        if not isinstance(name, str) or not name.strip():
            yield f'variant {number} has no name. Add name = "..." to it.'
        if names.count(name) > 1:
            yield f"two variants are named {name!r}. Rename one of them."


def conflicts(
    variants: list[tuple[str, dict[str, Any]]], grid: Mapping[str, list[Any]], overrides: Sequence[str]
) -> Iterator[str]:
    """Yield one message per override of a varied setting, and one if there are too many runs."""
    varied = {*grid, *(key for _, variant in variants for key in flat(variant))}
    for key, given in itertools.product(sorted(varied), (one.partition("=")[0].strip() for one in overrides)):
        if is_under(key, [given]) or is_under(given, [key]):  # or a section and one of its keys
            yield f"{key} is varied by the sweep and set by --set {given}. Remove one of them."
    count = len(variants) * math.prod(len(values) for values in grid.values())
    if count > MOST:
        yield f"the sweep has {count} runs; at most {MOST} are allowed. Shorten its lists."


def configured(settings: dict[str, Any], cell: Mapping[str, Any], folder: Path, overrides: Sequence[str]) -> RunConfig:
    """Return the configuration of one run; the method is set before its settings."""
    for key in sorted(cell, key=lambda key: not f"{key}.name".startswith("method.name")):
        settings = merged(settings, _nested(key, cell[key]))
    locate(settings, folder)
    config = RunConfig.from_toml(tomli_w.dumps(settings), overrides)
    check_config(config)
    return config


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Override settings section by section; another method does not inherit the settings of the previous one."""
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


def inherited(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Override the settings of a base with those of an arm, whose method drops the base's rate if it has none."""
    found = merged(base, more)
    if "rate" in base and "rate" not in more and "method" in more:
        method = RunConfig.from_toml(tomli_w.dumps({"method": found["method"]})).method
        if method.rateless:
            del found["rate"]
    return found


def _as_table(method: Any) -> dict[str, Any]:
    """Return a method, given as a name or a table, as a table."""
    return dict(method) if isinstance(method, Mapping) else {} if method is None else {"name": method}


def _base(given: Mapping[str, Any] | str, folder: Path) -> dict[str, Any]:
    """Return the settings of the base with absolute file names."""
    if isinstance(given, str):
        path = folder / user_path(given)
        given, folder = read_toml(path, "the base configuration"), path.parent.absolute()
    table = dict(given)
    locate(table, folder)
    return table


def _variants(given: list[Mapping[str, Any]], folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the variants by name; a nameless one without settings if there are none."""
    found = []
    for one in given:
        settings = {key: value for key, value in one.items() if key != "name"}
        locate(settings, folder)
        found.append((str(one["name"]), settings))
    return found or [("", {})]


def _nested(key: str, value: Any) -> dict[str, Any]:
    *sections, last = key.split(".")
    table: dict[str, Any] = {last: value}
    for section in reversed(sections):
        table = {section: table}
    return table


def run_name(label: str, cell: Mapping[str, Any], digest_size: int = 0) -> str:
    """Return the name of a run and its folder: the variant, the varied settings, and a digest if they are abbreviated.

    A ``digest_size`` of 0 means 3 bytes, only if needed.
    """
    words = [f"{key.removesuffix('.name')}={_word(value)}" for key, value in cell.items()]
    full = ",".join([*([label] if label else []), *words])
    name = _PLAIN.sub("-", full).strip("-.")[:LONGEST]
    plain = name == full and all(isinstance(value, str | int | float) for value in cell.values())
    if (plain and not digest_size) or not full:
        return name
    content = json.dumps([label, cell], default=str).encode()
    return f"{name}-{hashlib.blake2b(content, digest_size=digest_size or 3).hexdigest()}"


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("name", "table"))
    return "list" if isinstance(value, list) else str(value)
