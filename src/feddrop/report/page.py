"""The report of a run: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from feddrop.config import Server
from feddrop.config.run import changed_settings
from feddrop.report.curves import accuracy_figure, loss_figure, metric_figure
from feddrop.report.html import Html, document, el, figure_panel, folded, section, tiles, write_page
from feddrop.report.load import read_run_log
from feddrop.report.maps import Field, drawn_cells, map_figure
from feddrop.report.partition import is_tall, partition_figure
from feddrop.report.plots import bytes_figure, constant_line, device_figure, participation_figure, traffic_figure
from feddrop.report.quantities import how_many, in_bytes, in_digits, in_joules, in_percent, in_seconds
from feddrop.report.radio import constant_panel, radio_section
from feddrop.report.runlog import Ints, RunLog
from feddrop.report.tables import device_table, round_table, settings_panel, size_table
from feddrop.report.timeline import timeline_section
from feddrop.report.warned import divergence_advice, warnings_section
from feddrop.storage.records import DRAWS

MOST_REASONS, MOST_DEVICES = 5, 8


def write_report(run_dir: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run: one HTML file without scripts or external resources.

    Args:
        run_dir: the run folder.
        out: the file to write, or a folder for ``report.html``; the run folder if None.

    Returns:
        The file written.

    Raises:
        RunError: the folder is incomplete or malformed, or the report cannot be written.

    Example:
        >>> import feddrop
        >>> config = feddrop.RunConfig.from_toml("data = { devices = 2, train_limit = 60 }", ["rounds=1"])
        >>> for record in feddrop.Run(config, "runs/shown"):
        ...     print(feddrop.write_report("runs/shown").name)
        report.html
    """
    run = read_run_log(run_dir, RunLog)
    return write_page(Path(run_dir if out is None else out), "report.html", run_page(run))


def run_page(run: RunLog) -> Html:
    """Return the report page of a run."""
    return document(
        run.name,
        "feddrop run",
        " · ".join(describe(run)),
        tiles(_headlines(run)),
        warnings_section(run),
        _learning(run),
        timeline_section(run),
        _traffic(run),
        _devices(run),
        radio_section(run),
        _data(run),
        section("Numbers", "", folded("All rounds", round_table(run)), folded("All devices", device_table(run))),
        _setup(run),
    )


def describe(run: RunLog) -> Iterable[str]:
    """Yield the parts of the subtitle: network and data, parameters, devices, rounds."""
    names = [name for name in (_name(run, "network", "model"), _name(run, "data", "data")) if name]
    if names:
        yield " on ".join(names)
    if run.info.get("parameters") is not None:
        yield f"{run.info['parameters']:,} parameters"
    yield how_many(run.population, "device")
    yield how_many(len(run.rounds), "round")
    if run.remark:
        yield run.remark


def _name(run: RunLog, key: str, section: str) -> str:
    """Return the name of the network or the data, from ``run.json`` or else from the configuration."""
    table = run.config.get(section)
    return str(run.info.get(key) or (table.get("name", "") if isinstance(table, dict) else ""))


