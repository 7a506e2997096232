"""Every number of the page, a second time: from the JSON files alone, by code that shares nothing with the first."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from statistics import fmean, stdev

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "paper.md").read_text()
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}
T95 |= {11: 2.201, 12: 2.179, 13: 2.160, 14: 2.145, 15: 2.131, 16: 2.120, 17: 2.110, 18: 2.101, 19: 2.093, 20: 2.086}
NETWORKS = {"LeNet": "lenet", "AlexNet": "alexnet", "underfitting": "lenet", "overfitting": "alexnet"}
PARTITIONS = {"IID": "iid", "non-IID": "dirichlet"}
SCHEMES = {"proposed": "exact", "bandwidth-aware": "random", "equal shares": "equal"}


def load() -> list[dict]:
    """Every result: its series, and what tells it from the others, flat."""
    found = []
    for path in (ROOT / "results" / "cpu").glob("*.json"):
        raw = json.loads(path.read_text())
        config = raw["config"]
        radio = config["radio"] if config.get("radio") else {}
        facts = {
            "net": config["model"]["name"],
            "init": config["model"]["init"],
            "seed": config["seed"],
            "rounds": config["rounds"],
            "partition": config["data"]["partition"],
            "dirichlet": config["data"]["alpha"],
            "images": config["data"]["train_limit"],
            "lr": config["train"]["lr"],
            "epochs": config["train"]["epochs"],
            "scheme": radio.get("scheme"),
            "deadline": radio.get("deadline_s"),
            "band": radio.get("bandwidth_hz"),
            "costs": radio.get("costs"),
            "cap": radio.get("max_rate"),
            "budget": radio.get("energy_budget_j"),
            "changing": radio.get("dynamic"),
            "loss": radio.get("path_loss"),
            "rate": config.get("rate"),
            **method_of(config),
        }
        found.append({"facts": facts, "series": raw["series"]})
    return found


def method_of(config: dict) -> dict:
    names = {"method": "name", "released": "as_released"}
    wanted = ("method", "layers", "count", "rule", "factor", "alpha", "released")
    return {name: config["method"].get(names.get(name, name)) for name in wanted}


RUNS = load()
PLAIN = {"rule": "delta", "factor": True, "count": "exact", "epochs": 1, "dirichlet": 0.1, "scheme": None}
TABLE = {
    "lenet": {**PLAIN, "net": "lenet", "images": 0, "rounds": 50, "lr": 0.2, "layers": "all"},
    "alexnet": {**PLAIN, "net": "alexnet", "images": 5000, "rounds": 50, "lr": 0.01, "layers": "linear", "init": "he"},
}
FIGURE = {"lenet": {**TABLE["lenet"], "images": 20000, "rounds": 40, "lr": 0.1}, "alexnet": TABLE["alexnet"]}
IN_CELL = {"changing": False, "cap": 0.9, "budget": math.inf, "loss": 0.001, "band": 10e6, "partition": "iid"}


def pick(wanted: dict, **more) -> dict[int, dict]:
    """Return the series of the runs that are so, by seed; each seed once. FedDST has no layers and no rule."""
    wanted = {**wanted, **more}
    if wanted.get("method") == "feddst":
        wanted = {name: value for name, value in wanted.items() if name not in ("layers", "rule", "factor", "count")}
    if wanted.get("scheme") not in (None, "fixed"):
        wanted.pop("rate", None)
    found: dict[int, dict] = {}
    for run in RUNS:
        if all(run["facts"][name] == value for name, value in wanted.items()):
            assert run["facts"]["seed"] not in found, wanted
            found[run["facts"]["seed"]] = run["series"]
    return dict(sorted(found.items()))


def end(series: dict) -> float:
    return 100 * fmean(series["test_accuracy"][-5:])


def ends(runs: dict[int, dict]) -> dict[int, float]:
    return {seed: end(series) for seed, series in runs.items()}


def cell(values) -> str:
    values = list(values.values() if isinstance(values, dict) else values)
    if not values:
        return ""
    error = f" ± {stdev(values) / math.sqrt(len(values)):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{error} ({len(values)})"


def table_run(net: str, partition: str, method: str, rate: float, **more) -> dict[int, dict]:
    return pick(TABLE[net], partition=partition, method=method, rate=rate, **more)


def figure_run(net: str, rate: float | list = 0.0, partition: str = "iid", **more) -> dict[int, dict]:
    return pick(FIGURE[net], partition=partition, method="feddrop", rate=rate, **more)


def cell_run(net: str, scheme: str, deadline: float, **more) -> dict[int, dict]:
    costs = "formula" if net == "lenet" else "measured"
    wanted = {**FIGURE[net], **IN_CELL, "method": "feddrop", "scheme": scheme, "deadline": deadline, "costs": costs}
    if "budget" not in more:
        wanted["budget"] = math.inf
    return pick(wanted, **more)


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", PAGE, flags=re.M)
    return dict(zip((re.sub(r" \(.*\)$", "", name) for name in parts[1::2]), parts[2::2], strict=True))


def split(line: str) -> list[str]:
    return [part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]]


def rows_of(text: str) -> list[list[list[str]]]:
    found: list[list[list[str]]] = []
    open_ = False
    for line in text.splitlines():
        if line.startswith("|"):
            if not open_:
                found.append([])
            open_ = True
            if not line.startswith("| ---"):
                found[-1].append(split(line))
        else:
            open_ = False
    return found


SECTIONS = sections()


def smooth(series: dict) -> list[float]:
    accuracy = series["test_accuracy"]
    return [fmean(accuracy[i - 5 : i]) for i in range(5, len(accuracy) + 1)]


def reached(series: dict, plateau: float) -> list[float]:
    """Return the round at which each share of the plateau is reached."""
    means = smooth(series)
    found = []
    for share in (0.5, 0.9, 0.95, 0.98):
        rounds = [i + 5 for i, value in enumerate(means) if value >= share * plateau * (1 - 1e-12)]
        found.append(rounds[0] if rounds else math.inf)
    return found


def written(values: list[float]) -> str:
    return " / ".join("–" if math.isinf(value) else f"{value:.0f}" for value in values)


def clock(series: dict, rounds: float, *names: str) -> float:
    return math.inf if math.isinf(rounds) else sum(sum(series[name][: int(rounds)]) for name in names)


def mean(series: dict, name: str) -> float:
    return fmean(value for value in series[name] if value is not None)


def test_the_table():
    (header, *rows), moves = rows_of(SECTIONS["Accuracy at equal rates and sparsities"])
    rates = [float(text) for text in header[2:]]
    seen = 0
    for title, kind, *cells in rows:
        if kind != "ours":
            continue
        network, partition, method = title.split(", ")[:3]
        more = {}
        if method == "FedDST":
            more = {"alpha": float(title.split("α = ")[1]), "released": False}
        if title.endswith("rule model"):
            more = {"rule": "model"}
        for rate, text in zip(rates, cells, strict=True):
            assert text == cell(ends(table_run(NETWORKS[network], PARTITIONS[partition], method.lower(), rate, **more)))
            seen += bool(text)
    assert seen > 30
    for title, sparsity, seed, text in moves[1:]:
        alpha, network = float(title.split("α = ")[1]), NETWORKS[title.split(", ")[0]]
        run = table_run(network, "dirichlet", "feddst", float(sparsity), alpha=alpha, released=False)[int(seed)]
        rounds = range(5, 26, 5) if alpha == 0.5 else range(10, 26, 10)
        sent_again = [t for t in rounds if run["push_bytes"][t] > min(run["push_bytes"])]
        if "mask_moved" in run:
            assert text == ", ".join(f"{run['mask_moved'][t - 1]:,} in {t}" for t in rounds)
            assert sum(run["mask_moved"]) == sum(run["mask_moved"][t - 1] for t in rounds)
            assert sent_again == [t for t in rounds if run["mask_moved"][t - 1]]
        elif sent_again:
            assert text == ", ".join(f"some in {t}" for t in sent_again) + "; not counted"
        else:
            assert text == "none"


@pytest.mark.parametrize("figure", ["latency", "bandwidth"])
def test_rounds_to_converge(figure):
    text = SECTIONS[f"Rounds to converge against {figure}"]
    seen = 0
    for part in re.split(r"^\*\*(?=Underfitting|Overfitting)", text, flags=re.M)[1:]:
        net = NETWORKS[part.split("**")[0].split(",")[0].lower()]
        costs = "formula" if net == "lenet" or "formula" in part.split("**")[0] else "measured"
        fixed = re.search(r"T₀ = ([\d.]+) s", text if net == "lenet" else text.split("*Settings, overfitting")[1])
        for x, seed, *cells, seconds in rows_of(part)[0][1:]:
            base = figure_run(net)
            if x == "without dropout":
                run = base[int(seed)]
                assert cells[0] == written(reached(run, max(smooth(run))))
                continue
            for scheme, shown in zip(SCHEMES.values(), cells, strict=True):
                where = (
                    {"deadline": float(x)}
                    if figure == "latency"
                    else {"deadline": float(fixed[1]), "band": float(x) * 1e6}
                )
                runs = pick({**FIGURE[net], **IN_CELL, "method": "feddrop", "scheme": scheme, "costs": costs, **where})
                if seed == "" or int(seed) not in runs:
                    assert shown == "not run"
                    continue
                run = runs[int(seed)]
                rounds = reached(run, max(smooth(base[int(seed)])))
                assert shown == f"{written(rounds)} (γ {mean(run, 'mean_rate'):.2f})"
                seen += 1
                if scheme == "exact":
                    assert seconds == written([clock(run, rounds[i], "latency_s") for i in (0, 2)])
    assert seen > 10


def test_accuracy_against_latency():
    text = SECTIONS["Accuracy against latency"]
    seen = 0
    for part in re.split(r"^\*\*(?=Underfitting|Overfitting)", text, flags=re.M)[1:]:
        title = part.split("**")[0]
        net = NETWORKS[title.split(",")[0].lower()]
        costs = "formula" if net == "lenet" or "formula" in title else "measured"
        base = cell(ends(figure_run(net)))
        for x, *cells in rows_of(part)[0][1:]:
            assert cells[-1] == base
            for scheme, shown in zip(SCHEMES.values(), cells, strict=False):
                found = ends(cell_run(net, scheme, float(x), costs=costs))
                if shown not in ("", "drops nothing"):
                    assert shown == (cell(found) or "not run")
                    seen += 1
    assert seen > 20
    for cap, shown, rate, devices in rows_of(text.split("**Random shares and θ**")[1])[0][1:]:
        at = float(re.search(r"underfitting, ([\d.]+) s, first seed", text)[1])
        run = cell_run("lenet", "random", at, cap=float(cap)).get(0)
        expected = ["not run"] * 3
        if run:
            expected = [f"{end(run):.2f}", f"{mean(run, 'mean_rate'):.2f}", f"{mean(run, 'devices'):.1f}"]
        assert [shown, rate, devices] == expected


def test_a_changing_cell():
    for scenario, x, *cells in rows_of(SECTIONS["A cell that changes"])[0][1:]:
        net = NETWORKS[scenario.split(",")[0]]
        costs = "formula" if net == "lenet" or "formula" in scenario else "measured"
        for partition, shown in zip(PARTITIONS.values(), cells, strict=True):
            found = cell_run(net, "exact", float(x), changing=True, partition=partition, costs=costs)
            assert shown == (cell(ends(found)) or "not run")


def test_energy_and_weak_devices():
    names = {
        "proposed (exact)": "exact",
        "Algorithm 1": "primal-dual",
        "equal shares": "equal",
        "bandwidth-aware": "random",
    }
    facts = json.loads((ROOT / "results" / "cpu" / "facts" / "energy.json").read_text())
    text = SECTIONS["Where energy binds and computing takes time"]
    at = float(re.search(r"T₀ = ([\d.]+) s", text)[1])
    for title, shown, *numbers in rows_of(text)[0][1:]:
        runs = cell_run("lenet", names[title], at, budget=1500.0)
        assert shown == (cell(ends(runs)) or "not run")
        played = facts[names[title]]
        for name, digits, number in zip(
            ("rate", "objective", "held_deadline", "held_energy"), (3, 4, 2, 2), numbers, strict=True
        ):
            assert float(number) == pytest.approx(fmean(played[name]), abs=0.5000001 * 10**-digits)  # a tie may go up
            assert len(number.split(".")[1]) == digits
        for seed, run in runs.items():  # the run decided what was played without it
            assert run["objective"] == pytest.approx(played["objectives"][seed], rel=1e-5)
            assert mean(run, "mean_rate") == pytest.approx(played["rate"][seed], rel=1e-4)
            assert fmean(run["held_energy"]) == pytest.approx(played["held_energy"][seed])
    pairs = zip(
        *([v for row in facts[name]["objectives"] for v in row] for name in ("primal-dual", "exact")), strict=True
    )
    worst = max(abs(a / b - 1) for a, b in pairs)
    assert f"rounds: {worst:.1e} of the optimum" in SECTIONS["What became of its claims"]
    low, high = (3 * 1_318_560 * 2000 / hz for hz in (7e9, 4.9e9))
    assert f"computes for {low:.2g} to {high:.2g} s" in text
    text = SECTIONS["Devices that only take part thanks to dropout"]
    for title, shown, *numbers in rows_of(text)[0][1:]:
        scheme = "exact" if title.startswith("with dropout") else "fixed"
        runs = cell_run("lenet", scheme, at, partition="dirichlet", loss=[0.001] * 7 + [0.0001] * 3)
        assert shown == (cell(ends(runs)) or "not run")
        for name, digits, number in zip(("mean_rate", "devices"), (2, 1), numbers, strict=True):
            assert number == (f"{fmean(mean(run, name) for run in runs.values()):.{digits}f}" if runs else "")


CURVE = {"lenet": (0.0, 0.2, 0.5, 0.6, 0.65), "alexnet": (0.0, 0.1, 0.2, 0.3, 0.4)}
GIVEN = ([0.0] * 8 + [0.75] * 2, [0.1] * 5 + [0.6] * 5, [0.1] * 9 + [0.9])


def dots(scenario: str, group: str) -> list[tuple[float, float, float, float]]:
    """Return objective, rate, squared objective and accuracy of the runs of a group."""
    net = NETWORKS[scenario]
    if group == "given rates":
        return [
            (fmean(1 / (1 - r) for r in rates), fmean(rates), fmean(1 / (1 - r) for r in rates), end(run))
            for rates in GIVEN
            for run in figure_run(net, rates).values()
        ]
    found = []
    spots = spots_of(net)
    if group == "changing cell":
        runs = [cell_run(net, "exact", x, changing=True, costs="formula") for x in (spots[0], spots[-1])]
    else:
        runs = [cell_run(net, SCHEMES[group], x, costs="formula") for x in spots]
        at, bands = bands_of(net)
        runs += [cell_run(net, SCHEMES[group], at, band=band * 1e6, costs="formula") for band in bands]
    for by_seed in runs:
        for run in by_seed.values():
            known = [(o, n) for o, n in zip(run["objective"], run["devices"], strict=True) if o is not None]
            if known:
                squared = fmean(10 * o / n for o, n in known)
                found.append((fmean(o for o, _ in known), mean(run, "mean_rate"), squared, end(run)))
    return found


def spots_of(net: str) -> list[float]:
    text = SECTIONS["Accuracy against latency"].split("**Underfitting**" if net == "lenet" else "**Overfitting**")[1]
    return [float(row[0]) for row in rows_of(text)[0][1:-1]]


def bands_of(net: str) -> tuple[float, list[float]]:
    text = SECTIONS["Rounds to converge against bandwidth"]
    text = text if net == "lenet" else text.split("*Settings, overfitting")[1]
    bands = [row[0] for row in rows_of(text)[0][1:] if row[0] != "without dropout"]
    return float(re.search(r"T₀ = ([\d.]+) s", text)[1]), sorted({float(band) for band in bands})


def on_curve(net: str, x: float, *, by_rate: bool) -> float:
    """Return what the runs with one rate for all say at a rate, or at an objective, linearly between them."""
    known = []
    for rate in CURVE[net]:
        runs = figure_run(net, rate)
        if runs:
            known.append((rate if by_rate else 1 / (1 - rate), fmean(ends(runs).values())))
    if x >= known[-1][0]:
        return known[-1][1]
    i = max(i for i, (at, _) in enumerate(known) if at <= x)
    (x0, y0), (x1, y1) = known[i : i + 2]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def closer(scenario: str, group: str) -> tuple[list[float], list[list[float]]]:
    net = NETWORKS[scenario]
    known = [rate for rate in CURVE[net] if figure_run(net, rate)]
    inside = [one for one in dots(scenario, group) if one[0] <= 1 / (1 - known[-1])] if len(known) > 2 else []
    misses = [
        [a - on_curve(net, o, by_rate=False), a - on_curve(net, r, by_rate=True), a - on_curve(net, s, by_rate=False)]
        for o, r, s, a in inside
    ]
    return [abs(by_rate) - abs(by_objective) for by_objective, by_rate, _ in misses], misses


def test_the_objective():
    for title, runs, inside, *numbers in rows_of(SECTIONS["Accuracy against what the allocator minimises"])[0][1:]:
        scenario, group = title.split(", ")
        _, misses = closer(scenario, group)
        assert runs == str(len(dots(scenario, group)))
        if misses:
            assert inside == str(len(misses))
            assert numbers == [f"{math.sqrt(fmean(m[i] ** 2 for m in misses)):.2f}" for i in range(3)]
        else:
            assert numbers == ["", "", ""]


def test_overhead():
    facts = json.loads((ROOT / "results" / "cpu" / "facts" / "overhead.json").read_text())["cases"]
    frames, trained = rows_of(SECTIONS["Communication and compute overhead"])
    expected = []
    for case in facts:
        for entry in case["methods"]:
            cells = []
            for formula, measured in zip(entry["formula"], entry["frames"], strict=True):
                cells += [f"{formula:,.0f}", f"{measured:,.0f} ({100 * (measured / formula - 1):+.2f}%)"]
            expected.append(
                [f"{case['network']}, γ = {case['rate']:g}", entry["method"], *cells, f"{entry['flops']:,.0f}"]
            )
    assert frames[1:] == expected
    for title, drop, dst, more in trained[1:]:
        network, rate = title.split(", γ = ")
        sent = []
        for method, extra in (("feddrop", {}), ("feddst", {"alpha": 0.01, "released": False})):
            run = table_run(NETWORKS[network], "dirichlet", method, float(rate), **extra)[0]
            sent.append(fmean(a + b for a, b in zip(run["push_bytes"], run["pull_bytes"], strict=True)) / 10)
        assert [drop, dst, more] == [f"{sent[0]:,.0f}", f"{sent[1]:,.0f}", f"{100 * (sent[0] / sent[1] - 1):+.2f}%"]


def test_theory_and_partition():
    facts = json.loads((ROOT / "results" / "cpu" / "facts" / "theory.json").read_text())
    text = SECTIONS["The theory, measured"]
    rows = rows_of(text)[0][1:]
    assert [row[1] for row in rows] == [f"{value:.3e}" for value in facts["change"]]
    assert [row[2] for row in rows] == [f"{value:.3e}" for value in facts["bound"]]
    assert [row[3] == "yes" for row in rows] == [a <= b for a, b in zip(facts["change"], facts["bound"], strict=True)]
    assert f"θ by Lemma 2 with these constants is {facts['theta']['rate']:.2g}:" in text
    for rate, loss in re.findall(r"([\d.]+) at (\d[\d.]*?)(?=[,.]?\s)", text.split("first seed: ")[1]):
        run = table_run("lenet", "iid", "feddrop", float(loss))[0]
        assert rate == f"{run['test_loss'][len(run['test_loss']) // 2]:.2f}"
    law = facts["laws"][0]
    for level in facts["laws"]:
        ratio = [bound / found for bound, found in zip(level["lemma1"], level["gradient"]["measured"], strict=True)]
        assert f"{level['level']} level: Lemma 1's bound is {ratio[0]:,.0f} times" in text
        assert f"{ratio[-1]:,.0f} times at {level['rate'][-1]:g}" in text
    assert law["level"] == "weight"
    counts = json.loads((ROOT / "results" / "cpu" / "facts" / "partition.json").read_text())["counts"]
    sizes = [sum(row) for row in counts]
    assert sum(sizes) == 50_000
    assert f"devices hold {min(sizes):,} to {max(sizes):,} samples" in SECTIONS["The Dirichlet partition"]


def test_what_decides_the_outcome():
    text = SECTIONS["What decides the outcome"]
    parts = re.split(r"^\*\*(.+)\*\*$", text, flags=re.M)
    seen = 0
    for question, part in zip(parts[1::2], parts[2::2], strict=True):
        for title, *numbers in rows_of(part)[0][1:]:
            runs = variant(question, title).get(0)
            expected = ["not run", "", ""]
            if runs:
                best = 100 * max(runs["test_accuracy"])
                expected = [f"{end(runs):.2f}", f"{best:.2f}", f"{runs['train_loss'][-1]:.2f}"]
                seen += 1
            assert numbers == expected, (question, title)
    assert seen > 20


def variant(question: str, title: str) -> dict[int, dict]:
    net = "lenet" if question.startswith("LeNet") else "alexnet"
    if "learning rate" in question:
        lr = {"lr": float(title.split(",")[0])}
        more = {"rounds": 100} if "twice" in title else {"dirichlet": 1.0} if "Dirichlet(1)" in title else {}
        partition = "dirichlet" if "non-IID" in question else "iid"
        return table_run(net, partition, "feddrop", 0.0, **lr, **more)
    if "FedDST" in question:
        if title == "FedDrop":
            return figure_run("lenet", 0.2, "dirichlet")
        wanted = {**FIGURE["lenet"], "partition": "dirichlet", "rate": 0.2, "alpha": 0.01}
        return pick(wanted, method="feddst", released="released" in title)
    more = {"layers": "all"} if "all layers" in title else {}
    if "torch" in title:
        more["init"] = "torch"
    if "10 local epochs" in title:
        more |= {"epochs": 10, "rounds": 50 if title.endswith("all rounds") else 10}
    for rule in ("model", "holders"):
        if rule in title.split(" (")[0].split(", ")[-1].split():
            more["rule"] = rule
    if "without factor" in title:
        more["factor"] = False
    if "bernoulli" in title:
        more["count"] = "bernoulli"
    return figure_run(net, 0.0 if "no dropout" in title else 0.2, **more)


# The evidence: every difference, error, margin and answer.


def matched(one: dict[int, float], other: dict[int, float]) -> list[float]:
    return [one[seed] - other[seed] for seed in sorted(one) if seed in other]


def rounds_by_seed(net: str, runs: dict[int, dict], share: int) -> dict[int, float]:
    base = figure_run(net)
    return {seed: reached(run, max(smooth(base[seed])))[share] for seed, run in runs.items() if seed in base}


def bounded(one: dict[int, float], other: dict[int, float], limit: float) -> list[float]:
    found = []
    for seed in sorted(set(one) & set(other)):
        if not (math.isinf(one[seed]) and math.isinf(other[seed])):
            a, b = min(one[seed], limit), min(other[seed], limit)
            if math.isfinite(a) and math.isfinite(b):
                found.append(a - b)
    return found


def spent(net: str, runs: dict[int, dict], share: int, *names: str) -> dict[int, float]:
    rounds = rounds_by_seed(net, runs, share)
    return {seed: clock(runs[seed], rounds[seed], *names) for seed in rounds}


def evidence(claim: str, at: str) -> tuple[list[float], str]:
    """Return the differences of a point, worked out from its words, and what it is pooled with."""
    first = at.split(", ")[0]
    net = NETWORKS.get(first, "lenet")
    limit = {"lenet": 41, "alexnet": 51}[net]
    half = {"half-way": 0, "95 %": 2}
    if claim in ("underfit-falls", "overfit-peaks"):
        network, partition, rates = at.split(", ")
        low, high = re.match(r"rate (.+) against (.+)", rates).groups()
        runs = [ends(table_run(NETWORKS[network], PARTITIONS[partition], "feddrop", float(r))) for r in (low, high)]
        return matched(*runs), ""
    if claim in ("beats-feddst", "feddst-alexnet"):
        network, rate, order = re.match(r"(\w+), non-IID, (.+): FedDrop (above|below) FedDST", at).groups()
        drop = ends(table_run(NETWORKS[network], "dirichlet", "feddrop", float(rate)))
        alpha = {"LeNet": 0.5, "AlexNet": 0.01}[network]
        dst = ends(table_run(NETWORKS[network], "dirichlet", "feddst", float(rate), alpha=alpha, released=False))
        return (matched(drop, dst) if order == "above" else matched(dst, drop)), ""
    if claim in ("rounds-latency", "rounds-bandwidth", "less-time"):
        where, one, other, unit = re.match(r"(.+): (.+) against (.+) (s|MHz)", at).groups()
        runs = [place(net, "exact", value, unit) for value in (one, other)]
        if claim == "less-time":
            seconds = [spent(net, run, half[where.split(", ")[1]], "latency_s") for run in runs]
            return bounded(*seconds, math.inf), where
        return bounded(*(rounds_by_seed(net, run, half[where.split(", ")[1]]) for run in runs), limit), where
    if claim == "fewer-rounds":
        scenario, word, value, unit = re.match(r"(.+), (half-way|95 %), (.+) (s|MHz)", at).groups()
        runs = [rounds_by_seed(net, place(net, scheme, value, unit), half[word]) for scheme in ("random", "exact")]
        return bounded(*runs, limit), f"{scenario}, {word}, {unit}"
    if claim == "two-phases":
        x = [float(text) for text in re.findall(r"[\d.]+", at.split("slope")[1])]
        a, b, c = (rounds_by_seed(net, cell_run(net, "exact", value), 0) for value in (x[0], x[1], x[3]))
        seeds = [s for s in a if s in b and s in c and all(math.isfinite(d[s]) for d in (a, b, c))]
        return [(a[s] - b[s]) / (x[1] - x[0]) - (b[s] - c[s]) / (x[3] - x[1]) for s in seeds], ""
    if claim == "less-overhead":
        scenario, value, what = re.match(r"(.+), (.+) s: bytes (.+)", at).groups()
        mine = cell_run(net, "exact", float(value))
        other = figure_run(net) if what.endswith("no dropout") else cell_run(net, "random", float(value))
        base = figure_run(net)
        if what.startswith("a round"):
            both = [
                {
                    s: fmean(map(sum, zip(r["push_bytes"], r["pull_bytes"], strict=True))) / 1e6
                    for s, r in runs.items()
                    if s in base
                }
                for runs in (other, mine)
            ]
        else:
            both = [
                {s: v / 1e6 for s, v in spent(net, runs, 0, "push_bytes", "pull_bytes").items()}
                for runs in (other, mine)
            ]
        return bounded(*both, math.inf), f"{scenario}, {what}"
    if claim in ("accuracy-scheme", "equal-split", "accuracy-overfit"):
        value = float(re.match(r".+, (.+) s", at)[1])
        mine = ends(cell_run(net, "exact", value))
        scheme = {"accuracy-scheme": "random", "equal-split": "equal"}.get(claim)
        return matched(mine, ends(cell_run(net, scheme, value) if scheme else figure_run(net))), first
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
    if claim in ("iid-above", "iid-faster", "iid-gap"):
        values = [float(text) for text in re.findall(r"[\d.]+", at)]
        pairs = [[cell_run(net, "exact", x, changing=True, partition=p) for p in ("iid", "dirichlet")] for x in values]
        if claim == "iid-faster":
            found = []
            for seed in sorted(set(pairs[0][0]) & set(pairs[0][1])):
                level = max(smooth(pairs[0][1][seed]))
                iid, skewed = (min(reached(runs[seed], level)[2], limit) for runs in pairs[0])
                found.append(skewed - iid)
            return found, first
        gaps = [{s: end(iid[s]) - end(skewed[s]) for s in iid if s in skewed} for iid, skewed in pairs]
        return (list(gaps[0].values()) if claim == "iid-above" else matched(*gaps)), first
    if claim == "energy-scheme":
        at_s = spots_of("lenet")[-1]
        mine, other = (
            ends(cell_run("lenet", scheme, at_s, budget=1500.0))
            for scheme in ("exact", "random" if "bandwidth-aware" in at else "equal")
        )
        return matched(mine, other), ""
    if claim == "weak-devices":
        weak = {"partition": "dirichlet", "loss": [0.001] * 7 + [0.0001] * 3}
        runs = [ends(cell_run("lenet", scheme, spots_of("lenet")[-1], **weak)) for scheme in ("exact", "fixed")]
        return matched(*runs), ""
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
        return closer(*at.split(", "))[0], at
    raise AssertionError(f"{claim}: nobody knows how to work it out again")


def place(net: str, scheme: str, value: str, unit: str) -> dict[int, dict]:
    if unit == "s":
        return cell_run(net, scheme, float(value))
    return cell_run(net, scheme, bands_of(net)[0], band=float(value) * 1e6)


def evidence_rows() -> dict[str, list[list[str]]]:
    claims: dict[str, list[list[str]]] = {}
    for name, *rest in rows_of(SECTIONS["What became of its claims"].split("### The evidence")[1])[0][1:]:
        claims.setdefault(name, []).append(rest)
    claims.pop("algorithm-optimal", None)
    return claims


EVIDENCE = evidence_rows()


@pytest.mark.parametrize("claim", EVIDENCE)
def test_the_evidence(claim):
    points = [(row, *evidence(claim, row[0])) for row in EVIDENCE[claim]]
    for (_, difference, error, margin, seeds, says), differences, pool in points:
        mates = [other for _, other, of in points if of == pool]
        freedom = sum(max(0, len(other) - 1) for other in mates)
        squares = sum((value - fmean(other)) ** 2 for other in mates for value in other)
        assert seeds == str(len(differences))
        if not differences:
            assert (difference, error, margin, says) == ("", "", "", "undecided")
            continue
        d = fmean(differences)
        assert difference.split(" ")[0] == f"{d:+.2f}"
        e = math.sqrt(squares / freedom / len(differences)) if freedom else math.nan
        m = T95[min(freedom, 20)] * e if freedom else math.nan
        assert (error, margin) == (("", "") if not freedom else (f"{e:.2f}", f"{m:.2f}"))
        alike = claim == "loose-equal"
        if len(differences) < 3:
            good = abs(d) <= 1.0 if alike else d > 0
            number = {1: "one seed", 2: "two seeds"}[len(differences)]
            assert says == f"{number}: undecided; points to {'yes' if good else 'no'}"
        elif alike:
            assert says == ("yes" if abs(d) + m <= 1.0 else "no" if abs(d) - m > 1.0 else "undecided")
        else:
            assert says == ("undecided" if abs(d) <= m else "yes" if d > 0 else "no")


def test_the_outcomes_follow_from_the_evidence():
    """The four outcomes, from what the points of each claim say; claims without chance aside."""
    from feddrop.paper.published import CLAIMS

    shown = {row[0]: row[2].strip("*") for row in rows_of(SECTIONS["What became of its claims"])[0][1:]}
    assert len(shown) == len(CLAIMS)
    for claim in CLAIMS:
        if claim.name in EVIDENCE:
            says = [row[-1].split(": ")[-1].split(";")[0] for row in EVIDENCE[claim.name]]
            yes, no = says.count("yes"), says.count("no")
            expected = "does not hold" if no and not yes else "undecided" if not yes else "holds"
            if yes and yes < len(says):
                expected = "holds in part"
            assert shown[claim.text] == expected, claim.name
