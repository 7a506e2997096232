"""The findings: a text whose numbers and outcomes are all inserted from the runs.

``findings.txt`` is the text. A field is ``{kind[key]}``:

- ``{o[claim]}``: the outcome of a claim, with counts and condition; ``{w[claim]}``: its word alone;
- ``{d[claim: comparison]}``: the difference in a comparison, with its error and seeds;
- ``{t[row, rate]}``: our accuracy in the table; ``{p[row, rate]}``: that of the paper;
- ``{e[scenario, scheme, deadline]}``: accuracy at a deadline; ``{x[question: variant]}``: in the last section;
- ``{b[question: variant]}``: the round with the highest accuracy there;
- ``{f[name]}``: a measurement that needs no training;
- ``{counts}``: how many claims hold; ``{changes}``: the verdicts that changed since 0.2.0.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from feddrop.comparison import Answer
from feddrop.errors import RunError
from reproduction import changes
from reproduction.experiments import accuracy, deadline, explain, objective, remark
from reproduction.framework.experiment import Lookup, mean_of, percents
from reproduction.framework.judged import Judged, counts
from reproduction.framework.published import RATES, TABLE
from reproduction.framework.scales import SCENARIOS, Scale

WIDTH = 120


def write(scale: Scale, find: Lookup, judged: Sequence[Judged], facts: dict[str, dict[str, Any]]) -> str:
    """Return the findings.

    Args:
        scale: the scale of the runs.
        find: looks up finished runs.
        judged: all claims.
        facts: measurements that need no training, by experiment.

    Raises:
        RunError: a field names a run or claim that does not exist.
    """
    text = files("reproduction").joinpath("findings.txt").read_text(encoding="utf-8")
    fields: dict[str, Any] = {
        "o": {one.claim.name: one.shown for one in judged},
        "w": {one.claim.name: one.word for one in judged},
        "d": {f"{one.claim.name}: {a.comparison.label}": difference(a) for one in judged for a in one.answers},
        "t": _table(scale, find),
        "p": _published(),
        "e": _ends(scale, find),
        "x": _variants(scale, find),
        "b": _best_rounds(scale, find),
        "f": _facts(scale, find, facts),
        "counts": counts(judged),
        "changes": changes.table(judged),
    }
    try:
        return _wrapped(text.format_map(fields))
    except KeyError as missing:
        raise RunError(f"findings.txt has a field {missing}, which no run or claim provides.") from None


def _wrapped(text: str) -> str:
    """Wrap paragraphs and list items, but never before a %; leave tables, pictures, headings and HTML alone."""
    wrapper = textwrap.TextWrapper(WIDTH, break_long_words=False, break_on_hyphens=False)
    item = textwrap.TextWrapper(WIDTH, break_long_words=False, break_on_hyphens=False, subsequent_indent="  ")
    parts = []
    for part in text.replace(" %", "\u00a0%").strip().split("\n\n"):
        if part.startswith("- "):
            part = "\n".join(map(item.fill, part.splitlines()))
        parts.append(part if part.startswith(("|", "#", "[!", "<", "- ")) else wrapper.fill(part))
    return "\n\n".join(parts) + "\n"


def difference(answer: Answer) -> str:
    """Format a difference with its error and number of seeds."""
    if not answer.seeds:
        return answer.why
    seeds = f"{answer.seeds} seeds" if answer.seeds > 1 else "one seed"
    digits = answer.comparison.digits
    error = "" if math.isnan(answer.error) else f" ± {answer.error:.{digits}f}"
    unit = "" if answer.comparison.unit == "points" else f" {answer.comparison.unit}"
    return f"{answer.comparison.sign} {answer.mean:+.{digits}f}{error}{unit} ({seeds})".strip()


def _percent(values: Sequence[float | None]) -> str:
    mean = mean_of(values)
    return "not run" if math.isnan(mean) else f"{mean:.1f}"


def _table(scale: Scale, find: Lookup) -> dict[str, str]:
    lines = accuracy.measured(scale, find)
    return {
        f"{accuracy.title(row)}, {rate:g}": _percent(values) for row in lines for rate, values in lines[row].items()
    }


def _published() -> dict[str, str]:
    return {
        f"{accuracy.TITLES[model]}, {accuracy.TITLES[partition]}, {method}, {rate:g}": f"{value:.1f}"
        for (model, partition, method), row in TABLE.items()
        for rate, value in zip(RATES, row, strict=True)
        if value is not None
    }


def _ends(scale: Scale, find: Lookup) -> dict[str, str]:
    found = {}
    for scenario in SCENARIOS:
        for word, costs in (("", None), (", by the formula", "formula")):
            ends = deadline.ends_of(scale, find, scenario, costs)
            found[f"{scenario}, without dropout"] = _percent(ends.base)
            found[f"{scenario}, loose{word}"] = _percent(ends.loose)
            for scheme, rows in ends.schemes.items():
                for spot, row in zip(ends.spots, rows, strict=True):
                    found[f"{scenario}, {scheme}, {spot.x:g}{word}"] = _percent(row)
    return found


def _variants(scale: Scale, find: Lookup) -> dict[str, str]:
    return {
        f"{question}: {name}": _percent(percents([find(config)]))
        for question, group in explain.variants(scale).items()
        for name, config in group
    }


def _best_rounds(scale: Scale, find: Lookup) -> dict[str, str]:
    return {
        f"{question}: {name}": "not run" if (result := find(config)) is None else str(explain.best_round(result))
        for question, group in explain.variants(scale).items()
        for name, config in group
    }


def _facts(scale: Scale, find: Lookup, facts: dict[str, dict[str, Any]]) -> dict[str, str]:
    alexnet = TABLE["alexnet", "iid", "feddrop"]
    peak = (alexnet[RATES.index(accuracy.PEAK)] or 0.0) - (alexnet[0] or 0.0)
    sent = remark.as_trained(scale, find)
    by_objective, by_rate = objective.mean_misses(scale, find, "underfitting", "bandwidth-aware")
    more = [drop / dst - 1 for at, (drop, dst) in sent.items() if at.startswith("AlexNet")]
    return {
        "alexnet sends more, least": f"{min(more):.1%}" if more else "not run",
        "alexnet sends more, most": f"{max(more):.1%}" if more else "not run",
        "the paper's peak": f"{peak:.1f}",
        "theta": f"{facts['theory']['theta']['rate']:.2g}",
        "theta measured": f"{facts['theory']['theta_measured']['rate']:.2g}",
        "vacuous bounds": f"{sum(bound > 0 for bound in facts['theory']['bound'])} of {len(facts['theory']['bound'])}",
        "limited by the deadline": f"{np.mean(facts['energy']['exact']['held_deadline']):.0%}",
        "limited by energy": f"{np.mean(facts['energy']['exact']['held_energy']):.0%}",
        "lenet moves, still": _moves(scale, find, moving=False),
        "lenet moves, moving": _moves(scale, find, moving=True),
        "random shares, by objective": by_objective,
        "random shares, by rate": by_rate,
        "full network, s": f"{np.mean(facts['rounds-latency']['underfitting']['seconds']):.1f}",
    }


def _moves(scale: Scale, find: Lookup, *, moving: bool) -> str:
    """Format how many weights entered LeNet's mask per run, over the runs of a row."""
    found = accuracy.weights_moved(scale, find, accuracy.Row("underfitting", "dirichlet", "feddst", moving=moving))
    if not found:
        return "not run"
    least, most = min(found), max(found)
    return f"{least:,}" + f" to {most:,}" * (most > least) + f" per run ({len(found)} runs)"
