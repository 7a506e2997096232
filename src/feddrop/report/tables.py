"""The tables of the report: every round, every device, and the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from feddrop.errors import clean
from feddrop.radio.dtypes import ERRORS
from feddrop.report.groups import flat
from feddrop.report.html import Html, el, table
from feddrop.report.maps import HOLDS
from feddrop.report.quantities import NOTHING, in_bytes, in_hertz, in_joules, in_percent, in_seconds, in_watts, plain
from feddrop.report.runlog import Floats, RunLog

MOST_ROWS = 1_000
"""A longer table shows every n-th row."""

_WRITE = {"tx_power_w": in_watts, "cpu_hz": in_hertz}


def round_table(run: RunLog) -> Html:
    """Return one row a round."""
    radio = ["latency", "energy"] if run.has_radio else []
    accuracy = ["accuracy"] if np.isfinite(run.by_round["test_accuracy"]).any() else []
    head = ["round", *accuracy, "test loss", "training loss", *run.metrics]
    head += [*(["devices"] if run.has_absences else []), "push", "pull", "mean γ", *radio, "wall time"]
    rates, there = run.values("rate"), run.active.sum(axis=1)
    rows = []
    for r in _thinned(len(run.rounds)):
        at = {key: float(values[r]) for key, values in run.by_round.items()}
        rows.append(
            [
                run.rounds[r],
                *([in_percent(at["test_accuracy"], 2)] if accuracy else []),
                plain(at["test_loss"]),
                plain(at["train_loss"]),
                *(plain(float(values[r])) for values in run.metrics.values()),
                *([there[r]] if run.has_absences else []),
                in_bytes(at["push_bytes"]),
                in_bytes(at["pull_bytes"]),
                plain(_mean(rates[r])),
                *([in_seconds(at["latency_s"]), in_joules(at["energy_j"])] if radio else []),
                in_seconds(at["wall_s"]),
            ]
        )
    return table(head, rows)


def device_table(run: RunLog) -> Html:
    """Return one row a device."""
    bindings = [word for word in HOLDS if (run.words["binding"] == word).any()]
    wires = [word for word in ERRORS if (run.words["wire"] == word).any()]
    radio = ["mean ρ", "mean latency", "mean energy"] if run.has_radio else []
    settings_ = [key for key in ("tx_power_w", "cpu_hz") if np.isfinite(run.by_device[key]).any()]
    marked = ["suspicious"] if run.suspicious.any() else []
    head = ["device", "samples", "rounds", "left out", "refused", *marked, "mean γ", "push", "pull", *radio]
    head += [{"tx_power_w": "mean power", "cpu_hz": "mean clock"}[key] for key in settings_]
    rates, active = run.values("rate"), run.active
    rows = []
    for k in _thinned(len(run.devices)):
        of = {key: values[:, k] for key, values in run.by_device.items()}
        status, binding = run.words["status"][:, k], run.words["binding"][:, k]
        samples = of["samples"][np.isfinite(of["samples"])]
        costs = [plain(_mean(of["share"])), in_seconds(_mean(of["latency_s"])), in_joules(_mean(of["energy_j"]))]
        rows.append(
            [
                run.devices[k],
                f"{samples[-1]:,.0f}" if samples.size else NOTHING,
                active[:, k].sum(),
                (status == "left out").sum(),
                (status == "refused").sum(),
                *([run.suspicious[:, k].sum()] if marked else []),
                plain(_mean(rates[:, k])),
                in_bytes(float(np.nansum(of["push_bytes"]))),
                in_bytes(float(np.nansum(of["pull_bytes"]))),
                *(costs if radio else []),
                *(_WRITE[key](_mean(of[key])) for key in settings_),
                *((binding == word).sum() for word in bindings),
                *((run.words["wire"][:, k] == word).sum() for word in wires),
            ]
        )
    return table([*head, *(f"bound by {word}" for word in bindings), *(f"as {word}" for word in wires)], rows)


def settings(title: str, values: Mapping[str, Any]) -> Html:
    """Return a panel of settings, key by key."""
    pairs = [part for key, value in flat(values).items() for part in (el("dt", key), el("dd", show(value)))]
    return el("div", el("h3", title), el("dl", *pairs), class_="panel")


def show(value: object) -> str:
    """Write a setting as TOML does, near enough; a long list is cut."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(show(item) for item in value[:40])}{', …' * (len(value) > 40)}]"
    return clean(value, 500) or '""'


def _thinned(count: int) -> range:
    return range(0, count, -(-count // MOST_ROWS) or 1)


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")
