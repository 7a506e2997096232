"""What the paper says of the optimal allocation, claim by claim: where it holds, and where it does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from feddrop.allocation import Problem, allocate
from feddrop.radio import Cell
from support.allocate_cases import KINDS, problems
from support.power_cases import power_problems

MODEL = {"parameters": 69_656, "forward_flops": 1_318_560}  # LeNet


def twins(p: Problem, factor: float, names: tuple[str, ...]) -> Problem:
    """Make device 1 the same as device 0, but for the costs named, which are ``factor`` times as high."""
    fields = ("weight", "comm_s", "compute_s", "upload_j", "compute_j", "budget_j")
    values = {name: np.array(np.broadcast_to(getattr(p, name), p.shape)) for name in fields}
    for name, value in values.items():
        value[:, 1] = value[:, 0] * (factor if name in names else 1.0)
    return replace(p, **values)


# Claim 1: a better channel means a lower rate and a smaller share.


@pytest.mark.parametrize("kind", KINDS)
def test_better_channel_lower_rate_and_smaller_share_among_equals(kind):
    """Holds between two devices that differ in nothing but spectral efficiency, uplink and downlink alike."""
    p = twins(problems(kind, 8, 200, seed=1), 0.5, ("comm_s", "upload_j"))
    result = allocate(p, policy="leave-out")
    both = result.active[:, :2].all(axis=-1)
    rate, share = result.rate[both], result.share[both]
    assert both.sum() > 100
    assert (rate[:, 1] <= rate[:, 0] + 1e-12).all()
    assert (share[:, 1] <= share[:, 0] * (1 + 1e-12)).all()
    if kind != "loose":
        assert (share[:, 1] < share[:, 0]).mean() > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_whose_channel_improves_gets_a_lower_rate_and_a_smaller_share(kind):
    """Holds for one device over time too, all others staying as they are."""
    before = problems(kind, 8, 200, seed=2)
    better = np.where(np.arange(8) == 0, 0.5, 1.0)
    after = replace(before, comm_s=before.comm_s * better, upload_j=before.upload_j * better)
    old, new = allocate(before), allocate(after)
    assert (new.rate[:, 0] <= old.rate[:, 0] + 1e-9).all()
    priced = (old.price > 0)[:, 0]
    assert (new.share[priced, 0] <= old.share[priced, 0] * (1 + 1e-9)).all()


def test_a_better_downlink_alone_can_mean_a_larger_share():
    """The counterexample: where deadline and energy hold a device together, less to download leaves energy to hold it.

    More band then saves energy to the end, and the device is given it.
    """
    p = Problem(
        weight=[0.5, 0.5],
        comm_s=[0.1, 0.2],
        compute_s=[1.2, 0.9],
        upload_j=[0.4, 0.1],
        compute_j=[0.6, 0.1],
        deadline_s=1.0,
        budget_j=1.0,
        max_rate=0.9,
    )
    result = allocate(p)
    better = allocate(replace(p, comm_s=np.array([0.08, 0.2])))
    assert result.binding[0] == "deadline+energy"
    assert better.share[0] > result.share[0] * 1.05
    assert better.rate[0] < result.rate[0]


# Claim 2: share and rate move oppositely.


def test_with_more_band_a_device_drops_less():
    """Holds for one device whose costs stay the same: its rate falls with its share, whatever the others do."""
    p = problems("mixed", 8, 50, seed=3)
    old = allocate(p)
    for factor in (0.5, 2.0):
        others = np.where(np.arange(8) == 0, 1.0, factor)
        new = allocate(replace(p, comm_s=p.comm_s * others, upload_j=p.upload_j * others), policy="leave-out")
        here = new.active[:, 0] & (old.price > 0)[:, 0] & (new.price > 0)[:, 0]
        moved = (new.share[:, 0] - old.share[:, 0])[here]
        dropped = (new.rate[:, 0] - old.rate[:, 0])[here]
        assert (moved * dropped <= 1e-15).all()


def test_who_has_more_data_gets_more_band_and_drops_less():
    """Holds between two devices that differ in their data alone, the cost of computing aside."""
    p = twins(problems("mixed", 8, 200, seed=4), 2.0, ("weight",))
    result = allocate(p, policy="leave-out")
    both = result.active[:, :2].all(axis=-1)
    assert both.sum() > 100
    assert (result.share[both, 1] >= result.share[both, 0] * (1 - 1e-12)).all()
    assert (result.rate[both, 1] <= result.rate[both, 0] + 1e-12).all()


def test_who_has_the_worse_channel_gets_more_band_and_drops_more():
    """The counterexample, and it contradicts claim 1 of the same paper: through the channel, both move the same way."""
    p = Problem(
        weight=[0.5, 0.5],
        comm_s=[0.4, 0.8],
        compute_s=0.1,
        upload_j=0.0,
        compute_j=0.0,
        deadline_s=1.0,
        budget_j=np.inf,
        max_rate=0.9,
    )
    result = allocate(p)
    assert result.share[1] > result.share[0]
    assert result.rate[1] > result.rate[0]
    cell = Cell.paper(seed=0)
    by_fading = allocate(cell.problem(cell.draw(range(300), 0), **MODEL))
    assert np.corrcoef(by_fading.share.ravel(), by_fading.rate.ravel())[0, 1] > 0.7


# Claim 3: rate against CPU speed is not monotone.


def rates_by_frequency(budget_j: float, choose: tuple[str, ...] = ()) -> np.ndarray:
    """Rate of device 0 for CPU frequencies from 0.5 to 10 GHz, in the paper's cell; the highest, where it is chosen."""
    cell = Cell.paper(seed=1, budget_j=budget_j, noise="literal", deadline_s=1.2)
    channels = cell.draw(0, 1)
    rates = []
    for hz in np.linspace(0.5e9, 10e9, 39):
        here = replace(channels, cpu_hz=np.where(np.arange(10) == 0, hz, channels.cpu_hz))
        rates.append(allocate(cell.problem(here, **MODEL, choose=choose)).rate[0])
    return np.array(rates)


