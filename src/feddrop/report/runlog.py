"""What a run did, as arrays: what the report, the figures and a notebook read.

Devices may come and go between rounds, so everything by device is aligned by device id: ``[rounds, devices]``, with NaN
(or an empty word) where a device was not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feddrop.config.train import GROWN

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.str_]

ROUND_FIELDS = (
    "train_loss", "test_loss", "test_accuracy", "push_bytes", "pull_bytes", "latency_s", "energy_j", "wall_s",
    "deadline_s",
)  # fmt: skip
DEVICE_FIELDS = (
    "rate", "share", "samples", "push_bytes", "pull_bytes", "latency_s", "energy_j", "loss",
    "formula_latency_s", "formula_energy_j", "measured_latency_s", "measured_energy_j", "tx_power_w", "cpu_hz",
)  # fmt: skip
DEVICE_WORDS = ("binding", "status", "wire")
FULL_VALUE_BYTES = 4
"""A full model is counted as float32."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunLog:
    """What a run did: R rounds, K devices that took part in at least one of them.

    Attributes:
        name: name of the run folder.
        config: the run's configuration, section by section.
        info: facts about the run and its machine (``run.json``); empty if the folder has none.
        rounds: round numbers, ``[R]``.
        devices: device ids, ``[K]``.
        by_round: ``[R]`` each of :data:`ROUND_FIELDS`; NaN where absent.
        by_device: ``[R, K]`` each of :data:`DEVICE_FIELDS`; NaN where absent.
        words: ``[R, K]`` each of :data:`DEVICE_WORDS`; empty where absent. The status is ``"ok"``, ``"left out"`` or
            ``"refused"``.
        refusals: why updates were refused, shortened, and how often.
        deadline_s: the deadline asked for; NaN if there is none.
        budget_j: energy budget of each device, ``[K]``; NaN if there is none.
        class_counts: samples by data partition and class, ``[partitions, classes]``, or None if unknown.
        class_names: a name for every class; empty if unknown.
        metrics: ``[R]`` each of the run's own metrics, by name; NaN where absent.
        suspicious: ``[R, K]``, which updates were marked as suspicious.
        suspicions: why they were, shortened, and how often.
    """

    name: str
    config: Mapping[str, Any]
    info: Mapping[str, Any]
    rounds: Ints
    devices: Ints
    by_round: Mapping[str, Floats]
    by_device: Mapping[str, Floats]
    words: Mapping[str, Words]
    refusals: Mapping[str, int]
    deadline_s: float
    budget_j: Floats
    class_counts: Ints | None
    class_names: tuple[str, ...]
    metrics: Mapping[str, Floats]
    suspicious: npt.NDArray[np.bool_]
    suspicions: Mapping[str, int]

    def __repr__(self) -> str:
        return f"RunLog({self.name!r}, {len(self.rounds)} rounds, {len(self.devices)} devices)"

    def series(self, key: str) -> Floats:
        """Return one of :data:`ROUND_FIELDS`, or the own metric ``"metrics.NAME"``, ``[R]``; NaN where absent."""
        if key.startswith("metrics."):
            return self.metrics.get(key.removeprefix("metrics."), np.full(len(self.rounds), np.nan))
        return self.by_round[key]

    @property
    def diverged(self) -> npt.NDArray[np.bool_]:
        """The rounds in which training ran away, ``[R]``: the test loss was far above the training loss."""
        train, test = self.by_round["train_loss"], self.by_round["test_loss"]
        return test > GROWN * np.fmax(1.0, train)

    @property
    def population(self) -> int:
        """Devices in all, whether or not they ever took part."""
        samples = self.info.get("samples")
        return max(len(self.devices), len(samples) if isinstance(samples, list) else 0)

    @property
    def has_absences(self) -> bool:
        """Whether a device was absent from a round that it was not left out of by the allocator."""
        return self.population > len(self.devices) or bool((self.words["status"] == "").any())

    @property
    def has_radio(self) -> bool:
        """Whether any latency or energy was reported."""
        return any(bool(np.isfinite(self.by_device[key]).any()) for key in ("latency_s", "energy_j"))

    @property
    def traffic(self) -> Floats:
        """Bytes pushed and pulled in each round, ``[R]``."""
        return np.asarray(np.nan_to_num(self.by_round["push_bytes"]) + np.nan_to_num(self.by_round["pull_bytes"]))

    @property
    def full_traffic(self) -> Floats:
        """Bytes of each round, ``[R]``, with full float32 models; NaN if its size is unknown."""
        parameters = self.info.get("parameters")
        if parameters is None:
            return np.full(len(self.rounds), np.nan)
        sent = sum((self.by_device[key] > 0).sum(axis=1) for key in ("push_bytes", "pull_bytes"))
        return np.asarray(sent * float(parameters) * FULL_VALUE_BYTES)

    @property
    def active(self) -> npt.NDArray[np.bool_]:
        """Which device took part in which round, ``[R, K]``: there, and not left out."""
        status = self.words["status"]
        return np.asarray((status != "") & (status != "left out"))

    def values(self, field: str) -> Floats:
        """Return one of :data:`DEVICE_FIELDS` of the devices that took part, ``[R, K]``, NaN elsewhere."""
        return np.where(self.active, self.by_device[field], np.nan)

    def limit(self, field: str) -> Floats:
        """Return what a field must not exceed, ``[R, K]``: deadline in force, energy budget, or NaN for no limit."""
        limits = {"latency_s": self.deadlines[:, None], "energy_j": self.budget_j}
        limit = limits.get(field.removeprefix("measured_"), np.asarray(np.nan))
        return np.broadcast_to(limit, (len(self.rounds), len(self.devices)))

    @property
    def deadlines(self) -> Floats:
        """The deadline in force in each round, ``[R]``: longer than asked for where the policy stretched it."""
        told = self.by_round["deadline_s"]
        return np.where(np.isfinite(told), told, self.deadline_s)

    def measured_over_formula(self, field: str) -> Floats:
        """Return measured ``latency_s`` or ``energy_j`` over that of the paper's formula, ``[R, K]``; NaN if unknown.

        The field itself holds the one that the run counts by; the other stands beside it under its own name.
        """
        counted, measured = self.by_device[field], self.by_device[f"measured_{field}"]
        return np.where(np.isfinite(measured), measured / counted, counted / self.by_device[f"formula_{field}"])

    @property
    def mean_rate(self) -> float:
        """Mean rate over all devices and rounds; NaN if there is none."""
        rates = self.values("rate")[np.isfinite(self.values("rate"))]
        return float(rates.mean()) if rates.size else float("nan")

    @property
    def saving(self) -> float:
        """Fraction of bytes saved against full float32 models; NaN if their size is unknown."""
        full = float(self.full_traffic.sum())
        return 1 - float(self.traffic.sum()) / full if full > 0 else float("nan")

    def last(self, key: str) -> float:
        """Return the last value of a series; NaN if there is none."""
        values = self.series(key)
        known = values[np.isfinite(values)]
        return float(known[-1]) if known.size else float("nan")

    @property
    def accuracy(self) -> tuple[float, float, int]:
        """Last and best test accuracy, and the round of the best; NaN and 0 if nothing was tested."""
        values = self.by_round["test_accuracy"]
        tested = np.flatnonzero(np.isfinite(values))
        if not tested.size:
            return float("nan"), float("nan"), 0
        best = int(np.nanargmax(values))
        return float(values[tested[-1]]), float(values[best]), int(self.rounds[best])
