"""``[clock]``: which answers the server waits for, in virtual seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import Settings, setting

KINDS = ("deadline", "first", "window", "buffered")
COHORT = ("first", "window")
"""Clocks under which a server step starts with a cohort of devices."""
EVENTS = (*COHORT, "buffered")
"""Clocks that simulate every download, computation and upload."""
PATTERNS = ("always", "diurnal", "charging")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Clock(Settings):
    """Which answers the server waits for, how the band is shared, and when devices are online.

    Attributes:
        kind: ``"deadline"`` waits for every device of a round; ``"first"`` for the first ``count`` answers;
            ``"window"`` takes what arrives within ``window_s``; ``"buffered"`` (FedBuff) keeps ``concurrency`` devices
            busy and takes a step after every ``buffer`` answers. All but ``"deadline"`` need ``[radio]``.
        count: number of answers that ``"first"`` waits for, of the devices that ``[participation]`` chooses.
        window_s: length of the window in seconds; 0 for the radio's deadline. It stays open until
            ``server.min_devices`` answers have arrived, and closes early once every device has answered.
        late: what happens to devices that have not answered when the server takes its step: ``"drop"`` cancels them,
            ``"keep"`` lets them answer in a later step.
        buffer: number of answers per server step.
        concurrency: number of devices that are busy at a time; 0 for all.
        sharing: how the band is shared by the devices that are sending at the moment, in each direction: ``"equal"``
            splits it equally, ``"proportional"`` by the shares that the scheme planned, and both re-split it whenever a
            device starts or ends; ``"fixed"`` keeps the planned shares, regardless of who else sends.
        staleness_power: exponent a in the weight (1+τ)^-a of an update that is τ server steps old.
        staleness_on: what the weight of a stale update multiplies: the ``"update"``, so that stale steps are smaller
            (FedBuff), or its ``"weight"`` in the mean.
        max_staleness: updates that are older than this many server steps are discarded; 0 for no limit.
        slowdown: random stragglers: the computation of every job takes exp(σn) times as long, where σ is this number
            and n is drawn per job from the standard normal distribution. Schemes do not know the factor.
        trace: a ``.csv`` file with the columns device (from 0), from and to: the seconds between which a device is
            online. A device may have several rows; one without a row is never online. If empty, ``pattern`` decides.
        period_s: the trace repeats after this many seconds; 0 if it does not.
        pattern: ``"always"`` online; ``"diurnal"``: for the fraction ``online_share`` of every ``day_s``, starting at
            a time drawn per device; ``"charging"``: alternately online and offline for times drawn from exponential
            distributions with the means ``online_s`` and ``offline_s``.
        day_s: seconds of a day.
        online_share: fraction of the day for which a device is online.
        online_s: mean length in seconds of the times when a device charges and is online.
        offline_s: mean length in seconds of the times between them.

    Example:
        >>> import feddrop
        >>> feddrop.RunConfig.from_toml('clock = { kind = "buffered", buffer = 4 }').clock
        Clock(kind='buffered', buffer=4)
    """

    section: ClassVar[str] = "clock"

    kind: str = setting("deadline", choices=KINDS)
    count: int = setting(0, ge=0, only_with={"kind": ("first",)})
    window_s: float = setting(0.0, ge=0, only_with={"kind": ("window",)})
    late: str = setting("drop", choices=("drop", "keep"), only_with={"kind": COHORT})
    buffer: int = setting(10, ge=1, only_with={"kind": ("buffered",)})
    concurrency: int = setting(0, ge=0, only_with={"kind": ("buffered",)})
    sharing: str = setting("equal", choices=("equal", "proportional", "fixed"), only_with={"kind": EVENTS})
    staleness_power: float = setting(0.5, ge=0, only_with={"kind": EVENTS})
    staleness_on: str = setting("update", choices=("update", "weight"), only_with={"kind": EVENTS})
    max_staleness: int = setting(0, ge=0, only_with={"kind": EVENTS})
    slowdown: float = setting(0.0, ge=0, le=10, only_with={"kind": EVENTS})
    trace: str = setting("", file=True, only_with={"kind": EVENTS})
    period_s: float = setting(0.0, ge=0)
    pattern: str = setting("always", choices=PATTERNS, only_with={"kind": EVENTS})
    day_s: float = setting(86_400.0, gt=0, only_with={"pattern": ("diurnal",)})
    online_share: float = setting(0.5, ge=1e-6, le=1, only_with={"pattern": ("diurnal",)})
    online_s: float = setting(3600.0, gt=0, only_with={"pattern": ("charging",)})
    offline_s: float = setting(3600.0, gt=0, only_with={"pattern": ("charging",)})

    @property
    def stale(self) -> bool:
        """Whether an update can be merged after the server has moved on."""
        return self.kind == "buffered" or self.late == "keep"

    @property
    def of_stale(self) -> tuple[str, ...]:
        """The settings of stale updates that differ from their defaults."""
        names = ("late", "staleness_power", "staleness_on", "max_staleness")
        return tuple(name for name in names if getattr(self, name) != self.defaults()[name])

    def problems(self) -> Iterator[str]:
        """Reject a clock without its count, two sources of availability, and settings of stale updates without any."""
        if self.kind == "first" and not self.count:
            yield 'clock.kind is "first", which waits for clock.count answers, but that is 0. Set it, for example to 8.'
        if self.trace and self.pattern != "always":
            yield f"clock.trace and clock.pattern = {self.pattern!r} are both given; give one of them."
        if self.period_s and not self.trace:
            yield f"clock.period_s is {self.period_s:g}, which has no effect without clock.trace. Remove it."
        if self.pattern == "charging" and self.online_s < 1e-6 * self.offline_s:
            yield (
                f"clock.online_s is {self.online_s:g} and clock.offline_s is {self.offline_s:g}, so devices are online "
                "for less than a millionth of the time. Raise online_s, or lower offline_s."
            )
        if self.kind != "deadline" and not self.stale:
            for name in self.of_stale:
                why = "no update is stale with clock.late = 'drop'. Remove it, or set clock.late = 'keep'"
                yield f"clock.{name} is {getattr(self, name)!r}, which has no effect: {why}."
        if self.staleness_on != "update" and not self.staleness_power:
            yield (
                f"clock.staleness_on is {self.staleness_on!r}, which has no effect: with clock.staleness_power = 0, "
                "all updates weigh the same. Remove one of them."
            )
        if self.stale and self.sharing == "fixed":
            yield (
                "clock.sharing is 'fixed', but devices that start at different times would use more than the band. Use "
                "'equal' or 'proportional', or a clock whose devices start together (clock.late = 'drop')."
            )
