"""Group runs that are seeds of one experiment, and find the settings and objects in which groups differ."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import takewhile
from typing import Any

import numpy as np

from feddrop.comparison.identity import (
    Identity,
    chosen_method_settings,
    complete_settings,
    identity_of,
    object_differences,
)
from feddrop.config.parsing import is_under
from feddrop.report.runlog import Floats, RunLog
from feddrop.report.style import SERIES

DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
MARKERS = ("o", "s", "^", "D")
_SEED_ENDING = re.compile(r"([-_ ./,]+(seed|s)?|seed)[-_=]?\d*$")
_SEED_IN_A_SWEEP = re.compile(r"(^|,)seed=\d+(?=,|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs that differ only in their seed, and how they are drawn.

    Attributes:
        name: the name of the run, or what the names of all runs have in common.
        runs: one run or more.
        settings: their common settings by dotted key, as far as they shape the result.
        identity: what the runs have in common; None if they were not compared.
        look: indices of colour, dash and marker.
    """

    name: str
    runs: tuple[RunLog, ...]
    settings: Mapping[str, Any]
    identity: Identity | None = None
    look: tuple[int, int, int] = (0, 0, 0)

    @property
    def colour(self) -> str:
        """The colour of its curves; if there are more groups than colours, each method has one."""
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
        """Return the mean and sample standard deviation of one value per run; NaN where unknown."""
        known = np.array([value for value in values if np.isfinite(value)])
        if not known.size:
            return float("nan"), float("nan")
        return float(known.mean()), float(known.std(ddof=1)) if known.size > 1 else float("nan")

    def curve(self, key: str, x: Sequence[Floats]) -> tuple[Floats, Floats, Floats]:
        """Return x, mean and standard deviation of a quantity over the runs.

        Where all runs have the same x in the rounds they share, as they do against rounds, those rounds are averaged.
        Otherwise, as against seconds, values are interpolated linearly at evenly spaced x that all runs cover. A run
        keeps the value of its last evaluation until its last round.

        Args:
            key: the quantity, see :meth:`RunLog.series`.
            x: the x-coordinate of every round, one array per run.
        """
        known = [np.isfinite(run.series(key)) & np.isfinite(place) for run, place in zip(self.runs, x, strict=True)]
        rounds = [run.rounds[here] for run, here in zip(self.runs, known, strict=True)]
        places = [place[here] for place, here in zip(x, known, strict=True)]
        values = [run.series(key)[here] for run, here in zip(self.runs, known, strict=True)]
        common = reduce(np.intersect1d, rounds)
        shared = np.array([place[np.isin(one, common)] for place, one in zip(places, rounds, strict=True)])
        first = max(map(np.min, places)) if common.size else np.inf
        last = min(map(np.nanmax, x)) if common.size else -np.inf
        if (shared == shared[0]).all() or first >= last:
            grid = shared.mean(axis=0)
            drawn = np.array([value[np.isin(one, common)] for value, one in zip(values, rounds, strict=True)])
        else:
            grid = np.linspace(first, last, max(map(len, places)))
            drawn = np.array([np.interp(grid, place, value) for place, value in zip(places, values, strict=True)])
        deviation = drawn.std(axis=0, ddof=1) if len(drawn) > 1 else np.zeros(drawn.shape[1])
        return grid, drawn.mean(axis=0), deviation


def grouped(runs: Sequence[RunLog]) -> list[Group]:
    """Group runs of equal identity, which are seeds of one experiment; runs of equal seeds go to separate groups.

    Groups and their runs are in the given order, which does not affect the grouping.
    """
    keys: dict[int, tuple[Identity, int]] = {}
    seen: Counter[tuple[Identity, str]] = Counter()
    for n, run in sorted(enumerate(runs), key=lambda item: (item[1].name, str(item[1].info.get("id")))):
        found = identity_of(run.config, run.info, f"{run.name} {n}")
        seed = repr(complete_settings(run.config).get("seed"))
        keys[n] = (found, seen[found, seed])
        seen[found, seed] += 1
    members: dict[tuple[Identity, int], list[RunLog]] = {}
    for n, run in enumerate(runs):
        members.setdefault(keys[n], []).append(run)
    names = _numbered([marked(_group_name(group), group[0]) for group in members.values()])
    groups = [
        Group(name=name, runs=tuple(group), settings=_shown(group[0], found), identity=found)
        for name, ((found, _), group) in zip(names, members.items(), strict=True)
    ]
    return with_looks(groups)


