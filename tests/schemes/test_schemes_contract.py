"""Every scheme, channel and outcome of the tables: feasible, deterministic, short, and resumed to the same bits."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import feddrop
from feddrop.allocation import Equal, allocate
from feddrop.cli.allocation import allocate as allocate_command
from feddrop.radio import Cell, MeasuredGains
from feddrop.radio.cost import cost
from feddrop.radio.fading import Rician, gains_of
from feddrop.radio.files import load
from feddrop.radio.outcome import Truth, settle_losses
from feddrop.radio.plan import FunctionScheme, SeenRound, plan_round, settled
from feddrop.schemes import CHANNEL_TABLE, OUTCOME_TABLE, SCHEME_TABLE, channel_of
from feddrop.schemes.gauss_markov import distances
from support.hooks import SETTINGS, assert_resumes, configured

EXAMPLES = Path(__file__).parents[2] / "examples"
FULL = {"parameters": 69_656, "forward_flops": 1_318_560}
CELLS = {
    "paper": Cell.paper(devices=6, seed=1, deadline_s=3.0),
    "subband": Cell.paper(devices=6, seed=2, deadline_s=1.5, noise="subband"),
    "energy": Cell.paper(devices=6, seed=3, deadline_s=4.0, budget_j=120.0),
    "uneven": Cell.paper(devices=6, seed=4, deadline_s=3.0, samples=[200, 9000, 500, 5000, 5000, 1000]),
    "dynamic": Cell.paper(devices=8, seed=5, deadline_s=3.0, dynamic=True),
    "one": Cell.paper(devices=1, seed=6, deadline_s=0.6),
    "many": Cell.paper(devices=50, seed=7, deadline_s=25.0),
}

MEASURED = MeasuredGains(uplink=np.full((3, 9), 1e-4), downlink=np.full((3, 9), 1e-3))


def seen_of(cell, round_=1, state=None, policy="stretch"):
    channels = cell.estimate(round_, 0)
    problem = settled(cell.problem(channels, **FULL), policy)
    return SeenRound(problem=problem, channels=channels, cell=cell, round=round_, seed=round_, state=state or {})


def scheme(name, cell):
    given = {"battery": {"total_j": 1500.0, "rounds": 6}, "time-budget": {"total_s": 5 * cell.deadline_s, "rounds": 6}}
    return partial(SCHEME_TABLE[name], **given.get(name, {}))


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("name", SCHEME_TABLE)
def test_a_scheme_is_feasible_deterministic_and_resumable(name, cell):
    function, state = scheme(name, cell), {}
    for round_ in range(1, 5):
        seen = seen_of(cell, round_, state)
        found, plan = plan_round(function, seen, name, FULL)  # checks the plan
        kept = {key: np.frombuffer(value.tobytes(), value.dtype).reshape(value.shape) for key, value in state.items()}
        again, other = plan_round(scheme(name, cell), replace(seen, state=kept), name, FULL)
        for one, two in ((found.rate, again.rate), (found.share, again.share)):
            np.testing.assert_array_equal(one, two)
        assert {key: value.tobytes() for key, value in plan.state.items()} == {
            key: value.tobytes() for key, value in other.state.items()
        }
        assert found.share.sum() <= 1 + 1e-9
        assert (found.share[~seen.present] == 0).all()
        active = found.active
        assert (found.rate[active] >= 0).all()
        assert (found.rate[active] <= cell.max_rate).all()
        assert (found.latency_s <= seen.problem.deadline_s * (1 + 1e-9)).all()
        assert (found.energy_j <= seen.problem.budget_j * (1 + 1e-9)).all()
        assert name in ("battery", "time-budget") or (active == seen.present).all()
        state = plan.state


@pytest.mark.parametrize("cell", ["paper", "uneven", "subband"])
def test_no_scheme_beats_the_optimum_and_each_is_best_by_its_own_measure(cell):
    seen = seen_of(CELLS[cell])
    best = allocate(seen.problem)
    kept = {}
    for name in ("max-min", "proportional-fair", "subcarriers"):
        found, _ = plan_round(SCHEME_TABLE[name], seen, name, FULL)
        assert found.objective >= best.objective * (1 - 1e-9)
        kept[name] = 1.0 - found.rate
    kept["exact"], kept["equal"] = 1.0 - best.rate, 1.0 - allocate(seen.problem, Equal()).rate
    smallest = {name: one.min() for name, one in kept.items()}
    assert max(smallest, key=smallest.get) == "max-min"
    product = {name: np.log(one).sum() for name, one in kept.items()}
    assert max(product, key=product.get) == "proportional-fair"


def test_max_min_is_the_bisection_by_hand():
    """All devices keep the same, and a little more is infeasible; one that cannot keep as much does not hold others."""
    seen = seen_of(CELLS["paper"])
    found, _ = plan_round(SCHEME_TABLE["max-min"], seen, "max-min", FULL)
    assert np.ptp(found.rate) < 1e-6
    more = 1.0 / (1.0 - found.rate + 1e-6)
    assert seen.problem.least_share(more).sum() > 1
    budget = np.full(6, np.inf)
    budget[2] = 0.2 * (seen.problem.upload_j[2] + seen.problem.compute_j[2])
    poor = replace(seen, problem=replace(seen.problem, budget_j=budget))
    held, _ = plan_round(SCHEME_TABLE["max-min"], poor, "max-min", FULL)
    assert held.rate[2] > 0.75
    assert np.delete(held.rate, 2).max() < 0.5


def test_max_min_fits_where_one_device_needs_nearly_the_whole_band():
    """After the deadline is stretched for it, it cannot keep even 99 % of what it could keep alone."""
    loss = np.array([1e-3, 1e-3, 1e-3, 1e-9])
    seen = seen_of(Cell.paper(devices=4, seed=8, deadline_s=1e-3, path_loss=loss, noise="subband"))
    found, _ = plan_round(SCHEME_TABLE["max-min"], seen, "max-min", FULL)
    assert found.share[3] > 0.99
    assert found.rate == pytest.approx(np.full(4, 0.9), rel=1e-4)


def test_subcarriers_are_whole_and_no_other_split_is_better():
    cell = Cell.paper(devices=3, seed=1, deadline_s=3.0)
    seen = seen_of(cell)
    found, plan = plan_round(partial(SCHEME_TABLE["subcarriers"], count=12), seen, "subcarriers", FULL)
    np.testing.assert_allclose(found.share * 12, np.round(found.share * 12), atol=1e-12)
    costs = []
    for one in range(1, 11):
        for two in range(1, 12 - one):
            share = np.array([one, two, 12 - one - two]) / 12
            if (share >= seen.problem.least_share(1 / (1 - seen.problem.max_rate))).all():
                costs.append(plan_round(lambda _, share=share: feddrop.Plan(share), seen, "try", FULL)[0].objective)
    assert found.objective == pytest.approx(min(costs), rel=1e-9)
    gap = float(plan.state["gap"][0])
    assert 0 <= gap < 0.3
    assert found.objective == pytest.approx(allocate(seen.problem).objective * (1 + gap), rel=1e-9)
    finer = plan_round(partial(SCHEME_TABLE["subcarriers"], count=1200), seen, "subcarriers", FULL)[1]
    assert float(finer.state["gap"][0]) < 1e-4
    with pytest.raises(feddrop.InfeasibleError, match="2 subcarriers are too few: the devices need 3"):
        SCHEME_TABLE["subcarriers"](seen, count=2)


def test_the_battery_lasts_and_more_of_it_drops_less():
    cell, rates = CELLS["paper"], {}
    for total in (400.0, 1200.0):
        state, used = {}, np.zeros(cell.devices)
        for round_ in range(1, 11):
            seen = seen_of(cell, round_, state)
            found, plan = plan_round(partial(SCHEME_TABLE["battery"], total_j=total, rounds=10), seen, "battery", FULL)
            used += np.where(found.active, found.energy_j + cell.circuit_j, 0.0)
            np.testing.assert_allclose(plan.state["spent_j"] + plan.state["planned_j"], used, rtol=1e-9, atol=1e-6)
            rates.setdefault(total, []).append(found.rate.mean())
            state = plan.state
        assert (used <= total * (1 + 1e-9)).all()
    assert used.max() > 0.6 * 1200.0
    assert np.mean(rates[1200.0]) < np.mean(rates[400.0])
    empty = replace(seen_of(cell, 5), spent_j=np.ones(6))
    assert not SCHEME_TABLE["battery"](empty, total_j=1.0, rounds=10).share.any()


def test_the_seconds_of_all_rounds_stay_within_the_budget():
    cell, state, used = CELLS["paper"], {}, []
    for round_ in range(1, 11):
        function = partial(SCHEME_TABLE["time-budget"], total_s=20.0, rounds=10)
        found, plan = plan_round(function, seen_of(cell, round_, state), "time-budget", FULL)
        used.append(found.latency_s.max())
        state = plan.state
    assert sum(used) <= 20.0 * (1 + 1e-9)
    assert sum(used) > 0.7 * 20.0
    assert len({round(one, 6) for one in used}) > 3  # deadlines follow the channels
    spent = replace(seen_of(cell, 5), elapsed_s=19.9)
    assert not SCHEME_TABLE["time-budget"](spent, total_s=20.0, rounds=10).share.any()


def sent_often(plan, truth, costs, state):
    return feddrop.Outcome({}, state, np.full(truth.cell.devices, 60.0))


@pytest.mark.parametrize(
    ("name", "setting", "total"), [("battery", "total_j", 1.5), ("time-budget", "total_s", 24.0)], ids=["joules", "s"]
)
def test_what_was_recorded_counts_not_what_was_planned(tmp_path, name, setting, total):
    """Every upload is sent 60 times. The budget is exceeded by at most the surprise of a device's last round."""
    settings = [f"radio.scheme={name}", f"radio.scheme_settings.{setting}={total}", "radio.scheme_settings.rounds=8"]
    run = feddrop.Run(configured("rounds=8", *settings), tmp_path / "run", report=False, outcome=sent_often)
    list(run)
    used = np.zeros((8, 4))
    for record in run.records:
        for one in record.devices:
            used[record.round - 1, one.device] = one.energy_j or 0.0
        if name == "time-budget":
            used[record.round - 1] = record.latency_s or 0.0
    before_the_last = [np.trim_zeros(column, "b")[:-1].sum() for column in used.T]
    assert (np.array(before_the_last) < total).all()
    assert (used[-1] == 0).all()
    as_planned = feddrop.Run(configured("rounds=8", *settings), tmp_path / "planned", report=False)
    list(as_planned)
    assert len(as_planned.records[-1].devices) == 4  # without retransmissions, the budget lasts
    assert all(one.energy_j for one in as_planned.records[-1].devices)


