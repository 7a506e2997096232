"""``feddrop allocate``: rates and shares for one round."""

from __future__ import annotations

from pathlib import Path

from feddrop.cli.output import Json, say
from feddrop.errors import ConfigError, InfeasibleError


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
    scheme:
        exact, primal-dual, equal, random, fixed or none. Default: scheme in the [radio] table of a cell, else exact.
    policy:
        What to do if no allocation is feasible: error, leave-out (the fewest devices) or stretch (the deadline).
        Default: policy in the [radio] table of a cell, else error.
    rate:
        Rate for the scheme fixed.
    seed:
        Seed for the scheme random; 0 by default. The seed of a cell is in its file.
    plot:
        Draw the allocation into this file, e.g. split.png.
    json_:
        Print JSON.
    """
    from feddrop.allocation import allocate as solve
    from feddrop.allocation import scheme_named
    from feddrop.radio.files import as_json, as_text, load, with_names
    from feddrop.report.allocation import save_allocation_figure

    problem, names, given, fallback, objective = load(file)
    chosen = scheme or given
    for option, value, takes in (("seed", seed, chosen == "random"), ("policy", policy, chosen != "none")):
        if value is not None and not takes:
            raise ConfigError(f"--{option} is {value}, but the scheme {chosen!r} takes no {option}. Remove --{option}.")
    named = scheme_named(chosen, seed=seed or 0, rate=rate, objective=objective)
    try:
        found = solve(problem, named, policy=policy or fallback)
    except InfeasibleError as error:
        raise with_names(error, names) from None
    if plot is not None:
        save_allocation_figure(found, plot, names)
    if json_:
        print(as_json(found, names))
    else:
        say(as_text(found, names, problem) + (f"\nPicture: {plot}" if plot else ""))
