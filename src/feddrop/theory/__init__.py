"""The paper's theory: its bounds as functions, and what they ask of a network, measured on a live one.

The bounds need NumPy alone; torch is loaded when a measurement is first asked for.
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
    from feddrop.theory.estimators import Curvature, Estimate, Point, Slope, curvature, slope
    from feddrop.theory.picture import draw
    from feddrop.theory.studies import Study, study
    from feddrop.theory.variance import Curve, Law, measure_law

_HOMES = {
    "Curvature": "estimators",
    "Curve": "variance",
    "Estimate": "estimators",
    "Law": "variance",
    "Point": "estimators",
    "Slope": "estimators",
    "Study": "studies",
    "curvature": "estimators",
    "draw": "picture",
    "measure_law": "variance",
    "slope": "estimators",
    "study": "studies",
}

__all__ = [
    "BestRate",
    "Constants",
    "Curvature",
    "Curve",
    "Estimate",
    "Law",
    "Point",
    "Slope",
    "Study",
    "Theta",
    "best_rate",
    "curvature",
    "draw",
    "learning_rate",
    "lemma1",
    "lemma2",
    "measure_law",
    "odds",
    "rounds_needed",
    "slope",
    "study",
    "theorem1",
    "theta",
    "unit_odds",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'feddrop.theory' has no attribute {name!r}")
    return getattr(import_module(f"feddrop.theory.{_HOMES[name]}"), name)