def test_rate_against_cpu_speed_falls_and_rises_when_energy_binds():
    rates = rates_by_frequency(300.0)
    lowest = int(np.argmin(rates))
    assert 0 < lowest < len(rates) - 1
    assert (np.diff(rates[: lowest + 1]) <= 1e-12).all()
    assert (np.diff(rates[lowest:]) >= -1e-12).all()
    assert rates[0] > rates[lowest] + 0.02
    assert rates[-1] > rates[lowest] + 0.2


def test_rate_against_cpu_speed_only_falls_when_energy_does_not_bind():
    assert (np.diff(rates_by_frequency(np.inf)) < 0).all()


def test_when_the_clock_is_chosen_the_rate_rises_a_thirtieth_as_much():
    """It survives, but for another reason: no energy is wasted, band goes elsewhere. Then nothing changes any more."""
    fixed, chosen = rates_by_frequency(300.0), rates_by_frequency(300.0, ("power", "cpu"))
    rise, little = fixed[-1] - fixed.min(), chosen[-1] - chosen.min()
    assert rise > 0.45
    assert 0.005 < little < rise / 25
    assert np.ptp(chosen[-10:]) < 1e-9


def test_with_its_share_held_a_faster_clock_that_is_chosen_never_raises_the_rate():
    p = power_problems("mixed", 6, 20, seed=41)
    rates = []
    for factor in np.geomspace(1.0, 8.0, 7):
        cpu_hz = np.where(np.arange(6) == 0, factor, 1.0) * p.cpu_hz
        rates.append(allocate(replace(p, cpu_hz=cpu_hz), "equal", policy="leave-out").rate[:, 0])
    assert np.diff(rates, axis=0).max() <= 1e-9


def test_but_through_the_band_it_may_rise_a_little():
    """The faster device is held by energy too, band is worth less to it, and goes to the other: Σ w/(1-γ) falls."""
    p = power_problems("full speed", 2, 25, seed=41)
    found = [allocate(replace(p, cpu_hz=np.array([factor, 1.0]) * p.cpu_hz)) for factor in np.geomspace(1.0, 8.0, 9)]
    rise = np.diff([one.rate[:, 0] for one in found], axis=0)
    assert 0.005 < rise.max() < 0.05
    assert np.diff([one.objective for one in found], axis=0).max() <= 1e-9
    assert np.diff([one.share[:, 0] for one in found], axis=0).flat[rise.argmax()] < 0
