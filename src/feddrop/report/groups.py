"""Runs that belong together, settings equal but for the seed: drawn as their mean, with a band for the spread."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from feddrop.errors import FeddropError
from feddrop.report.runlog import Floats, RunLog
from feddrop.report.style import SERIES

DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
MARKERS = ("o", "s", "^", "D")
_SEED_ENDING = re.compile(r"[-_ ./,]*(seed|s)?[-_=]?\d*$")
_SEED_IN_A_SWEEP = re.compile(r"(^|,)seed=\d+(?=,|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs of one setting, and how they are drawn.

    Attributes:
        name: of the one run, or what the names of all have in common.
        runs: one or more, which differ in nothing but the seed.
        settings: their settings, flat, without the seed.
        look: number of the colour, of the dash and of the marker.
    """

    name: str
    runs: tuple[RunLog, ...]
    settings: Mapping[str, Any]
    look: tuple[int, int, int] = (0, 0, 0)

    @property
    def colour(self) -> str:
        """The colour of its curves: one method has one colour, where there are several methods."""
        return SERIES[self.look[0] % len(SERIES)]

    @property
    def dash(self) -> object:
        """The dash of its curves."""
        return DASHES[self.look[1] % len(DASHES)]

    @property
    def marker(self) -> str:
        """The marker of its points."""
        return MARKERS[self.look[2] % len(MARKERS)]

    def spread(self, values: Sequence[float]) -> tuple[float, float]:
        """Return mean and sample standard deviation of one value a run; NaN for what is unknown."""
        known = np.array([value for value in values if np.isfinite(value)])
        if not known.size:
            return float("nan"), float("nan")
        return float(known.mean()), float(known.std(ddof=1)) if known.size > 1 else float("nan")

    def curve(self, key: str, x: Sequence[Floats]) -> tuple[Floats, Floats, Floats]:
        """Return place, mean and deviation of a value, in the rounds for which every run has one.

        Args:
            key: what is drawn, see :meth:`RunLog.series`.
            x: place of every round, one array a run.
        """
        there = [np.isfinite(run.series(key)) for run in self.runs]
        common = set.intersection(*({*run.rounds[is_].tolist()} for run, is_ in zip(self.runs, there, strict=True)))
        picked = [np.isin(run.rounds, list(common)) for run in self.runs]
        values = np.array([run.series(key)[is_] for run, is_ in zip(self.runs, picked, strict=True)])
        places = np.array([place[is_] for place, is_ in zip(x, picked, strict=True)])
        deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
        return places.mean(axis=0), values.mean(axis=0), deviation


def grouped(runs: Sequence[RunLog]) -> list[Group]:
    """Group runs by their settings, in the order in which they are given; a run and its repetition stay apart."""
    found: dict[tuple[str, int], list[RunLog]] = {}
    settings: dict[tuple[str, int], dict[str, Any]] = {}
    seeds: list[tuple[str, Any]] = []
    for run, flat_ in zip(runs, completed([run.config for run in runs]), strict=True):
        own = {key: run.info.get(key) for key in ("network", "data", "custom")}
        seed = flat_.pop("seed", None)
        same = repr((sorted(flat_.items(), key=lambda item: item[0]), own))
        key = (same, seeds.count((same, seed)))
        seeds.append((same, seed))
        found.setdefault(key, []).append(run)
        settings[key] = flat_
    names = _unique([_name(members) for members in found.values()])
    groups = [
        Group(name=name, runs=tuple(members), settings=settings[key])
        for name, (key, members) in zip(names, found.items(), strict=True)
    ]
    return with_looks(groups)


def alone(runs: Sequence[RunLog]) -> list[Group]:
    """Make every run a group of its own, each with a look of its own."""
    return [
        Group(name=run.name, runs=(run,), settings={}, look=(n % len(SERIES), n // len(SERIES), n // len(SERIES)))
        for n, run in enumerate(runs)
    ]


def with_looks(groups: Sequence[Group]) -> list[Group]:
    """Give every group a look: a colour each, or where methods have several groups, a colour a method."""
    methods = [str(group.settings.get("method.name", "")) for group in groups]
    kinds = list(dict.fromkeys(methods))
    by_method = 1 < len(kinds) < len(groups) and len(kinds) <= len(SERIES)
    looks: list[tuple[int, int, int]] = []
    for n, method in enumerate(methods):
        colour, nth = (kinds.index(method), methods[:n].count(method)) if by_method else divmod(n, len(SERIES))[::-1]
        looks.append((colour, nth, nth // len(DASHES) if by_method else nth))
    return [
        Group(name=group.name, runs=group.runs, settings=group.settings, look=look)
        for group, look in zip(groups, looks, strict=True)
    ]


def completed(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return configurations flat, with the defaults of keys that some have and others, written earlier, have not."""
    tables = [flat(_in_tables(config)) for config in configs]
    if all(table.keys() == tables[0].keys() for table in tables):
        return tables
    from feddrop.config import RunConfig  # it loads torch, which a report does not need otherwise

    return [_with_defaults(RunConfig, config, table) for config, table in zip(configs, tables, strict=True)]


def _with_defaults(reader: Any, config: Mapping[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    import tomllib

    import tomli_w

    try:
        known = reader.from_toml(tomli_w.dumps(config))
        rate = {} if known.radio is not None else {"rate": known.given_rate}  # a file leaves out what was not given
        return rate | flat(_in_tables(tomllib.loads(known.to_toml())))
    except (FeddropError, TypeError, ValueError):
        return table  # not a configuration of this version: as it stands


def _in_tables(config: Mapping[str, Any]) -> dict[str, Any]:
    """Write ``method = "fedavg"`` as the table that it stands for."""
    method = config.get("method")
    return {**config, "method": {"name": method}} if isinstance(method, str) else dict(config)


def flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested tables as one, with dots between the keys."""
    lines: dict[str, Any] = {}
    for key, value in values.items():
        lines |= flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return lines


def differing(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Return the settings in which groups differ, a value a group; None where a group does not have the section.

    A key that is missing from a section that is there was not yet known when that run was made: no difference. A
    section that only some have is one line, ``[section]``, and the keys in which those that have it differ.
    """
    tables = [group.settings for group in groups]
    sections = [{"", *(key.rpartition(".")[0] for key in table)} for table in tables]
    found: dict[str, list[Any]] = {}
    for key in dict.fromkeys(key for table in tables for key in table):
        section = key.rpartition(".")[0]
        lacking = [section not in there for there in sections]
        values = [table.get(key) for table in tables]
        if any(lacking):
            found.setdefault(f"[{section}]", [None if lacks else "given" for lacks in lacking])
        known = {repr(table[key]) for table in tables if key in table}
        if len(known) > 1:
            found[key] = values
    return found


def _name(runs: Sequence[RunLog]) -> str:
    if len(runs) == 1:
        return runs[0].name
    without = {_SEED_IN_A_SWEEP.sub("", run.name).strip(",") for run in runs}
    if len(without) == 1:
        return without.pop() or "base"
    letters = zip(*(run.name for run in runs), strict=False)
    shared = "".join(some[0] for some in takewhile(lambda some: len(set(some)) == 1, letters))
    return _SEED_ENDING.sub("", shared) or runs[0].name


def _unique(names: Sequence[str]) -> list[str]:
    """Number those that would read the same."""
    numbers = [names[: n + 1].count(name) for n, name in enumerate(names)]
    return [f"{name} ({n})" if names.count(name) > 1 else name for name, n in zip(names, numbers, strict=True)]
