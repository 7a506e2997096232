"""The optimum for any convex objective, against CVXPY, against the closed form of the paper's, and certified."""

from __future__ import annotations

import warnings
from dataclasses import replace
from statistics import NormalDist

import cvxpy as cp
import numpy as np
import pytest

from feddrop.allocation import (
    OBJECTIVES,
    CustomCost,
    Exact,
    InverseKept,
    LinearKept,
    Problem,
    Random,
    SubbandProblem,
    TabulatedCost,
    allocate,
)
from feddrop.allocation.pace import pace
from feddrop.errors import ConfigError, InfeasibleError
from feddrop.subnets.importance import Magnitudes
from support.power_cases import KINDS, feasible, power_problems, worst_breach

GRID = np.linspace(0.05, 1.0, 300)
VARIANCE = TabulatedCost(GRID, -((1.3 - GRID) ** 2))
BARRIER = CustomCost(lambda s: -np.log(s), lambda s: -1.0 / s)
COSTS = {
    "paper": (InverseKept(), cp.inv_pos),
    "squared": (InverseKept(squared=True), cp.inv_pos),
    "linear": (LinearKept(), lambda s: 1 - s),
    "barrier": (BARRIER, lambda s: -cp.log(s)),
}


def problem(rng, devices, *, energy=True, compute=True):
    weight = rng.dirichlet(np.full(devices, 2.0))
    return Problem(
        weight=weight,
        comm_s=rng.lognormal(-1.0, 0.8, devices) / devices**0.5,
        compute_s=rng.uniform(0.02, 0.5, devices) if compute else 0.0,
        upload_j=rng.lognormal(-1.5, 0.8, devices) / devices**0.5 if energy else 0.0,
        compute_j=rng.uniform(0.02, 0.4, devices) if energy else 0.0,
        deadline_s=1.0,
        budget_j=1.0 if energy else np.inf,
        max_rate=0.9,
    )


