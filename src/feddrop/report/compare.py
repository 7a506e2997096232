"""Compare runs on one page: a table of results, differences from a reference, overlaid curves, and what differs.

Runs of equal identity (see :mod:`feddrop.comparison.identity`) are seeds of one experiment. They form a group, shown as
its mean with a band of one standard deviation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from feddrop.comparison.verdicts import UNDECIDED, WITHIN_MARGIN
from feddrop.errors import ConfigError, RunError, one_of
from feddrop.report.curves import SPENT, Against, accuracy_figure, loss_figure, metric_figure
from feddrop.report.groups import Group, differing_settings, grouped, marked
from feddrop.report.html import Html, document, el, figure_panel, folded, section, table, write_page
from feddrop.report.load import read_run_log
from feddrop.report.measures import (
    Measure,
    Row,
    Score,
    amount_text,
    costs_to,
    metric_scores,
    resources_of,
    score_of,
    scores,
    spendings,
    summarised,
    target_text,
)
from feddrop.report.quantities import RESOURCES, UNKNOWN, how_many
from feddrop.report.radio import CHARGED
from feddrop.report.runlog import RunLog
from feddrop.report.tables import setting_text

MOST_COLUMNS = 8
"""Measures of one table; with more, a second table shows what runs spent by their end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standings:
    """Groups of runs and what was measured on them."""

    groups: Sequence[Group]  # one per experiment
    score: Score  # what they are compared by
    judged: Sequence[Measure]  # the measures that are compared with the reference
    others: Sequence[Measure]  # further measures
    rows: Sequence[Row]  # one per group and measure
    lead: str  # how the numbers were read, in one or two sentences
    reference: Group | None = None  # the group that all others are compared with; None for no comparison

    @property
    def runs(self) -> list[RunLog]:
        """All runs."""
        return [run for group in self.groups for run in group.runs]

    def lines(self) -> list[tuple[Group, list[tuple[Measure, Row]]]]:
        """Return every group with its measures and rows, the judged measures first."""
        measures = [*self.judged, *self.others]
        parts = (self.rows[n * len(measures) :] for n in range(len(self.groups)))
        return [(group, [*zip(measures, rows, strict=False)]) for group, rows in zip(self.groups, parts, strict=True)]


def write_comparison(
    run_dirs: Sequence[str | Path],
    out: str | Path,
    *,
    targets: Sequence[float] = (),
    reference: str = "",
    budget: Mapping[str, float] | None = None,
) -> Path:
    """Write one self-contained HTML page that compares runs.

    Args:
        run_dirs: the run folders, in the order to list them.
        out: the file to write, or a folder for ``comparison.html``.
        targets: accuracies to reach; by default, the highest one that every run reached.
        reference: the group that all others are compared with; by default, no differences are shown.
        budget: the amounts at which accuracy is read: ``"rounds"``, ``"bytes"``, ``"seconds"`` or ``"joules"``; by
            default, it is read at the end of each run.

    Returns:
        The file written.

    Raises:
        RunError: no folder is given, one is incomplete or malformed, or the page cannot be written.
    """
    groups = grouped(read_logs(run_dirs))
    named = {group.name: group for group in groups}
    chosen = named[one_of("reference", reference, named)] if reference else None
    found = standings(groups, targets=targets, reference=chosen, budget=budget or {})
    return write_page(Path(out), "comparison.html", comparison_page(found))


def read_logs(run_dirs: Sequence[str | Path]) -> list[RunLog]:
    """Read run folders, with distinct names."""
    if isinstance(run_dirs, str | Path) or not run_dirs:
        raise RunError(f"run_dirs is {run_dirs!r}; it must be a list of run folders. Give at least one.")
    runs = [read_run_log(folder, RunLog) for folder in run_dirs]
    return [replace(run, name=name) for run, name in zip(runs, _unique_names(run_dirs, runs), strict=True)]


