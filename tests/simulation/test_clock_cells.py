"""Virtual clocks with the user's outcomes, channels and schemes, and what devices remember when they vanish."""

from __future__ import annotations

import numpy as np
import pytest

import feddrop
from feddrop import Outcome
from feddrop.errors import ConfigError
from feddrop.simulation import flights
from feddrop.simulation.exchange import packed
from feddrop.simulation.round import Intake
from feddrop.simulation.run import Run
from support.hooks import assert_resumes, configured

BUFFERED = ("clock.kind=buffered", "clock.buffer=2", "clock.concurrency=3")
TOGETHER = ("clock.kind=first", "clock.count=4", "clock.sharing=fixed")


def jammed(plan, truth, costs, state):
    """Device 1 is always lost, and device 0 sends twice."""
    assert np.isinf(truth.deadline_s)
    calls = int(state.get("calls", np.zeros(1))[0])
    return Outcome({1: "interference"}, {"calls": np.array([calls + 1])}, np.where(np.arange(4) == 0, 2.0, 1.0))


def by_device(records):
    return {(record.round, device.device): device for record in records for device in record.devices}


def test_an_outcome_loses_answers_and_repeats_uploads(tmp_path):
    clock = [*TOGETHER, "clock.count=3"]
    lossy = by_device(feddrop.run(configured(*clock, "clock.late=drop"), tmp_path / "lossy", outcome=jammed))
    usual = by_device(feddrop.run(configured(*TOGETHER), tmp_path / "usual"))
    for key, device in lossy.items():
        twin = usual[key]
        assert device.status == ("lost: interference" if device.device == 1 else "ok")
        assert device.pull_s == pytest.approx(twin.pull_s * (2 if device.device == 0 else 1))
        assert (device.transmissions, twin.transmissions) == (2.0 if device.device == 0 else 1.0, None)
        assert (device.push_bytes, device.pull_bytes) == (twin.push_bytes, twin.pull_bytes)  # billed, if lost
        assert (device.energy_j > 1.01 * twin.energy_j) == (device.device == 0)
        assert (device.loss is None) == (device.device == 1)


def test_losses_and_repetitions_of_answers_under_way_survive_a_resume(tmp_path):
    records = assert_resumes(tmp_path / "jammed", configured(*BUFFERED, "rounds=4"), outcome=jammed)
    assert {d.device for r in records for d in r.devices if d.outcome == "lost"} == {1}
    assert any(device.staleness for record in records for device in record.devices)


def coin(plan, truth, costs, state):
    return np.random.default_rng(truth.seed).random(4) < 0.5, state


def test_a_lost_device_that_is_asked_again_in_the_step_is_drawn_anew(tmp_path):
    settings = ["clock.kind=buffered", "clock.buffer=4", "server.min_devices=4", "rounds=2"]
    records = feddrop.run(configured(*settings), tmp_path / "run", outcome=coin)
    assert [record.counts["ok"] for record in records] == [4, 4]  # all must answer, so those that lose repeat
    assert all(record.counts["lost"] for record in records)


class Measured:
    """A channel that knows the seconds and joules per FLOP of every device."""

    def draw(self, devices, round, seed):  # noqa: A002
        return np.full(devices, 1e-3)

    def work(self, cell, channels):
        return np.full(4, 1e-8) * (1 + np.arange(4)), np.full(4, 3e-9)


def test_the_seconds_and_joules_of_a_channel_count(tmp_path):
    found = by_device(feddrop.run(configured(*TOGETHER), tmp_path / "first", channel=Measured()))
    usual = by_device(feddrop.run(configured(), tmp_path / "usual", channel=Measured()))
    for key, device in found.items():
        assert device.compute_s == pytest.approx(usual[key].compute_s, rel=1e-9)
        assert device.energy_j == pytest.approx(usual[key].energy_j, rel=1e-9)


class Pencil:
    """The cell of docs/clock.md: downloads of 1, 2 and 3 full-band seconds, uploads of 1.5, 2 and 3."""

    bits, flops = 1e6, 1e12  # of the full network, once they are known

    def draw(self, devices, round, seed):  # noqa: A002
        efficiency = self.bits / 1e7 / np.array([[1.5, 2, 3], [1, 2, 3]])  # up and down
        return tuple(np.expm1(np.log(2) * efficiency))

    def work(self, cell, channels):
        return np.array([2.0, 1.0, 3.0]) / self.flops, np.array([10.0, 20.0, 30.0]) / self.flops


