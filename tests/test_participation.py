"""Who takes part: drawn from the seed, limited by a table, and the rest costs nothing."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from feddrop.config import RunConfig
from feddrop.data import from_arrays
from feddrop.errors import ConfigError
from feddrop.participation import Participation, ParticipationConfig
from feddrop.runs import Run, resume, run

BASE = ["rounds=3", "data.devices=8", "data.train_limit=240", "model.width=0.5"]


def chosen(config, devices=20, rounds=200, seed=1):
    who = Participation(config, devices, seed)
    return [who.chosen(round_) for round_ in range(1, rounds + 1)]


def test_everyone_without_a_setting():
    assert all((one == np.arange(20)).all() for one in chosen(ParticipationConfig(), rounds=3))


@pytest.mark.parametrize("config", [ParticipationConfig(count=5), ParticipationConfig(share=0.25)])
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
    who = Participation(ParticipationConfig(availability=str(tmp_path / "when.csv")), 6, 0)
    assert [who.chosen(t).tolist() for t in (1, 2, 3, 4)] == [[3, 5], [0, 3], [0], [0, 3]]
    with pytest.raises(ConfigError, match="round 10"):
        who.chosen(10)
    few = Participation(ParticipationConfig(availability=str(tmp_path / "when.csv"), count=1), 6, 0)
    assert all(len(few.chosen(t)) == 1 for t in (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("device,first,last\n9,1,2\n", "devices are 0 to 5"),
        ("device,first,last\n1,0,2\n", "rounds count from 1"),
        ("device,first,last\n1,3,2\n", "rounds 3 to 2"),
        ("device,first\n1,3\n", "columns device, first, last"),
        ("device,first,last\n1,x,2\n", "whole numbers"),
        ("device,first,last\n1," + "9" * 400 + ",2\n", "whole numbers"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, text, message):
    (tmp_path / "when.csv").write_text(text)
    with pytest.raises(ConfigError, match=message):
        Participation(ParticipationConfig(availability=str(tmp_path / "when.csv")), 6, 0)
    with pytest.raises(ConfigError, match="only 6 devices"):
        Participation(ParticipationConfig(count=7), 6, 0)


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
