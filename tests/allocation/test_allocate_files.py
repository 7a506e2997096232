"""Problem files, the command, and its picture."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from feddrop.allocation import PowerProblem, allocate
from feddrop.config import Radio
from feddrop.errors import ConfigError, FeddropWarning
from feddrop.radio import build_cell
from feddrop.radio.files import as_json, as_text, load, rows
from feddrop.report.allocation import allocation_figure as draw
from feddrop.report.allocation import save_allocation_figure as save
from feddrop.seeds import derive

EXAMPLES = Path(__file__).parents[2] / "examples"
TOML = """
deadline_s = 2.0
[[device]]
comm_s = 0.3
compute_s = 1.0
upload_j = 0.9
compute_j = 3.0
"""


def feddrop(*words):
    """The command line, as a user calls it."""
    command = [sys.executable, "-m", "feddrop", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_examples_say_the_same_in_toml_csv_and_json(tmp_path):
    from_toml, names, *_ = load(EXAMPLES / "problem.toml")
    from_csv, same_names, *_ = load(EXAMPLES / "problem.csv")
    copy = tmp_path / "problem.json"
    copy.write_text(json.dumps(tomllib.loads((EXAMPLES / "problem.toml").read_text())))
    from_json, *_ = load(copy)
    assert names == same_names == ["phone", "old phone", "laptop", "sensor"]
    assert from_toml.weight.sum() == pytest.approx(1.0)
    for other in (from_csv, from_json):
        np.testing.assert_allclose(allocate(other).rate, allocate(from_toml).rate)


def test_a_cell_file_is_the_cell():
    problem, *_ = load(EXAMPLES / "cell.toml")
    loss = (1e-3, 1e-3, 1e-3, 5e-4, 5e-4, 2e-3, 2e-3, 1e-3, 2e-4, 1e-3)
    cell = build_cell(Radio(energy_budget_j=300.0, path_loss=loss), 10, 5000, seed=derive(0, "cell"))
    same = cell.problem(cell.draw(1, derive(0, "channels")), parameters=69_656, forward_flops=1_318_560)
    np.testing.assert_array_equal(problem.comm_s, same.comm_s)
    np.testing.assert_array_equal(problem.budget_j, same.budget_j)


def test_the_command_prints_a_table():
    done = feddrop("allocate", EXAMPLES / "problem.toml")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["device", "rate", "share", "latency", "energy", "limited", "by"]
    assert lines[4].startswith("sensor")
    assert lines[4].endswith("energy")
    assert "scheme exact: optimal" in lines


def test_the_command_prints_json_and_draws(tmp_path):
    picture = tmp_path / "split.png"
    words = ("--scheme", "fixed", "--rate", "0.7", "--json", "--plot", picture)
    found = json.loads(feddrop("allocate", EXAMPLES / "problem.csv", *words).stdout)
    assert found["scheme"] == "fixed"
    assert [device["rate"] for device in found["devices"]] == [0.7] * 4
    assert set(found["devices"][0]) == {"device", "name", "rate", "share", "latency_s", "energy_j", "binding"}
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_command_explains_what_is_infeasible(tmp_path):
    file = tmp_path / "p.toml"
    file.write_text((EXAMPLES / "problem.toml").read_text().replace("deadline_s = 2.0", "deadline_s = 0.3"))
    failed = feddrop("allocate", file)
    assert failed.returncode == 2
    assert "device 'old phone' needs 0.875 of the band to meet its deadline" in " ".join(failed.stderr.split())
    problem, names, *_ = load(file)
    fewer = allocate(problem, policy="leave-out")
    assert "left out" in as_text(fewer, names)
    said = f"{fewer.left_out.sum()} left out, charged objective {fewer.charged_objective:.6f}"
    assert said in as_text(fewer, names)
    assert json.loads(as_json(fewer, names))["left_out"] == fewer.left_out.sum() > 0
    assert "charged" not in as_text(allocate(problem, policy="stretch"), names)
    ideal = allocate(problem, "ideal")
    assert "scheme ideal: ideal: ignores the band" in as_text(ideal, names)
    assert "ideal: ignores the band" in draw(ideal, names).axes[0].get_ylabel()
    assert "ideal" not in draw(fewer, names).axes[0].get_ylabel()
    assert "stretched from 0.3 s" in as_text(allocate(problem, policy="stretch"), names, problem)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rate", "0.5"), "rate is 0.5, but the scheme 'exact' takes none"),
        (("--seed", "3"), "seed is 3, but the scheme 'exact' takes no seed"),
        (("--scheme", "random", "--seed", "-1"), "seed is -1; it must be at least 0"),
        (("--scheme", "ideal", "--policy", "stretch"), "policy is stretch, but the scheme 'ideal' takes no policy"),
    ],
)
def test_the_command_refuses_what_it_would_ignore(words, message):
    failed = feddrop("allocate", EXAMPLES / "problem.toml", *words)
    assert failed.returncode == 2
    assert message in " ".join(failed.stderr.split())
    assert "Traceback" not in failed.stderr


def test_a_cell_says_how_to_allocate_and_flags_win(tmp_path):
    file = tmp_path / "cell.toml"
    plain = (EXAMPLES / "cell.toml").read_text()
    assert load(EXAMPLES / "cell.toml")[2:4] == ("exact", "error")
    assert load(EXAMPLES / "problem.toml")[2:4] == ("exact", "error")
    asked = plain + 'scheme = "equal"\npolicy = "leave-out"\ncosts = "formula"\n'
    file.write_text(asked.replace("deadline_s = 8.0", "deadline_s = 1.0"))
    assert load(file)[2:4] == ("equal", "leave-out")
    found = json.loads(feddrop("allocate", file, "--json").stdout)
    assert found["scheme"] == "equal"
    assert "left out" in {device["binding"] for device in found["devices"]}
    found = json.loads(feddrop("allocate", file, "--json", "--scheme", "exact", "--policy", "stretch").stdout)
    assert found["scheme"] == "exact"
    assert found["deadline_s"] > 1.0


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.txt", TOML, "the ending of p.txt is '.txt'"),
        ("p.toml", "deadline_s = ", "not valid TOML"),
        ("p.json", "{", "not valid JSON"),
        ("p.json", "[1]", r"neither \[\[device\]\] tables"),
        ("p.toml", "deadline_s = 2.0\n", r"neither \[\[device\]\] tables"),
        ("p.toml", TOML.replace("deadline_s = 2.0", ""), "deadline_s is missing"),
        ("p.toml", TOML.replace("deadline_s", "deadline"), "Did you mean 'deadline_s'"),
        ("p.toml", TOML.replace("comm_s", "com_s"), "a key of device 0 is 'com_s'.*Did you mean 'comm_s'"),
        ("p.toml", TOML.replace("comm_s = 0.3", ""), "comm_s of device 0 is missing"),
        ("p.toml", TOML.replace("0.3", "'fast'"), "comm_s is .*; it must be a number"),
        ("p.toml", TOML.replace("0.3", "-0.3"), "comm_s of device 0 is -0.3"),
        ("p.toml", TOML + "weight = 0\n", "every weight is 0"),
        ("p.toml", TOML + "weight = 1\nsamples = 9\n", "weight and samples; give one of them"),
        ("p.toml", TOML + "samples = 600\n" + TOML[TOML.index("[[") :], "samples of device 1 is missing"),
        ("p.toml", TOML.replace("0.3", "[0.3, 0.4]"), r"comm_s is \[\[0.3, 0.4\]\]; it must be a number"),
        ("p.toml", TOML.replace("= 2.0", "= [[2.0], [3.0]]"), "deadline_s is .*; it must be a number"),
        ("p.toml", TOML.replace("= 2.0", "= true"), "deadline_s is True; it must be a number"),
        ("p.csv", "comm_s,compute_s,upload_j,compute_j\n1,1,1,1\n", "deadline_s is missing"),
        ("p.csv", "", "no devices"),
        ("p.csv", "comm_s,compute_s,upload_j,compute_j,deadline_s\n1,1,,1,9\n", "upload_j of device 0 is missing"),
        ("p.csv", "comm_s,compute_s,upload_j,compute_j,deadline_s\n1,1,1,1,soon\n", "deadline_s is .'soon'."),
        ("c.toml", "[radio]\nbandwith_hz = 1.0\n", "Did you mean 'radio.bandwidth_hz'"),
        ("c.toml", "[radio]\nbandwidth_hz = -1.0\n", "radio.bandwidth_hz is -1.0; it must be above 0"),
        ("c.toml", "[radio]\n[cell]\ndevice = 3\n", "Did you mean 'cell.devices'"),
        ("c.toml", "[radio]\n[model]\nparameters = 10\n", "forward_flops is None; it must be a number"),
        ("c.toml", "[radio]\nbandwidth_hz = 'wide'\n", "bandwidth_hz is 'wide'; it must be a number"),
        ("c.toml", "[radio]\npath_loss = 'far'\n", "radio.path_loss is 'far'; it must be a number or a list"),
        ("c.toml", "[radio]\ndynamic = 'false'\n", "radio.dynamic is 'false'; it must be true or false"),
        ("c.toml", "[radio]\nmin_devices = 2.5\n", "radio.min_devices is 2.5; it must be a whole number"),
        ("c.toml", "[radio]\ndeadline_s = true\n", "radio.deadline_s is True; it must be a number"),
        ("c.toml", "[radio]\ncpu_hz = ['fast', 'slow']\n", r"radio.cpu_hz\[0\] is 'fast'; it must be a number"),
        (
            "c.toml",
            f"[radio]\npath_loss_exponent = {'9' * 400}\n",
            "path_loss_exponent has about 4.. digits",
        ),
        ("c.toml", "[radio]\n[model]\nparameters = [1, 2]\n", r"model.parameters is .*; it must be a number"),
        ("c.toml", "[radio]\n[cell]\nsamples = 0\n", "cell.samples is 0; at least one"),
        ("c.toml", "[radio]\nscheme = 'exakt'\n", "radio.scheme is 'exakt'.*Did you mean 'exact'"),
        ("c.toml", "[radio]\ncosts = 'measured'\n", "radio.costs is 'measured'.*allocate uses the paper's formula"),
        ("c.toml", "[radio]\n[cell]\nseed = -1\n", "cell.seed is -1; it must be at least 0"),
        ("c.toml", "[radio]\n[cell]\nround = -1\n", "cell.round is -1"),
        ("c.toml", "[radio]\n[cell]\ndevices = 1000000000\n", "cell.devices is 1000000000; it must be in .1, 1e.07"),
        (
            "c.toml",
            f"[radio]\nbandwidth_hz = {'9' * 400}\n",
            "bandwidth_hz has about 4.. digits; it must",
        ),
        ("c.toml", f"[radio]\nbandwidth_hz = {'9' * 5000}\n", "is not valid TOML: .* digits"),
        ("c.toml", f"[radio]\n[cell]\nseed = 0x{'f' * 5000}\n", "cell.seed has about 6... digits"),
        ("p.json", "[" * 100_000, "nested too deeply"),
        ("p.csv", f"comm_s\n{'9' * 200_000}\n", "cannot read the problem .* field larger"),
        ("c.toml", "[radio]\n[cell]\ndevices = 'ten'\n", "cell.devices is 'ten'; it must be a whole number"),
        ("c.toml", "[radio]\n[cell]\nsamples = 'many'\n", "cell.samples is 'many'"),
        ("c.toml", "radio = 3\n", "radio is 3; it must be a table"),
        ("c.toml", "[radio]\n[extra]\n", "a table of the file is 'extra'"),
        (
            "c.toml",
            "rounds = 3\n[radio]\n",
            "the file has 'rounds', which belongs to a run: use `feddrop allocate` or `feddrop run`",
        ),
    ],
)
def test_bad_files(tmp_path, name, text, message):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(file)


def test_settings_of_a_cell_without_effect_are_said(tmp_path):
    file = tmp_path / "cell.toml"
    file.write_text((EXAMPLES / "cell.toml").read_text() + "min_devices = 3\n")
    with pytest.warns(FeddropWarning, match=r"radio\.min_devices is 3, which has no effect"):
        load(file)


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the problem"):
        load(tmp_path / "nowhere.toml")


def test_rows_text_and_json_agree(monkeypatch):
    problem, names, *_ = load(EXAMPLES / "problem.toml")
    result = allocate(problem)
    table = rows(result, names)
    assert [row["rate"] for row in table] == result.rate.tolist()
    assert json.loads(as_json(result, names))["devices"] == table
    text = as_text(result, names)
    assert all(name in text for name in names)
    monkeypatch.setattr(type(result), "residual", np.inf)  # which JSON has not
    assert json.loads(as_json(result, names), parse_constant=pytest.fail)["residual"] is None


def test_the_picture_shows_what_it_says():
    problem, names, *_ = load(EXAMPLES / "problem.toml")
    result = allocate(problem)
    share, rate, use = draw(result, names).axes
    assert [bar.get_height() for bar in share.patches] == pytest.approx(result.share)
    assert [bar.get_height() for bar in rate.patches] == pytest.approx(result.rate)
    assert [bar.get_height() for bar in use.patches[:4]] == pytest.approx(result.latency_s / 2.0)
    assert [label.get_text() for label in use.get_xticklabels()] == names


def test_the_picture_of_a_device_without_a_budget_that_was_left_out():
    found = allocate(
        replace(load(EXAMPLES / "problem.toml").problem, budget_j=[12.0, 0.0, 60.0, -0.1]), policy="leave-out"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(draw(found).axes) == 3


def test_pictures_that_cannot_be(tmp_path):
    problem, names, *_ = load(EXAMPLES / "problem.toml")
    with pytest.raises(ConfigError, match="cannot write the figure"):
        save(allocate(problem), tmp_path / "no" / "where.png", names)
    with pytest.raises(ConfigError, match="cannot write the figure"):
        save(allocate(problem), tmp_path / "split.wrong", names)
    with pytest.raises(ConfigError, match="has no file extension"):
        save(allocate(problem), tmp_path / "split", names)
    assert not list(tmp_path.iterdir())


def test_a_byte_order_mark_is_no_part_of_a_problem(tmp_path):
    for name in ("problem.csv", "problem.toml"):
        (tmp_path / name).write_text("\ufeff" + (EXAMPLES / name).read_text(), encoding="utf-8")
        np.testing.assert_array_equal(load(tmp_path / name).problem.comm_s, load(EXAMPLES / name).problem.comm_s)
        (tmp_path / name).write_bytes(b"\xff\xfe" + (EXAMPLES / name).read_bytes())
        with pytest.raises(ConfigError, match="not UTF-8"):
            load(tmp_path / name)


def test_a_problem_that_leaves_power_and_clock_open(tmp_path):
    given = load(EXAMPLES / "power.toml")
    assert isinstance(given.problem, PowerProblem)
    found = allocate(given.problem)
    sensor = rows(found, given.names)[3]
    assert sensor["name"] == "sensor"
    assert 0 < sensor["tx_power_w"] < 0.3
    assert 0 < sensor["cpu_hz"] < 4e8
    assert found.residual < 1e-8
    text = as_text(found, given.names)
    assert "power" in text
    assert "GHz" in text
    assert json.loads(as_json(found, given.names))["devices"][3] == sensor
    assert len(draw(found, given.names).axes) == 4
    table = tomllib.loads((EXAMPLES / "power.toml").read_text())
    devices = table.pop("device")
    lines = [",".join([*devices[0], "deadline_s", "bandwidth_hz", "max_rate"])]
    lines += [",".join(map(str, [*device.values(), 2.0, 5e6, 0.9])) for device in devices]
    (tmp_path / "power.csv").write_text("\n".join(lines))
    np.testing.assert_allclose(allocate(load(tmp_path / "power.csv").problem).rate, found.rate)
    (tmp_path / "power.csv").write_text("\n".join(lines).replace("5000000.0", "6000000.0", 1))
    with pytest.raises(ConfigError, match=r"bandwidth_hz is .*; all devices share one band"):
        load(tmp_path / "power.csv")


def test_a_cell_that_leaves_power_and_clock_open(tmp_path):
    text = (EXAMPLES / "cell.toml").read_text()
    (tmp_path / "open.toml").write_text(text + 'control = ["rate", "power", "cpu"]\n')
    given = load(tmp_path / "open.toml")
    assert isinstance(given.problem, PowerProblem)
    assert given.scheme == "equal"
    better = allocate(given.problem).objective
    assert better < allocate(given.problem, "equal").objective
    assert better < allocate(load(EXAMPLES / "cell.toml").problem).objective - 0.01


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("bandwidth_hz = 5e6\n", "bandwidth_hz is missing"),
        ("upload_bits = 8e6\n", "upload_bits of device 0 is missing"),
    ],
)
def test_an_open_problem_says_what_is_missing(tmp_path, change, message):
    text = (EXAMPLES / "power.toml").read_text()
    (tmp_path / "bad.toml").write_text(text.replace(change, "", 1))
    with pytest.raises(ConfigError, match=message):
        load(tmp_path / "bad.toml")


def test_one_pass_is_one():
    problem, names, *_ = load(EXAMPLES / "problem.toml")
    assert " · 1 pass · " in as_text(allocate(problem, "equal"), names)
    assert " passes · " in as_text(allocate(problem), names)
