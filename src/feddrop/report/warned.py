"""What a run warned of: before its first round, in its rounds, and when it was resumed under other versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from feddrop.config import RunConfig, Server
from feddrop.errors import ConfigError, clean
from feddrop.report.html import Html, el, section
from feddrop.report.quantities import how_many
from feddrop.report.runlog import RunLog
from feddrop.storage.manifest import resumptions
from feddrop.storage.records import LATE, RoundRecord

LONGEST = 1_000
"""Longest line that is shown, in characters."""
MOST_DEVICES = 5
"""Devices that a line names."""


def remarks(config: RunConfig, highest: float, late: bool, accuracy: float) -> Iterator[str]:
    """Yield one line per thing in a round that is probably a mistake; the run logs each line once.

    Args:
        config: the configuration.
        highest: the highest rate of the devices that took part.
        late: whether devices were late.
        accuracy: the test accuracy, 0 if unknown.
    """
    if advice := config.method.remark(highest):
        yield advice
    if late:
        yield "some devices are late: their latency exceeds the deadline, but their updates count."
    if accuracy > 1.0:
        yield "the test accuracy is above 1; the metric 'accuracy' must be a share from 0 to 1, not a percentage."


def count_suspects(records: Iterable[RoundRecord]) -> Counter[int]:
    """Return how many suspicious updates each device sent."""
    return Counter(one.device for record in records for one in record.devices if one.suspicious)


def suspects(devices: Mapping[int, int], server: Server) -> str:
    """Return one line on the devices that sent suspicious updates, given how many each sent; empty if none did."""
    if not devices:
        return ""
    most = sorted(devices, key=lambda device: (-devices[device], device))[:MOST_DEVICES]
    named = ", ".join(f"{device} ({how_many(devices[device], 'time')})" for device in most)
    more = f" and {len(devices) - len(most):,} more" if len(devices) > len(most) else ""
    advice = "server.filter left them out" if server.filter else "server.filter = true leaves such updates out"
    return f"Suspicious updates came from device {named}{more}; {advice}."


def divergence_advice(devices: Mapping[int, int], server: Server) -> str:
    """Return what to do if training diverged: first about suspicious updates that were used, if there were any."""
    if not devices or server.filter:
        return server.advice
    return f"{suspects(devices, server)} If these devices are honest: {server.advice[0].lower()}{server.advice[1:]}"


def warnings_section(run: RunLog) -> Html:
    """Return what the run warned of; empty if it did not."""
    lines = [el("li", line) for line in dict.fromkeys(_warnings(run))]
    return section("Warnings", "", el("div", el("ul", *lines), class_="panel warning wide") if lines else Html(""))


def _warnings(run: RunLog) -> Iterable[str]:
    known = run.info.get("warnings")
    for line in (*(known if isinstance(known, list) else ()), *_in_rounds(run), *resumptions(run.info)):
        yield clean(line, LONGEST)


def _in_rounds(run: RunLog) -> Iterable[str]:
    """Return the remarks on rounds, each with the first round that it was made in."""
    try:
        config = RunConfig.from_toml(str(run.info["config"]))
    except (ConfigError, KeyError):  # a folder without a valid run.json
        return ()
    highest = np.nan_to_num(run.values("rate")).max(axis=1, initial=0.0)
    late = np.asarray((run.words["status"] == LATE).any(axis=1))
    accuracy = np.nan_to_num(run.by_round["test_accuracy"])
    first: dict[str, int] = {}
    for number, *seen in zip(run.rounds, highest, late, accuracy, strict=True):
        for line in remarks(config, *seen):
            first.setdefault(line, int(number))
    return [f"round {number}: {line}" for line, number in first.items()]
