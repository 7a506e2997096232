"""The report of one run: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from feddrop.report.html import Html, document, drawing, el, folded, section, tiles, write_atomically
from feddrop.report.load import load_run
from feddrop.report.maps import BINDINGS, TOLERANCE, Field, binding_figure, map_figure, over_limit, shown
from feddrop.report.partition import is_upright, partition_figure
from feddrop.report.plots import (
    accuracy_figure,
    bytes_figure,
    device_figure,
    limit_figure,
    loss_figure,
    traffic_figure,
)
from feddrop.report.quantities import in_bytes, in_joules, in_percent, in_seconds
from feddrop.report.runlog import Ints, RunLog
from feddrop.report.tables import device_table, round_table, settings

COSTS: tuple[tuple[Literal["latency_s", "energy_j"], str, str], ...] = (
    ("latency_s", "Latency", "the deadline"),
    ("energy_j", "Energy", "the energy budget"),
)
MOST_REASONS = 5


def write_report(run_dir: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run: one HTML file that loads nothing and runs no script.

    Args:
        run_dir: the run's folder.
        out: where to write; ``report.html`` in the run's folder if None, in ``out`` if that is a folder.

    Returns:
        The file written.

    Raises:
        RunError: the folder is incomplete or malformed, or the report cannot be written.
    """
    run = load_run(run_dir)
    return write_atomically(Path(run_dir if out is None else out), "report.html", run_page(run))


def run_page(run: RunLog) -> Html:
    """Return the report of a run as HTML."""
    return document(
        run.name,
        "feddrop run",
        " · ".join(describe(run)),
        tiles(_headlines(run)),
        _learning(run),
        _traffic(run),
        _devices(run),
        _radio(run),
        _data(run),
        section("Numbers", "", folded("Every round", round_table(run)), folded("Every device", device_table(run))),
        _setup(run),
    )


def describe(run: RunLog) -> Iterable[str]:
    """Say in a few words what was trained on what, as far as the run tells."""
    names = [name for name in (_name(run, "network", "model"), _name(run, "data", "data")) if name]
    if names:
        yield " on ".join(names)
    if run.info.get("parameters") is not None:
        yield f"{run.info['parameters']:,} parameters"
    yield _count(len(run.devices), "device")
    yield _count(len(run.rounds), "round")


def _name(run: RunLog, key: str, section: str) -> str:
    """Say what was trained, or on what: as ``run.json`` has it, else as the configuration has it."""
    table = run.config.get(section)
    return str(run.info.get(key) or (table.get("name", "") if isinstance(table, dict) else ""))


def _headlines(run: RunLog) -> Iterable[tuple[str, str, str]]:
    last, best, when = run.accuracy
    if np.isfinite(last):
        note = "the best of the run" if when == run.rounds[-1] else f"best {in_percent(best)} in round {when}"
        yield "Test accuracy", in_percent(last), note
    wall = run.by_round["wall_s"]
    yield "Rounds", str(len(run.rounds)), f"in {in_seconds(float(np.nansum(wall)))}" if np.isfinite(wall).any() else ""
    note = "pushed and pulled"
    if np.isfinite(run.saving):
        note = f"{in_percent(abs(run.saving))} {'less' if run.saving >= 0 else 'more'} than full float32 models"
    yield "Traffic", in_bytes(float(run.traffic.sum())), note
    if np.isfinite(run.mean_rate):
        low, high = float(np.nanmin(run.values("rate"))), float(np.nanmax(run.values("rate")))
        note = "the same for all" if high - low < 1e-9 else f"from {low:.2f} to {high:.2f}"
        yield "Mean rate γ", f"{run.mean_rate:.3g}", note
    for label, key, write in (("Simulated time", "latency_s", in_seconds), ("Energy", "energy_j", in_joules)):
        values = run.by_round[key]
        if np.isfinite(values).any():
            mean = f"{write(float(np.nanmean(values)))} a round"
            yield label, write(float(np.nansum(values))), mean if key == "latency_s" else f"{mean}, all devices"


def _learning(run: RunLog) -> Html:
    figures = []
    if np.isfinite(run.by_round["test_accuracy"]).any():
        note = "Of the server's network, on the test set."
        figures.append(drawing("accuracy", "Accuracy", note, partial(accuracy_figure, run)))
    if any(np.isfinite(run.by_round[key]).any() for key in ("train_loss", "test_loss")):
        note = "Training: of the devices' subnets. Test: of the server's network."
        figures.append(drawing("loss", "Loss", note, partial(loss_figure, run)))
    return section("Learning", "", *figures)


def _traffic(run: RunLog) -> Html:
    if not run.traffic.any():
        return Html("")
    note = "All frames, measured."
    if run.saving >= 0:
        note = f"{in_percent(run.saving)} saved: {in_bytes(float((run.full_traffic - run.traffic).sum()))} never sent."
    return section(
        "Traffic",
        "Subnets go down (push), updates come up (pull). Sizes are those of the frames sent.",
        drawing("bytes", "Each round", "Push and pull together, all devices.", partial(bytes_figure, run)),
        drawing("traffic", "So far", note, partial(traffic_figure, run)),
    )


