"""The settings, the published numbers and the words around the tables of the page."""

from __future__ import annotations

import json
import re

from second_reading import NETWORKS, PAGE, ROOT, RUNS, SECTIONS, bands_of, curve_of, ratio_error, rows_of, spots_of

DST = "feddst: erk, α = {}, readjusted every {} rounds in the first 50% of them.</p>"
DROPS = "dropped: weights of {} layers{}, exact counts; rule <code>delta</code> with the factor 1/(1-γ).</p>"
LENET = (
    "<p>lenet, initial weights: torch; cifar100, {} images, 10 devices; {} rounds, 1 local epoch, batch 32, learning "
    "rate"
)
ALEXNET = (
    "<p>alexnet at 0.25 times its width, initial weights: he; cifar100, 5,000 images, 10 devices; 50 rounds, 1 local "
    "epoch, batch 32, learning rate {} (constant), momentum 0.9; " + DROPS.format("fully-connected", " only")
)
TRAINING = {
    *(f"{LENET.format('all', 50)} {lr} (cosine); {DROPS.format('all', '')}" for lr in (0.1, 0.2)),
    *(f"{LENET.format(n, r)} 0.1 (constant); {DROPS.format('all', '')}" for n, r in (("20,000", 40), ("2,000", 30))),
    f"{LENET.format('20,000', 80)} 0.2 (cosine); {DROPS.format('all', '')}",
    f"{LENET.format('20,000', 40)} 0.1 (constant); {DST.format('0.01', 10)}",
    f"{LENET.format('all', 50)} 0.1 (cosine); {DST.format('0.01', 10)}",
    f"{LENET.format('all', 50)} 0.2 (cosine); {DST.format('0.5', 5)}",
    *(ALEXNET.format(lr).split("dropped")[0] + DST.format("0.01", 10) for lr in (0.005, 0.01)),
    *(ALEXNET.format(lr) for lr in (0.005, 0.01)),
}
CELL = (
    "<p>Cell: θ = 0.9; N₀ = 1e-13 W/Hz as a density: variance = density · B; {}; downlink 1 W; {}, ξ = 0.1 J; {} FLOP "
    "per cycle; f = 4.9 to 7 GHz, P = 0.003 to 0.01 W; κ = 10, path loss {}; infeasible rounds: leave-out; shares: "
)
BILLS = {
    "underfitting": "costs by the paper's formula, Q = 256 bits",
    "overfitting": "costs as measured: frames of 32 bits per value, counted FLOPs, for each device at its rate",
}
ENDS = (
    r"( \(the optimum, by our solver, not by Algorithm 1\)| \(Algorithm 1\)"
    r"| \(shares uniform over the <em>feasible</em> splits only, rates optimal\)"
    r"| \(one rate for all; devices that cannot meet it are left out\))?"
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
    for path in (ROOT / "reproduction" / "results" / "cpu").glob("*.json"):
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


def test_the_theory_in_words():
    text = SECTIONS["The theory, measured"]
    facts = json.loads((ROOT / "reproduction" / "results" / "cpu" / "facts" / "theory.json").read_text())
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
    counts = json.loads((ROOT / "reproduction" / "results" / "cpu" / "facts" / "partition.json").read_text())["counts"]
    assert f"{len(counts[0])} classes on {len(counts)} devices, one Dirichlet({0.1}) draw" in partition


def test_how_much_was_run():
    """Every result counts but those of AlexNet's figures billed by the formula."""
    done = [run for run in RUNS if (run["facts"]["net"], run["facts"]["costs"]) != ("alexnet", "formula")]
    hours = sum(run["wall_s"] for run in done) / 3600
    count = rf"({len(done)} of \d+|All {len(done)}) training runs are finished"
    assert re.search(rf"\. {count}; their rounds took {hours:.1f} hours", PAGE)
