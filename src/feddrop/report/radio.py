"""The report's radio section: whether every device met the deadline and its energy budget, and what bound it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal

import numpy as np

from feddrop.report.html import Html, drawing, el, section
from feddrop.report.maps import HOLDS, TOLERANCE, binding_figure, map_figure, over_limit
from feddrop.report.plots import device_figure, limit_figure
from feddrop.report.quantities import how_many, in_percent, in_seconds
from feddrop.report.runlog import RunLog

COSTS: tuple[tuple[Literal["latency_s", "energy_j"], str, str], ...] = (
    ("latency_s", "Latency", "the deadline"),
    ("energy_j", "Energy", "the energy budget"),
)

SETTINGS: tuple[tuple[Literal["tx_power_w", "cpu_hz"], str], ...] = (
    ("tx_power_w", "Transmit power by device"),
    ("cpu_hz", "CPU clock by device"),
)


def radio_section(run: RunLog) -> Html:
    """Return latency, energy and what binds, by device and round; nothing for a run without a radio."""
    if not run.has_radio:
        return Html("")
    parts = [_verdict(run)]
    for field, name, limit in COSTS:
        if not np.isfinite(run.values(field)).any():
            continue
        limits = np.unique(run.limit(field))
        bounded = bool(np.isfinite(limits).any())
        title = f"{name} against {limit}" if bounded else f"{name} of a device"
        if len(run.rounds) == 1:
            parts.append(drawing(field, title, "Each device in the one round.", partial(device_figure, run, field)))
            continue
        note = "The shade spans the devices of a round."
        parts.append(drawing(field, title, note, partial(limit_figure, run, field)))
        note = f"Stronger is more{f'; orange is above {limit}' * bounded}."
        if bounded and len(limits) == 1:
            note = f"Stronger is closer to {limit}; orange is above it."
        parts.append(drawing(f"{field}-map", f"{name} by device", note, partial(map_figure, run, field)))
    for setting, name in SETTINGS:
        values = run.values(setting)
        if np.isfinite(values).any():
            note = "Mean over rounds, and the range." if len(run.rounds) > 1 else ""
            parts.append(drawing(setting, name, note, partial(device_figure, run, setting)))
    if np.isin(run.words["binding"], HOLDS).any():
        note = "The limit that a device runs up against. None: it has room to spare."
        parts.append(drawing("binding", "What binds", note, partial(binding_figure, run), wide=True))
    return section("Radio", "Simulated latency and energy of every device in every round.", *parts)


def _verdict(run: RunLog) -> Html:
    """Say whether every device met the deadline and its budget in every round, by the costs that the run counts."""
    kept, broken = _uses(run)
    if not kept:
        return Html("")
    _, measured = _uses(run, "measured_")
    first = f"A device went over {' and '.join(broken)}" if broken else f"Every device kept {' and '.join(kept)}"
    lines = [f"{first}{', by the formula' * bool(measured)}."]
    if measured:
        lines.append(f"With measured frames a device went over {' and '.join(measured)}.")
    left_out = int((run.words["status"] == "left out").sum())
    if left_out:
        lines.append(f"A device was left out of a round {how_many(left_out, 'time')}.")
    lines += [*_stretched(run), *_gaps(run)]
    return el("div", *(el("p", line) for line in lines), class_=f"panel verdict{' broken' * bool(broken)}")


def _uses(run: RunLog, kind: str = "") -> tuple[list[str], list[str]]:
    """Say of each limit how much of it was used at most, and of those that were broken how often."""
    kept, broken = [], []
    for field, _, limit in COSTS:
        used = run.by_device[kind + field] / run.limit(field)
        used = used[np.isfinite(used)]
        if used.size:
            over, most = int(over_limit(run, kind + field).sum()), in_percent(float(used.max()), 2)
            kept.append(f"{limit} (using {most} of it at most)")
            if over:
                broken.append(f"{limit} {how_many(over, 'time')} of {used.size:,} (using up to {most} of it)")
    return kept, broken


def _stretched(run: RunLog) -> Iterable[str]:
    longer = run.deadlines > run.deadline_s * (1 + TOLERANCE)
    if longer.any():
        most, asked = in_seconds(float(run.deadlines[longer].max())), in_seconds(run.deadline_s)
        yield (
            f"The deadline was stretched in {longer.sum():,} of {how_many(len(longer), 'round')}, to {most} at most "
            f"({asked} was asked for); devices are held to the deadline in force."
        )


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
        note = f" with {bits:g} bits a parameter" if isinstance(bits, int | float) else ""
        yield f"Measured frames against the paper's formula{note}, on average: {', '.join(gaps)}."
