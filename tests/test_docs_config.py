"""docs/config.md is generated from the code, and settings name what the rest of the package implements."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import feddrop
from feddrop import allocation, executors, models, schemes, wire
from feddrop.config import METHODS, RunConfig
from feddrop.config.conversion import declared
from feddrop.config.presets import SITES
from feddrop.config.radio import DEVICE_KINDS
from feddrop.config.run import sections_of
from feddrop.data import DATASETS
from feddrop.learning import losses
from feddrop.methods import BUILDERS
from feddrop.radio import devices, propagation
from support import config_page

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_is_what_the_code_generates():
    text = config_page.PAGE.read_text()
    assert config_page.generated(text) == text, "run: python tests/support/config_page.py"


def test_the_page_has_every_section_and_method():
    text = config_page.PAGE.read_text()
    assert sorted(config_page.blocks(text)) == sorted(config_page.wanted())
    for name in METHODS:
        assert f"## `[method]`: {name}\n" in text
        assert f'| `"{name}"`' in text
    for name in sections_of():
        assert f"## `[{name}]`\n" in text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("| `eval_every` |", "| `eval_each` |"),
        ("| `bandwidth_hz` | `1e7` |", "| `bandwidth_hz` | `2e7` |"),
        ('`"int8"`, `"auto"`', '`"int4"`, `"auto"`'),
    ],
)
def test_a_stale_page_is_noticed(before, after):
    text = config_page.PAGE.read_text()
    assert before in text
    assert config_page.generated(text.replace(before, after)) == text


IMPLEMENTED = {
    "data.name": DATASETS,
    "execution.executor": executors.EXECUTORS,
    "execution.dtype": (*wire.DTYPES, "auto"),
    "model.name": models.MODELS,
    "radio.devices": ("paper", *devices.KINDS, *devices.GROUPS),
    "radio.policy": allocation.POLICIES,
    "radio.propagation": ("", *propagation.MODELS),
    "radio.scheme": (*allocation.SCHEMES, *schemes.SCHEME_TABLE, "custom"),
    "radio.channel": ("", *schemes.CHANNEL_TABLE, "custom"),
    "radio.outcome": (*schemes.OUTCOME_TABLE, "custom"),
    "train.loss": ("", *losses.LOSSES),
}
"""The choices of a setting, and the table elsewhere that implements them."""


@pytest.mark.parametrize("key", IMPLEMENTED)
def test_choices_are_what_is_implemented(key):
    section, name = key.split(".")
    limits = {item.name: item.metadata["limits"] for item, _ in declared(sections_of()[section])}
    assert set(limits[name].choices) == set(IMPLEMENTED[key])


def test_other_tables_that_must_agree():
    assert set(METHODS) == set(BUILDERS)
    assert set(SITES) == set(propagation.MODELS)
    assert set(DEVICE_KINDS) == {*devices.KINDS, *devices.GROUPS}
    assert all(cls.name == name for name, cls in METHODS.items())
    assert [item.name for item, _ in declared(RunConfig)][-len(sections_of()) :] == list(sections_of())


def test_every_field_of_a_record_is_described(tmp_path, digits):
    text = (DOCS / "results.md").read_text()
    named = set(re.findall(r"`(\w+)`", text.partition("A line of `metrics.jsonl`")[2]))
    config = RunConfig.from_toml("rounds = 1\ndata.devices = 2\nmodel.width = 0.2\nradio.deadline_s = 60")
    (record,) = feddrop.Run(config, tmp_path / "run", dataset=digits)
    assert set(record) | set(record["devices"][0]) <= named


def test_every_page_is_in_the_navigation_and_on_the_first_page():
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    nav = re.findall(r"[\w/-]+\.md", (DOCS.parent / "mkdocs.yml").read_text().partition("\nnav:")[2])
    assert sorted(nav) == sorted(pages)
    linked = re.findall(r"^- \[[^]]+\]\(([\w/-]+\.md)\)", (DOCS / "index.md").read_text(), re.MULTILINE)
    assert ["index.md", *linked] == nav


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md") if path.name != "paper.md"))
def test_no_table_has_a_blank_head(page):
    """Of the pages that are written by hand."""
    heads = re.findall(r"^(\|.*\|)\n\|[-:| ]+\|$", (DOCS / page).read_text(), re.MULTILINE)
    for head in heads:
        assert all(cell.strip() for cell in head.strip("|").replace("\\|", "").split("|")), head