def standings(
    groups: Sequence[Group], *, targets: Sequence[float], reference: Group | None, budget: Mapping[str, float]
) -> Standings:
    """Measure groups; see :func:`write_comparison` for the arguments."""
    runs = [run for group in groups for run in group.runs]
    score, named = score_of(runs), dict.fromkeys(targets, "")
    if score.better > 0:
        check_accuracies(targets)
    lead = ["Means ± standard deviation over seeds."] * (len(groups) < len(runs))
    if budget:
        amount = "the amount named" if len(budget) > 1 else amount_text(*next(iter(budget.items())))
        lead += [f"Each {score.name} is that of the last evaluated round within {amount}."]
    if not named and len(runs) > 1 and score.better > 0:
        target = float(np.min([score.best(run) for run in runs]))
        if np.isfinite(target):
            named = {target: "target"}
            shown = f"Every run reached {target_text(score, target)}, the target."
            lead += [f"{shown} The last columns show the cost of reaching it."]
    if targets or named:
        lead += ["Targets go by the validation samples."] * score.chosen.startswith("val_")
        lead += ["A value after > is a lower bound: only the runs in brackets reached the target."] * bool(targets)
    lead += [CHARGED] * any(run.left_out.any() for run in runs)
    judged = [*scores(runs, budget)]
    for target, name in named.items():
        judged += costs_to(runs, target, name or target_text(score, target))
    others = [*(metric_scores(runs) if not budget else ()), *spendings(runs)]
    return Standings(
        groups=groups,
        score=score,
        judged=judged,
        others=others,
        rows=summarised(groups, [*judged, *others], reference),
        lead=" ".join(lead),
        reference=reference,
    )


def check_accuracies(targets: Sequence[float]) -> None:
    """Raise if a target cannot be an accuracy."""
    if above := [target for target in targets if target > 1]:
        hint = f" For {above[0]:g} %, write {above[0] / 100:g}." if above[0] <= 100 else ""
        raise ConfigError(f"the target is {above[0]:g}; an accuracy must be at most 1.{hint}")


def comparison_page(found: Standings) -> Html:
    """Return the comparison page of runs."""
    groups, runs = found.groups, found.runs
    repeated = len(groups) < len(runs)
    title = f"{how_many(len(groups), 'setting')}, " * repeated + how_many(len(runs), "run")
    lead = "Runs that differ only in their seed are drawn as their mean; the band is one standard deviation."
    single = [replace(group, name=marked(run.name, run), runs=(run,)) for group in groups for run in group.runs]
    every = replace(found, groups=single, rows=summarised(single, [*found.judged, *found.others]))
    return document(
        f"{title} compared",
        "feddrop comparison",
        " · ".join(group.name + _seeds(group) for group in groups),
        section("Results", found.lead, _results(found), folded("All runs", _results(every)) if repeated else Html("")),
        _differences(found),
        section("Learning", lead if repeated else "", *_figures(found)),
        section("What differs", f"{_incomparable(groups)} {_shared_lr(groups)}".strip(), _settings(groups)),
    )


def _figures(found: Standings) -> list[Html]:
    """Return the learning curves: accuracy and loss side by side, one row per x-axis; then custom metrics."""
    runs, groups = found.runs, found.groups
    kinds = (("accuracy", "Accuracy", accuracy_figure), ("loss", "Test loss", loss_figure))
    there = [kind for kind in kinds if any(np.isfinite(run.by_round[f"test_{kind[0]}"]).any() for run in runs)]
    figures = [
        figure_panel(f"{name}-{way}", f"{title} by {axis}", "", partial(draw, groups, against=way))
        for way, axis in ((way, RESOURCES[SPENT[way]].axis) for way in ways_of(runs))
        for name, title, draw in there
    ]
    shared = [name for name in runs[0].metrics if all(name in run.metrics for run in runs)]
    shared = [name for name in shared if any(np.isfinite(run.metrics[name]).any() for run in runs)]
    return figures + [
        figure_panel(f"metric-{n}", f"{name} by round", "", partial(metric_figure, groups, name))
        for n, name in enumerate(shared)
    ]


def ways_of(runs: Sequence[RunLog]) -> list[Against]:
    """Return the x-axes that all runs have."""
    known = resources_of(runs)
    return [way for way, resource in SPENT.items() if resource in known]


