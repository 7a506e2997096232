"""The records of a round and of its devices. Nothing read from a file is trusted."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Self

from feddrop.config.display import html_table, short
from feddrop.config.parsing import json_value
from feddrop.config.train import GROWN
from feddrop.errors import RunError, clean

_ABSENT: tuple[Any, ...] = (None, "", {}, ())
WORST = "worst_decile"
"""The metric that holds the mean accuracy of the worst tenth of the devices."""
UNTRAINED = "untrained"
"""The metric that holds the share of the trainable parameters that no device has held so far; absent if 0."""
KEPT_AT = "kept_at_"
"""Prefix of the metrics that hold the share of all values that a sub-model at a given rate keeps."""
DRAWS = 5
"""Random sub-models of a rate whose results are averaged; one if all draws of a method are equal."""
LATE = "late"
"""Status of a device whose update counts although its simulated latency exceeds the deadline."""
LOST = "lost"
"""Prefix of the status of a device whose update was lost on the way."""
DROPPED, VANISHED, STALE = UNANSWERED = ("dropped", "vanished", "stale")
"""Status under a virtual clock of a device that was cancelled because the server had enough answers, of one that went
offline during its job, and of an update that was older than ``clock.max_staleness``."""
_EDITED = "Was it edited by hand?"


class _Record(Mapping[str, Any]):
    """A record whose fields can be read as attributes or, as in its line of JSON, by key."""

    __slots__: tuple[str, ...] = ()
    _rare: ClassVar[frozenset[str]] = frozenset()
    """Fields that are left out if they are empty."""

    def __getitem__(self, key: str) -> Any:
        if key not in self.__slots__:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return (key for key in self.__slots__ if key not in self._rare or getattr(self, key) not in _ABSENT)

    def __contains__(self, key: object) -> bool:
        return any(key == one for one in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values; None for unknown and non-finite numbers."""
        return {key: json_value(self[key]) for key in self}


