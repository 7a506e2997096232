"""Every difference, error, margin, answer and outcome of the page, worked out a second time."""

from __future__ import annotations

import json
import math
import re
from statistics import fmean

import pytest
from second_evidence import EVIDENCE, evidence, grain_of
from second_reading import (
    NETWORKS,
    PAGE,
    ROOT,
    SCENARIO,
    SECTIONS,
    T95,
    THEOREM,
    bands_of,
    cell_run,
    curve_of,
    facts_of,
    figure_run,
    ratio_error,
    rows_of,
    spots_of,
)

ESTIMATED = ("unbiased", "variance-law")


def test_what_is_estimated_from_masks():
    """Lemma 1: squared bias, and the ratio to the law, with twice their standard errors for a margin."""
    law, bias = facts_of("theory")["laws"][0], facts_of("unbiased")
    curve, expected = law["gradient"], {"variance-law": [], "unbiased": []}
    known = [ratio for rate, ratio in zip(law["rate"], curve["ratio"], strict=True) if rate <= 0.4]
    fitted = (min(known) * max(known)) ** 0.5
    for i, rate in enumerate(rate for rate in law["rate"] if rate <= 0.4):
        of, error = curve["ratio"][i] / fitted, ratio_error(*(row[i] for row in curve_of(curve))) / fitted
        expected["variance-law"].append((f"weight level, rate {rate:g}", of - 1, error, 0.2, 2))
    for pooling in ("max", "average"):
        of = bias[pooling]
        for rate, value, error in zip(bias["rate"], of["bias_sq"], of["bias_sq_error"], strict=True):
            of_norm = (value / of["norm_sq"], error / of["norm_sq"])
            expected["unbiased"].append((f"{pooling} pooling, rate {rate:g}", *of_norm, 0.01, 5))
    for claim, points in expected.items():
        for row, (label, value, error, within, digits) in zip(EVIDENCE[claim], points, strict=True):
            at, *shown, seeds, says = row
            assert (at, seeds) == (label, "")
            numbers = [f"{value:+.{digits}f}", f"{error:.{digits}f}", f"{2 * error:.{digits}f}"]
            assert [shown[0].split(" ")[0], *shown[1:]] == numbers
            inside, outside = abs(value) + 2 * error <= within, abs(value) - 2 * error > within
            assert says == ("yes" if inside else "no" if outside else "within the margin")


@pytest.mark.parametrize("claim", [name for name in EVIDENCE if name not in ESTIMATED])
def test_the_evidence(claim):
    points = [(row, *evidence(claim, row[0])) for row in EVIDENCE[claim]]
    for (at, difference, error, margin, seeds, says), differences, pool in points:
        mates = [other for _, other, of in points if of == pool]
        freedom = sum(max(0, len(other) - 1) for other in mates)
        squares = sum(
            (value - getattr(other, "centre", fmean(other))) ** 2 for other in mates if other for value in other
        )
        assert seeds == str(len(differences) or "")
        if not differences:
            assert (difference, error, margin) == ("", "", "")
            assert says in ("not run", "not reached", "few seeds")
            continue
        d, sign = fmean(differences), getattr(differences, "sign", "")
        assert difference.startswith(f"{sign} {shown_as(d, claim, sign='+')}".strip())
        spread = max(math.sqrt(squares / freedom), grain_of(claim, at) / math.sqrt(6)) if freedom else math.nan
        e = spread / math.sqrt(len(differences))
        m = T95[min(freedom, 20)] * e if freedom else math.nan
        told = len(differences) > 1 and freedom
        assert (error, margin) == ((shown_as(e, claim), shown_as(m, claim)) if told else ("", ""))
        alike = claim == "loose-equal"
        if len(differences) < 3:
            good = abs(d) <= 1.0 if alike else d > 0
            assert says in ("not reached", f"few seeds, points to {'yes' if good else 'no'}")
        elif alike:
            assert says == ("yes" if abs(d) + m <= 1.0 else "no" if abs(d) - m > 1.0 else "within the margin")
        else:
            assert says == ("within the margin" if abs(d) <= m else "yes" if d > 0 else "no")


def shown_as(value: float, claim: str, sign: str = "") -> str:
    return f"{value:{sign}.{4 if claim.startswith(('norm', 'theorem')) else 2}f}"


def test_what_was_not_reached_was_run():
    """What gives no difference was not run, with few seeds, or not reached with three: by the runs of both sides."""
    for claim in ("fewer-rounds", "less-time"):
        for at, *_, seeds, says in EVIDENCE[claim]:
            net = NETWORKS[at.split(", ")[0]]
            if seeds or "MHz" in at:
                continue
            x = [float(text) for text in re.findall(r"([\d.]+)(?= s| against)", at)]
            schemes = ("random", "exact") if claim == "fewer-rounds" else ("exact",)
            sides = [cell_run(net, scheme, value) for scheme in schemes for value in x]
            both = len(set(figure_run(net)).intersection(*sides))
            assert says == ("not reached" if both > 2 else "few seeds" if both else "not run"), at


