"""Every number in the tables of the page, worked out a second time from the stored runs."""

from __future__ import annotations

import json
import math
import re
from statistics import fmean, stdev

import pytest
from second_reading import (
    FIGURE,
    FULL,
    IN_CELL,
    NETWORKS,
    NORMS,
    PAGE,
    PARTITIONS,
    ROOT,
    RUNS,
    SCENARIO,
    SCHEMES,
    SECTIONS,
    THEOREM,
    cell,
    cell_run,
    clock,
    closer,
    dots,
    end,
    ends,
    facts_of,
    feddst_of,
    figure_run,
    full_s,
    matched,
    mean,
    pick,
    reached,
    rows_of,
    smooth,
    spots_of,
    table_run,
    tight_of_caps,
    weak_run,
    written,
)


def test_the_table():
    (header, *rows), moves = rows_of(SECTIONS["Accuracy at equal rates and sparsities"])
    rates = [float(text) for text in header[2:]]
    seen = 0
    for title, kind, *cells in rows:
        if kind != "ours":
            continue
        network, partition, method = title.split(", ")[:3]
        more = feddst_of(title) if method == "FedDST" else {}
        if title.endswith("rule model"):
            more = {"rule": "model"}
        for rate, text in zip(rates, cells, strict=True):
            assert text == cell(ends(table_run(NETWORKS[network], PARTITIONS[partition], method.lower(), rate, **more)))
            seen += bool(text)
    assert seen > 30
    for title, sparsity, seed, text in moves[1:]:
        network, more = NETWORKS[title.split(", ")[0]], feddst_of(title)
        run = table_run(network, "dirichlet", "feddst", float(sparsity), **more)[int(seed)]
        rounds = range(5, 26, 5) if more["alpha"] == 0.5 else range(10, 26, 10)
        sent_again = [t for t in rounds if run["push_bytes"][t] > min(run["push_bytes"])]
        if "mask_moved" in run:
            assert text == ", ".join(f"{run['mask_moved'][t - 1]:,.0f} in {t}" for t in rounds)
            assert sum(run["mask_moved"]) == sum(run["mask_moved"][t - 1] for t in rounds)
            assert sent_again == [t for t in rounds if run["mask_moved"][t - 1]]
        elif sent_again:
            assert text == ", ".join(f"some in {t}" for t in sent_again) + "; not counted"
        else:
            assert text == "none"


def test_no_dropout_inside_the_cell():
    text = SECTIONS["Rounds to converge against latency"]
    for scenario in SCENARIO.values():
        means = [fmean(v for row in FULL[scenario][name] for v in row) for name in ("seconds", "joules")]
        assert f"{scenario}, {means[0]:.2f} s and {means[1]:,.0f} J per round on average" in text


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
                assert seconds == (written([full_s(net, int(seed), rounds[i]) for i in (0, 2)]) if inside else "")
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
        band = re.search(r"against bandwidth\*\*, T₀ = (.+) s:", part)
        for x, *cells in rows_of(part)[0][1:]:
            assert cells[-1] == base
            where = (float(band[1]), {"band": float(x) * 1e6}) if band else (float(x), {})
            for scheme, shown in zip(SCHEMES.values(), cells, strict=False):
                found = ends(cell_run(net, scheme, where[0], costs=costs, **where[1]))
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
    told = text[text.index("With random shares") : text.index("([three seeds]")]
    expected = []
    for net, x, caps in (("lenet", 5.9, (0.9, 0.7, 0.5)), ("alexnet", 24.8, (0.9, 0.5))):
        assert x == tight_of_caps(net)
        runs = [*(cell_run(net, "random", x, cap=cap) for cap in caps), cell_run(net, "exact", x)]
        expected += [f"{fmean(ends(run).values()):.1f}" for run in runs]
    assert re.findall(r"([\d.]+) %", told) == expected


def test_a_changing_cell():
    for scenario, x, *cells in rows_of(SECTIONS["A dynamic cell"])[0][1:]:
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
    facts = json.loads((ROOT / "reproduction" / "results" / "cpu" / "facts" / "energy.json").read_text())
    text = SECTIONS["Energy limits and computing time"]
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
    assert f"rounds: {worst:.1e} of the optimum" in SECTIONS["Its claims"]
    low, high = (3 * 1_318_560 * 2000 / hz for hz in (7e9, 4.9e9))
    assert f"computes for {low:.2g} to {high:.2g} s" in text
    text = SECTIONS["Devices that take part only thanks to dropout"]
    cases = re.findall(r"^\*\*(.+)\*\*$", text, flags=re.M)
    assert cases == ["non-IID, as in the figures", "non-IID, to a plateau", "IID, to a plateau"]
    for case, table in zip(cases, rows_of(text), strict=True):
        for title, shown, *numbers, rise in table[1:]:
            runs = weak_run(case, title, at)
            assert shown == (cell(ends(runs)) or "not run")
            for name, digits, number in zip(("mean_rate", "devices"), (2, 1), numbers, strict=True):
                assert number == (f"{fmean(mean(run, name) for run in runs.values()):.{digits}f}" if runs else "")
            rises = [end(run) - 100 * fmean(run["test_accuracy"][-10:-5]) for run in runs.values()]
            assert rise == (f"{fmean(rises):+.2f}" if rises else "")


