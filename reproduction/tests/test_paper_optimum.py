"""The claims on the optimum are measured, and every one of them can fail and can pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_up import SMOKE

from feddrop.comparison import FAILS, HOLDS, PARTLY
from reproduction.experiments import allocator


@pytest.fixture(scope="module")
def facts() -> dict:
    return allocator.measure(SMOKE)


def outcomes(facts: dict) -> dict[str, str]:
    return {one.claim: one.outcome for one in allocator.make(SMOKE, lambda _: None, facts).verdicts}


def test_what_was_measured_is_what_is_said(facts):
    found = outcomes(facts)
    assert found["convex"] == found["channel-rate"] == HOLDS
    assert found["not-convex"] == PARTLY  # the functions are not convex; the points that meet them are a convex set
    assert facts["checks"]["functions"][0][1] > 0 == facts["checks"]["convex in γ"][0][1]
    assert all(asked > 0 for rows in facts["checks"].values() for asked, _ in rows)


def test_every_claim_can_fail_and_can_pass(facts):
    """One broken check turns a claim; so do rates that only fall, and passes that grow with the devices squared."""
    fine = {name: [[10, 0], [10, 0]] for name in facts["checks"]}
    fine |= {name: [[10, 3], [10, 1]] for name in ("convex in γ", "functions")}
    count = len(facts["rates"])
    turn = [*np.linspace(0.5, 0.1, count // 2), *np.linspace(0.2, 0.6, count - count // 2)]
    good = {**facts, "checks": fine, "rates": turn, "passes": [20.0] * len(facts["devices"])}
    assert set(outcomes(good).values()) == {HOLDS}
    for name, (claim, _) in allocator.STATEMENTS.items():
        bad = [[10, 0], [10, 1]]  # one of the two says yes
        assert outcomes({**good, "checks": fine | {name: bad}})[claim] == PARTLY
    assert outcomes({**good, "rates": list(np.linspace(0.5, 0.1, count))})["cpu-not-monotone"] == FAILS
    assert outcomes({**good, "passes": [float(k) ** 1.5 for k in facts["devices"]]})["complexity"] == FAILS


def test_the_check_of_convexity_finds_what_is_not_convex():
    """In v = (1-γ)³ the same problem is not convex: the points that meet the deadline bulge inwards."""
    p = next(allocator.problems(SMOKE, energy=False))
    rng = np.random.default_rng(0)
    assert allocator._convex(p, rng, 0.5).all()
    assert not allocator._convex(p, rng, 3.0).all()


def test_the_checks_of_the_optimum_find_what_is_broken(monkeypatch):
    """An equal split ignores the channel, so that a better one does not mean a smaller share."""
    p = next(allocator.problems(SMOKE, energy=False))
    better = allocator._twins(p, ("comm_s", "upload_j"), 0.5)
    assert allocator._both(better, allocator._lower_and_smaller).all()

    def wrong(problem):
        found = allocator.allocate(problem, policy="leave-out")
        return replace(found, share=found.share[..., ::-1], rate=found.rate[..., ::-1])

    monkeypatch.setattr(allocator, "_solved", wrong)
    assert not allocator._both(better, allocator._lower_and_smaller).all()
