"""The cell: fading, rates, costs by the paper's equations, what changes from round to round, and what is refused."""

from __future__ import annotations

import math
import warnings
from dataclasses import fields, replace

import numpy as np
import pytest

from feddrop.allocation import Problem, SubbandProblem, allocate, diagnose
from feddrop.config import Radio
from feddrop.config.radio import NOISES
from feddrop.errors import ConfigError, FeddropWarning
from feddrop.radio import (
    Cell,
    Dynamics,
    MeasuredGains,
    Rician,
    build_cell,
    convolution_flops,
    cost,
    covering,
    linear_flops,
    overheads,
    path_loss,
    read_gains,
    smallest_bandwidth,
)

MODEL = {"parameters": 69_656, "forward_flops": 1_318_560}


def cell(**changes) -> Cell:
    return replace(Cell.paper(seed=0), **changes)


# Fading


@pytest.mark.parametrize("kappa", [0.0, 1.0, 10.0])
def test_rician_gains_have_the_mean_and_variance_of_the_law(kappa):
    """|h|² has mean 1 and variance (1 + 2κ)/(1 + κ)² times the path loss."""
    up, down = Rician(kappa=kappa, path_loss=1e-3).draw(200_000, 0, seed=1)
    for gain in (up, down):
        assert gain.mean() == pytest.approx(1e-3, rel=0.01)
        assert gain.var() == pytest.approx(1e-6 * (1 + 2 * kappa) / (1 + kappa) ** 2, rel=0.03)
    assert abs(np.corrcoef(up, down)[0, 1]) < 0.01


def test_fading_follows_from_seed_and_round_alone():
    fading = Rician()
    np.testing.assert_array_equal(fading.draw(5, 3, seed=7), fading.draw(5, 3, seed=7))
    assert (np.stack(fading.draw(5, 3, seed=7)) != np.stack(fading.draw(5, 4, seed=7))).all()
    assert (np.stack(fading.draw(5, 3, seed=7)) != np.stack(fading.draw(5, 3, seed=8))).all()
    np.testing.assert_array_equal(fading.draw(9, 3, seed=7)[0][:5], fading.draw(5, 3, seed=7)[0])


def test_a_batch_of_rounds_is_the_rounds_one_by_one():
    for dynamic in (False, True):
        c = Cell.paper(seed=0, dynamic=dynamic)
        batch = c.draw(range(5), 3)
        for number in range(5):
            one = c.draw(number, 3)
            for f in fields(one):
                np.testing.assert_array_equal(getattr(batch, f.name)[number], getattr(one, f.name))
        together = c.problem(batch, **MODEL)
        alone = c.problem(c.draw(2, 3), **MODEL)
        np.testing.assert_array_equal(np.broadcast_to(together.comm_s, (5, 10))[2], alone.comm_s)
        np.testing.assert_allclose(np.broadcast_to(together.weight, (5, 10))[2], alone.weight)


def test_path_loss_by_distance():
    np.testing.assert_allclose(path_loss([1.0, 10.0], exponent=3.0), [1e-3, 1e-6])
    np.testing.assert_allclose(path_loss([50.0], exponent=2.0, reference_m=100.0, at_reference=1e-7), [4e-7])
    c = build_cell(Radio(distances_m=(1.0, 2.0), path_loss_exponent=2.0, noise_w_hz=1e-20), 2, 10, seed=0)
    np.testing.assert_allclose(c.fading.path_loss, [1e-3, 2.5e-4])


def test_measured_gains_come_in_turn(tmp_path):
    file = tmp_path / "gains.csv"
    file.write_text("round,device,uplink,downlink\n1,0,1e-3,2e-3\n1,1,3e-3,4e-3\n2,0,5e-3,6e-3\n2,1,7e-3,8e-3\n")
    gains = read_gains(file)
    np.testing.assert_allclose(gains.uplink, [[1e-3, 3e-3], [5e-3, 7e-3]])
    np.testing.assert_allclose(gains.draw(2, 4, seed=0)[1], [6e-3, 8e-3])
    c = build_cell(Radio(gains_csv="gains.csv", noise_w_hz=1e-20), 2, 10, seed=0, folder=tmp_path)
    np.testing.assert_allclose(c.draw(1, 0).uplink, [1e-3, 3e-3])  # the first round takes the first gains
    np.testing.assert_allclose(c.draw(3, 0).uplink, [1e-3, 3e-3])
    with pytest.raises(ConfigError, match="rounds count from 1"):
        c.draw(0, 0)
    file.write_text("round,device,uplink_db\n1,0,-30\n")
    np.testing.assert_allclose(read_gains(file).downlink, [[1e-3]])


