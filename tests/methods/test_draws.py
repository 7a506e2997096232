"""Federated dropout with importance draws: bytes, bits, resume, executors, hostile payloads, and what it is for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import feddrop
from feddrop.errors import ConfigError, FrameError
from feddrop.simulation.exchange import push
from feddrop.subnets import parameters
from feddrop.subnets.piece import gather
from feddrop.wire import HEADER_BYTES, parse
from support.mask_code import payload_bytes

WEIGHTS = feddrop.FedDrop(draw="importance", threshold="layer")
NETWORK = feddrop.FedDrop(draw="importance")
SQUARED = replace(NETWORK, exponent=2.0)
UNITS = feddrop.FedDrop(level="unit", draw="importance")
SQUARED_UNITS = replace(UNITS, exponent=2.0)
ALL = pytest.mark.parametrize(
    "settings",
    [WEIGHTS, NETWORK, SQUARED, UNITS, SQUARED_UNITS],
    ids=["layer", "network", "squared", "unit", "squared-unit"],
)
MIXED = (0.0, 0.5, 0.75, 0.9)


def net():
    return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))


def built(settings):
    setup = feddrop.Setup(model=net(), example=torch.zeros(1, 12), rounds=3)
    return feddrop.build_method(settings, setup), parameters.from_model(setup.model)


def jobs_of(method, params, rates=MIXED):
    return method.plan(method.init(params), params, 1, dict(enumerate(rates)), 7)


def small(settings, **more):
    base = {"rounds": 3, "rate": list(MIXED), "data": feddrop.Data(devices=4, train_limit=200), "method": settings}
    return feddrop.RunConfig(**(base | more))


@ALL
def test_a_subnet_is_unbiased_over_many_masks(settings):
    """Over 10^4 masks, within five standard errors. With an exponent of 2 the expectation is another one, and known."""
    method, params = built(settings)
    name, count = "2.weight", 10_000
    full = params[name].double()
    total, square, held = (torch.zeros_like(full) for _ in range(3))
    for round_ in range(count):
        (job,) = method.plan({}, params, round_, {0: 0.5}, 3)
        piece = method.cut(job)[name]
        kept = gather(params[name], piece)
        sent, mask = torch.zeros(full.numel()), torch.zeros(full.numel())
        place = slice(None) if piece.index is None else torch.from_numpy(piece.index)
        sent[place], mask[place] = kept * piece.factors(kept), 1.0
        sent, mask = sent.reshape(full.shape).double(), mask.reshape(full.shape)
        # At the unit level, what a kept unit reads is unbiased: its inputs, given that it is kept.
        held += mask.any(dim=1, keepdim=True).expand_as(full) if settings.level == "unit" else 1.0
        total += sent
        square += sent**2
    mean = total / held
    wanted, spread = full, ((square / held - mean**2).clamp(min=1e-12) / held).sqrt()
    if settings is SQUARED:  # E ŵ = w·|w|/τ below τ
        (job,) = method.plan({}, params, 0, {0: 0.5}, 3)
        floor = method.cut(job)[name].floor
        below = (full.abs() / floor).clamp(max=1.0)
        wanted, spread = full * below, floor * (below * ((1.0 - below**2) / held).sqrt() + 0.5 / held)
    elif settings is SQUARED_UNITS:  # the mean square, not the mean
        wanted, mean = full**2, square / held
        spread = (full**2 * wanted.max() / held).sqrt()
    assert ((mean - wanted).abs() <= 5 * spread + 1e-6).all()


@ALL
def test_bytes_are_those_of_the_formula(settings):
    method, params = built(settings)
    for job in jobs_of(method, params):
        subnet = method.cut(job)
        frame = push(params, subnet, job)
        sent = payload_bytes(job.payload)
        assert len(frame) == HEADER_BYTES + sent + 4 * sum(piece.size for piece in subnet.values())
        if method.sizes is not None:
            assert {name: piece.size for name, piece in subnet.items()} == method.sizes(job.rate).kept
            assert sent <= method.sizes(job.rate).push_bytes
    if settings is WEIGHTS:  # 624 weights: 78 bytes of bits, at most 50 if 62 are kept and coded; and three thresholds
        assert [method.sizes(rate).push_bytes for rate in MIXED] == [12 + 80 + 20 + 12] * 3 + [12 + 52 + 20 + 12]


@ALL
def test_server_and_device_cut_the_same_subnet(settings):
    method, params = built(settings)
    for job in jobs_of(method, params):
        frame = parse(push(params, method.cut(job), job))
        payload = {name: section.tensor() for name, section in frame.sections.items()}
        received = method.cut(feddrop.Job(round=1, device=job.device, seed=job.seed, rate=job.rate, payload=payload))
        for name, piece in method.cut(job).items():
            other = received[name]
            assert (piece.shape, piece.sub_shape, piece.floor) == (other.shape, other.sub_shape, other.floor)
            assert np.array_equal(piece.index, other.index)
            assert np.array_equal(piece.scale, other.scale)


@ALL
def test_without_dropout_it_is_federated_averaging(settings, tmp_path):
    plain = feddrop.Run(small(feddrop.FedAvg(), rate=None), tmp_path / "a")
    ours = feddrop.Run(small(settings, rate=0.0), tmp_path / "b")
    assert [r.push_bytes for r in plain] == [r.push_bytes for r in ours]
    assert all(torch.allclose(plain.params[name], ours.params[name], atol=1e-6) for name in plain.params)


@ALL
def test_a_resumed_run_ends_in_the_same_bits(settings, tmp_path):
    whole = feddrop.Run(small(settings), tmp_path / "whole")
    list(whole)
    next(iter(feddrop.Run(small(settings), tmp_path / "part")))
    feddrop.resume(tmp_path / "part")
    one, two = (feddrop.load_model(tmp_path / name).state_dict() for name in ("whole", "part"))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.slow
@ALL
def test_processes_and_ray_give_the_bits_of_serial(settings, tmp_path, own_ray):
    """With ``merge_block``, ``tests/simulation/test_blocks.py`` does; over Flower, ``tests/flower/test_flower.py``."""
    runs = []
    for executor, more in (("serial", {}), ("processes", {"workers": 2}), ("ray", {"workers": 2, "address": "local"})):
        execution = feddrop.Execution(executor=executor, **more)
        runs.append(feddrop.Run(small(settings, rounds=2, execution=execution), tmp_path / executor, report=False))
        list(runs[-1])
    one, *others = (run.params for run in runs)
    assert all(torch.equal(one[name], other[name]) for other in others for name in one)


def test_small_kept_weights_are_sent_with_the_magnitude_of_the_threshold():
    method, params = built(WEIGHTS)
    job = jobs_of(method, params)[3]
    subnet = method.cut(job)
    piece = subnet["2.weight"]
    kept = gather(params["2.weight"], piece)
    sent = kept * piece.factors(kept)
    assert torch.allclose(sent.abs(), kept.abs().clamp(min=piece.floor), rtol=1e-6)
    assert (sent.sign() == kept.sign()).all()


@ALL
def test_a_payload_that_does_not_fit_is_refused(settings):
    method, params = built(settings)
    job = jobs_of(method, params)[2]
    for name, tensor in job.payload.items():
        without = {other: value for other, value in job.payload.items() if other != name}
        for payload in (without, without | {name: tensor[:-1]}):
            with pytest.raises(FrameError, match="expected"):
                method.cut(replace(job, payload=payload))
    if settings.level == "unit":
        with pytest.raises(FrameError, match=r"empty|expected"):
            method.cut(replace(job, payload={"units": torch.zeros_like(job.payload["units"])}))


def test_poor_subnets_count_less_by_variance():
    weights = {}
    for kappa in (0.0, 4.0):
        method, params = built(replace(WEIGHTS, variance_weight=kappa))
        updates = []
        for job in jobs_of(method, params, (0.0, 0.9)):
            subnet = method.cut(job)
            moved = {name: torch.full((piece.size,), float(job.device)) for name, piece in subnet.items()}
            update = feddrop.Update(device=job.device, num_samples=10, loss=1.0, subnet=subnet, values=moved)
            updates.append((job, update))
        new, _ = method.merge({}, params, updates)
        weights[kappa] = float((new["0.bias"] - params["0.bias"]).mean())  # biases are held by both
    assert weights[0.0] == pytest.approx(0.5)
    assert weights[4.0] < 0.4


def test_weights_by_variance_are_the_compromise_between_variance_and_bias():
    """docs/method.md: no other weights do better, and with equal amounts of data they are those of κ."""
    rng = np.random.default_rng(5)
    for samples in (np.full(6, 20.0), rng.integers(5, 60, 6).astype(float)):
        w, variance = samples / samples.sum(), rng.uniform(0.0, 4.0, 6)
        c, noise, lam = 1.7, 3.0, 0.4
        kappa = c / (lam + noise / samples.sum())
        p = w / (1.0 + kappa * w * variance)
        p /= p.sum()
        slope = 2.0 * p * (c * variance + noise / samples) + 2.0 * lam * (p - w) / w
        np.testing.assert_allclose(slope, slope[0])  # the objective is convex, and Σ p = 1
        if len(set(samples)) == 1:
            ours = samples / (1.0 + kappa / len(w) * variance)
            np.testing.assert_allclose(p, ours / ours.sum())


def test_unequal_rates_no_longer_cost_most_of_the_accuracy(tmp_path):
    """Digits, mixed rates 0 to 0.9: what the allocator hands out; see docs/methods.md."""
    rates = [0, 0, 0.5, 0.5, 0.5, 0.75, 0.75, 0.75, 0.9, 0.9]
    data = feddrop.Data("digits", partition="dirichlet", alpha=0.5)
    found = {}
    for name, settings in (("paper", feddrop.FedDrop()), ("importance", NETWORK)):
        config = feddrop.RunConfig(rounds=12, rate=rates, method=settings, model=feddrop.Model("mlp"), data=data)
        found[name] = list(feddrop.Run(config, tmp_path / name))[-1].test_accuracy
    assert found["importance"] > 0.88
    assert found["importance"] > found["paper"] + 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"draw": "importance", "count": "bernoulli"}, "count is 'bernoulli', which has no effect"),
        ({"threshold": "network"}, "threshold is 'network', which has no effect"),
        ({"draw": "importance", "threshold": "network", "layer_rates": {"fc1": 0.5}}, "Remove one"),
        ({"exponent": 2.0}, "exponent is 2.0, which has no effect"),
        ({"draw": "importance", "exponent": 0.5}, "exponent is 0.5; it must be"),
        ({"rule": "model", "step": "plain"}, "step is 'plain', which has no effect"),
        ({"variance_weight": -1.0}, "at least 0"),
        ({"draw": "importnce"}, "Did you mean 'importance'"),
    ],
)
def test_settings_without_effect_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        feddrop.FedDrop(**settings)


def test_a_cell_with_measured_costs_chooses_a_threshold_per_layer(tmp_path):
    def chosen(method, radio):
        return feddrop.RunConfig(method=method, radio=radio).method.threshold

    cell, formula = feddrop.Radio(), feddrop.Radio(costs="formula")
    assert [chosen(NETWORK, radio) for radio in (cell, formula, None)] == ["layer", "network", "network"]
    assert chosen(feddrop.FedDrop(draw="importance", threshold="network"), cell) == "network"
    small = feddrop.Data("digits", devices=3, train_limit=60)
    config = feddrop.RunConfig(rounds=1, method=NETWORK, radio=cell, data=small)
    assert replace(config, radio=None).method.threshold == "network"
    assert replace(config, method=replace(config.method, exponent=2.0)).method.threshold == "layer"
    feddrop.run(config, tmp_path / "run")
    assert 'threshold = "layer"' in (tmp_path / "run" / "config.toml").read_text()
