"""Draw the preset cells: where devices were dropped, and the distribution of their gains.

python examples/preset_cells.py docs/img/cells.png
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from feddrop.config import Radio
from feddrop.radio.build import place_of
from feddrop.radio.places import Dropped
from feddrop.report.style import GRID, INK, MUTED, SERIES, blank_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = {"urban-macro": SERIES[0], "urban-micro": SERIES[1], "indoor": SERIES[2]}


def cells_figure(devices: int = 200, seed: int = 0) -> Figure:
    """Draw the three presets: a map of each, and the distribution of mean gains over many devices."""
    figure = blank_figure(11.2, 3.9, dpi=144)
    axes = figure.subplots(1, 4, width_ratios=(1, 1, 1, 1.35))
    for panel, (name, colour) in zip(axes, SHOWN.items(), strict=False):
        _map(panel, _dropped(name, devices, seed), name, colour)
    for name, colour in SHOWN.items():
        gain_db = np.sort(10.0 * np.log10(_dropped(name, 4000, seed).gain))
        axes[-1].plot(gain_db, np.linspace(0, 1, len(gain_db)), color=colour, label=name)
    axes[-1].axvline(-99.0, color=INK, lw=0.8, ls=":", label="effective gain in the paper")
    axes[-1].set_xlabel("mean gain, antennas included, dB")
    axes[-1].set_ylabel("share of devices below")
    axes[-1].set_title("gains")
    axes[-1].grid(color=GRID)
    figure.legend(frameon=False, loc="outside lower right", ncols=4)
    return figure


def _dropped(preset: str, devices: int, seed: int) -> Dropped:
    place = place_of(Radio(preset=preset))
    if place is None:
        raise ValueError(preset)
    return place.drop(devices, seed)


def _map(axes: Axes, found: Dropped, name: str, colour: str) -> None:
    """Draw devices around the base station: filled markers have a line of sight, squares are indoors."""
    x, y = found.distance_m * np.cos(found.angle_rad), found.distance_m * np.sin(found.angle_rad)
    size = 4.0 + 26.0 * np.clip((10.0 * np.log10(found.gain) + 140.0) / 90.0, 0.0, 1.0)
    for inside, sees in ((False, False), (False, True), (True, False), (True, True)):
        which = (found.indoor == inside) & (found.sight == sees)
        axes.scatter(
            x[which],
            y[which],
            s=size[which],
            marker="s" if inside else "o",
            facecolors=colour if sees else "none",
            edgecolors=colour if sees else MUTED,
            linewidths=0.7,
        )
    axes.plot(0, 0, marker="^", color=INK, ms=7)
    axes.set_aspect("equal")
    axes.set_title(f"{name}, {found.place.radius_m:g} m")
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(False)


if __name__ == "__main__":
    cells_figure().savefig(sys.argv[1])