@pytest.mark.parametrize("name", CHANNEL_TABLE)
@pytest.mark.parametrize("base", [Rician(), MEASURED], ids=["Rician", "measured"])
def test_a_channel_depends_on_its_arguments_only(name, base):
    channel = CHANNEL_TABLE[name](base)
    for what in ("draw", "estimate") if hasattr(channel, "estimate") else ("draw",):
        late = gains_of(channel, what, 9, 20, 5)
        early = gains_of(channel, what, 9, 2, 5)
        again = gains_of(CHANNEL_TABLE[name](base), what, 9, 20, 5)
        np.testing.assert_array_equal(late, again)
        if isinstance(base, Rician) or what == "estimate" or name == "gauss-markov":
            assert not np.array_equal(early, late)
            assert not np.array_equal(gains_of(channel, what, 9, 20, 6), late)
        assert all((gains > 0).all() and gains.shape == (9,) for gains in late)


def test_estimates_are_as_correlated_as_they_say():
    exact, blind, noisy = (
        CHANNEL_TABLE["imperfect-csi"](Rician(kappa=0.0), correlation=rho) for rho in (1.0, 0.0, 0.9)
    )
    truth = np.concatenate([gains_of(noisy, "draw", 50, t, 0)[0] for t in range(200)])
    found = {
        one: np.concatenate([gains_of(one, "estimate", 50, t, 0)[0] for t in range(200)])
        for one in (exact, blind, noisy)
    }
    np.testing.assert_allclose(found[exact], truth)
    assert abs(np.corrcoef(found[blind], truth)[0, 1]) < 0.03
    assert np.corrcoef(found[noisy], truth)[0, 1] == pytest.approx(0.81, abs=0.03)  # of Rayleigh gains: ρ²
    assert found[noisy].mean() == pytest.approx(1e-3, rel=0.03)
    weaker = CHANNEL_TABLE["imperfect-csi"](Rician(), correlation=1.0, backoff_db=3.0)
    np.testing.assert_allclose(
        gains_of(weaker, "estimate", 4, 1, 0)[0], gains_of(weaker, "draw", 4, 1, 0)[0] * 10**-0.3
    )
    with pytest.raises(feddrop.ConfigError, match=r"correlation is 1.5; it must be from 0"):
        CHANNEL_TABLE["imperfect-csi"](Rician(), correlation=1.5)


