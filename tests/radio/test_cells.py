"""Cells closer to the world: TR 38.901, devices dropped in a disc, presets, kinds of devices, measured arrays."""

from __future__ import annotations

import io
import math
import os
import pickle
import re
import threading
import warnings
import zipfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from examples.preset_cells import cells_figure
from feddrop.allocation import allocate
from feddrop.config import Radio, RunConfig, from_table, to_table
from feddrop.config.presets import PRESETS, SITES, noise_density
from feddrop.config.radio import DEVICE_KINDS
from feddrop.errors import ConfigError, FeddropWarning, InfeasibleError
from feddrop.radio import Cell, MeasuredGains, build_cell, gains_from, read_arrays
from feddrop.radio.devices import GROUPS, KINDS
from feddrop.radio.places import Place
from feddrop.radio.propagation import MODELS, Link, path_loss_db, sight_probability, surroundings_m, wall_db
from feddrop.simulation.run import Run, resume, run

DOCS = Path(__file__).parents[2] / "docs"
LENET = {"parameters": 61_706, "forward_flops": 833_040}
ALEXNET = {"parameters": 36_000_000, "forward_flops": 400_000_000}


# TR 38.901: losses in dB and probabilities of a line of sight at 3.5 GHz, devices at 1.5 m


@pytest.mark.parametrize(
    ("model", "distance", "with_sight", "without", "probability"),
    [
        ("uma", 100, 83.138, 103.038, 0.3477),
        ("uma", 500, 98.269, 129.916, 0.0363),
        ("uma", 1000, 109.412, 141.666, 0.0180),
        ("umi", 50, 79.090, 94.181, 0.5196),
        ("umi", 100, 85.314, 104.644, 0.2310),
        ("umi", 500, 107.114, 129.265, 0.0360),
        ("inh-mixed", 10, 60.665, 69.332, 0.2874),
        ("inh-mixed", 50, 72.677, 95.925, 0.0843),
        ("inh-mixed", 100, 77.882, 107.449, 0.0182),
        ("inh-open", 10, 60.665, 69.332, 0.9318),
        ("inh-open", 50, 72.677, 95.925, 0.5375),
        ("inh-open", 100, 77.882, 107.449, 0.4244),
        ("rma", 100, 84.198, 92.674, 0.9139),
        ("rma", 1000, 105.460, 130.424, 0.3716),
        ("rma", 5000, 125.969, 157.419, 0.0068),
    ],
)
def test_losses_and_probabilities_are_the_reports(model, distance, with_sight, without, probability):
    link = Link(np.array([float(distance)]), 3.5, SITES[model].base_height_m, 1.5)
    assert path_loss_db(model, link, [True]) == pytest.approx(with_sight, abs=6e-4)
    assert path_loss_db(model, link, [False]) == pytest.approx(without, abs=6e-4)
    assert sight_probability(model, distance) == pytest.approx(probability, abs=6e-5)


@pytest.mark.parametrize(
    ("distance", "with_sight", "without"),
    [(1, 50.8072, 50.8072), (10, 63.7630, 73.1894), (50, 75.7750, 99.7824), (100, 80.9802, 111.3062)],
)
def test_indoor_losses_are_those_of_ns3(distance, with_sight, without):
    """At 5 GHz, devices at 1.5 m; at 1 m the loss with a line of sight is the larger one, and counts."""
    link = Link(np.array([float(distance)]), 5.0, 3.0, 1.5)
    assert path_loss_db("inh-mixed", link, [True]) == pytest.approx(with_sight, abs=1e-4)
    assert path_loss_db("inh-mixed", link, [False]) == pytest.approx(without, abs=1e-4)


def test_breakpoints_walls_and_noise():
    assert Link(np.zeros(1), 3.5, 25.0, 1.5).breakpoint_m == pytest.approx(560)
    assert Link(np.zeros(1), 3.5, 10.0, 1.5).breakpoint_m == pytest.approx(210)
    np.testing.assert_allclose(wall_db(3.5, [False, True]), [12.698, 26.850], atol=6e-4)
    assert noise_density(5.0) == pytest.approx(1.259e-20, rel=1e-3)
    assert noise_density(7.0) == pytest.approx(1.995e-20, rel=1e-3)


@pytest.mark.parametrize("model", MODELS)
def test_losses_grow_and_sight_fades_with_distance(model):
    low, high = MODELS[model].distance_m
    distance = np.geomspace(max(low, 3.0), high - 3, 300)
    link = Link(distance, 3.5, SITES[model].base_height_m, SITES[model].device_height_m)
    for sight in (True, False):
        assert (np.diff(path_loss_db(model, link, sight)) > -0.01).all()
    probability = sight_probability(model, distance)
    assert (np.diff(probability) <= 1e-12).all()
    assert (probability <= 1).all()
    assert sight_probability(model, 1.0) == 1.0


def test_high_devices_see_more_and_have_roofs_around_them():
    distance, draw = np.full(20_000, 300.0), np.random.default_rng(0).random(20_000)
    height = 1.25 * 3**3 * math.exp(-2) * ((22.5 - 13) / 10) ** 1.5
    around = surroundings_m(distance, 22.5, draw)
    assert set(around) == {1.0, 12.0, 15.0, 18.0, 21.0}
    assert (around == 1).mean() == pytest.approx(1 / (1 + height), abs=0.01)
    for roof in (12, 15, 18, 21):
        assert (around == roof).mean() == pytest.approx(height / (1 + height) / 4, abs=0.01)
    assert (surroundings_m(distance, 1.5, draw) == 1).all()
    low = 18 / 300 + math.exp(-300 / 63) * (1 - 18 / 300)
    assert sight_probability("uma", 300.0, 22.5) == pytest.approx(low * (1 + height))


