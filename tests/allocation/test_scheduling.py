"""Absence at a price against every choice of devices, and the bound that certifies it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import feddrop
from feddrop.allocation import Exact, InverseKept, LinearKept, Problem, TabulatedCost, allocate
from feddrop.allocation.feasible import fits
from feddrop.errors import ConfigError, InfeasibleError
from feddrop.radio.files import as_text, load
from feddrop.schemes import scheme_of
from support.allocate_cases import subband
from support.power_cases import one_of_power, power_problems

GRID = np.linspace(0.02, 1.0, 200)
VARIANCE = TabulatedCost(GRID, -((1.2 - GRID) ** 2))


def cell(rng, devices, **changes):
    values = {
        "weight": rng.dirichlet(np.full(devices, 2.0)),
        "comm_s": rng.lognormal(0.0, 1.0, devices) * 2.0 / devices,
        "compute_s": rng.uniform(0.05, 0.8, devices),
        "upload_j": rng.lognormal(0.0, 1.0, devices) / devices,
        "compute_j": rng.uniform(0.05, 0.8, devices),
        "deadline_s": 1.0,
        "budget_j": rng.uniform(0.6, 2.0, devices),
        "max_rate": 0.9,
    }
    return Problem(**values | changes)


def best_of_all(p, objective, absent_cost):
    """The best choice of devices, by trying every one; each is allocated exactly."""
    out, best = objective.weights(p.weight) * absent_cost, np.inf
    for chosen in product((False, True), repeat=p.shape[0]):
        inside = np.array(chosen)
        if not inside.any():
            continue
        few = replace(p, present=inside)
        if not fits(few).all():
            continue
        found = allocate(few, Exact(objective))
        costs = objective.weights(p.weight) * objective.value(np.where(inside, 1 - found.rate, 1.0))
        best = min(best, float(np.sum(np.where(inside, costs, out))))
    return best


@pytest.mark.parametrize(
    ("objective", "prices"), [(InverseKept(), (1.5, 3.0, 8.0)), (LinearKept(), (0.3, 0.8)), (VARIANCE, (0.1, 0.4))]
)
def test_the_choice_is_within_its_bound_of_the_best_of_all(objective, prices):
    rng, lost, left = np.random.default_rng(5), [], 0
    for number in range(12):
        p = cell(rng, 3 + number % 4)
        for absent_cost in prices:
            found = allocate(p, Exact(objective, absent_cost))
            best = best_of_all(p, objective, absent_cost)
            bound = found.objective * (1 - float(found.gap[0]))
            assert bound <= best * (1 + 1e-9) <= found.objective * (1 + 2e-9)
            lost.append(found.objective / best - 1)
            left += int(found.left_out.sum())
            assert found.residual <= 1e-9
            assert found.charged_objective == found.objective
    assert left >= 10
    assert np.mean(lost) <= 0.01
    assert np.mean(np.array(lost) <= 1e-9) >= 0.7


@pytest.mark.slow
def test_twelve_devices():
    rng, lost = np.random.default_rng(1), []
    for _ in range(2):
        p = cell(rng, 12)
        found, best = allocate(p, Exact(absent_cost=3.0)), best_of_all(p, InverseKept(), 3.0)
        assert found.objective * (1 - float(found.gap[0])) <= best * (1 + 1e-9) <= found.objective * (1 + 2e-9)
        lost.append(found.objective / best - 1)
    assert max(lost) <= 0.02


def test_the_bound_closes_as_devices_grow_in_number():
    rng = np.random.default_rng(2)
    gaps = [float(allocate(cell(rng, devices), Exact(absent_cost=2.0)).gap[0]) for devices in (10, 100, 1000)]
    assert gaps[2] <= 1e-3
    assert gaps[2] <= 0.2 * gaps[0] + 1e-6


def test_a_high_price_keeps_everyone_and_a_low_one_the_best():
    p = cell(np.random.default_rng(3), 6, comm_s=np.full(6, 0.2))
    dear, plain = allocate(p, Exact(absent_cost=1e6)), allocate(p)
    assert not dear.left_out.any()
    assert dear.rate == pytest.approx(plain.rate, abs=1e-12)
    assert dear.gap.max() <= 1e-9
    cheap = allocate(p, Exact(absent_cost=1e-6))  # absence is next to free, but somebody has to train
    assert cheap.active.sum() == 1


def test_every_round_of_a_batch_and_every_kind_of_problem():
    rng = np.random.default_rng(7)
    rows = [cell(rng, 5) for _ in range(4)]
    batch = replace(
        rows[0], **{name: np.array([getattr(row, name) * np.ones(5) for row in rows]) for name in rows[0].numbers}
    )
    together = allocate(batch, Exact(absent_cost=2.5))
    for number, row in enumerate(rows):
        alone = allocate(row, Exact(absent_cost=2.5))
        assert (together.active[number] == alone.active).all()
        assert together.objective[number] == pytest.approx(alone.objective, rel=1e-9)
    for p in (
        subband(6, 3),
        power_problems("energy", 4, 2),
        one_of_power(power_problems("energy", 4, 2, subband=True), 0),
    ):
        found = allocate(p, Exact(absent_cost=1.5))
        assert found.residual <= 1e-8
        assert found.gap.max() < 1
        assert (found.latency_s <= found.problem.deadline_s * (1 + 1e-9)).all()


def test_what_cannot_be_meant_is_refused():
    p = cell(np.random.default_rng(4), 3)
    for wrong in (0.0, -1.0, float("nan"), "much"):
        with pytest.raises(ConfigError, match=r"absent_cost is .* it must be positive"):
            Exact(absent_cost=wrong)
    with pytest.raises(ConfigError, match=r"absent_cost has shape \[2\] for 3 devices"):
        allocate(p, Exact(absent_cost=[1.0, 2.0]))
    with pytest.raises(InfeasibleError, match="Smallest deadline"):  # nobody can take part, even alone
        allocate(replace(p, deadline_s=1e-6), Exact(absent_cost=2.0))


def test_a_run_leaves_out_devices_at_a_price_and_records_it(tmp_path):
    def played(absent_cost, name):
        radio = feddrop.Radio(deadline_s=0.06, bits_per_parameter=32.0, policy="leave-out", absent_cost=absent_cost)
        radio = replace(radio, path_loss=(1e-3, 3e-4, 1e-3, 1e-4))
        config = feddrop.RunConfig(rounds=1, data=feddrop.Data(devices=4, train_limit=80), radio=radio)
        return next(iter(feddrop.Run(config, tmp_path / name)))

    plain, priced = played(0.0, "plain"), played(3.0, "priced")
    assert (plain.gap, plain.band_price) == (None, None)
    assert priced.counts["left out"] > plain.counts.get("left out", 0)
    assert 0 <= priced.gap < 0.5
    assert priced.band_price > 0
    assert priced.objective == priced.charged_objective <= 3.0
    assert all(d.latency_s <= 0.06 * (1 + 1e-9) for d in priced.devices if d.status == "ok")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scheme": "equal"}, "no effect"),
        ({"policy": "stretch"}, "'stretch' has no effect"),
        ({"control": ("rate",)}, 'no effect without "share"'),
    ],
)
def test_a_price_without_effect_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        feddrop.Radio(absent_cost=2.0, **settings)


def test_a_cell_file_may_price_absence(tmp_path):
    file = tmp_path / "cell.toml"
    text = (Path(__file__).parents[2] / "examples" / "cell.toml").read_text()
    file.write_text(text.replace("[radio]", "[radio]\nabsent_cost = 1.1", 1))
    problem, names, given, _, objective, seed, cell = load(file)
    found = allocate(problem, scheme_of(given, cell, seed=seed, objective=objective))
    assert found.absence_priced
    assert found.left_out.any()
    assert "above the best choice" in as_text(found, names)
