"""The bounds against the paper's formulas written out, and against a loss where everything can be enumerated."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest

from feddrop.errors import ConfigError
from feddrop.theory import (
    Constants,
    best_rate,
    learning_rate,
    lemma1,
    lemma2,
    odds,
    rounds_needed,
    theorem1,
    theta,
    unit_odds,
)

SOME = Constants(smoothness=2.0, hessian_norm=3.0, weight_norm=1.5, noise=4.0)
SAMPLES = np.array([100, 50, 250])


def paper_lemma2(rates, c, samples, norm, T):
    """Eq. equ:lemma_opt, term by term."""
    L, D = c.smoothness, sum(samples)
    first = (-1 / (3 * math.sqrt(T) * L) + 2 / (9 * T * L)) * norm
    second = 2 * len(samples) / (9 * T * L) * c.noise / D
    third = 0.0
    for gamma, d in zip(rates, samples, strict=True):
        third += d / D * gamma / (1 - gamma)
    return first + second + (c.hessian_norm * c.weight_norm) ** 2 / (9 * T * L) * third


def test_lemma1_and_odds():
    assert lemma1(0.2, SOME) == pytest.approx(20.25 * 0.25)
    assert odds([0.0, 0.5]).tolist() == [0.0, 1.0]
    keep = np.sqrt(1 - np.array([0.1, 0.6]))
    np.testing.assert_allclose(unit_odds([0.1, 0.6]), (1 - keep) / keep)


def test_lemma2_is_the_papers_formula_for_every_round():
    rates = np.random.default_rng(0).uniform(0, 0.9, (5, 3))
    norms = np.linspace(0.1, 3, 5)
    got = lemma2(rates, SOME, samples=SAMPLES, grad_norm_sq=norms, rounds=40)
    want = [paper_lemma2(row, SOME, SAMPLES, norm, 40) for row, norm in zip(rates, norms, strict=True)]
    np.testing.assert_allclose(got, want, rtol=1e-12)
    uniform = lemma2(0.3, SOME, samples=SAMPLES, grad_norm_sq=1.0, rounds=40)
    assert uniform == pytest.approx(paper_lemma2([0.3] * 3, SOME, SAMPLES, 1.0, 40), rel=1e-12)
    eta = float(learning_rate(40, SOME))
    assert lemma2(0.3, SOME, samples=SAMPLES, grad_norm_sq=1.0, rounds=1, lr=eta) == pytest.approx(float(uniform))


def masked(w, rate):
    """Every mask of a vector, with its probability."""
    for bits in itertools.product((0, 1), repeat=len(w)):
        kept = sum(bits)
        yield (1 - rate) ** kept * rate ** (len(w) - kept), w * np.array(bits) / (1 - rate)


@pytest.mark.parametrize("rates", [(0.0, 0.0), (0.1, 0.5), (0.4, 0.4)])
def test_bounds_hold_where_everything_can_be_enumerated(rates):
    """F(w) = w'Hw/2: the gradient is linear, so Lemma 1's first order is exact; the mask is the only noise."""
    generator = np.random.default_rng(3)
    root = generator.normal(size=(3, 3))
    H, w = root @ root.T, generator.normal(size=3)
    exact = Constants(
        smoothness=float(np.linalg.eigvalsh(H)[-1]),
        hessian_norm=float(np.linalg.norm(H)),
        weight_norm=float(np.linalg.norm(w)),
        noise=0.0,
    )
    g, samples, eta = H @ w, np.array([30, 10]), 0.05
    mean = sum(p * H @ v for p, v in masked(w, rates[1]))
    variance = sum(p * np.sum((H @ v - g) ** 2) for p, v in masked(w, rates[1]))
    np.testing.assert_allclose(mean, g, rtol=1e-12)
    assert variance <= lemma1(rates[1], exact) + 1e-12
    change = 0.0
    for (p, a), (q, b) in itertools.product(masked(w, rates[0]), masked(w, rates[1])):
        after = w - eta * (0.75 * H @ a + 0.25 * H @ b)
        change += p * q * 0.5 * (after @ H @ after - w @ H @ w)
    given = {"samples": samples, "grad_norm_sq": g @ g, "rounds": 1, "lr": eta}
    loose, sharp = lemma2(rates, exact, **given), lemma2(rates, exact, **given, independent=True)
    assert change <= sharp <= loose


@pytest.mark.parametrize("independent", [False, True])
def test_theta_is_where_the_bound_turns(independent):
    given = {"samples": SAMPLES, "grad_norm_sq": np.array([0.5, 2.0]), "rounds": 25, "independent": independent}
    found = theta(SOME, **given)
    assert found.decreases.all()
    assert (lemma2(np.repeat(found.rate[:, None] * (1 - 1e-9), 3, 1), SOME, **given) < 0).all()
    assert (lemma2(np.repeat(found.rate[:, None] * (1 + 1e-9), 3, 1), SOME, **given) > 0).all()
    if not independent:
        top = ((3 * 5 - 2) * given["grad_norm_sq"] - 2 * 3 * 4.0 / 400) / 20.25
        np.testing.assert_allclose(found.rate, top / (1 + top), rtol=1e-12)


def test_theta_says_when_nothing_helps():
    found = theta(SOME, samples=[1, 1], grad_norm_sq=0.01, rounds=4)
    assert found.rate == 0
    assert found.at_zero > 0
    assert not found.decreases
    assert "no decrease" in str(found)
    assert "θ = 0." in str(theta(SOME, samples=SAMPLES, grad_norm_sq=1.0, rounds=100))


def test_theta_with_a_measured_variance():
    steep = Constants(
        smoothness=2.0,
        hessian_norm=3.0,
        weight_norm=1.5,
        noise=4.0,
        variance=lambda r: np.where(r <= 0.6, r**2, np.inf),
    )
    assert theta(steep, samples=SAMPLES, grad_norm_sq=9.0, rounds=100).rate == pytest.approx(0.6)
    norm = (0.3**2 + 2 * 3 * 4.0 / 400) / (3 * 10 - 2)  # the bound is zero at rate 0.3
    assert theta(steep, samples=SAMPLES, grad_norm_sq=norm, rounds=100).rate == pytest.approx(0.3)


def test_theorem1_follows_from_lemma2():
    """Sum eq. equ:adap_re over the rounds, with the sharpest weight 1/(9·sqrt(T)·L) that the paper keeps."""
    T, gap = 16, 2.5
    rates = np.random.default_rng(1).uniform(0, 0.8, (T, 3))
    noise = [float(lemma2(row, SOME, samples=SAMPLES, grad_norm_sq=0.0, rounds=T)) for row in rates]
    want = 9 * math.sqrt(T) * SOME.smoothness / T * (gap + sum(noise))
    got = theorem1(rates, SOME, samples=SAMPLES, rounds=T, loss_gap=gap)
    assert got == pytest.approx(want, rel=1e-12)


def test_rounds_needed_undoes_theorem1():
    T = np.array([9.0, 400.0])
    bound = theorem1([0.1, 0.2, 0.3], SOME, samples=SAMPLES, rounds=T, loss_gap=1.0)
    back = [rounds_needed([0.1, 0.2, 0.3], SOME, samples=SAMPLES, loss_gap=1.0, target=b) for b in bound]
    np.testing.assert_allclose(back, T)


@pytest.mark.parametrize("overhead", [0.0, 0.4])
def test_best_rate_has_a_closed_form_for_linear_seconds(overhead):
    """Minimise (c + qz)² (a + b/z) over z = 1/(1-γ): 2qa z² + qb z - cb = 0."""
    gap, b = 4.0, 3.0
    q = 20.25
    c = 9 * 2.0 * gap + 2 * 3 * 4.0 / 400 - q
    z = c / q if overhead == 0 else (math.sqrt((q * b) ** 2 + 8 * q * overhead * c * b) - q * b) / (4 * q * overhead)
    found = best_rate(lambda r: overhead + b * (1 - r), SOME, samples=SAMPLES, loss_gap=gap, budget_s=900.0)
    assert found.rate == pytest.approx(1 - 1 / z, abs=1e-7)
    promised = theorem1(found.rate, SOME, samples=SAMPLES, rounds=found.rounds, loss_gap=gap)
    assert found.bound == pytest.approx(float(promised))
    assert found.rounds * found.round_s == pytest.approx(900.0)
    assert found.bound < found.without
    # The same rate reaches a target soonest.
    rates = np.linspace(0, 0.9, 2001)[:, None].repeat(3, 1)
    total = rounds_needed(rates, SOME, samples=SAMPLES, loss_gap=gap, target=0.1) * (overhead + b * (1 - rates[:, 0]))
    assert rates[np.argmin(total), 0] == pytest.approx(found.rate, abs=1e-3)


def test_best_rate_is_zero_where_dropout_does_not_pay():
    found = best_rate(lambda r: 1 - r, SOME, samples=SAMPLES, loss_gap=0.5, budget_s=1.0)
    assert found.rate == 0
    assert found.bound == found.without


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lemma1(1.0, SOME), r"\[0, 1\)"),
        (lambda: odds([0.1, math.nan]), "rate is"),
        (lambda: lemma2([0.1, 0.2], SOME, samples=SAMPLES, grad_norm_sq=1, rounds=3), "3 devices"),
        (lambda: lemma2(0.1, SOME, samples=[3, 0], grad_norm_sq=1, rounds=3), "positive"),
        (lambda: lemma2(0.1, SOME, samples=[3], grad_norm_sq=1, rounds=0), "at least 1"),
        (lambda: lemma2(0.1, SOME, samples=[3], grad_norm_sq=1, rounds=1, lr=-1), "lr is -1"),
        (lambda: theorem1(np.zeros((4, 1)), SOME, samples=[3], rounds=5, loss_gap=1), r"\[rounds, devices\]"),
        (lambda: theorem1(0.1, SOME, samples=[3], rounds=5, loss_gap=-1), "loss_gap is -1"),
        (lambda: best_rate(lambda r: -r, SOME, samples=[3], loss_gap=1, budget_s=1), "round_s"),
        (lambda: best_rate(lambda r: 1, SOME, samples=[3], loss_gap=1, budget_s=1, max_rate=1), "max_rate"),
        (lambda: Constants(smoothness=0, hessian_norm=1, weight_norm=1, noise=1), "smoothness is 0"),
        (lambda: Constants(smoothness=1, hessian_norm=math.inf, weight_norm=1, noise=1), "hessian_norm is inf"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_bounds_load_no_torch():
    script = "import sys, feddrop.theory as theory; theory.odds(0.1); theory.best_rate"
    done = subprocess.run([sys.executable, "-c", f"{script}; assert 'torch' not in sys.modules"], check=False)
    assert done.returncode == 0