# Devices dropped


def place(model="umi", **changes):
    settings = {
        "carrier_hz": 3.5e9,
        "radius_m": SITES[model].radius_m,
        "min_distance_m": SITES[model].min_distance_m,
        "base_height_m": SITES[model].base_height_m,
        "device_height_m": SITES[model].device_height_m,
    }
    return Place(model=model, **(settings | changes))


def test_devices_are_spread_evenly_over_the_disc():
    found = place(radius_m=100.0).drop(40_000, seed=3)
    area = (found.distance_m**2 - 10.0**2) / (100.0**2 - 10.0**2)
    assert np.histogram(area, 10, (0, 1))[0] / 40_000 == pytest.approx(np.full(10, 0.1), abs=0.006)
    assert np.histogram(found.angle_rad, 8, (0, 2 * np.pi))[0] / 40_000 == pytest.approx(np.full(8, 0.125), abs=0.006)
    near = (found.distance_m > 45) & (found.distance_m < 55)
    assert found.sight[near].mean() == pytest.approx(sight_probability("umi", 50.0), abs=0.02)


@pytest.mark.parametrize(
    ("model", "sight", "spread"), [("uma", "never", 6.0), ("umi", "always", 4.0), ("umi", "never", 7.82)]
)
def test_shadowing_has_the_reports_spread(model, sight, spread):
    found = place(model, sight=sight).drop(40_000, seed=1)
    assert found.shadow_db.mean() == pytest.approx(0, abs=0.1)
    assert found.shadow_db.std() == pytest.approx(spread, rel=0.02)
    assert (place(model, shadowing=False).drop(10, seed=1).shadow_db == 0).all()


def test_rural_shadowing_is_wider_beyond_the_breakpoint():
    found = place("rma", sight="always", radius_m=5000.0).drop(60_000, seed=1)
    far = found.distance_m > 3848.4
    assert found.shadow_db[far].std() == pytest.approx(6.0, rel=0.03)
    assert found.shadow_db[~far].std() == pytest.approx(4.0, rel=0.03)


def test_buildings_cost_walls_and_rooms_and_leave_rayleigh_fading():
    outside, mixed = place().drop(40_000, seed=2), place(indoor_share=0.8).drop(40_000, seed=2)
    assert mixed.indoor.mean() == pytest.approx(0.8, abs=0.01)
    extra = (mixed.path_loss_db - outside.path_loss_db)[mixed.indoor]
    # walls, 0.5 dB a metre of the smaller of two depths up to 25 m, whose mean is 25/3
    assert extra.mean() == pytest.approx(0.8 * 12.698 + 0.2 * 26.850 + 0.5 * 25 / 3, abs=0.15)
    assert (mixed.path_loss_db == outside.path_loss_db)[~mixed.indoor].all()
    assert mixed.shadow_db[mixed.indoor].std() == pytest.approx(7.0, rel=0.02)
    assert (mixed.kappa[mixed.indoor] == 0).all()


def test_kappa_is_drawn_for_a_line_of_sight_and_rayleigh_without():
    found = place(sight="drawn").drop(40_000, seed=5)
    kappa_db = 10 * np.log10(found.kappa[found.sight])
    assert kappa_db.mean() == pytest.approx(9.0, abs=0.15)
    assert kappa_db.std() == pytest.approx(5.0, rel=0.03)
    assert (found.kappa[~found.sight] == 0).all()
    assert set(place(kappa=4.0).drop(200, seed=5).kappa) == {0.0, 4.0}


def test_gains_add_up_in_decibels_and_fade_around_their_mean():
    found = place(antenna_gain_db=8.0).drop(6, seed=0)
    np.testing.assert_allclose(-10 * np.log10(found.gain), found.path_loss_db + found.shadow_db - 8.0)
    rounds = np.array([found.fading.draw(6, number, seed=9)[0] for number in range(4000)])
    np.testing.assert_allclose(rounds.mean(axis=0), found.gain, rtol=0.08)


def test_further_devices_change_nobodys_place():
    few, many = place(indoor_share=0.5).drop(5, seed=7), place(indoor_share=0.5).drop(9, seed=7)
    for item in fields(few):
        if item.name != "place":
            np.testing.assert_array_equal(getattr(many, item.name)[:5], getattr(few, item.name))
    assert (place().drop(5, seed=8).distance_m != few.distance_m).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"carrier_hz": 0.4e9}, "carrier_hz is 4e.08; in 'umi' of TR 38.901 it must be from 5e.08 to 1e.11"),
        ({"carrier_hz": math.nan}, "carrier_hz is nan"),
        ({"device_height_m": 30.0}, "device_height_m is 30; in 'umi' .* it must be from 1.5 to 22.5"),
        ({"base_height_m": -1.0}, "base_height_m is -1; in 'umi' .* it must be from 0.001 to 1000"),
        ({"min_distance_m": 200.0}, "min_distance_m is 200 and radio.radius_m 100"),
        ({"model": "rma", "carrier_hz": 60e9}, "it must be from 5e.08 to 3e.10"),
        ({"model": "rma", "base_height_m": 5.0}, "it must be from 10 to 150"),
        ({"model": "rma", "indoor_share": 0.5}, "has no loss into buildings"),
        ({"antenna_gain_db": 1e6}, "antenna_gain_db"),
    ],
)
def test_what_the_models_are_not_given_for_is_refused(changes, message):
    model = changes.pop("model", "umi")
    with pytest.raises(ConfigError, match=message):
        place(model, **changes)


