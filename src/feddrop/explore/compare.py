"""The compare page: the tables and figures of ``feddrop compare`` for runs that are already there."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from feddrop.config.compare import RESOURCES, WIDTHS
from feddrop.errors import ConfigError, RunError, clean, one_of
from feddrop.report import accuracy_figure, loss_figure
from feddrop.report.compare import Standings, standings, ways_of
from feddrop.report.groups import Group, differing_settings
from feddrop.report.tables import setting_text

MOST_RUNS, MOST_TARGETS = 200, 10


def compared(groups: Sequence[Group], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the comparison of runs as texts and numbers.

    Args:
        groups: the runs.
        given: ``targets``, accuracies to reach; ``budget``, amounts by resource; ``reference``, the name of a group.
    """
    found = _standings(groups, given)
    lines = found.lines()
    return {
        "lead": found.lead,
        "score": found.score.key,
        "ways": ways_of(found.runs),
        "groups": [_named(group) for group in found.groups],
        "reference": found.reference.name if found.reference else "",
        "measures": [measure.name for measure, _ in lines[0][1]],
        "results": [[measure.text(row) for measure, row in line] for _, line in lines],
        "judged": [measure.name for measure in found.judged],
        "verdicts": [
            [
                {"text": measure.difference(row) if row.seeds else "", "says": row.verdict, "why": row.why}
                for measure, row in line[: len(found.judged)]
            ]
            for group, line in lines
            if group is not found.reference
        ]
        if found.reference
        else [],
        "differs": {
            key: [None if value is None else setting_text(value) for value in values]
            for key, values in differing_settings(found.groups).items()
        },
    }


def figure(groups: Sequence[Group], *, against: str, width: str, kind: str) -> bytes:
    """Return the score of runs against a resource as PDF or PNG, at a journal's width."""
    found = standings(_checked(groups), targets=(), reference=None, budget={})
    draw = accuracy_figure if found.score.better > 0 else loss_figure
    one_of("the x-axis", against, ways_of(found.runs))
    drawn = io.BytesIO()
    picture = draw(groups, against=against, width=one_of("width", width, WIDTHS))  # type: ignore[arg-type]
    told = {"CreationDate": None} if kind == "pdf" else None
    picture.savefig(drawn, format=one_of("the format", kind, ("pdf", "png")), metadata=told)
    return drawn.getvalue()


def _standings(groups: Sequence[Group], given: Mapping[str, Any]) -> Standings:
    named = {group.name: group for group in _checked(groups)}
    reference = str(given.get("reference") or "")
    if reference and reference not in named:  # its runs are no longer chosen
        reference = ""
    targets = [_positive("a target", value) for value in list(given.get("targets") or ())[:MOST_TARGETS]]
    amounts = given.get("budget") or {}
    if not isinstance(amounts, Mapping):
        raise ConfigError("the budget must be a table of amounts.")
    budget = {one_of("the resource", key, RESOURCES): _positive(f"{key}", value) for key, value in amounts.items()}
    return standings(groups, targets=targets, reference=named.get(reference), budget=budget)


def _checked(groups: Sequence[Group]) -> Sequence[Group]:
    if not 1 <= (count := sum(len(group.runs) for group in groups)) <= MOST_RUNS:
        raise RunError(f"{count} runs are chosen; choose 1 to {MOST_RUNS}.")
    return groups


def _positive(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e18:
        raise ConfigError(f"{clean(what)} is {clean(value, 40)!r}; it must be a positive number.")
    return float(value)


def _named(group: Group) -> dict[str, Any]:
    names = [run.name for run in group.runs]
    return {"name": group.name, "seeds": len(group.runs), "colour": group.look[0], "runs": names}
