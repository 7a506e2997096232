"""The tables of the report: rounds, devices and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from feddrop.config.execution import DTYPES
from feddrop.config.parsing import flat
from feddrop.errors import clean
from feddrop.report.html import Html, el, table
from feddrop.report.maps import CONSTRAINTS
from feddrop.report.quantities import (
    UNKNOWN,
    in_bytes,
    in_digits,
    in_hertz,
    in_joules,
    in_percent,
    in_seconds,
    in_watts,
)
from feddrop.report.runlog import Bools, Floats, RunLog

MOST_ROWS = 1_000  # longer tables show every n-th row
Column = tuple[str, Callable[[int], object]]
"""The heading of a column, and a function from the number of a row to its cell."""


def round_table(run: RunLog) -> Html:
    """Return a table with one row per round."""
    of, rates, there, absent = run.by_round, run.values("rate"), run.active.sum(axis=1), run.left_out

    def shown(values: Floats, write: Callable[[float], str] = in_digits) -> Callable[[int], object]:
        return lambda r: write(float(values[r]))

    accuracy: Column = ("accuracy", shown(of["test_accuracy"], partial(in_percent, digits=2)))
    devices: Column = ("devices", lambda r: there[r])
    radio = [("latency", shown(of["latency_s"], in_seconds)), ("energy", shown(of["energy_j"], in_joules))]
    costs = [("objective", shown(of["objective"])), ("charged objective", shown(run.charged_objective))]
    columns: list[Column] = [
        ("round", lambda r: run.rounds[r]),
        *[accuracy] * bool(np.isfinite(of["test_accuracy"]).any()),
        ("test loss", shown(of["test_loss"])),
        ("training loss", shown(of["train_loss"])),
        *((name, shown(values)) for name, values in run.metrics.items()),
        *[devices] * run.has_absences,
        ("push", shown(of["push_bytes"], in_bytes)),
        ("pull", shown(of["pull_bytes"], in_bytes)),
        ("mean γ", lambda r: in_digits(_mean(rates[r]))),
        *radio * run.has_radio,
        *[("left out", lambda r: absent[r]), *costs] * bool(absent.any()),
        ("wall time", shown(of["wall_s"], in_seconds)),
    ]
    return _table(columns, len(run.rounds))


def device_table(run: RunLog) -> Html:
    """Return a table with one row per device."""
    of, status, binding, dtype = run.by_device, *(run.words[key] for key in ("status", "binding", "dtype"))

    def mean(values: Floats, write: Callable[[float], str] = in_digits) -> Callable[[int], object]:
        return lambda k: write(_mean(values[:, k]))

    def times(flags: Bools) -> Callable[[int], object]:
        return lambda k: flags[:, k].sum()

    def samples(k: int) -> str:
        known = of["samples"][:, k][np.isfinite(of["samples"][:, k])]
        return f"{known[-1]:,.0f}" if known.size else UNKNOWN

    def total(key: str) -> Callable[[int], object]:
        return lambda k: in_bytes(float(np.nansum(of[key][:, k])))

    costs = (
        ("mean ρ", "share", in_digits),
        ("mean latency", "latency_s", in_seconds),
        ("mean energy", "energy_j", in_joules),
    )
    chosen = (("mean power", "tx_power_w", in_watts), ("mean clock", "cpu_hz", in_hertz))
    columns: list[Column] = [
        ("device", lambda k: run.devices[k]),
        ("samples", samples),
        ("rounds", times(run.active)),
        ("left out", times(status == "left out")),
        *[("lost", times(status == "lost"))] * bool((status == "lost").any()),
        ("refused", times(status == "refused")),
        *[("suspicious", times(run.suspicious))] * bool(run.suspicious.any()),
        ("mean γ", mean(run.values("rate"))),
        ("bytes kept", mean(run.kept_bytes, in_percent)),
        ("push", total("push_bytes")),
        ("pull", total("pull_bytes")),
        *[(name, mean(of[key], write)) for name, key, write in costs] * run.has_radio,
        *((name, mean(of[key], write)) for name, key, write in chosen if np.isfinite(of[key]).any()),
        *((f"bound by {word}", times(binding == word)) for word in CONSTRAINTS if (binding == word).any()),
        *((f"as {word}", times(dtype == word)) for word in DTYPES if (dtype == word).any()),
    ]
    return _table(columns, len(run.devices))


def _table(columns: Sequence[Column], count: int) -> Html:
    """Return a table with a row per number below ``count``, or per n-th."""
    rows = range(0, count, -(-count // MOST_ROWS) or 1)
    return table([name for name, _ in columns], [[cell(n) for _, cell in columns] for n in rows])


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


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")
