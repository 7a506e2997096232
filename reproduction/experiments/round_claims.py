"""Claims of the figures on rounds, judged by seed: fewer rounds, less time, fewer bytes, two phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from feddrop.comparison import Comparison, Spent, matched, spent_differences
from reproduction.experiments.curves import CONVERGED, HALF, Curves, Reading
from reproduction.experiments.resources import RANDOM_AT
from reproduction.framework.verdicts import Verdict, verdict

JUDGED = {HALF: "half-way", CONVERGED: "95 %"}
Readings = Sequence[Reading | None]
Amount = Callable[[Reading], Spent]
"""Reads off a run what it spent to reach a level."""


def until(share: int, what: str) -> Amount:
    """Return a function that reads the rounds, seconds, megabytes or passes until a share of the level is reached."""
    if what == "rounds":
        return lambda r: Spent(r.rounds[share], r.trained + 1.0)
    return lambda r: Spent(getattr(r, what)[share], getattr(r, f"all_{what}"))


def per_round(what: str) -> Amount:
    """Return a function that reads the mean megabytes or passes per round."""
    return lambda r: Spent(getattr(r, f"all_{what}") / r.trained, np.inf)


def compare(
    label: str, more: Readings, less: Readings, amount: Amount, *, unit: str, pool: str, step: float
) -> Comparison:
    """Return the comparison that tests whether ``more`` spends more than ``less``."""
    found = spent_differences([r and amount(r) for r in more], [r and amount(r) for r in less])
    return Comparison(label, found.values, bounds=found.bounds, unit=unit, pool=pool, step=step, ran=found.ran)


def judge_rounds(curves: dict[str, Curves], axis: str, claim: str) -> list[Verdict]:
    """Judge the claims on rounds to converge; for the latency figure, also those on time, overhead and phases."""
    falls: list[Comparison] = []
    fewer: list[Comparison] = []
    for scenario, of in curves.items():
        first, last = _ends(of)
        exact, random = of.schemes["exact"], of.schemes["random"]
        for share, word in JUDGED.items():
            where = f"{scenario}, {word}"
            span = f"{where}: {_x(of, first)} against {_x(of, last)} {_unit(axis)}"
            ask = partial(compare, amount=until(share, "rounds"), unit="rounds", step=1.0)
            falls.append(ask(span, exact[first], exact[last], pool=span))
            for i in dict.fromkeys((first, last)):
                at = f"{where}, {_x(of, i)} {_unit(axis)}"
                fewer.append(ask(at, random[i], exact[i], pool=at))
    same = "the run without dropout does not depend on the resource, so this is the same as the claim on rounds"
    verdicts = [
        verdict(claim, falls),
        verdict("fewer-rounds", fewer, "", RANDOM_AT),
        verdict("gap-narrows", falls, same),
    ]
    if claim == "rounds-latency":
        passes = "counted as in the paper, (1-γ) of a pass of the full network; dense kernels save nothing"
        verdicts += [
            _time(curves),
            _overhead(curves, "less-overhead", "megabytes", "bytes", "MB"),
            _overhead(curves, "less-compute", "passes", "computing", "passes", passes),
            _phases(curves["overfitting"]),
        ]
    return verdicts


def _ends(of: Curves) -> tuple[int, int]:
    """Return the first and last spot that are run with all seeds; of all spots if none is."""
    chosen = [i for i, spot in enumerate(of.spots) if spot.repeated] or list(range(len(of.spots)))
    return chosen[0], chosen[-1]


def _time(curves: dict[str, Curves]) -> Verdict:
    """Test whether a tight deadline takes less time in total than a loose one, and than no dropout in the cell."""
    points = []
    for scenario, of in curves.items():
        first, last = _ends(of)
        mine, loose = of.schemes["exact"][first], of.schemes["exact"][last]
        for share, word in JUDGED.items():
            pool = f"{scenario}, {word}"
            for name, other, round_s in (
                (_x(of, last), loose, of.spots[last].x),
                ("no dropout", of.base, of.base_s),
            ):
                at = f"{pool}: {name} against {_x(of, first)} s"
                step = max(of.spots[first].x, round_s)
                points.append(compare(at, other, mine, until(share, "seconds"), unit="s", pool=pool, step=step))
    return verdict("less-time", points, "", "as a *potential*, which one yes shows")


def _overhead(curves: dict[str, Curves], claim: str, what: str, word: str, unit: str, note: str = "") -> Verdict:
    """Test whether the proposed scheme sends or computes less than others, per round and until half-way."""
    points = []
    for scenario, of in curves.items():
        for i in dict.fromkeys(_ends(of)):
            mine = of.schemes["exact"][i]
            for name, other in (("bandwidth-aware", of.schemes["random"][i]), ("no dropout", of.base)):
                largest = max((per_round(what)(r)[0] for r in (*mine, *other) if r is not None), default=0.0)
                for when, amount, step in (
                    ("per round", per_round(what), 0.0),
                    ("to half-way", until(HALF, what), largest),
                ):
                    at = f"{scenario}, {_x(of, i)} s: {word} {when}, against {name}"
                    points.append(compare(at, other, mine, amount, unit=unit, pool=at, step=step))
    return verdict(claim, points, note, RANDOM_AT)


def _phases(of: Curves) -> Verdict:
    """Test whether rounds fall more steeply at tight deadlines, and whether dropping even less overfits."""
    *_, low, middle, high = range(len(of.spots)) if len(of.spots) > 2 else (0, 0, 0, 0)
    if low == high:
        return verdict("two-phases", [Comparison("fewer than three deadlines")])
    found, ran, bounds, x = [], 0, [], [of.spots[i].x for i in (low, middle, high)]
    for readings in zip(*(of.schemes["exact"][i] for i in (low, middle, high)), strict=True):
        if None not in readings:
            ran += 1
            a, b, c = (reading.rounds[HALF] for reading in readings if reading is not None)
            if np.isfinite([b, c]).all():  # a level never reached at the first deadline gives a bound
                steeper = (min(a, of.limit + 1.0) - b) / (x[1] - x[0]) - (b - c) / (x[2] - x[1])
                if np.isfinite(a) or steeper > 0:
                    found.append(steeper)
                    bounds.append(bool(np.isinf(a)))
    slopes = f"slope from {_x(of, low)} to {_x(of, middle)} s against {_x(of, middle)} to {_x(of, high)} s"
    where = f"overfitting, half-way: {slopes}"
    step = 1.0 / (x[1] - x[0]) + 1.0 / (x[2] - x[1])
    slope = Comparison(where, tuple(found), bounds=tuple(bounds), unit="rounds per second", step=step, ran=ran)
    note = (
        f"{sum(bounds)} of {len(bounds)} differences are bounds: at the tightest deadline the level was never reached"
    )
    weak = "the first phase by a weak test, which every convex curve passes"
    at, (mine, whole) = (
        f"overfitting, {_x(of, high)} s: more accurate than no dropout",
        ([r and r.accuracy for r in readings] for readings in (of.schemes["exact"][high], of.base)),
    )
    overfits = Comparison(at, matched(mine, whole), pool=at)
    return verdict("two-phases", [slope, overfits], note if any(bounds) else "", weak)


def _x(of: Curves, i: int) -> str:
    return f"{of.spots[i].x:g}"


def _unit(axis: str) -> str:
    return axis.rsplit(" ", 1)[1]
