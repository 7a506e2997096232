"""The public names, from the top: each is what it says, and the examples in their docstrings run."""

from __future__ import annotations

import doctest
import inspect
import sys

import pytest

import feddrop

SHOWN = (
    *("Cell", "FeddropError", "Problem", "Run", "RunConfig", "Serial", "allocate", "derive", "feddrop", "from_arrays"),
    *(
        "from_dataset",
        "gains_from",
        "lenet",
        "load",
        "load_model",
        "load_run",
        "named",
        "partition",
        "register_rule",
        "resume",
        "run",
    ),
    "sweep",
    "write_report",
)
"""Names whose docstring must hold an example: what one calls first."""


def examples(name):
    value = getattr(feddrop, name)
    found = doctest.DocTestFinder(recurse=True).find(value, name, globs=dict(vars(sys.modules[value.__module__])))
    return [one for one in found if one.examples]


@pytest.mark.parametrize("name", [name for name in feddrop.__all__ if examples(name)])
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for one in examples(name):
        out: list[str] = []
        runner.run(one, out=out.append)
        assert not runner.failures, "".join(out)


@pytest.mark.parametrize("name", feddrop.__all__)
def test_every_public_name_is_described(name):
    assert inspect.getdoc(getattr(feddrop, name))


@pytest.mark.parametrize("name", SHOWN)
def test_what_one_calls_first_has_an_example(name):
    assert examples(name)


def test_every_error_method_and_executor_is_public():
    from feddrop import errors
    from feddrop.config import METHODS
    from feddrop.executors import EXECUTORS

    own = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert own | set(METHODS) <= set(feddrop.__all__)
    assert {name.capitalize() for name in EXECUTORS} <= set(feddrop.__all__)
