"""The radio section of the report: latency and energy against their limits, and which limits are binding."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal

import numpy as np

from feddrop.report.html import Html, el, figure_panel, section
from feddrop.report.maps import CONSTRAINTS, TOLERANCE, binding_figure, map_figure, over_limit
from feddrop.report.plots import constant_line, device_figure, limit_figure
from feddrop.report.quantities import how_many, in_digits, in_percent, in_seconds
from feddrop.report.runlog import RunLog

COSTS: tuple[tuple[Literal["latency_s", "energy_j"], str, str], ...] = (
    ("latency_s", "Latency", "the deadline"),
    ("energy_j", "Energy", "the energy budget"),
)

SETTINGS: tuple[tuple[Literal["tx_power_w", "cpu_hz"], str], ...] = (
    ("tx_power_w", "Transmit power by device"),
    ("cpu_hz", "CPU clock by device"),
)


CHARGED = (
    "The charged objective adds 1/(1-θ) for each device left out, so that leaving out more devices never looks better."
)


def radio_section(run: RunLog) -> Html:
    """Return latency, energy and binding limits by device and round; empty for a run without a radio."""
    if not run.has_radio:
        return Html("")
    parts, constant = [], []
    for field, name, limit in COSTS:
        if not np.isfinite(run.values(field)).any():
            continue
        if (line := constant_line(run, field)) and not over_limit(run, field).any():
            constant.append(line)
            continue
        limits = np.unique(run.limit(field))
        bounded = bool(np.isfinite(limits).any())
        title = f"{name} against {limit}" if bounded else f"{name} per device"
        if len(run.rounds) == 1:
            parts.append(figure_panel(field, title, "One bar per device.", partial(device_figure, run, field)))
            continue
        note = "Shaded: the range over the devices of a round."
        parts.append(figure_panel(field, title, note, partial(limit_figure, run, field)))
        note = f"Darker is more{f'; orange is above {limit}' * bounded}."
        if bounded and len(limits) == 1:
            note = f"Darker is closer to {limit}; orange is above it."
        parts.append(figure_panel(f"{field}-map", f"{name} by device", note, partial(map_figure, run, field)))
    for setting, name in SETTINGS:
        if line := constant_line(run, setting):
            constant.append(line)
        elif np.isfinite(run.values(setting)).any():
            note = "Bar: mean over rounds. Line: range." if len(run.rounds) > 1 else ""
            parts.append(figure_panel(setting, name, note, partial(device_figure, run, setting)))
    words = {word for word in CONSTRAINTS if (run.words["binding"] == word).any()}
    if len(words) == 1 and run.active.sum() > 1:
        constant.append(f"Binding limit: {words.pop()}, for every device in every round.")
    elif words:
        note = "The limit that determines a device's rate. None: no limit is reached."
        parts.append(figure_panel("binding", "Binding limits", note, partial(binding_figure, run), wide=True))
    return section("Radio", "Simulated latency and energy of all devices.", _verdict(run, constant), *parts)


def _verdict(run: RunLog, constant: list[str]) -> Html:
    """Return a panel that says whether every device met its limits in every round, and what is constant."""
    kept, broken = _uses(run)
    if not kept:
        return constant_panel(constant)
    _, measured = _uses(run, "measured_")
    first = f"Devices exceeded {' and '.join(broken)}" if broken else f"Every device met {' and '.join(kept)}"
    lines = [f"{first}{', by the formula' * bool(measured)}."]
    if measured:
        lines.append(f"With measured frames, devices exceeded {' and '.join(measured)}.")
    if left_out := int(run.left_out.sum()):
        mean = f"{in_digits(float(run.left_out.mean()))} per round on average"
        lines.append(f"Devices were left out of a round {how_many(left_out, 'time')}, {mean}.")
        lines += _charged(run)
    if run.remark:
        most = in_digits(float(np.nansum(run.by_device["share"], axis=1).max()))
        lines.append(f"{run.remark.capitalize()}: devices use up to {most} times the bandwidth that exists.")
    lines += [*constant, *_stretched(run), *_gaps(run)]
    return el("div", *(el("p", line) for line in lines), class_=f"panel verdict{' broken' * bool(broken)}")


def constant_panel(lines: list[str]) -> Html:
    """Return a panel on what a figure would show as constant; nothing without lines."""
    return el("div", *(el("p", line) for line in lines), class_="panel wide") if lines else Html("")


def _uses(run: RunLog, kind: str = "") -> tuple[list[str], list[str]]:
    """Describe how much of each limit was used at most, and how often limits were exceeded."""
    kept, broken = [], []
    for field, _, limit in COSTS:
        used = run.by_device[kind + field] / run.limit(field)
        used = used[np.isfinite(used)]
        if used.size:
            over, most = int(over_limit(run, kind + field).sum()), in_percent(float(used.max()), 2)
            kept.append(f"{limit} (at most {most} used)")
            if over:
                broken.append(f"{limit} in {over:,} of {how_many(used.size, 'case')} (up to {most} used)")
    return kept, broken


def _charged(run: RunLog) -> Iterable[str]:
    if np.isfinite(run.charged_objective).any():
        objective, charged = float(np.nanmean(run.by_round["objective"])), float(np.nanmean(run.charged_objective))
        yield f"Mean objective {in_digits(objective)}, charged objective {in_digits(charged)}. {CHARGED}"


def _stretched(run: RunLog) -> Iterable[str]:
    longer = run.deadlines > run.deadline_s * (1 + TOLERANCE)
    if longer.any():
        most, asked = in_seconds(float(run.deadlines[longer].max())), in_seconds(run.deadline_s)
        rounds = f"{longer.sum():,} of {how_many(len(longer), 'round')}"
        yield f"The deadline of {asked} was extended in {rounds}, to {most} at most; the extended deadline counts."


def _gaps(run: RunLog) -> Iterable[str]:
    gaps = []
    for field, name, _ in COSTS:
        ratio = run.measured_over_formula(field)
        ratio = ratio[np.isfinite(ratio)]
        if ratio.size:
            gaps.append(f"{name.lower()} {100 * (float(ratio.mean()) - 1):+z.2f} %".replace("-", "−"))
    if gaps:
        table = run.config.get("radio")
        bits = table.get("bits_per_parameter") if isinstance(table, dict) else None
        note = f" with {bits:g} bits per parameter" if isinstance(bits, int | float) else ""
        yield f"Measured frames compared with the paper's formula{note}, on average: {', '.join(gaps)}."
