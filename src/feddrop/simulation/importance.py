"""The objective ``"importance"``: the variance V(s) of importance draws, computed from the network in every round.

See :mod:`feddrop.subnets.importance` for V. It is taken relative to ‖w‖², so that it can be compared from round to
round: uniform draws have γ/(1-γ).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from feddrop.allocation import Objective, TabulatedCost
from feddrop.config import FedDrop, MethodSettings, RunConfig
from feddrop.config.radio import IMPORTANCE
from feddrop.methods.draws import ImportantUnits, draw_for
from feddrop.methods.method import Setup
from feddrop.simulation.cell_hooks import ObjectiveOf
from feddrop.subnets.importance import Magnitudes
from feddrop.subnets.parameters import Params

POINTS = 256
"""Points of the table; they are denser where little is kept, since V is steep there."""


def importance_of(setup: Setup, method: MethodSettings, max_rate: float) -> ObjectiveOf:
    """Return a function from the network to V(s) for s in [1-θ, 1].

    Args:
        setup: the training.
        method: the method. For ``FedDrop``, V is that of its level and threshold with ``draw="importance"``; for other
            methods, that of weights with one threshold for the network.
        max_rate: θ.
    """
    blueprint = setup.blueprint()
    kept = (1.0 - max_rate) ** (1.0 - np.arange(POINTS + 1) / POINTS) if max_rate else np.array([0.5, 1.0])
    drawn = replace(method, draw="importance") if isinstance(method, FedDrop) else None
    draw = None if drawn is None else draw_for(blueprint, drawn)
    by_layer = drawn is not None and drawn.threshold == "layer"

    def of_weights(params: Params) -> Objective:
        tensors = [params[name].numpy().reshape(-1) for name in blueprint.weights]
        groups = [Magnitudes(one) for one in (tensors if by_layer else [np.concatenate(tensors)]) if one.any()]
        norm = sum(float(np.square(one, dtype=np.float64).sum()) for one in tensors)
        slopes = [sum(one.slope(float(s * one.size)) for one in groups) for s in kept]
        return _table(kept, np.array(slopes) / (norm or 1.0))

    if not isinstance(draw, ImportantUnits):
        return of_weights

    def of_units(params: Params) -> Objective:
        values = np.array([draw.variance(params, float(1.0 - s)) for s in kept])
        return _table(kept, _hull_slopes(kept, values))

    return of_units


def _hull_slopes(s: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the slopes, at all points, of the largest convex function below the values.

    Counts of units are rounded, so V has steps. Their own slopes are 0 almost everywhere.
    """
    corners = [0]
    for point in range(1, len(s)):
        while len(corners) > 1 and _slope(s, values, corners[-2], corners[-1]) >= _slope(s, values, corners[-1], point):
            corners.pop()
        corners.append(point)
    edges = np.diff(values[corners]) / np.diff(s[corners])
    middles = (s[corners][1:] + s[corners][:-1]) / 2.0
    return np.interp(s, middles, edges)


def _slope(s: npt.NDArray[np.float64], values: npt.NDArray[np.float64], one: int, other: int) -> float:
    return float((values[other] - values[one]) / (s[other] - s[one]))


def _table(kept: npt.NDArray[np.float64], slopes: npt.NDArray[np.float64]) -> Objective:
    """Return a cost with these slopes, made convex where rounding made them fall."""
    return TabulatedCost(kept, np.minimum(np.maximum.accumulate(slopes), 0.0))


def objective_note(config: RunConfig) -> str:
    """Return a notice if the objective is the variance of draws that the method does not make."""
    if config.radio is None or config.radio.objective != IMPORTANCE or getattr(config.method, "draw", "") == IMPORTANCE:
        return ""
    return (
        'radio.objective is "importance", the variance of importance draws, but the method does not use them. Set '
        'method.draw = "importance", or another objective.'
    )