# Data rates, by hand


def test_data_rates_of_the_three_conventions():
    c = cell(bandwidth_hz=1e6, noise_w_hz=1e-12, tx_power_w=np.full(10, 0.01), downlink_power_w=np.asarray(2.0))
    channels = replace(c.draw(0, 0), uplink=np.full(10, 1e-3), downlink=np.full(10, 2e-3), tx_power_w=c.tx_power_w)
    share = np.full(10, 0.1)
    by_hand = {
        "density": (1e5 * math.log2(1 + 2e-3 * 2 / 1e-6), 1e5 * math.log2(1 + 1e-3 * 0.01 / 1e-6)),
        "literal": (1e5 * math.log2(1 + 2e-3 * 2 / 1e-12), 1e5 * math.log2(1 + 1e-3 * 0.01 / 1e-12)),
        "subband": (1e5 * math.log2(1 + 2e-3 * 2 / 1e-7), 1e5 * math.log2(1 + 1e-3 * 0.01 / 1e-7)),
    }
    for noise, (down, up) in by_hand.items():
        found = replace(c, noise=noise).bits_per_second(channels, share)
        np.testing.assert_allclose(found[0], down)
        np.testing.assert_allclose(found[1], up)


# Costs


@pytest.mark.parametrize("noise", NOISES)
def test_costs_are_the_papers_equations(noise):
    """A slow twin: every equation written out for one device at a time."""
    c = Cell.paper(seed=3, noise=noise)
    channels = c.draw(4, 9)
    rng = np.random.default_rng(0)
    rates, shares = rng.uniform(0, 0.9, 10), rng.dirichlet(np.ones(10))
    found = cost(c, channels, rates, shares, **MODEL)
    for k in range(10):
        m, q = (1 - rates[k]) * 69_656, 256
        band = shares[k] * 10e6
        variance = {"density": 1e-13 * 10e6, "literal": 1e-13, "subband": 1e-13 * band}[noise]
        r_dl = band * math.log2(1 + channels.downlink[k] * 1.0 / variance)
        r_ul = band * math.log2(1 + channels.uplink[k] * c.tx_power_w[k] / variance)
        cycles = (1 - rates[k]) * 3 * 1_318_560 / 16
        t_cmp = cycles * 5000 / c.cpu_hz[k]
        assert found.push_s[k] == pytest.approx(m * q / r_dl)
        assert found.pull_s[k] == pytest.approx(m * q / r_ul)
        assert found.compute_s[k] == pytest.approx(t_cmp)
        assert found.latency_s[k] == pytest.approx(m * q / r_dl + t_cmp + m * q / r_ul)
        assert found.upload_j[k] == pytest.approx(c.tx_power_w[k] * m * q / r_ul)
        assert found.compute_j[k] == pytest.approx(c.cpu_constant[k] * t_cmp * c.cpu_hz[k] ** 3)
        assert found.energy_j[k] == pytest.approx(found.upload_j[k] + found.compute_j[k] + 0.1)


def test_measured_costs_replace_the_formula_one_by_one():
    c = Cell.paper(seed=0)
    channels, half, tenth = c.draw(0, 0), np.full(10, 0.5), np.full(10, 0.1)
    formula = cost(c, channels, half, tenth, **MODEL)
    same = cost(
        c,
        channels,
        half,
        tenth,
        push_bytes=np.full(10, 0.5 * 69_656 * 256 / 8),
        pull_bytes=np.full(10, 0.5 * 69_656 * 256 / 8),
        flops=np.full(10, 0.5 * 3 * 1_318_560 * 5000),
    )
    for f in fields(formula):
        np.testing.assert_allclose(getattr(same, f.name), getattr(formula, f.name))
    longer = cost(c, channels, half, tenth, push_bytes=np.full(10, 1e6), **MODEL)
    np.testing.assert_allclose(longer.pull_s, formula.pull_s)
    np.testing.assert_allclose(longer.push_s, 8e6 / c.bits_per_second(channels, tenth)[0])


