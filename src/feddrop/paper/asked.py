"""What the figures on rounds ask: fewer rounds, less time, fewer bytes, two phases; seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from feddrop.paper.curves import CONVERGED, HALF, Curves, Reading
from feddrop.paper.verdicts import Point, Verdict, verdict

JUDGED = {HALF: "half-way", CONVERGED: "95 %"}
Pick = Callable[[Reading], float]
Readings = Sequence[Reading | None]


def differences(more: Readings, less: Readings, pick: Pick, ceiling: float = np.inf) -> tuple[float, ...]:
    """Return more - less by seed, in what ``pick`` reads.

    What was never reached counts as ``ceiling``, a bound from below; where neither was reached, or no bound is known,
    the seed says nothing.
    """
    found = []
    for one, other in zip(more, less, strict=True):
        if one is not None and other is not None:
            a, b = min(pick(one), ceiling), min(pick(other), ceiling)
            if np.isfinite(a) and np.isfinite(b) and not (np.isinf(pick(one)) and np.isinf(pick(other))):
                found.append(a - b)
    return tuple(found)


def _point(
    at: str, more: Readings, less: Readings, pick: Pick, *, unit: str, pool: str, grain: float, ceiling: float = np.inf
) -> Point:
    """Return the question whether ``more`` needs more than ``less``; it knows whether there are runs at all."""
    return Point(
        at=at,
        differences=differences(more, less, pick, ceiling),
        unit=unit,
        pool=pool,
        grain=grain,
        ran=any(one is not None and other is not None for one, other in zip(more, less, strict=True)),
    )


def _rounds(share: int) -> Pick:
    return lambda reading: reading.rounds[share]


def _seconds(share: int) -> Pick:
    return lambda reading: reading.seconds[share]


def judge_rounds(curves: dict[str, Curves], axis: str, claim: str) -> list[Verdict]:
    """Judge the claims about rounds to converge; with the latency figure, about time, bytes and phases as well."""
    falls: list[Point] = []
    fewer: list[Point] = []
    for scenario, of in curves.items():
        first, last = _ends(of)
        exact, random = of.schemes["exact"], of.schemes["random"]
        for share, word in JUDGED.items():
            where = f"{scenario}, {word}"
            span = f"{where}: {_x(of, first)} against {_x(of, last)} {_unit(axis)}"
            ask = partial(_point, unit="rounds", pool=where, grain=1.0, ceiling=of.limit + 1.0)
            falls.append(ask(span, exact[first], exact[last], _rounds(share)))
            for i in dict.fromkeys((first, last)):
                at = f"{where}, {_x(of, i)} {_unit(axis)}"
                fewer.append(ask(at, random[i], exact[i], _rounds(share)))
    same = "the run without dropout does not depend on the resource, so that this is the claim above in other words"
    verdicts = [verdict(claim, falls), verdict("fewer-rounds", fewer), verdict("gap-narrows", falls, same)]
    if claim == "rounds-latency":
        verdicts += [_time(curves), _overhead(curves), _phases(curves["overfitting"])]
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
                points.append(_point(at, other, mine, _seconds(share), unit="s", pool=pool, grain=grain))
    return verdict("less-time", points)


def _overhead(curves: dict[str, Curves]) -> Verdict:
    """Ask what the proposed scheme sends, a round and until half of the plateau, beside the others."""
    points = []
    for scenario, of in curves.items():
        for i in dict.fromkeys(_ends(of)):
            mine = of.schemes["exact"][i]
            for what, other, pick in (
                ("a round, against bandwidth-aware", of.schemes["random"][i], lambda r: r.round_megabytes),
                ("to half-way, against bandwidth-aware", of.schemes["random"][i], lambda r: r.megabytes[HALF]),
                ("to half-way, against no dropout", of.base, lambda r: r.megabytes[HALF]),
            ):
                rounds = [r.round_megabytes for r in (*mine, *other) if r is not None and what.startswith("to")]
                at, grain = f"{scenario}, {_x(of, i)} s: bytes {what}", max(rounds, default=0.0)
                points.append(_point(at, other, mine, pick, unit="MB", pool=f"{scenario}, {what}", grain=grain))
    return verdict("less-overhead", points, "where half-way was never reached with random shares, nothing can be said")


def _phases(of: Curves) -> Verdict:
    """Ask whether rounds fall more steeply at tight deadlines than at loose ones."""
    *_, low, middle, high = range(len(of.spots)) if len(of.spots) > 2 else (0, 0, 0, 0)
    if low == high:
        return verdict("two-phases", [Point(at="fewer than three deadlines")])
    found, ran, x = [], False, [of.spots[i].x for i in (low, middle, high)]
    for readings in zip(*(of.schemes["exact"][i] for i in (low, middle, high)), strict=True):
        if None not in readings:
            ran = True
            a, b, c = (reading.rounds[HALF] for reading in readings if reading is not None)
            if np.isfinite([a, b, c]).all():
                found.append((a - b) / (x[1] - x[0]) - (b - c) / (x[2] - x[1]))
    slopes = f"slope from {_x(of, low)} to {_x(of, middle)} s against {_x(of, middle)} to {_x(of, high)} s"
    where = f"overfitting, half-way: {slopes}"
    grain = 1.0 / (x[1] - x[0]) + 1.0 / (x[2] - x[1])
    point = Point(at=where, differences=tuple(found), unit="rounds a second", grain=grain, ran=ran)
    return verdict("two-phases", [point])


def _x(of: Curves, i: int) -> str:
    return f"{of.spots[i].x:g}"


def _unit(axis: str) -> str:
    return axis.rsplit(" ", 1)[1]
