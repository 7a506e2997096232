"""``feddrop allocate`` and ``feddrop theory``: numbers without a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from feddrop.cli.output import Json, Screen, say
from feddrop.errors import ConfigError, InfeasibleError, within

MOST = 10**9


def allocate(
    file: Path,
    *,
    scheme: str | None = None,
    policy: str | None = None,
    rate: float | None = None,
    seed: int | None = None,
    plot: Path | None = None,
    json_: Json = False,
) -> None:
    """Choose dropout rates and shares of the band for one round; power and clock too, where the file leaves them open.

    Parameters
    ----------
    file:
        Problem or cell, as .toml, .csv or .json; see examples/problem.toml, examples/cell.toml and examples/power.toml.
    scheme:
        exact, primal-dual, equal, random, fixed or none. Default: scheme in the [radio] table of a cell, else exact.
    policy:
        If no allocation meets the constraints: error, leave-out (the fewest devices) or stretch (the deadline).
        Default: policy in the [radio] table of a cell, else error.
    rate:
        Rate of the scheme fixed; no other scheme takes one.
    seed:
        Seed of the scheme random, 0 by default; no other scheme takes one. The seed of a cell is in its file.
    plot:
        Draw the allocation into this file, e.g. split.png.
    json_:
        Print JSON.
    """
    from feddrop.allocation import allocate as solve
    from feddrop.allocation import scheme_named
    from feddrop.radio.files import as_json, as_text, load, with_names
    from feddrop.report.allocation import save_allocation_figure as save

    problem, names, given, fallback = load(file)
    chosen = scheme or given
    if seed is not None and chosen != "random":
        raise ConfigError(
            f"The seed is {seed}, but the scheme {chosen!r} takes none; leave it out, or choose the scheme 'random'. "
            "The seed of a cell is in its file."
        )
    if policy is not None and chosen == "none":
        raise ConfigError(f"The policy is {policy!r}, but the scheme 'none' takes none; leave it out.")
    try:
        found = solve(problem, scheme_named(chosen, seed=seed or 0, rate=rate), policy=policy or fallback)
    except InfeasibleError as error:
        raise with_names(error, names) from None
    if plot is not None:
        save(found, plot, names)
    if json_:
        print(as_json(found, names))
    else:
        say(as_text(found, names, problem) + (f"\nPicture: {plot}" if plot else ""))


def theory(
    *,
    model: str | None = None,
    data: str | None = None,
    checkpoint: Path | None = None,
    level: str = "both",
    rates: Annotated[list[float], Parameter(negative=(), consume_multiple=True, show_default=False)] = [],  # noqa: B006 -- cyclopts copies it
    batch: int = 128,
    masks: int = 24,
    rounds: int | None = None,
    devices: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Measure on a network what the paper's bounds assume: the variance law, A, G, L, sigma^2 and theta.

    Parameters
    ----------
    model:
        Network, at initialisation: lenet (the default), alexnet, or mlp for tables.
    data:
        digits (the default), diabetes, cifar10, cifar100 or fashion_mnist.
    checkpoint:
        Run folder: measure its newest checkpoint, with its own network, data, devices and rounds.
    level:
        weight, unit or both.
    rates:
        Dropout rates, rising. Default: eight from 0.01 to 0.7.
    batch:
        Training samples to measure on, 2 or more.
    masks:
        Masks a rate and level, and random vectors, 2 or more; more make the errors smaller.
    rounds:
        Planned rounds T, for theta. Default: 100.
    devices:
        Devices K, for theta. Default: 10.
    seed:
        Root of every random choice.
    out:
        Folder for theory.png and theory.json. Default: theory; with --json none.
    json_:
        Print JSON.
    """
    fresh = {"model": model, "data": data, "rounds": rounds, "devices": devices}
    given = [f"--{name}" for name, value in fresh.items() if value is not None]
    if checkpoint is not None and given:
        raise ConfigError(f"{' and '.join(given)} with --checkpoint: a run brings its own. Leave one of them out.")
    rounds, devices = 100 if rounds is None else rounds, 10 if devices is None else devices
    for name, value, low in (("batch", batch, 2), ("masks", masks, 2), ("rounds", rounds, 1), ("devices", devices, 1)):
        within(name, value, low, MOST)
    if seed < 0:
        raise ConfigError(f"seed is {seed}; it must be 0 or more.")
    from feddrop.cli.folders import writable

    folder = out or (None if json_ else Path("theory"))
    if folder is not None:
        writable(folder)  # before the measuring, which takes minutes
    from feddrop.theory import draw
    from feddrop.theory.console import render, run_study

    found, title = run_study(
        model=model or "lenet",
        name=data or "digits",
        checkpoint=checkpoint,
        level=level,
        rates=rates,
        batch=batch,
        masks=masks,
        rounds=rounds,
        devices=devices,
        seed=seed,
        console=Screen(stderr=True),
    )
    text = json.dumps(found.to_json())
    if folder is not None:
        (folder / "theory.json").write_text(text, encoding="utf-8")
        draw(found, title).savefig(folder / "theory.png")
    if json_:
        print(text)
    else:
        Screen().print(render(found, title))
        say(f"Picture: {Path(folder or '') / 'theory.png'}")
