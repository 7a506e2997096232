"""The radio: a cell of devices that share a band, its fading, and the latency and energy of a round.

NumPy only. ``Cell`` describes the cell, ``cell.draw`` draws the conditions of a round, ``cell.problem`` builds the
allocation problem, and ``cost`` computes latency and energy.
"""

from feddrop.radio.bounds import covering, smallest_bandwidth
from feddrop.radio.build import build_cell
from feddrop.radio.cell import Cell, Channels
from feddrop.radio.cost import Cost, Overhead, convolution_flops, cost, linear_flops, overheads
from feddrop.radio.devices import Dynamics
from feddrop.radio.fading import Fading, Rician, path_loss
from feddrop.radio.gains import MeasuredGains, gains_from, read_arrays, read_gains

__all__ = [
    "Cell", "Channels", "Cost", "Dynamics", "Fading", "MeasuredGains", "Overhead", "Rician", "build_cell",
    "convolution_flops", "cost", "covering", "gains_from", "linear_flops", "overheads", "path_loss", "read_arrays",
    "read_gains", "smallest_bandwidth",
]  # fmt: skip