def test_a_cell_of_three_devices_with_pencil(tmp_path):
    """Every second and joule of a run whose frames, gains and FLOPs are those of the worked example."""
    radio = ["radio.costs=formula", "radio.noise=literal", "radio.noise_w_hz=1", "radio.tx_power_w=[1,1]"]
    radio += ["radio.scheme=no-dropout", "radio.deadline_s=1e6", "radio.bandwidth_hz=1e7", "radio.circuit_j=0.5"]
    config = configured(*radio, "data.devices=3", "clock.kind=first", "clock.count=3", "rounds=2")
    run = Run(config, tmp_path / "run", report=False, channel=(channel := Pencil()))
    work, cell = run.prepared.work, run.prepared.scheme.cell
    channel.bits = float(cell.model_bits(work.parameters))
    channel.flops = cell.training_flops(work.flops(None)[0])
    for record, start in zip(run, (0.0, 12.0), strict=True):
        assert record.time_s == pytest.approx(start + 12, abs=1e-12)
        for name, expected in {
            "start_s": [start] * 3,
            "push_s": [3, 5, 6],
            "compute_s": [2, 1, 3],
            "pull_s": [2, 2.5, 3],
            "latency_s": [7, 8.5, 12],
            "energy_j": [12.5, 23, 33.5],
        }.items():
            assert [device[name] for device in record.devices] == pytest.approx(expected, rel=1e-12), name


@pytest.mark.parametrize("scheme", [feddrop.PrimalDual(), "primal-dual", "ideal"])
def test_schemes_of_synchronous_rounds_are_refused(scheme, tmp_path):
    given = {} if isinstance(scheme, str) else {"scheme": scheme}
    named = [f"radio.scheme={scheme}"] if isinstance(scheme, str) else []
    with pytest.raises(ConfigError, match=r"clock.kind is .*but the scheme is.*Use radio.scheme = \"exact\""):
        Run(configured(*BUFFERED, *named), tmp_path / "run", **given)


def test_a_device_that_vanishes_returns_with_the_memory_it_had(tmp_path):
    """FedDD: its memory is its weights; a lost job leaves them as they were."""
    settings = ["method=feddd", "rounds=12", "radio.scheme=exact", "clock.pattern=charging"]
    config = configured(*BUFFERED, *settings, "clock.online_s=0.3", "clock.offline_s=0.05")
    run, kept, gone, back = Run(config, tmp_path / "run", report=False), {}, 0, 0
    for record in run:
        ends = {
            device.device: [d.status for d in record.devices if d.device == device.device] for device in record.devices
        }
        for device, statuses in ends.items():
            memory = run._disk.memories.get(device)
            if "ok" not in statuses:
                assert memory == kept.get(device, b"")
                gone += "vanished" in statuses
            elif kept.get(device):
                assert memory != kept[device]
                back += 1
            kept[device] = memory
    assert gone
    assert back


@pytest.mark.parametrize("method", ["feddrop", "feddrop level=unit", "pruning"])
def test_a_stale_subnet_is_merged_by_the_mask_it_was_cut_with(method, tmp_path, monkeypatch):
    """Also after a resume: the mask of an answer under way is saved, or follows from its job."""
    cut, ages, merge = {}, set(), Intake.merged

    def noted(method_, params, job, *rest):
        sent, *others = packed(method_, params, job, *rest)
        cut[job.round, job.device] = sent.subnet
        return sent, *others

    def checked(self, updates, *rest):
        found = list(updates)
        for job, update in found:
            ages.add(self.round - job.round)
            for name, piece in cut[job.round, job.device].items():
                np.testing.assert_array_equal(piece.index, update.subnet[name].index)
        return merge(self, found, *rest)

    monkeypatch.setattr(flights, "packed", noted)
    monkeypatch.setattr(Intake, "merged", checked)
    name, *settings = method.split()
    assert_resumes(
        tmp_path, configured(*BUFFERED, "rounds=4", f"method={name}", *[f"method.{one}" for one in settings])
    )
    assert max(ages) >= 1
