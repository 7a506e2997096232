"""A reader recomputes latency, energy and objective of a run from its folder alone, with the paper's formulas."""

from __future__ import annotations

import numpy as np
import pytest

import feddrop

TEXT = """
rounds = 2
model = { name = 'mlp' }
data = { devices = 5, train_limit = 200 }
[radio]
deadline_s = 0.08
policy = "leave-out"
"""


@pytest.mark.parametrize(
    "settings",
    [
        ["radio.costs=measured"],
        ["radio.costs=formula", "radio.deadline_s=0.6"],
        ["radio.costs=measured", "radio.dynamic=true"],
        ["radio.costs=measured", "radio.noise=subband", 'radio.control=["rate","share","power","cpu"]'],
    ],
)
def test_latency_energy_and_objective_follow_from_the_records(tmp_path, settings):
    feddrop.run(feddrop.RunConfig.from_toml(TEXT, settings), tmp_path / "run")
    run = feddrop.load_run(tmp_path / "run")
    cell, radio = run.about["cell"], run.settings["radio"]

    def constant(name, device):
        value = cell[name]
        return value[device] if isinstance(value, list) else value

    seen = 0
    for record in run.rounds:
        weights, sums = 0.0, 0.0
        for d in record.devices:
            if not d.took_part:
                assert d.uplink_gain > 0
                continue
            power, clock = (getattr(d, name) or constant(name, d.device) for name in ("tx_power_w", "cpu_hz"))
            band = d.share * radio["bandwidth_hz"]
            noise = {"density": radio["bandwidth_hz"], "subband": band, "literal": 1.0}[cell["noise"]]
            up = np.log2(1 + d.uplink_gain * power / (cell["noise_w_hz"] * noise))
            received = d.downlink_gain * constant("downlink_power_w", d.device)
            down = np.log2(1 + received / (cell["downlink_noise_w_hz"] * noise))
            assert d.uplink_efficiency == pytest.approx(up, rel=1e-9)
            assert d.downlink_efficiency == pytest.approx(down, rel=1e-9)
            push, pull, work = 8 * d.push_bytes, 8 * d.pull_bytes, d.flops
            if radio["costs"] == "formula":
                push = pull = (1 - d.rate) * run.about["parameters"] * cell["bits_per_parameter"]
                work = (1 - d.rate) * 3 * run.about["forward_flops"] * constant("samples", d.device)
            compute = work / constant("flop_per_cycle", d.device) / clock
            latency = push / (band * down) + compute + pull / (band * up)
            energy = power * pull / (band * up) + constant("cpu_constant", d.device) * compute * clock**3
            assert d.latency_s == pytest.approx(latency, rel=1e-9)
            assert d.push_s + d.compute_s + d.pull_s == pytest.approx(latency, rel=1e-9)
            assert d.energy_j == pytest.approx(energy + constant("circuit_j", d.device), rel=1e-9)
            weights += constant("samples", d.device)
            sums += constant("samples", d.device) / (1 - d.rate)
            seen += 1
        assert record.objective == pytest.approx(sums / weights, rel=1e-9)
        assert record.latency_s == max(d.latency_s for d in record.devices if d.took_part)
    assert seen >= 4
