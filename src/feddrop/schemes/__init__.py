"""Schemes, channels and outcomes that are selected by name, one short file each, written like custom ones.

- A scheme is a function ``f(seen, **settings) -> Plan``.
- A channel is a class whose first argument is the fading of the ``[radio]`` section. It has ``draw(devices, round,
  seed)`` and optionally ``estimate``.
- An outcome is a function ``f(plan, truth, costs, state, **settings) -> (lost, state)``.

NumPy only. The tables give their names in TOML; :func:`scheme_of` and :func:`channel_of` find what a cell file names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from feddrop.allocation import SCHEMES, Exact, Scheme, scheme_named
from feddrop.config import Radio
from feddrop.config.radio import CUSTOM, IMPORTANCE
from feddrop.errors import ConfigError, one_of
from feddrop.radio.fading import Channel
from feddrop.radio.named import function_named, objective_named
from feddrop.radio.outcome import late, none
from feddrop.radio.plan import FunctionScheme, Plan
from feddrop.schemes.battery import battery
from feddrop.schemes.gauss_markov import GaussMarkov
from feddrop.schemes.imperfect_csi import ImperfectCsi
from feddrop.schemes.max_min import max_min
from feddrop.schemes.packet_errors import packet_errors
from feddrop.schemes.proportional_fair import proportional_fair
from feddrop.schemes.subcarriers import subcarriers
from feddrop.schemes.time_budget import time_budget
from feddrop.seeds import derive

if TYPE_CHECKING:
    from feddrop.radio.files import CellFile

SCHEME_TABLE: dict[str, Callable[..., Plan]] = {
    "max-min": max_min,
    "proportional-fair": proportional_fair,
    "subcarriers": subcarriers,
    "battery": battery,
    "time-budget": time_budget,
}
CHANNEL_TABLE: dict[str, Callable[..., Channel]] = {"imperfect-csi": ImperfectCsi, "gauss-markov": GaussMarkov}
OUTCOME_TABLE: dict[str, Callable[..., Any]] = {"late": late, "none": none, "packet-errors": packet_errors}


def is_function(name: str) -> bool:
    """Return whether a name in TOML stands for a scheme function."""
    return name in SCHEME_TABLE or name == CUSTOM or ":" in name


def channel_of(radio: Radio) -> Any:
    """Return the channel that a ``[radio]`` section names, or a function from its fading to one."""
    return function_named("radio.channel", radio.channel, radio.channel_settings, CHANNEL_TABLE)


def scheme_of(
    name: str, cell: CellFile | None, *, seed: int = 0, rate: float | None = None, objective: str = "inverse"
) -> Scheme:
    """Return a scheme by its name in TOML, to allocate one round without a run.

    Args:
        name: the scheme.
        cell: the cell; required by scheme functions.
        seed: seed for the scheme ``"random"``.
        rate: rate for the scheme ``"fixed"``.
        objective: objective of the scheme ``"exact"``.
    """
    if not is_function(name):
        if name == "exact" and rate is None and objective != IMPORTANCE:
            return Exact(objective_named(objective), (cell.radio.absent_cost if cell else 0.0) or None)
        one_of("scheme", name, (*SCHEMES, *SCHEME_TABLE))
        return scheme_named(name, seed=seed, rate=rate, objective=objective)
    if cell is None:
        raise ConfigError(f"the scheme {name!r} needs a cell, and the file has none. Give a file with a [radio] table.")
    if rate is not None:
        raise ConfigError(f"the rate is {rate}, but the scheme {name!r} takes none. Leave it out.")
    settings = cell.radio.scheme_settings if cell.radio.scheme == name else {}
    function = function_named("radio.scheme", name, settings, SCHEME_TABLE)
    seed = derive(cell.table.seed, "scheme", cell.table.round)  # as in a run
    return cast(Scheme, FunctionScheme(function, name, cell.cell, cell.channels, cell.costs, cell.table.round, seed))