def _devices(run: RunLog) -> Html:
    """Return rates, shares and losses by device; a map where they vary by round. The last one fills an open row."""
    rounds, devices = shown(run)
    note = ""
    if len(rounds) < len(run.rounds) or len(devices) < len(run.devices):
        note = (
            f"{_count(len(rounds), 'round')} of {len(run.rounds):,}, {len(devices):,} devices of {len(run.devices):,}."
        )
    elif not run.active.all():
        note = "Blank: the device took no part."
    figures: list[Html] = []
    fields: tuple[tuple[Literal["rate", "share"], str], ...] = (
        ("rate", "Dropout rates"),
        ("share", "Bandwidth shares"),
    )
    for field, title in fields:
        if not np.isfinite(run.values(field)).any():
            continue
        varies = _varies(run, field)
        about = "Mean over rounds, and the range." if varies else "The same in every round." * (len(run.rounds) > 1)
        figures.append(drawing(field, title, about, partial(device_figure, run, field)))
        if varies:
            figures.append(_map(run, field, f"{title} by round", note))
    if np.isfinite(run.values("loss")).any() and len(run.rounds) > 1:
        about = "Local training loss of each device. " + note
        about += " Also blank: its update was refused." * bool(run.refusals)
        figures.append(_map(run, "loss", "Loss by device", about, wide=len(figures) % 2 == 0))
    return section("Devices", "", *figures, _refused(run))


def _refused(run: RunLog) -> Html:
    """Say how often an update did not count, and why; nothing if all did."""
    times, reasons = sum(run.refusals.values()), list(run.refusals.items())
    if not times:
        return Html("")
    said = f"{times:,} of {int(run.active.sum()):,} updates did not count: damaged, wrong, or the device failed."
    if len(reasons) > MOST_REASONS:
        said += f" The {MOST_REASONS} most frequent reasons of {len(reasons):,}:"
    rows = [part for why, n in reasons[:MOST_REASONS] for part in (el("dt", _count(n, "time")), el("dd", why))]
    return el("div", el("h3", "Refused updates"), el("p", said), el("dl", *rows), class_="panel wide")


def _varies(run: RunLog, field: str) -> bool:
    values = run.values(field)
    values = values[:, np.isfinite(values).any(axis=0)]
    return bool((np.nanmax(values, axis=0) - np.nanmin(values, axis=0) > 1e-9).any())


def _map(run: RunLog, field: Field, title: str, note: str, *, wide: bool = False) -> Html:
    return drawing(f"{field}-map", title, note, partial(map_figure, run, field, wide=wide), wide=wide)


def _radio(run: RunLog) -> Html:
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
        parts.append(_map(run, field, f"{name} by device", note))
    if np.isin(run.words["binding"], list(BINDINGS)).any():
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
        lines.append(f"A device was left out of a round {left_out:,} times.")
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
                broken.append(f"{limit} {over:,} times of {used.size:,} (using up to {most} of it)")
    return kept, broken


def _stretched(run: RunLog) -> Iterable[str]:
    longer = run.deadlines > run.deadline_s * (1 + TOLERANCE)
    if longer.any():
        most, asked = in_seconds(float(run.deadlines[longer].max())), in_seconds(run.deadline_s)
        yield (
            f"The deadline was stretched in {longer.sum():,} of {_count(len(longer), 'round')}, to {most} at most "
            f"({asked} was asked for); devices are held to the deadline in force."
        )


def _gaps(run: RunLog) -> Iterable[str]:
    gaps = []
    for field, name, _ in COSTS:
        ratio = run.measured_over_formula(field)
        ratio = ratio[np.isfinite(ratio)]
        if ratio.size:
            gaps.append(f"{name.lower()} {100 * (float(ratio.mean()) - 1):+.2f} %".replace("-", "−"))
    if gaps:
        table = run.config.get("radio")
        bits = table.get("bits_per_parameter") if isinstance(table, dict) else None
        note = f" with {bits:g} bits a parameter" if isinstance(bits, int | float) else ""
        yield f"Measured frames against the paper's formula{note}, on average: {', '.join(gaps)}."


def _data(run: RunLog) -> Html:
    counts = run.class_counts
    if counts is None or not counts.any():
        return Html("")
    devices, classes = counts.shape
    wide = not is_upright(devices, classes)
    draw = partial(partition_figure, counts, run.class_names)
    title = f"{_count(classes, 'class', 'es')} on {_count(devices, 'device')}"
    picture = drawing("partition", title, "Training samples by class and device.", draw, wide=wide)
    samples, held = counts.sum(axis=1), (counts > 0).sum(axis=1)
    own = counts.max(axis=1)[samples > 0] / samples[samples > 0]
    even = in_percent(float(counts.sum(axis=0).max() / samples.sum()), 0)
    facts = [
        ("Samples", f"{samples.sum():,}", "for training, over all devices"),
        ("On a device", _span(samples), "samples"),
        ("Classes on a device", _span(held), f"of {classes}"),
        (
            "A device's largest class",
            in_percent(float(own.mean()), 0),
            f"of its samples, on average; {even} if all were alike",
        ),
    ]
    return section("Data", "", picture, tiles(facts, class_="tiles wide" if wide else "tiles tall"))


def _span(values: Ints) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _setup(run: RunLog) -> Html:
    tables = {key: value for key, value in run.config.items() if isinstance(value, dict) and value}
    loose = {key: value for key, value in run.config.items() if not isinstance(value, dict)}
    machine = {key: run.info[key] for key in ("feddrop", "python", "torch", "cpu") if run.info.get(key) is not None}
    panels = [
        settings(key, value) for key, value in ({"run": loose} | tables | {"made with": machine}).items() if value
    ]
    command = run.info.get("command")
    again = Html("")
    if command:
        again = el("div", el("h3", "Run it again"), el("pre", el("code", command)), class_="panel wide")
    elif run.info.get("own"):
        own = " and ".join(map(str, run.info["own"])) if isinstance(run.info["own"], list) else ""
        again = el("div", el("p", f"Started from Python, with {own} of the caller's own."), class_="panel wide")
    return section("Setup", "", again, el("div", *panels, class_="panels wide"))


def _count(number: int, word: str, plural: str = "s") -> str:
    return f"{number:,} {word}{plural if number != 1 else ''}"