def _headlines(run: RunLog) -> Iterable[tuple[str, str, str]]:
    last, best, when = run.accuracy
    if np.isfinite(last):
        note = "best of the run" if when == run.rounds[-1] else f"best {in_percent(best)} in round {when}"
        yield "Test accuracy", in_percent(last), note
    elif np.isfinite(run.last("test_loss")):
        values, chosen = run.by_round["test_loss"], run.by_round["val_loss"]
        validated = bool(np.isfinite(chosen).any())
        at = int(np.nanargmin(np.where(np.isfinite(values), chosen if validated else values, np.nan)))
        word = "best by validation" if validated else "lowest"
        shown = f"{word} {in_digits(float(values[at]))} in round {run.rounds[at]}"
        yield "Test loss", in_digits(run.last("test_loss")), shown if at < len(values) - 1 else f"{word} of the run"
    for name, values in run.metrics.items():
        known = run.rounds[np.isfinite(values)]
        yield name, in_digits(run.last(f"metrics.{name}")), f"in round {known[-1]}" if known.size else ""
    wall = run.by_round["wall_s"]
    yield "Rounds", str(len(run.rounds)), f"in {in_seconds(float(np.nansum(wall)))}" if np.isfinite(wall).any() else ""
    if run.has_absences:
        there = run.active.sum(axis=1)
        ever = f"of {run.population:,}; {len(run.devices):,} took part at least once"
        yield "Devices per round", _span(there), ever
    note = "pushed and pulled"
    if np.isfinite(run.saving):
        note = f"{in_percent(abs(run.saving))} {'less' if run.saving >= 0 else 'more'} than full float32 models"
        note = "as much as full float32 models" if abs(run.saving) < 0.0005 else note
    yield "Traffic", in_bytes(float(run.traffic.sum())), note
    if np.isfinite(run.mean_rate):
        low, high = float(np.nanmin(run.values("rate"))), float(np.nanmax(run.values("rate")))
        note = "same for all devices" if high - low < 1e-9 else f"from {low:.2f} to {high:.2f}"
        yield "Mean rate γ", f"{run.mean_rate:.3g}", note
        kept = run.kept_bytes[np.isfinite(run.kept_bytes)]
        if kept.size:
            nominal = in_percent(1 - run.mean_rate)
            yield "Bytes kept", in_percent(float(kept.mean())), f"of full frames; nominally {nominal}"
    for label, key, write in (("Simulated time", "latency_s", in_seconds), ("Energy", "energy_j", in_joules)):
        values = run.by_round[key]
        if np.isfinite(values).any():
            mean = f"{write(float(np.nanmean(values)))} per round"
            yield label, write(float(np.nansum(values))), mean if key == "latency_s" else f"{mean}, all devices"


def _learning(run: RunLog) -> Html:
    figures = []
    if np.isfinite(run.by_round["test_accuracy"]).any():
        note = "Full model on the server, test set."
        if run.virtual:
            figures += [_accuracy_against(run, "time", note), _accuracy_against(run, "energy", note)]
        else:
            figures.append(figure_panel("accuracy", "Accuracy", note, partial(accuracy_figure, run)))
    if any(np.isfinite(run.by_round[key]).any() for key in ("train_loss", "test_loss")):
        note = "Training: the devices' subnets. Test: the full model."
        figures.append(figure_panel("loss", "Loss", note, partial(loss_figure, run)))
    for n, name in enumerate(run.metrics):
        if np.isfinite(run.metrics[name]).any():
            figures.append(figure_panel(f"metric-{n}", name, "", partial(metric_figure, run, name)))
    return section("Learning", "", *_diverged(run), *_untrained(run), *figures, *_sizes(run))


def _accuracy_against(run: RunLog, against: Literal["time", "energy"], note: str) -> Html:
    title = f"Accuracy against {against}"
    return figure_panel(f"accuracy-{against}", title, note, partial(accuracy_figure, run, against=against))


def _untrained(run: RunLog) -> Iterable[Html]:
    """Return a panel on parameters that no device has held; nothing if there are none."""
    if run.untrained > 0:
        text = (
            f"{in_percent(run.untrained, 2)} of the trainable parameters have been held by no device, so none has "
            "trained them; but the full network is tested."
        )
        yield el("div", el("p", text), class_="panel warning wide")


def _sizes(run: RunLog) -> Iterable[Html]:
    """Return the table of accuracy by size; nothing if no sub-model was evaluated."""
    if run.sizes:
        note = f"Sub-models that devices of rate γ hold, on the test set. Random ones: mean of {DRAWS} draws."
        yield el("div", el("h3", "Accuracy by size"), el("p", note), size_table(run), class_="panel wide")


