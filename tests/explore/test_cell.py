"""The cell page's answers are those of ``allocate``, and its files and calls repeat them."""

from __future__ import annotations

import contextlib
import io
import json
import math
import subprocess
import sys
import tomllib

import numpy as np
import pytest

import feddrop
from feddrop.allocation import OBJECTIVES, allocate
from feddrop.config import RunConfig
from feddrop.errors import ConfigError
from feddrop.explore import cell
from feddrop.explore.cell import SHOWN, START, solve, tables_of
from feddrop.explore.routes import _json
from feddrop.explore.settle import curve, from_toml, settle, to_run, to_toml
from feddrop.radio import build_cell
from feddrop.schemes import scheme_of
from feddrop.seeds import derive
from support.pages import ROOT

INDOOR = {"preset": "indoor", "bits_per_parameter": 32}
STATES = {
    "start": START,
    "indoor": {**START, "shape": {}, "radio": INDOOR},
    "skewed": {**START, "shape": {"skew": 20.0, "spread_db": 6.0}, "radio": {"noise": "subband", "deadline_s": 20.0}},
    "linear": {**START, "radio": {"objective": "linear", "energy_budget_j": "inf"}},
    "power": {**START, "radio": {"control": ["rate", "share", "power", "cpu"], "energy_budget_j": 300.0}},
    "linear, power": {**START, "radio": {"control": ["rate", "share", "power"], "objective": "linear"}},
    "importance": {**START, "radio": {"objective": "importance-normal", "energy_budget_j": 300.0}},
    "equal": {**START, "scheme": "equal"},
    "random": {**START, "scheme": "random"},
    "no dropout": {**START, "scheme": "no-dropout", "radio": {"policy": "stretch"}},
}


def chosen(state):
    return next(one for one in solve(state)["schemes"] if one["name"] == state["scheme"])


@pytest.mark.parametrize("name", STATES)
def test_the_picture_is_what_allocate_says(name):
    state = STATES[name]
    tables = tables_of(state)
    radio = feddrop.Radio(**tables["radio"])
    built = build_cell(radio, tables["cell"]["devices"], tables["cell"]["samples"], derive(0, "cell"))
    problem = built.problem(built.draw(1, derive(0, "channels")), **tables["model"], choose=radio.chooses)
    schemes = {"exact": feddrop.Exact(OBJECTIVES[radio.objective]), "random": feddrop.Random(derive(0, "shares", 1))}
    scheme = schemes.get(state["scheme"], state["scheme"])
    found, shown = allocate(problem, scheme, policy=radio.policy), chosen(state)
    np.testing.assert_array_equal(shown["share"], found.share)
    np.testing.assert_array_equal(shown["rate"], np.where(found.active, found.rate, np.nan))
    took = shown["push_s"] + shown["compute_s"] + shown["pull_s"]
    np.testing.assert_allclose(took, found.latency_s, rtol=1e-9)
    spent = np.where(found.active, shown["energy_j"] - built.circuit_j, 0.0)
    np.testing.assert_allclose(spent, found.energy_j, rtol=1e-9)
    assert shown["binding"] == found.binding.tolist()
    assert shown["objective"] == pytest.approx(found.objective, rel=1e-12)
    if radio.objective == "inverse":
        assert shown["charged"] == pytest.approx(found.charged_objective, rel=1e-12)


@pytest.mark.parametrize("name", STATES)
def test_python_command_and_files_repeat_it(name, tmp_path):
    state, shown = STATES[name], chosen(STATES[name])
    told = settle(state, "radio.deadline_s", [1.0, 8.0])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(told["python"], "copied", "exec"), {})
    assert float(printed.getvalue().split()[0]) == pytest.approx(shown["objective"], rel=1e-12)

    again = from_toml(told["toml"])
    assert json.loads(_json(chosen(again)).body) == json.loads(_json(shown).body)
    (tmp_path / "cell.toml").write_text(to_toml(again))
    command = [sys.executable, "-m", "feddrop", "allocate", "cell.toml", "--json"]
    assert told["command"].endswith("feddrop allocate cell.toml\n")
    if name in ("random", "linear"):  # a process each
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["objective"] == pytest.approx(shown["objective"], rel=1e-12)

    config = RunConfig.from_toml(to_run(state))
    assert config.radio == RunConfig.from_toml(to_run(from_toml(to_run(state)))).radio
    assert config.data.devices == state["cell"]["devices"]


def test_the_example_loads():
    text = (ROOT / "examples" / "cell.toml").read_text()
    state = from_toml(text)
    assert tomllib.loads(to_toml(state)) == tomllib.loads(text)
    assert chosen(state)["objective"] > 1


