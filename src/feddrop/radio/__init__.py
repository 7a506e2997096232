"""The radio: a cell of devices that share a band, its fading, and what a round costs in seconds and joules.

NumPy only. ``Cell`` describes the cell, ``cell.draw`` the conditions of a round, ``cell.problem`` what the allocator
has to solve, and ``cost`` what the round took.
"""

from feddrop.radio.bounds import covering, smallest_bandwidth
from feddrop.radio.build import build_cell
from feddrop.radio.cell import Cell, Channels
from feddrop.radio.cost import Cost, Overhead, convolution_flops, cost, linear_flops, overheads
from feddrop.radio.devices import Dynamics
from feddrop.radio.fading import Fading, Rician, path_loss
from feddrop.radio.gains import Measured, gains_from, read_arrays, read_gains

__all__ = [
    "Cell",
    "Channels",
    "Cost",
    "Dynamics",
    "Fading",
    "Measured",
    "Overhead",
    "Rician",
    "convolution_flops",
    "build_cell",
    "cost",
    "covering",
    "gains_from",
    "linear_flops",
    "overheads",
    "path_loss",
    "read_arrays",
    "read_gains",
    "smallest_bandwidth",
]