def _shown(run: RunLog, found: Identity) -> dict[str, Any]:
    """Return the settings that count, with the names of files."""
    table = complete_settings(run.config)
    return {key: table[key] for key in found.settings}


def one_group_per_run(runs: Sequence[RunLog]) -> list[Group]:
    """Put every run in a separate group, each drawn differently."""
    names = [marked(run.name, run) for run in runs]
    return [Group(name=names[n], runs=(run,), settings={}, look=_nth_look(n)) for n, run in enumerate(runs)]


def with_looks(groups: Sequence[Group]) -> list[Group]:
    """Choose how groups are drawn: one colour per group or, if there are more groups than colours, per method."""
    methods = [_method(group) for group in groups]
    kinds = list(dict.fromkeys(methods))
    by_method = 1 < len(kinds) <= len(SERIES) < len(groups)
    drawn = []
    for n, (group, method) in enumerate(zip(groups, methods, strict=True)):
        if by_method:
            nth = methods[:n].count(method)
            look = (kinds.index(method), nth, nth // len(DASHES))
        else:
            look = _nth_look(n)
        drawn.append(replace(group, look=look))
    return drawn


def _method(group: Group) -> str:
    custom = group.identity.objects.get("method", {}) if group.identity else {}
    return str(group.settings.get("method.name") or custom.get("name", ""))


def _nth_look(n: int) -> tuple[int, int, int]:
    """Return a new colour for each of the first groups; then the same colours with other dashes and markers."""
    return n % len(SERIES), n // len(SERIES), n // len(SERIES)


def differing_settings(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Return the settings and objects in which groups differ: one value per group, None if a group lacks it.

    A key that is missing from a section is no difference. A section that only some groups have is one entry,
    ``[section]``, followed by the keys in which those groups differ. If methods differ, the settings that a group
    changed from the defaults of its method are listed too. Objects (``"network"``, ``"loss"``, ...) and labels come
    last.
    """
    tables = [group.settings for group in groups]
    counted = [group.identity.settings if group.identity else group.settings for group in groups]
    custom = [group.identity.replaced if group.identity else () for group in groups]
    sections = [{"", *(key.rpartition(".")[0] for key in table)} for table in tables]
    chosen = _chosen_method_settings(groups)
    found: dict[str, list[Any]] = {}
    for key in dict.fromkeys(key for table in tables for key in table):
        section = key.rpartition(".")[0]
        lacking = [section not in known and not is_under(key, got) for known, got in zip(sections, custom, strict=True)]
        if any(lacking):
            found.setdefault(f"[{section}]", [None if lacks else "given" for lacks in lacking])
        if len({repr(table[key]) for table in counted if key in table}) > 1 or key in chosen:
            found[key] = [table.get(key) for table in tables]
    identities = [group.identity for group in groups if group.identity]
    if len(identities) == len(groups):
        found |= object_differences(identities)
        labels = [one.label for one in identities]
        named = all(label and group.name.startswith(label) for label, group in zip(labels, groups, strict=True))
        if len(set(labels)) > 1 and not named:
            found["label"] = [one.label or None for one in identities]
    return found


def _chosen_method_settings(groups: Sequence[Group]) -> set[str]:
    """Return the keys that groups of different methods changed from their method's defaults."""
    if len(set(map(_method, groups))) < 2:
        return set()
    return {
        key
        for group in groups
        for run in group.runs[:1]
        for key in chosen_method_settings(run.config)
        if group.identity is None or key in group.identity.settings
    }


def marked(name: str, run: RunLog) -> str:
    """Return a name followed by the remark of its run."""
    return f"{name} ({run.remark})" if run.remark else name


def _group_name(runs: Sequence[RunLog]) -> str:
    """Return the label of runs, or else what their names have in common, without the seed."""
    if len(runs) == 1:
        return runs[0].name
    if label := runs[0].label:
        return label
    without = {_SEED_IN_A_SWEEP.sub("", run.name).strip(",") for run in runs}
    if len(without) == 1:
        return without.pop() or "base"
    letters = zip(*(run.name for run in runs), strict=False)
    shared = "".join(some[0] for some in takewhile(lambda some: len(set(some)) == 1, letters))
    return _SEED_ENDING.sub("", shared) or runs[0].name


def _numbered(names: Sequence[str]) -> list[str]:
    """Number the names that occur more than once."""
    numbers = [names[: n + 1].count(name) for n, name in enumerate(names)]
    return [f"{name} ({n})" if names.count(name) > 1 else name for name, n in zip(names, numbers, strict=True)]