@pytest.mark.parametrize(
    ("name", "value"), [("indoor_share", 1.5), ("propagation", "suburb"), ("sight", "often"), ("kappa", -1.0)]
)
def test_ranges_that_do_not_depend_on_the_model_are_declared(name, value):
    with pytest.raises(ConfigError, match=f"radio.{name} is {value!r}; it must be"):
        Radio(**({"propagation": "umi"} | {name: value}))


def test_distances_out_of_range_name_the_device():
    with pytest.raises(ConfigError, match="distance_m of device 1 is 5; it must be from 10 to 5000 m"):
        place().drop(2, 0, [50.0, 5.0])
    with pytest.raises(ConfigError, match=r"distance_m of device 0 is .* from 1 to 150 m, .* heights included"):
        place("inh-open").drop(1, 0, [400.0])
    with pytest.raises(ConfigError, match="2 values for 3 devices"):
        place().drop(3, 0, [50.0, 60.0])


def test_a_height_that_the_report_does_not_vouch_for_is_said():
    with pytest.warns(FeddropWarning, match="base_height_m is 12; TR 38.901 gives 'umi' only for 10"):
        place(base_height_m=12.0)


# Presets and kinds


def test_values_come_from_what_is_given_then_the_preset_then_the_model():
    plain = Radio(preset="urban-micro")
    assert (plain.propagation, plain.noise, plain.policy, plain.devices) == ("umi", "subband", "leave-out", "phone")
    assert (plain.radius_m, plain.base_height_m, plain.carrier_hz, plain.kappa) == (100.0, 10.0, 3.5e9, "drawn")
    given = Radio(preset="urban-micro", radius_m=200.0, noise="density", kappa=3.0, bandwidth_hz=20e6)
    assert (given.radius_m, given.noise, given.kappa) == (200.0, "density", 3.0)
    assert given.base_power_w == pytest.approx(2 * plain.base_power_w)  # as many W/Hz
    assert Radio(preset="urban-micro", bandwidth_hz=10e6).bandwidth_hz == 10e6
    other = Radio(preset="urban-micro", propagation="inh-open")
    assert (other.base_height_m, other.indoor_share) == (3.0, 0.0)
    alone = Radio(propagation="uma")
    assert (alone.noise_figure_db, alone.devices, alone.noise) == ((5.0, 7.0), "paper", "subband")


def test_the_papers_cell_is_what_it_was():
    cell = build_cell(Radio(), 10, 5000, seed=4)
    assert cell.downlink_noise_w_hz is None
    assert (cell.flop_per_cycle == 16).all()
    assert Radio(preset="paper") == Radio()
    assert {name: getattr(Radio(), name) for name in ("bandwidth_hz", "deadline_s", "noise_w_hz", "kappa")} == {
        "bandwidth_hz": 10e6,
        "deadline_s": 8.0,
        "noise_w_hz": 1e-13,
        "kappa": 10.0,
    }


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("changes", [{}, {"deadline_s": 2.0}, {"noise_w_hz": 1e-19}, {"downlink_power_w": 1.0}])
def test_a_configuration_that_was_written_out_is_the_same(preset, changes):
    config = Radio(preset=preset, **changes)
    assert from_table(Radio, to_table(config)) == config
    whole = RunConfig(radio=config)
    assert RunConfig.from_toml(whole.to_toml()).radio == config


def test_the_band_is_noisier_at_the_devices():
    cell = build_cell(Radio(preset="urban-micro"), 4, 100, seed=0)
    assert cell.noise_w_hz == pytest.approx(1.259e-20, rel=1e-3)
    assert cell.downlink_noise_w_hz == pytest.approx(1.995e-20, rel=1e-3)
    channels = replace(cell.draw(1, 0), downlink=np.full(4, 1e-10), uplink=np.full(4, 1e-10))
    cell = replace(cell, downlink_power_w=np.asarray(0.2))
    down, up = cell.bits_per_second(channels, np.full(4, 0.25))
    snr = 0.2 * 1e-10 / (0.25 * 10e6) / np.array([1.9953e-20, 1.2589e-20])
    np.testing.assert_allclose([down[0], up[0]], 2.5e6 * np.log2(1 + snr), rtol=1e-4)


def test_the_base_stations_power_is_split_over_the_devices():
    config = Radio(preset="urban-macro")
    assert config.base_power_w == pytest.approx(10**4.1 / 1e3, rel=1e-2)  # 44 dBm over 20 MHz is 41 over 10
    np.testing.assert_allclose(build_cell(config, 8, 10, seed=0).downlink_power_w, config.base_power_w / 8)
    np.testing.assert_allclose(
        build_cell(replace(config, base_power_w=0.0, downlink_power_w=0.5), 8, 10, 0).downlink_power_w, 0.5
    )


