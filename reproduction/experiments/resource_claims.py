"""Claims of figure 5, judged by seed: accuracy of the schemes against deadline and bandwidth."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from feddrop.comparison import LEAST_SEEDS, Comparison, matched
from reproduction.experiments.resources import RANDOM_AT, Spot
from reproduction.framework.verdicts import Verdict, verdict

ALMOST_EQUAL = 1.0
"""Difference in accuracy that counts as almost equal, in percentage points."""

Seeds = list[float | None]


class Ends(NamedTuple):
    """Final test accuracy in % of the runs of one scenario, by seed; None where it was not run.

    Attributes:
        spots: deadlines or bandwidths, from tight to loose.
        schemes: accuracy by scheme and spot.
        base: accuracy without dropout.
        loose: accuracy of random shares under a deadline so loose that they drop almost nothing.
        loose_s: that deadline; 0 if there is none.
        loose_rate: mean rate of the proposed scheme there.
    """

    spots: list[Spot]
    schemes: dict[str, list[Seeds]]
    base: Seeds
    loose: Seeds | tuple[()] = ()
    loose_s: float = 0.0
    loose_rate: float = 0.0


def judge_accuracy(latency: dict[str, Ends], bands: dict[str, Ends], *, drops: float, theta: str) -> list[Verdict]:
    """Judge the claims on accuracy.

    Schemes are compared at every deadline and bandwidth at which both sides were run with at least three seeds, and at
    those that are meant to be. Spread is not pooled: accuracy varies far more between seeds in a tight cell.

    Args:
        latency: accuracy against the deadline, by scenario.
        bands: accuracy against the bandwidth, by scenario.
        drops: mean rate of random shares under the loose deadline.
        theta: the θ of random shares, on which every comparison with the bandwidth-aware scheme depends.
    """
    every = "compared at every deadline and bandwidth with three seeds"
    base = _against("base", latency, bands)
    nothing = (
        f"almost equal means within {ALMOST_EQUAL:g} percentage point; at this deadline random shares drop "
        f"{drops:.0%} on average; the proposed scheme drops nothing there, so the run without dropout represents it"
    )
    return [
        verdict("accuracy-scheme", _against("random", latency, bands), every, theta),
        verdict("equal-split", _against("equal", latency, bands), every),
        verdict("accuracy-overfit", [replace(one) for one in base if one.label.startswith("overfitting")], every),
        verdict("accuracy-whole", base, every),
        verdict("accuracy-grows", [_grows(scenario, ends, "s") for scenario, ends in latency.items()]),
        verdict("accuracy-bandwidth", [_grows(scenario, ends, "MHz") for scenario, ends in bands.items()]),
        verdict(
            "gain-grows",
            [_grows(scenario, ends, "s", over="random") for scenario, ends in latency.items()],
            "",
            RANDOM_AT,
        ),
        verdict("loose-equal", [_alike(scenario, ends) for scenario, ends in latency.items()], nothing),
    ]


def _against(other: str, latency: dict[str, Ends], bands: dict[str, Ends]) -> list[Comparison]:
    """Compare the proposed scheme with another one, or with the runs without dropout (``"base"``)."""
    points = []
    for scenario in latency:
        for unit, ends in (("s", latency[scenario]), ("MHz", bands[scenario])):
            for i, spot in enumerate(ends.spots):
                gains = matched(ends.schemes["exact"][i], ends.base if other == "base" else ends.schemes[other][i])
                if spot.repeated or len(gains) >= LEAST_SEEDS:
                    at = f"{scenario}, {spot.x:g} {unit}"
                    points.append(Comparison(at, gains, pool=at))
    return points


def _grows(scenario: str, ends: Ends, unit: str, over: str = "") -> Comparison:
    """Compare the loosest with the tightest spot that has all seeds: accuracy, or the gain over another scheme."""
    chosen = [i for i, spot in enumerate(ends.spots) if spot.repeated]
    first, last = chosen[0], chosen[-1]
    values = {i: ends.schemes["exact"][i] for i in (first, last)}
    if over:
        values = {i: [_minus(a, b) for a, b in zip(values[i], ends.schemes[over][i], strict=True)] for i in values}
    span = f"{scenario}, {ends.spots[last].x:g} against {ends.spots[first].x:g} {unit}"
    return Comparison(span, matched(values[last], values[first]), pool=scenario)


def _alike(scenario: str, ends: Ends) -> Comparison:
    at = f"{scenario}, {ends.loose_s:g} s"
    return Comparison(at, matched(ends.loose, ends.base), pool=scenario, tolerance=ALMOST_EQUAL)


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b