def test_a_device_without_a_share_costs_nothing():
    c = Cell.paper(seed=0)
    share = np.r_[0.0, np.full(9, 0.1)]
    found = cost(c, c.draw(0, 0), np.r_[1.0, np.full(9, 0.2)], share, **MODEL)
    assert found.latency_s[0] == found.energy_j[0] == 0
    assert (found.energy_j[1:] > 0.1).all()


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("scheme", ["exact", "equal", "random"])
def test_reported_costs_meet_deadline_and_budget(noise, scheme):
    """Must hold in every round, for every device, without tolerance."""
    deadline = {"density": 8.0, "literal": 1.2, "subband": 4.0}[noise]
    c = Cell.paper(seed=5, noise=noise, deadline_s=deadline, budget_j=300.0, dynamic=True)
    channels = c.draw(range(200), 5)
    result = allocate(c.problem(channels, **MODEL), scheme, policy="leave-out")
    found = cost(c, channels, result.rate, result.share, **MODEL)
    assert (found.latency_s <= c.deadline_s).all()
    assert (found.energy_j <= c.budget_j).all()
    np.testing.assert_allclose(found.latency_s, result.latency_s, rtol=1e-12)
    circuit = np.where(result.active, c.circuit_j, 0)
    np.testing.assert_allclose(found.energy_j, result.energy_j + circuit, rtol=1e-12)


def test_costs_refuse_shares_and_rates_that_cannot_be():
    c = Cell.paper(seed=0)
    for rates, shares in ((1.5, 0.1), (0.1, -0.1), (np.nan, 0.1)):
        with pytest.raises(ConfigError, match="rates must be in"):
            cost(c, c.draw(0, 0), np.full(10, rates), np.full(10, shares), **MODEL)
    with pytest.raises(ConfigError, match="parameters is None; it must be a number"):
        cost(c, c.draw(0, 0), np.full(10, 0.5), np.full(10, 0.1), forward_flops=1.0)


# Problems


def test_the_problem_is_the_formula_at_rate_0_over_the_whole_band():
    c = Cell.paper(seed=2)
    channels = c.draw(0, 0)
    p = c.problem(channels, **MODEL)
    full = cost(c, channels, np.zeros(10), np.ones(10), **MODEL)
    assert isinstance(p, Problem)
    np.testing.assert_allclose(p.comm_s, full.push_s + full.pull_s)
    np.testing.assert_allclose(p.compute_s, full.compute_s)
    np.testing.assert_allclose(p.upload_j, full.upload_j)
    np.testing.assert_allclose(p.compute_j, full.compute_j)
    np.testing.assert_allclose(p.weight, 0.1)
    assert isinstance(replace(c, noise="subband").problem(channels, **MODEL), SubbandProblem)


def test_weights_are_parts_of_the_samples_whatever_these_count():
    for samples in (1e-3, 0.05, 1.0, 1e9):
        c = Cell.paper(4, seed=2, samples=samples * np.arange(4))
        np.testing.assert_allclose(c.problem(c.draw(0, 0), **MODEL).weight, np.arange(4) / 6)
    empty = Cell.paper(4, seed=2, samples=0.0)
    assert (empty.problem(empty.draw(0, 0), **MODEL).weight == 0).all()


def test_the_budget_is_net_of_the_circuit():
    c = Cell.paper(seed=2, budget_j=300.0)
    np.testing.assert_allclose(c.problem(c.draw(0, 0), **MODEL).budget_j, 299.9)
    starved = replace(c, budget_j=np.asarray(0.05))
    assert diagnose(starved.problem(c.draw(0, 0), **MODEL)).constraints[0] == "energy"


def test_mean_rates_by_deadline():
    """LeNet, 10 devices: where dropout sets in, and how fast it grows as the deadline shrinks."""
    for noise, expected in (
        ("density", {5.0: 0.45, 6.0: 0.34, 7.0: 0.23, 8.0: 0.12, 10.0: 0.01}),
        ("literal", {0.8: 0.45, 1.0: 0.31, 1.2: 0.17, 1.4: 0.03}),
    ):
        for deadline, rate in expected.items():
            rates = []
            for seed in range(20):
                c = Cell.paper(seed=seed, noise=noise, deadline_s=deadline)
                rates.append(allocate(c.problem(c.draw(range(10), seed), **MODEL)).rate.mean())
            assert np.mean(rates) == pytest.approx(rate, abs=0.035)


