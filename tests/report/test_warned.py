"""The report shows what the log of a run warned of, and nothing for a run without warnings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import feddrop
from feddrop.errors import FeddropWarning
from feddrop.report import write_report
from feddrop.storage import manifest

SMALL = {"rounds": 2, "data": feddrop.Data(devices=2, train_limit=60)}


def shown(folder: Path) -> list[str]:
    """Return the lines of the section of warnings, as HTML."""
    page = (folder / "report.html").read_text(encoding="utf-8")
    found = re.search("<h2>Warnings</h2>(.*?)</section>", page)
    return re.findall("<li>(.*?)</li>", found[1]) if found else []


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"method": feddrop.HeteroFL(), "rate": 0.5}, "hidden units are in no device&#x27;s window in any round"),
        ({"method": feddrop.FIARSE(), "rate": 0.5}, "of the weights: the smallest weights are hardly trained"),
        ({"method": feddrop.FjORD(), "rate": 0.5}, "no device trains more than width 0.6"),
        ({"method": feddrop.FedDST(), "rate": 0.5}, "the mask never moves"),
        ({"rate": [0.2, 0.9]}, "round 1: some rates are 0.7 or more, where uniform draws lose accuracy"),
        ({"rate": 0.5}, None),
    ],
)
def test_the_report_shows_each_warning_once(tmp_path: Path, settings: dict[str, Any], line: str | None) -> None:
    feddrop.run(feddrop.RunConfig(**SMALL, model=feddrop.Model("mlp"), **settings), tmp_path / "run")
    assert [line in one for one in shown(tmp_path / "run") if line] == [True] * bool(line)
    assert bool(shown(tmp_path / "run")) == bool(line)


def test_settings_that_a_custom_object_replaces_are_shown(tmp_path: Path) -> None:
    config = feddrop.RunConfig(**SMALL, method=feddrop.HeteroFL(), model=feddrop.Model("mlp"))
    net = feddrop.mlp(num_classes=10, input_shape=(1, 32, 32))
    feddrop.run(config, tmp_path / "run", model=net, method=make_method)
    lines = json.loads((tmp_path / "run" / "run.json").read_text())["warnings"]
    assert lines == [
        "method.name has no effect, because method=... is given.",
        "model.name has no effect, because model=... is given.",
    ]
    assert shown(tmp_path / "run") == lines


def make_method(setup: feddrop.Setup) -> feddrop.Method:
    return feddrop.build_method(feddrop.FedAvg(), setup)


def test_a_cell_in_wrong_units_is_shown(tmp_path: Path) -> None:
    config = feddrop.RunConfig.from_toml(
        "rounds = 1\ndata = { devices = 2, train_limit = 60 }\n[radio]\ndistances_m = [10.0, 20.0]\n"
        "noise_w_hz = 1e-13\nscheme = 'ideal'\ndeadline_s = 1e4"
    )
    with pytest.warns(FeddropWarning, match="74 dB above thermal noise"):
        feddrop.run(config, tmp_path / "run")
    assert any("74 dB above thermal noise" in line for line in shown(tmp_path / "run"))


def test_other_versions_on_resume_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in feddrop.Run(feddrop.RunConfig(**SMALL), tmp_path / "run"):
        break
    now = manifest.versions()
    monkeypatch.setattr(manifest, "versions", lambda: now | {"torch": "99.1 <b>"})
    feddrop.resume(tmp_path / "run")
    assert shown(tmp_path / "run") == [
        f"resumed after round 1 with other versions: torch {now['torch']} before, 99.1 &lt;b&gt; now. Results may "
        "differ in the last bits."
    ]


@pytest.mark.parametrize("known", [["<script>alert(1)</script>\x1b", 7], "none", {"a": 1}, None])
def test_a_hostile_list_of_warnings_is_escaped(tmp_path: Path, known: Any) -> None:
    folder = tmp_path / "run"
    feddrop.run(feddrop.RunConfig(**SMALL), folder)
    about = json.loads((folder / "run.json").read_text())
    about |= {"warnings": known, "config": 3, "resumed": [1, {"torch": ["<i>"], "after_round": "<u>"}]}
    (folder / "run.json").write_text(json.dumps({key: about[key] for key in about if key != "digest"}))
    write_report(folder)
    lines = shown(folder)
    assert lines[:-1] == (["&lt;script&gt;alert(1)&lt;/script&gt;", "7"] if isinstance(known, list) else [])
    assert "<" not in "".join(lines)
    assert "after round &lt;u&gt;" in lines[-1]


def test_devices_that_were_left_out_have_no_high_rate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Their records have rate 1."""
    config = feddrop.RunConfig.from_toml(
        "rounds = 1\ndata = { devices = 2, train_limit = 60 }\n[radio]\npath_loss = [1e-5, 1e-16]\nmax_rate = 0.6\n"
        "policy = 'leave-out'\ndeadline_s = 1.0\nbits_per_parameter = 32"
    )
    (record,) = feddrop.run(config, tmp_path / "run")
    assert {one.status for one in record.devices} == {"ok", "left out"}
    assert shown(tmp_path / "run") == caplog.messages == []