def test_devices_are_of_the_kinds_named():
    cell = build_cell(Radio(devices="phone", noise_w_hz=1e-20), 3000, 10, seed=0)
    for name in GROUPS["phone"]:
        kind = KINDS[name]
        of = cell.cpu_hz == kind.cpu_hz[1]
        assert of.mean() == pytest.approx(1 / 3, abs=0.03)
        for field in ("cpu_constant", "tx_power_w", "flop_per_cycle", "budget_j"):
            assert (getattr(cell, field)[of] == getattr(kind, field)).all()
    both = build_cell(Radio(devices=("pi-4", "esp32"), cpu_hz=(1e9, 2e9), flop_per_cycle=4.0), 50, 10, seed=0)
    assert ((both.cpu_hz >= 1e9) & (both.cpu_hz <= 2e9)).all()
    assert (both.flop_per_cycle == 4).all()
    assert set(both.budget_j) == {np.inf, 2.7}


def test_in_a_dynamic_cell_clocks_stay_in_the_range_of_their_kind():
    config = Radio(devices=("phone-low", "pi-5"), dynamic=True, min_devices=2)
    cell = build_cell(config, 40, 10, seed=0)
    clocks = cell.draw(range(50), 0).cpu_hz
    low = cell.cpu_hz == 2.02e9
    assert clocks[:, low].min() < 0.5e9
    assert clocks[:, low].max() <= 2.02e9
    assert clocks[:, ~low].min() >= 1.5e9


@pytest.mark.parametrize("noise", ["density", "subband"])
def test_no_clock_is_chosen_below_the_lowest_of_its_kind(noise):
    """A phone that has time and little energy would be given 6 MHz."""
    config = Radio(preset="urban-macro", noise=noise, deadline_s=60.0, bits_per_parameter=32.0)
    lowest = {KINDS[name].cpu_hz[1]: KINDS[name].cpu_hz[0] for name in GROUPS["phone"]}
    for dynamic in (False, True):
        cell = build_cell(replace(config, dynamic=dynamic), 10, 2000, seed=1)
        channels = cell.draw(1, 1)
        least = np.array([lowest[clock] for clock in cell.cpu_hz])
        for choose in (("cpu",), ("power", "cpu")):
            found = allocate(cell.problem(channels, **LENET, choose=choose), policy="leave-out")
            assert (found.cpu_hz[found.active] >= least[found.active]).all()
            assert (found.cpu_hz[found.active] <= channels.cpu_hz[found.active]).all()
            assert (found.cpu_hz == least).any()
            assert found.residual <= 1e-8


def test_who_has_a_lowest_clock():
    """A kind's own; at most the clock that a device is given; the paper's devices have none."""
    slow = build_cell(Radio(devices="phone-low", cpu_hz=(0.2e9, 0.4e9)), 20, 10, seed=0)
    problem = slow.problem(slow.draw(1, 0), **LENET, choose=("cpu",))
    np.testing.assert_array_equal(problem.least_cpu_hz, np.minimum(0.3e9, slow.cpu_hz))
    assert (slow.cpu_hz < 0.3e9).any()
    paper = build_cell(Radio(control=("rate", "share", "cpu")), 5, 10, seed=0)
    assert (paper.problem(paper.draw(1, 0), **LENET, choose=("cpu",)).least_cpu_hz == 0).all()


def test_every_kind_and_group_is_declared():
    assert (*KINDS, *GROUPS) == DEVICE_KINDS
    assert tuple(MODELS) == tuple(SITES)


@pytest.mark.parametrize("name", KINDS)
def test_power_at_the_highest_clock_is_what_was_measured(name):
    watts = {"phone-low": 2.1, "phone-mid": 1.2, "phone-high": 4.6, "pi-4": 5.6, "pi-5": 9.6, "jetson-nano": 10.0}
    watts |= {"jetson-orin-nano": 15.0, "esp32": 0.22, "nordic-m33": 0.008}
    assert KINDS[name].cpu_constant * KINDS[name].cpu_hz[1] ** 3 == pytest.approx(watts[name], rel=0.03)


@pytest.mark.parametrize("preset", ["urban-macro", "urban-micro", "indoor"])
def test_presets_drop_some_of_lenet_and_keep_most_devices(preset):
    rates, left_out = [], []
    for seed in range(12):
        config = Radio(preset=preset, bits_per_parameter=32)
        cell = build_cell(config, 10, 144, seed=seed)
        found = allocate(cell.problem(cell.draw(range(1, 4), seed), **LENET), policy=config.policy)
        rates.append(found.rate[found.active].mean())
        left_out.append(found.left_out.mean())
        assert (found.latency_s <= config.deadline_s).all()
    assert 0.15 < np.mean(rates) < 0.5
    assert np.mean(left_out) < 0.25


