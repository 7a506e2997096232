"""The tables of the report: rounds, devices and settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from feddrop.config.execution import DTYPES
from feddrop.config.parsing import flat
from feddrop.errors import clean
from feddrop.report import quantities
from feddrop.report.html import Html, el, table
from feddrop.report.maps import CONSTRAINTS
from feddrop.report.quantities import UNKNOWN, in_bytes, in_digits, in_joules, in_percent, in_seconds
from feddrop.report.runlog import Floats, RunLog

MOST_ROWS = 1_000  # longer tables show every n-th row
_WRITE = {"tx_power_w": quantities.in_watts, "cpu_hz": quantities.in_hertz}


def round_table(run: RunLog) -> Html:
    """Return a table with one row per round."""
    radio = ["latency", "energy"] if run.has_radio else []
    absent, charged = run.left_out, run.charged_objective
    costs = ["left out", "objective", "charged objective"] if absent.any() else []
    accuracy = ["accuracy"] if np.isfinite(run.by_round["test_accuracy"]).any() else []
    head = ["round", *accuracy, "test loss", "training loss", *run.metrics]
    head += [*(["devices"] if run.has_absences else []), "push", "pull", "mean γ", *radio, *costs, "wall time"]
    rates, there = run.values("rate"), run.active.sum(axis=1)
    rows = []
    for r in _thinned(len(run.rounds)):
        at = {key: float(values[r]) for key, values in run.by_round.items()}
        rows.append(
            [
                run.rounds[r],
                *([in_percent(at["test_accuracy"], 2)] if accuracy else []),
                in_digits(at["test_loss"]),
                in_digits(at["train_loss"]),
                *(in_digits(float(values[r])) for values in run.metrics.values()),
                *([there[r]] if run.has_absences else []),
                in_bytes(at["push_bytes"]),
                in_bytes(at["pull_bytes"]),
                in_digits(_mean(rates[r])),
                *([in_seconds(at["latency_s"]), in_joules(at["energy_j"])] if radio else []),
                *([absent[r], in_digits(at["objective"]), in_digits(charged[r])] if costs else []),
                in_seconds(at["wall_s"]),
            ]
        )
    return table(head, rows)


def device_table(run: RunLog) -> Html:
    """Return a table with one row per device."""
    bindings = [word for word in CONSTRAINTS if (run.words["binding"] == word).any()]
    dtypes = [word for word in DTYPES if (run.words["dtype"] == word).any()]
    radio = ["mean ρ", "mean latency", "mean energy"] if run.has_radio else []
    settings_ = [key for key in ("tx_power_w", "cpu_hz") if np.isfinite(run.by_device[key]).any()]
    marked = ["suspicious"] if run.suspicious.any() else []
    lost = ["lost"] if (run.words["status"] == "lost").any() else []
    head = [
        "device",
        "samples",
        "rounds",
        "left out",
        *lost,
        "refused",
        *marked,
        "mean γ",
        "bytes kept",
        "push",
        "pull",
    ]
    head += [*radio, *({"tx_power_w": "mean power", "cpu_hz": "mean clock"}[key] for key in settings_)]
    rates, active, kept = run.values("rate"), run.active, run.kept_bytes
    rows = []
    for k in _thinned(len(run.devices)):
        of = {key: values[:, k] for key, values in run.by_device.items()}
        status, binding = run.words["status"][:, k], run.words["binding"][:, k]
        samples = of["samples"][np.isfinite(of["samples"])]
        costs = [in_digits(_mean(of["share"])), in_seconds(_mean(of["latency_s"])), in_joules(_mean(of["energy_j"]))]
        rows.append(
            [
                run.devices[k],
                f"{samples[-1]:,.0f}" if samples.size else UNKNOWN,
                active[:, k].sum(),
                (status == "left out").sum(),
                *([(status == "lost").sum()] if lost else []),
                (status == "refused").sum(),
                *([run.suspicious[:, k].sum()] if marked else []),
                in_digits(_mean(rates[:, k])),
                in_percent(_mean(kept[:, k])),
                in_bytes(float(np.nansum(of["push_bytes"]))),
                in_bytes(float(np.nansum(of["pull_bytes"]))),
                *(costs if radio else []),
                *(_WRITE[key](_mean(of[key])) for key in settings_),
                *((binding == word).sum() for word in bindings),
                *((run.words["dtype"][:, k] == word).sum() for word in dtypes),
            ]
        )
    return table([*head, *(f"bound by {word}" for word in bindings), *(f"as {word}" for word in dtypes)], rows)


def size_table(run: RunLog) -> Html:
    """Return a table with one row per rate at which sub-models were evaluated."""
    known = np.isfinite([size.accuracy for size in run.sizes]).any()
    rows = [
        [
            f"{size.rate:g}",
            in_percent(1.0 - size.rate),
            in_percent(size.kept),
            in_percent(size.accuracy, 2) if known else in_digits(size.loss),
        ]
        for size in run.sizes
    ]
    return table(["γ", "nominally kept", "kept", "accuracy" if known else "test loss"], rows)


def settings_panel(title: str, values: Mapping[str, Any]) -> Html:
    """Return a panel of settings by dotted key."""
    pairs = [part for key, value in flat(values).items() for part in (el("dt", key), el("dd", setting_text(value)))]
    return el("div", el("h3", title), el("dl", *pairs), class_="panel")


def setting_text(value: object) -> str:
    """Write a setting much as in TOML; a long list is truncated."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(setting_text(item) for item in value[:40])}{', …' * (len(value) > 40)}]"
    return clean(value, 500) or '""'


def _thinned(count: int) -> range:
    return range(0, count, -(-count // MOST_ROWS) or 1)


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")
