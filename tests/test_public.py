"""The public names: documented, well named, each with one home; their examples run; run's keywords are spelled out."""

from __future__ import annotations

import ast
import collections
import doctest
import inspect
import re
import sys
from pathlib import Path

import pytest

import feddrop
from feddrop import allocation, errors
from feddrop.config import METHODS, RunConfig
from feddrop.config.run import sections_of
from feddrop.executors import EXECUTORS

ROOT = Path(feddrop.__file__).parent
SHOWN = (
    *("Cell", "FeddropError", "Problem", "Run", "RunConfig", "Serial", "allocate", "build_method", "derive"),
    *("from_arrays", "from_dataset", "gains_from", "lenet", "load_dataset", "load_model", "load_run", "method_named"),
    *("partition", "register_rule", "resume", "run", "sweep", "write_report", "compare", "Budget", "Arm"),
)
"""Names whose docstring must hold an example: what a user calls first."""
FORBIDDEN = {"brought", "own", "whole", "wire", "wires", "method"}
"""Words that public names avoid: we say custom, params, dtype and, in allocation, scheme."""
ALLOWED = {"Method", "CustomMethod", "MethodSettings", "build_method", "method_named"}
"""Names of learning methods."""


def words(name: str) -> set[str]:
    """The words of a name in snake_case or CamelCase."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


def examples(name):
    value = getattr(feddrop, name)
    found = doctest.DocTestFinder(recurse=True).find(value, name, globs=dict(vars(sys.modules[value.__module__])))
    return [one for one in found if one.examples]


# --- one table


def test_the_stub_is_the_table():
    tree = ast.parse((ROOT / "__init__.pyi").read_text())
    listed = {alias.name: node.module for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert all(alias.asname == alias.name for node in tree.body[1:] for alias in node.names)  # exported, for mypy
    assert feddrop.__all__ == sorted(listed) == dir(feddrop)
    for name, home in listed.items():
        value = getattr(feddrop, name)
        assert value is getattr(sys.modules[home], name)
        assert value.__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        feddrop.nothing  # noqa: B018


@pytest.mark.parametrize("name", feddrop.__all__)
def test_every_public_name_is_documented(name):
    value = getattr(feddrop, name)
    text = inspect.getdoc(value)
    assert text
    assert not text.startswith(f"{name}("), "a dataclass's signature is no documentation"
    for method, function in vars(value).items() if inspect.isclass(value) else ():
        if inspect.isfunction(function) and not method.startswith("_"):
            assert inspect.getdoc(function), f"{name}.{method}"


def test_public_names_use_the_words_of_the_glossary():
    public = [*feddrop.__all__, *allocation.__all__]
    for name in set(public) - ALLOWED:
        assert not words(name) & FORBIDDEN, name
        assert "plan_of" not in name, name
    assert not [name for name in allocation.__all__ if "method" in words(name)]
    parameters = {name: signature_of(getattr(feddrop, name)).parameters for name in feddrop.__all__}
    for name, given in parameters.items():
        assert not {word for argument in given for word in words(argument)} & (FORBIDDEN - {"method"}), name
    for name in allocation.__all__:
        assert "method" not in signature_of(getattr(allocation, name)).parameters, name


def signature_of(value):
    try:
        return inspect.signature(value)
    except (TypeError, ValueError):
        return inspect.Signature()


def test_a_class_name_has_one_home():
    homes = collections.defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_every_error_method_and_executor_is_public():
    raised = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert raised | {settings.__name__ for settings in METHODS.values()} <= set(feddrop.__all__)
    assert {name.capitalize() for name in EXECUTORS} <= set(feddrop.__all__)


# --- examples


@pytest.mark.parametrize("name", [name for name in feddrop.__all__ if examples(name)])
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for one in examples(name):
        out: list[str] = []
        runner.run(one, out=out.append)
        assert not runner.failures, "".join(out)


@pytest.mark.parametrize("name", SHOWN)
def test_what_one_calls_first_has_an_example(name):
    assert examples(name)


# --- keywords of a run

OBJECTS = {"model", "dataset", "parts", "method", "executor", "loss", "metrics", "gains", "samples"}
OBJECTS |= {"scheme", "channel", "outcome"}
STARTING = {"config", "out", "resume", "overwrite", "command"}


@pytest.mark.parametrize(
    ("name", "least"),
    [("run", OBJECTS | {"config", "out", "callbacks"}), ("Run", OBJECTS | STARTING), ("resume", OBJECTS - {"samples"})],
)
def test_keywords_are_spelled_out(name, least):
    """``help(feddrop.run)`` lists every keyword with its type and meaning, and editors complete them."""
    value = getattr(feddrop, name)
    parameters = inspect.signature(value).parameters
    assert least <= set(parameters)
    assert not [one for one in parameters.values() if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    text = inspect.getdoc(value)
    for parameter in parameters.values():
        assert parameter.annotation is not parameter.empty, parameter
        assert re.search(rf"^ +{parameter.name}: \S", text, re.MULTILINE), f"{name} does not document {parameter.name}"
    documented = re.findall(r"^    (\w+): ", re.search(r"Args:\n((?:    .*\n)+)", text)[1], re.MULTILINE)
    assert documented == list(parameters)


@pytest.mark.parametrize("cls", [RunConfig, *sections_of().values(), *METHODS.values()], ids=lambda cls: cls.__name__)
def test_help_describes_every_setting(cls):
    for name in inspect.signature(cls).parameters:
        assert re.search(rf"^ +{name}: \S", cls.__doc__, re.MULTILINE), f"{cls.__name__} does not describe {name}"


def test_run_objects_take_the_same_keywords():
    run, made = (inspect.signature(value).parameters for value in (feddrop.run, feddrop.Run))
    shared = run.keys() & made.keys()
    assert shared >= OBJECTS
    assert all(run[name].annotation == made[name].annotation for name in shared)


@pytest.mark.parametrize("name", ["run", "Run", "resume"])
def test_ipython_completes_the_keywords(name):
    completer = pytest.importorskip("IPython.core.completer", reason="IPython is not installed")
    shell = completer.IPCompleter(namespace={"feddrop": feddrop}, use_jedi=False)
    text = f"feddrop.{name}("
    completed = set(shell.complete(line_buffer=text, cursor_pos=len(text))[1])
    assert {f"{parameter}=" for parameter in inspect.signature(getattr(feddrop, name)).parameters} <= completed