def test_what_a_microcontroller_cannot_do_is_explained():
    cell = build_cell(Radio(preset="indoor", devices="microcontroller", deadline_s=60.0), 3, 100, seed=0)
    with pytest.raises(InfeasibleError, match=r"device 0 .* deadline"):
        allocate(cell.problem(cell.draw(1, 0), **ALEXNET))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": "suburb"}, "radio.preset is 'suburb'"),
        ({"propagation": "uam"}, "radio.propagation is 'uam'; it must be one of"),
        ({"radius_m": 50.0}, "radio.radius_m is 50.0, which has no effect without radio.propagation"),
        ({"shadowing": False}, "radio.shadowing is False, which has no effect"),
        ({"indoor_share": 0.5}, "radio.indoor_share is 0.5, which has no effect"),
        ({"kappa": "drawn"}, "radio.kappa is 'drawn'; without radio.propagation it must be a number"),
        ({"preset": "urban-micro", "kappa": "dawn"}, "radio.kappa is 'dawn'"),
        ({"preset": "urban-micro", "path_loss": 1e-9}, "path_loss is 1e-09, which has no effect: path loss comes from"),
        ({"preset": "urban-micro", "gains_csv": "a.csv", "propagation": "umi"}, "gains_csv and radio.propagation"),
        ({"gains_array": "a.npy", "gains_csv": "a.csv"}, "gains_csv and radio.gains_array are both given"),
        ({"preset": "urban-micro", "distances_m": (50.0,), "radius_m": 60.0}, "remove radio.radius_m"),
        ({"preset": "indoor", "noise_w_hz": 1e-19, "noise_figure_db": (5.0, 7.0)}, "give one of them"),
        ({"noise_figure_db": (5.0,)}, "it must be two numbers"),
        ({"noise_figure_db": (5.0, 7.0), "noise": "literal"}, 'radio.noise is "literal"'),
        ({"base_power_w": 2.0, "downlink_power_w": 0.5}, "base_power_w and radio.downlink_power_w are both given"),
        ({"devices": "fone"}, "radio.devices is 'fone'.*Did you mean 'phone'"),
        ({"cpu_hz": ()}, r"radio.cpu_hz is \[\]; it must be \[lowest, highest\]"),
        ({"flop_per_cycle": 0.0}, "flop_per_cycle of device 0 is 0"),
        ({"energy_budget_j": 0.0}, "budget_j of device 0 is 0"),
    ],
)
def test_what_cannot_be_or_has_no_effect_is_an_error(settings, message):
    with pytest.raises(ConfigError, match=message):
        build_cell(Radio(**settings), 2, 10, seed=0)


def test_a_preset_that_is_overridden_throughout_is_an_error():
    with pytest.raises(ConfigError, match=r"radio.preset is 'indoor', which has no effect"):
        replace(Radio(), preset="indoor")


def test_distances_take_the_place_of_the_drop(tmp_path):
    (tmp_path / "d.csv").write_text("distance_m\n20\n90\n")
    for config in (
        Radio(preset="urban-micro", distances_m=(20.0, 90.0), sight="never", shadowing=False, indoor_share=0.0),
        Radio(preset="urban-micro", devices_csv="d.csv", sight="never", shadowing=False, indoor_share=0.0),
    ):
        cell = build_cell(config, 2, 10, seed=0, folder=tmp_path)
        loss = path_loss_db("umi", Link(np.array([20.0, 90.0]), 3.5, 10.0, 1.5), [False, False])
        np.testing.assert_allclose(-10 * np.log10(cell.fading.path_loss), loss - 8.0)


# Measured gains as arrays


def test_arrays_are_gains_round_by_round(tmp_path):
    gains = np.random.default_rng(0).random((4, 3)).astype(np.float32) + 0.1
    np.save(tmp_path / "g.npy", gains)
    np.savez_compressed(tmp_path / "g.npz", uplink=gains, downlink=2 * gains)
    one, two = read_arrays(tmp_path / "g.npy"), read_arrays(tmp_path / "g.npz")
    np.testing.assert_array_equal(one.uplink, gains)
    np.testing.assert_array_equal(one.downlink, gains)
    np.testing.assert_allclose(two.downlink, 2 * gains)
    cell = build_cell(Radio(gains_array="g.npy", noise_w_hz=1e-20), 3, 10, seed=0, folder=tmp_path)
    np.testing.assert_array_equal(cell.draw(1, 0).uplink, gains[0])  # rounds count from 1
    np.testing.assert_array_equal(cell.draw(5, 0).uplink, gains[0])  # and begin again
    preset = Radio(preset="urban-micro", gains_array="g.npy")
    assert (preset.propagation, preset.noise_figure_db) == ("", (5.0, 7.0))
    np.testing.assert_array_equal(build_cell(preset, 3, 10, seed=0, folder=tmp_path).draw(2, 0).uplink, gains[1])


def amplitudes(*shape, seed=0):
    random = np.random.default_rng(seed)
    return random.standard_normal(shape) + 1j * random.standard_normal(shape)


def test_sionnas_arrays_by_plain_loops(tmp_path):
    """Uplink ``a`` of 2 rounds, 1 base station with 4 antennas, 3 devices with 2, 5 paths, 6 time steps."""
    a = amplitudes(2, 1, 4, 3, 2, 5, 6)
    wanted = np.zeros((2, 3, 6))  # every time step keeps its own gain
    for r in range(2):
        for k in range(3):
            for own in range(2):
                for base in range(4):
                    for t in range(6):
                        wanted[r, k, t] += sum(abs(a[r, 0, base, k, own, p, t]) ** 2 for p in range(5)) / 2
    np.testing.assert_allclose(gains_from(a, form="cir").uplink, wanted)
    downlink = np.moveaxis(a, (1, 2, 3, 4), (3, 4, 1, 2))  # the base station sends
    np.testing.assert_allclose(gains_from(downlink, form="cir").uplink, wanted)
    np.testing.assert_allclose(gains_from(a, downlink, form="cir").downlink, wanted)
    np.testing.assert_allclose(gains_from(a[0], form="cir").uplink, wanted[:1])  # ray tracing: no batch
    np.savez(tmp_path / "s.npz", a=a.astype(np.complex64), tau=np.zeros((2, 1, 3, 5), np.float32))
    np.testing.assert_allclose(read_arrays(tmp_path / "s.npz").uplink, wanted, rtol=1e-5)


