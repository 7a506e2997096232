"""Figures of traffic, devices and limits, for the report and for papers. Each function returns a Matplotlib Figure.

Save one with ``figure.savefig("bytes.pdf")``. Learning curves are in ``curves.py``, maps in ``maps.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from feddrop.errors import ConfigError, one_of
from feddrop.report import style
from feddrop.report.quantities import (
    Scale,
    byte_scale,
    hertz_scale,
    in_digits,
    joule_scale,
    second_scale,
    watt_scale,
)
from feddrop.report.runlog import Floats, Ints, RunLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIELDS = {
    "rate": "rate γ", "share": "bandwidth share ρ", "latency_s": "latency", "energy_j": "energy", "loss": "loss",
    "tx_power_w": "transmit power", "cpu_hz": "CPU clock",
}  # fmt: skip
SCALES: dict[str, Callable[[float], Scale]] = {
    "latency_s": second_scale, "energy_j": joule_scale, "tx_power_w": watt_scale, "cpu_hz": hertz_scale
}  # fmt: skip
LIMITS = {"latency_s": "deadline", "energy_j": "budget"}
DeviceField = Literal["rate", "share", "latency_s", "energy_j", "tx_power_w", "cpu_hz"]

MANY_BARS, MANY_ROUNDS = 40, 1_000
ALIKE = 0.01  # values that differ by less, relative to the largest, are not worth a figure


def participation_figure(run: RunLog) -> Figure:
    """Draw the number of rounds that each device took part in."""
    times = run.active.sum(axis=0)
    figure, axes = style.new_figure("rounds with the device", style.row_height(len(times)))
    _bars(axes, times)
    axes.set_ylim(0, max(1.12 * float(times.max()), 1))
    style.integer_ticks(axes, "", side="y")  # the title names it
    style.number_devices(axes, run.devices)
    return figure


def bytes_figure(run: RunLog) -> Figure:
    """Draw the bytes of each round, pushes below and pulls on top, against what full models would have cost."""
    push, pull = (np.nan_to_num(run.by_round[key]) for key in ("push_bytes", "pull_bytes"))
    full = run.full_traffic
    scale, unit = byte_scale(float(np.nanmax([*(push + pull), *full])))
    figure, axes = style.new_figure(f"{unit} per round")
    edges = np.append(run.rounds - 0.5, run.rounds[-1] + 0.5)
    end, labels = float(edges[-1]), []
    layers = (("push", push, np.zeros_like(push), style.SERIES[0]), ("pull", push + pull, push, style.SERIES[2]))
    for word, top, base, colour in layers:
        if len(top) > MANY_ROUNDS:  # stairs takes a second per layer
            axes.fill_between(*envelope(run.rounds, base / scale, top / scale), color=colour, alpha=0.85, linewidth=0)
        else:
            axes.stairs(top / scale, edges, baseline=base / scale, fill=True, color=colour, alpha=0.85, linewidth=0)
        labels.append(style.EndLabel(end, float((top[-1] + base[-1]) / 2 / scale), word, colour))
    if np.isfinite(full).all():
        if len(full) > MANY_ROUNDS:
            axes.plot(run.rounds, full / scale, color=style.INK, linewidth=0.6)
        else:
            axes.stairs(full / scale, edges, baseline=None, color=style.INK, linewidth=1.2 if len(full) <= 100 else 0.6)
        labels.append(style.EndLabel(end, float(full[-1] / scale), "full models", style.INK))
    axes.set_ylim(bottom=0)
    style.integer_ticks(axes)
    axes.margins(x=0)
    style.end_labels(axes, labels)
    return figure


def traffic_figure(run: RunLog) -> Figure:
    """Draw the bytes sent so far, against what full models would have cost."""
    sent, full = np.cumsum(run.traffic), np.cumsum(run.full_traffic)
    scale, unit = byte_scale(float(np.nanmax([*sent, *full])))
    figure, axes = style.new_figure(f"{unit} so far")
    end = float(run.rounds[-1])
    labels = [style.EndLabel(end, float(sent[-1] / scale), "sent", style.SERIES[0])]
    style.draw_line(axes, run.rounds, sent / scale, style.SERIES[0])
    if np.isfinite(full).all():
        dot = "o" if len(full) == 1 else None
        axes.plot(run.rounds, full / scale, color=style.INK, linewidth=1.2, marker=dot, ms=4)
        band = envelope(run.rounds, sent / scale, full / scale)
        axes.fill_between(*band, color=style.GRID, alpha=0.5, linewidth=0)
        labels.append(style.EndLabel(end, float(full[-1] / scale), "full models", style.INK))
    axes.set_ylim(bottom=0)
    style.round_axis(axes, run.rounds)
    style.end_labels(axes, labels)
    return figure


def device_figure(run: RunLog, field: DeviceField) -> Figure:
    """Draw one bar per device: the mean over its rounds, with the range as a whisker, and the limit if it has one.

    If the deadline changes between rounds, the longest is drawn.
    """
    one_of("field", field, get_args(DeviceField))
    values = run.values(field)
    there = np.isfinite(values).any(axis=0)
    require_values(run, field, bool(there.any()))
    limit = np.fmax.reduce(run.limit(field), axis=0)[there]
    scale, unit = scale_of(field, float(np.nanmax([np.nanmax(values), *limit])))
    values, devices, limit = values[:, there] / scale, run.devices[there], limit / scale
    mean, low, high = np.nanmean(values, axis=0), np.nanmin(values, axis=0), np.nanmax(values, axis=0)
    title = f"{'mean ' * (len(run.rounds) > 1)}{FIELDS[field]}{unit}"
    figure, axes = style.new_figure(title, style.row_height(len(devices)))
    edges = _bars(axes, mean)
    varies = bool((high - low > 1e-9).any())
    if len(devices) > MANY_BARS:
        axes.stairs(high, edges, baseline=low, fill=True, color=style.INK, alpha=0.18 * varies)
    else:
        axes.vlines(edges[1:] - 0.5, low, high, color=style.INK, linewidth=1.2 * varies)
    for k in range(len(devices)) if len(devices) <= 12 and not np.isfinite(limit).any() else ():
        style.note(axes, f"{mean[k]:.2f}", (float(k), float(high[k])), (0, 4), ha="center", fontsize=style.TEXT - 1)
    if np.isfinite(limit).any():
        axes.stairs(limit, edges, baseline=None, color=style.SERIES[1], linewidth=1.6)
        last = float(limit[np.isfinite(limit)][-1])
        style.end_labels(axes, [style.EndLabel(float(edges[-1]), last, LIMITS[field], style.SERIES[1])])
    axes.set_ylim(0, 1.12 * float(np.nanmax([*high, *limit])) or 1.0)
    style.number_devices(axes, devices)
    return figure


def limit_figure(run: RunLog, field: Literal["latency_s", "energy_j"]) -> Figure:
    """Draw the devices' latency or energy by round (range, median, largest) against the deadline or the budget.

    If budgets differ between devices, energy is drawn in percent of each device's budget.
    """
    one_of("field", field, LIMITS)
    values, limit = run.values(field), run.limit(field)
    differ = np.unique(limit[0]).size > 1
    if differ:
        values, limit = 100 * values / limit, np.full_like(limit, 100)
    there = np.isfinite(values).any(axis=1)
    require_values(run, field, bool(there.any()))
    rounds, values, allowed = run.rounds[there], values[there], limit[there, 0]
    title = f"{FIELDS[field]} per device"
    scale, unit = scale_of(field, float(np.nanmax([np.nanmax(values), *allowed])))
    if differ:
        scale, unit = 1.0, ", % of its budget"
    figure, axes = style.new_figure(title + unit, style.row_height(len(run.devices)))
    low, middle, high = (of(values, axis=1) / scale for of in (np.nanmin, np.nanmedian, np.nanmax))
    shown, lowest, highest = envelope(rounds, low, high)
    axes.fill_between(shown, lowest, highest, color=style.SERIES[0], alpha=0.16, linewidth=0)
    style.draw_line(axes, rounds, middle, style.SERIES[0])
    axes.plot(shown, highest, color=style.SERIES[0], linewidth=1, marker="o" if len(rounds) == 1 else None, ms=4)
    most = "slowest" if field == "latency_s" else "most"
    curves = {"median": middle, most: high}
    labels = [style.EndLabel(float(rounds[-1]), float(y[-1]), word, style.SERIES[0]) for word, y in curves.items()]
    known = allowed[np.isfinite(allowed)] / scale
    if known.size:
        edges = np.concatenate((rounds[:1] - 1, rounds, rounds[-1:] + 1))  # extend it beyond the axis
        axes.step(edges, np.pad(allowed / scale, 1, mode="edge"), where="mid", color=style.SERIES[1], linewidth=1.6)
        labels.append(style.EndLabel(float(rounds[-1]), float(known[-1]), LIMITS[field], style.SERIES[1]))
    axes.set_ylim(0, 1.08 * float(np.max([*high, *known])) or 1.0)
    style.round_axis(axes, rounds)
    style.end_labels(axes, labels)
    return figure


def constant_line(run: RunLog, field: DeviceField) -> str:
    """Return a sentence in place of a figure if a field hardly differs between devices and rounds; else nothing."""
    values = run.values(field)
    values = values[np.isfinite(values)]
    if values.size < 2 or np.ptp(values) > ALIKE * np.abs(values).max():
        return ""
    scale, unit = scale_of(field, float(values.max()))
    low, high = in_digits(float(values.min()) / scale), in_digits(float(values.max()) / scale)
    name, unit = FIELDS[field], unit.removeprefix(",")
    rounds = " in every round" if len(run.rounds) > 1 else ""
    return f"{name[0].upper()}{name[1:]}: {low if low == high else f'{low} to {high}'}{unit} for every device{rounds}."


def envelope(rounds: Ints, low: Floats, high: Floats) -> tuple[Ints, Floats, Floats]:
    """Return the bounds of a band; of many rounds, the widest ones of neighbours, at the first of them."""
    first = np.arange(0, len(rounds), -(-len(rounds) // MANY_ROUNDS))
    return rounds[first], np.fmin.reduceat(low, first), np.fmax.reduceat(high, first)


def _bars(axes: Axes, heights: Floats | Ints) -> Floats:
    """Draw one bar per device, or the outline of many; return the edges between devices."""
    count = len(heights)
    edges = np.linspace(-0.5, count - 0.5, count + 1)
    if count > MANY_BARS:
        axes.stairs(heights, edges, fill=True, color=style.SERIES[0], alpha=0.85)
    else:
        axes.bar(np.arange(count), heights, width=0.68, color=style.SERIES[0], alpha=0.85)
    axes.set_xlim(min(-0.5, count / 2 - 3.5), max(count - 0.5, count / 2 + 2.5))
    return edges


def require_values(run: RunLog, field: str, there: bool) -> None:
    """Raise if a run has no values of a field."""
    if not there:
        raise ConfigError(f"run {run.name!r} has no {field!r} to draw. Latency, energy and share need a radio section.")


def scale_of(field: str, top: float) -> tuple[float, str]:
    """Return the scale of a field whose largest value is ``top``, and its unit as a suffix of the title."""
    if field not in SCALES:
        return 1.0, ""
    scale, unit = SCALES[field](top)
    return scale, f", {unit}"
