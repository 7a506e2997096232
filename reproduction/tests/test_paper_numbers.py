"""Every number of the page, a second time: from the JSON files, by code that shares nothing with the first.

Only names come from the package: those of the claims. What is asked is read off the page, point by point.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from statistics import fmean, stdev

import pytest

ROOT = Path(__file__).parents[2]
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
            "control": radio.get("control", ["rate", "share"]),
            "rate": config.get("rate"),
            **method_of(config),
        }
        found.append({"facts": facts, "series": raw["series"], "wall_s": raw["wall_s"]})
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
IN_CELL["control"] = ["rate", "share"]


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
            assert text == ", ".join(f"{run['mask_moved'][t - 1]:,.0f} in {t}" for t in rounds)
            assert sum(run["mask_moved"]) == sum(run["mask_moved"][t - 1] for t in rounds)
            assert sent_again == [t for t in rounds if run["mask_moved"][t - 1]]
        elif sent_again:
            assert text == ", ".join(f"some in {t}" for t in sent_again) + "; not counted"
        else:
            assert text == "none"


WHOLE = json.loads((ROOT / "results" / "cpu" / "facts" / "rounds-latency.json").read_text())
SCENARIO = {"lenet": "underfitting", "alexnet": "overfitting"}


def whole_s(net: str, seed: int, rounds: float) -> float:
    """Return the cell's time after so many rounds without dropout."""
    seconds = WHOLE[SCENARIO[net]]["seconds"][seed]
    return math.inf if math.isinf(rounds) else sum(seconds[: int(rounds)])


def test_no_dropout_inside_the_cell():
    text = SECTIONS["Rounds to converge against latency"]
    for scenario in SCENARIO.values():
        means = [fmean(v for row in WHOLE[scenario][name] for v in row) for name in ("seconds", "joules")]
        assert f"{scenario}, {means[0]:.2f} s and {means[1]:,.0f} J a round on average" in text


@pytest.mark.parametrize("figure", ["latency", "bandwidth"])
def test_rounds_to_converge(figure):
    text = SECTIONS[f"Rounds to converge against {figure}"]
    seen = 0
    for part in re.split(r"^\*\*(?=Underfitting|Overfitting)", text, flags=re.M)[1:]:
        net = NETWORKS[part.split("**")[0].split(",")[0].lower()]
        costs = "formula" if net == "lenet" or "formula" in part.split("**")[0] else "measured"
        fixed = re.search(r"T₀ = ([\d.]+) s", text if net == "lenet" else text.split("Settings, overfitting")[1])
        for x, seed, *cells, seconds in rows_of(part)[0][1:]:
            base = figure_run(net)
            if x == "without dropout":
                run = base[int(seed)]
                rounds = reached(run, max(smooth(run)))
                assert cells[0] == written(rounds)
                inside = figure == "latency" and "formula" not in part.split("**")[0]
                assert seconds == (written([whole_s(net, int(seed), rounds[i]) for i in (0, 2)]) if inside else "")
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
    for scenario, x, cap, shown, rate, devices in rows_of(text.split("**Random shares and θ**")[1])[0][1:]:
        runs = cell_run(NETWORKS[scenario], "random", float(x), cap=float(cap))
        assert shown == (cell(ends(runs)) or "not run")
        means = [fmean(mean(run, name) for run in runs.values()) if runs else None for name in ("mean_rate", "devices")]
        assert [rate, devices] == ([f"{means[0]:.2f}", f"{means[1]:.1f}"] if runs else ["", ""])


def test_the_page_on_the_radio_repeats_what_random_shares_and_theta_gave():
    text = " ".join((ROOT / "docs" / "radio.md").read_text().split())
    told = text[text.index("Random shares do") : text.index("([three seeds]")]
    expected = []
    for net, x, caps in (("lenet", 5.9, (0.9, 0.7, 0.5)), ("alexnet", 24.8, (0.9, 0.5))):
        assert x == tight_of_caps(net)
        runs = [*(cell_run(net, "random", x, cap=cap) for cap in caps), cell_run(net, "exact", x)]
        expected += [f"{fmean(ends(run).values()):.1f}" for run in runs]
    assert re.findall(r"([\d.]+) %", told) == expected


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
        runs = weak_run(title, at)
        assert shown == (cell(ends(runs)) or "not run")
        for name, digits, number in zip(("mean_rate", "devices"), (2, 1), numbers, strict=True):
            assert number == (f"{fmean(mean(run, name) for run in runs.values()):.{digits}f}" if runs else "")


