"""docs/config.md has every key of a configuration, with the default and the words that the code has."""

from __future__ import annotations

import dataclasses
import re
import tomllib
import typing
from pathlib import Path
from typing import Any

import pytest

import feddrop
from feddrop import allocation, methods
from feddrop.config import RATE, RunConfig, to_table
from feddrop.config import train as local
from feddrop.config.methods import COUNTS, LAYER_SPARSITIES, LEVELS, RULES, THRESHOLDS
from feddrop.config.model import INITS, MODELS, NORMS
from feddrop.config.presets import PRESETS
from feddrop.config.radio import NOISES, SIGHTS
from feddrop.config.server import MEANS
from feddrop.data import DATASETS, PARTITIONS
from feddrop.executors import EXECUTORS
from feddrop.learning import server
from feddrop.learning.losses import LOSSES
from feddrop.radio.propagation import MODELS as PROPAGATION
from feddrop.wire import DTYPES

DOCS = Path(__file__).parents[1] / "docs"
CHOICES = {
    "data.name": DATASETS,
    "data.partition": PARTITIONS,
    "execution.executor": EXECUTORS,
    "execution.dtype": (*DTYPES, "auto"),
    "method.name": methods.METHODS,
    "method[feddrop].count": COUNTS,
    "method[feddrop].level": LEVELS,
    "method[feddrop].rule": RULES,
    "method[feddst].layer_sparsity": LAYER_SPARSITIES,
    "method[fiarse].threshold": THRESHOLDS,
    "model.init": INITS,
    "model.name": MODELS,
    "model.norm": NORMS,
    "radio.noise": NOISES,
    "radio.policy": allocation.POLICIES,
    "radio.preset": PRESETS,
    "radio.propagation": PROPAGATION,
    "radio.scheme": allocation.SCHEMES,
    "radio.sight": SIGHTS,
    "server.mean": MEANS,
    "server.optimizer": server.OPTIMIZERS,
    "train.loss": LOSSES,
    "train.optimizer": local.OPTIMIZERS,
    "train.schedule": local.SCHEDULES,
}


def prefixes(heading: str) -> list[str]:
    """What the keys under a heading belong to: a section, or the own settings of one method or several."""
    found = re.fullmatch(r"## `\[(\w+)\]`(?:: ([\w, ]+))?", heading)
    if found is None:
        return [""]
    return [f"{found[1]}[{name}]." for name in found[2].split(", ")] if found[2] else [f"{found[1]}."]


def described(text: str) -> dict[str, tuple[str, ...]]:
    """The rows of the tables of keys: ``section.key`` or ``method[name].key`` -> default, allowed, meaning."""
    rows: dict[str, tuple[str, ...]] = {}
    sections, in_keys = [""], False
    for line in text.splitlines():
        if line.startswith("## "):
            sections = prefixes(line)
        in_keys = line.startswith("|") and (in_keys or line.startswith("| key |"))
        if in_keys and line.startswith("| `"):
            key, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
            for name in (section + key.strip("` ") for section in sections):
                assert len(cells) == 3, f"{name}: a row has four cells"
                assert name not in rows, f"{name} has two rows"
                rows[name] = tuple(cells)
    return rows


def defaults(cls: type[Any] = RunConfig, prefix: str = "") -> dict[str, Any]:
    """Every key of a configuration with its default, as plain values; those of ``[radio]`` too, off by default."""
    found: dict[str, Any] = {}
    plain = {"rate": RATE} | to_table(cls())
    hints = typing.get_type_hints(cls)
    for name, hint in ((item.name, hints[item.name]) for item in dataclasses.fields(cls)):
        options = [option for option in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(option)]
        if hint is methods.MethodSettings:
            found["method.name"] = cls().method.name
            for method, (own, _) in methods.METHODS.items():
                found |= defaults(own, f"method[{method}].")
        elif options:
            found |= defaults(typing.cast(type[Any], options[0]), f"{prefix}{name}.")
        else:
            found[prefix + name] = list(plain[name]) if isinstance(plain[name], tuple) else plain[name]
    return found