def test_theorem_bias_and_large_rates():
    theorem = [
        (of, row)
        for of, table in zip(THEOREM.values(), rows_of(SECTIONS["Theorem 1 as stated"]), strict=True)
        for row in table[1:]
    ]
    for of, (rate, *cells, ratio) in theorem:
        rows = [(one["norm_sq"][rate], one["bound"][rate]) for one in of["seeds"]]
        for i, shown in enumerate(cells):
            values = [norm[i] for norm, _ in rows]
            assert shown == f"{fmean(values):.4f} ± {stdev(values) / math.sqrt(len(values)):.4f} ({len(values)})"
        assert ratio == f"{min(b / n for norm, bound in rows for n, b in zip(norm, bound, strict=True)):,.0f}"
    facts = facts_of("unbiased")
    for title, rate, bias, of_norm, of_spread in rows_of(SECTIONS["The bias of a subnet's gradient"])[0][1:]:
        of, i = facts[title.split()[0]], facts["rate"].index(float(rate))
        value = of["bias_sq"][i]
        assert bias == f"{value:.1e} ± {of['bias_sq_error'][i]:.0e}"
        assert of_norm == f"{100 * value / of['norm_sq']:.2f}%"
        assert of_spread == f"{100 * value / of['spread'][i]:.1f}%"
    for title, *cells in rows_of(SECTIONS["Large dropout rates"])[0][1:]:
        more = {"layers": "all"} if "all layers" in title else {}
        runs = figure_run(NETWORKS[title.split(",")[0]], float(title.split("rate ")[1]), **more).values()
        expected = [
            cell([factor * fmean(run[name][part]) for run in runs])
            for name, factor in (("test_accuracy", 100), ("test_loss", 1))
            for part in (slice(0, 5), slice(-5, None))
        ]
        assert cells == expected


def test_the_stored_runs_and_their_versions():
    text = SECTIONS["The stored runs"]
    versions, rest = rows_of(text)
    for version, count, hours in versions[1:]:
        runs = [run for run in RUNS if run["version"] == version]
        assert [count, hours] == [str(len(runs)), f"{sum(run['wall_s'] for run in runs) / 3600:.1f}"]
    assert f"{len(RUNS)} runs are stored" in text
    assert sum(int(row[1]) for row in versions[1:]) == len(RUNS)
    cells: dict[str, list[str]] = {}
    for run in RUNS:
        of = {name: value for name, value in run["facts"].items() if name != "seed"}
        cells.setdefault(json.dumps(of), []).append(run["version"])
    full = [row for row in cells.values() if len(row) > 2]
    mixed = sum(len(set(row)) > 1 for row in full)
    assert f"of {len(full)} cells with at least 3 seeds, {mixed} mix versions" in text
    assert {row[0] for row in rest[1:]} <= {run["file"] for run in RUNS}
    assert f"{len(rest) - 1} stored runs that no experiment lists" in text


def test_power_and_clock():
    facts = json.loads((ROOT / "reproduction" / "results" / "cpu" / "facts" / "power.json").read_text())
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


def test_the_objective():
    for title, runs, inside, *numbers in rows_of(SECTIONS["Accuracy against the objective of the allocator"])[0][1:]:
        scenario, group = title.split(", ")
        _, misses = closer(scenario, group, by_all=False)
        assert runs == str(sum(map(len, dots(scenario, group).values())))
        assert inside == str(len(misses))
        rms = [f"{math.sqrt(fmean(m[i] ** 2 for m in misses)):.2f}" for i in range(3)] if misses else [""] * 3
        means = [f"{fmean(m[i] for m in misses):+.2f}" for i in range(2)] if misses else []
        assert numbers == [*rms, " / ".join(means)]
        if title == "underfitting, bandwidth-aware":
            told = " ".join((ROOT / "docs" / "findings.md").read_text().split())
            assert (
                f"on average {means[0]} percentage points from the curve by Σ w/(1-γ) and {means[1]} by mean rate"
                in told
            )