# A cell that changes


def test_a_dynamic_cell_changes_who_is_present_and_how_fast():
    c = Cell.paper(seed=0, dynamic=True)
    channels = c.draw(range(400), 1)
    count = channels.present.sum(axis=-1)
    assert set(count) == {5, 6, 7, 8, 9, 10}
    np.testing.assert_allclose(np.bincount(count)[5:] / 400, 1 / 6, atol=0.06)
    np.testing.assert_allclose(channels.present.mean(axis=0), 0.75, atol=0.08)
    assert (channels.cpu_hz >= 4.9e9).all()
    assert (channels.cpu_hz <= 7e9).all()
    assert (channels.tx_power_w >= 3e-3).all()
    assert (channels.tx_power_w <= 1e-2).all()
    assert len(np.unique(channels.cpu_hz)) == 4000
    p = c.problem(channels, **MODEL)
    np.testing.assert_allclose(p.weight.sum(axis=-1), 1.0)
    result = allocate(p, policy="leave-out")
    assert (result.active <= channels.present).all()
    assert (result.share[~channels.present] == 0).all()


# Bounds


def test_covering_covers_headers_and_rounding():
    def frame_bits(rate):
        return 8 * (64 + 4 * 326 + 4 * math.ceil((1 - rate) * 69_330))

    bound = covering(frame_bits, 0.9)
    rates = np.linspace(0, 0.9, 5001)
    measured = np.array([frame_bits(r) for r in rates])
    assert (measured <= (1 - rates) * bound).all()
    tight = (measured / (1 - rates)).max()
    assert tight <= bound <= tight * 1.01
    with pytest.raises(ConfigError, match="increases with the rate"):
        covering(lambda rate: rate, 0.9)


def test_with_covering_measured_costs_meet_the_deadline_and_without_they_do_not():
    def frame_bytes(rate):
        return 64 + 4 * 326 + 4 * np.ceil((1 - rate) * 69_330)

    c = Cell.paper(seed=0, bits_per_parameter=32.0, deadline_s=1.0)
    channels = c.draw(range(50), 0)
    bits = covering(lambda rate: 8 * float(frame_bytes(rate)), c.max_rate)
    for p, holds in (
        (c.problem(channels, **MODEL, push_bits=bits, pull_bits=bits), True),
        (c.problem(channels, **MODEL), False),
    ):
        result = allocate(p)
        size = frame_bytes(result.rate)
        found = cost(c, channels, result.rate, result.share, push_bytes=size, pull_bytes=size, **MODEL)
        assert (found.latency_s <= c.deadline_s).all() == holds


@pytest.mark.parametrize("noise", NOISES)
def test_the_smallest_bandwidth_is_just_enough(noise):
    c = Cell.paper(seed=0, noise=noise, deadline_s={"density": 0.9, "literal": 0.05, "subband": 0.3}[noise])
    channels = c.draw(0, 0)
    assert diagnose(c.problem(channels, **MODEL)) is not None
    hz = smallest_bandwidth(c, channels, **MODEL)
    assert hz > c.bandwidth_hz
    assert diagnose(replace(c, bandwidth_hz=hz).problem(channels, **MODEL)) is None
    assert diagnose(replace(c, bandwidth_hz=hz * (1 - 1e-9)).problem(channels, **MODEL)) is not None
    factor = diagnose(c.problem(channels, **MODEL)).load
    if noise == "density":
        assert factor * c.bandwidth_hz < hz
    else:
        assert factor * c.bandwidth_hz == pytest.approx(hz, rel=1e-6)


def test_no_bandwidth_helps_a_cpu_that_is_too_slow():
    c = Cell.paper(seed=0, deadline_s=0.01)
    assert smallest_bandwidth(c, c.draw(0, 0), **MODEL) == np.inf


# The Remark