def test_power_and_clock():
    facts = json.loads((ROOT / "results" / "cpu" / "facts" / "power.json").read_text())
    *costs, accuracy = rows_of(SECTIONS["Power and clock chosen too"])
    for table, (name, of) in zip(costs, facts["study"].items(), strict=True):
        rows = zip(*(of[scheme] for scheme in ("full", "half", "equal", "turns", "joint")), strict=True)
        assert [row[1:] for row in table[1:]] == [["–" if v is None else f"{v:.3f}" for v in row] for row in rows]
        assert [float(row[0]) for row in table[1:]] == of["parts"]
        joint, turns = ([1 + v for v in of[scheme] if v is not None] for scheme in ("joint", "turns"))
        worst = max(b / a for a, b in zip(joint, turns, strict=True))
        assert f"at most {100 * (worst - 1):.1f}% above" in PAGE.split(f"*{name}*: ")[1].split("\n")[0]
        about = re.search(rf"\*{name}\*: T₀ = (.+) s; at full speed (.+) J, (.+) of it on the air", PAGE)
        assert [float(text) for text in about.groups()] == [
            of["deadline_s"],
            of["full_j"],
            float(f"{of['air_part']:.2g}"),
        ]
    at = spots_of("lenet")[-1]
    controls = {"the paper's: rate and share": "paper", "rate, share, power and clock": "joint"}
    for budget, title, shown, above, *planned in accuracy[1:]:
        control = ["rate", "share", *(["power", "cpu"] if controls[title] == "joint" else [])]
        runs = cell_run("lenet", "exact", at, budget=float(budget.split()[0]), control=control)
        assert shown == (cell(ends(runs)) or "not run")
        if controls[title] == "joint":
            paper = cell_run("lenet", "exact", at, budget=float(budget.split()[0]))
            found = matched(ends(runs), ends(paper))
            assert above.split(" ")[0] == (f"{fmean(found):+.2f}" if found else "not")
            assert ("fewer than three" in above) == (0 < len(found) < 3)
        played = facts["planned"][f"{budget.split()[0]} {controls[title]}"]
        for name, digits, number in zip(("rate", "objective", "held_energy"), (3, 3, 2), planned, strict=True):
            assert float(number) == pytest.approx(played[name], abs=0.5000001 * 10**-digits)


CURVE = {"lenet": (0.0, 0.2, 0.5, 0.6, 0.65), "alexnet": (0.0, 0.1, 0.2, 0.3, 0.4)}
GIVEN = ([0.0] * 8 + [0.75] * 2, [0.1] * 5 + [0.6] * 5, [0.1] * 9 + [0.9])


def dots(scenario: str, group: str, *, by_all: bool = False) -> dict[int, list[tuple[float, float, float, float]]]:
    """Return objective, rate, squared objective and accuracy of a group's runs, by seed; or of those all seeds have."""
    net = NETWORKS[scenario]
    found: dict[int, list] = {}
    if group == "given rates":
        for rates in GIVEN:
            of = fmean(1 / (1 - r) for r in rates)
            runs = figure_run(net, rates)
            for seed, run in runs.items():
                if len(runs) == 3 or not by_all:
                    found.setdefault(seed, []).append((of, fmean(rates), of, end(run)))
        return found
    spots = spots_of(net)
    runs = []
    for costs in {"lenet": ("formula",), "alexnet": ("measured", "formula")}[net]:
        if group == "changing cell":
            runs += [cell_run(net, "exact", x, changing=True, costs=costs) for x in (spots[0], spots[-1])]
        else:
            runs += [cell_run(net, SCHEMES[group], x, costs=costs) for x in spots]
            at, bands = bands_of(net)
            runs += [cell_run(net, SCHEMES[group], at, band=band * 1e6, costs=costs) for band in bands]
    for by_seed in (one for one in runs if len(one) == 3 or not by_all):
        for seed, run in by_seed.items():
            known = [(o, n) for o, n in zip(run["objective"], run["devices"], strict=True) if o is not None]
            if known:
                squared = fmean(10 * o / n for o, n in known)
                found.setdefault(seed, []).append(
                    (fmean(o for o, _ in known), mean(run, "mean_rate"), squared, end(run))
                )
    return found


def weak_run(title: str, at: float) -> dict[int, dict]:
    weak = {"partition": "dirichlet", "loss": [0.001] * 7 + [0.0001] * 3}
    if title == "without dropout":
        return cell_run("lenet", "fixed", at, **weak)
    return cell_run("lenet", "exact", at, cap=float(re.search(r"θ = ([\d.]+)", title)[1]), **weak)


def tight_of_caps(net: str) -> float:
    """The deadline at which random shares were run with other values of θ: the second of the figure."""
    return spots_of(net)[1]


def spots_of(net: str) -> list[float]:
    text = SECTIONS["Accuracy against latency"].split("**Underfitting**" if net == "lenet" else "**Overfitting**")[1]
    return [float(row[0]) for row in rows_of(text)[0][1:-1]]