def _diverged(run: RunLog) -> Iterable[Html]:
    """Return a panel that says where training diverged; nothing if it did not."""
    where = run.diverged
    if where.any():
        at = int(np.flatnonzero(where)[0])
        value = float(run.by_round["test_loss"][at])
        loss = in_digits(value) if np.isfinite(value) else "not finite"
        given = run.config.get("server") or {}
        server = Server(optimizer=given.get("optimizer", "average"), filter=bool(given.get("filter")))
        sent = run.suspicious[: at + 1].sum(axis=0)
        advice = divergence_advice({run.devices[k]: int(sent[k]) for k in np.flatnonzero(sent)}, server)
        text = f"Training diverged: in round {run.rounds[at]} the test loss was {loss}. {advice}"
        yield el("div", el("p", text), class_="panel verdict broken")


def _traffic(run: RunLog) -> Html:
    if not run.traffic.any():
        return Html("")
    note = "All frames, as measured."
    if run.saving >= 0:
        note = f"{in_percent(run.saving)} saved: {in_bytes(float((run.full_traffic - run.traffic).sum()))} not sent."
    return section(
        "Traffic",
        "The server pushes subnets and pulls updates. Sizes are those of the frames sent.",
        figure_panel("bytes", "Per round", "Push and pull of all devices.", partial(bytes_figure, run)),
        figure_panel("traffic", "Cumulative", note, partial(traffic_figure, run)),
    )


def _devices(run: RunLog) -> Html:
    """Return rates, shares and losses by device, with a map where they vary by round."""
    rounds, devices = drawn_cells(run)
    note = ""
    if len(rounds) < len(run.rounds) or len(devices) < len(run.devices):
        of = f"{how_many(len(devices), 'device')} of {len(run.devices):,}"
        note = f"{how_many(len(rounds), 'round')} of {len(run.rounds):,}, {of}."
    elif not run.active.all():
        note = f"Blank: the device did not take part{' or was not recorded' * run.sampled}."
    figures: list[Html] = []
    lines: list[str] = []
    fields: dict[Literal["rate", "share"], str] = {"rate": "Dropout rates", "share": "Bandwidth shares"}
    for field, title in fields.items():
        if not np.isfinite(run.values(field)).any():
            continue
        if line := constant_line(run, field):
            lines.append(line)
            continue
        varies = _varies(run, field)
        constant = "Constant over rounds." if len(run.rounds) > 1 else ""
        about = "Bar and number: mean over rounds. Line: range." if varies else constant
        figures.append(figure_panel(field, title, about, partial(device_figure, run, field)))
        if varies:
            figures.append(_map(run, field, f"{title} by round", note))
    if run.has_absences and len(run.rounds) > 1:
        about = f"{len(run.devices):,} of {how_many(run.population, 'device')} took part in at least one round."
        figures.append(figure_panel("participation", "Participation", about, partial(participation_figure, run)))
    if np.isfinite(run.values("loss")).any() and len(run.rounds) > 1:
        about = "Local training loss. " + note
        missing = [word for word, found in (("lost", _losses(run).any()), ("refused", run.refusals)) if found]
        about += f" Also blank: its update was {' or '.join(missing)}." if missing else ""
        figures.append(_map(run, "loss", "Loss by device", about, wide=len(figures) % 2 == 0))
    return section("Devices", "", constant_panel(lines), *figures, _lost(run), _refused(run), _suspicious(run))


def _losses(run: RunLog) -> Any:
    return run.words["status"] == "lost"


def _lost(run: RunLog) -> Html:
    """Return a panel on updates that were lost on the way; nothing if none was."""
    lost = _losses(run)
    if not lost.any():
        return Html("")
    empty = int((lost.any(axis=1) & ~np.isfinite(run.values("loss")).any(axis=1)).sum())
    text = f"{int(lost.sum()):,} of {int(run.active.sum()):,} updates were lost on the way. What was sent is billed."
    text += f" In {how_many(empty, 'round')} none was left, so the network stayed as it was." if empty else ""
    return el("div", el("h3", "Lost updates"), el("p", text), class_="panel warning wide")


def _refused(run: RunLog) -> Html:
    """Return a panel on refused updates and why they were refused; nothing if none was."""
    if not run.refusals:
        return Html("")
    counts = f"{sum(run.refusals.values()):,} of {int(run.active.sum()):,} updates"
    text = f"{counts} were refused: damaged, invalid, or the device failed."
    return _reasons("Refused updates", text, run.refusals)


