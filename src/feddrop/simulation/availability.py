"""When devices are online, in virtual seconds: always, by a trace, by the time of day, or while they charge.

Spans are half-open: a device is online from ``start`` up to, but not at, ``end``.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from feddrop.config import Clock
from feddrop.errors import ConfigError
from feddrop.radio.tables import brief, read_table
from feddrop.seeds import derive, generator

_DRAWN = 64
"""How many charging times are drawn at once."""


class Span(NamedTuple):
    """A time in which a device is online."""

    start: float
    end: float


class Availability:
    """When each device is online; a function of the seed and the configuration alone, so nothing of it is saved."""

    def __init__(self, config: Clock, devices: int, seed: int) -> None:
        self._config, self._seed = config, seed
        self._period = config.day_s if config.pattern == "diurnal" else config.period_s
        self._spans: list[list[Span]] | None = None
        if config.trace:
            self._spans = _read_trace(Path(config.trace), devices, config.period_s)
        elif config.pattern == "diurnal" and config.online_share < 1:
            starts = generator(derive(seed, "diurnal")).random(devices) * config.day_s
            self._spans = [[Span(start, start + config.online_share * config.day_s)] for start in starts.tolist()]
        elif config.pattern == "charging":
            self._spans = [[] for _ in range(devices)]
        self._drawn = [0] * devices

    def online(self, device: int, time: float) -> bool:
        """Return whether a device is online."""
        return self.next_available(device, time) == time

    def next_available(self, device: int, time: float) -> float:
        """Return the time itself if a device is online, otherwise the later time when it is; infinity if never."""
        span = self._span(device, time)
        return math.inf if span is None else max(time, span.start)

    def until(self, device: int, time: float) -> float:
        """Return when a device that is online goes offline; infinity if never."""
        span = self._span(device, time)
        return math.inf if span is None else span.end

    def _span(self, device: int, time: float) -> Span | None:
        """Return the span that holds a time, or the next one; None after the last."""
        if self._spans is None:
            return Span(0.0, math.inf)
        spans = self._spans[device]
        if self._config.pattern == "charging":
            self._draw(device, spans, time)
        if not spans or not self._period or spans[-1].end == math.inf:
            at = bisect.bisect_right(spans, time, key=lambda span: span.end)
            return spans[at] if at < len(spans) else None
        cycle = math.floor(time / self._period)
        for shift in ((cycle - 1) * self._period, cycle * self._period, (cycle + 1) * self._period):
            for start, end in spans:
                if shift + end > time:
                    return Span(max(0.0, shift + start), shift + end)
        raise AssertionError("a trace that repeats has a span in every period")

    def _draw(self, device: int, spans: list[Span], time: float) -> None:
        """Draw charges until one ends after a time. The first charge begins at a random point of its cycle."""
        on, off = self._config.online_s, self._config.offline_s
        while not spans or spans[-1].end <= time:
            drawn = generator(derive(self._seed, "charging", device, self._drawn[device]))
            self._drawn[device] += 1
            last = spans[-1].end if spans else -float(drawn.random()) * (on + off)
            for gap, length in drawn.exponential(size=(_DRAWN, 2)).tolist():
                start = last + gap * off
                last = start + length * on
                if last > 0:
                    spans.append(Span(max(0.0, start), last))


def _read_trace(path: Path, devices: int, period: float) -> list[list[Span]]:
    """Read rows of device, from and to, and join spans that touch."""
    columns, rows = read_table(path, "trace")
    if missing := {"device", "from", "to"} - set(columns):
        raise ConfigError(f"{str(path)!r} has no column {min(missing)}; it must have the columns device, from, to.")
    found: list[list[Span]] = [[] for _ in range(devices)]
    for row in rows:
        device, span = row.whole("device", 0), Span(row.number("from"), row.number("to"))
        if device >= devices:
            raise ConfigError(f"{row.where}: device is {brief(device)}; the devices are 0 to {devices - 1}.")
        if not 0 <= span.start < span.end:
            raise ConfigError(
                f"{row.where}: from is {span.start:g} and to is {span.end:g}; from must be at least 0, and to later."
            )
        if period and span.end > period:
            raise ConfigError(f"{row.where}: to is {span.end:g}; it must be at most clock.period_s, {period:g}.")
        found[device].append(span)
    return [_repeated(_joined(sorted(spans)), period) for spans in found]


def _repeated(spans: list[Span], period: float) -> list[Span]:
    """Join the last span of a period with the first of the next one, if they touch."""
    if not period or not spans or spans[0].start > 0 or spans[-1].end < period:
        return spans
    if len(spans) == 1:
        return [Span(0.0, math.inf)]
    return [*spans[1:-1], Span(spans[-1].start, period + spans[0].end)]


def _joined(spans: Sequence[Span]) -> list[Span]:
    joined: list[Span] = []
    for span in spans:
        if joined and span.start <= joined[-1].end:
            joined[-1] = Span(joined[-1].start, max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return joined
