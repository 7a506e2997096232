"""The compare page: the tables and figures of ``feddrop compare`` for runs that are already there."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from feddrop.config.compare import RESOURCES, WIDTHS
from feddrop.errors import ConfigError, RunError, clean, one_of
from feddrop.report import accuracy_figure, loss_figure
from feddrop.report.compare import Standings, standings, ways_of
from feddrop.report.groups import Group, differing_settings, grouped
from feddrop.report.runlog import RunLog
from feddrop.report.tables import setting_text

MOST_RUNS, MOST_TARGETS = 200, 10


def compared(logs: Sequence[RunLog], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the comparison of runs as texts and numbers.

    Args:
        logs: the runs.
        given: ``targets``, accuracies to reach; ``budget``, amounts by resource; ``reference``, the name of a group.
    """
    found = _standings(logs, given)
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


def figure(logs: Sequence[RunLog], *, against: str, width: str, kind: str) -> bytes:
    """Return the score of runs against a resource as PDF or PNG, at a journal's width."""
    groups = grouped(_checked(logs))
    found = standings(groups, targets=(), reference=None, budget={})
    draw = accuracy_figure if found.score.better > 0 else loss_figure
    one_of("the x-axis", against, ways_of(found.runs))
    drawn = io.BytesIO()
    picture = draw(groups, against=against, width=one_of("width", width, WIDTHS))  # type: ignore[arg-type]
    told = {"CreationDate": None} if kind == "pdf" else None
    picture.savefig(drawn, format=one_of("the format", kind, ("pdf", "png")), metadata=told)
    return drawn.getvalue()


def _standings(logs: Sequence[RunLog], given: Mapping[str, Any]) -> Standings:
    groups = grouped(_checked(logs))
    named = {group.name: group for group in groups}
    reference = str(given.get("reference") or "")
    if reference and reference not in named:  # its runs are no longer chosen
        reference = ""
    targets = [_positive("a target", value) for value in list(given.get("targets") or ())[:MOST_TARGETS]]
    amounts = given.get("budget") or {}
    if not isinstance(amounts, Mapping):
        raise ConfigError("the budget must be a table of amounts.")
    budget = {one_of("the resource", key, RESOURCES): _positive(f"{key}", value) for key, value in amounts.items()}
    return standings(groups, targets=targets, reference=named.get(reference), budget=budget)


def _checked(logs: Sequence[RunLog]) -> Sequence[RunLog]:
    if not 1 <= len(logs) <= MOST_RUNS:
        raise RunError(f"{len(logs)} runs are chosen; choose 1 to {MOST_RUNS}.")
    return logs


def _positive(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e18:
        raise ConfigError(f"{clean(what)} is {clean(value, 40)!r}; it must be a positive number.")
    return float(value)


def _named(group: Group) -> dict[str, Any]:
    names = [run.name for run in group.runs]
    return {"name": group.name, "seeds": len(group.runs), "colour": group.look[0], "runs": names}
