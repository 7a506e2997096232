"""Every block of Python in the readme and the documentation runs, over fewer rounds and less data than printed.

The blocks of a page run one after another, as a reader would paste them. ``GIVEN`` prepares what a page assumes:
arrays, finished runs, a package that is not installed.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feddrop
from support.pages import PAGES, blocks

# Pages whose blocks another test runs.
ELSEWHERE = {
    "compare.md": "test_comparisons.py",
    "compare-runs.md": "test_comparisons.py",
    "cells.md": "test_cells.py",
    "executors.md": "test_executors.py",
    "flower.md": "test_flower.py",
    "methods.md": "test_methods_page.py",
    "results.md": "test_records.py",
}
ROUNDS, SAMPLES = 2, 100


def _arrays(_: pytest.MonkeyPatch) -> dict[str, Any]:
    """Cats and dogs, a table and prices, tokens; a fake torchvision, and a hub that holds two pictures."""
    import datasets

    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 5000, (8, 6))
    table, price = rng.random((8, 3)), rng.random(8)
    x, y = rng.random((8, 16, 16)), np.arange(8) % 2
    given = {"x": x, "y": y, "table": table, "price": price, "tokens": tokens, "next": np.roll(tokens, 1)}
    given |= {f"test_{name}": value for name, value in given.items()} | {"next_tokens": given["next"]}
    rows = {"input_ids": tokens.tolist(), "label": y.tolist(), "user": ["ann", "bob"] * 4}
    reviews = datasets.Dataset.from_dict(rows)
    images = datasets.Dataset.from_dict({"img": (x * 255).astype("uint8").tolist(), "fine_label": y.tolist()})

    class SVHN(torch.utils.data.Dataset):
        def __init__(self, *_: str) -> None:
            pass

        def __len__(self) -> int:
            return 8

        def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
            return torch.full((3, 32, 32), i / 8), i % 2

    _.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    _.setitem(sys.modules, "torchvision.datasets", types.SimpleNamespace(SVHN=SVHN))
    _.setattr(datasets, "load_dataset", lambda name: {"train": images, "test": images})
    config = feddrop.RunConfig.from_toml("data = { devices = 2 }\nmodel = { name = 'lenet' }")
    return given | {"names": ["ann", "bob"] * 4, "config": config, "train": reviews, "test": reviews}


def _runs(*names: str, settings: tuple[str, ...] = ()) -> Callable[[pytest.MonkeyPatch], dict[str, Any]]:
    def made(_: pytest.MonkeyPatch) -> dict[str, Any]:
        config = feddrop.RunConfig.from_toml("data = { devices = 2 }", settings)
        for name in names:
            feddrop.run(config, name, metrics={"mae": lambda outputs, _: outputs.abs().mean()})
        return {"config": config}

    return made


def _text(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    Path("shakespeare.txt").write_text("\n\n".join(f"ROLE {i}:\n{'what is said ' * 20}" for i in range(3)))
    patch.setenv("FEDDROP_DATA", str(Path().resolve()))
    return {}


def _network(_: pytest.MonkeyPatch) -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    return {"model": model, "x": torch.randn(8, 3), "y": torch.arange(8) % 2}


GIVEN: dict[str, Callable[[pytest.MonkeyPatch], dict[str, Any]]] = {
    "data.md": _arrays,
    "models.md": _text,
    "report.md": _runs("runs/rate-0.0", "runs/rate-0.3", settings=("radio.deadline_s=0.65",)),
    "theory.md": _network,
}


@pytest.fixture
def less(monkeypatch):
    """Configurations that a page creates are made smaller, and runs write no report at their end."""
    from_toml, init = feddrop.RunConfig.from_toml.__func__, feddrop.RunConfig.__init__

    def smaller_from_toml(cls, text, overrides=(), folder=""):
        given = {override.partition("=")[0] for override in overrides}
        smaller = {"rounds": ROUNDS, "data.train_limit": SAMPLES}
        more = [f"{key}={value}" for key, value in smaller.items() if key not in given]
        return from_toml(cls, text, [*overrides, *more], folder)

    def smaller_init(self, **given):
        if sys._getframe(1).f_code.co_filename.endswith(".md"):  # called by the page itself
            data = given.get("data", feddrop.Data())
            given["data"] = replace(data, train_limit=min(data.train_limit or SAMPLES, SAMPLES))
            given["rounds"] = min(given.get("rounds", ROUNDS), ROUNDS)
        init(self, **given)

    monkeypatch.setattr(feddrop.RunConfig, "from_toml", classmethod(smaller_from_toml))
    monkeypatch.setattr(feddrop.RunConfig, "__init__", smaller_init)
    for module in ("report", "simulation.finish"):
        monkeypatch.setattr(f"feddrop.{module}.write_report", lambda folder: folder)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "python") and page.name not in ELSEWHERE],
    ids=lambda page: page.name,
)
def test_blocks_run_as_printed(page, tmp_path, monkeypatch, less):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__", "feddrop": feddrop, **GIVEN.get(page.name, lambda _: {})(monkeypatch)}
    for block in blocks(page, "python"):
        exec(compile(block.text, page.name, "exec"), names)


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_pages_that_are_run_elsewhere(page, test):
    (path,) = Path(__file__).parent.rglob(test)
    assert page in path.read_text()
