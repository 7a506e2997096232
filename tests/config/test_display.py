"""What objects show of themselves: one short line, and an escaped table in notebooks."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import feddrop
from feddrop.config.conversion import to_table
from feddrop.config.run import changed_settings
from support.allocate_cases import problems

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def data():
    return feddrop.load_dataset("digits")


def objects(data):
    record = feddrop.RoundRecord(round=3, test_accuracy=0.51234567, push_bytes=1234567, counts={"ok": 2, "late": 1})
    return {
        "RunConfig": feddrop.RunConfig(rounds=7, data=feddrop.Data(devices=4)),
        "Dataset": data,
        "RoundRecord": record,
        "Allocation": feddrop.allocate(problems("mixed", 30, 2)),
    }


@pytest.mark.parametrize("name", ["RunConfig", "Dataset", "RoundRecord", "Allocation"])
def test_one_short_line_and_a_table(name, data):
    one = objects(data)[name]
    assert repr(one).startswith(f"{name}(")
    assert "\n" not in repr(one)
    assert len(repr(one)) < 200
    table = one._repr_html_()
    assert table.count("<table>") == table.count("</table>") == 1
    assert len(table) < 10_000


def test_numbers_are_those_of_the_object(data):
    assert repr(data) == "Dataset('digits': 1,438 train, 359 test, 10 classes, inputs [1, 32, 32], loss cross_entropy)"
    found = objects(data)
    assert repr(found["RoundRecord"]) == (
        "RoundRecord(round=3, test_accuracy=0.5123, push_bytes=1234567, pull_bytes=0, devices=3)"
    )
    assert '<td style="text-align: left">data.devices</td>' in found["RunConfig"]._repr_html_()
    assert "train.lr" not in found["RunConfig"]._repr_html_()  # has its default
    stored = json.loads(json.dumps(to_table(feddrop.RunConfig(rounds=7, radio=feddrop.Radio(deadline_s=2.0)))))
    assert changed_settings(stored) == {"rounds": 7, "radio.deadline_s": 2.0}
    split = found["Allocation"]
    assert f"objective {np.mean(split.objective):.5g}" in repr(split)
    assert split._repr_html_().count("<tr>") == 1 + 20
    assert "The first 20 of 30 devices. The first round of the batch." in split._repr_html_()
    assert f"{split.rate[0, :20].max():.4g}" in split._repr_html_()


def test_hostile_names_are_text(data):
    named = replace(data, name=HOSTILE)
    record = feddrop.RoundRecord(round=1, metrics={HOSTILE: 1.0})
    for table in (named._repr_html_(), record._repr_html_()):
        assert "<script" not in table
        assert "&lt;script&gt;" in table