def test_overheads_are_the_remarks():
    drop, prune, dst = overheads(0.2, parameters=1000, forward_flops=5000, adjust_every=10)
    assert (drop.method, prune.method, dst.method) == ("FedDrop", "PruneFL", "FedDST")
    assert drop.upload_bits == drop.download_bits == pytest.approx(32 * 0.8 * 1000)
    assert prune.upload_bits == pytest.approx(32 * 0.8 * 1000 + 32 / 10 * 1000)
    assert prune.download_bits == drop.download_bits
    assert dst.upload_bits == dst.download_bits == pytest.approx(32 * 0.8 * 1000 + 1000 / 10)
    assert drop.flops == prune.flops == dst.flops == pytest.approx(4000)
    assert convolution_flops(3, 8, 4, 16, 32) == 2 * 9 * 8 * 4 * 16 * 32
    assert linear_flops(120, 84) == 2 * 120 * 84


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bandwidth_hz": -1.0}, "bandwidth_hz is -1.0; it must be above 0"),
        ({"bandwidth_hz": math.nan}, "bandwidth_hz is nan"),
        ({"deadline_s": 0.0}, "deadline_s is 0"),
        ({"noise": "loud"}, "noise is 'loud'; it must be one of"),
        ({"max_rate": 1.0}, "max_rate is 1"),
        ({"tx_power_w": np.r_[np.full(9, 0.01), 0.0]}, "tx_power_w of device 9 is 0; it must be finite and positive"),
        ({"cpu_hz": np.r_[np.nan, np.full(9, 1e9)]}, "cpu_hz of device 0 is nan"),
        ({"budget_j": np.r_[1.0, -5.0, np.full(8, 1.0)]}, "budget_j of device 1 is -5"),
        ({"circuit_j": np.full(10, -1.0)}, "circuit_j of device 0 is -1; it must be finite and not negative"),
        ({"samples": np.ones(3)}, "samples is array.*; give one number, or 10, one per device"),
        ({"cpu_hz": np.ones((2, 2))}, "cpu_hz has shape"),
        ({"fading": Rician(path_loss=np.full(9, 1e-3))}, "path_loss has 9 values for 10 devices"),
        (
            {"fading": MeasuredGains(uplink=np.ones((2, 8)), downlink=np.ones((2, 8)))},
            "the gains cover 8 devices, but the cell has 10; give gains for every device",
        ),
        ({"dynamics": Dynamics(min_devices=11)}, "min_devices is 11; it must be between 1 and 10"),
    ],
)
def test_impossible_cells_name_device_and_field(changes, message):
    with pytest.raises(ConfigError, match=message):
        cell(**changes)


def test_numpy_rounds_are_rounds():
    cell = Cell.paper(4, seed=0)
    one, batch = cell.draw(np.int64(3), 0), cell.draw(np.arange(4), 0)
    np.testing.assert_array_equal(one.uplink, cell.draw(3, 0).uplink)
    np.testing.assert_array_equal(batch.uplink[3], one.uplink)