def test_the_gradient_along_training():
    def shown(values):
        return f"{fmean(values):.4f} ± {stdev(values) / math.sqrt(len(values)):.4f} ({len(values)})"

    rows = rows_of(SECTIONS["The gradient during training"])[0][1:]
    assert [row[0] for row in rows] == list(NORMS)
    for rate, *cells in rows:
        halves = [(row[: len(row) // 2], row[len(row) // 2 :], row) for row in NORMS[rate]]
        assert cells == [shown([fmean(one[i]) for one in halves]) for i in range(3)]


def test_theta_fed_to_the_allocator():
    facts = json.loads((ROOT / "reproduction" / "results" / "cpu" / "facts" / "theory.json").read_text())
    header, *rows = rows_of(SECTIONS["The theory, measured"])[0]
    assert [float(text.split()[0]) for text in header[2:]] == spots_of("lenet") == facts["fed"]["deadlines"]
    thetas = [facts[name]["rate"] for name in ("theta", "theta_measured")]
    assert [row[1] for row in rows] == [f"{value:.2g}" for value in thetas]
    assert [[int(text) for text in row[2:]] for row in rows] == facts["fed"]["feasible"]
    assert f"{3 * 40} rounds of figure 3" in SECTIONS["The theory, measured"]
    for i, at in enumerate(facts["fed"]["deadlines"]):  # θ = 0 is no dropout inside the cell
        fits = sum(value <= at for row in FULL["underfitting"]["seconds"] for value in row)
        assert thetas[0] > 0 or facts["fed"]["feasible"][0][i] == fits


def test_overhead():
    facts = json.loads((ROOT / "reproduction" / "results" / "cpu" / "facts" / "overhead.json").read_text())["cases"]
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
    facts = json.loads((ROOT / "reproduction" / "results" / "cpu" / "facts" / "theory.json").read_text())
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
    counts = json.loads((ROOT / "reproduction" / "results" / "cpu" / "facts" / "partition.json").read_text())["counts"]
    sizes = [sum(row) for row in counts]
    assert sum(sizes) == 50_000
    assert f"devices hold {min(sizes):,} to {max(sizes):,} samples" in SECTIONS["The Dirichlet partition"]


def test_what_decides_the_outcome():
    text = SECTIONS["Choices that the paper leaves open"]
    parts = re.split(r"^\*\*(.+)\*\*$", text, flags=re.M)
    seen = 0
    for question, part in zip(parts[1::2], parts[2::2], strict=True):
        for title, *numbers in rows_of(part)[0][1:]:
            runs = variant(question, title).get(0)
            expected = ["not run", "", ""]
            if runs:
                best = max(runs["test_accuracy"])
                at = f"{100 * best:.2f} in {runs['test_accuracy'].index(best) + 1} of {len(runs['test_accuracy'])}"
                expected = [f"{end(runs):.2f}", at, f"{runs['train_loss'][-1]:.2f}"]
                seen += 1
            assert numbers == expected, (question, title)
    assert seen > 20


def variant(question: str, title: str) -> dict[int, dict]:
    net = "lenet" if question.startswith("LeNet") else "alexnet"
    if "FedDST's learning rate" in question:
        lr, alpha = (float(text) for text in re.fullmatch(r"([\d.]+), α = ([\d.]+)", title).groups())
        return table_run(net, "dirichlet", "feddst", 0.2, lr=lr, alpha=alpha, released=False)
    if "learning rate" in question:
        lr = {"lr": float(title.split(",")[0])}
        more = {"rounds": 100} if "twice" in title else {"dirichlet": 1.0} if "Dirichlet(1)" in title else {}
        partition = "dirichlet" if "non-IID" in question else "iid"
        rate = float(re.search(r"rate ([\d.]+):", question)[1])
        return table_run(net, partition, "feddrop", rate, **lr, **more)
    if "to a plateau" in question:
        at = float(re.search(r"LeNet, ([\d.]+) s", question)[1])
        rounds = 120 if title.endswith("3 times the rounds") else 40
        if title.startswith("no dropout"):
            return figure_run("lenet", rounds=rounds)
        scheme = {"proposed": "exact", "random shares": "random"}[title.split(",")[0]]
        return cell_run("lenet", scheme, at, rounds=rounds)
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
        more["step"] = "plain"
    if "bernoulli" in title:
        more["count"] = "bernoulli"
    return figure_run(net, 0.0 if "no dropout" in title else 0.2, **more)
