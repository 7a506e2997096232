"""The contract of methods and clocks: synchronous where they must be, repeatable, resumable, on every executor."""

from __future__ import annotations

import dataclasses
import random

import pytest

from feddrop.config import METHODS, Clock
from feddrop.errors import ConfigError
from feddrop.simulation.run import Run
from support.clocks import (
    CLOCKS,
    STALE,
    KilledError,
    bits,
    bits_of_network,
    config_for,
    config_of,
    done,
    killed_at,
    lines,
    refuses_stale,
)

# --- every method


@pytest.mark.parametrize("method", sorted(METHODS))
def test_all_answers_of_a_step_are_the_synchronous_round_to_the_bit(method, tmp_path):
    """Also of a buffer of all devices; with a smaller buffer, the network is another one."""
    config = config_of(method, {})
    together = done(config, tmp_path / "together")
    assert config.clock.kind == "deadline"
    everyone = dataclasses.replace(config, clock=Clock(kind="first", count=5))
    assert bits_of_network(done(everyone, tmp_path / "first")) == bits_of_network(together)
    if refuses_stale(method):
        return
    for name, clock in (("all", {"kind": "buffered", "buffer": 5, "concurrency": 5}), ("some", CLOCKS["buffered"])):
        run = done(config_of(method, clock), tmp_path / name)
        assert (bits_of_network(run) == bits_of_network(together)) == (name == "all")


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_under_every_clock_runs_and_resumes_or_refuses(method, clock, tmp_path, monkeypatch):
    """Killed at two random events, it ends in the bits of a run that was never killed."""
    config = config_of(method, CLOCKS[clock])
    if refuses_stale(method) and clock in STALE:
        with pytest.raises(ConfigError, match=r"moves the mask of the network.*late = 'drop'"):
            Run(config, tmp_path / "run")
        return
    whole, draw = done(config, tmp_path / "whole"), random.Random(f"{method} {clock}")
    assert len(whole.records) == 4
    least = {"first": 3, "first-keep": 3, "window": 1}.get(clock, 2)
    assert all(record.counts["ok"] >= least for record in whole.records)
    for kill in range(2):
        run = Run(config, tmp_path / "killed", report=False, resume=kill > 0)
        left = whole._server.clock.events.count - run._server.clock.events.count
        with monkeypatch.context() as patch:
            killed_at(patch, draw.randint(1, left))
            with pytest.raises(KilledError):
                list(run)
    again = done(config, tmp_path / "killed", resume=True)
    assert bits(again) == bits(whole)
    assert lines(again) == lines(whole)


AROUND = {
    "adam": ["server.optimizer=fedadam", "server.lr=0.01"],
    "median": ["server.mean=median", "server.min_devices=2"],
    "trimmed": ["server.mean=trimmed", "server.clip=2.0"],
    "agreement": ["server.agreement=0.4", "train.compress=0.2"],
    "int8": ["execution.dtype=int8", "method.draw=importance"],
    "units": ["method.level=unit", "method.rule=holders"],
}
"""Settings of the server, the devices and the frames that go around a method."""


@pytest.mark.parametrize("settings", AROUND)
def test_what_goes_around_a_method_goes_with_stale_answers(settings, tmp_path, monkeypatch):
    config = config_of("feddrop", CLOCKS["buffered"] | {"buffer": 3}, *AROUND[settings])
    whole = done(config, tmp_path / "whole")
    assert any(device.staleness for record in whole.records for device in record.devices)
    with monkeypatch.context() as patch:
        killed_at(patch, random.Random(settings).randint(1, whole._server.clock.events.count))
        with pytest.raises(KilledError):
            list(Run(config, tmp_path / "killed", report=False))
    again = done(config, tmp_path / "killed", resume=True)
    assert bits(again) == bits(whole)
    assert lines(again) == lines(whole)


# --- executors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("executor", "method", "clock"),
    [
        ("processes", "feddrop", "buffered"),
        ("processes", "feddd", "charging"),  # whose devices have memories, and vanish
        ("processes", "fedrts", "window"),
        ("ray", "feddrop", "buffered"),
    ],
)
def test_every_executor_has_the_same_bits(executor, method, clock, tmp_path):
    if executor == "ray":
        pytest.importorskip("ray")
    runs = [
        done(config_of(method, CLOCKS[clock], f"execution.executor={name}"), tmp_path / name)
        for name in ("serial", executor)
    ]
    assert bits(runs[0]) == bits(runs[1])
    assert lines(runs[0]) == lines(runs[1])


# --- resuming


@pytest.mark.parametrize("clock", [*STALE, "window"])
def test_killed_at_random_events_it_ends_in_the_same_bits(clock, tmp_path, monkeypatch):
    """Killed 25 times under each clock, 100 in all: queue, frames under way and memories are those of before."""
    overrides = ["method=fjord"] if clock == "buffered" else []  # it has a payload and a state
    config = config_for(CLOCKS[clock], *overrides)
    whole, folder, draw = done(config, tmp_path / "whole"), tmp_path / "killed", random.Random(clock)
    if clock in ("buffered", "first-keep"):
        assert any(device.staleness for record in whole.records for device in record.devices)
    for kill in range(25):
        run = Run(config, folder, report=False, resume=kill > 0)
        left = whole._server.clock.events.count - run._server.clock.events.count
        with monkeypatch.context() as patch:
            killed_at(patch, draw.randint(1, min(left, 1 + kill)))  # first kills come early, so that steps are few
            with pytest.raises(KilledError):
                list(run)
    again = done(config, folder, resume=True)
    assert bits(again) == bits(whole)
    assert lines(again) == lines(whole)


def test_a_step_that_fails_leaves_the_run_as_it_was(tmp_path, monkeypatch):
    config = config_for(CLOCKS["buffered"])
    whole, run = done(config, tmp_path / "whole"), Run(config, tmp_path / "run", report=False)
    next(iter(run))
    before = bits(run)
    with monkeypatch.context() as patch:
        killed_at(patch, 1)
        with pytest.raises(KilledError):
            next(iter(run))
    assert bits(run) == before
    for _ in run:
        pass
    assert bits(run) == bits(whole)
