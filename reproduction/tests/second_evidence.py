"""Every comparison of the page, worked out again from its words and the stored runs."""

from __future__ import annotations

import math
import re
from statistics import fmean

from second_reading import (
    FULL,
    NETWORKS,
    NORMS,
    PARTITIONS,
    SCENARIO,
    SECTIONS,
    THEOREM,
    bands_of,
    cell_run,
    closer,
    end,
    ends,
    feddst_of,
    figure_run,
    full_s,
    matched,
    reached,
    rows_of,
    smooth,
    spots_of,
    table_run,
    tight_of_caps,
    weak_run,
)


def rounds_by_seed(net: str, runs: dict[int, dict], share: int) -> dict[int, float]:
    base = figure_run(net)
    return {seed: reached(run, max(smooth(base[seed])))[share] for seed, run in runs.items() if seed in base}


Ended = tuple[dict[int, float], dict[int, float]]
"""By seed: what was spent until something was reached, infinite if it never was; and by the end of the run."""


def bounded(one: Ended, other: Ended) -> Sided:
    """Return the differences, and ≥ or ≤ where one side was never reached; a bound that proves nothing is left out."""
    found, signs, bounds = [], "", []
    for seed in sorted(set(one[0]) & set(other[0])):
        a, b = one[0][seed], other[0][seed]
        if math.isfinite(a) and math.isfinite(b):
            found.append(a - b)
            bounds.append(False)
        elif math.isfinite(b) and one[1][seed] > b:
            found.append(one[1][seed] - b)
            bounds.append(True)
            signs += "≥"
        elif math.isfinite(a) and other[1][seed] > a:
            found.append(a - other[1][seed])
            bounds.append(True)
            signs += "≤"
    return Sided(found, "".join(sorted(set(signs))), bounds)


class Sided(list):
    """Differences as they count, what they are spread about, and the sign of bounds.

    A bound counts as no more than the mean of what was measured; with fewer than two measured, as the least of all.
    """

    def __init__(self, values=(), sign: str = "", bounds=()) -> None:
        known = [value for value, bound in zip(values, bounds, strict=True) if not bound]
        if len(known) > 1:
            self.centre = fmean(known)
        else:
            alike = all(value > 0 for value in values) or all(value < 0 for value in values)
            self.centre = min(values, key=abs) if alike and values else 0.0
        kept = []
        for value, bound in zip(values, bounds, strict=True):
            if bound and value > 0:
                value = min(value, max(self.centre, 0.0))
            elif bound:
                value = max(value, min(self.centre, 0.0))
            kept.append(value)
        super().__init__(kept)
        if not any(bounds):
            self.centre = fmean(kept) if kept else 0.0
        self.sign = sign


def in_rounds(net: str, runs: dict[int, dict], share: int) -> Ended:
    rounds = rounds_by_seed(net, runs, share)
    return rounds, {seed: len(runs[seed]["test_accuracy"]) + 1 for seed in rounds}


def spent(net: str, runs: dict[int, dict], share: int, what: str) -> Ended:
    """Return seconds, megabytes or passes by seed."""
    rounds = rounds_by_seed(net, runs, share)
    by_round = {seed: amounts(runs[seed], what) for seed in rounds}
    until = {s: math.inf if math.isinf(rounds[s]) else sum(by_round[s][: int(rounds[s])]) for s in rounds}
    return until, {seed: sum(row) for seed, row in by_round.items()}


def amounts(run: dict, what: str) -> list[float]:
    """Return what every round took."""
    if what == "seconds":
        return run["latency_s"]
    if what == "bytes":
        return [(push + pull) / 1e6 for push, pull in zip(run["push_bytes"], run["pull_bytes"], strict=True)]
    return [(1 - rate) * devices for rate, devices in zip(run["mean_rate"], run["devices"], strict=True)]


