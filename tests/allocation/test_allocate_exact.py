"""The exact solver against a reference in extended precision, a proof by duality, brute force, and CVXPY."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest

from feddrop.allocation import Problem, Random, Status, SubbandProblem, allocate
from feddrop.allocation.feasible import settle
from support.allocate_cases import (
    DEVICES,
    KINDS,
    dual_bound,
    least_share,
    one,
    problems,
    reference,
    smallest_z,
    subband,
)

ROUNDS = dict.fromkeys(DEVICES, 150) | {100: 40, 300: 15}


def assert_feasible(result) -> None:
    """Every constraint, as it stands: no tolerance."""
    p, active = result.problem, result.active
    assert (result.latency_s <= p.deadline_s).all()
    assert (result.energy_j <= p.budget_j).all()
    assert (result.share.sum(axis=-1) <= 1).all()
    assert (result.share[active] > 0).all()
    assert (result.share[~active] == 0).all()
    assert (result.rate >= 0).all()
    assert (result.rate <= np.where(active, p.max_rate, 1)).all()


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_exact_is_feasible_and_optimal_to_1e_9(kind: str, devices: int) -> None:
    p = problems(kind, devices, ROUNDS[devices])
    result = allocate(p)
    assert_feasible(result)
    assert result.status is Status.OPTIMAL
    assert result.residual <= 1e-9
    assert np.abs(result.objective / reference(p) - 1).max() <= 1e-9
    assert (result.objective / dual_bound(p, result.price) - 1).max() <= 1e-9
    assert result.iterations <= 30


def test_a_batch_is_solved_as_its_rounds_are() -> None:
    for kind in KINDS:
        p = problems(kind, 5, 20)
        together = allocate(p)
        for row in range(20):
            alone = allocate(one(p, row))
            np.testing.assert_allclose(alone.rate, together.rate[row], rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(alone.share, together.share[row], rtol=1e-9)
            np.testing.assert_allclose(alone.objective, together.objective[row], rtol=1e-13)


def test_a_mixed_batch_may_hold_loose_tight_and_ordinary_rounds() -> None:
    parts = [problems(kind, 10, 5) for kind in KINDS]
    names = ("weight", "comm_s", "compute_s", "upload_j", "compute_j", "deadline_s", "budget_j", "max_rate")
    whole = Problem(
        **{n: np.concatenate([np.broadcast_to(getattr(q, n), q.shape) for q in parts]) for n in names},
    )
    result = allocate(whole)
    assert result.residual <= 1e-9
    np.testing.assert_allclose(result.objective, np.concatenate([allocate(q).objective for q in parts]), rtol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_split_is_better_by_brute_force(kind: str) -> None:
    """Two devices: every split of a fine grid, rates as low as they may be."""
    p = problems(kind, 2, 30, seed=1)
    first = np.linspace(0, 1, 20_001)[1:-1]
    result = allocate(p)
    for row in range(30):
        q = one(p, row)
        share = np.stack([first, 1 - first], axis=-1)
        z = smallest_z(q, share)
        values = np.where((z <= 1 / (1 - q.max_rate)).all(axis=-1), (q.weight * z).sum(axis=-1), np.inf)
        assert values.min() >= result.objective[row] * (1 - 1e-12)
        if np.isfinite(values.min()):
            assert values.min() <= result.objective[row] * 1.01


def test_no_random_split_is_better() -> None:
    p = problems("mixed", 30, 50)
    best = allocate(p).objective
    for seed in range(20):
        assert (allocate(p, Random(seed)).objective >= best * (1 - 1e-12)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_cvxpy_agrees(kind: str) -> None:
    for devices in (1, 3, 10, 40):
        p = problems(kind, devices, 3, seed=2)
        for row in range(3):
            q = one(p, row)
            result = allocate(q)
            # Shares in units of ours: badly scaled, Clarabel says "optimal" with an objective that is off by 1e-5.
            z, units = cp.Variable(devices), cp.Variable(devices)
            inverse = cp.multiply(1 / result.share, cp.inv_pos(units))
            rules = [
                cp.multiply(q.comm_s / q.deadline_s, inverse) + q.compute_s / q.deadline_s <= z,
                cp.multiply(q.upload_j / q.budget_j, inverse) + q.compute_j / q.budget_j <= z,
                z >= 1,
                z <= 1 / (1 - q.max_rate),
                result.share @ units <= 1,
            ]
            peer = cp.Problem(cp.Minimize(q.weight @ z), rules)
            peer.solve(solver=cp.CLARABEL)
            assert peer.status == "optimal"
            # It stops at 1e-8 in each cone, which is 1e-6 in the objective; an error in the band is worth its price.
            assert result.objective == pytest.approx(peer.value, rel=1e-6 * (1 + float(result.price[0])))


@pytest.mark.parametrize("devices", [1, 2, 3, 10, 100])
def test_subband_is_feasible_and_stationary(devices: int) -> None:
    p, _ = settle(subband(devices, 60), "stretch")
    result = allocate(p)
    assert_feasible(result)
    assert result.residual <= 1e-9
    if devices == 100:
        assert set(result.binding.ravel()) == {"deadline", "energy", "deadline+energy", "rate cap"}


def test_subband_shares_never_fill_more_than_the_band() -> None:
    """Far below the noise what band is worth is known to 1e-14 only, and so are the shares."""
    rng = np.random.default_rng(0)
    for devices in (2, 3):
        shape = (300, devices)
        snr = 10.0 ** rng.uniform(-2.5, -1, (300, 1)) / devices * rng.uniform(0.5, 2.0, shape)
        p = SubbandProblem(
            weight=rng.dirichlet(np.full(devices, 2.0), 300),
            push_s=snr * 0.1 * rng.uniform(0.5, 2.0, shape),
            pull_s=snr * rng.uniform(0.2, 2.0, shape),
            snr_down=snr * rng.uniform(1.0, 10.0, shape),
            snr_up=snr,
            tx_power_w=1.0,
            compute_s=rng.uniform(0.1, 1.0, shape),
            compute_j=0.1,
            deadline_s=1.0,
            budget_j=np.where(rng.random(shape) < 0.5, np.inf, rng.uniform(0.5, 2.0, shape)),
            max_rate=0.9,
        )
        result = allocate(p, policy="leave-out")
        assert_feasible(result)
        assert result.residual <= 1e-9


def test_subband_links_and_their_derivatives() -> None:
    """Against 50 digits, from a signal far below the noise to one far above it."""
    from mpmath import diff, log, mp, mpf

    from feddrop.allocation.subband import link

    mp.dps = 50
    for snr in 10.0 ** np.arange(-8, 9):

        def log_cost(x, snr=snr):
            share = mp.e**x
            return log(mp.ln(2) / (share * mp.log1p(mpf(snr) / share)))

        x = mpf(-2)
        found = link(np.asarray(snr), np.exp(np.asarray(-2.0)))
        assert float(found.cost) == pytest.approx(float(mp.e ** log_cost(x)), rel=1e-14)
        assert float(found.fall) == pytest.approx(float(-diff(log_cost, x)), rel=1e-13)
        assert float(found.bend) == pytest.approx(float(-diff(log_cost, x, 2)), rel=1e-6)


def test_subband_is_optimal_by_brute_force() -> None:
    p, _ = settle(subband(2, 30), "stretch")
    result = allocate(p)
    first = np.linspace(0, 1, 4001)[1:-1, None, None]
    share = np.concatenate([first, 1 - first], axis=-1) * np.ones((1, 30, 1))
    z = smallest_z(p, share)
    values = np.where((z <= 10).all(axis=-1), (p.weight * z).sum(axis=-1), np.inf).min(axis=0)
    assert (values >= result.objective * (1 - 1e-12)).all()
    assert np.median(values[np.isfinite(values)] / result.objective[np.isfinite(values)]) < 1 + 1e-4


def test_subband_agrees_with_cvxpy() -> None:
    """ρ log2(1 + S/ρ) is a relative entropy, which cones can say."""
    compared = 0
    for seed in range(12):
        p, _ = settle(subband(4, 1, seed=seed), "stretch")
        if p.snr_up.min() < 1:
            continue  # far below the noise, the data rate hardly depends on the share, and cones lose their digits
        compared += 1
        z, share = cp.Variable(4), cp.Variable(4)

        def inverse_rate(snr, share=share):
            return cp.inv_pos(-cp.rel_entr(share, share + snr[0]) / np.log(2))

        up = inverse_rate(p.snr_up)
        seconds = cp.multiply(p.push_s[0], inverse_rate(p.snr_down)) + cp.multiply(p.pull_s[0], up)
        deadline = float(np.ravel(p.deadline_s)[0])
        rules = [
            (seconds + p.compute_s[0]) / deadline <= z,
            cp.multiply(p.tx_power_w[0] * p.pull_s[0] / p.budget_j[0], up) + p.compute_j[0] / p.budget_j[0] <= z,
            z >= 1,
            z <= 10,
            cp.sum(share) <= 1,
        ]
        peer = cp.Problem(cp.Minimize(p.weight[0] @ z), rules)
        peer.solve(solver=cp.CLARABEL)
        assert allocate(p).objective[0] == pytest.approx(peer.value, rel=1e-5)
    assert compared >= 6


def test_subband_with_a_wide_band_is_the_flat_problem() -> None:
    """Where log2(1 + S/ρ) hardly depends on ρ, the flat problem at the device's own efficiency has the same optimum."""
    p, _ = settle(subband(10, 5), "stretch")
    result = allocate(p)
    down, up = np.log2(1 + p.snr_down / result.share), np.log2(1 + p.snr_up / result.share)
    pull = p.pull_s / up
    flat = Problem(
        weight=p.weight,
        comm_s=p.push_s / down + pull,
        compute_s=p.compute_s,
        upload_j=p.tx_power_w * pull,
        compute_j=p.compute_j,
        deadline_s=p.deadline_s * (1 + 1e-12),
        budget_j=p.budget_j * (1 + 1e-12),
        max_rate=p.max_rate,
    )
    # The same shares are feasible in both, at the same rates: the flat optimum cannot be worse.
    assert (allocate(flat).objective <= result.objective * (1 + 1e-9)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_passes_do_not_grow_with_the_devices(kind):
    """Enough devices for several blocks, and for a first guess from a sample of them."""
    small, large = (allocate(one(problems(kind, k, 1), 0)) for k in (10, 300_000))
    assert large.iterations <= small.iterations + 8
    assert large.residual <= 1e-9
    assert_feasible(large)


def test_costs_that_spread_over_many_orders_of_magnitude():
    rng = np.random.default_rng(0)
    for _ in range(300):
        devices = int(rng.integers(2, 60))
        spread = rng.uniform(0, 8)

        def wild(devices=devices, spread=spread):
            return np.exp(spread * rng.standard_normal(devices))

        p = Problem(
            weight=wild(),
            comm_s=wild(),
            compute_s=rng.uniform(0, 3, devices),
            upload_j=wild(),
            compute_j=rng.uniform(0, 3, devices),
            deadline_s=1.0,
            budget_j=1.0,
            max_rate=0.9,
        )
        scale = rng.choice([1.01, 2.0, 100.0]) * least_share(p).sum()
        p = replace(p, comm_s=p.comm_s / scale, upload_j=p.upload_j / scale)
        result = allocate(p)
        assert_feasible(result)
        assert result.iterations <= 40
        batch = replace(p, **{name: np.atleast_2d(getattr(p, name)) for name in Problem.numbers})
        # A price in the billions makes rounding in the band worth that much.
        slack = 1e-9 + 1e-13 * float(result.price[0]) / result.objective
        assert result.objective / dual_bound(batch, result.price[None])[0] - 1 <= slack


def test_a_stretched_round_of_extreme_numbers_is_optimal_too() -> None:
    """Shares from 5e-12 to 1 of the band: the spare band after a stretch was rounding, and decided the first rate."""
    p = Problem(
        weight=[0.9679, 3.3e-17, 5.9e-11, 0.0321, 2.7e-12],
        comm_s=[6.5e-7, 7.1e-4, 5.2e-4, 0.0285, 1.292e5],
        compute_s=[0.185, 0.939, 0.365, 1.314, 0.52],
        upload_j=0.0,
        compute_j=0.0,
        deadline_s=1.0,
        budget_j=np.inf,
        max_rate=0.1,
    )
    found, order = allocate(p, policy="stretch"), [4, 2, 0, 1, 3]
    turned = replace(p, **{name: getattr(p, name)[order] for name in ("weight", "comm_s", "compute_s")})
    assert_feasible(found)
    assert found.residual <= 1e-7
    assert allocate(turned, policy="stretch").objective == pytest.approx(found.objective, rel=1e-9)


@pytest.mark.parametrize("theta", [0.999, 1 - 1e-6, 1 - 1e-9])
def test_deadlines_and_budgets_hold_at_rates_next_to_1(theta: float) -> None:
    """There the rounding of a rate is more of what is kept than deadlines and budgets have to spare."""
    p = replace(problems("mixed", 30, 20, seed=5), max_rate=np.asarray(theta))
    p = replace(p, comm_s=p.comm_s / (1 - theta) / 30, upload_j=p.upload_j / (1 - theta) / 30)
    for scheme in ("exact", "equal", "random"):
        found = allocate(p, scheme, policy="leave-out")
        assert (found.rate[found.active] > 0.99).any()
        assert_feasible(found)