def reference(p, objective, cost):
    """The optimum by a general conic solver, in the kept shares and the band."""
    s, rho = cp.Variable(p.shape[0]), cp.Variable(p.shape[0])
    limits = [cp.sum(rho) <= 1, rho >= 0, s <= 1, s >= 1 - p.max_rate]
    for air, work, limit in (
        (p.comm_s, p.compute_s, p.deadline_s),
        (p.upload_j, p.compute_j, p.budget_j),
    ):
        air, work, limit = (np.broadcast_to(v, p.shape) for v in (air, work, limit))
        for k in range(p.shape[0]):
            if not np.isfinite(limit[k]) or (air[k] == 0 and work[k] == 0):
                continue
            if work[k] > 0:
                limits.append(s[k] <= limit[k] / work[k] * (1 - air[k] * cp.inv_pos(air[k] + work[k] * rho[k])))
            else:
                limits.append(s[k] <= limit[k] * rho[k] / air[k])
    found = cp.Problem(cp.Minimize(objective.weights(p.weight) @ cost(s)), limits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Clarabel warns where it stops short of 1e-10
        found.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return found.value if found.status in ("optimal", "optimal_inaccurate") else None


def test_the_variance_of_normal_weights():
    """V(s) in closed form is that of many drawn weights, and far below γ/(1-γ) of uniform draws."""
    cost, count = OBJECTIVES["importance-normal"], 200_000
    drawn = Magnitudes([NormalDist().inv_cdf((n + 0.5) / count) for n in range(count)])
    s = np.array([0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
    found = np.array([drawn.variance(one * drawn.size) for one in s]) / count
    np.testing.assert_allclose(cost.value(s), found, rtol=2e-3)
    slopes = np.array([drawn.slope(one * drawn.size) for one in s]) / count
    np.testing.assert_allclose(cost.slope(s), slopes, rtol=2e-3)
    assert (cost.value(s) < (1 - s) / s).all()


@pytest.mark.parametrize("name", COSTS)
def test_it_is_the_optimum_of_a_general_solver(name):
    objective, cost = COSTS[name]
    rng, compared = np.random.default_rng(7), 0
    for number in range(40):
        p = problem(rng, int(rng.integers(2, 9)), energy=number % 3 > 0, compute=number % 4 > 0)
        try:
            found = allocate(p, Exact(objective))
        except InfeasibleError:
            continue
        if (best := reference(p, objective, cost)) is None:
            continue
        ours = found
        compared += 1
        assert ours.objective == pytest.approx(best, rel=2e-6, abs=2e-7)
        assert ours.share.sum() <= 1 + 1e-12
        assert (ours.latency_s <= p.deadline_s * (1 + 1e-9)).all()
        assert (ours.energy_j <= p.budget_j * (1 + 1e-9)).all()
        assert ours.residual <= 1e-9
    assert compared >= 25


def test_the_papers_objective_agrees_with_its_closed_form():
    rng = np.random.default_rng(3)
    for _ in range(30):
        p = problem(rng, 12)
        try:
            closed = allocate(p)
        except InfeasibleError:
            continue
        general = allocate(p, Exact(BARRIER))  # another objective is another optimum
        assert general.objective <= float(np.sum(p.weight * -np.log(1 - closed.rate))) + 1e-12
        from feddrop.allocation import convex

        same = convex.solve(p, np.ones(p.shape, bool), InverseKept())
        assert same.objective == pytest.approx(closed.objective, rel=1e-10)
        assert same.rate == pytest.approx(closed.rate, abs=1e-6)


def test_the_linear_objective_starves_the_worst_devices():
    """Pinned in the notes on adaptive pruning: six equal devices that differ in their air time."""
    p = Problem(
        weight=np.full(6, 1 / 6),
        comm_s=[0.1, 0.15, 0.2, 0.3, 0.4, 0.6],
        compute_s=0.05,
        upload_j=0.0,
        compute_j=0.0,
        deadline_s=1.0,
        budget_j=np.inf,
        max_rate=0.9,
    )
    assert allocate(p).rate == pytest.approx([0.031, 0.202, 0.305, 0.429, 0.504, 0.593], abs=1e-3)
    linear = allocate(p, Exact(LinearKept()))
    assert linear.rate == pytest.approx([0, 0, 0, 0, 0.631, 0.9], abs=1e-3)
    assert linear.share == pytest.approx([0.105, 0.158, 0.211, 0.316, 0.150, 0.060], abs=1e-3)


def test_without_computation_the_linear_objective_fills_one_device_after_the_other():
    p = replace(problem(np.random.default_rng(1), 5, energy=False, compute=False), comm_s=np.full(5, 0.6))
    found = allocate(p, Exact(LinearKept()))
    order = np.argsort(-p.weight)
    assert (np.diff(found.rate[order]) >= -1e-9).all()
    assert found.share.sum() == pytest.approx(1.0, abs=1e-12)
    assert found.residual <= 1e-9


@pytest.mark.parametrize("cost", [LinearKept(), VARIANCE, BARRIER, InverseKept(squared=True)], ids=list("lvbi"))
def test_the_fast_search_and_the_safe_one_agree(cost):
    """Batches with absent devices, devices without samples or computation, loose and scarce bands."""
    from feddrop.allocation import convex

    rng = np.random.default_rng(11)
    compared = 0
    for number in range(60):
        rows, devices = int(rng.integers(1, 4)), int(rng.integers(2, 30))
        shape, energy = (rows, devices), number % 2 == 0
        tight = rng.uniform(0.1, 1.5) / devices
        p = Problem(
            weight=rng.dirichlet(np.full(devices, 2.0)) * (rng.random(shape) > 0.1),
            comm_s=rng.lognormal(0.0, 0.8, shape) * tight,
            compute_s=rng.uniform(0.02, 0.8, shape) * (number % 3 > 0),
            upload_j=rng.lognormal(0.0, 0.8, shape) * tight if energy else 0.0,
            compute_j=rng.uniform(0.02, 0.8, shape) if energy else 0.0,
            deadline_s=1.0,
            budget_j=rng.uniform(0.7, 1.5, shape) if energy else np.inf,
            max_rate=0.9,
            present=np.arange(devices) < max(1, devices - number % 4),
        )
        try:
            found = allocate(p, Exact(cost))
        except InfeasibleError:
            continue
        compared += 1
        safe = convex.solve(p, found.active, cost)
        assert found.objective == pytest.approx(safe.objective, rel=1e-9, abs=1e-12)
        assert found.residual <= 1e-9
        assert found.share.sum(axis=-1).max() <= 1.0
    assert compared >= 40


def test_a_cost_that_is_flat_at_the_end_still_has_a_price():
    """At equal shares the first guess keeps all of the network, where the last weight is worth nothing."""
    flat = TabulatedCost([0.1, 0.6, 1.0], [-2.0, 0.0, 0.0])
    p = Problem(
        weight=[0.5, 0.5], comm_s=0.1, compute_s=0.1, upload_j=[0.6, 0.9], compute_j=0.1, deadline_s=1.0, budget_j=1.0,
        max_rate=0.9,
    )  # fmt: skip
    for cost in (flat, TabulatedCost([0.1, 0.5, 1.0], [-2.0, -0.5, 0.0])):
        found = allocate(p, Exact(cost))
        assert found.share.sum() <= 1.0
        assert found.residual <= 1e-9


def test_a_cost_that_nothing_lowers_still_fits_into_the_band():
    worthless = TabulatedCost([0.1, 1.0], [0.0, 0.0])
    p = problem(np.random.default_rng(0), 10)
    for cell in (p, replace(p, comm_s=p.comm_s * 1e-3, compute_s=p.compute_s * 1e-3, upload_j=p.upload_j * 1e-3)):
        found = allocate(cell, Exact(worthless))
        assert found.objective == 0.0
        assert found.share.sum() <= 1.0
        assert found.residual <= 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["density", "subband"])
@pytest.mark.parametrize("cost", [LinearKept(), VARIANCE, InverseKept()], ids=list("lvp"))
def test_with_many_devices_too(noise, cost, monkeypatch):
    """Above 65,536 devices, results of Newton's method are not proven while a run waits: here they are."""
    from feddrop.allocation import convex, optimum

    devices = optimum._PROVEN + 5000
    rng = np.random.default_rng(2)
    limits = {"deadline_s": 1.3, "budget_j": 1.2, "max_rate": 0.9}
    work = {"weight": rng.dirichlet(np.full(devices, 2.0)), "compute_s": rng.uniform(0.1, 0.9, devices)}
    work |= {"compute_j": rng.uniform(0.1, 0.9, devices)}
    air = rng.uniform(0.1, 1.0, devices) * 1.5 / devices
    p = (
        Problem(**work, **limits, comm_s=air, upload_j=rng.permutation(air))
        if noise == "density"
        else SubbandProblem(
            **work,
            **limits,
            push_s=air,
            pull_s=3 * air,
            snr_down=1e4 / devices * rng.uniform(0.3, 3.0, devices),
            snr_up=10 / devices * rng.uniform(0.1, 3.0, devices),
            tx_power_w=rng.uniform(0.2, 0.6, devices),
        )
    )
    safe = convex.solve(p, np.ones(devices, bool), cost)
    monkeypatch.delattr(convex, "solve")
    found = allocate(p, Exact(cost))
    assert found.objective == pytest.approx(safe.objective, rel=1e-9)
    assert found.residual <= 1e-9
    assert found.share.sum() <= 1.0


def test_who_drops_nothing_has_rate_0():
    """Rounding leaves no rates of 1e-16, and the full network still meets the deadline and the budget."""
    rng, full = np.random.default_rng(4), 0
    for _ in range(100):
        p = problem(rng, 8)
        for cost in (InverseKept(), LinearKept(), VARIANCE):
            try:
                found = allocate(p, Exact(cost))
            except InfeasibleError:
                continue
            assert not ((found.rate > 0) & (found.rate < 1e-12)).any()
            full += int((found.rate == 0).sum())
            assert (found.latency_s <= p.deadline_s).all()
            assert (found.energy_j <= p.budget_j).all()
    assert full > 100


def test_a_batch_is_its_rounds():
    rng = np.random.default_rng(5)
    rows = [problem(rng, 6, energy=False) for _ in range(4)]
    batch = replace(
        rows[0], **{name: np.array([getattr(row, name) * np.ones(6) for row in rows]) for name in rows[0].numbers}
    )
    together = allocate(batch, Exact(VARIANCE))
    for number, row in enumerate(rows):
        assert together.rate[number] == pytest.approx(allocate(row, Exact(VARIANCE)).rate, abs=1e-9)


def test_subband_noise():
    p = SubbandProblem(
        weight=np.full(4, 0.25),
        push_s=0.2,
        pull_s=[0.4, 0.8, 1.2, 2.0],
        snr_down=50.0,
        snr_up=[20.0, 10.0, 5.0, 2.0],
        tx_power_w=0.2,
        compute_s=0.1,
        compute_j=0.05,
        deadline_s=1.0,
        budget_j=2.0,
        max_rate=0.9,
    )
    from feddrop.allocation import convex

    closed, general = allocate(p), convex.solve(p, np.ones(4, bool), InverseKept())
    assert general.objective == pytest.approx(closed.objective, rel=1e-8)
    assert allocate(p, Exact(VARIANCE)).residual <= 1e-9


@pytest.mark.parametrize("noise", [False, True], ids=["density", "subband"])
@pytest.mark.parametrize("objective", [LinearKept(), VARIANCE, BARRIER, InverseKept(squared=True)], ids=list("lvbi"))
def test_power_and_clock_are_chosen_for_any_objective(noise, objective):
    """No other split, and no other clocks and powers, do better; its KKT conditions certify the optimum."""
    p = feasible(power_problems("energy", 4, 3, subband=noise))
    found = allocate(p, Exact(objective))
    assert worst_breach(found, p) <= 1e-9
    assert found.residual <= 1e-7
    assert found.gap is None or found.gap.max() <= 1e-9
    best = np.asarray(found.objective)
    for seed in range(20):
        other = allocate(p, Random(seed))
        value = np.sum(objective.weights(p.weight) * objective.value(1 - other.rate), axis=-1)
        assert (value >= best - 1e-12 * np.abs(best)).all()
    slow = allocate(p.at(0.7 * p.cpu_hz, 0.5 * p.tx_power_w), Exact(objective), policy="stretch")
    in_time = (slow.problem.deadline_s <= p.deadline_s * np.ones((len(best), 1)))[:, 0]
    assert (np.asarray(slow.objective) >= best - 1e-12)[in_time].all()


@pytest.mark.parametrize("noise", [False, True], ids=["density", "subband"])
def test_what_is_kept_is_concave_in_the_share_at_the_best_clock_and_power(noise):
    """So every convex falling cost stays convex: the marginal share of the network per share of band never rises."""
    for kind in KINDS:
        p = power_problems(kind, 5, 4, seed=3, subband=noise)
        low, high = (np.log(p.least_share(z)) for z in (1.0 / (1.0 - p.max_rate), np.ones(())))
        fine = np.isfinite(low) & np.isfinite(high)
        low, high = np.where(fine, low, -3.0), np.where(fine, high, -2.0)
        before = np.full(p.shape, np.inf)
        for part in np.linspace(0.0, 1.0 - 1e-6, 40):
            y = low + part * (high - low)
            paced = pace(p, np.exp(y))
            marginal = np.log(paced.fall) - 2.0 * np.log(paced.z) - y
            assert (marginal <= before + 1e-9)[fine].all()
            before = marginal


def test_a_loose_cell_drops_nothing_and_an_infeasible_one_is_explained():
    p = problem(np.random.default_rng(2), 3)
    assert allocate(replace(p, deadline_s=1e4, budget_j=1e4), Exact(VARIANCE)).rate.max() == 0.0
    with pytest.raises(InfeasibleError, match="Smallest deadline"):
        allocate(replace(p, deadline_s=1e-3), Exact(VARIANCE))
    left = allocate(replace(p, deadline_s=0.05), Exact(VARIANCE), policy="stretch")
    assert left.problem.deadline_s.max() > 0.05


@pytest.mark.parametrize(
    ("value", "slope", "message"),
    [
        (lambda s: s, lambda s: np.ones_like(s), "falling and convex"),
        (lambda s: -(s**2), lambda s: -2 * s, "falling and convex"),
        (lambda s: 1 / s, lambda s: -1 / s, "not the derivative"),
        (lambda s: 1.0, lambda s: -1 / s, "one finite number per share"),
    ],
)
def test_a_custom_cost_is_checked(value, slope, message):
    with pytest.raises(ConfigError, match=message):
        CustomCost(value, slope)


def test_costs_of_points_are_checked():
    with pytest.raises(ConfigError, match="convex and falling"):
        TabulatedCost([0.1, 0.5, 1.0], [-1.0, -2.0, 0.0])


def test_a_run_by_another_objective(tmp_path):
    import feddrop
    from feddrop.allocation import OBJECTIVES
    from feddrop.config.radio import OBJECTIVES as NAMES

    assert {*OBJECTIVES, "importance"} == {*NAMES}
    rates = {}
    for objective in OBJECTIVES:
        radio = feddrop.Radio(deadline_s=0.06, bits_per_parameter=32.0, policy="leave-out", objective=objective)
        config = feddrop.RunConfig(rounds=1, data=feddrop.Data(devices=4, train_limit=80), radio=radio)
        (record,) = feddrop.Run(config, tmp_path / objective)
        rates[objective] = [round(device.rate, 6) for device in record.devices]
        assert all(d.latency_s <= radio.deadline_s * (1 + 1e-9) for d in record.devices if d.status == "ok")
    assert rates["linear"] != rates["inverse"]
    assert feddrop.Radio(objective="linear", control=("rate", "share", "power")).chooses == ("power",)
    with pytest.raises(ConfigError, match="no effect"):
        feddrop.Radio(objective="linear", scheme="equal")
