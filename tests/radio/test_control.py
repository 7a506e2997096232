"""Power and clock chosen in a run: deadlines and budgets hold by measured costs, whatever is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from feddrop.config import FedDrop, Participation, Radio, RunConfig
from feddrop.errors import ConfigError
from feddrop.methods import build_method
from feddrop.methods.method import Setup
from feddrop.models import lenet
from feddrop.models.flops import count_flops
from feddrop.simulation.cell_rates import CellRates
from feddrop.simulation.live import line, table
from feddrop.simulation.participation import Roster
from feddrop.simulation.round import DeviceRound
from feddrop.simulation.run import Run, resume, run
from feddrop.simulation.schemes import Workload
from feddrop.wire import frame_bytes

ALL = ("rate", "share", "power", "cpu")
CONTROLS = [("rate", "share"), ("rate",), ("rate", "power"), ("rate", "share", "cpu"), ("rate", "cpu", "power"), ALL]
DEVICES, DEADLINE_S, BUDGET_J = 5, 1.4, 100.0
BASE = ["rounds=2", "data.devices=4", "data.train_limit=80", "radio.deadline_s=0.45", "radio.energy_budget_j=0.2"]
EVERYTHING = 'radio.control=["rate", "share", "power", "cpu"]'


@pytest.fixture(scope="module")
def work() -> Workload:
    setup = Setup(model=lenet(), example=torch.zeros(1, 3, 32, 32), rounds=1)
    flops = count_flops(setup.model, setup.example)
    return Workload(
        samples=[900, 700, 1100, 800, 1000],
        parameters=69_656,
        flops=lambda kept: (flops.of(kept or {}).forward, 3.0 * flops.of(kept or {}).forward),
        sizes=build_method(FedDrop(), setup).sizes,
        dtype="float32",
    )


def trained(decision, work):
    """What the devices of a decision would send and receive, to the byte."""
    for device, rate in decision.rates.items():
        kept = work.sizes(rate).kept
        size = frame_bytes(kept, work.dtype)
        yield DeviceRound(
            device=device, rate=rate, num_samples=1, loss=1.0, push_bytes=size, pull_bytes=size, kept=kept,
            status="ok", suspicious="", seconds=0.0,
        )  # fmt: skip


@pytest.mark.parametrize("noise", ["density", "literal", "subband"])
@pytest.mark.parametrize("control", CONTROLS, ids="+".join)
def test_deadline_and_budget_hold_by_measured_costs(work, control, noise):
    quick = {"density": 1.0, "literal": 0.25, "subband": 0.6}[noise]
    radio = Radio(
        control=control, noise=noise, deadline_s=DEADLINE_S * quick, energy_budget_j=BUDGET_J, circuit_j=0.05,
        flop_per_cycle=4.0, dynamic=True, min_devices=3, policy="leave-out",
    )  # fmt: skip
    rates = CellRates(radio, work, Roster(Participation(share=0.8), DEVICES, 0), 0)
    held = set()
    for round_ in (1, 2):
        decision = rates.decide(round_)
        costs = rates.costs(decision, list(trained(decision, work)))
        here = rates.cell.draw(round_, rates_seed(rates))
        held |= set(decision.binding.values())
        assert sum(decision.shares.values()) <= 1.0 + 1e-12
        assert set(decision.powers) == (set(decision.rates) if "power" in control else set())
        assert set(decision.clocks) == (set(decision.rates) if "cpu" in control else set())
        if "share" not in control:
            assert np.ptp(list(decision.shares.values())) < 1e-12
        for device, cost in costs.items():
            assert cost["latency_s"] <= radio.deadline_s
            assert cost["energy_j"] <= BUDGET_J
            assert 0 < decision.powers.get(device, 1e-9) <= here.tx_power_w[device]
            assert 0 < decision.clocks.get(device, 1.0) <= here.cpu_hz[device]
    assert held - {"none"}


def rates_seed(rates):
    from feddrop.seeds import derive

    return derive(rates._seed, "channels")


@pytest.mark.parametrize("noise", ["density", "literal", "subband"])
def test_more_to_choose_is_never_worse(work, noise):
    """A choice more: the least cost of dropout falls or stays, by the formula; a full budget changes nothing."""
    radio = Radio(noise=noise, costs="formula", bits_per_parameter=32.0, flop_per_cycle=4.0, policy="stretch")
    radio = replace(radio, deadline_s=1.6 if noise == "density" else 0.5)

    def objective(control, budget=BUDGET_J):
        chosen = replace(radio, control=control, energy_budget_j=budget)
        return CellRates(chosen, work, Roster(Participation(), DEVICES, 0), 0).decide(1).objective

    fixed, everything = objective(("rate", "share")), objective(ALL)
    assert everything < 0.9 * fixed
    for more in (("rate", "share", "power"), ("rate", "share", "cpu")):
        assert everything * (1 - 1e-9) <= objective(more) <= fixed * (1 + 1e-9)
    assert objective(("rate", "power", "cpu")) >= everything * (1 - 1e-9)
    assert objective(ALL, np.inf) == pytest.approx(objective(("rate", "share"), np.inf), rel=1e-9)


def test_a_run_records_and_shows_power_and_clock(tmp_path):
    config = RunConfig.from_toml("", [*BASE, EVERYTHING])
    records = run(config, tmp_path / "whole")
    for record in records:
        for device in record.devices:
            assert 0 < device.tx_power_w <= 1e-2
            assert 0 < device.cpu_hz < 7e9
            assert device.latency_s <= 0.45
            assert device.energy_j <= 0.2
    assert "mean power" in (page := (tmp_path / "whole" / "report.html").read_text())
    assert "CPU clock by device" in page
    assert "mW" in line(records[-1], 2)
    assert "Hz" in line(records[-1], 2)
    assert {"power", "clock"} <= {column.header for column in table(records, 250).columns}

    next(iter(Run(config, tmp_path / "stopped")))
    again = resume(tmp_path / "stopped")
    assert [{**r, "wall_s": 0} for r in again] == [{**r, "wall_s": 0} for r in records]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"control": ("share",)}, 'it must contain "rate"'),
        ({"control": ("rate", "rate")}, "at most once"),
        ({"control": ("rate", "clock")}, r"radio.control\[1\] is 'clock'"),
        ({"control": ALL, "scheme": "fixed"}, "power and cpu, which radio.scheme = 'fixed' does not choose"),
        ({"control": ALL, "scheme": "ideal"}, "radio.scheme = 'ideal' does not choose"),
        ({"control": ("rate", "share", "cpu"), "scheme": "primal-dual"}, "cpu, which radio.scheme = 'primal-dual'"),
        ({"control": ("rate",), "scheme": "random"}, 'lacks "share", so the band is split equally'),
        ({"control": ("rate",), "scheme": "primal-dual"}, 'Add "share"'),
    ],
)
def test_what_cannot_be_controlled_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Radio(**settings)
