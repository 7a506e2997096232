"""Every stochastic estimate against a slow twin: the full Hessian, a loop over samples, all masks enumerated."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from feddrop.config import Subnets
from feddrop.errors import ConfigError
from feddrop.seeds import derive
from feddrop.subnets.blueprint import Blueprint
from feddrop.subnets.cut import cutter, kept_units
from feddrop.subnets.importance import Magnitudes
from feddrop.subnets.piece import gather, scatter
from feddrop.subnets.units import shrink
from feddrop.theory import Curve, EstimatePoint, curvature, measure_law, slope
from feddrop.theory.estimators import chunk_of, signs
from feddrop.theory.variance import Masks


@pytest.fixture(scope="module")
def point() -> EstimatePoint:
    """A smooth network of 4-3-2 units on 12 samples, in double precision."""
    generator = torch.Generator().manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    return EstimatePoint(model, x, torch.arange(12) % 2, dtype=torch.float64)


@pytest.fixture(scope="module")
def hessian(point) -> torch.Tensor:
    return torch.autograd.functional.hessian(point.value, point.w)


def test_the_point_is_the_network(point):
    assert torch.equal(point.join(point.split(point.w)), point.w)
    for name, tensor in point.model.named_parameters():
        tensor.grad = None
        assert torch.equal(point.split(point.w)[name], tensor.detach())
    loss = nn.functional.cross_entropy(point.model(point._x), point._y)
    grads = torch.autograd.grad(loss, list(point.model.parameters()))
    torch.testing.assert_close(point.gradient(), torch.cat([g.reshape(-1) for g in grads]))


def test_hessian_times(point, hessian):
    v = signs(1, len(point.w), point.w)
    torch.testing.assert_close(point.hessian_times(v), hessian @ v)
    torch.testing.assert_close(point.hessian_times(v), hessian @ v)  # the kept graph works twice


def test_signs_are_fair_and_seeded():
    draws = signs(3, 10_001, torch.zeros(1))
    assert set(draws.tolist()) == {-1.0, 1.0}
    assert abs(float(draws.mean())) < 0.04
    assert torch.equal(draws, signs(3, 10_001, torch.zeros(1)))
    assert not torch.equal(draws, signs(4, 10_001, torch.zeros(1)))


def test_curvature_in_full_is_exact(point, hessian):
    found = curvature(point, seed=0, steps=len(point.w), probes=2)
    values = torch.linalg.eigvalsh(hessian)
    assert found.largest.value == pytest.approx(float(values[-1]), rel=1e-8)
    assert found.smallest.value == pytest.approx(float(values[0]), rel=1e-6)
    assert found.frobenius_sq.value == pytest.approx(float(hessian.square().sum()), rel=1e-8)
    assert found.smoothness.value == pytest.approx(float(values.abs().max()), rel=1e-8)


def test_curvature_error_bars_are_honest(point, hessian):
    values, truth = torch.linalg.eigvalsh(hessian).numpy(), float(hessian.square().sum())
    misses = []
    for seed in range(40):
        found = curvature(point, seed=seed, steps=4, probes=12)
        assert found.largest.value <= values[-1] + 1e-12
        assert np.abs(values - found.largest.value).min() <= found.largest.error + 1e-9
        assert np.abs(values - found.smallest.value).min() <= found.smallest.error + 1e-9
        misses.append((found.frobenius_sq.value - truth) / found.frobenius_sq.error)
    assert abs(np.mean(misses)) < 0.8
    assert np.mean(np.abs(misses) < 2.5) > 0.85


def test_slope_is_a_loop_over_samples(point):
    gradients = []
    for x, y in zip(point._x, point._y, strict=True):
        gradients.append(EstimatePoint(point.model, x[None].repeat(2, 1), y.repeat(2), dtype=torch.float64).gradient())
    table = torch.stack(gradients)
    mean = table.mean(0)
    noise = float((table - mean).square().sum() / (len(table) - 1))
    for chunk in (5, 32):
        found = slope(point, chunk=chunk)
        assert found.noise.value == pytest.approx(noise, rel=1e-10)
        assert found.grad_norm_sq.value == pytest.approx(float(mean.square().sum()) - noise / 12, rel=1e-10)
        assert found.noise.error > 0


@pytest.mark.parametrize(
    ("parameters", "chunk"), [(23, 32), (2**20, 32), (2**20 + 1, 31), (2**24, 2), (2**25, 1), (36_000_000, 1)]
)
def test_large_networks_are_taken_a_few_samples_at_a_time(parameters, chunk):
    assert chunk_of(parameters) == chunk


class LargeArrays(TorchDispatchMode):
    """Counts the arrays of a size or larger that are made, not those changed in place."""

    def __init__(self, size):
        super().__init__()
        self.size, self.made = size, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {a.data_ptr() for a in args if isinstance(a, torch.Tensor)}
        if isinstance(out, torch.Tensor) and out.numel() >= self.size and out.data_ptr() not in given:
            self.made += 1
        return out


def test_slope_makes_no_second_array_of_all_gradients(point, monkeypatch):
    chunks = list(point.sample_gradients(6))
    want = slope(point, chunk=6)
    monkeypatch.setattr(EstimatePoint, "sample_gradients", lambda *_: iter(chunks))
    with LargeArrays(6 * len(point.w)) as large:
        assert slope(point, chunk=6) == want
    assert large.made == 0


def test_weight_masks_are_the_cutters(point):
    model = point.model.float()
    cut = cutter(Blueprint(model, (4,)), Subnets(count="bernoulli"))(9, 0.4)
    want = torch.cat([scatter(torch.full((p.size,), p.scale), p).reshape(-1) for p in cut.values()])
    point.model.double()
    torch.testing.assert_close(Masks(point, "weight").draw(9, 0.4), want.double())


def test_unit_update_is_what_a_smaller_network_sends(point):
    """The masked gradient on the whole network = the gradient of the really smaller one, put back and scaled."""
    rate = 0.5
    keep = math.sqrt(1 - rate)
    m = Masks(point, "unit").draw(3, rate)
    update = point.split(m * point.gradient(point.w * m))
    plan = Blueprint(point.model, (4,))
    pieces = cutter(plan, Subnets(level="unit", count="bernoulli"))(3, rate)
    (kept,) = kept_units(plan.units, pieces).values()
    assert 0 < kept < 3
    small = shrink(point.model, plan.units, kept_units(plan.units, pieces))
    whole = point.split(point.w)
    scales = {name: 1.0 if piece.scale == 1.0 else 1 / keep for name, piece in pieces.items()}  # Bernoulli, not counted
    with torch.no_grad():
        for name, p in small.named_parameters():
            p.copy_((gather(whole[name], pieces[name]) * scales[name]).reshape(p.shape))
    loss = nn.functional.cross_entropy(small(point._x), point._y)
    for (name, _), g in zip(small.named_parameters(), torch.autograd.grad(loss, list(small.parameters())), strict=True):
        want = scatter((g * scales[name]).reshape(-1), pieces[name])
        torch.testing.assert_close(update[name], want)


def enumerate_masks(point, level, rate):
    """Every mask ``[P]`` with its probability, written out from the network of the fixture."""
    if level != "unit":
        places, keep = [*range(12), *range(15, 21)], 1 - rate
        columns = [[place] for place in places[12:]]  # the second layer: 6 weights; the first is kept for speed
    else:
        keep = math.sqrt(1 - rate)
        columns = [[15 + row * 3 + unit for row in range(2)] for unit in range(3)]
    q = [keep] * len(columns) if level != "importance" else by_magnitude(point.w[15:21].abs().numpy(), 6 * keep)
    for bits in itertools.product((0, 1), repeat=len(columns)):
        m = torch.ones_like(point.w)
        for bit, column, kept in zip(bits, columns, q, strict=True):
            m[column] = bit / kept
        yield math.prod(kept if bit else 1 - kept for bit, kept in zip(bits, q, strict=True)), m


def by_magnitude(size, count):
    """q = min(1, |w|/τ) with Σ q = count, by bisection."""
    low, high = 0.0, size.sum()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1, size / middle).sum() > count else (low, middle)
    return np.minimum(1, size / high).tolist()


def second_layer_only(monkeypatch):
    """Let only the second layer be dropped, so that all masks can be enumerated."""
    first = Masks.__init__

    def limited(self, point, level):
        first(self, point, level)
        if level != "unit":
            self.sizes = {"2.weight": 6}
            self._dropped[:15] = False
        if level == "importance":
            self._magnitudes = Magnitudes(point.w[15:21].numpy())

    monkeypatch.setattr(Masks, "__init__", limited)


@pytest.mark.parametrize("level", ["weight", "unit", "importance"])
def test_law_is_the_mean_over_all_masks(point, hessian, level, monkeypatch):
    second_layer_only(monkeypatch)
    law = measure_law(point, level, [0.05, 0.25], seed=1, masks=1000, probes=400)
    g = point.gradient()
    for i, rate in enumerate(law.rates.tolist()):
        for curve, sent in ((law.gradient, False), (law.update, True)):
            square, mean = 0.0, torch.zeros_like(g)
            for p, m in enumerate_masks(point, level, rate):
                d = (m if sent else 1) * point.gradient(point.w * m) - g
                square += p * float(d.square().sum())
                mean += p * d
            assert abs(curve.measured[i] - square) < 4 * curve.error[i]
            assert curve.error[i] < 0.2 * square
            assert abs(curve.bias_sq[i] - float(mean.square().sum())) < 4.5 * curve.bias_sq_error[i]
    # The first-order factor: the columns of H diag(w) and of diag(g) + H diag(w), summed within a mask element.
    columns = [[p] for p in range(15, 21)] if level != "unit" else [[15 + u, 18 + u] for u in range(3)]
    jacobian = hessian * point.w
    for i, rate in enumerate(law.rates.tolist()):
        spread = [law.variance[i]] * len(columns)
        if level == "importance":
            spread = [1 / q - 1 for q in by_magnitude(point.w[15:21].abs().numpy(), 6 * (1 - rate))]
        for curve, matrix in ((law.gradient, jacobian), (law.update, jacobian + torch.diag(g))):
            squares = [float(matrix[:, column].sum(1).square().sum()) for column in columns]
            want = sum(v * square for v, square in zip(spread, squares, strict=True))
            assert abs(curve.predicted[i] - want) <= 4 * curve.predicted_error[i] + 1e-12 * want


def test_first_order_is_true_where_every_weight_matters_little():
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 80), nn.Tanh(), nn.Linear(80, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / 8)
    wide = EstimatePoint(model, torch.randn(64, 16, generator=generator), torch.arange(64) % 3)
    law = measure_law(wide, "weight", [0.02], seed=4, masks=400, probes=200)
    for curve in (law.gradient, law.update):
        assert curve.ratio_error[0] < 0.04
        assert abs(curve.ratio[0] - 1) < 0.03 + 3 * curve.ratio_error[0]
        assert curve.holds() == slice(0, 1)


def test_holds_finds_the_longest_run():
    def curve(ratio, error):
        ones = np.ones(len(ratio))
        return Curve(
            measured=np.array(ratio),
            error=error * np.array(ratio),
            predicted=ones,
            predicted_error=0 * ones,
            bias_sq=ones,
            bias_sq_error=ones,
        )

    assert curve([1.5, 1.1, 0.9, 1.3, 1.0], 0.0).holds() == slice(1, 3)
    assert curve([1.5, 1.1, 0.9, 1.3, 1.0], 0.1).holds() == slice(1, 5)
    assert curve([1.5, 1.1, 0.9, 1.3, 1.0], 0.0).holds(0.6) == slice(0, 5)
    assert curve([1.5, 0.5], 0.0).holds() is None


@pytest.mark.parametrize("level", ["unit", "importance"])
def test_directions_have_the_covariance_of_masks(point, level):
    draws, seen = Masks(point, level), point.w if level == "importance" else 1.0  # 1/q is large where w is small
    masks = seen * torch.stack([draws.draw(derive(0, i), 0.3) - 1 for i in range(2500)])
    directions = seen * torch.stack([draws.direction(derive(1, i), 0.3) for i in range(2500)])
    torch.testing.assert_close(masks.T.cov(), draws.variance(0.3) * directions.T.cov(), atol=0.04, rtol=0.1)
    assert float(masks.mean(0).abs().max()) < 0.06


def test_importance_draws_replace_the_odds_by_v(point):
    """E‖ŵ-w‖² is V(1-γ), less than ‖w‖² γ/(1-γ) over the weights that may be dropped."""
    draws, weights = Masks(point, "importance"), point.w[[*range(12), *range(15, 21)]]
    squares = [float((point.w * (draws.draw(derive(0, i), 0.4) - 1)).square().sum()) for i in range(4000)]
    promised = float(draws.variance(0.4) * point.w.square().sum())
    assert abs(np.mean(squares) - promised) < 4 * np.std(squares) / math.sqrt(len(squares))
    assert promised == pytest.approx(Magnitudes(weights.numpy()).variance(18 * 0.6))
    assert promised < 0.9 * float(weights.square().sum()) * 0.4 / 0.6


def test_measured_variance_between_and_beyond_the_rates(point):
    law = measure_law(point, "weight", [0.1, 0.3], seed=0, masks=4, probes=2)
    np.testing.assert_allclose(law.sent(law.rates), law.update.measured)
    assert law.sent(np.array(0.0)) == 0
    assert law.sent(np.array(0.31)) == math.inf
    assert law.sent(np.array(0.05)) == pytest.approx(law.update.measured[0] * (0.05 / 0.95) / (0.1 / 0.9))
    assert law.update.measured[0] < law.sent(np.array(0.2)) < law.update.measured[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: measure_law(p, "weight", [0.3, 0.1], seed=0), "increasing"),
        (lambda p: measure_law(p, "weight", [], seed=0), "increasing"),
        (lambda p: measure_law(p, "weight", [0.0, 0.1], seed=0), r"in \(0, 1\)"),
        (lambda p: measure_law(p, "weights", [0.1], seed=0), "Did you mean 'weight'"),
        (lambda p: measure_law(p, "unit", [0.1], seed=0, masks=1), "at least 2"),
        (lambda p: curvature(p, seed=0, probes=1), "at least 1 and 2"),
        (lambda p: EstimatePoint(p.model, p._x[:1], p._y[:1]), "two or more"),
    ],
)
def test_bad_input_is_named(point, call, message):
    with pytest.raises(ConfigError, match=message):
        call(point)