def test_a_channel_over_subcarriers_has_the_power_of_its_paths():
    """h_freq = Σ a exp(-2πi f τ) over a whole period of frequencies: the mean of |h|² is Σ|a|²."""
    a, tau = amplitudes(2, 1, 1, 3, 1, 4, 1), np.arange(4.0)
    h = np.einsum("...pt,pn->...tn", a, np.exp(-2j * np.pi * np.outer(tau, np.arange(16)) / 16))
    np.testing.assert_allclose(gains_from(h, form="ofdm").uplink.mean(axis=-1), gains_from(a, form="cir").uplink)


@pytest.mark.parametrize(
    ("array", "form", "message"),
    [
        (np.ones(3), "power", r"shape \[3\]; they must be \[rounds, devices\]"),
        (np.ones((0, 3)), "power", r"shape \[0, 3\]"),
        (np.ones((2, 3, 1, 1)), "power", r"shape \[2, 3, 1, 1\]"),
        (np.array([[1.0, np.nan]]), "power", "uplink gain of device 1 in round 1 is nan"),
        (np.array([[1.0, 0.0]]), "power", "uplink gain of device 1 in round 1 is 0; it must be positive"),
        (np.array([[1.0], [np.inf]]), "power", "device 0 in round 2 is inf"),
        (np.ones((2, 3), complex), "power", r"uplink gains are complex; they must be powers \|h\|²"),
        (np.array([["a", "b"]]), "power", "have type <U1; they must be numbers"),
        ([[1.0], [1.0, 2.0]], "power", "have type object; they must be numbers"),
        (np.ones((2, 1, 1, 3, 1, 1, 1)), "cir", "type float64; it must hold complex"),
        (np.ones((2, 3), complex), "cir", r"shape \[2, 3\]; it must be \[rounds, rx, .* paths, time steps\]"),
        (np.ones((2, 3), complex), "ofdm", r"time steps, subcarriers\]"),
        (
            np.ones((2, 2, 1, 3, 1, 1, 1), complex),
            "cir",
            "2 receivers and 3 transmitters; one side must be a single base station",
        ),
        (np.full((1, 1, 1, 2, 1, 1, 1), np.nan + 0j), "cir", "device 0 in round 1 is nan"),
        (np.ones((2, 2)), "mimo", "form is 'mimo'"),
    ],
)
def test_arrays_that_are_no_gains(array, form, message):
    with pytest.raises(ConfigError, match=message):
        gains_from(array, form=form)


def as_npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def as_npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def a_lying_header(shape=b"(99999999, 99999999)"):
    head = b"{'descr': '<f8', 'fortran_order': False, 'shape': %b, }" % shape
    return b"\x93NUMPY\x01\x00" + (len(head) + 1).to_bytes(2, "little") + head + b"\n" + b"\0" * 64


def zipped(name, data):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, data)
    return file.getvalue()


def with_directory(at, value):
    """An archive with another byte in its directory: 6 is the version needed, 8 holds the flag of encryption."""
    data = bytearray(as_npz(uplink=np.ones((2, 2))))
    data[data.index(b"PK\x01\x02") + at] = value
    return bytes(data)


