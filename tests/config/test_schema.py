"""The JSON schema accepts every example and marks every mistake that it can express."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest

from feddrop.config import METHODS, RunConfig
from feddrop.config.methods import method_named
from feddrop.config.schema import compare_schema, run_schema
from feddrop.errors import ConfigError
from feddrop.sweeps.comparison import checked, read_comparison
from support.bad_toml import BY_SCHEMA

ROOT = Path(__file__).parents[2]
OTHERS = {"sweep.toml", "problem.toml", "cell.toml", "power.toml", "urban_cell.toml", "pyproject.toml"}
COMPARISONS = sorted((ROOT / "examples").glob("compare_*.toml"))
OTHERS |= {path.name for path in COMPARISONS}
"""Files that are not configurations of a run."""
EXAMPLES = [
    path
    for folder in ("examples", "reproduction", "benchmarks", "docs")
    for path in sorted((ROOT / folder).rglob("*.toml"))
    if path.name not in OTHERS
]


@pytest.fixture(scope="module")
def checker():
    schema = run_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_example_is_valid(checker, path):
    found = tomllib.loads(path.read_text())
    assert [error.message for error in checker.iter_errors(found)] == []
    assert RunConfig.from_file(path)


def test_there_are_examples():
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("toml", [toml for toml, _ in BY_SCHEMA])
def test_every_mistake_is_marked(checker, toml):
    assert list(checker.iter_errors(tomllib.loads(toml)))


@pytest.mark.parametrize(
    "toml",
    [
        "",
        *(f"method = '{name}'" for name in METHODS),
        *(f"[method]\nname = '{name}'" for name in METHODS),
        "method = 'package.module:factory'",
        "[method]\nname = 'package.module:factory'\nanything = { goes = [1, 'a'] }",
        "train.loss = 'package.module:loss'",
        "rate = 'rates.csv'",
        "rate = [0.1, 0.2]",
        "rate = 0",
        "server.clip = 0",
        "radio.energy_budget_j = inf",
        "radio.kappa = 'drawn'\nradio.propagation = 'umi'",
        "radio = {}",
    ],
)
def test_what_a_run_takes_is_valid(checker, toml):
    assert [error.message for error in checker.iter_errors(tomllib.loads(toml))] == []
    assert RunConfig.from_toml(toml)


def test_written_configurations_are_valid(checker):
    for name in METHODS:
        for toml in ("", "radio.preset = 'indoor'"):
            text = RunConfig.from_toml(toml, [f"method={name}"]).to_toml()
            assert [error.message for error in checker.iter_errors(tomllib.loads(text))] == []


def test_defaults_and_descriptions_are_those_of_the_code():
    schema = run_schema()
    assert json.loads(json.dumps(schema, allow_nan=False)) == schema
    table = tomllib.loads(RunConfig.from_toml("[radio]").to_toml())
    for name, section in schema["properties"].items():
        if name != "method" and section.get("type") == "object":
            for key, entry in section["properties"].items():
                assert entry["description"], f"{name}.{key}"
                assert entry.get("default", table[name].get(key)) == table[name].get(key), f"{name}.{key}"
    rules = {
        rule["if"]["properties"]["name"]["const"]: rule["then"]
        for rule in schema["properties"]["method"]["then"]["allOf"]
    }
    assert rules["feddst"]["properties"]["alpha"]["default"] == method_named("feddst").alpha
    assert set(rules) == set(METHODS)


@pytest.fixture(scope="module")
def comparisons():
    schema = compare_schema()
    assert json.loads(json.dumps(schema, allow_nan=False)) == schema
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


ARMS = "[compare.arms.a]\nrate = 0.1\n[compare.arms.b]\nrate = 0.2\n"


@pytest.mark.parametrize("text", [ARMS, *(path.read_text() for path in COMPARISONS)])
def test_comparison_files_are_valid(comparisons, tmp_path, text):
    (tmp_path / "compare.toml").write_text(text)
    assert [error.message for error in comparisons.iter_errors(tomllib.loads(text))] == []
    assert read_comparison(tmp_path / "compare.toml")


def test_an_arm_may_change_settings_of_the_common_method(comparisons, tmp_path):
    text = "method = 'fiarse'\n" + ARMS + "method = { threshold = 'layer' }\n"
    (tmp_path / "compare.toml").write_text(text)
    assert not list(comparisons.iter_errors(tomllib.loads(text)))
    assert read_comparison(tmp_path / "compare.toml")[0]["b"].config.method == method_named("fiarse", threshold="layer")


@pytest.mark.parametrize(
    "mistake",
    [
        "",
        "[compare]\nseeds = 3",
        "[compare.arms.a]\nrate = 0.1",
        f"compare.seed = 3\n{ARMS}",
        f"compare.budget = {{}}\n{ARMS}",
        f"compare.budget = {{ byte = 1e6 }}\n{ARMS}",
        f"compare.budget = {{ bytes = -1 }}\n{ARMS}",
        f"compare.width = 'wide'\n{ARMS}",
        f"rat = 0.3\n{ARMS}",
        ARMS.replace("rate", "rat"),
        ARMS.replace("rate = 0.1", "method = { name = 'fedavg', level = 'unit' }"),
    ],
)
def test_mistakes_in_comparison_files_are_marked(comparisons, tmp_path, mistake):
    assert list(comparisons.iter_errors(tomllib.loads(mistake)))
    (tmp_path / "compare.toml").write_text(mistake)
    with pytest.raises(ConfigError):
        checked(tmp_path / "compare.toml", {})