@pytest.mark.parametrize("name", ["primal-dual", "fixed", "battery", "my_module:mine"])
def test_a_scheme_that_is_not_shown_is_named(name):
    state = from_toml(f'[radio]\nscheme = "{name}"\nenergy_budget_j = 300.0\n')
    assert state["scheme"] == "exact"
    (note,) = solve(state)["notes"]
    assert note.startswith(f"The file's scheme, {name}, is not shown on this page. The optimum (exact) is shown")
    for shown in SHOWN:
        assert solve(from_toml(f'[radio]\nscheme = "{shown}"\nenergy_budget_j = 300.0\n'))["notes"] == []


def test_a_scheme_that_fails_leaves_the_others_to_be_seen(monkeypatch):
    def failing(name, *given, **named):
        if name == "random":
            raise ConfigError("no shares.")
        return scheme_of(name, *given, **named)

    monkeypatch.setattr(cell, "scheme_of", failing)
    lacking = {one["name"]: one["lacks"]["text"] for one in solve(START)["schemes"] if "lacks" in one}
    assert lacking.pop("random") == "no shares."
    assert set(lacking) == {"no-dropout"}


def test_an_objective_that_saved_files_do_not_print_is_told():
    state = {**START, "scheme": "equal", "radio": {"objective": "linear", "energy_budget_j": 300.0}}
    assert "print inverse" in solve(state)["notes"][0]
    assert "objective" not in tomllib.loads(to_toml(state))["radio"]
    assert solve({**state, "scheme": "exact"})["notes"] == []


def test_what_a_cell_lacks():
    state = {**START, "radio": {"deadline_s": 0.5}}
    lacks = chosen(state)["lacks"]
    assert lacks["text"].startswith("No rates and shares meet the deadline")
    assert np.sum(lacks["needs"]) == pytest.approx(lacks["load"])
    assert lacks["load"] > 1
    wide = settle(state, "radio.deadline_s", [1.0])["bandwidth_hz"]
    enough = {"deadline_s": lacks["deadline_s"], "bandwidth_hz": wide}
    for key, value in enough.items():
        assert "lacks" not in chosen({**state, "radio": {**state["radio"], key: value * (1 + 1e-9)}}), key
    without = chosen({**state, "scheme": "no-dropout"})["lacks"]
    assert np.sum(without["needs"]) == pytest.approx(without["load"])
    left = chosen({**state, "radio": {"deadline_s": 0.5, "policy": "leave-out"}})
    assert left["left_out"] > 0
    assert math.isnan(left["rate"][left["binding"].index("left out")])


def test_a_curve_is_many_pictures():
    values = [0.5, 2.0, 8.0, 40.0]
    found = curve(START, "radio.deadline_s", values)["lines"]
    assert set(found) == set(SHOWN)
    for n, value in enumerate(values):
        schemes = solve({**START, "radio": {**START["radio"], "deadline_s": value}})["schemes"]
        for one in schemes:
            assert found[one["name"]][n] == pytest.approx(one.get("charged", math.nan), nan_ok=True)
    assert "lacks" in chosen({**START, "radio": {"deadline_s": values[0]}})


def test_lists_follow_the_number_of_devices():
    for devices in (1, 3, 40):
        state = {**START, "cell": {**START["cell"], "devices": devices, "samples": [10, 20]}, "shape": {}}
        state["radio"] = {"path_loss": [1e-3, 5e-4, 2e-4], "deadline_s": 100.0}
        assert len(solve(state)["places"]["m"]) == devices
        assert tables_of(state)["cell"]["samples"] == ([10, 20] * devices)[:devices]
    spread = tables_of(START)["radio"]["path_loss"]
    assert spread == tables_of({**START, "cell": {"devices": 30}})["radio"]["path_loss"][:10]  # the others stay


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"radio": {"gains_csv": "/etc/passwd"}}, "does not read"),
        ({"radio": {"devices_csv": "x.csv"}}, "does not read"),
        ({"cell": {"devices": 10**7}}, "1 to 2000"),
        ({"cell": {"devices": True}}, "cell.devices|samples"),
        ({"shape": {"spread_db": "wide"}}, "shape.spread_db"),
        ({"radio": {"deadlin_s": 1.0}}, "deadline_s"),
        ({"radio": [1]}, "tables"),
        ({"cell": {"samples": 0}}, "samples"),
    ],
)
def test_wrong_states_are_refused(part, told):
    with pytest.raises(ConfigError, match=told):
        solve({**START, "shape": {}, **part})


def test_files_that_are_no_cell():
    for text in ("", "radio = 1", "rounds = 3"):
        with pytest.raises(ConfigError, match="radio"):
            from_toml(text)
    assert cell.choices()["start"] == START


@pytest.mark.parametrize("key", ["objective", "scheme", "channel", "outcome"])
def test_a_state_imports_no_code(key, tmp_path, monkeypatch):
    """A link could name any module on this machine."""
    (tmp_path / "hostile_module.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="does not import"):
        solve({**START, "radio": {**START["radio"], key: "hostile_module:x"}})
    assert "hostile_module" not in sys.modules
