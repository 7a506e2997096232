"""Participation: drawn from the seed or limited by a table; devices that do not take part cost nothing."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from feddrop.config import Participation, RunConfig
from feddrop.data import from_arrays
from feddrop.errors import ConfigError
from feddrop.simulation.participation import Roster
from feddrop.simulation.run import Run, resume, run

BASE = ["rounds=3", "data.devices=8", "data.train_limit=240", "model.width=0.5"]


def chosen(config, devices=20, rounds=200, seed=1):
    who = Roster(config, devices, seed)
    return [who.chosen(round_) for round_ in range(1, rounds + 1)]


def test_everyone_without_a_setting():
    assert all((one == np.arange(20)).all() for one in chosen(Participation(), rounds=3))


@pytest.mark.parametrize("config", [Participation(count=5), Participation(share=0.25)])
def test_devices_are_drawn_uniformly_without_repeats(config):
    rounds = chosen(config)
    assert all(len(set(one.tolist())) == 5 and (np.diff(one) > 0).all() for one in rounds)
    often = np.bincount(np.concatenate(rounds), minlength=20)  # 50 each on average, 6 is one standard deviation
    assert 25 < often.min() <= often.max() < 75
    again = chosen(config)
    assert all((a == b).all() for a, b in zip(rounds, again, strict=True))
    assert any((a != b).any() for a, b in zip(rounds, chosen(config, seed=2), strict=True))


def test_a_table_says_who_is_there(tmp_path):
    (tmp_path / "when.csv").write_text("device,first,last\n3,1,2\n0,2,9\n5,1,1\n3,4,4\n")
    who = Roster(Participation(availability=str(tmp_path / "when.csv")), 6, 0)
    assert [who.chosen(t).tolist() for t in (1, 2, 3, 4)] == [[3, 5], [0, 3], [0], [0, 3]]
    assert who.chosen(10).tolist() == []
    few = Roster(Participation(availability=str(tmp_path / "when.csv"), count=1), 6, 0)
    assert all(len(few.chosen(t)) == 1 for t in (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("device,first,last\n9,1,2\n", "devices are 0 to 5"),
        ("device,first,last\n1,0,2\n", "line 2: first is '0'; it must be a whole number from 1"),
        ("device,first,last\n1,3,2\n", "rounds 3 to 2"),
        ("device,first\n1,3\n", "columns device, first, last"),
        ("device,first,last\n1,x,2\n", "first is 'x'; it must be a whole number"),
        ("device,first,last\n1," + "9" * 400 + ",2\n", "last round must not precede the first"),
        ("device,first,last\n\n1,1,2,7\n", "line 3: 4 cells for 3 columns"),
        ("device,first,last,last\n1,1,2,9\n", "two columns named 'last'"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, text, message):
    (tmp_path / "when.csv").write_text(text)
    with pytest.raises(ConfigError, match=message):
        Roster(Participation(availability=str(tmp_path / "when.csv")), 6, 0)


def test_a_round_without_anybody_is_an_error_before_the_run(tmp_path):
    for rows, rounds, empty in (("3,1,2\n0,3,9\n5,8,99999999999999999999", 12, None), ("0,1,2\n3,2,5\n1,7,9", 9, 6)):
        (tmp_path / "when.csv").write_text(f"device,first,last\n{rows}\n")
        who = Roster(Participation(availability=str(tmp_path / "when.csv")), 8, 0)
        for limit in range(1, rounds + 1):
            assert who.first_empty_round(limit) == (empty if empty and limit >= empty else None)
            assert len(who.chosen(limit)) or limit == empty
    config = RunConfig.from_toml("", [*BASE, "rounds=9", f"participation.availability={tmp_path / 'when.csv'}"])
    with pytest.raises(ConfigError, match="no device is available in round 6"):
        Run(config, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"participation.count is 9, but there are only 8 devices"):
        Run(RunConfig.from_toml("", [*BASE, "participation.count=9"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_round_whose_devices_are_not_in_the_cell_is_an_error_before_the_run(tmp_path):
    (tmp_path / "when.csv").write_text("device,first,last\n0,1,40\n")
    for who in ("count=1", f"availability={tmp_path / 'when.csv'}"):
        settings = ["rounds=40", f"participation.{who}", "radio.dynamic=true", "radio.min_devices=2"]
        with pytest.raises(ConfigError, match=r"none of the devices chosen for round \d+ is in the cell"):
            Run(RunConfig.from_toml("", [*BASE, *settings]), tmp_path / "run")
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("extra", [[], ["radio.deadline_s=0.05"], ["method=feddst", "rate=0.5"]])
def test_a_run_of_some_devices_resumes_to_the_bit(tmp_path, extra):
    config = RunConfig.from_toml("", [*BASE, "participation.count=3", *extra])
    whole = Run(config, tmp_path / "whole")
    records = list(whole)
    assert [len(record.devices) for record in records] == [3, 3, 3]
    assert len({entry.device for record in records for entry in record.devices}) > 3
    if "radio" in str(extra):
        assert all(sum(entry.share for entry in record.devices) <= 1 + 1e-9 for record in records)
        assert max(entry.share for entry in records[0].devices) > 1 / 8  # the band is shared by those chosen
    next(iter(Run(config, tmp_path / "stopped")))
    resume(tmp_path / "stopped")
    again = Run(config, tmp_path / "stopped", resume=True)
    assert all((whole.params[name] == again.params[name]).all() for name in whole.params)


def test_a_thousand_devices_cost_what_ten_do(tmp_path, digits):
    """Only the devices that take part are planned, trained, recorded and remembered."""
    settings = ["rounds=2", "data.devices=1000", "participation.count=10", "method=feddst", "rate=0.5"]
    records = run(RunConfig.from_toml("", settings), tmp_path / "run")
    assert [len(record.devices) for record in records] == [10, 10]
    assert len(list((tmp_path / "run").rglob("device-*.safetensors"))) <= 20


def calls_of_a_round(folder, devices, settings):
    """Count all that Python calls, functions of C included, in the second round of a run with 10 devices a round."""
    chance = np.random.default_rng(0)
    x, y = chance.random((4020, 16, 16)), np.arange(4020) % 10
    data, parts = from_arrays(x[:4000], y[:4000], x[4000:], y[4000:]), np.arange(4 * devices).reshape(-1, 4)
    base = ["rounds=4", "participation.count=10", "eval_every=4", "model.width=0.2", *settings]
    rounds = iter(Run(RunConfig.from_toml("", base), folder, dataset=data, parts=list(parts)))
    next(rounds)
    count = 0

    def seen(_frame, event, _arg):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        next(rounds)
    finally:
        sys.setprofile(before)
    rounds.close()
    return count


@pytest.mark.parametrize("settings", [["rate=0.5"], ["radio.deadline_s=1.0"]], ids=["given", "radio"])
def test_a_round_of_a_thousand_calls_no_more_than_one_of_ten(tmp_path, settings):
    """Ten take part in either. A call for every device there is would be 990 more, of some 50,000."""
    few, many = (calls_of_a_round(tmp_path / str(devices), devices, settings) for devices in (10, 1000))
    assert many < few + 500