def claims_table() -> dict[str, list[str]]:
    paper, ours = (table[1:] for table in rows_of(SECTIONS["Its claims"])[:2])
    return {row[0]: row[1:] for row in (*paper, *ours)}


def test_the_outcomes_follow_from_the_evidence():
    """The four outcomes and the counts, from what the points of each claim say; claims without chance aside."""
    from reproduction.framework.published import CLAIMS

    table = claims_table()
    assert len(table) == len(CLAIMS)
    marks = {"holds": "✓", "holds in part": "◐", "holds in part, fails in part": "±", "does not hold": "✗"}
    marks["undecided"] = "○"
    for claim in CLAIMS:
        outcome = table[claim.text][1]
        if claim.name in EVIDENCE:
            says = [row[-1].split(", points to ") for row in EVIDENCE[claim.name]]
            words = [one[0] for one in says]
            yes, no = words.count("yes"), words.count("no")
            expected = "does not hold" if no and not yes else "undecided" if not yes else "holds"
            if yes and yes < len(says) and not claim.possible:  # one yes shows what is only said to be possible
                expected = "holds in part, fails in part" if no else "holds in part"
            order = ["within the margin", "few seeds", "not reached", "not run"]
            leaning = f" (pointing to yes: {sum(one[1:] == ['yes'] for one in says)})"
            counts = [
                f"{word} {words.count(word)}" + leaning * (word == "few seeds")
                for word in ("yes", "no", *order)
                if word in words
            ]
            alike = yes == len(says) or (expected == "does not hold" and no == len(says))
            shown = expected if alike else f"{expected} ({', '.join(counts)})"
            assert re.fullmatch(rf"{re.escape(f'{marks[expected]} **{shown}')}(; .+)?\*\*", outcome), claim.name
        elif claim.name != "gap-narrows":  # told by the points of other claims
            both = re.search(r"\(yes \d+, no \d+\)", outcome)
            certain = "holds in part, fails in part" if both else re.search(r"\*\*(holds|does not hold)", outcome)[1]
            assert outcome.startswith(f"{marks[certain]} **{certain}"), claim.name
    many = {"holds": "hold", "holds in part": "hold in part", "does not hold": "do not hold"}
    many["holds in part, fails in part"] = "hold in part, fail in part"
    for i, whose in enumerate(("claims of the paper", "questions of ours")):
        outcomes = [row[2].split(" ")[0] for row in rows_of(SECTIONS["Its claims"])[i][1:]]
        assert len(outcomes) == sum(claim.ours == bool(i) for claim in CLAIMS)
        found = {word: outcomes.count(mark) for word, mark in marks.items() if mark in outcomes}
        words = "; ".join(f"{marks[w]} {n} {w if n == 1 else many.get(w, w)}" for w, n in found.items())
        assert f"Of {len(outcomes)} {whose}: {words}." in PAGE
    says = [row[-1] for rows in EVIDENCE.values() for row in rows]
    sure = says.count("yes") + says.count("no")
    asked = sure + says.count("within the margin")
    told = f"of {asked} comparisons judged so, {sure} say yes or no; about {asked / 20:.0f} would by chance alone."
    assert told in SECTIONS["Its claims"]


CONDITIONS = {
    "overfit-peaks": "with dropout in AlexNet's fully-connected layers only",
    **dict.fromkeys(
        ("fewer-rounds", "less-overhead", "less-compute", "accuracy-scheme", "gain-grows"),
        "with random shares at θ = 0.9",
    ),
    "two-phases": "the first phase by a weak test, which every convex curve passes",
    "less-time": "as a *potential*",
    "algorithm-optimal": "with our step sizes, clipping and stopping rule",
    "complexity": "with our step sizes and stopping rule",
    "unbiased": "max pooling: up to rate",
    "bound-holds": "the bound is above 0 and permits the loss to rise",
    "theorem-bound": "with L, A and G measured at w⁰ only",
}


def test_verdicts_that_depend_on_something_say_so():
    from reproduction.framework.published import CLAIMS

    for claim in CLAIMS:
        outcome = claims_table()[claim.text][1]
        assert ("; " in outcome) == (claim.name in CONDITIONS), claim.name
        assert CONDITIONS.get(claim.name, "") in outcome
    says = [row[-1] for row in EVIDENCE["smaller-theta"]]
    text = {claim.name: claim.text for claim in CLAIMS}
    smaller = f"with a smaller θ in {says.count('yes')} of {len(says)} comparisons only"
    assert (smaller in claims_table()[text["accuracy-scheme"]][1]) == (set(says) != {"yes"})