@pytest.mark.parametrize(
    ("bytes_", "message"),
    [
        (
            b"round,device,uplink_db\n1,0,5000\n",
            "uplink gain of device 0 in round 1 is 1e.300; it must be positive",
        ),
        (b"round,device,uplink\n1,0,\xff\n", "cannot read the gains .* not UTF-8"),
        (b"round,device,uplink\n1,0," + b"1" * 200_000, "cannot read the gains .* field larger"),
        (
            b"round,device,uplink\n1,0," + b"1" * 400,
            r"line 2: uplink is '1{39}\.\.\. \(400 characters\); it must be",
        ),
        (b"round,device,uplink\n" + b"9" * 400 + b",0,1e-3", "no gain of device 0 in round 1"),
        (b"round,device,uplink\n" + b"9" * 5000 + b",0,1e-3", "line 2: round is '9+... .5,000 characters"),
        (b"round,device,uplink\n1," + b"9" * 400 + b",1e-3", "no gain of device 0 in round 1"),
        (b"round,device,uplink\n1,0\n", "line 2: 2 cells for 3 columns"),
        (b"round,round,device,uplink\n1,1,0,1\n", "two columns named 'round'"),
        (b"round,device,uplink_db,downlink_dB\n1,0,-90,-60\n", "is 'downlink_dB'; .+ Did you mean 'downlink_db'"),
        (b"round,device,uplink,uplink_db\n1,0,1e-9,-90\n", "one of uplink and uplink_db"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path, bytes_, message):
    (tmp_path / "gains.csv").write_bytes(bytes_)
    with pytest.raises(ConfigError, match=message):
        read_gains(tmp_path / "gains.csv")


def test_distances_go_with_one_gain_and_without_measured_ones(tmp_path):
    (tmp_path / "devices.csv").write_text("distance_m\n1\n2\n")
    for settings, message in (
        ({"path_loss": (1e-3, 1e-4)}, "it must be one number"),
        ({"gains_csv": "gains.csv"}, "remove the distances"),
    ):
        with pytest.raises(ConfigError, match=message):
            build_cell(Radio(devices_csv="devices.csv", noise_w_hz=1e-20, **settings), 2, 10, seed=0, folder=tmp_path)


def test_impossible_gains_name_device_and_round():
    gains = np.ones((3, 4))
    gains[2, 1] = np.nan
    with pytest.raises(ConfigError, match="downlink gain of device 1 in round 3 is nan"):
        MeasuredGains(uplink=np.ones((3, 4)), downlink=gains)
    with pytest.raises(ConfigError, match="path_loss of device 1 is 0"):
        Rician(path_loss=np.array([1e-3, 0.0]))
    with pytest.raises(ConfigError, match="kappa of device 0 is -1"):
        Rician(kappa=-1.0)
    with pytest.raises(ConfigError, match="distances_m of device 0 is -3"):
        path_loss([-3.0], exponent=2.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("round,device\n0,0\n", "must have round, device, one of uplink"),
        ("", "must have round, device, one of uplink"),
        ("round,device,uplink\n1,0,abc\n", "line 2: uplink is 'abc'; it must be a number"),
        ("round,device,uplink\n1,1,1e-3\n", "no gain of device 0 in round 1"),
        ("round,device,uplink\n1,0,-1e-3\n", "uplink gain of device 0 in round 1 is -0.001"),
        ("round,device,uplink\n1,0,nan\n", "uplink gain of device 0 in round 1 is nan"),
        ("round,device,uplink\n0,0,1e-3\n", "line 2: round is '0'; it must be a whole number from 1"),
        ("round,device,uplink\n1,0,1e-3\n1,0,2e-3\n", "line 3: a second row for round 1, device 0"),
    ],
)
def test_bad_tables_of_gains(tmp_path, text, message):
    file = tmp_path / "gains.csv"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_gains(file)
    with pytest.raises(ConfigError, match="cannot read the gains"):
        read_gains(tmp_path / "nowhere.csv")


def test_config_builds_a_cell(tmp_path):
    (tmp_path / "devices.csv").write_text("device,cpu_hz,budget_j,distance_m\n0,1e9,100,1\n1,2e9,inf,10\n")
    c = build_cell(Radio(devices_csv="devices.csv", noise="literal"), 2, [10, 20], seed=0, folder=tmp_path)
    assert c.cpu_hz.tolist() == [1e9, 2e9]
    assert c.budget_j.tolist() == [100, np.inf]
    assert c.samples.tolist() == [10, 20]
    np.testing.assert_allclose(c.fading.path_loss, [1e-3, 1e-6])
    assert ((c.tx_power_w >= 3e-3) & (c.tx_power_w <= 1e-2)).all()
    paper = build_cell(Radio(), 10, 5000, seed=4)
    for f in ("cpu_hz", "tx_power_w", "cpu_constant", "budget_j", "bandwidth_hz", "deadline_s", "noise"):
        np.testing.assert_array_equal(getattr(paper, f), getattr(Cell.paper(seed=4), f))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme": "exakt"}, "radio.scheme is 'exakt'"),
        ({"policy": "shrug"}, "radio.policy"),
        ({"noise": "x"}, "radio.noise"),
        ({"cpu_hz": (2e9, 1e9)}, r"radio.cpu_hz is \[2000000000.0, 1000000000.0\]"),
        ({"tx_power_w": (0.0, 1.0)}, "radio.tx_power_w"),
        ({"gains_csv": "a.csv", "distances_m": (1.0,)}, "are both given"),
    ],
)
def test_impossible_configurations(changes, message):
    with pytest.raises(ConfigError, match=message):
        Radio(**changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cpu_hz\n1e9\n", "has 1 rows for 2 devices"),
        ("cpu_khz\n1\n2\n", "Did you mean 'cpu_hz'"),
        ("cpu_hz\nfast\n1e9\n", "line 2: cpu_hz is 'fast'; it must be a number"),
        ("cpu_hz\n1e9\n-1\n", "cpu_hz of device 1 is -1"),
        ("device,cpu_hz\n0,1e9\n0,2e9\n", "line 3: a second row for device 0"),
        ("device,cpu_hz\n0,1e9\n2,2e9\n", "line 3: device is 2; the devices are 0 to 1"),
        ("device,cpu_hz\n0,1e9\n", "has no row for device 1"),
        ("device,cpu_hz\nzero,1e9\n1,1e9\n", "line 2: device is 'zero'"),
        (
            "device,budget_j\n0,1e9\n1," + "1" * 400 + "\n",
            "line 3: budget_j is '1+... .400 characters.; it must be",
        ),
        ("cpu_hz\n1e9\nnan\n", "cpu_hz of device 1 is nan"),
        ("", "has 0 rows for 2 devices"),
    ],
)
def test_bad_tables_of_devices(tmp_path, text, message):
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(ConfigError, match=message):
        build_cell(Radio(devices_csv="d.csv"), 2, 10, seed=0, folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (
            "cpu_hz,tx_power_w\n1e9,0.1\n2e9,0.2\n",
            {"dynamic": True},
            "cpu_hz and tx_power_w, which .+ draws in",
        ),
        ("distance_m\n10\n20\n", {"distances_m": (30.0, 40.0), "noise": "literal"}, "remove one of them"),
    ],
)
def test_columns_that_would_have_no_effect(tmp_path, text, settings, message):
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(ConfigError, match=message):
        build_cell(Radio(devices_csv="d.csv", **settings), 2, 10, seed=0, folder=tmp_path)


