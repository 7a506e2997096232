"""The sliders of a cell, for the page and for notebooks, and the names that both offer."""

from __future__ import annotations

from typing import Any, NamedTuple


class Slider(NamedTuple):
    """A setting that can be moved."""

    key: str  # its dotted key in a state, such as ``"radio.deadline_s"``
    label: str  # its name
    low: float  # the smallest value, in ``unit``
    high: float  # the largest value, in ``unit``
    unit: str = ""  # what is shown behind the number
    scale: float = 1.0  # size of the unit; a state holds the number times the scale
    log: bool = False  # whether equal steps are equal ratios
    whole: bool = False  # whether the value is an integer
    off: str = ""  # the label of "no limit", if the setting may have none
    # ``"gains"`` if it needs path losses, ``"places"`` if it needs a propagation model; empty for always
    when: str = ""


SLIDERS = (
    Slider("cell.devices", "Devices", 1, 200, whole=True, log=True),
    Slider("radio.bandwidth_hz", "Bandwidth", 0.1, 200, "MHz", 1e6, log=True),
    Slider("radio.deadline_s", "Deadline", 0.01, 1000, "s", log=True),
    Slider("radio.energy_budget_j", "Energy budget", 0.01, 1e4, "J", log=True, off="no limit"),
    Slider("radio.max_rate", "Highest rate θ", 0, 0.99),
    Slider("shape.spread_db", "Path loss spread", 0, 40, "dB", when="gains"),
    Slider("radio.radius_m", "Radius of the cell", 20, 2000, "m", log=True, when="places"),
    Slider("shape.skew", "Data skew", 1, 100, "×", log=True),
    Slider("cell.samples", "Samples each", 1, 1e5, log=True, whole=True),
    Slider("radio.bits_per_parameter", "Bits per parameter", 1, 512, log=True, whole=True),
    Slider("model.parameters", "Parameters", 1, 1e6, "k", 1e3, log=True),
    Slider("cell.round", "Round (fading)", 1, 200, whole=True),
    Slider("cell.seed", "Seed", 0, 100, whole=True),
)

NAMES = {
    "exact": "Optimum",
    "equal": "Equal split",
    "common": "Common rate",
    "random": "Random split",
    "max-min": "Max-min",
    "proportional-fair": "Proportional fair",
    "no-dropout": "No dropout",
    "ideal": "Ideal",
}
"""What schemes are called on the page; others by their name in the table of schemes."""


def as_tables() -> list[dict[str, Any]]:
    """Return the sliders as plain tables, for the page."""
    return [one._asdict() for one in SLIDERS]
