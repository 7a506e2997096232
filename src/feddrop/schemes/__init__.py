"""Schemes, channels and outcomes that are selected by name, one short file each, written as a user's own would be.

- A scheme is a function ``f(seen, **settings) -> Plan``.
- A channel is a class whose first argument is the fading of the ``[radio]`` section. It has ``draw(devices, round,
  seed)`` and perhaps ``estimate``.
- An outcome is a function ``f(plan, truth, costs, state, **settings) -> (lost, state)``.

NumPy only. The tables give their names in TOML.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feddrop.radio.fading import Channel
from feddrop.radio.outcome import late, none
from feddrop.radio.plan import Plan
from feddrop.schemes.battery import battery
from feddrop.schemes.gauss_markov import GaussMarkov
from feddrop.schemes.imperfect_csi import ImperfectCsi
from feddrop.schemes.max_min import max_min
from feddrop.schemes.packet_errors import packet_errors
from feddrop.schemes.proportional_fair import proportional_fair
from feddrop.schemes.subcarriers import subcarriers
from feddrop.schemes.time_budget import time_budget

SCHEME_TABLE: dict[str, Callable[..., Plan]] = {
    "max-min": max_min,
    "proportional-fair": proportional_fair,
    "subcarriers": subcarriers,
    "battery": battery,
    "time-budget": time_budget,
}
CHANNEL_TABLE: dict[str, Callable[..., Channel]] = {"imperfect-csi": ImperfectCsi, "gauss-markov": GaussMarkov}
OUTCOME_TABLE: dict[str, Callable[..., Any]] = {"late": late, "none": none, "packet-errors": packet_errors}
