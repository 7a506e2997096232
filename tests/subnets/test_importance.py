"""Importance draws: the variance law V(s), the optimal probabilities, and draws that have them exactly."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddrop.subnets.importance import Magnitudes, draw, probabilities

VALUES = st.lists(st.floats(-4, 4).filter(lambda w: abs(w) > 1e-6), min_size=2, max_size=60).map(np.array)


def spent(w, q):
    """E‖ŵ-w‖² with probabilities q, entry by entry."""
    return float(np.sum(w**2 * (1.0 / q - 1.0)))


@given(VALUES, st.floats(0.02, 1.0))
def test_probabilities_keep_the_asked_number_and_cost_v(w, s):
    sizes, kept = Magnitudes(w), s * len(w)
    q = probabilities(w, sizes.threshold(kept))
    assert q.sum() == pytest.approx(kept, rel=1e-9)
    assert ((q > 0) & (q <= 1)).all()
    assert sizes.variance(kept) == pytest.approx(spent(w, q), rel=1e-7, abs=1e-9)


@given(VALUES, st.floats(0.05, 0.9))
def test_v_is_convex_and_falling_and_its_slope_is_minus_n_tau_squared(w, s):
    sizes, n = Magnitudes(w), len(w)
    step = 0.04 * s
    low, mid, high = (sizes.variance((s + d) * n) for d in (-step, 0.0, step))
    assert low >= mid >= high
    assert low + high >= 2 * mid - 1e-9 * low
    # Of a convex function, a secant lies between the slopes at its ends.
    rounding = 1e-9 * (1 + low)
    assert sizes.slope(s * n) * step - rounding <= high - mid <= sizes.slope((s + step) * n) * step + rounding
    assert sizes.slope(s * n) == pytest.approx(-n * sizes.threshold(s * n) ** 2)
    assert sizes.variance(n) == 0.0


@pytest.mark.parametrize("s", [0.1, 0.4, 0.8])
def test_no_other_probabilities_have_less_variance(s):
    w = np.random.default_rng(3).laplace(size=12)
    q = cp.Variable(12)
    problem = cp.Problem(cp.Minimize(cp.sum(cp.multiply(w**2, cp.inv_pos(q)))), [cp.sum(q) == s * 12, q <= 1])
    problem.solve(solver=cp.CLARABEL)
    assert Magnitudes(w).variance(s * 12) == pytest.approx(problem.value - float(np.sum(w**2)), rel=1e-6)


@pytest.mark.parametrize("kept", [1, 3, 8, 15, 19])
def test_draws_have_exactly_these_probabilities_and_are_unbiased(kept):
    w = np.random.default_rng(kept).normal(size=20)
    q = probabilities(w, Magnitudes(w).threshold(kept))
    masks = 10_000
    hits, total, square = np.zeros(20), np.zeros(20), np.zeros(20)
    for seed in range(masks):
        index = draw(seed, "layer", q)
        assert len(index) == kept
        assert (np.diff(index) > 0).all()
        hits[index] += 1
        total[index] += w[index] / q[index]
        square[index] += (w[index] / q[index]) ** 2
    error = np.sqrt(np.maximum(q * (1 - q), 1e-9) / masks)
    assert (np.abs(hits / masks - q) <= 4.5 * error + 1e-12).all()
    mean_error = np.sqrt(np.maximum(square / masks - w**2, 1e-18) / masks)
    assert (np.abs(total / masks - w) <= 4.5 * mean_error + 1e-12).all()


def test_draws_follow_from_the_seed_and_the_name():
    q = probabilities(np.linspace(0.1, 1.0, 50), Magnitudes(np.linspace(0.1, 1.0, 50)).threshold(10))
    assert draw(1, "a", q).tolist() == draw(1, "a", q).tolist()
    assert draw(1, "a", q).tolist() != draw(2, "a", q).tolist()
    assert draw(1, "a", q).tolist() != draw(1, "b", q).tolist()


def test_zeros_are_never_kept_while_others_are_to_be_had():
    w = np.array([0.0, 0.0, 1.0, 2.0, 0.0, 3.0])
    assert Magnitudes(w).threshold(3) == 0.0
    assert draw(0, "x", probabilities(w, 0.0)).tolist() == [2, 3, 5]
    assert Magnitudes(w).variance(3) == 0.0
    assert not {0, 1, 4} & set(draw(0, "x", probabilities(w, Magnitudes(w).threshold(2))).tolist())


@given(VALUES, st.floats(0.02, 1.0), st.sampled_from([1.5, 2.0, 4.0, 8.0]))
def test_with_an_exponent_the_asked_number_is_kept_and_the_error_is_counted(w, s, exponent):
    sizes, kept = Magnitudes(w, exponent), s * len(w)
    threshold = sizes.threshold(kept)
    q = probabilities(w, threshold, exponent)
    assert q.sum() == pytest.approx(kept, rel=1e-6)
    raised = np.maximum(np.abs(w), threshold)
    slow = np.sum(q * (raised - np.abs(w)) ** 2 + (1.0 - q) * w**2)  # kept entries are raised to τ, others are 0
    assert sizes.variance(kept) == pytest.approx(slow, rel=1e-6, abs=1e-9)


def test_a_large_exponent_keeps_the_largest_and_has_less_error_at_high_rates():
    w = np.random.default_rng(0).normal(size=2_000)
    largest = np.argsort(-np.abs(w))[:200]
    dropped = np.sum(w**2) - np.sum(w[largest] ** 2)  # the error of keeping the largest
    errors, found = [], []
    for exponent in (1.0, 2.0, 4.0, 8.0):
        sizes = Magnitudes(w, exponent)
        errors.append(sizes.variance(200) / dropped)
        found.append(probabilities(w, sizes.threshold(200), exponent)[largest].mean())
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 9
    assert 1 < errors[-1] < 1.05
    assert found == sorted(found)
    assert found[-1] > 0.8 > 0.3 > found[0]
