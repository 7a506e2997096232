"""What each device has spent so far, as recorded: kept beside the state of a scheme, for schemes that plan ahead."""

from __future__ import annotations

import numpy as np

from feddrop.allocation.problem import FloatArray
from feddrop.errors import RunError
from feddrop.radio.plan import ArrayState
from feddrop.storage import RoundRecord

JOULES, SECONDS = "spent/energy_j", "spent/seconds"
"""Names of both in the state of the cell."""


def so_far(state: ArrayState, devices: int) -> dict[str, FloatArray]:
    """Return the joules of every device and the seconds of all earlier rounds; zeros before the first round."""
    found = {
        JOULES: np.array(state.get(JOULES, np.zeros(devices)), dtype=np.float64),
        SECONDS: np.array(state.get(SECONDS, np.zeros(1)), dtype=np.float64),
    }
    if found[JOULES].shape != (devices,) or found[SECONDS].shape != (1,):
        raise RunError("the spent energy in the checkpoint is that of other devices. Start a new run.")
    return found


def with_round(state: ArrayState, record: RoundRecord, seconds: float) -> ArrayState:
    """Return the state with the energy of a round and the time at its end, if a scheme function plans the run."""
    if JOULES not in state:
        return state
    joules = state[JOULES].copy()
    for one in record.devices:
        joules[one.device] += one.energy_j or 0.0
    return {**state, JOULES: joules, SECONDS: np.array([seconds])}
