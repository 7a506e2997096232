"""What every allocation scheme guarantees, and what happens if nothing meets the constraints."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddrop import allocation as package
from feddrop.allocation import (
    SCHEMES,
    Common,
    ConstantSteps,
    Equal,
    Exact,
    FirstMultipliers,
    Fixed,
    Ideal,
    NoDropout,
    PrimalDual,
    Problem,
    Random,
    RelativeSteps,
    Status,
    SubbandProblem,
    allocate,
    diagnose,
    scheme_named,
)
from feddrop.config import radio
from feddrop.errors import ConfigError, InfeasibleError
from support.allocate_cases import KINDS, dual_bound, least_share, one, problems, smallest_z, subband

SIMPLE = {
    "weight": [0.25, 0.25, 0.5],
    "comm_s": [0.2, 0.3, 0.1],
    "compute_s": [0.5, 0.2, 0.4],
    "upload_j": [0.1, 0.1, 0.2],
    "compute_j": [1.0, 2.0, 1.0],
    "deadline_s": 1.0,
    "budget_j": [5.0, 5.0, 5.0],
    "max_rate": 0.9,
}


def call(problem, scheme, **more):
    """Allocate by any scheme, with the settings that it needs."""
    rate = problem.max_rate * 0.99 if scheme == "fixed" else None
    return allocate(problem, scheme_named(scheme, seed=3, rate=rate), **more)


def test_schemes_are_objects_with_names():
    """The table is the one of the configuration; an object and its name give the same allocation."""
    assert tuple(SCHEMES) == radio.SCHEMES[: len(SCHEMES)]  # the others are functions
    assert list(SCHEMES.values()) == [Exact, PrimalDual, Equal, Random, Common, Fixed, NoDropout, Ideal]
    p = Problem(**SIMPLE)
    for name, kind in SCHEMES.items():
        found = allocate(p, kind(0.5) if kind is Fixed else kind())
        assert found.scheme == kind.name == name
        assert repr(kind(0.5) if kind is Fixed else kind()).startswith(kind.__name__)
        if kind is not Fixed:
            np.testing.assert_array_equal(found.rate, allocate(p, name).rate)


def test_public_names():
    assert all(hasattr(package, name) for name in package.__all__)


@pytest.mark.parametrize(
    "make", [lambda: problems("latency", 7, 40), lambda: replace(subband(7, 40), budget_j=np.asarray(np.inf))]
)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_contract(scheme, make):
    """Feasible to the last bit, rates the lowest for the shares, nothing better than exact."""
    p = make()
    if isinstance(p, SubbandProblem) and scheme == "primal-dual":
        with pytest.raises(ConfigError, match="use the scheme 'exact'"):
            allocate(p, scheme)
        return
    result = call(p, scheme, policy="stretch")
    assert result.scheme == scheme
    assert result.rate.shape == result.share.shape == result.binding.shape == p.shape
    assert np.shape(result.objective) == (40,)
    assert result.active.all()
    assert not result.left_out.any()
    np.testing.assert_allclose(np.sum(p.weight / (1 - result.rate), axis=-1), result.objective)
    if scheme == "ideal":
        assert result.status is Status.IDEAL
        assert (result.rate == 0).all()
        return
    q = result.problem
    assert (result.latency_s <= q.deadline_s).all()
    assert (result.energy_j <= q.budget_j).all()
    assert (result.share.sum(axis=-1) <= 1).all()
    assert (result.share > 0).all()
    assert (result.rate <= p.max_rate).all()
    if scheme not in ("fixed", "no-dropout"):
        np.testing.assert_allclose(1 / (1 - result.rate), smallest_z(q, result.share), rtol=1e-9)
    assert (allocate(q, policy="stretch").objective <= np.asarray(result.objective) * (1 + 1e-9)).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_device_without_samples_still_gets_what_it_needs(scheme):
    p = Problem(**(SIMPLE | {"weight": [0.0, 0.5, 0.5]}))
    result = call(p, scheme)
    assert (result.share > 0).all()
    if scheme != "ideal":
        assert (result.latency_s <= 1.0).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_absent_devices_have_no_part(scheme):
    here = np.array([True, False, True])
    result = call(Problem(**SIMPLE, present=here), scheme)
    assert list(result.active) == list(here)
    assert result.share[1] == 0
    assert result.rate[1] == 1
    assert result.latency_s[1] == result.energy_j[1] == 0
    assert result.binding[1] == "absent"
    names = ("weight", "comm_s", "compute_s", "upload_j", "compute_j", "budget_j")
    alone = Problem(**{k: np.asarray(v)[here] if k in names else v for k, v in SIMPLE.items()})
    if scheme != "random":
        np.testing.assert_allclose(result.share[here], call(alone, scheme).share, rtol=1e-6)


# Without dropout, and devices that are left out


@pytest.mark.parametrize(
    "make", [lambda: problems("latency", 7, 40, seed=2), lambda: replace(subband(7, 40), budget_j=np.asarray(np.inf))]
)
def test_no_dropout_stays_within_the_band_where_the_ideal_does_not(make):
    p = make()
    tight = replace(
        p, deadline_s=0.5 * allocate(replace(p, max_rate=np.asarray(0.0)), policy="stretch").problem.deadline_s
    )
    ideal, inside = allocate(tight, "ideal"), allocate(tight, "no-dropout", policy="stretch")
    assert np.mean(ideal.share.sum(axis=-1) > 1.5) > 0.4  # many others are late even with the whole band
    assert ideal.status.startswith("ideal: ignores the band")
    assert (ideal.rate == 0).all()
    assert (inside.share.sum(axis=-1) <= 1).all()
    assert (inside.rate == 0).all()
    assert inside.status is Status.NO_DROPOUT
    # The round takes as long as the shortest one in which nobody drops anything: the fixed rate 0 is the slow twin.
    twin = allocate(tight, Fixed(0.0), policy="stretch")
    np.testing.assert_array_equal(inside.share, twin.share)
    assert (inside.latency_s.max(axis=-1) > tight.deadline_s.ravel()).all()
    np.testing.assert_allclose(inside.latency_s.max(axis=-1), inside.problem.deadline_s.ravel(), rtol=1e-6)


def test_no_dropout_follows_the_policy():
    p = Problem(**(SIMPLE | {"deadline_s": 0.8}))
    with pytest.raises(InfeasibleError, match=r"Without dropout, device 0 needs 0\.667 of the band") as caught:
        allocate(p, "no-dropout")
    assert "max_rate" not in str(caught.value)
    assert "choose the policy 'leave-out' or 'stretch'" in str(caught.value)
    fewer = allocate(p, NoDropout(), policy="leave-out")
    assert fewer.left_out.sum() == 1
    assert (fewer.rate[fewer.active] == 0).all()
    assert (fewer.latency_s <= 0.8).all()
    assert fewer.problem.max_rate == 0.9
    poor = Problem(**(SIMPLE | {"budget_j": [5.0, 1.0, 5.0]}))  # computing alone takes 2 J: no deadline helps
    with pytest.raises(InfeasibleError, match="device 1 cannot meet its energy budget with any share"):
        allocate(poor, "no-dropout", policy="stretch")


def test_the_old_name_of_the_ideal_says_what_may_be_meant():
    with pytest.raises(ConfigError, match=r"scheme is 'none'.* Did you mean 'no-dropout' or 'ideal'"):
        allocate(Problem(**SIMPLE), "none")


def crowded(seed=0):
    """A hundred devices of unequal costs in a band that is too narrow for all, even at the highest rate."""
    random = np.random.default_rng(seed)
    return Problem(
        weight=np.full(100, 0.01),
        comm_s=random.lognormal(0.0, 1.0, 100),
        compute_s=0.1,
        upload_j=0.0,
        compute_j=0.0,
        deadline_s=7.0,
        budget_j=np.inf,
        max_rate=0.9,
    )


def test_leaving_out_more_devices_never_looks_better():
    """The objective covers those who take part, so the equal split looks better: it leaves out three times as many."""
    p = crowded()
    best, equal = allocate(p, policy="leave-out"), allocate(p, "equal", policy="leave-out")
    assert 0 < best.left_out.sum() < equal.left_out.sum()
    assert equal.objective < best.objective
    assert best.charged_objective < equal.charged_objective
    assert best.charged_objective == pytest.approx(best.objective + 10 * best.left_out.sum())


@pytest.mark.parametrize("max_rate", [0.0, 0.5, 0.9])
def test_the_charged_objective_goes_by_the_number_left_out_first(max_rate):
    found = []
    for deadline_s in (3.0, 5.0, 7.0, 9.0):
        p = replace(crowded(1), deadline_s=np.asarray(deadline_s), max_rate=np.asarray(max_rate))
        for scheme in ("exact", "equal", "random", "no-dropout"):
            found.append(allocate(p, scheme, policy="leave-out"))
    assert len({int(each.left_out.sum()) for each in found}) > 5
    for fewer, more in permutations(found, 2):
        if fewer.left_out.sum() < more.left_out.sum():
            assert fewer.charged_objective < more.charged_objective


def test_every_round_of_a_batch_is_charged_for_its_own_absentees():
    batch = replace(crowded(), deadline_s=np.array([[7.0], [5.0], [200.0]]))
    found = allocate(batch, policy="leave-out")
    absent = found.left_out.sum(axis=-1)
    assert absent[1] > absent[0] > absent[2] == 0
    np.testing.assert_allclose(found.charged_objective, found.objective + 10 * absent)
    assert found.charged_objective[2] == found.objective[2]
    assert allocate(crowded(), policy="leave-out").charged_objective == pytest.approx(found.charged_objective[0])


# Primal-dual: thousands of problems, in batches


@pytest.mark.parametrize("devices", [1, 2, 5, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_primal_dual_is_within_1e_4(kind, devices):
    p = problems(kind, devices, 100, seed=5)
    result = allocate(p, "primal-dual")
    assert result.status is Status.CONVERGED
    best = allocate(p)
    assert (result.objective <= np.asarray(best.objective) * (1 + 1e-4)).all()
    assert (result.objective >= dual_bound(p, best.price) * (1 - 1e-9)).all()
    assert (result.latency_s <= p.deadline_s).all()
    assert (result.energy_j <= p.budget_j).all()


def test_primal_dual_history_and_limit():
    p = one(problems("mixed", 10, 1), 0)
    result = allocate(p, "primal-dual")
    gaps = result.history[:, 1]
    assert (np.diff(gaps) <= 1e-12).all()
    assert gaps[-1] <= 5e-5
    assert result.history[-1, 0] == result.iterations
    short = allocate(p, PrimalDual(max_passes=3))
    assert short.status is Status.UNCONVERGED
    assert short.iterations == 3
    assert (short.latency_s <= p.deadline_s).all()


@pytest.mark.parametrize("kind", ["latency", "mixed"])
def test_primal_dual_with_other_settings(kind):
    """Tolerance, step sizes and first multipliers lead to the same optimum by another way."""
    p = one(problems(kind, 6, 1, seed=3), 0)
    best, usual = allocate(p).objective, allocate(p, PrimalDual())
    assert allocate(p, PrimalDual(tolerance=1e-7)).objective == pytest.approx(best, rel=1e-7)
    small = allocate(p, PrimalDual(steps=RelativeSteps(band=0.5, deadline=0.5, energy=0.5)))
    given = allocate(p, PrimalDual(start=FirstMultipliers(band=1.0, deadline=p.weight, energy=0.1)))
    for found in (small, given):
        assert found.status is Status.CONVERGED
        assert found.iterations != usual.iterations
        assert found.objective == pytest.approx(best, rel=1e-4)
        assert (found.latency_s <= p.deadline_s).all()
    frozen = allocate(p, PrimalDual(steps=lambda at: (at.mu, at.lam, at.nu), max_passes=20))
    assert frozen.status is Status.UNCONVERGED
    assert frozen.history[0, 2] == pytest.approx(frozen.history[1, 2], rel=0.1)
    for decay in (0.0, 0.1):  # the paper's steps, which converge for one kind and circle the optimum for the other
        steps = ConstantSteps(band=0.05, deadline=0.01, energy=0.01, decay=decay)
        paper = allocate(p, PrimalDual(steps=steps, max_passes=2000))
        assert (paper.status is Status.CONVERGED) == (kind == "mixed")
        assert paper.objective == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tolerance": 0.0}, "tolerance is 0.0"),
        ({"max_passes": 0}, "max_passes 0"),
        ({"start": FirstMultipliers(0.0, 1.0, 1.0)}, "band of the first multipliers is 0.0; it must be positive"),
        ({"start": FirstMultipliers(1.0, [1.0, 2.0], 1.0)}, r"deadline of the first multipliers .* shape \[3\]"),
        ({"start": FirstMultipliers(1.0, 1.0, "much")}, "energy of the first multipliers is much"),
    ],
)
def test_settings_of_primal_dual_that_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        allocate(Problem(**SIMPLE), PrimalDual(**settings))


def test_a_warm_start_saves_passes():
    cold = warm = 0
    for seed in range(20):
        p = one(problems("latency", 10, 1, seed=seed), 0)
        rng = np.random.default_rng(seed)
        later = replace(p, comm_s=p.comm_s * rng.uniform(0.95, 1.05, 10))
        cold += allocate(later, "primal-dual").iterations
        again = allocate(later, "primal-dual", warm=allocate(p, "primal-dual"))
        warm += again.iterations
        assert again.objective == pytest.approx(allocate(later).objective, rel=1e-4)
    assert warm < 0.7 * cold


def test_a_warm_start_from_a_round_without_a_price_does_no_harm():
    loose, tight = one(problems("loose", 10, 1), 0), one(problems("latency", 10, 1), 0)
    before = allocate(loose, "primal-dual")
    assert (before.rate == 0).all()
    after = allocate(tight, "primal-dual", warm=before)
    assert after.iterations <= 4 * allocate(tight, "primal-dual").iterations
    assert after.objective == pytest.approx(allocate(tight).objective, rel=1e-4)
    assert allocate(loose, "primal-dual", warm=allocate(loose)).status is Status.CONVERGED


def test_a_warm_start_of_another_shape_is_refused():
    p = Problem(**SIMPLE)
    with pytest.raises(ConfigError, match=r"is by 'exact', shape \[7\]; it must .* shape \[3\]"):
        allocate(p, "primal-dual", warm=allocate(one(problems("mixed", 7, 1), 0)))
    with pytest.raises(ConfigError, match="'equal'"):
        allocate(p, "primal-dual", warm=allocate(p, "equal"))


# Multipliers, residual, binding


def test_the_residual_sees_what_is_not_optimal():
    p = one(problems("mixed", 5, 1, seed=4), 0)
    best = allocate(p)
    assert best.residual < 1e-12
    off = replace(best, share=best.share * np.array([1.001, 0.999, 1, 1, 1]))
    assert replace(off, rate=1 - 1 / smallest_z(p, off.share)).residual > 1e-5
    assert replace(best, price=best.price * 1.01).residual > 1e-4
    assert replace(best, rate=best.rate * 0.99).residual > 1e-4


def test_the_price_is_what_more_band_is_worth():
    for kind in ("mixed", "cap", "latency"):
        p = one(problems(kind, 8, 1, seed=6), 0)
        result = allocate(p)
        step = 1e-5
        wider = allocate(replace(p, comm_s=p.comm_s / (1 + step), upload_j=p.upload_j / (1 + step)))
        narrower = allocate(replace(p, comm_s=p.comm_s * (1 + step), upload_j=p.upload_j * (1 + step)))
        slope = (narrower.objective - wider.objective) / (2 * step)
        assert float(result.price[0]) == pytest.approx(slope, rel=1e-3)


def test_multipliers_say_what_seconds_and_joules_are_worth():
    p = Problem(**(SIMPLE | {"budget_j": [1.2, 1.8, 1.5]}))
    result = allocate(p)
    step = 1e-6
    for name, values in (("deadline_s", result.multipliers.deadline), ("budget_j", result.multipliers.energy)):
        for k in range(3):
            more = np.broadcast_to(getattr(p, name), (3,)) * (1 + step * (np.arange(3) == k))
            gain = result.objective - allocate(replace(p, **{name: more})).objective
            z = 1 / (1 - result.rate[k])
            assert gain / step == pytest.approx(values[k] * z, rel=1e-3, abs=1e-6)


def test_binding():
    held = set()
    for kind in KINDS:
        p = problems(kind, 10, 100)
        result = allocate(p)
        words = result.binding
        held |= set(words.ravel())
        late = np.isclose(result.latency_s, p.deadline_s, rtol=1e-8)
        spent = np.isclose(result.energy_j, p.budget_j, rtol=1e-8)
        free = words != "rate cap"
        assert (np.char.find(words, "deadline")[free] >= 0).tolist() == late[free].tolist()
        assert (np.char.find(words, "energy")[free] >= 0).tolist() == spent[free].tolist()
        assert np.isclose(result.rate, p.max_rate)[~free].all()
    assert held == {"deadline", "energy", "deadline+energy", "rate cap", "none"}


def test_without_price_all_drop_nothing_and_the_band_is_used_up():
    result = allocate(problems("loose", 10, 20))
    assert (result.price == 0).all()
    assert result.share.sum(axis=-1) == pytest.approx(1.0)


# Infeasible problems


def overloaded(devices=6, load=1.7, seed=0):
    return one(problems("mixed", devices, 1, seed=seed, load=load), 0)


@pytest.mark.parametrize("scheme", ["exact", "primal-dual", "equal", "random", "fixed"])
def test_infeasible_is_an_error_by_default(scheme):
    with pytest.raises(InfeasibleError) as caught:
        call(overloaded(), scheme)
    text = str(caught.value)
    assert re.search(r"device \d needs 0\.\d+ of the band to meet its (deadline|energy)", text)
    assert re.search(r"Smallest deadline: ([\d.]+ s|none is enough)\.", text)
    assert re.search(r"Smallest bandwidth: [\d.]+ times", text)


def test_what_the_error_suggests_is_just_enough():
    for seed in range(30):
        p = one(problems("latency", 6, 1, seed=seed, load=1.5), 0)
        short = diagnose(p)
        assert short.load == pytest.approx(1.5)
        assert set(short.constraints) == {"deadline"}
        most = sorted(least_share(p), reverse=True)[: len(short.devices)]
        assert short.least_share == pytest.approx(most)
        text = str(short)
        printed = float(re.search(r"deadline: ([\d.e+]+) s", text)[1])
        assert diagnose(replace(p, deadline_s=np.asarray(printed))) is None
        assert diagnose(replace(p, deadline_s=np.asarray(short.deadline_s * (1 - 1e-9)))) is not None
        wider = float(re.search(r"bandwidth: ([\d.]+) times", text)[1])
        assert diagnose(replace(p, comm_s=p.comm_s / wider, upload_j=p.upload_j / wider)) is None


def test_who_needs_more_than_an_equal_part_is_named():
    for seed in range(30):
        p = one(problems("latency", 6, 1, seed=seed, load=1.05), 0)
        short = diagnose(p, equal=True)
        assert set(short.devices) <= set(np.flatnonzero(least_share(p) > 1 / 6))
        assert min(short.least_share) > 1 / 6


def test_who_cannot_take_part_at_all_is_named_with_the_reason():
    slow = Problem(**(SIMPLE | {"compute_s": [0.5, 20.0, 0.4]}))
    assert str(diagnose(slow)).count("device 1 cannot meet its deadline with any share") == 1
    assert diagnose(slow).devices == [1]
    assert diagnose(slow).load == np.inf
    assert np.isfinite(diagnose(slow).deadline_s)
    poor = Problem(**(SIMPLE | {"budget_j": [5.0, 5.0, 0.01]}))
    assert diagnose(poor).constraints == ["energy"]
    assert diagnose(poor).deadline_s == np.inf
    broke = Problem(**(SIMPLE | {"budget_j": [5.0, 5.0, -1.0]}))
    assert "device 2 cannot meet its energy budget with any share" in str(diagnose(broke))
    with pytest.raises(InfeasibleError, match="Smallest deadline: none is enough"):
        allocate(broke, policy="stretch")


def advice(problem, scheme="exact", **more):
    with pytest.raises(InfeasibleError) as caught:
        allocate(problem, scheme, **more)
    return str(caught.value).rsplit(". ", 1)[1]


def test_the_advice_is_what_helps():
    tight = Problem(**(SIMPLE | {"deadline_s": 0.07}))
    assert (
        advice(tight) == "Raise the deadline, the bandwidth or max_rate, or choose the policy 'leave-out' or 'stretch'."
    )
    assert advice(tight, Fixed(0.9)).startswith("Raise the deadline, the bandwidth or the rate, or")
    late = Problem(**(SIMPLE | {"deadline_s": 1e-3}))
    assert advice(late) == "Raise the deadline or max_rate, or choose the policy 'stretch'."
    assert advice(late, policy="leave-out") == advice(late)
    poor = Problem(**(SIMPLE | {"budget_j": [5.0, 5.0, 0.01]}))
    for policy in ("error", "stretch"):
        assert advice(poor, policy=policy) == "Raise the energy budget or max_rate, or choose the policy 'leave-out'."
    broke = Problem(**(SIMPLE | {"budget_j": -1.0}))
    for policy in ("error", "leave-out", "stretch"):
        assert advice(broke, policy=policy) == "Raise the energy budget."
    both = Problem(**(SIMPLE | {"deadline_s": 1e-3, "budget_j": [0.01, 5.0, 5.0]}))
    assert advice(both) == "Raise max_rate or both the deadline and the energy budget."


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("make", [lambda seed: overloaded(seed=seed), lambda seed: subband(5, 1, seed=seed)])
def test_the_budget_the_error_suggests_is_just_enough(make, equal):
    for seed in range(10):
        p = make(seed)
        p = replace(p, deadline_s=np.asarray(1e9), budget_j=p.budget_j * 1e-3)
        short = diagnose(p, equal=equal)
        printed = float(re.search(r"energy budget: ([\d.e+-]+) J", str(short))[1])
        assert diagnose(replace(p, budget_j=np.maximum(p.budget_j, printed)), equal=equal) is None
        less = np.maximum(p.budget_j, short.budget_j * (1 - 1e-9))
        assert diagnose(replace(p, budget_j=less), equal=equal) is not None


def test_a_share_above_the_band_is_so_many_times_the_band():
    wide = Problem(**(SIMPLE | {"comm_s": [0.2, 80.0, 0.1], "compute_s": 0.0}))
    assert "device 1 needs 8 times the band to meet its deadline." in str(diagnose(wide))
    whole = Problem(**(SIMPLE | {"comm_s": [0.2, 10.0, 0.1], "compute_s": 0.0}))
    assert "device 1 needs about the whole band to meet its deadline;" in str(diagnose(whole))


def test_the_error_holds_the_facts_and_names_are_put_in_last():
    with pytest.raises(InfeasibleError) as caught:
        allocate(Problem(**(SIMPLE | {"compute_s": [20.0, 20.0, 0.4]})))
    short = caught.value.args[0]
    assert short.devices == [0, 1]
    assert "device 'phone' cannot" in short.text(["phone", "", ""])
    assert "device 1 cannot" in short.text(["phone", "", ""])


@pytest.mark.parametrize("equal", [False, True])
def test_leave_out_leaves_out_the_fewest(equal):
    """Against all subsets."""
    for seed in range(40):
        p = overloaded(load=2.5, seed=seed)
        result = allocate(p, "equal" if equal else "exact", policy="leave-out")
        least = least_share(p)

        def fits(keep, least=least):
            share = least[list(keep)]
            return share.max() * len(keep) <= 1 if equal else share.sum() <= 1

        most = max(n for n in range(1, 7) if any(fits(keep) for keep in combinations(range(6), n)))
        assert result.active.sum() == most
        assert (result.left_out == ~result.active).all()
        assert (result.binding[~result.active] == "left out").all()
        assert (result.latency_s <= p.deadline_s).all()
        weight = p.weight[result.active]
        assert result.objective == pytest.approx(np.sum(weight / (1 - result.rate[result.active])) / weight.sum())


@pytest.mark.parametrize("scheme", ["exact", "equal", "random", "fixed"])
def test_stretch_takes_the_smallest_deadline(scheme):
    for seed in range(10):
        p = one(problems("latency", 6, 1, seed=seed, load=1.7), 0)
        result = call(p, scheme, policy="stretch")
        assert result.problem.deadline_s > p.deadline_s
        assert (result.latency_s <= result.problem.deadline_s).all()
        assert result.share.sum() <= 1
        with pytest.raises(InfeasibleError):
            call(replace(p, deadline_s=result.problem.deadline_s * (1 - 1e-9)), scheme)


def test_policies_leave_feasible_rounds_of_a_batch_alone():
    good, bad = problems("mixed", 6, 3), problems("mixed", 6, 3, load=1.5)
    names = ("weight", "comm_s", "compute_s", "upload_j", "compute_j", "deadline_s", "budget_j", "max_rate")
    both = Problem(
        **{n: np.concatenate([np.broadcast_to(getattr(q, n), q.shape) for q in (good, bad)]) for n in names},
    )
    with pytest.raises(InfeasibleError, match=r"^Round 3 of the batch"):
        allocate(both)
    left = allocate(both, policy="leave-out")
    assert left.active[:3].all()
    assert left.left_out[3:].any(axis=-1).all()
    np.testing.assert_allclose(left.objective[:3], allocate(good).objective)
    late = problems("latency", 6, 3, load=1.5)
    assert (allocate(late, policy="stretch").problem.deadline_s > 1.0).all()
    stuck = replace(late, budget_j=np.array([[np.inf], [1e-9], [np.inf]]))
    with pytest.raises(InfeasibleError, match=r"^Round 1 of the batch.*Smallest deadline: none is enough"):
        allocate(stuck, policy="stretch")


def test_a_subband_round_can_be_infeasible_too():
    p = replace(subband(5, 1), deadline_s=np.asarray(1e-3))
    with pytest.raises(InfeasibleError, match="meet its deadline"):
        allocate(p)
    longer = allocate(p, policy="stretch")
    assert (longer.latency_s <= longer.problem.deadline_s).all()
    assert longer.share.sum() <= 1


def test_an_exactly_tight_problem_is_feasible():
    p = Problem(
        weight=[0.5, 0.5],
        comm_s=[0.5, 0.5],
        compute_s=0.0,
        upload_j=0.0,
        compute_j=0.0,
        deadline_s=1.0,
        budget_j=np.inf,
        max_rate=0.0,
    )
    result = allocate(p)
    assert result.objective == 1.0
    assert result.latency_s == pytest.approx(1.0)


# Bad input


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("comm_s", [0.2, np.nan, 0.1], "comm_s of device 1 is nan; it must be finite and positive"),
        ("comm_s", [0.2, 0.3, 0.0], "comm_s of device 2 is 0"),
        ("compute_s", [-1.0, 0.2, 0.4], "compute_s of device 0 is -1; it must be finite and not negative"),
        ("upload_j", [0.1, np.inf, 0.2], "upload_j of device 1 is inf"),
        ("weight", [0.1, -0.1, 1.0], "weight of device 1"),
        ("deadline_s", 0.0, "deadline_s of device 0 is 0"),
        ("deadline_s", np.inf, "deadline_s of device 0 is inf"),
        ("budget_j", [1.0, np.nan, 1.0], "budget_j of device 1 is nan"),
        ("max_rate", 1.0, "max_rate of device 0 is 1; it must be at least 0 and below 1"),
        ("comm_s", [0.1, 0.2], r"do not fit together: .*comm_s \[2\]"),
        ("comm_s", ["a", "b", "c"], "comm_s must be a number"),
        ("present", [False, False, False], "No device is present"),
    ],
)
def test_impossible_values_name_device_and_field(field, value, message):
    with pytest.raises(ConfigError, match=message):
        allocate(Problem(**(SIMPLE | {field: value})))


def test_a_bad_value_in_a_batch_names_the_round():
    comm = np.full((4, 3), 0.1)
    comm[2, 1] = -1
    with pytest.raises(ConfigError, match="comm_s of device 1 in round 2"):
        Problem(**(SIMPLE | {"comm_s": comm}))


def test_bad_calls():
    p = Problem(**SIMPLE)
    with pytest.raises(ConfigError, match="Did you mean 'exact'"):
        allocate(p, "exakt")
    with pytest.raises(ConfigError, match=r"policy is 'leaveout'.*'leave-out'"):
        allocate(p, policy="leaveout")
    for seed in (-1, 2**128):
        with pytest.raises(ConfigError, match=f"seed is {seed}; it must be at least 0"):
            Random(seed)
    for scheme in set(SCHEMES) - {"fixed"}:
        with pytest.raises(ConfigError, match=f"rate is 0.5, but the scheme '{scheme}' takes none"):
            scheme_named(scheme, rate=0.5)
    with pytest.raises(ConfigError, match=r"needs a rate: --rate 0\.3"):
        allocate(p, "fixed")
    with pytest.raises(ConfigError, match=r"fixed rate of device 0 is 0\.95; it must be from 0 to max_rate, 0\.9"):
        allocate(p, Fixed(0.95))
    for rate, message in (
        (-0.1, "fixed rate of device 0 is -0.1; it must be from 0 to"),
        ([0.1, 0.95, 0.2], "fixed rate of device 1 is 0.95"),
        (np.nan, "fixed rate of device 0 is nan"),
        ([0.1, 0.2], "one per device"),
    ):
        with pytest.raises(ConfigError, match=message):
            allocate(Problem(**(SIMPLE | {"max_rate": [0.9] * 3})), Fixed(rate))
    alone = {k: v[0] if isinstance(v, list) else v for k, v in SIMPLE.items()} | {"weight": [1.0]}
    for several in ([0.5] * 5, [[0.5], [0.6]]):  # which would have made five devices, or two rounds, of one
        with pytest.raises(ConfigError, match="one per device"):
            allocate(Problem(**alone), Fixed(several))
    with pytest.raises(ConfigError, match=r"shape \[\]"):
        Problem(**(SIMPLE | {k: 1.0 for k in SIMPLE if k != "max_rate"}))


def test_a_round_that_leaves_only_devices_without_samples_has_a_residual():
    values = SIMPLE | {"weight": [1.0, 0.0, 0.0], "compute_s": [1e6, 0.01, 0.01]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = allocate(Problem(**values), policy="leave-out")
        assert (found.active.tolist(), found.objective, found.residual) == ([False, True, True], 0.0, 0.0)


def test_numbers_whose_squares_overflow_are_numbers():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert allocate(Problem(**(SIMPLE | {"budget_j": [1e200] * 3}))).objective >= 1


@settings(max_examples=300)
@given(st.data())
def test_hostile_numbers_give_an_answer_or_a_clear_error(data):
    """Anything from 1e-150 to 1e150: an optimum that holds, or one of our own errors."""
    devices = data.draw(st.integers(1, 4))
    number = st.one_of(st.just(0.0), st.floats(1e-150, 1e150), st.floats(0.01, 10.0))
    values = {k: data.draw(st.lists(number, min_size=devices, max_size=devices)) for k in list(SIMPLE)[:5]}
    values |= {
        "deadline_s": data.draw(number),
        "budget_j": data.draw(st.one_of(st.just(np.inf), number)),
        "max_rate": data.draw(st.floats(0, 0.99)),
    }
    try:
        result = allocate(Problem(**values))
    except (ConfigError, InfeasibleError):
        return
    assert np.isfinite(result.rate).all()
    assert (result.share >= 0).all()
    assert result.share.sum() <= 1
    assert (result.latency_s <= result.problem.deadline_s * (1 + 1e-9)).all()
    assert (result.energy_j <= np.maximum(result.problem.budget_j, 0) * (1 + 1e-9)).all()


@pytest.mark.parametrize("kind", ["mixed", "energy", "latency"])
def test_the_residual_of_algorithm_1_bounds_its_distance_to_the_optimum(kind):
    p = problems(kind, 10, 5)
    best = np.asarray(allocate(p).objective)
    found = allocate(p, PrimalDual(tolerance=1e-4))
    assert found.status is Status.CONVERGED
    assert found.residual <= 1e-4
    assert (np.asarray(found.objective) / best - 1 <= found.gap[:, 0] + 1e-12).all()
    short = allocate(p, PrimalDual(max_passes=3))
    assert short.status is Status.UNCONVERGED
    assert (np.asarray(short.objective) / best - 1 <= short.residual).all()
    late = replace(found, rate=found.rate * 0.9)
    assert late.residual > 1e-3  # a violation of the constraints is seen, too


def test_allocate_names_what_it_takes():
    with pytest.raises(ConfigError, match=r"problem is \{\}; it must be a feddrop.Problem or feddrop.PowerProblem"):
        allocate({})
    with pytest.raises(ConfigError, match=r"scheme is 1; it must be a name, or a scheme such as feddrop.Exact\(\)"):
        allocate(problems("loose", 2, 1), 1)
