"""Runs under virtual clocks: what they promise, when devices are online, how they end, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import feddrop
from feddrop.config import Clock, RunConfig
from feddrop.errors import ConfigError, RunError
from feddrop.executors.serial import Serial
from feddrop.report import read_log, write_report
from feddrop.report.measures import spendings
from feddrop.report.timeline import timeline_figure
from feddrop.seeds import derive, generator
from feddrop.simulation.availability import Availability
from feddrop.simulation.run import Run, resume
from support.clocks import BASE, CLOCKS, bits, bits_of_network, config_for, done, lines


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_run_repeats_itself(clock, tmp_path):
    first, again = (done(config_for(CLOCKS[clock]), tmp_path / name) for name in "ab")
    assert bits(first) == bits(again)
    assert lines(first) == lines(again)


# --- time


def test_fixed_shares_take_the_seconds_of_the_deadline_clock(tmp_path):
    config = config_for({"kind": "first", "count": 5, "sharing": "fixed"})
    found = done(config, tmp_path / "first").records
    usual = done(dataclasses.replace(config, clock=Clock()), tmp_path / "usual").records
    for one, other in zip(found, usual, strict=True):
        assert one.latency_s == pytest.approx(other.latency_s, rel=1e-12)
        assert one.energy_j == pytest.approx(other.energy_j, rel=1e-12)
        assert one.time_s == pytest.approx(other.time_s, rel=1e-12)
        for device, twin in zip(one.devices, other.devices, strict=True):
            for key in ("latency_s", "push_s", "compute_s", "pull_s", "energy_j", "flops", "uplink_gain"):
                assert device[key] == pytest.approx(twin[key], rel=1e-9), key


def test_measured_frames_decide_the_seconds(tmp_path):
    overrides = ['radio.costs="measured"']
    config = config_for({"kind": "first", "count": 5, "sharing": "fixed"}, *overrides)
    found = done(config, tmp_path / "first").records
    usual = done(dataclasses.replace(config, clock=Clock()), tmp_path / "usual").records
    assert [r.latency_s for r in found] == pytest.approx([r.latency_s for r in usual], rel=1e-12)


def test_shares_that_are_freed_make_rounds_shorter(tmp_path):
    times = {}
    for sharing in ("fixed", "equal", "proportional"):
        run = done(config_for({"kind": "first", "count": 5, "sharing": sharing}), tmp_path / sharing)
        times[sharing] = run.records[-1].time_s
    assert times["equal"] < times["fixed"]
    assert times["proportional"] < times["fixed"]


def test_subband_noise_shares_the_band_too(tmp_path):
    run = done(config_for(CLOCKS["buffered"], 'radio.noise="subband"'), tmp_path / "run")
    assert run.records[-1].time_s > 0


# --- what the clocks promise


def test_the_first_answers_count_and_the_rest_are_billed(tmp_path):
    run = done(config_for(CLOCKS["first"]), tmp_path / "run")
    for record in run.records:
        assert record.counts == {"ok": 3, "dropped": 2}
        ok = [device for device in record.devices if device.status == "ok"]
        late = [device for device in record.devices if device.status == "dropped"]
        start = record.time_s - record.latency_s
        assert max(device.latency_s for device in ok) == pytest.approx(record.latency_s)
        for device in late:
            assert device.start_s == pytest.approx(start)
            assert device.latency_s == pytest.approx(record.latency_s)
            assert device.energy_j > 0
            assert device.push_bytes > 0
            assert device.loss is None
        assert record.energy_j == pytest.approx(sum(device.energy_j for device in record.devices))


def test_late_answers_are_kept_for_later(tmp_path):
    run = done(config_for(CLOCKS["first-keep"]), tmp_path / "run")
    ages = [device.staleness for record in run.records for device in record.devices]
    assert max(ages) >= 1
    assert all(record.counts == {"ok": 3} for record in run.records)


def test_a_window_takes_what_arrives_in_it(tmp_path):
    run = done(config_for({"kind": "window", "window_s": 0.02}), tmp_path / "run")
    for record in run.records:
        arrived = [device.latency_s for device in record.devices if device.status == "ok"]
        assert arrived
        assert max(arrived) <= max(0.02, min(arrived)) + 1e-12  # it stays open for the first answer
    wide = done(config_for({"kind": "window", "window_s": 1e3}), tmp_path / "wide")
    assert all(record.counts == {"ok": 5} and record.latency_s < 1e3 for record in wide.records)


def test_stale_updates_weigh_less_or_are_discarded(tmp_path):
    clock = CLOCKS["buffered"]
    runs = {
        name: done(config_for(clock | more), tmp_path / name)
        for name, more in {
            "update": {},
            "weight": {"staleness_on": "weight"},
            "none": {"staleness_power": 0.0},
            "bound": {"max_staleness": 1},
        }.items()
    }
    assert len({tuple(bits_of_network(run)) for run in runs.values()}) >= 3
    kept = [d for r in runs["bound"].records for d in r.devices if d.status == "ok"]
    assert max(device.staleness for device in kept) <= 1
    assert any(r.counts.get("stale") for r in done(config_for(clock | {"max_staleness": 1}, "rounds=12", "seed=1"),
                                                   tmp_path / "long").records)  # fmt: skip


def test_devices_that_vanish_are_billed_and_lost(tmp_path):
    run = done(config_for(CLOCKS["charging"], "rounds=8"), tmp_path / "run")
    gone = [device for record in run.records for device in record.devices if device.status == "vanished"]
    assert gone
    assert all(device.energy_j > 0 and device.loss is None for device in gone)
    ends = Availability(run.config.clock, 5, run.config.seed)
    for device in gone:
        assert ends.until(device.device, device.start_s) == pytest.approx(device.start_s + device.latency_s)


# --- when devices are online


def test_a_trace_says_who_is_online(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("device,from,to\n0,0,10\n0,10,20\n1,5,6\n1,30,40\n")
    known = Availability(Clock(kind="buffered", trace=str(path)), 3, 0)
    assert known.online(0, 0.0)
    assert known.until(0, 0.0) == 20.0
    assert known.next_available(1, 0.0) == 5.0
    assert not known.online(1, 6.0)
    assert known.next_available(1, 6.0) == 30.0
    assert known.next_available(1, 40.0) == np.inf
    assert known.next_available(2, 0.0) == np.inf
    again = Availability(Clock(kind="buffered", trace=str(path), period_s=40.0), 3, 0)
    assert again.next_available(1, 40.0) == 45.0
    assert again.until(0, 85.0) == 100.0


@pytest.mark.parametrize("pattern", ["diurnal", "charging"])
def test_offline_devices_come_back_strictly_later(pattern):
    clock = Clock(kind="buffered", pattern=pattern, **({"day_s": 10.0} if pattern == "diurnal" else
                                                      {"online_s": 2.0, "offline_s": 3.0}))  # fmt: skip
    known, share, time = Availability(clock, 4, 7), [], 0.0
    other = Availability(clock, 4, 7)
    while time < 2000.0:
        for device in range(4):
            wake = known.next_available(device, time)
            assert wake > time or (wake == time and known.until(device, time) > time)
            assert known.online(device, wake)
            share.append(wake == time)
        time += 0.37
    assert np.mean(share) == pytest.approx(0.5 if pattern == "diurnal" else 0.4, abs=0.05)
    assert [other.next_available(d, 500.0) for d in range(4)] == [known.next_available(d, 500.0) for d in range(4)]


def test_a_trace_with_mistakes_is_refused(tmp_path):
    path = tmp_path / "trace.csv"
    for text, why in {
        "device,from\n0,1\n": "no column to",
        "device,from,to\n9,0,1\n": "line 2: device is 9; the devices are 0 to 4",
        "device,from,to\n0,2,1\n": "line 2: from is 2 and to is 1; from must be at least 0, and to later",
        "device,from,to\n0,nan,1\n": "from is nan and to is 1",
        "device,from,to\n0,0,1\n1,0,11\n": r"line 3: to is 11; it must be at most clock.period_s, 10",
        "device,from,to\n": "ever online",
        "device,from,to\n3,0,1\n": r"clock.buffer is 2, but clock.trace has rows for only 1 of 5 devices",
    }.items():
        path.write_text(text)
        with pytest.raises(ConfigError, match=why):
            Run(config_for(CLOCKS["buffered"] | {"trace": str(path), "period_s": 10.0}), tmp_path / "run")
    with pytest.raises(ConfigError, match="cannot read the trace"):
        Run(config_for(CLOCKS["buffered"] | {"trace": str(tmp_path)}), tmp_path / "run")


def test_rows_of_a_trace_may_overlap_and_have_any_order(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("device,from,to\n0,7,20\n0,1,2\n0,5,10\n0,5,10\n")
    known = Availability(Clock(kind="buffered", trace=str(path)), 1, 0)
    assert [known.next_available(0, time) for time in (0.0, 1.5, 2.0, 8.0, 19.0, 20.0)] == [1, 1.5, 5, 8, 19, np.inf]
    assert known.until(0, 6.0) == 20.0


def test_a_buffer_waits_for_devices_that_vanished_and_return(tmp_path):
    path = tmp_path / "trace.csv"
    rows = [f"{device},0,0.004" for device in range(5)] + [f"{device},{1 + device},99" for device in range(3)]
    path.write_text("\n".join(["device,from,to", *rows]))
    config = config_for({"kind": "buffered", "buffer": 3, "trace": str(path)}, "rounds=1")
    (record,) = done(config, tmp_path / "run").records
    assert record.counts == {"ok": 3, "vanished": 5}
    assert [entry.start_s for entry in record.devices if entry.usable] == [1.0, 2.0, 3.0]


def test_a_trace_that_ends_is_an_error_that_says_so(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("device,from,to\n" + "".join(f"{device},0,0.06\n" for device in range(5)))
    with pytest.raises(RunError, match=r"no other comes online.*Extend clock.trace"):
        done(config_for(CLOCKS["buffered"] | {"trace": str(path)}, "rounds=50"), tmp_path / "run")


def test_a_job_that_vanished_is_billed_by_its_own_plan_if_its_device_is_asked_again_in_the_step(tmp_path):
    base = BASE.replace("rate = 0.4\n", "").replace(
        'scheme = "fixed", deadline_s = 60', 'scheme = "exact", deadline_s = 0.2'
    )
    clock = {"kind": "first", "count": 3}
    (whole, *_) = done(config_for(clock, "rounds=1", base=base), tmp_path / "whole").records
    path = tmp_path / "trace.csv"
    rows = [f"{device},0,0.004" for device in range(5)] + [f"{device},0.01,99" for device in range(4)]
    path.write_text("\n".join(["device,from,to", *rows]))
    config = config_for(clock | {"trace": str(path)}, "rounds=1", base=base)
    (record, *_) = done(config, tmp_path / "vanished").records
    planned = {entry.device: entry.rate for entry in whole.devices}
    lost = {entry.device: entry.rate for entry in record.devices if entry.status == "vanished"}
    again = {entry.device: entry.rate for entry in record.devices if entry.status != "vanished"}
    assert lost == planned
    assert all(again[device] < planned[device] for device in range(4))  # four devices share the band


class FailsOnce(Serial):
    """An executor on which every device fails the first time."""

    def compute(self, parcels):
        for parcel, reply in zip(parcels := list(parcels), super().compute(parcels), strict=True):
            first = parcel.device not in self.__dict__.setdefault("seen", set())
            self.seen.add(parcel.device)
            yield feddrop.Reply(error=f"device {parcel.device} is away") if first else reply


def test_a_device_that_fails_and_answers_in_one_step_has_two_records(tmp_path):
    config = config_for({"kind": "buffered", "buffer": 3, "concurrency": 5}, "rounds=1")
    (record,) = done(config, tmp_path / "run", executor=FailsOnce).records
    assert [entry.status for entry in record.devices if not entry.usable] == [f"device {k} is away" for k in range(5)]
    assert record.counts == {"refused": 5, "ok": 3}
    assert sum(entry.pull_bytes > 0 for entry in record.devices) == 3


# --- the end of a run


@pytest.mark.parametrize("clock", [{}, CLOCKS["buffered"]])
def test_a_run_ends_by_seconds_joules_or_accuracy(clock, tmp_path):
    whole = done(config_for(clock, "rounds=6", "eval_every=4"), tmp_path / "whole").records
    limits = {"seconds": whole[2].time_s, "joules": sum(record.energy_j for record in whole[:3])}
    for name, value in limits.items():
        run = done(config_for(clock, "rounds=6", "eval_every=4", f"{name}={value * 0.999999}"), tmp_path / name)
        assert len(run.records) == 3
        assert run.finished
        assert run.records[-1].test_accuracy is not None  # the last round is evaluated
        assert len(resume(tmp_path / name)) == 3
    config = dataclasses.replace(run.config, joules=float("inf"))
    assert len(done(config, tmp_path / "joules", resume=True).records) == 6  # more may be asked for later
    reached = max(record.test_accuracy or 0.0 for record in whole)
    run = done(config_for(clock, "rounds=6", f"target_accuracy={reached * 0.5}"), tmp_path / "target")
    assert len(run.records) < 6
    assert run.records[-1].test_accuracy >= reached * 0.5


# --- what a comparison shows


def test_a_comparison_counts_the_answers_of_a_step_and_of_the_rarest_device(tmp_path):
    runs = [done(config_for(CLOCKS[name], "rounds=6"), tmp_path / name) for name in ("first", "buffered")]
    logs = [read_log(run.folder) for run in runs]
    found = {measure.name: measure.read for measure in spendings(logs)}
    for run, log in zip(runs, logs, strict=True):
        answers = [entry.device for record in run.records for entry in record.devices if entry.usable]
        assert found["answers per round"](log).until == pytest.approx(len(answers) / 6)
        fewest = min(answers.count(device) for device in range(5))
        assert found["answers of the rarest device"](log).until == pytest.approx(fewest / len(answers))
    assert "answers per round" not in {
        one.name for one in spendings([read_log(done(config_for({}), tmp_path / "deadline").folder)])
    }


# --- stragglers


def test_random_stragglers_compute_longer_and_draw_again_after_a_resume(tmp_path):
    clock = {"kind": "first", "count": 5}
    plain, slow = (done(config_for(clock | {"slowdown": one}), tmp_path / f"{one}") for one in (0.0, 0.5))
    assert bits_of_network(plain) == bits_of_network(slow)  # all five answer in both
    factors = [
        [late.compute_s / one.compute_s for late, one in zip(second.devices, first.devices, strict=True)]
        for first, second in zip(plain.records, slow.records, strict=True)
    ]
    drawn = [
        [float(np.exp(0.5 * generator(derive(3, "slowdown", round_, device)).standard_normal())) for device in range(5)]
        for round_ in range(1, 5)
    ]
    np.testing.assert_allclose(factors, drawn, rtol=1e-9)
    stopped = Run(config_for(clock | {"slowdown": 0.5}), tmp_path / "stopped", report=False)
    next(iter(stopped))
    assert lines(done(stopped.config, tmp_path / "stopped", resume=True)) == lines(slow)
    three = config_for({"kind": "first", "count": 3, "slowdown": 3.0})
    assert len({frozenset(d.device for d in r.devices if d.usable) for r in done(three, tmp_path / "3").records}) > 1


# --- refusals


@pytest.mark.parametrize(
    ("clock", "overrides", "why"),
    [
        ({"kind": "buffered", "buffer": 9}, [], "only 5 devices"),
        ({"kind": "buffered", "buffer": 2, "concurrency": 9}, [], "only 5 devices"),
        ({"kind": "first", "count": 9}, [], "at most 5 devices"),
        ({"kind": "buffered", "buffer": 5, "max_staleness": 2}, [], "waits for all 5 devices.*lower clock.buffer"),
        ({"kind": "first", "count": 5, "late": "keep"}, [], "clock.late is 'keep', which has no effect"),
        ({"kind": "buffered", "buffer": 2}, ["participation.count=3"], "Set clock.concurrency"),
        ({"kind": "buffered", "buffer": 2}, ["server.min_devices=3"], "at most 2 updates"),
        ({"kind": "buffered", "buffer": 2}, ["server.krum=1"], "needs at least 5 updates"),
        ({"kind": "first", "count": 3}, ['radio.scheme="primal-dual"'], 'Use radio.scheme = "exact"'),
    ],
)
def test_what_cannot_work_is_refused(clock, overrides, why, tmp_path):
    base = BASE.replace("rate = 0.4\n", "") if any("primal" in one for one in overrides) else BASE
    with pytest.raises(ConfigError, match=why):
        Run(config_for(clock, *overrides, base=base), tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"kind": "first"}, "clock.count"),
        ({"kind": "buffered", "sharing": "fixed"}, "more than the band"),
        ({"kind": "first", "count": 3, "max_staleness": 2}, "no update is stale"),
        ({"kind": "buffered", "staleness_power": 0.0, "staleness_on": "weight"}, "all updates weigh the same"),
        ({"kind": "buffered", "pattern": "diurnal", "online_share": 1e-20}, r"must be in \[1e-06, 1\]"),
        ({"kind": "buffered", "pattern": "charging", "online_s": 1e-9, "offline_s": 1e9}, "less than a millionth"),
        ({"count": 3}, "no effect"),
        ({"kind": "buffered", "period_s": 3.0}, "without clock.trace"),
        ({"kind": "buffered", "day_s": 3.0}, "diurnal"),
        ({"kind": "buffered", "trace": "x.csv", "pattern": "diurnal"}, "give one of them"),
    ],
)
def test_settings_without_effect_are_refused(settings, why):
    with pytest.raises(ConfigError, match=why):
        Clock(**settings)


def test_seconds_need_a_cell(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no \[radio\] section"):
        Run(RunConfig(clock=Clock(kind="buffered")), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"are counted only in a cell"):
        Run(RunConfig(seconds=3.0), tmp_path / "run")


def test_torch_is_not_needed_by_the_event_loop():
    """The loop is pure Python, so that it can be read and timed alone."""
    for name in ("link", "events", "availability", "clock"):
        text = (Path(feddrop.__file__).parent / "simulation" / f"{name}.py").read_text()
        assert "torch" not in text
    assert torch is not None


# --- the report


def test_the_report_draws_accuracy_over_time_and_who_did_what_when(tmp_path):
    runs = {name: done(config_for(CLOCKS[name]), tmp_path / name) for name in ("first", "buffered", "charging")}
    for name in runs:
        page = write_report(tmp_path / name).read_text()
        assert "Accuracy against time" in page
        assert "Accuracy against energy" in page
        assert "Who did what when" in page
        assert "the deadline" not in page  # it does not hold here
        run = read_log(tmp_path / name)
        axes = timeline_figure(run).axes[0]
        bars = [patch for patch in axes.patches if patch.get_width() > 0]
        jobs = np.isfinite(run.by_device["start_s"])
        longest = np.nanmax(run.by_device["start_s"] + run.by_device["latency_s"])
        assert longest <= run.spent("seconds")[-1] + 1e-12
        assert len(bars) >= 2 * jobs.sum()
        crosses = sum(len(line.get_xdata()) for line in axes.lines if line.get_marker() == "x")
        entries = [device for record in runs[name].records for device in record.devices if device.start_s is not None]
        assert crosses == sum(not device.usable for device in entries)
        assert len(run.earlier) == len(entries) - jobs.sum()
    assert run.earlier  # a device that vanished was asked again in the same step
    assert run.within({"rounds": 1}).earlier == tuple(job for job in run.earlier if job.step == 0)
    done(config_for({}), tmp_path / "deadline")
    assert "Who did what when" not in write_report(tmp_path / "deadline").read_text()
    with pytest.raises(ConfigError, match="no virtual clock"):
        timeline_figure(read_log(tmp_path / "deadline"))