def outcome_of(status: str) -> str:
    """Return the kind of a device's status: without the reason of a loss or a refusal."""
    if status in ("ok", LATE, "left out", *UNANSWERED):
        return status
    return LOST if status.startswith(f"{LOST}:") else "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord(_Record):
    """What one device did in a round.

    Attributes:
        device: its number, from 0.
        rate: dropout rate γ.
        share: share ρ of the bandwidth; None without a radio.
        samples: number of samples it trained on.
        push_bytes: bytes of the frames sent to it.
        pull_bytes: bytes of the frames received from it.
        latency_s: seconds it took: simulated, from measured frames or by the formula, whichever the run uses; on real
            devices, measured by the server; None without a radio.
        energy_j: joules it used, likewise.
        binding: the active limit: ``"deadline"``, ``"energy"``, ``"deadline+energy"``, ``"rate cap"`` or ``"none"``;
            None without a radio.
        loss: mean training loss.
        status: ``"ok"``; ``"late"`` if its update counts although its simulated latency exceeds the deadline;
            ``"left out"``; ``"lost: ..."`` if its update was lost on the way, and why; under a virtual clock,
            ``"dropped"``, ``"vanished"`` or ``"stale"``; or why its update was refused.
        formula_latency_s: seconds by the paper's formula, if the run uses measured frames.
        formula_energy_j: joules by the paper's formula, likewise.
        measured_latency_s: seconds from measured frames, if the run uses the formula.
        measured_energy_j: joules from measured frames, likewise.
        tx_power_w: transmit power in watts, if it changes from round to round: chosen by the allocator, or drawn.
        cpu_hz: CPU clock in hertz, likewise.
        dtype: how its values travelled, if chosen per device: ``"float32"``, ``"float16"`` or ``"int8"``.
        suspicious: why its update looks suspicious, and how surely; None if it does not.
        update_size: root mean square of its update, in the units of the network's weights.
        uplink_gain: power gain |h|² from the device to the server; None without a radio.
        downlink_gain: power gain |h|² from the server to the device.
        uplink_efficiency: bit/s/Hz in the device's share of the band.
        downlink_efficiency: likewise, to the device.
        flops: counted FLOPs of its training, forward and backward.
        push_s: seconds to receive the subnet; ``push_s + compute_s + pull_s`` is ``latency_s``.
        compute_s: seconds to train it.
        pull_s: seconds to send it back.
        transmissions: how often its upload was sent on average, which ``pull_s`` includes; None for once.
        start_s: virtual time at which its job started; None under the clock ``"deadline"``.
        staleness: server steps between the start of its job and its end, likewise.
    """

    device: int
    rate: float | None = None
    share: float | None = None
    samples: int = 0
    push_bytes: int = 0
    pull_bytes: int = 0
    latency_s: float | None = None
    energy_j: float | None = None
    binding: str | None = None
    loss: float | None = None
    status: str = "ok"
    formula_latency_s: float | None = None
    formula_energy_j: float | None = None
    measured_latency_s: float | None = None
    measured_energy_j: float | None = None
    tx_power_w: float | None = None
    cpu_hz: float | None = None
    dtype: str | None = None
    suspicious: str | None = None
    update_size: float | None = None
    uplink_gain: float | None = None
    downlink_gain: float | None = None
    uplink_efficiency: float | None = None
    downlink_efficiency: float | None = None
    flops: float | None = None
    push_s: float | None = None
    compute_s: float | None = None
    pull_s: float | None = None
    transmissions: float | None = None
    start_s: float | None = None
    staleness: int | None = None

    _rare: ClassVar[frozenset[str]] = frozenset(
        {"formula_latency_s", "formula_energy_j", "measured_latency_s", "measured_energy_j"}
        | {"tx_power_w", "cpu_hz", "dtype", "suspicious", "uplink_gain", "downlink_gain", "uplink_efficiency"}
        | {"downlink_efficiency", "flops", "push_s", "compute_s", "pull_s", "update_size", "start_s", "staleness"}
        | {"transmissions"}
    )

    @property
    def usable(self) -> bool:
        """Whether the device returned a usable update, in time or late."""
        return self.status in ("ok", LATE)

    @property
    def took_part(self) -> bool:
        """Whether the device took part in the round, that is, was not left out."""
        return self.status != "left out"

    @property
    def outcome(self) -> str:
        """``"ok"``, ``"late"``, ``"left out"`` or, whatever the reason, ``"lost"`` or ``"refused"``."""
        return outcome_of(self.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord(_Record):
    """What happened in a round: one line of ``metrics.jsonl``, and its rows in the table of devices.

    Attributes:
        round: its number, from 1.
        train_loss: mean over the samples of all devices whose update was valid, including those that Krum rejected.
        test_loss: of the full model on the test set; None if it was not evaluated or is not finite.
        test_accuracy: from 0 to 1, likewise; None also if the outputs are not class scores.
        val_loss: of the full model on the validation samples; None without ``data.validation``.
        val_accuracy: likewise.
        push_bytes: bytes of all frames to devices.
        pull_bytes: bytes of all frames from devices.
        latency_s: seconds that the round took: those of the slowest device, simulated or measured by the server; under
            a virtual clock, those since the last server step. None without a radio.
        time_s: seconds since the start of the run, likewise: the sum of ``latency_s``.
        energy_j: joules of all devices, simulated; None without a radio.
        wall_s: seconds of wall time that the round took.
        deadline_s: the deadline in force; None without a radio.
        objective: the allocator's objective, over the devices that take part; None without a radio.
        charged_objective: the objective plus 1/(1-θ) for each device left out; None if none is.
        band_price: price μ of the whole band in units of the objective; None unless ``radio.absent_cost`` is set.
        gap: bound on how much better the best choice of devices would be, relative to the objective; likewise.
        remark: what was unusual about the plan: ``"ideal: ignores the band"``, or a stretched deadline under Flower.
        counts: number of devices by :attr:`DeviceRecord.outcome`, and of suspicious updates; without zeros.
        mean_rate: mean dropout rate of the devices that took part.
        metrics: custom metrics by name.
        device_accuracy: accuracy of every device of the run, if it was measured; None where it is unknown.
        devices: one entry per device that took part or was left out; a sample of them if ``record_devices`` says so. In
            a loaded run, they are read from the files at the first use.
    """

    round: int
    train_loss: float | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None
    val_loss: float | None = None
    val_accuracy: float | None = None
    push_bytes: int = 0
    pull_bytes: int = 0
    latency_s: float | None = None
    energy_j: float | None = None
    wall_s: float | None = None
    time_s: float | None = None
    deadline_s: float | None = None
    objective: float | None = None
    charged_objective: float | None = None
    band_price: float | None = None
    gap: float | None = None
    remark: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    mean_rate: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    device_accuracy: tuple[float | None, ...] = ()
    devices: Sequence[DeviceRecord] = ()

    _rare: ClassVar[frozenset[str]] = frozenset(
        {
            "counts",
            "metrics",
            "val_loss",
            "val_accuracy",
            "device_accuracy",
            "charged_objective",
            "remark",
            "band_price",
            "gap",
            "time_s",
        }
    )

    @classmethod
    def from_json(cls, line: Any, where: str = "a record") -> Self:
        """Read a line, without devices; unknown keys are ignored, wrong values are a RunError naming ``where``."""
        if problem := _malformed(line):
            raise RunError(f"{where}{problem}. {_EDITED}")
        metrics, of_devices = line.get("metrics") or {}, line.get("device_accuracy") or []
        counts = line.get("counts") or {}
        return cls(
            round=integer(line, "round", where),
            counts={str(name): integer(counts, name, where) for name in counts},
            metrics={str(name): number(metrics, name, where) for name in metrics},
            device_accuracy=tuple(number(dict(enumerate(of_devices)), n, where) for n in range(len(of_devices))),
            **_values(cls, line, where),
        )

    def __repr__(self) -> str:
        return f"RoundRecord({', '.join(f'{key}={value}' for key, value in self._shown())})"

    def _repr_html_(self) -> str:
        """Return the known numbers as a table of one row."""
        keys, values = zip(*self._shown(), strict=True)
        return html_table(f"Round {self.round}", keys[1:], [values[1:]])

    def _shown(self) -> list[tuple[str, str]]:
        """Return the known numbers, custom metrics and the number of devices, without reading the devices."""
        numbers = {key: short(int(value) if key in _COUNTED else value) for key, value in self.scalars().items()}
        remark = {"remark": self.remark} if self.remark else {}
        return [*({"round": str(self.round)} | numbers | remark).items()]

    def to_line(self) -> dict[str, Any]:
        """Return the round's line of ``metrics.jsonl``: the record without its devices, as JSON values."""
        return {key: json_value(self[key]) for key in self if key != "devices"}

    def to_json(self) -> dict[str, Any]:
        """Return the record with its devices as JSON values; None for unknown and non-finite numbers."""
        return self.to_line() | {"devices": [device.to_json() for device in self.devices]}

    @property
    def score(self) -> float | None:
        """What chooses the best round, higher is better: the accuracy, or else the negative loss.

        On the validation samples if there are any, otherwise on the test set; None if neither number is finite.
        """
        validated = self.val_loss is not None or self.val_accuracy is not None
        part = (self.val_accuracy, self.val_loss) if validated else (self.test_accuracy, self.test_loss)
        accuracy, loss = (value if value is not None and math.isfinite(value) else None for value in part)
        if accuracy is not None:
            return accuracy
        return None if loss is None else -loss

    @property
    def diverged(self) -> bool:
        """Whether training diverged: the test loss is not finite, or far above the training loss."""
        if self.test_loss is None:  # beside an accuracy, it was not finite when it was saved
            return self.test_accuracy is not None
        return not math.isfinite(self.test_loss) or self.test_loss > GROWN * max(1.0, self.train_loss or 0.0)

    def scalars(self) -> dict[str, float]:
        """Return every known number of the round by name, custom metrics included."""
        found = {key: self[key] for key in self if key not in NESTED} | {"devices": self.took_part, **self.metrics}
        return {
            key: float(value) for key, value in found.items() if value is not None and key not in ("round", "remark")
        }

    @property
    def took_part(self) -> int:
        """Number of devices that took part, that is, were not left out."""
        return sum(self.counts.get(outcome, 0) for outcome in ("ok", LATE, LOST, "refused", *UNANSWERED))


_COUNTED = ("push_bytes", "pull_bytes", "devices")
NESTED = ("counts", "metrics", "device_accuracy", "devices")
"""Fields of a round that are not one number or word."""


def _malformed(line: Any) -> str:
    """Return what is wrong with the structure of a line; empty if nothing."""
    if not isinstance(line, Mapping):
        return " must be an object with a round number"
    for name in ("counts", "metrics"):
        if not isinstance(value := line.get(name) or {}, Mapping):
            return f": {name!r} is {value!r:.60}; it must be an object of numbers"
    if not isinstance(of_devices := line.get("device_accuracy") or [], list | tuple):
        return f": 'device_accuracy' is {of_devices!r:.60}; it must be a list of numbers"
    return ""


def integer(item: Mapping[str, Any], key: str, where: str) -> int:
    """Return ``item[key]``, a required 64-bit integer."""
    value = item.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return value
    raise RunError(f"{where}: {key!r} is {_short(value)}; it must be an integer. {_EDITED}")


def number(item: Mapping[Any, Any], key: Any, where: str) -> float | None:
    """Return ``item[key]``, a number; None if it is absent, null or (a loss that diverged) infinite."""
    value = item.get(key)
    if value is None:
        return None
    if not isinstance(value, float | int) or isinstance(value, bool) or not _fits(value):
        raise RunError(f"{where}: {clean(repr(key), 60)} is {_short(value)}; it must be a number or null. {_EDITED}")
    return value if math.isfinite(value) else None


def _short(value: Any) -> str:
    try:
        return clean(repr(value), 60)
    except (ValueError, RecursionError):  # thousands of digits or brackets
        return "too large to show"


def _fits(value: float) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True


@cache
def kinds(cls: Any) -> dict[str, str]:
    """Return the type of each field of a record, without its ``| None``: ``"int"``, ``"float"`` or ``"str"``."""
    return {one.name: str(one.type).removesuffix(" | None") for one in dataclasses.fields(cls)}


COLUMNS = {"round": "int", **kinds(DeviceRecord)}
"""The type of each column of the table of devices."""


def _values(cls: Any, item: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the numbers and words of a record except its round, converted to their types."""
    found: dict[str, Any] = {}
    for name, kind in kinds(cls).items():
        if item.get(name) is None or name == "round" or name in NESTED:
            continue
        if kind == "str":
            found[name] = str(item[name])
        elif (value := number(item, name, where)) is not None:
            found[name] = int(value) if kind == "int" else value
    return found