def test_devices_move_at_their_speed_and_stay_in_the_disc():
    walk = distances(400, 64, 0, 1.5 / np.sqrt(2), 0.8, 10.0, 100.0)
    np.testing.assert_array_equal(distances(400, 16, 0, 1.5 / np.sqrt(2), 0.8, 10.0, 100.0), walk[:16])
    np.testing.assert_array_equal(distances(7, 64, 0, 1.5 / np.sqrt(2), 0.8, 10.0, 100.0), walk[:, :7])
    assert walk.max() <= 100.0 + 1e-9
    steps = np.abs(np.diff(walk[:2], axis=0))
    assert 3.0 < steps.mean() < 15.0  # 15 m per round, seen from the centre
    still = CHANNEL_TABLE["gauss-markov"](Rician(), speed_m_s=0.0)
    np.testing.assert_array_equal(gains_of(still, "draw", 5, 9, 1), Rician().draw(5, 9, 1))
    slow, fast = (distances(400, 8, 0, speed, 0.8, 10.0, 100.0) for speed in (0.1, 3.0))
    assert np.abs(np.diff(slow, axis=0)).mean() < np.abs(np.diff(fast, axis=0)).mean() / 5


def happened(cell, **more):
    channels = cell.draw(1, 0)
    found = allocate(cell.problem(channels, **FULL))
    took = cost(cell, channels, found.rate, found.share, **FULL)
    truth = Truth(channels=channels, cell=cell, deadline_s=cell.deadline_s, round=1, seed=3)
    return feddrop.Plan(found.share, rate=found.rate), truth, took


