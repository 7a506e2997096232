"""``feddrop allocate``: rates and shares for one round."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from feddrop.cli.output import Json, say
from feddrop.errors import ConfigError, InfeasibleError

if TYPE_CHECKING:
    from feddrop.allocation import Allocation, AnyProblem

    Solved = tuple[AnyProblem, list[str], Allocation]


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
    """Choose dropout rates and bandwidth shares for one round; also power and clock if the file leaves them open.

    Parameters
    ----------
    file:
        Problem or cell, as .toml, .csv or .json; see examples/problem.toml, examples/cell.toml and examples/power.toml.
        Or the .toml file of a run with a [radio] section: then round 1 is allocated, exactly as `feddrop run` does.
    scheme:
        exact, primal-dual, equal, random, common, fixed, no-dropout or ideal (which ignores the band). For a cell or a
        run also max-min, proportional-fair, subcarriers, or "package.module:function", which is imported. Default:
        scheme in the [radio] table of a cell, else exact.
    policy:
        What to do if no allocation is feasible: error, leave-out (the fewest devices) or stretch (the deadline).
        Default: policy in the [radio] table of a cell, else error.
    rate:
        Rate for the scheme fixed.
    seed:
        Seed for the scheme random: 0 by default, and for a cell that of its file. For the file of a run, the seed of
        the run.
    plot:
        Draw the allocation into this file, e.g. split.png.
    json_:
        Print JSON.
    """
    from feddrop.radio.files import as_json, as_text, is_run
    from feddrop.report.allocation import save_allocation_figure

    if is_run(file):
        problem, names, found = _first_round(file, scheme, policy, rate, seed)
    else:
        problem, names, found = _solve(file, scheme, policy, rate, seed)
    if plot is not None:
        save_allocation_figure(found, plot, names)
    if json_:
        print(as_json(found, names))
    else:
        say(as_text(found, names, problem) + (f"\nPicture: {plot}" if plot else ""))


def _solve(file: Path, scheme: str | None, policy: str | None, rate: float | None, seed: int | None) -> Solved:
    """Allocate a problem or a cell."""
    from feddrop.allocation import allocate as solve
    from feddrop.radio.files import load, with_names
    from feddrop.schemes import channel_of, scheme_of

    problem, names, given, fallback, objective, usual, cell = load(file, channel_of)
    chosen = scheme or given
    for option, value, takes in (("seed", seed, chosen == "random"), ("policy", policy, chosen != "ideal")):
        if value is not None and not takes:
            raise ConfigError(f"--{option} is {value}, but the scheme {chosen!r} takes no {option}. Remove --{option}.")
    named = scheme_of(chosen, cell, seed=usual if seed is None else seed, rate=rate, objective=objective)
    try:
        found = solve(problem, named, policy=policy or fallback)
    except InfeasibleError as error:
        raise with_names(error, names) from None
    return problem, names, found


def _first_round(file: Path, scheme: str | None, policy: str | None, rate: float | None, seed: int | None) -> Solved:
    """Allocate round 1 of a run, exactly as the run does; nothing is trained or written."""
    from dataclasses import replace

    import numpy as np

    from feddrop.config import RunConfig
    from feddrop.simulation import preflight
    from feddrop.simulation.custom import CustomObjects
    from feddrop.simulation.preparation import prepare

    given = {"radio.scheme": scheme, "radio.policy": policy, "rate": rate, "seed": seed}
    config = RunConfig.from_file(file, [f"{key}={value}" for key, value in given.items() if value is not None])
    preflight.check_config(config)
    ready = prepare(config, CustomObjects())
    found = ready.scheme.decide(1, params=ready.params).allocation
    if config.radio is None or found is None:
        raise ConfigError(f"{str(file)!r} has no [radio] section, so there is no band to share. Add one.")
    asked = replace(found.problem, deadline_s=np.asarray(config.radio.deadline_s))
    return asked, [""] * found.rate.shape[-1], found