def problems(text: str) -> list[str]:
    """What the page leaves out, makes up or has wrong."""
    rows, keys = described(text), defaults()
    found = [f"{key} has no row" for key in keys if key not in rows]
    found += [f"{key} is no key" for key in rows if key not in keys]
    told = {prefix for line in text.splitlines() if line.startswith("## ") for prefix in prefixes(line)}
    found += [f"{name} has no heading" for name in methods.METHODS if f"method[{name}]." not in told]
    for key, (default, allowed, meaning) in rows.items():
        shown = tomllib.loads(f"value = {default.strip('`')}")["value"]
        if key in keys and (shown != keys[key] or isinstance(shown, bool) != isinstance(keys[key], bool)):
            found.append(f"the default of {key} is {keys[key]!r}, not {shown!r}")
        if not meaning.strip():
            found.append(f"{key} has no meaning")
        words = re.findall(r'`"([\w-]+)"`', allowed)
        if key in CHOICES and set(words) != set(CHOICES[key]):
            found.append(f"{key} may be {sorted(CHOICES[key])}, not {sorted(words)}")
    return found


def test_every_key_has_a_row_with_its_default():
    text = (DOCS / "config.md").read_text()
    assert len(defaults()) > 50
    assert not problems(text)


def test_feddrop_config_names_every_method():
    told = set(re.findall(r'``"(\w+)"``', methods.MethodSettings.__doc__))
    assert told == set(methods.METHODS)


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("| `eval_every` |", "| `eval_each` |", "eval_every has no row"),
        ("| `eval_every` |", "| `eval_each` |", "eval_each is no key"),
        ("| `bandwidth_hz` | `10e6` |", "| `bandwidth_hz` | `20e6` |", "the default of radio.bandwidth_hz"),
        ("| `biases` | `false` |", "| `biases` | `true` |", "the default of method[feddrop].biases is False"),
        ('`"int8"`', '`"int4"`', "execution.dtype may be"),
        ("## `[method]`: fedavg", "## Federated averaging", "fedavg has no heading"),
        ("## `[method]`: heterofl, fedrolex", "## `[method]`: heterofl", "method[fedrolex].layers has no row"),
    ],
)
def test_a_stale_page_is_noticed(before, after, problem):
    text = (DOCS / "config.md").read_text()
    assert before in text
    assert any(line.startswith(problem) for line in problems(text.replace(before, after)))


def test_every_field_of_a_record_is_described(tmp_path, digits):
    text = (DOCS / "results.md").read_text()
    named = set(re.findall(r"`(\w+)`", text.partition("A line of `metrics.jsonl`")[2]))
    config = RunConfig.from_toml("rounds = 1\ndata.devices = 2\nmodel.width = 0.2\nradio.deadline_s = 60")
    (record,) = feddrop.Run(config, tmp_path / "run", dataset=digits)
    assert set(record) | set(record["devices"][0]) <= named


def test_every_page_is_in_the_navigation_and_on_the_first_page():
    pages = [path.name for path in DOCS.glob("*.md")]
    nav = re.findall(r"[\w-]+\.md", (DOCS.parent / "mkdocs.yml").read_text().partition("\nnav:")[2])
    assert sorted(nav) == sorted(pages)
    linked = re.findall(r"^- \[[^]]+\]\(([\w-]+\.md)\)", (DOCS / "index.md").read_text(), re.MULTILINE)
    assert ["index.md", *linked] == nav


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md") if path.name != "paper.md"))
def test_no_table_has_a_blank_head(page):
    """Of the pages that are written by hand."""
    heads = re.findall(r"^(\|.*\|)\n\|[-:| ]+\|$", (DOCS / page).read_text(), re.MULTILINE)
    for head in heads:
        assert all(cell.strip() for cell in head.strip("|").replace("\\|", "").split("|")), head
