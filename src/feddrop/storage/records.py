"""What a round leaves behind, typed once. Nothing read from a file is trusted."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

from feddrop.config.parsing import json_value
from feddrop.config.train import GROWN
from feddrop.errors import RunError, clean

_EDITED = "Was it edited by hand?"


class _Record(Mapping[str, Any]):
    """A record reads by attribute and, as the line of JSON that it is, by key."""

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys():
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._keys() if key not in self._rare() or getattr(self, key))

    def __contains__(self, key: object) -> bool:
        return any(key == one for one in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @classmethod
    def _keys(cls) -> tuple[str, ...]:
        return tuple(cls.__slots__)

    @classmethod
    def _rare(cls) -> frozenset[str]:
        return frozenset()

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values, ready for JSON: None for what is not known or not finite."""
        return {key: json_value(self[key]) for key in self}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord(_Record):
    """What one device did in a round.

    Attributes:
        device: its number, from 0.
        rate: dropout rate γ.
        share: share ρ of the band; None without a radio.
        samples: that it trained on.
        push_bytes: bytes of frames down to it.
        pull_bytes: bytes of frames up from it.
        latency_s: seconds, simulated, by the way of counting that the run uses; by the server's clock where devices are
            real; None without a radio.
        energy_j: joules, likewise.
        binding: the limit that it runs up against: ``"deadline"``, ``"energy"``, ``"deadline+energy"``, ``"rate cap"``
            or ``"none"``; None without a radio.
        loss: mean training loss.
        status: ``"ok"``, ``"left out"``, or why its update was refused.
        formula_latency_s: seconds by the paper's formula, where the run counts by what was measured.
        formula_energy_j: joules, likewise.
        measured_latency_s: seconds as measured, where the run counts by the formula.
        measured_energy_j: joules, likewise.
        tx_power_w: watts that it sends with, where the allocator chose them.
        cpu_hz: clock that it computes at, likewise.
        dtype: how its values travelled, if that was chosen: ``"float32"``, ``"float16"`` or ``"int8"``.
        suspicious: why its update stands out; None if it does not.
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

    @classmethod
    def _rare(cls) -> frozenset[str]:
        return _RARE

    @property
    def took_part(self) -> bool:
        """Whether the device was not left out."""
        return self.status != "left out"

    @classmethod
    def from_json(cls, entry: Any, where: str = "a device") -> Self:
        """Read an entry; keys that are not known are passed over, wrong values are a RunError."""
        if not isinstance(entry, Mapping):
            raise RunError(f"{where}: every device must be an object, not {entry!r:.60}. {_EDITED}")
        return cls(device=whole(entry, "device", where), **_values(cls, entry, where, ("device",)))


_RARE = frozenset(
    {"formula_latency_s", "formula_energy_j", "measured_latency_s", "measured_energy_j"}
    | {"tx_power_w", "cpu_hz", "dtype", "suspicious"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord(_Record):
    """What a round left behind: a line of ``metrics.jsonl``.

    Attributes:
        round: its number, from 1.
        train_loss: mean over the samples of the devices that returned a usable update, used or left out by Krum.
        test_loss: of the whole network on the test set; None where it was not evaluated, or is not finite.
        test_accuracy: 0 to 1, likewise; None too where the loss is not cross-entropy.
        push_bytes: bytes of all frames down.
        pull_bytes: bytes of all frames up.
        latency_s: seconds of the slowest device, simulated, or by the server's clock; None without a radio.
        energy_j: joules of all devices, simulated; None without a radio.
        wall_s: seconds that the round took here.
        deadline_s: the deadline in force; None without a radio.
        objective: what the allocator minimises; None without a radio.
        metrics: own metrics by name.
        devices: an entry for every device that took part or was left out.
    """

    round: int
    train_loss: float | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None
    push_bytes: int = 0
    pull_bytes: int = 0
    latency_s: float | None = None
    energy_j: float | None = None
    wall_s: float | None = None
    deadline_s: float | None = None
    objective: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    devices: tuple[DeviceRecord, ...] = ()

    @classmethod
    def _rare(cls) -> frozenset[str]:
        return frozenset({"metrics"})

    @classmethod
    def from_json(cls, line: Any, where: str = "a record") -> Self:
        """Read a line; keys that are not known are passed over, wrong values are a RunError that says where."""
        if not isinstance(line, Mapping) or not isinstance(line.get("devices"), list | tuple):
            raise RunError(f"{where} must be an object with a round number and a list of devices. {_EDITED}")
        devices = tuple(DeviceRecord.from_json(entry, where) for entry in line["devices"])
        seen: set[int] = set()
        for device in devices:
            if device.device in seen:
                raise RunError(f"{where}: device {device.device} appears twice in one round. {_EDITED}")
            seen.add(device.device)
        own = line.get("metrics") or {}
        if not isinstance(own, Mapping):
            raise RunError(f"{where}: 'metrics' is {own!r:.60}; it must be an object of numbers. {_EDITED}")
        return cls(
            round=whole(line, "round", where),
            metrics={str(name): number(own, name, where) for name in own},
            devices=devices,
            **_values(cls, line, where, ("round", "metrics", "devices")),
        )

    @property
    def score(self) -> float | None:
        """How good the network is on the test set, higher is better: accuracy, or else minus the loss; if finite."""
        if self.test_accuracy is not None and math.isfinite(self.test_accuracy):
            return self.test_accuracy
        return -self.test_loss if self.test_loss is not None and math.isfinite(self.test_loss) else None

    @property
    def diverged(self) -> bool:
        """Whether training ran away in this round: the test loss is no number, or far above the training loss."""
        if self.test_loss is None:
            return False
        return not math.isfinite(self.test_loss) or self.test_loss > GROWN * max(1.0, self.train_loss or 0.0)

    def scalars(self) -> dict[str, float]:
        """Return every number of the round that is known, by name; own metrics under theirs."""
        found = {key: self[key] for key in self if key not in ("round", "metrics", "devices")}
        rates = [device.rate for device in self.devices if device.took_part and device.rate is not None]
        found |= {"devices": len([d for d in self.devices if d.took_part])}
        found |= {"mean_rate": sum(rates) / len(rates) if rates else None, **self.metrics}
        return {key: float(value) for key, value in found.items() if value is not None}


def whole(item: Mapping[str, Any], key: str, where: str) -> int:
    """Return ``item[key]``, a whole number of 64 bits that must be there."""
    value = item.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return value
    raise RunError(f"{where}: {key!r} is {_show(value)}; it must be a whole number. {_EDITED}")


def number(item: Mapping[str, Any], key: str, where: str) -> float | None:
    """Return ``item[key]``, a number, or None for what is none: absent, null, or (a loss that ran away) infinite."""
    value = item.get(key)
    if value is None:
        return None
    if not isinstance(value, float | int) or isinstance(value, bool) or not _fits(value):
        raise RunError(f"{where}: {clean(repr(key), 60)} is {_show(value)}; it must be a number or null. {_EDITED}")
    return value if math.isfinite(value) else None


def _show(value: Any) -> str:
    try:
        return clean(repr(value), 60)
    except (ValueError, RecursionError):  # thousands of digits, or of brackets
        return "too large to show"


def _fits(value: float) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True


@cache
def kinds(cls: Any) -> dict[str, str]:
    """Return what the fields of a record hold: ``"int"``, ``"float"``, ``"str"``, whether or not they may be None."""
    return {one.name: str(one.type).removesuffix(" | None") for one in dataclasses.fields(cls)}


def _values(cls: Any, item: Mapping[str, Any], where: str, but: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a record that are there, each of its type."""
    found: dict[str, Any] = {}
    for name, kind in kinds(cls).items():
        value = item.get(name)
        if value is None or name in but:
            continue
        if kind == "str":
            found[name] = str(value)
        else:
            checked = number(item, name, where)
            if checked is not None:
                found[name] = int(checked) if kind == "int" else checked
    return found