def test_packets_are_sent_again_as_often_as_they_fail():
    plan, truth, took = happened(CELLS["paper"])
    sure = settle_losses(partial(OUTCOME_TABLE["packet-errors"], waterfall=0.0), plan, truth, took, {}, "p")
    assert sure.lost == {}
    np.testing.assert_array_equal(sure.transmissions, 1.0)
    patient = replace(truth, deadline_s=1e9)
    some = settle_losses(
        partial(OUTCOME_TABLE["packet-errors"], waterfall=0.5, attempts=60, packet_bits=100.0),
        plan,
        patient,
        took,
        {},
        "",
    )
    ratio = 2.0 ** truth.cell.efficiency(truth.channels, plan.share)[1] - 1.0
    np.testing.assert_allclose(some.transmissions, np.exp(0.5 / ratio), rtol=0.02)  # 1/(1 - error rate)
    assert some.lost == {}
    few = settle_losses(
        partial(OUTCOME_TABLE["packet-errors"], waterfall=5.0, attempts=1), plan, patient, took, {}, "p"
    )
    assert set(few.lost) == set(range(6))
    assert "packets failed 1 times" in few.lost[0]
    hurried = settle_losses(
        partial(OUTCOME_TABLE["packet-errors"], waterfall=0.5, attempts=60), plan, truth, took, {}, "p"
    )
    assert any(why.startswith("late by") for why in hurried.lost.values())


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_run_is_stopped_and_resumed_to_the_same_bits(tmp_path, setting):
    """Every scheme, channel and outcome by its name in TOML."""
    records = assert_resumes(tmp_path, configured(*SETTINGS[setting]))
    assert any(record.devices for record in records)


