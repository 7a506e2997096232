"""The figure of an allocation: bandwidth share, dropout rate and binding limit of every device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feddrop.allocation.power import PowerProblem
from feddrop.allocation.problem import positive
from feddrop.allocation.solution import Allocation, Status
from feddrop.config.radio import IGNORES_BAND
from feddrop.errors import ConfigError
from feddrop.report.style import BINDINGS, GRID, INK, blank_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 200


def allocation_figure(allocation: Allocation, names: Sequence[str] = ()) -> Figure:
    """Draw one round: each device's share, rate and use of its limits; and its power and clock, if they were chosen.

    Args:
        allocation: an allocation of one round, for at most 200 devices.
        names: names of the devices; numbers where they are empty.
    """
    devices = allocation.share.shape[-1]
    if allocation.share.ndim != 1 or devices > _MOST:
        shape = list(allocation.share.shape)
        raise ConfigError(f"the allocation has shape {shape}; a figure shows one round of at most {_MOST} devices.")
    held = [str(word) for word in allocation.binding]
    colours = [BINDINGS[word] for word in held]
    place = np.arange(devices)
    p = allocation.problem
    paced = isinstance(p, PowerProblem)
    figure = blank_figure(9.0, 8.4 if paced else 6.4, dpi=144)
    share, rate, use, *pace = figure.subplots(4 if paced else 3, 1, sharex=True)
    share.bar(place, allocation.share, color=colours, width=0.8)
    share.axhline(1.0 / max(1, int(allocation.active.sum())), color=INK, lw=0.8, ls=":", label="equal split")
    share.set_ylabel(f"bandwidth share ρ{f'{chr(10)}({IGNORES_BAND})' * (allocation.status is Status.IDEAL)}")
    rate.bar(place, np.where(allocation.active, allocation.rate, 0.0), color=colours, width=0.8)
    rate.set_ylabel("dropout rate γ")
    use.bar(place - 0.2, allocation.latency_s / p.deadline_s, width=0.4, color=colours)
    use.bar(place + 0.2, allocation.energy_j / positive(p.budget_j), width=0.4, color=colours, alpha=0.45)
    use.axhline(1.0, color=INK, lw=0.8)
    use.set_ylabel("use of deadline (dark)\nand budget (pale)")
    for axes in pace:
        _draw_pace(axes, allocation, colours)
    last = [share, rate, use, *pace][-1]
    if devices <= 30:
        last.set_xticks(place, [names[k] if k < len(names) and names[k] else str(k) for k in range(devices)])
        last.tick_params(axis="x", rotation=45 if sum(map(len, names)) > 60 else 0)
    last.set_xlabel("device")
    for axes in (share, rate, use, *pace):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
        axes.grid(axis="y", color=GRID)
    _legend(figure, share, sorted(set(held), key=list(BINDINGS).index))
    return figure


def save_allocation_figure(allocation: Allocation, path: str | Path, names: Sequence[str] = ()) -> None:
    """Draw an allocation to a file, in the format of its extension."""
    if not Path(path).suffix:
        raise ConfigError(f"the figure {str(path)!r} has no file extension. Add one, such as .png or .pdf.")
    try:
        allocation_figure(allocation, names).savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write the figure {str(path)!r}: {error}.") from None


def _draw_pace(axes: Any, allocation: Allocation, colours: Sequence[str]) -> None:
    """Draw clock and power as fractions of their maxima."""
    p, place = allocation.problem, np.arange(len(colours))
    if not isinstance(p, PowerProblem) or allocation.cpu_hz is None or allocation.tx_power_w is None:
        return
    axes.bar(place - 0.2, allocation.cpu_hz / p.cpu_hz, width=0.4, color=colours)
    axes.bar(place + 0.2, allocation.tx_power_w / p.tx_power_w, width=0.4, color=colours, alpha=0.45)
    axes.axhline(1.0, color=INK, lw=0.8)
    axes.set_ylabel("use of max. clock (dark)\nand power (pale)")


def _legend(figure: Figure, axes: Any, held: list[str]) -> None:
    from matplotlib.patches import Patch

    lines, labels = axes.get_legend_handles_labels()
    patches = [Patch(color=BINDINGS[word], label=word) for word in held]
    words = [word if word in ("left out", "absent") else f"bound by {word.replace('none', 'nothing')}" for word in held]
    handles, words = [*patches, *lines], [*words, *labels]
    figure.legend(handles, words, loc="outside upper left", ncols=len(words), frameon=False)
