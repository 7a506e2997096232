"""The page and the stored runs, read by code that shares nothing with the reproduction but the names of claims."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from statistics import fmean, stdev

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
    for path in (ROOT / "reproduction" / "results" / "cpu").glob("*.json"):
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
            "schedule": config["train"]["schedule"],
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
        found.append(
            {"facts": facts, "file": path.stem, **{name: raw[name] for name in ("series", "wall_s", "version")}}
        )
    return found


def method_of(config: dict) -> dict:
    names = {"method": "name", "released": "as_released"}
    wanted = ("method", "layers", "count", "rule", "step", "alpha", "released")
    return {name: config["method"].get(names.get(name, name)) for name in wanted}


RUNS = load()
PLAIN = {"rule": "delta", "step": "scaled", "count": "exact", "epochs": 1, "dirichlet": 0.1, "scheme": None}
TABLE = {
    "lenet": {**PLAIN, "net": "lenet", "images": 0, "rounds": 50, "lr": 0.2, "schedule": "cosine", "layers": "all"},
    "alexnet": {**PLAIN, "net": "alexnet", "images": 5000, "rounds": 50, "lr": 0.01, "layers": "linear", "init": "he"},
}
FIGURE = {
    "lenet": {**TABLE["lenet"], "images": 20000, "rounds": 40, "lr": 0.1, "schedule": "constant"},
    "alexnet": TABLE["alexnet"],
}
IN_CELL = {"changing": False, "cap": 0.9, "budget": math.inf, "loss": 0.001, "band": 10e6, "partition": "iid"}
IN_CELL["control"] = ["rate", "share"]


def pick(wanted: dict, **more) -> dict[int, dict]:
    """Return the series of the runs that are so, by seed; each seed once. FedDST has no layers and no rule."""
    wanted = {**wanted, **more}
    if wanted.get("method") == "feddst":
        wanted = {name: value for name, value in wanted.items() if name not in ("layers", "rule", "step", "count")}
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


def feddst_of(title: str) -> dict:
    """Return the settings of FedDST that a title names."""
    alpha, times = re.search(r"α = ([\d.]+)(?:, learning rate × ([\d.]+))?", title).groups()
    lr = {"lr": float(times) * TABLE[NETWORKS[title.split(", ")[0]]]["lr"]} if times else {}
    return {"alpha": float(alpha), "released": False, **lr}


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


FULL = json.loads((ROOT / "reproduction" / "results" / "cpu" / "facts" / "rounds-latency.json").read_text())
SCENARIO = {"lenet": "underfitting", "alexnet": "overfitting"}


def full_s(net: str, seed: int, rounds: float) -> float:
    """Return the cell's time after so many rounds without dropout."""
    seconds = FULL[SCENARIO[net]]["seconds"][seed]
    return math.inf if math.isinf(rounds) else sum(seconds[: int(rounds)])


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
        if group == "dynamic cell":
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


def weak_run(case: str, title: str, at: float) -> dict[int, dict]:
    partition, length = case.split(", ")
    weak = {"partition": PARTITIONS[partition]}
    if length == "to a plateau":
        weak |= {"rounds": 80, "lr": 0.2, "schedule": "cosine"}
    if title.endswith("(ceiling)"):
        return figure_run("lenet", **weak)
    weak["loss"] = [0.001] * 7 + [0.0001] * 3
    if title.startswith("without dropout"):
        return cell_run("lenet", "fixed", at, **weak)
    return cell_run("lenet", "exact", at, cap=float(re.search(r"θ = ([\d.]+)", title)[1]), **weak)


def tight_of_caps(net: str) -> float:
    """The deadline at which random shares were run with other values of θ: the second of the figure."""
    return spots_of(net)[1]


def spots_of(net: str) -> list[float]:
    text = SECTIONS["Accuracy against latency"]
    text = text.split("**Underfitting**" if net == "lenet" else "**Overfitting**")[1]
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


NORMS = json.loads((ROOT / "reproduction" / "results" / "cpu" / "facts" / "gradient-norm.json").read_text())


def curve_of(curve: dict) -> tuple[list[float], ...]:
    relative = [error / value for error, value in zip(curve["predicted_error"], curve["predicted"], strict=True)]
    return curve["ratio"], curve["measured"], curve["error"], relative


def ratio_error(ratio: float, measured: float, error: float, factor: float) -> float:
    """The standard error of measured over predicted, both of which have one."""
    return ratio * math.hypot(error / measured, factor)


def facts_of(name: str) -> dict:
    """Measurements that are stored beside the runs."""
    return json.loads((ROOT / "reproduction" / "results" / "cpu" / "facts" / f"{name}.json").read_text())


THEOREM = facts_of("theorem")


def matched(one: dict[int, float], other: dict[int, float]) -> list[float]:
    return [one[seed] - other[seed] for seed in sorted(one) if seed in other]