def test_every_name_of_the_tables_is_resumed():
    named = " ".join(" ".join(one) for one in SETTINGS.values())
    for table in (SCHEME_TABLE, CHANNEL_TABLE, OUTCOME_TABLE):
        assert all(f"={name}" in named for name in table if name != "late")


@pytest.mark.parametrize(
    "path", sorted(Path(feddrop.schemes.__file__).parent.glob("[a-z]*.py")), ids=lambda path: path.stem
)
def test_a_shipped_file_is_short(path):
    """At most 40 lines of code: without docstrings, comments, imports and blank lines."""
    tree = ast.parse(path.read_text())
    counted = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue
            last = node.end_lineno if not hasattr(node, "body") else node.body[0].lineno - 1
            counted |= set(range(node.lineno, last + 1))
    docs = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    assert len(counted - docs) <= 40


def test_function_schemes_allocate_without_a_run():
    cell = CELLS["paper"]
    channels = cell.draw(1, 0)
    problem = cell.problem(channels, **FULL)
    one = FunctionScheme(SCHEME_TABLE["max-min"], "max-min", cell, channels, FULL)
    found = allocate(problem, one)
    assert found.scheme == "max-min"
    assert found.rate == pytest.approx(plan_round(SCHEME_TABLE["max-min"], seen_of(cell), "max-min", FULL)[0].rate)


@pytest.mark.parametrize("name", ["max-min", "proportional-fair", "subcarriers"])
def test_feddrop_allocate_knows_the_functions(name, capsys):
    allocate_command(EXAMPLES / "cell.toml", scheme=name)
    assert f"scheme {name}: feasible" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "scheme", "said"),
    [
        ("problem.toml", "max-min", "the scheme 'max-min' needs a cell"),
        ("cell.toml", "battery", "radio.scheme_settings lacks total_j and rounds"),
        ("cell.toml", "max-mim", "Did you mean 'max-min'"),
        ("cell.toml", "nowhere:f", "radio.scheme is 'nowhere:f', which cannot be imported"),
    ],
)
def test_feddrop_allocate_says_what_a_function_needs(file, scheme, said):
    with pytest.raises(feddrop.ConfigError, match=said):
        allocate_command(EXAMPLES / file, scheme=scheme)


def test_a_cell_file_may_name_a_channel_and_no_objective_of_a_network(tmp_path):
    text = (EXAMPLES / "cell.toml").read_text()
    files = {
        "noisy": text.replace("[radio]", '[radio]\nchannel = "imperfect-csi"'),
        "network": text.replace("[radio]", '[radio]\nobjective = "importance"'),
    }
    for name, content in files.items():
        (tmp_path / f"{name}.toml").write_text(content)
    plain, noisy = load(EXAMPLES / "cell.toml"), load(tmp_path / "noisy.toml", channel_of)
    assert not np.array_equal(plain.problem.comm_s, noisy.problem.comm_s)  # it plans with the estimate
    with pytest.raises(feddrop.ConfigError, match=r"is 'importance', which is computed from the network"):
        load(tmp_path / "network.toml")