def test_the_gap_is_told_by_the_points_on_rounds():
    from reproduction.framework.published import CLAIMS

    text = {claim.name: claim.text for claim in CLAIMS}
    rows = [row[-1] for name in ("rounds-latency", "rounds-bandwidth") for row in EVIDENCE[name]]
    outcome = claims_table()[text["gap-narrows"]][1]
    tally = re.search(r"\((.*)\)", outcome)[1]
    assert sum(int(number) for number in re.findall(r"(?:yes|no|noise|seeds|reached|run) (\d+)", tally)) == len(rows)
    for word in ("yes", "no", "within the margin", "few seeds", "not reached", "not run"):
        count = sum(re.match(rf"{word}\b", one) is not None and not (word == "no" and one != "no") for one in rows)
        assert (re.search(rf"\b{word} {count}\b", tally) is not None) == bool(count), word
    yes, no = rows.count("yes"), rows.count("no")
    expected = "does not hold" if no and not yes else "undecided" if not yes else "holds"
    partly = "holds in part, fails in part" if no else "holds in part"
    assert f"**{partly if yes and yes < len(rows) else expected} (" in outcome


def test_claims_without_chance():
    from reproduction.framework.published import CLAIMS

    told = {claim.name: claims_table()[claim.text][1].split("**")[1].split(";")[0] for claim in CLAIMS}

    def shown(answers):
        both = f"holds in part, fails in part (yes {answers.count(True)}, no {answers.count(False)})"
        return "holds" if all(answers) else both if any(answers) else "does not hold"

    facts = {
        name: json.loads((ROOT / "reproduction" / "results" / "cpu" / "facts" / f"{name}.json").read_text())
        for name in ("overhead", "theory", "allocator")
    }
    sums = [{entry["method"]: sum(entry["frames"]) for entry in case["methods"]} for case in facts["overhead"]["cases"]]
    less = [one["FedDrop"] < one[other] for one in sums for other in ("PruneFL", "FedDST")]
    trained = rows_of(SECTIONS["Communication and compute overhead"])[1][1:]
    less += [int(a.replace(",", "")) < int(b.replace(",", "")) for at, a, b, _ in trained if at.startswith("LeNet")]
    assert told["overhead"] == shown(less)
    law = facts["theory"]["laws"][0]
    below = [
        v <= m for r, v, m in zip(law["rate"], law["gradient"]["measured"], law["lemma1"], strict=True) if r <= 0.4
    ]
    assert told["variance-bound"] == shown(below)
    theory = facts["theory"]
    assert told["bound-holds"] == shown([a <= b for a, b in zip(theory["change"], theory["bound"], strict=True)])
    within = [
        all(one["norm_sq"][rate][i] <= one["bound"][rate][i] for one in of["seeds"])
        for of in THEOREM.values()
        for rate in ("0", "0.2", "0.4")
        for i in range(len(of["rounds"]))
    ]
    assert told["theorem-bound"] == shown(within)
    broken = {name: [bool(row[1]) for row in rows] for name, rows in facts["allocator"]["checks"].items()}
    for claim, names in {
        "convex": ["convex"],
        "channel-rate": ["channel, two devices", "channel, one device"],
        "share-opposite": ["opposite, one device", "opposite, data", "opposite, channel"],
        "resources-rate": ["deadline", "band"],
    }.items():
        assert told[claim] == shown([not bad for name in names for bad in broken[name]]), claim
    assert told["not-convex"] == shown([*broken["convex in γ"], *broken["functions"]])
    rates, passes = (facts["allocator"][name] for name in ("rates", "passes"))
    assert told["cpu-not-monotone"] == shown([rates[0] > min(rates) < rates[-1]])
    assert told["complexity"] == shown([max(passes) <= 2 * min(passes)])  # so O(K) in all, which is within O(K²)
    assert told["theta"] == shown([min(theory["fed"]["feasible"][0]) >= 0.95 * 120])


def test_points_are_at_the_figures_own_places():
    known = {0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.9, 95}
    known.add(2)  # FedDST's learning rate on AlexNet, in multiples of FedDrop's
    known |= {count for of in THEOREM.values() for count in of["rounds"]}
    for net in ("lenet", "alexnet"):
        loose = float(
            rows_of(SECTIONS["Accuracy against latency"].split(f"**{SCENARIO[net].capitalize()}**")[1])[0][-1][0]
        )
        known |= {*spots_of(net), *bands_of(net)[1], loose}
    for rows in EVIDENCE.values():
        for at, *_ in rows:
            assert {float(text) for text in re.findall(r"\d+(?:\.\d+)?", at)} <= known, at


def test_differences_in_the_findings_are_those_of_the_page():
    """Field by field, in the order of the text: the difference of that claim at that point."""
    template = (ROOT / "reproduction" / "findings.txt").read_text()
    text = " ".join((ROOT / "docs" / "findings.md").read_text().split())
    fields = re.findall(r"\{d\[(.+?): (.+?)\]\}", template)
    assert len(fields) > 30
    place = 0
    for claim, at in fields:
        (row,) = [row for row in EVIDENCE[claim] if row[0] == at]
        _, difference, error, _, seeds, says = row
        expected = says
        if seeds:
            number, unit = re.fullmatch(r"((?:[≥≤]+ )?\S+)(.*)", difference).groups()
            word = "one seed" if seeds == "1" else f"{seeds} seeds"
            expected = f"{number}{f' ± {error}' if error else ''}{unit} ({word})"
        place = text.index(expected, place) + len(expected)
