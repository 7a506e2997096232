"""What the figures on rounds ask: fewer rounds, less time, fewer bytes, two phases; seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from reproduction.experiments.curves import CONVERGED, HALF, Curves, Reading
from reproduction.framework.verdicts import Point, Verdict, verdict

JUDGED = {HALF: "half-way", CONVERGED: "95 %"}
Readings = Sequence[Reading | None]
Spent = Callable[[Reading], tuple[float, float]]
"""What a run spent until it reached something, infinite if it never did; and what it had spent by its end."""


def until(share: int, what: str) -> Spent:
    """Return what reads the rounds, seconds, megabytes or passes until a share of the level is reached."""
    if what == "rounds":
        return lambda r: (r.rounds[share], r.trained + 1.0)
    return lambda r: (getattr(r, what)[share], getattr(r, f"all_{what}"))


def a_round(what: str) -> Spent:
    """Return what reads the megabytes or passes of a round, on average."""
    return lambda r: (getattr(r, f"all_{what}") / r.trained, np.inf)


def differences(more: Readings, less: Readings, spent: Spent) -> tuple[tuple[float, ...], str]:
    """Return more - less by seed, and ``"≥"`` or ``"≤"`` where some of them are bounds.

    What was never reached has taken at least what the run took in all. So a difference to it is a bound, which says
    something only if it points where it bounds: *at least 3 more* does, *at most 3 more* does not. Where neither was
    reached, the seed says nothing.
    """
    found, bounds = [], set()
    for one, other in zip(more, less, strict=True):
        if one is None or other is None:
            continue
        (a, a_by_end), (b, b_by_end) = spent(one), spent(other)
        difference = (a_by_end if np.isinf(a) else a) - (b_by_end if np.isinf(b) else b)
        if np.isnan(difference) or np.isinf([a, b]).all():
            continue
        if (np.isinf(a) and difference <= 0) or (np.isinf(b) and difference >= 0):
            continue
        bounds |= {"≥"} if np.isinf(a) else {"≤"} if np.isinf(b) else set()
        found.append(difference)
    return tuple(found), "".join(sorted(bounds))


def _point(at: str, more: Readings, less: Readings, spent: Spent, *, unit: str, pool: str, grain: float) -> Point:
    """Return the question whether ``more`` needs more than ``less``; it knows how many runs there are."""
    found, bound = differences(more, less, spent)
    ran = sum(one is not None and other is not None for one, other in zip(more, less, strict=True))
    return Point(at=at, differences=found, unit=unit, pool=pool, grain=grain, ran=ran, bound=bound)


def judge_rounds(curves: dict[str, Curves], axis: str, claim: str) -> list[Verdict]:
    """Judge the claims about rounds to converge; with the latency figure, about time, overhead and phases as well."""
    falls: list[Point] = []
    fewer: list[Point] = []
    for scenario, of in curves.items():
        first, last = _ends(of)
        exact, random = of.schemes["exact"], of.schemes["random"]
        for share, word in JUDGED.items():
            where = f"{scenario}, {word}"
            span = f"{where}: {_x(of, first)} against {_x(of, last)} {_unit(axis)}"
            ask = partial(_point, spent=until(share, "rounds"), unit="rounds", pool=where, grain=1.0)
            falls.append(ask(span, exact[first], exact[last]))
            for i in dict.fromkeys((first, last)):
                fewer.append(ask(f"{where}, {_x(of, i)} {_unit(axis)}", random[i], exact[i]))
    same = "the run without dropout does not depend on the resource, so that this is the claim above in other words"
    verdicts = [verdict(claim, falls), verdict("fewer-rounds", fewer), verdict("gap-narrows", falls, same)]
    if claim == "rounds-latency":
        passes = "counted as the paper does, (1-γ) of a pass by the whole network; dense kernels save none of it"
        verdicts += [
            _time(curves),
            _overhead(curves, "less-overhead", "megabytes", "bytes", "MB"),
            _overhead(curves, "less-compute", "passes", "computing", "passes", passes),
            _phases(curves["overfitting"]),
        ]
    return verdicts


def _ends(of: Curves) -> tuple[int, int]:
    """Return the first and last point that are run with all seeds; of all points if none is."""
    chosen = [i for i, spot in enumerate(of.spots) if spot.repeated] or list(range(len(of.spots)))
    return chosen[0], chosen[-1]


def _time(curves: dict[str, Curves]) -> Verdict:
    """Ask whether a tight deadline ends up with less time in all than a loose one, and than no dropout in the cell."""
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
                grain = max(of.spots[first].x, round_s)
                points.append(_point(at, other, mine, until(share, "seconds"), unit="s", pool=pool, grain=grain))
    return verdict("less-time", points)


def _overhead(curves: dict[str, Curves], claim: str, what: str, word: str, unit: str, note: str = "") -> Verdict:
    """Ask what the proposed scheme sends or computes, a round and until half-way, beside the others."""
    points = []
    for scenario, of in curves.items():
        for i in dict.fromkeys(_ends(of)):
            mine = of.schemes["exact"][i]
            for name, other in (("bandwidth-aware", of.schemes["random"][i]), ("no dropout", of.base)):
                step = max((a_round(what)(r)[0] for r in (*mine, *other) if r is not None), default=0.0)
                for when, spent, grain in (("a round", a_round(what), 0.0), ("to half-way", until(HALF, what), step)):
                    at = f"{scenario}, {_x(of, i)} s: {word} {when}, against {name}"
                    pool = f"{scenario}, {when}, against {name}"
                    points.append(_point(at, other, mine, spent, unit=unit, pool=pool, grain=grain))
    return verdict(claim, points, note)


def _phases(of: Curves) -> Verdict:
    """Ask whether rounds fall more steeply at tight deadlines than at loose ones."""
    *_, low, middle, high = range(len(of.spots)) if len(of.spots) > 2 else (0, 0, 0, 0)
    if low == high:
        return verdict("two-phases", [Point(at="fewer than three deadlines")])
    found, ran, bound, x = [], 0, "", [of.spots[i].x for i in (low, middle, high)]
    for readings in zip(*(of.schemes["exact"][i] for i in (low, middle, high)), strict=True):
        if None not in readings:
            ran += 1
            a, b, c = (reading.rounds[HALF] for reading in readings if reading is not None)
            if np.isfinite([b, c]).all():  # what was never reached at the first is a bound, as in differences()
                steeper = (min(a, of.limit + 1.0) - b) / (x[1] - x[0]) - (b - c) / (x[2] - x[1])
                if np.isfinite(a) or steeper > 0:
                    found.append(steeper)
                    bound = bound or "≥" * bool(np.isinf(a))
    slopes = f"slope from {_x(of, low)} to {_x(of, middle)} s against {_x(of, middle)} to {_x(of, high)} s"
    where = f"overfitting, half-way: {slopes}"
    grain = 1.0 / (x[1] - x[0]) + 1.0 / (x[2] - x[1])
    point = Point(at=where, differences=tuple(found), unit="rounds a second", grain=grain, ran=ran, bound=bound)
    return verdict("two-phases", [point])


def _x(of: Curves, i: int) -> str:
    return f"{of.spots[i].x:g}"


def _unit(axis: str) -> str:
    return axis.rsplit(" ", 1)[1]
