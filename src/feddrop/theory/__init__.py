"""The paper's bounds as functions, and measurements of their constants on a network.

The bounds need only NumPy; torch is imported on the first use of a measurement.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from feddrop.theory.bounds import (
    BestRate,
    Constants,
    Theta,
    best_rate,
    learning_rate,
    lemma1,
    lemma2,
    odds,
    rounds_needed,
    theorem1,
    theta,
    unit_odds,
)

if TYPE_CHECKING:
    from feddrop.theory.estimators import Curvature, Estimate, EstimatePoint, Slope, curvature, slope
    from feddrop.theory.picture import draw
    from feddrop.theory.studies import Study, study
    from feddrop.theory.variance import Curve, Law, measure_law

_MEASUREMENTS = {
    "estimators": ("Curvature", "Estimate", "EstimatePoint", "Slope", "curvature", "slope"),
    "picture": ("draw",),
    "studies": ("Study", "study"),
    "variance": ("Curve", "Law", "measure_law"),
}
_HOMES = {name: module for module, names in _MEASUREMENTS.items() for name in names}

__all__ = [
    "BestRate", "Constants", "Curvature", "Curve", "Estimate", "EstimatePoint", "Law", "Slope", "Study", "Theta",
    "best_rate", "curvature", "draw", "learning_rate", "lemma1", "lemma2", "measure_law", "odds", "rounds_needed",
    "slope", "study", "theorem1", "theta", "unit_odds",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'feddrop.theory' has no attribute {name!r}")
    return getattr(import_module(f"feddrop.theory.{_HOMES[name]}"), name)