def _unique_names(folders: Sequence[str | Path], runs: Sequence[RunLog]) -> list[str]:
    """Return the names of runs: the label, followed by the folder if several runs have it, or else the folder."""
    labels = [run.label for run in runs]
    return [
        (f"{label} ({folder})" if labels.count(label) > 1 else label) if label else folder
        for label, folder in zip(labels, _unique_folders(folders), strict=True)
    ]


def _unique_folders(folders: Sequence[str | Path]) -> list[str]:
    """Return the names of folders, with as many parents as make them unique; numbered if paths are equal."""
    paths = [Path(folder).resolve() for folder in folders]
    for depth in range(1, max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({n})" for n, path in enumerate(paths, 1)]


def _seeds(group: Group) -> str:
    return f" ({len(group.runs)} seeds)" if len(group.runs) > 1 else ""


def _results(found: Standings) -> Html:
    """Return a table with one row per group: means, and for results the standard deviation; two tables if wide."""
    lines = [(group, sorted(line, key=lambda pair: pair[0].step is not None)) for group, line in found.lines()]
    first = range(len(lines[0][1]))  # costs of a target last
    cuts: list[Sequence[int]] = [first]
    if len(first) > MOST_COLUMNS:
        judged = [n for n in first if lines[0][1][n][0].better]
        cuts = [judged, [n for n in first if n not in judged]]
    return Html("".join(_table(lines, cut) for cut in cuts))


def _table(lines: Sequence[tuple[Group, list[tuple[Measure, Row]]]], columns: Sequence[int]) -> Html:
    head = [lines[0][1][n][0].name for n in columns]
    rows = [
        [el("span", _dot(group), group.name), len(group.runs), *(line[n][0].text(line[n][1]) for n in columns)]
        for group, line in lines
    ]
    return table(["run", "seeds", *head], rows)


def _differences(found: Standings) -> Html:
    """Return the differences from the reference with their margins and verdicts."""
    if found.reference is None:
        return Html("")
    rows = [
        [el("span", _dot(group), group.name), *(_verdict(*pair) for pair in line[: len(found.judged)])]
        for group, line in found.lines()
        if group is not found.reference
    ]
    lead = (
        "Mean difference ± 95 % margin (with three seeds, at least 4.3 standard errors), over the seeds that both were "
        f"run with. Does the claim hold that the row is better than {found.reference.name}? It is undecided within the "
        "margin, and with fewer than three seeds."
    )
    content = table(["run", *(measure.name for measure in found.judged)], rows)
    return section(f"Better than {found.reference.name}?", lead, content if rows else Html(""))


def _verdict(measure: Measure, row: Row) -> Html:
    why = f" ({row.why})" if row.why not in ("", WITHIN_MARGIN) else ""
    word = el("span" if row.verdict == UNDECIDED else "strong", row.verdict + why)
    return el("span", measure.difference(row), Html("<br>"), word) if row.seeds else el("span", word)


def _settings(groups: Sequence[Group]) -> Html:
    rows = [
        [key, *(UNKNOWN if value is None else setting_text(value) for value in values)]
        for key, values in differing_settings(groups).items()
    ]
    if not rows:
        return el("div", el("p", "None: all runs have the same configuration."), class_="panel wide")
    head = ["setting", *(el("span", _dot(group), group.name) for group in groups)]
    return table(head, rows, words=len(head))


def _incomparable(groups: Sequence[Group]) -> str:
    """Return a sentence if some runs have objects that cannot be compared."""
    names = [group.name for group in groups if group.identity and group.identity.run]
    if not names or len(groups) < 2:
        return ""
    return f"Custom objects of {', '.join(names)} cannot be compared. To group runs as seeds, give them one label."


def _shared_lr(groups: Sequence[Group]) -> str:
    """Return a sentence if all groups have the same learning rate, which is rarely the best one for each of them."""
    found = {group.settings.get("train.lr") for group in groups}
    if len(groups) < 2 or len(found) > 1 or None in found:
        return ""
    return (
        f"All have train.lr = {setting_text(found.pop())}. For a fair comparison, tune it for each of them on "
        "data.validation: the best learning rate depends on the method and on its rate."
    )


def _dot(group: Group) -> Html:
    return el("span", class_="dot", style=f"background: var(--series-{group.look[0]})")