def bands_of(net: str) -> tuple[float, list[float]]:
    text = SECTIONS["Rounds to converge against bandwidth"]
    text = text if net == "lenet" else text.split("Settings, overfitting")[1]
    bands = [row[0] for row in rows_of(text)[0][1:] if row[0] != "without dropout"]
    return float(re.search(r"T₀ = ([\d.]+) s", text)[1]), sorted({float(band) for band in bands})


def on_curve(net: str, seed: int, x: float, *, by_rate: bool) -> float:
    """Return what the runs of a seed with one rate for all say at a rate, or at an objective, linearly between them."""
    known = [
        (rate if by_rate else 1 / (1 - rate), end(figure_run(net, rate)[seed]))
        for rate in CURVE[net]
        if seed in figure_run(net, rate)
    ]
    if x >= known[-1][0]:
        return known[-1][1]
    i = max(i for i, (at, _) in enumerate(known) if at <= x)
    (x0, y0), (x1, y1) = known[i : i + 2]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def closer(scenario: str, group: str, *, by_all: bool) -> tuple[list[float], list[list[float]]]:
    """Return, by seed, what the mean rate misses the runs by, less what the objective does; and all misses."""
    net = NETWORKS[scenario]
    found, misses = [], []
    for seed, runs in sorted(dots(scenario, group, by_all=by_all).items()):
        known = [rate for rate in CURVE[net] if seed in figure_run(net, rate)]
        inside = [one for one in runs if one[0] <= 1 / (1 - known[-1])] if len(known) > 2 else []
        mine = [
            [
                a - on_curve(net, seed, o, by_rate=False),
                a - on_curve(net, seed, r, by_rate=True),
                a - on_curve(net, seed, s, by_rate=False),
            ]
            for o, r, s, a in inside
        ]
        misses += mine
        if mine:
            found.append(fmean(abs(by_rate) - abs(by_objective) for by_objective, by_rate, _ in mine))
    return found, misses


def test_the_objective():
    for title, runs, inside, *numbers in rows_of(SECTIONS["Accuracy against what the allocator minimises"])[0][1:]:
        scenario, group = title.split(", ")
        _, misses = closer(scenario, group, by_all=False)
        assert runs == str(sum(map(len, dots(scenario, group).values())))
        assert inside == str(len(misses))
        rms = [f"{math.sqrt(fmean(m[i] ** 2 for m in misses)):.2f}" for i in range(3)] if misses else [""] * 3
        means = [f"{fmean(m[i] for m in misses):+.2f}" for i in range(2)] if misses else []
        assert numbers == [*rms, " / ".join(means)]
        if title == "underfitting, bandwidth-aware":
            told = " ".join((ROOT / "docs" / "findings.md").read_text().split())
            assert f"on average {means[0]} points from the curve by Σ w/(1-γ) and {means[1]} by mean rate" in told


NORMS = json.loads((ROOT / "results" / "cpu" / "facts" / "gradient-norm.json").read_text())