def a_bomb():
    """Three arrays of 2 GB of zeros each, as its directory says."""
    data = bytearray(as_npz(uplink=np.ones((2, 2)), downlink=np.ones((2, 2)), a=np.ones(2)))
    for found in re.finditer(b"PK\x01\x02", bytes(data)):
        data[found.start() + 24 : found.start() + 28] = (2**31).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("g.npy", as_npy(np.array([{"a": 1}], dtype=object)), "Python objects, which are never unpickled"),
        ("g.npz", as_npz(uplink=np.array([None])), "never unpickled"),
        ("g.npy", b"\x93NUMPY\x01\x00\x0b\x00{'descr': (\n", "cannot read the gains"),
        ("g.npy", pickle.dumps([1.0]), "cannot read the gains"),
        ("g.npy", b"", "cannot read the gains"),
        ("g.npy", as_npy(np.ones((2, 2)))[:-3], "cannot read the gains"),
        ("g.npy", a_lying_header(), "cannot read the gains"),
        ("g.npz", zipped("uplink.npy", a_lying_header()), "cannot read the gains"),
        ("g.npz", b"PK\x03\x04 not a zip", "cannot read the gains"),
        ("g.npz", with_directory(6, 99), "cannot read the gains .*zip file version 9.9"),
        ("g.npz", with_directory(8, 1), "cannot read the gains .*encrypted"),
        ("g.npz", a_bomb(), "cannot read the gains .*it holds 6,442,450,944 bytes"),
        ("g.npy", a_lying_header(b"(True, 3)"), "cannot read the gains"),
        ("g.npy", as_npy(np.full((2, 2), 1e-320)), "it must be positive, at least 1e-30 and below 1e\\+30"),
        ("g.npz", as_npy(np.ones((2, 2))), "cannot read the gains"),
        ("g.npy", as_npz(uplink=np.ones((2, 2))), "its content does not match its ending"),
        ("g.npz", as_npz(), "holds no arrays"),
        ("g.npz", as_npz(uplnk=np.ones((2, 2))), "Did you mean 'uplink'"),
        ("g.npz", as_npz(uplink=np.ones((2, 2)), a=np.ones(2)), "it must hold uplink"),
        ("g.npz", as_npz(downlink=np.ones((2, 2))), "it must hold uplink"),
        ("g.npz", as_npz(uplink=np.ones((2, 2)), downlink=np.ones((3, 2))), "the shapes must be the same"),
        ("g.npy", as_npy(np.ones((2, 2), complex)), "g.npy.: uplink gains are complex"),
        ("g.mat", b"", "the ending of radio.gains_array 'g.mat' is '.mat'"),
    ],
)
def test_files_that_hold_no_gains(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        read_arrays(tmp_path / name)
    with pytest.raises(ConfigError, match="cannot read the gains"):
        read_arrays(tmp_path / "nowhere.npz")


@pytest.mark.parametrize("name", ["pipe.npy", "pipe.npz", "folder.npy"])
def test_gains_are_read_from_regular_files_only(tmp_path, name):
    """A pipe without a writer would be waited for; here it has one, so that a mistake fails at once."""
    if name == "folder.npy":
        (tmp_path / name).mkdir()
    else:
        os.mkfifo(tmp_path / name)
        writer = os.open(tmp_path / name, os.O_RDWR | os.O_NONBLOCK)
        threading.Timer(1.0, os.close, [writer]).start()
    with pytest.raises(ConfigError, match="it is not a regular file"):
        read_arrays(tmp_path / name)


# The page and its picture


def test_the_python_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "cells.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "cells.md", "exec"), {})
    assert read_arrays("gains.npz").uplink.shape == (30, 10)


def test_the_page_has_every_preset_kind_and_model():
    text = (DOCS / "cells.md").read_text()
    for name in (*PRESETS, *KINDS, *GROUPS, *MODELS):
        assert f"`{name}`" in text
    for name, kind in KINDS.items():
        (row,) = (line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert float(cells[3].split(",")[0]) == kind.flop_per_cycle
        assert float(cells[4]) == kind.cpu_constant
        assert float(cells[6]) == kind.tx_power_w
        assert (
            cells[2].split()[-1] == f"{kind.cpu_hz[1] / 1e9:.2f}" or float(cells[2].split()[-1]) == kind.cpu_hz[1] / 1e9
        )


def test_the_picture_shows_who_was_dropped_where():
    *maps, gains = cells_figure(devices=30).axes
    assert [sum(len(points.get_offsets()) for points in panel.collections) for panel in maps] == [30, 30, 30]
    assert len(gains.lines) == 4


# In a run

SMALL = ["rounds=3", "data.devices=4", "data.train_limit=120", "model.width=0.5"]


def test_gains_of_your_own_are_an_argument_of_a_run(tmp_path):
    config = RunConfig.from_toml("", [*SMALL, "radio.deadline_s=0.05", "radio.noise_figure_db=[5, 7]"])
    good, poor = np.full((3, 4), 3e-10), np.full((3, 4), 1e-10)
    ours = run(config, tmp_path / "a", gains=good)
    theirs = run(config, tmp_path / "b", gains=MeasuredGains(uplink=poor, downlink=poor))
    assert ours[0].objective < theirs[0].objective
    job = Run(config, tmp_path / "c", gains=good)
    next(iter(job))
    np.testing.assert_array_equal(job.prepared.scheme.decide(2).channels.uplink, good[1])
    with pytest.raises(Exception, match=r"pass the same: feddrop.resume\(folder, gains=...\)"):
        resume(tmp_path / "c")
    with pytest.raises(Exception, match="gains"):
        resume(tmp_path / "c", gains=poor)
    assert [r.objective for r in resume(tmp_path / "c", gains=good)] == [r.objective for r in ours]
    for settings, message in (
        (["rate=0.3"], "gains .* no effect"),
        (["radio.preset=indoor"], "radio.propagation are both given"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(RunConfig.from_toml("", [*SMALL, *settings]), tmp_path / "d", gains=good)


def test_gains_of_fewer_rounds_are_pointed_out(tmp_path, caplog):
    np.save(tmp_path / "g.npy", np.full((2, 4), 1e-9))
    settings = [f"radio.gains_array={tmp_path / 'g.npy'}", "radio.noise_figure_db=[5, 7]"]
    Run(RunConfig.from_toml("", [*SMALL, *settings]), tmp_path / "run")
    assert "gains of 2 rounds for a run of 3: they repeat" in caplog.text


def test_gains_of_further_devices_are_pointed_out():
    gains = gains_from(np.full((4, 30), 1e-9))  # as of 30 rounds of 4 devices, the axes swapped
    config = Radio(noise_figure_db=(5.0, 7.0))
    with pytest.warns(FeddropWarning, match=r"gains of 30 devices for 4: those from device 4 on have no effect"):
        build_cell(config, 4, 100, 0, gains=gains)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_cell(config, 30, 100, 0, gains=gains)


def test_a_preset_runs_and_resumes_to_the_bit(tmp_path):
    config = RunConfig.from_toml("", [*SMALL, "radio.preset=urban-micro", "radio.deadline_s=0.1"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", FeddropWarning)
        whole = run(config, tmp_path / "whole")
    next(iter(Run(config, tmp_path / "stopped")))
    again = resume(tmp_path / "stopped")
    assert [replace(r, wall_s=None) for r in again] == [replace(r, wall_s=None) for r in whole]
    devices = [d for record in whole for d in record.devices if d.took_part]
    assert any(d.rate > 0.05 for d in devices)
    assert all(d.latency_s <= 0.1 for d in devices)


@pytest.mark.parametrize("noise", ["density", "literal", "subband"])
def test_rates_are_averaged_over_subcarriers_not_gains(noise):
    """Rayleigh fading at a mean signal-to-noise ratio of 10: 2.91 bit/s/Hz, where the mean gain would give 3.46."""
    fading = np.random.default_rng(0).standard_normal((2, 64 * 1024)) / np.sqrt(2)
    h = 1e-5 * (fading[0] + 1j * fading[1]).reshape(1, 1, 1, 1, 1, 64, 1024)
    h /= np.sqrt(np.mean(np.abs(h) ** 2)) / 1e-5  # a mean gain of 1e-10
    band = 1.0 if noise == "literal" else 1e7
    cell = replace(
        Cell.paper(1, seed=0, noise=noise, bandwidth_hz=1e7),
        fading=gains_from(h, form="ofdm"),
        tx_power_w=np.array([0.1]),
        downlink_power_w=np.array([0.1]),
        noise_w_hz=0.1 * 1e-10 / (10 * band),
    )
    channels = cell.draw(1, seed=0)
    by_hand = float(np.mean(np.log2(1 + 10 * np.abs(h) ** 2 / 1e-10)))
    assert by_hand == pytest.approx(2.91, abs=0.01)
    assert np.log2(1 + 10) == pytest.approx(3.46, abs=0.01)
    for rate in cell.bits_per_second(channels, np.ones(1)):
        assert rate[0] / 1e7 == pytest.approx(by_hand, rel=1e-9)
    assert channels.uplink.shape == (1,)


def test_flat_gains_and_gains_per_resource_agree():
    flat = np.array([[1e-9, 2e-10], [3e-9, 4e-11]])
    cell = build_cell(Radio(noise_figure_db=(5.0, 7.0)), 2, 10, seed=0, gains=gains_from(flat))
    wide = build_cell(
        Radio(noise_figure_db=(5.0, 7.0)), 2, 10, seed=0, gains=gains_from(np.repeat(flat[..., None], 5, 2))
    )
    np.testing.assert_allclose(wide.draw([1, 2, 3], 0).uplink, cell.draw([1, 2, 3], 0).uplink, rtol=1e-12)
    with pytest.raises(ConfigError, match="uplink gain of device 1 in round 1 is 0; it must be positive"):
        gains_from(np.array([[[1e-9, 1e-9], [0.0, 0.0]]]))


def test_physical_noise_is_the_default_of_real_gains(tmp_path):
    """Gains, distances, a propagation model or a noise figure bring subband noise; what is given wins."""
    (tmp_path / "d.csv").write_text("distance_m\n100\n200\n")
    assert Radio().noise == Radio(path_loss=(1e-3, 1e-4)).noise == Cell.paper(seed=0).noise == "density"
    real = (
        {"gains_csv": "g.csv"},
        {"gains_array": "g.npy"},
        {"distances_m": (100.0, 200.0)},
        {"noise_figure_db": (5.0, 7.0)},
        {"propagation": "umi"},
    )
    for given in real:
        assert Radio(**given).noise == "subband"
        assert Radio(**given, noise="density").noise == "density"
        again = Radio(**to_table(Radio(**given)))
        assert again == Radio(**given)
    assert replace(Radio(), distances_m=(100.0,)).noise == "subband"
    assert replace(Radio(noise="density"), distances_m=(100.0,)).noise == "density"
    quiet = {"noise_w_hz": 1.26e-20}
    for noise in ("density", "literal"):
        cell = build_cell(Radio(devices_csv="d.csv", noise=noise, **quiet), 2, 10, seed=0, folder=tmp_path)
        assert cell.noise == noise
    assert build_cell(Radio(devices_csv="d.csv", **quiet), 2, 10, seed=0, folder=tmp_path).noise == "subband"
    gains = np.full((1, 2), 1e-10)
    assert build_cell(Radio(**quiet), 2, 10, seed=0, gains=gains_from(gains)).noise == "subband"
    assert build_cell(Radio(noise="density", **quiet), 2, 10, seed=0, gains=gains_from(gains)).noise == "density"


@pytest.mark.parametrize(
    ("settings", "gains", "message"),
    [
        ({"noise_figure_db": (5.0, 7.0)}, [[110.0, 1e-9]], "a measured gain is 110, above 1"),
        ({"path_loss": 100.0}, None, r"mean gain of a device .radio.path_loss. is 100, above 1.* 1e-10"),
        ({"tx_power_w": (20.0, 23.0)}, None, r"transmits with 2\d.* W .tx_power_w.* If it is in dBm"),
        ({"tx_power_w": (1.0, 30.0), "dynamic": True, "min_devices": 1}, None, "30 dBm is 1 W"),
    ],
)
def test_values_in_other_units_are_pointed_out(settings, gains, message):
    with pytest.warns(FeddropWarning, match=message) as told:
        build_cell(Radio(**settings), 2, 10, seed=0, gains=None if gains is None else gains_from(gains))
    assert len(told) == 1


def test_a_path_loss_with_a_plus_sign_is_pointed_out(tmp_path):
    (tmp_path / "g.csv").write_text("round,device,uplink_db\n1,0,100\n")
    with pytest.warns(FeddropWarning, match="a path loss of 100 dB is -100 dB"):
        build_cell(Radio(gains_csv="g.csv", noise_figure_db=(5.0, 7.0)), 1, 10, seed=0, folder=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (tmp_path / "g.csv").write_text("round,device,uplink_db\n1,0,-100\n")
        build_cell(Radio(gains_csv="g.csv", noise_figure_db=(5.0, 7.0)), 1, 10, seed=0, folder=tmp_path)
        build_cell(Radio(tx_power_w=(0.2, 2.0)), 2, 10, seed=0)