def test_a_table_of_devices_says_whose_row_it_is(tmp_path):
    """Sorted downward, with a byte-order mark: device 0 still gets its own values."""
    rows = "".join(f"{k},{k + 1}e9\n" for k in reversed(range(10)))
    (tmp_path / "d.csv").write_text("\ufeffdevice,cpu_hz\n" + rows, encoding="utf-8")
    c = build_cell(Radio(devices_csv="d.csv"), 10, 10, seed=0, folder=tmp_path)
    assert c.cpu_hz.tolist() == [(k + 1) * 1e9 for k in range(10)]


def test_real_gains_beside_the_papers_noise_are_pointed_out(tmp_path):
    (tmp_path / "gains.csv").write_text("round,device,uplink_db\n1,0,-100\n")
    (tmp_path / "devices.csv").write_text("distance_m\n100\n")
    for settings in ({"gains_csv": "gains.csv"}, {"distances_m": (100.0,)}, {"devices_csv": "devices.csv"}):
        with pytest.warns(FeddropWarning, match="74 dB above thermal noise") as told:
            build_cell(Radio(**settings), 1, 10, seed=0, folder=tmp_path)
        assert len(told) == 1
        assert "\n" not in str(told[0].message)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            build_cell(Radio(**settings, noise_w_hz=1.26e-20), 1, 10, seed=0, folder=tmp_path)
            build_cell(Radio(**settings, noise="literal"), 1, 10, seed=0, folder=tmp_path)
            build_cell(Radio(), 1, 10, seed=0)


@pytest.mark.parametrize(
    "name", ["bandwidth_hz", "deadline_s", "noise_w_hz", "max_rate", "energy_budget_j", "circuit_j"]
)
@pytest.mark.parametrize("value", [10**400, "wide", math.nan, None])
def test_numbers_that_are_none_are_refused(name, value):
    with pytest.raises(ConfigError):
        build_cell(Radio(**{name: value}), 2, 10, seed=0)


def test_numpy_numbers_are_numbers():
    c = build_cell(Radio(bandwidth_hz=np.float32(2e6), max_rate=np.float64(0.5), deadline_s=np.int64(3)), 2, 10, seed=0)
    assert (c.bandwidth_hz, c.max_rate, c.deadline_s) == (2e6, 0.5, 3.0)
    assert all(type(value) is float for value in (c.bandwidth_hz, c.max_rate, c.deadline_s))