def _suspicious(run: RunLog) -> Html:
    """Return a panel on suspicious updates: which devices sent them, how often, and why; nothing if none did."""
    by_device = run.suspicious.sum(axis=0)
    if not by_device.any():
        return Html("")
    order = [k for k in np.argsort(-by_device, kind="stable") if by_device[k]]
    most = ", ".join(f"{run.devices[k]} ({how_many(int(by_device[k]), 'time')})" for k in order[:MOST_DEVICES])
    rest = f" and {len(order) - MOST_DEVICES:,} more" if len(order) > MOST_DEVICES else ""
    counts = f"{int(by_device.sum()):,} of {int(run.active.sum()):,} updates"
    text = f"{counts} look suspicious. They came from device {most}{rest}."
    return _reasons("Suspicious updates", text, run.suspicions)


def _reasons(title: str, text: str, reasons: Mapping[str, int]) -> Html:
    """Return a panel that lists the most frequent reasons."""
    if len(reasons) > MOST_REASONS:
        text += f" The {MOST_REASONS} most frequent reasons of {len(reasons):,}:"
    most = list(reasons.items())[:MOST_REASONS]
    rows = [part for why, n in most for part in (el("dt", how_many(n, "time")), el("dd", why))]
    return el("div", el("h3", title), el("p", text), el("dl", *rows), class_="panel warning wide")


def _varies(run: RunLog, field: str) -> bool:
    values = run.values(field)
    values = values[:, np.isfinite(values).any(axis=0)]
    return bool((np.nanmax(values, axis=0) - np.nanmin(values, axis=0) > 1e-9).any())


def _map(run: RunLog, field: Field, title: str, note: str, *, wide: bool = False) -> Html:
    return figure_panel(f"{field}-map", title, note, partial(map_figure, run, field, wide=wide), wide=wide)


def _data(run: RunLog) -> Html:
    counts = run.class_counts
    if counts is None or not counts.any():
        return Html("")
    devices, classes = counts.shape
    wide = not is_tall(devices, classes)
    draw = partial(partition_figure, counts, run.class_names)
    title = f"{how_many(classes, 'class', 'es')} on {how_many(devices, 'device')}"
    picture = figure_panel("partition", title, "Training samples per class and device.", draw, wide=wide)
    samples, held = counts.sum(axis=1), (counts > 0).sum(axis=1)
    largest = counts.max(axis=1)[samples > 0] / samples[samples > 0]
    even = in_percent(float(counts.sum(axis=0).max() / samples.sum()), 0)
    about = f"of its samples, on average; {even} if all devices were alike"
    facts = [
        ("Samples", f"{samples.sum():,}", "for training, all devices"),
        ("Samples per device", _span(samples), "for training"),
        ("Classes per device", _span(held), f"of {classes}"),
        ("Largest class per device", in_percent(float(largest.mean()), 0), about),
    ]
    return section("Data", "", picture, tiles(facts, class_="tiles wide" if wide else "tiles tall"))


def _span(values: Ints) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _setup(run: RunLog) -> Html:
    tables = {key: value for key, value in run.config.items() if isinstance(value, dict) and value}
    loose = {key: value for key, value in run.config.items() if not isinstance(value, dict)}
    machine = {key: run.info[key] for key in ("feddrop", "python", "torch", "cpu") if run.info.get(key) is not None}
    named = {"Settings that differ from their defaults": changed_settings(run.config), "Environment": machine}
    first = [settings_panel(key, value) for key, value in named.items() if value]
    panels = [settings_panel(key, value) for key, value in ({"run": loose} | tables).items() if value]
    command = run.info.get("command")
    again = Html("")
    if command:
        again = el("div", el("h3", "Command"), el("pre", el("code", command)), class_="panel wide")
    elif isinstance(custom := run.info.get("custom"), list) and custom:
        text = f"Started from Python with custom {' and '.join(map(str, custom))}."
        again = el("div", el("p", text), class_="panel wide")
    return section("Setup", "", again, *first, folded("All settings", el("div", *panels, class_="panels")))
