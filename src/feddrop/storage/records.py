"""The records of a round and of its devices. Nothing read from a file is trusted."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Self

from feddrop.config.parsing import json_value
from feddrop.config.train import GROWN
from feddrop.errors import RunError, clean

_ABSENT: tuple[Any, ...] = (None, "", {}, ())
WORST = "worst_decile"
"""The metric that holds the mean accuracy of the worst tenth of the devices."""
LATE = "late"
"""Status of a device whose update counts although its simulated latency exceeds the deadline."""
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
            ``"left out"``; or why its update was refused.
        formula_latency_s: seconds by the paper's formula, if the run uses measured frames.
        formula_energy_j: joules by the paper's formula, likewise.
        measured_latency_s: seconds from measured frames, if the run uses the formula.
        measured_energy_j: joules from measured frames, likewise.
        tx_power_w: transmit power in watts, if the allocator chose it.
        cpu_hz: CPU clock in hertz, likewise.
        dtype: how its values travelled, if chosen per device: ``"float32"``, ``"float16"`` or ``"int8"``.
        suspicious: why its update looks suspicious; None if it does not.
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

    _rare: ClassVar[frozenset[str]] = frozenset(
        {"formula_latency_s", "formula_energy_j", "measured_latency_s", "measured_energy_j"}
        | {"tx_power_w", "cpu_hz", "dtype", "suspicious"}
    )

    @property
    def usable(self) -> bool:
        """Whether the device returned a usable update, in time or late."""
        return self.status in ("ok", LATE)

    @property
    def took_part(self) -> bool:
        """Whether the device took part in the round, that is, was not left out."""
        return self.status != "left out"

    @classmethod
    def from_json(cls, entry: Any, where: str = "a device") -> Self:
        """Read an entry; unknown keys are ignored, wrong values are a RunError that names ``where``."""
        return cls(device=integer(entry, "device", where), **_values(cls, entry, where, ("device",)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord(_Record):
    """What happened in a round: one line of ``metrics.jsonl``.

    Attributes:
        round: its number, from 1.
        train_loss: mean over the samples of all devices whose update was valid, including those that Krum rejected.
        test_loss: of the full model on the test set; None if it was not evaluated or is not finite.
        test_accuracy: from 0 to 1, likewise; None also if the outputs are not class scores.
        val_loss: of the full model on the validation samples; None without ``data.validation``.
        val_accuracy: likewise.
        push_bytes: bytes of all frames to devices.
        pull_bytes: bytes of all frames from devices.
        latency_s: seconds of the slowest device, simulated or measured by the server; None without a radio.
        energy_j: joules of all devices, simulated; None without a radio.
        wall_s: seconds of wall time that the round took.
        deadline_s: the deadline in force; None without a radio.
        objective: the allocator's objective, over the devices that take part; None without a radio.
        charged_objective: the objective plus 1/(1-θ) for each device left out; None if none is.
        remark: ``"ideal: ignores the band"`` for the scheme ``"ideal"``; else None.
        metrics: custom metrics by name.
        device_accuracy: accuracy of every device of the run, if it was measured; None where it is unknown.
        devices: one entry per device that took part or was left out.
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
    deadline_s: float | None = None
    objective: float | None = None
    charged_objective: float | None = None
    remark: str | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    device_accuracy: tuple[float | None, ...] = ()
    devices: tuple[DeviceRecord, ...] = ()

    _rare: ClassVar[frozenset[str]] = frozenset(
        {"metrics", "val_loss", "val_accuracy", "device_accuracy", "charged_objective", "remark"}
    )

    @classmethod
    def from_json(cls, line: Any, where: str = "a record") -> Self:
        """Read a line; unknown keys are ignored, wrong values are a RunError that names ``where``."""
        if problem := _malformed(line):
            raise RunError(f"{where}{problem}. {_EDITED}")
        metrics, of_devices = line.get("metrics") or {}, line.get("device_accuracy") or []
        return cls(
            round=integer(line, "round", where),
            metrics={str(name): number(metrics, name, where) for name in metrics},
            device_accuracy=tuple(number(dict(enumerate(of_devices)), n, where) for n in range(len(of_devices))),
            devices=tuple(DeviceRecord.from_json(entry, where) for entry in line["devices"]),
            **_values(cls, line, where, ("round", "metrics", "device_accuracy", "devices")),
        )

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
        if self.test_loss is None:
            return False
        return not math.isfinite(self.test_loss) or self.test_loss > GROWN * max(1.0, self.train_loss or 0.0)

    def scalars(self) -> dict[str, float]:
        """Return every known number of the round by name, custom metrics included."""
        found = {key: self[key] for key in self if key not in _NOT_SCALAR}
        rates = [device.rate for device in self.devices if device.took_part and device.rate is not None]
        found |= {"devices": len([d for d in self.devices if d.took_part])}
        found |= {"mean_rate": sum(rates) / len(rates) if rates else None, **self.metrics}
        return {key: float(value) for key, value in found.items() if value is not None}


_NOT_SCALAR = ("round", "remark", "metrics", "device_accuracy", "devices")


def _malformed(line: Any) -> str:
    """Return what is wrong with the structure of a line; empty if nothing."""
    if not isinstance(line, Mapping) or not isinstance(line.get("devices"), list | tuple):
        return " must be an object with a round number and a list of devices"
    if not isinstance(metrics := line.get("metrics") or {}, Mapping):
        return f": 'metrics' is {metrics!r:.60}; it must be an object of numbers"
    if not isinstance(of_devices := line.get("device_accuracy") or [], list | tuple):
        return f": 'device_accuracy' is {of_devices!r:.60}; it must be a list of numbers"
    if wrong := [entry for entry in line["devices"] if not isinstance(entry, Mapping)]:
        return f": every device must be an object, not {wrong[0]!r:.60}"
    numbers = [one for entry in line["devices"] if isinstance(one := entry.get("device"), int)]
    if len(set(numbers)) < len(numbers):
        return f": device {max(numbers, key=numbers.count)} appears twice in one round"
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


def _values(cls: Any, item: Mapping[str, Any], where: str, but: tuple[str, ...]) -> dict[str, Any]:
    """Return the known fields of a record, converted to their types."""
    found: dict[str, Any] = {}
    for name, kind in kinds(cls).items():
        if item.get(name) is None or name in but:
            continue
        if kind == "str":
            found[name] = str(item[name])
        elif (value := number(item, name, where)) is not None:
            found[name] = int(value) if kind == "int" else value
    return found