def evidence(claim: str, at: str) -> tuple[list[float], str]:
    """Return the differences of a point, worked out from its words, and what it is pooled with."""
    first = at.split(", ")[0]
    net = NETWORKS.get(first, "lenet")
    half = {"half-way": 0, "95 %": 2}
    if claim in ("underfit-falls", "overfit-peaks"):
        network, partition, rates = at.split(", ")
        low, high = re.match(r"rate (.+) against (.+)", rates).groups()
        runs = [ends(table_run(NETWORKS[network], PARTITIONS[partition], "feddrop", float(r))) for r in (low, high)]
        return matched(*runs), partition if claim == "underfit-falls" else f"{partition}, {high}"
    if claim in ("beats-feddst", "feddst-alexnet"):
        network, rate, order, rival = re.match(r"(\w+), non-IID, (.+): FedDrop (above|below) (.+)", at).groups()
        drop = ends(table_run(NETWORKS[network], "dirichlet", "feddrop", float(rate)))
        dst = ends(table_run(NETWORKS[network], "dirichlet", "feddst", float(rate), **feddst_of(at)))
        return (matched(drop, dst) if order == "above" else matched(dst, drop)), rival
    if claim in ("rounds-latency", "rounds-bandwidth", "less-time"):
        where, one, other, unit = re.match(r"(.+): (.+) against (.+) (s|MHz)", at).groups()
        share = half[where.split(", ")[1]]
        if claim == "less-time" and one == "no dropout":
            rounds, ends_ = in_rounds(net, figure_run(net), share)
            whole = [{s: full_s(net, s, value) for s, value in of.items()} for of in (rounds, ends_)]
            mine = spent(net, cell_run(net, "exact", float(other)), share, "seconds")
            return bounded(tuple(whole), mine), where
        runs = [place(net, "exact", value, unit) for value in (one, other)]
        if claim == "less-time":
            return bounded(*(spent(net, run, share, "seconds") for run in runs)), where
        return bounded(*(in_rounds(net, run, share) for run in runs)), at
    if claim == "fewer-rounds":
        word, value, unit = re.match(r".+, (half-way|95 %), (.+) (s|MHz)", at).groups()
        runs = [in_rounds(net, place(net, scheme, value, unit), half[word]) for scheme in ("random", "exact")]
        return bounded(*runs), at
    if claim == "two-phases" and "slope" not in at:
        value = re.match(r".+, (.+) s: more accurate than no dropout", at)[1]
        return matched(ends(cell_run(net, "exact", float(value))), ends(figure_run(net))), at
    if claim == "two-phases":
        x = [float(text) for text in re.findall(r"[\d.]+", at.split("slope")[1])]
        a, b, c = (rounds_by_seed(net, cell_run(net, "exact", value), 0) for value in (x[0], x[1], x[3]))
        found, sign, bounds = [], "", []
        for s in sorted(set(a) & set(b) & set(c)):
            steeper = (min(a[s], 51) - b[s]) / (x[1] - x[0]) - (b[s] - c[s]) / (x[3] - x[1])
            if math.isfinite(steeper) and (math.isfinite(a[s]) or steeper > 0):
                found.append(steeper)
                bounds.append(math.isinf(a[s]))
                sign = sign if math.isfinite(a[s]) else "≥"
        return Sided(found, sign, bounds), ""
    if claim in ("less-overhead", "less-compute"):
        value, what, when = re.match(r".+, (.+) s: (bytes|computing) (.+)", at).groups()
        mine = cell_run(net, "exact", float(value))
        other = figure_run(net) if when.endswith("no dropout") else cell_run(net, "random", float(value))
        base = figure_run(net)
        if when.startswith("per round"):
            both = [{s: fmean(amounts(r, what)) for s, r in runs.items() if s in base} for runs in (other, mine)]
            return matched(*both), at
        return bounded(*(spent(net, runs, 0, what) for runs in (other, mine))), at
    if claim in ("accuracy-scheme", "equal-split", "accuracy-overfit", "accuracy-whole"):
        value, unit = re.match(r".+, (.+) (s|MHz)", at).groups()
        mine = ends(place(net, "exact", value, unit))
        scheme = {"accuracy-scheme": "random", "equal-split": "equal"}.get(claim)
        return matched(mine, ends(place(net, scheme, value, unit) if scheme else figure_run(net))), at
    if claim == "smaller-theta":
        tight = tight_of_caps(net)
        mine, other = cell_run(net, "exact", tight), cell_run(net, "random", tight, cap=float(at.split()[-1]))
        return matched(ends(mine), ends(other)), first
    if claim == "accuracy-bandwidth":
        high, low = re.match(r".+, (.+) against (.+) MHz", at).groups()
        return matched(*(ends(place(net, "exact", x, "MHz")) for x in (high, low))), at
    if claim in ("accuracy-grows", "gain-grows"):
        high, low = (float(text) for text in re.match(r".+, (.+) against (.+) s", at).groups())
        runs = [ends(cell_run(net, "exact", x)) for x in (high, low)]
        if claim == "gain-grows":
            others = [ends(cell_run(net, "random", x)) for x in (high, low)]
            runs = [{s: a[s] - b[s] for s in a if s in b} for a, b in zip(runs, others, strict=True)]
        return matched(*runs), first
    if claim == "loose-equal":
        value = float(re.match(r".+, (.+) s", at)[1])
        return matched(ends(cell_run(net, "random", value)), ends(figure_run(net))), first
    if claim == "dynamic-grows":
        high, low, partition = re.match(r".+, (.+) against (.+) s, (.+)", at).groups()
        runs = [
            ends(cell_run(net, "exact", float(x), changing=True, partition=PARTITIONS[partition])) for x in (high, low)
        ]
        return matched(*runs), at
    if claim in ("iid-above", "iid-faster", "iid-gap"):
        values = [float(text) for text in re.findall(r"[\d.]+", at)]
        pairs = [[cell_run(net, "exact", x, changing=True, partition=p) for p in ("iid", "dirichlet")] for x in values]
        if claim == "iid-faster":
            levels = {seed: max(smooth(run)) for seed, run in pairs[0][1].items()}
            sides = []
            for runs in reversed(pairs[0]):
                until = {s: reached(run, levels[s])[2] for s, run in runs.items() if s in levels}
                sides.append((until, {s: len(runs[s]["test_accuracy"]) + 1 for s in until}))
            return bounded(*sides), at
        gaps = [{s: end(iid[s]) - end(skewed[s]) for s in iid if s in skewed} for iid, skewed in pairs]
        return (list(gaps[0].values()) if claim == "iid-above" else matched(*gaps)), at
    if claim == "energy-scheme":
        at_s = spots_of("lenet")[-1]
        mine, other = (
            ends(cell_run("lenet", scheme, at_s, budget=1500.0))
            for scheme in ("exact", "random" if "bandwidth-aware" in at else "equal")
        )
        return matched(mine, other), at
    if claim in ("weak-devices", "weak-take-part"):
        case, title = at.split(": ")
        runs = [weak_run(case, name, spots_of("lenet")[-1]) for name in (title, "without dropout")]
        if claim == "weak-take-part":
            return matched(*({seed: fmean(run["devices"]) for seed, run in by.items()} for by in runs)), case
        return matched(*map(ends, runs)), case
    if claim == "large-rates":
        network, layers, rate = re.match(r"(\w+), (.+), rate (.+)", at).groups()
        runs = figure_run(NETWORKS[network], float(rate), layers="all" if layers == "all layers" else "linear")
        return [end(run) - 100 * fmean(run["test_accuracy"][:5]) for run in runs.values()], at
    if claim.startswith("theorem"):
        of = THEOREM[first]
        if claim == "theorem-rounds":
            rate, *t = re.match(r".+, rate (.+): T = (\d+) against (\d+)", at).groups()
            sides = [(rate, of["rounds"].index(int(count))) for count in t]
        else:
            t, *rates = re.match(r".+, T = (\d+): rate (.+) against (.+)", at).groups()
            sides = [(rate, of["rounds"].index(int(t))) for rate in rates]
        return [
            one["norm_sq"][sides[0][0]][sides[0][1]] - one["norm_sq"][sides[1][0]][sides[1][1]] for one in of["seeds"]
        ], at
    if claim == "slower-with-rate" and "rounds" in at:
        network, high, low = re.match(r"(\w+), .+ rate (.+) against (.+)", at).groups()
        rows = [table_run(NETWORKS[network], "iid", "feddrop", float(rate)) for rate in (high, low, 0.0)]
        sides = []
        for runs in rows[:2]:
            until = {s: reached(run, max(smooth(rows[2][s])))[0] for s, run in runs.items() if s in rows[2]}
            sides.append((until, {s: len(runs[s]["test_accuracy"]) + 1 for s in until}))
        return bounded(*sides), at
    if claim == "slower-with-rate":
        high, low = re.match(r".+ rate (.+) against (.+)", at).groups()
        runs = [
            {
                s: r["test_loss"][len(r["test_loss"]) // 2]
                for s, r in table_run("lenet", "iid", "feddrop", float(rate)).items()
            }
            for rate in (high, low)
        ]
        return matched(*runs), ""
    if claim == "objective":
        return closer(*at.split(", "), by_all=True)[0], at
    if claim == "overfit-all-layers":
        deep = [
            ends(figure_run("alexnet", rate, epochs=10, rounds=20, layers=layers))
            for rate, layers in ((0.2, "all"), (0.0, "linear"))
        ]
        return matched(*deep), ""
    if claim == "overfit-all":
        return matched(ends(figure_run("alexnet", 0.2, layers="all")), ends(figure_run("alexnet"))), ""
    if claim == "norm-falls":
        rows = NORMS[re.match(r"rate (.+):", at)[1]]
        return [fmean(row[: len(row) // 2]) - fmean(row[len(row) // 2 :]) for row in rows], at
    if claim == "norm-rate":
        high, low = (NORMS[rate] for rate in re.match(r".+ rate (.+) against (.+)", at).groups())
        return [fmean(a) - fmean(b) for a, b in zip(high, low, strict=True)], ""
    raise AssertionError(f"{claim}: nobody knows how to work it out again")


def place(net: str, scheme: str, value: str, unit: str) -> dict[int, dict]:
    if unit == "s":
        return cell_run(net, scheme, float(value))
    return cell_run(net, scheme, bands_of(net)[0], band=float(value) * 1e6)


def grain_of(claim: str, at: str) -> float:
    """Return the step in which a point is counted: a round, or what a round takes or sends."""
    net = NETWORKS.get(at.split(", ")[0], "lenet")
    if claim in ("rounds-latency", "rounds-bandwidth", "fewer-rounds", "iid-faster"):
        return 1.0
    if claim == "slower-with-rate":
        return 1.0 if "rounds" in at else 0.0
    if claim == "two-phases" and "slope" in at:
        x = [float(text) for text in re.findall(r"[\d.]+", at.split("slope")[1])]
        return 1 / (x[1] - x[0]) + 1 / (x[3] - x[1])
    if claim == "less-time":
        one, other = re.match(r".+: (.+) against (.+) s", at).groups()
        seconds = FULL[SCENARIO[net]]["seconds"]
        return max(float(other), fmean(map(fmean, seconds)) if one == "no dropout" else float(one))
    if claim in ("less-overhead", "less-compute") and "to half-way" in at:
        value, what = re.match(r".+, (.+) s: (bytes|computing)", at).groups()
        other = figure_run(net) if at.endswith("no dropout") else cell_run(net, "random", float(value))
        base = figure_run(net)
        sent = [
            fmean(amounts(r, what))
            for runs in (cell_run(net, "exact", float(value)), other)
            for seed, r in runs.items()
            if seed in base
        ]
        return max(sent, default=0.0)
    return 0.0


def evidence_rows() -> dict[str, list[list[str]]]:
    claims: dict[str, list[list[str]]] = {}
    for name, *rest in rows_of(SECTIONS["The evidence, comparison by comparison"])[0][1:]:
        claims.setdefault(name, []).append(rest)
    return claims


EVIDENCE = evidence_rows()