def test_the_gradient_along_training():
    def shown(values):
        return f"{fmean(values):.4f} ± {stdev(values) / math.sqrt(len(values)):.4f} ({len(values)})"

    rows = rows_of(SECTIONS["The gradient along training"])[0][1:]
    assert [row[0] for row in rows] == list(NORMS)
    for rate, *cells in rows:
        halves = [(row[: len(row) // 2], row[len(row) // 2 :], row) for row in NORMS[rate]]
        assert cells == [shown([fmean(one[i]) for one in halves]) for i in range(3)]


def test_theta_fed_to_the_allocator():
    facts = json.loads((ROOT / "results" / "cpu" / "facts" / "theory.json").read_text())
    header, *rows = rows_of(SECTIONS["The theory, measured"])[0]
    assert [float(text.split()[0]) for text in header[2:]] == spots_of("lenet") == facts["fed"]["deadlines"]
    thetas = [facts[name]["rate"] for name in ("theta", "theta_measured")]
    assert [row[1] for row in rows] == [f"{value:.2g}" for value in thetas]
    assert [[int(text) for text in row[2:]] for row in rows] == facts["fed"]["feasible"]
    assert f"{3 * 40} rounds of figure 3" in SECTIONS["The theory, measured"]
    for i, at in enumerate(facts["fed"]["deadlines"]):  # θ = 0 is no dropout inside the cell
        fits = sum(value <= at for row in WHOLE["underfitting"]["seconds"] for value in row)
        assert thetas[0] > 0 or facts["fed"]["feasible"][0][i] == fits


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
    rows = rows_of(text)[1][1:]
    assert [row[1] for row in rows] == [f"{value:.3e}" for value in facts["change"]]
    assert [row[2] for row in rows] == [f"{value:.3e}" for value in facts["bound"]]
    assert [row[3] == "yes" for row in rows] == [a <= b for a, b in zip(facts["change"], facts["bound"], strict=True)]
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
        rate = float(re.search(r"rate ([\d.]+):", question)[1])
        return table_run(net, partition, "feddrop", rate, **lr, **more)
    if "random shares" in question:
        at = float(re.search(r"LeNet, ([\d.]+) s", question)[1])
        rounds = 120 if title.endswith("3 times the rounds") else 40
        return figure_run("lenet") if title == "no dropout" else cell_run("lenet", "random", at, rounds=rounds)
    if "FedDST" in question:
        if title == "FedDrop":
            return figure_run("lenet", 0.2, "dirichlet")
        wanted = {**FIGURE["lenet"], "partition": "dirichlet", "rate": 0.2, "alpha": 0.01}
        return pick(wanted, method="feddst", released="released" in title)
    more = {"layers": "all"} if "all layers" in title else {}
    if "torch" in title:
        more["init"] = "torch"
    if "10 local epochs" in title:
        more |= {"epochs": 10, "rounds": 20 if "two fifths" in title else 10}
    for rule in ("model", "holders"):
        if rule in title.split(" (")[0].split(", ")[-1].split():
            more["rule"] = rule
    if "without factor" in title:
        more["factor"] = False
    if "bernoulli" in title:
        more["count"] = "bernoulli"
    return figure_run(net, 0.0 if "no dropout" in title else 0.2, **more)


# What stands around the numbers: settings, the paper's own, words.

DST = "feddst: erk, α = {}, readjusted every {} rounds to 50% of them.</p>"
DROPS = "dropped: weights of {} layers{}, exact counts; rule <code>delta</code> with the factor 1/(1-γ).</p>"
LENET = (
    "<p>lenet, first weights torch; cifar100, {} images, 10 devices; {} rounds, 1 local epoch, batch 32, learning rate"
)
ALEXNET = (
    "<p>alexnet at 0.25 of its width, first weights he; cifar100, 5,000 images, 10 devices; 50 rounds, 1 local epoch, "
    "batch 32, learning rate {} (constant), momentum 0.9; " + DROPS.format("fully-connected", " only")
)
TRAINING = {
    *(f"{LENET.format('all', 50)} {lr} (cosine); {DROPS.format('all', '')}" for lr in (0.1, 0.2)),
    *(f"{LENET.format(n, r)} 0.1 (constant); {DROPS.format('all', '')}" for n, r in (("20,000", 40), ("2,000", 30))),
    f"{LENET.format('20,000', 40)} 0.1 (constant); {DST.format('0.01', 10)}",
    f"{LENET.format('all', 50)} 0.2 (cosine); {DST.format('0.5', 5)}",
    ALEXNET.format(0.01).split("dropped")[0] + DST.format("0.01", 10),
    *(ALEXNET.format(lr) for lr in (0.005, 0.01)),
}
CELL = (
    "<p>Cell: θ = 0.9; N₀ = 1e-13 W/Hz as a density: variance = density · B; {}; downlink 1 W; {}, ξ = 0.1 J; {} FLOP "
    "a cycle; f = 4.9 to 7 GHz, P = 0.003 to 0.01 W; κ = 10, path loss {}; infeasible rounds: leave-out; shares: "
)
BILLS = {
    "underfitting": "costs by the paper's formula, Q = 256 bits",
    "overfitting": "costs as measured: frames of 32 bits a value, counted FLOPs, for each device at its own rate",
}
ENDS = (
    r"( \(the optimum, by our own solver, not by Algorithm 1\)| \(Algorithm 1\)"
    r"| \(shares uniform over the <em>feasible</em> splits only, rates optimal\)"
    r"| \(one rate for all, the rest left out\))?"
)


def test_every_figure_states_its_settings_and_they_are_those_of_its_runs():
    blocks = re.findall(r"<details><summary>Settings, (.+)</summary>\n((?:<p>.+</p>\n)+)</details>", PAGE)
    assert len(blocks) > 15
    for title, block in blocks:
        first, *cells = block.strip().split("\n")
        assert (first.removesuffix(".</p>") + ".</p>") in TRAINING, first
        if not cells:
            continue
        bill, rest = BILLS[title.split(",")[0]], cells[0]
        kinds = [
            CELL.format(bill, "no energy budget", 16, "0.001"),
            *(CELL.format(bill, f"E₀ = {budget} J", 1, "0.001") for budget in (700, 1500)),
            CELL.format(bill, "no energy budget", 16, "0.001 (7 devices), 0.0001 (3 devices)"),
        ]
        (kind,) = [kind for kind in kinds if rest.startswith(kind)]
        net = NETWORKS[title.split(",")[0]]
        at = "|".join(f"{value:g}" for value in (spots_of(net)[-1], bands_of(net)[0])).replace(".", r"\.")
        where = rf"; (T₀ = ({at}) s|T₀ = ({at}) s, B = 10 MHz|B = 10 MHz(; every round, 5 to 10 devices, .+)?)\.</p>"
        schemes = rf"<code>[a-z-]+</code>{ENDS}"
        assert re.fullmatch(rf"{schemes}(, {schemes})*{where}", rest.removeprefix(kind)), rest
    for path in (ROOT / "results" / "cpu").glob("*.json"):
        config = json.loads(path.read_text())["config"]
        train, radio = config["train"], config.get("radio")
        assert (train["batch_size"], config["data"]["devices"]) == (32, 10)
        assert train["momentum"] == {"lenet": 0.0, "alexnet": 0.9}[config["model"]["name"]]
        if radio:
            shown = ("noise_w_hz", "noise", "downlink_power_w", "circuit_j", "cpu_hz", "tx_power_w", "kappa", "policy")
            known = [1e-13, "density", 1.0, 0.1, [4.9e9, 7e9], [0.003, 0.01], 10.0, "leave-out"]
            assert [radio[name] for name in shown] == known
            assert radio["flop_per_cycle"] == (1.0 if radio["energy_budget_j"] in (700.0, 1500.0) else 16.0)
            if radio["costs"] == "formula" and config["model"]["name"] == "lenet":
                assert radio["bits_per_parameter"] == 256.0


def test_the_papers_own_numbers():
    """Its table, row by row, by sums that were worked out by hand from it."""
    _, *rows = rows_of(SECTIONS["Accuracy at equal rates and sparsities"])[0]
    found = [[float(text.strip("*")) for text in cells if text] for _, kind, *cells in rows if kind == "paper"]
    weighted = [round(sum((i + 1) * value for i, value in enumerate(row)), 2) for row in found]
    assert [round(sum(row), 2) for row in found] == [209.30, 201.05, 102.81, 281.65, 276.34, 252.49]
    assert weighted == [995.33, 954.96, 469.64, 1423.57, 1401.30, 1135.38]


def curve_of(curve: dict) -> tuple[list[float], ...]:
    factor = curve["factor"]["error"] / curve["factor"]["value"]
    return curve["ratio"], curve["measured"], curve["error"], [factor] * len(curve["ratio"])


def ratio_error(ratio: float, measured: float, error: float, factor: float) -> float:
    """The standard error of measured over predicted, both of which have one."""
    return ratio * math.hypot(error / measured, factor)


def test_the_theory_in_words():
    text = SECTIONS["The theory, measured"]
    facts = json.loads((ROOT / "results" / "cpu" / "facts" / "theory.json").read_text())
    for law in facts["laws"]:
        for name, sign in (("gradient", "g(ŵ)"), ("update", "m∘g(ŵ)")):
            words = re.search(re.escape(f"- {law['level']} level, {sign}: ") + r"(.+)", text)[1]
            ratio = dict(zip(law["rate"], law[name]["ratio"], strict=True))
            low, high = (float(value) for value in re.search(r"from rate ([\d.]+) to ([\d.]+);", words).groups())
            assert "within 20% from" in words
            errors = dict(zip(law["rate"], map(ratio_error, *curve_of(law[name])), strict=True))
            assert all(abs(ratio[rate] - 1) <= 0.2 + errors[rate] for rate in ratio if low <= rate <= high)
            beyond = re.findall(r"(below|above), at ([\d.]+), the truth is ([\d.]+) times it", words)
            neighbours = [max((r for r in ratio if r < low), default=None), min(r for r in ratio if r > high)]
            assert [float(rate) for _, rate, _ in beyond] == [rate for rate in neighbours if rate is not None]
            for _, rate, times in beyond:
                assert times == f"{ratio[float(rate)]:.2f}"
                assert abs(ratio[float(rate)] - 1) > 0.2
        assert f"times what is measured at rate {law['rate'][0]:g}, " in text
    table = rows_of(text)[1][1:]
    assert [float(row[0]) for row in table] == facts["laws"][0]["rate"]
    assert f"cifar100, a batch of {256}, {48} masks" in text
    assert sum(facts["samples"]) == 250  # ten devices, 25 each of the batch
    assert f"√{facts['rounds']}·L), {len(facts['samples'])} devices" in text
    loss = re.findall(r"at (\d[\d.]*?)(?=[,.]?\s)", text.split("first seed: ")[1])
    assert [float(rate) for rate in loss] == [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4]
    partition = SECTIONS["The Dirichlet partition"]
    counts = json.loads((ROOT / "results" / "cpu" / "facts" / "partition.json").read_text())["counts"]
    assert f"{len(counts[0])} classes on {len(counts)} devices, one Dirichlet({0.1}) draw" in partition


def test_how_much_was_run():
    """Every result counts but those of AlexNet's figures billed by the formula, and further seeds of a fixed mask."""
    facts = [(run, run["facts"]) for run in RUNS]
    still = {"net": "lenet", "method": "feddst", "alpha": 0.01}
    done = [
        run
        for run, of in facts
        if (of["net"], of["costs"]) != ("alexnet", "formula")
        and not (of["seed"] and all(of[name] == value for name, value in still.items()))
    ]
    hours = sum(run["wall_s"] for run in done) / 3600
    count = rf"({len(done)} of \d+|All {len(done)}) training runs are finished"
    assert re.search(rf"\. {count}; their rounds took {hours:.1f} hours", PAGE)


# The evidence: every difference, error, margin and answer.


def matched(one: dict[int, float], other: dict[int, float]) -> list[float]:
    return [one[seed] - other[seed] for seed in sorted(one) if seed in other]


def rounds_by_seed(net: str, runs: dict[int, dict], share: int) -> dict[int, float]:
    base = figure_run(net)
    return {seed: reached(run, max(smooth(base[seed])))[share] for seed, run in runs.items() if seed in base}


Ended = tuple[dict[int, float], dict[int, float]]
"""By seed: what was spent until something was reached, infinite if it never was; and by the end of the run."""


def bounded(one: Ended, other: Ended) -> Sided:
    """Return the differences, and ≥ or ≤ where one side was never reached; a bound that proves nothing is left out."""
    found, signs = [], ""
    for seed in sorted(set(one[0]) & set(other[0])):
        a, b = one[0][seed], other[0][seed]
        if math.isfinite(a) and math.isfinite(b):
            found.append(a - b)
        elif math.isfinite(b) and one[1][seed] > b:
            found.append(one[1][seed] - b)
            signs += "≥"
        elif math.isfinite(a) and other[1][seed] > a:
            found.append(a - other[1][seed])
            signs += "≤"
    return Sided(found, "".join(sorted(set(signs))))


class Sided(list):
    """Differences, and the sign of a bound."""

    def __init__(self, values=(), sign: str = "") -> None:
        super().__init__(values)
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
        network, rate, order = re.match(r"(\w+), non-IID, (.+): FedDrop (above|below) FedDST", at).groups()
        drop = ends(table_run(NETWORKS[network], "dirichlet", "feddrop", float(rate)))
        alpha = {"LeNet": 0.5, "AlexNet": 0.01}[network]
        dst = ends(table_run(NETWORKS[network], "dirichlet", "feddst", float(rate), alpha=alpha, released=False))
        return (matched(drop, dst) if order == "above" else matched(dst, drop)), ""
    if claim in ("rounds-latency", "rounds-bandwidth", "less-time"):
        where, one, other, unit = re.match(r"(.+): (.+) against (.+) (s|MHz)", at).groups()
        share = half[where.split(", ")[1]]
        if claim == "less-time" and one == "no dropout":
            rounds, ends_ = in_rounds(net, figure_run(net), share)
            whole = [{s: whole_s(net, s, value) for s, value in of.items()} for of in (rounds, ends_)]
            mine = spent(net, cell_run(net, "exact", float(other)), share, "seconds")
            return bounded(tuple(whole), mine), where
        runs = [place(net, "exact", value, unit) for value in (one, other)]
        if claim == "less-time":
            return bounded(*(spent(net, run, share, "seconds") for run in runs)), where
        return bounded(*(in_rounds(net, run, share) for run in runs)), where
    if claim == "fewer-rounds":
        scenario, word, value, unit = re.match(r"(.+), (half-way|95 %), (.+) (s|MHz)", at).groups()
        runs = [in_rounds(net, place(net, scheme, value, unit), half[word]) for scheme in ("random", "exact")]
        return bounded(*runs), f"{scenario}, {word}, {unit}"
    if claim == "two-phases":
        x = [float(text) for text in re.findall(r"[\d.]+", at.split("slope")[1])]
        a, b, c = (rounds_by_seed(net, cell_run(net, "exact", value), 0) for value in (x[0], x[1], x[3]))
        found, sign = [], ""
        for s in sorted(set(a) & set(b) & set(c)):
            steeper = (min(a[s], 51) - b[s]) / (x[1] - x[0]) - (b[s] - c[s]) / (x[3] - x[1])
            if math.isfinite(steeper) and (math.isfinite(a[s]) or steeper > 0):
                found.append(steeper)
                sign = sign if math.isfinite(a[s]) else "≥"
        return Sided(found, sign), ""
    if claim in ("less-overhead", "less-compute"):
        scenario, value, what, when = re.match(r"(.+), (.+) s: (bytes|computing) (.+)", at).groups()
        mine = cell_run(net, "exact", float(value))
        other = figure_run(net) if when.endswith("no dropout") else cell_run(net, "random", float(value))
        base = figure_run(net)
        if when.startswith("a round"):
            both = [{s: fmean(amounts(r, what)) for s, r in runs.items() if s in base} for runs in (other, mine)]
            return matched(*both), f"{scenario}, {when}"
        return bounded(*(spent(net, runs, 0, what) for runs in (other, mine))), f"{scenario}, {when}"
    if claim in ("accuracy-scheme", "equal-split", "accuracy-overfit", "accuracy-whole"):
        value = float(re.match(r".+, (.+) s", at)[1])
        mine = ends(cell_run(net, "exact", value))
        scheme = {"accuracy-scheme": "random", "equal-split": "equal"}.get(claim)
        return matched(mine, ends(cell_run(net, scheme, value) if scheme else figure_run(net))), first
    if claim == "smaller-theta":
        tight = tight_of_caps(net)
        mine, other = cell_run(net, "exact", tight), cell_run(net, "random", tight, cap=float(at.split()[-1]))
        return matched(ends(mine), ends(other)), first
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
                last = len(pairs[0][0][seed]["test_accuracy"]) + 1
                iid, skewed = (min(reached(runs[seed], level)[2], last) for runs in pairs[0])
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
        return matched(mine, other), at
    if claim == "weak-devices":
        runs = [ends(weak_run(title, spots_of("lenet")[-1])) for title in (at, "without dropout")]
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
        return closer(*at.split(", "), by_all=True)[0], at
    if claim == "overfit-all-layers":
        deep = [
            ends(figure_run("alexnet", rate, epochs=10, rounds=20, layers=layers))
            for rate, layers in ((0.2, "all"), (0.0, "linear"))
        ]
        return matched(*deep), ""
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
    if claim == "two-phases":
        x = [float(text) for text in re.findall(r"[\d.]+", at.split("slope")[1])]
        return 1 / (x[1] - x[0]) + 1 / (x[3] - x[1])
    if claim == "less-time":
        one, other = re.match(r".+: (.+) against (.+) s", at).groups()
        seconds = WHOLE[SCENARIO[net]]["seconds"]
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
    for name, *rest in rows_of(SECTIONS["The evidence, point by point"])[0][1:]:
        claims.setdefault(name, []).append(rest)
    return claims


EVIDENCE = evidence_rows()


ESTIMATED = ("unbiased", "variance-law")


def test_what_is_estimated_from_masks():
    """Lemma 1: squared bias, and the ratio to the law, with twice their standard errors for a margin."""
    law = json.loads((ROOT / "results" / "cpu" / "facts" / "theory.json").read_text())["laws"][0]
    curve = law["gradient"]
    for i, rate in enumerate(rate for rate in law["rate"] if rate <= 0.4):
        ratio = curve["ratio"][i]
        for claim, value, error, within, digits in (
            ("unbiased", curve["bias_sq"][i], curve["bias_sq_error"][i], 0.0, 5),
            ("variance-law", ratio - 1, ratio_error(*(row[i] for row in curve_of(curve))), 0.2, 2),
        ):
            at, *shown, seeds, says = EVIDENCE[claim][i]
            assert (at, seeds) == (f"weight level, rate {rate:g}", "")
            expected = [f"{value:+.{digits}f}", f"{error:.{digits}f}", f"{2 * error:.{digits}f}"]
            assert [shown[0].split(" ")[0], *shown[1:]] == expected
            inside, outside = abs(value) + 2 * error <= within, abs(value) - 2 * error > within
            assert says == ("yes" if inside else "no" if outside else "within the noise")


@pytest.mark.parametrize("claim", [name for name in EVIDENCE if name not in ESTIMATED])
def test_the_evidence(claim):
    points = [(row, *evidence(claim, row[0])) for row in EVIDENCE[claim]]
    for (at, difference, error, margin, seeds, says), differences, pool in points:
        mates = [other for _, other, of in points if of == pool]
        freedom = sum(max(0, len(other) - 1) for other in mates)
        squares = sum((value - fmean(other)) ** 2 for other in mates for value in other)
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
            assert says == ("yes" if abs(d) + m <= 1.0 else "no" if abs(d) - m > 1.0 else "within the noise")
        else:
            assert says == ("within the noise" if abs(d) <= m else "yes" if d > 0 else "no")


def shown_as(value: float, claim: str, sign: str = "") -> str:
    return f"{value:{sign}.{4 if claim.startswith('norm') else 2}f}"


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
    return {row[0]: row[1:] for row in rows_of(SECTIONS["What became of its claims"])[0][1:]}


def test_the_outcomes_follow_from_the_evidence():
    """The four outcomes and the counts, from what the points of each claim say; claims without chance aside."""
    from reproduction.framework.published import CLAIMS

    table = claims_table()
    assert len(table) == len(CLAIMS)
    marks = {"holds": "🟢", "holds in part": "🟡", "does not hold": "🔴", "undecided": "⚪"}
    for claim in CLAIMS:
        _, outcome, tally, _ = table[claim.text]
        if claim.name in EVIDENCE:
            says = [row[-1].split(", points to ") for row in EVIDENCE[claim.name]]
            words = [one[0] for one in says]
            yes, no = words.count("yes"), words.count("no")
            expected = "does not hold" if no and not yes else "undecided" if not yes else "holds"
            if yes and yes < len(says):
                expected = "holds in part"
            order = ["within the noise", "few seeds", "not reached", "not run"]
            why = f": {min((w for w in words if w in order), key=order.index)}" if expected == "undecided" else ""
            if expected == "holds in part" and not no:
                why = f", the rest {', '.join(word for word in order if word in words)}"
            assert outcome == f"{marks[expected]} **{expected}{why}**", claim.name
            leaning = f" (pointing to yes: {sum(one[1:] == ['yes'] for one in says)})"
            counts = [
                f"{word} {words.count(word)}" + leaning * (word == "few seeds")
                for word in ("yes", "no", *order)
                if word in words
            ]
            assert tally == ", ".join(counts)
        else:
            counts = {word: int(number) for word, number in re.findall(r"(yes|no) (\d+)", tally)}
            certain = {1: "holds in part"}.get(len(counts) - 1) or ("holds" if "yes" in counts else "does not hold")
            if claim.name != "gap-narrows":  # told by the points of other claims
                assert outcome == f"{marks[certain]} **{certain}**", claim.name
    outcomes = [row[1] for row in table.values()]
    words = ", ".join(
        f"{m} {w} {sum(o.startswith(m) for o in outcomes)}" for w, m in sorted(marks.items(), key=order_of)
    )
    assert f"Of {len(table)} claims: {words}." in SECTIONS["What became of its claims"]
    says = [row[-1] for rows in EVIDENCE.values() for row in rows]
    sure = says.count("yes") + says.count("no")
    asked = sure + says.count("within the noise")
    told = f"of {asked} points that were judged so, {sure} say yes or no; {asked / 20:.0f} would without any effect."
    assert told in SECTIONS["What became of its claims"]


def order_of(item: tuple[str, str]) -> int:
    return ["holds", "holds in part", "does not hold", "undecided"].index(item[0])


def test_the_gap_is_told_by_the_points_on_rounds():
    from reproduction.framework.published import CLAIMS

    text = {claim.name: claim.text for claim in CLAIMS}
    rows = [row[-1] for name in ("rounds-latency", "rounds-bandwidth") for row in EVIDENCE[name]]
    outcome, tally = claims_table()[text["gap-narrows"]][1:3]
    assert sum(int(number) for number in re.findall(r"(?:yes|no|noise|seeds|reached|run) (\d+)", tally)) == len(rows)
    for word in ("yes", "no", "within the noise", "few seeds", "not reached", "not run"):
        count = sum(re.match(rf"{word}\b", one) is not None and not (word == "no" and one != "no") for one in rows)
        assert (re.search(rf"\b{word} {count}\b", tally) is not None) == bool(count), word
    yes, no = rows.count("yes"), rows.count("no")
    expected = "does not hold" if no and not yes else "undecided" if not yes else "holds"
    assert f"**{'holds in part' if yes and yes < len(rows) else expected}" in outcome


def test_claims_without_chance():
    from reproduction.framework.published import CLAIMS

    tallies = {claim.name: claims_table()[claim.text][2] for claim in CLAIMS}

    def shown(answers):
        return ", ".join(
            f"{word} {answers.count(kind)}" for word, kind in (("yes", True), ("no", False)) if kind in answers
        )

    facts = {
        name: json.loads((ROOT / "results" / "cpu" / "facts" / f"{name}.json").read_text())
        for name in ("overhead", "theory")
    }
    sums = [{entry["method"]: sum(entry["frames"]) for entry in case["methods"]} for case in facts["overhead"]["cases"]]
    less = [one["FedDrop"] < one[other] for one in sums for other in ("PruneFL", "FedDST")]
    trained = rows_of(SECTIONS["Communication and compute overhead"])[1][1:]
    less += [int(drop.replace(",", "")) < int(dst.replace(",", "")) for _, drop, dst, _ in trained]
    assert tallies["overhead"] == shown(less)
    law = facts["theory"]["laws"][0]
    below = [
        v <= m for r, v, m in zip(law["rate"], law["gradient"]["measured"], law["lemma1"], strict=True) if r <= 0.4
    ]
    assert tallies["variance-bound"] == shown(below)
    theory = facts["theory"]
    assert tallies["bound-holds"] == shown([a <= b for a, b in zip(theory["change"], theory["bound"], strict=True)])
    assert tallies["theta"] == shown([min(theory["fed"]["feasible"][0]) >= 0.95 * 120])


def test_points_are_at_the_figures_own_places():
    known = {0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 95}
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
    template = (ROOT / "src" / "feddrop" / "paper" / "findings.txt").read_text()
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
