"""``feddrop theory``: the quantities in the paper's bounds, measured on a network."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from feddrop.cli.output import Json, Screen, say
from feddrop.errors import ConfigError, RunError, within

if TYPE_CHECKING:
    from feddrop.theory import Study
    from feddrop.theory.console import Subject

MOST = 10**9


def theory(
    *,
    model: str | None = None,
    data: str | None = None,
    checkpoint: Path | None = None,
    level: str = "all",
    rates: Annotated[list[float], Parameter(negative=(), consume_multiple=True, show_default=False)] = [],  # noqa: B006 -- cyclopts copies it
    batch: int = 128,
    masks: int = 24,
    rounds: int | None = None,
    devices: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Measure the quantities in the paper's bounds on a network: the variance law, A, G, L, sigma^2 and theta.

    Parameters
    ----------
    model:
        Network, at initialisation: lenet (the default), alexnet, or mlp for tables.
    data:
        digits (the default), diabetes, cifar10, cifar100 or fashion_mnist.
    checkpoint:
        Run folder whose newest checkpoint is measured, with the network, data, devices and rounds of that run.
    level:
        Masks: weight, unit, importance (weights drawn by magnitude) or all.
    rates:
        Dropout rates in increasing order. Default: eight from 0.01 to 0.7.
    batch:
        Number of training samples, at least 2.
    masks:
        Number of masks per rate and kind of masks, and of random vectors, at least 2; more give smaller errors.
    rounds:
        Number of rounds T, for theta. Default: 100.
    devices:
        Number of devices K, for theta. Default: 10.
    seed:
        Root of every random choice.
    out:
        Folder for theory.png and theory.json. Default: theory; none with --json.
    json_:
        Print JSON.
    """
    for name, value, low in (("batch", batch, 2), ("masks", masks, 2), ("seed", seed, 0)):
        within(name, value, low, MOST)
    folder = out or (None if json_ else Path("theory"))
    subject = _subject(checkpoint, seed, {"model": model, "data": data, "rounds": rounds, "devices": devices}, folder)
    from feddrop.theory.console import run_study

    progress = Screen(stderr=True)
    found, title = run_study(subject, level=level, rates=rates, batch=batch, masks=masks, seed=seed, console=progress)
    _show(found, title, folder, json_)


def _subject(checkpoint: Path | None, seed: int, given: Mapping[str, Any], folder: Path | None) -> Subject:
    """Return the network to measure, after a test that the output folder is writable."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if checkpoint is not None and chosen:
        options = " and ".join(f"--{name}" for name in chosen)
        raise ConfigError(f"{options} cannot be combined with --checkpoint, which determines the network and data.")
    settings: dict[str, Any] = {"model": "lenet", "data": "digits", "rounds": 100, "devices": 10} | chosen
    for name in ("rounds", "devices"):
        within(name, settings[name], 1, MOST)
    if folder is not None:
        _make_writable(folder)  # before the measurement, which takes minutes
    from feddrop.theory.console import new_subject, subject_of_run

    return new_subject(**settings, seed=seed) if checkpoint is None else subject_of_run(checkpoint, seed)


def _make_writable(folder: Path) -> None:
    """Create a folder; raise a RunError if files cannot be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".feddrop-") as trial:
            trial.write(b"\0")
            trial.flush()
    except OSError as error:
        why = error.strerror or error
        raise RunError(f"cannot write to {folder}: {why}. Choose another folder with --out.") from None


def _show(found: Study, title: str, folder: Path | None, as_json: bool) -> None:
    """Print a study, and write it into a folder."""
    from feddrop.theory import draw
    from feddrop.theory.console import render

    text = json.dumps(found.to_json())
    if folder is not None:
        (folder / "theory.json").write_text(text, encoding="utf-8")
        draw(found, title).savefig(folder / "theory.png")
    if as_json:
        print(text)
    else:
        Screen().print(render(found, title))
        say(f"Picture: {Path(folder or '') / 'theory.png'}")
