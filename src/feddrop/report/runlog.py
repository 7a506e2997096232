"""A run as arrays, for the report, the figures and notebooks.

Devices may join and leave between rounds, so arrays are aligned by device id: ``[rounds, devices]``, with NaN or an
empty string where a device was absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from feddrop.config.radio import IDEAL, IGNORES_BAND
from feddrop.config.train import GROWN
from feddrop.errors import clean
from feddrop.storage.records import LATE

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ROUND_FIELDS = (
    "train_loss", "test_loss", "test_accuracy", "push_bytes", "pull_bytes", "latency_s", "energy_j", "wall_s",
    "deadline_s", "val_loss", "val_accuracy", "objective", "charged_objective",
)  # fmt: skip
DEVICE_FIELDS = (
    "rate", "share", "samples", "push_bytes", "pull_bytes", "latency_s", "energy_j", "loss",
    "formula_latency_s", "formula_energy_j", "measured_latency_s", "measured_energy_j", "tx_power_w", "cpu_hz",
    "start_s", "push_s", "compute_s", "pull_s", "staleness",
)  # fmt: skip
_ROUNDING = 1e-9  # relative, of sums of costs
_COSTS = {"seconds": "latency_s", "joules": "energy_j"}
DEVICE_WORDS = ("binding", "status", "dtype")
LONGEST_LABEL = 90
FULL_VALUE_BYTES = 4  # full models are counted as float32


class Words:
    """An array of words from a small vocabulary, as their places in it: one byte each, where strings take up to 60.

    It is indexed and compared with a word as a NumPy array of strings; ``np.asarray`` returns that array. The first
    word of the vocabulary ``known`` is empty, for an absent device.
    """

    __slots__ = ("_codes", "_known")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, codes: npt.NDArray[np.integer[Any]], known: Sequence[str]) -> None:
        self._codes, self._known = codes.astype(np.min_scalar_type(len(known)), copy=False), tuple(known)

    def __eq__(self, word: object) -> Bools:  # type: ignore[override]
        if word not in self._known:
            return np.zeros(self._codes.shape, np.bool_)
        return np.asarray(self._codes == self._known.index(str(word)))

    def __ne__(self, word: object) -> Bools:  # type: ignore[override]
        return ~(self == word)

    def __getitem__(self, key: Any) -> Words:
        return Words(np.asarray(self._codes[key]), self._known)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(np.array(self._known, dtype)[self._codes])

    def tolist(self) -> Any:
        """Return the words as nested lists."""
        return np.asarray(self).tolist()


class EarlierJob(NamedTuple):
    """A job under a virtual clock whose device was asked again in the same server step; arrays hold the later job."""

    step: int
    column: int
    status: str
    start_s: float
    push_s: float
    compute_s: float
    pull_s: float


class Size(NamedTuple):
    """The sub-model of one rate γ: the share of values it keeps, and its test accuracy or loss; NaN where unknown."""

    rate: float
    kept: float
    accuracy: float
    loss: float


@dataclass(frozen=True, kw_only=True, repr=False)
class RunLog:
    """What a run did: R rounds, K devices that took part in at least one of them.

    Attributes:
        name: the run's label, or else the name of its folder.
        config: the configuration, section by section.
        info: facts about the run and its machine, from ``run.json``; empty if the folder has no such file.
        rounds: round numbers, ``[R]``.
        devices: device ids, ``[K]``.
        by_round: one array ``[R]`` per field of :data:`ROUND_FIELDS`; NaN where absent.
        by_device: one array ``[R, K]`` per field of :data:`DEVICE_FIELDS`; NaN where absent.
        words: one array ``[R, K]`` per field of :data:`DEVICE_WORDS`; empty where absent. The status is ``"ok"``,
            ``"late"``, ``"left out"``, ``"lost"`` or ``"refused"``.
        refusals: how often updates were refused, by (shortened) reason.
        deadline_s: the configured deadline; NaN without one.
        budget_j: energy budget of each device, ``[K]``; NaN without one.
        class_counts: samples per device and class, ``[devices, classes]``; None if unknown.
        class_names: one name per class; empty if unknown.
        metrics: one array ``[R]`` per custom metric, by name; NaN where absent.
        suspicious: which updates were marked as suspicious, ``[R, K]``.
        suspicions: how often updates were marked, by (shortened) reason.
        sizes: the sub-models that were evaluated last, by rate.
        untrained: share of the trainable parameters that no device has held.
        earlier: jobs whose device was asked again in the same server step.
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
    sizes: tuple[Size, ...] = ()
    untrained: float = 0.0
    earlier: tuple[EarlierJob, ...] = ()

    def __repr__(self) -> str:
        return f"RunLog({self.name!r}, {len(self.rounds)} rounds, {len(self.devices)} devices)"

    def series(self, key: str) -> Floats:
        """Return one of :data:`ROUND_FIELDS` or the custom metric ``"metrics.NAME"``, ``[R]``; NaN where absent."""
        if key.startswith("metrics."):
            return self.metrics.get(key.removeprefix("metrics."), np.full(len(self.rounds), np.nan))
        return self.by_round[key]

    @property
    def label(self) -> str:
        """The label that the user gave the run; empty if none."""
        return clean(self.info.get("label") or "", LONGEST_LABEL)

    @property
    def remark(self) -> str:
        """A remark for every result of the run: that its scheme ignores the band; else empty."""
        radio = self.config.get("radio")
        return IGNORES_BAND if isinstance(radio, dict) and radio.get("scheme") == IDEAL else ""

    @property
    def left_out(self) -> Ints:
        """Number of devices that the policy left out of each round, ``[R]``."""
        return np.asarray((self.words["status"] == "left out").sum(axis=1))

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """Whether the answer of each device counted in each round, ``[R, K]``."""
        return np.isin(self.words["status"], ("ok", LATE))

    @property
    def charged_objective(self) -> Floats:
        """The objective plus 1/(1-θ) for each device left out, ``[R]``; NaN without a radio."""
        charged = self.by_round["charged_objective"]
        return np.where(np.isfinite(charged), charged, self.by_round["objective"])

    @property
    def diverged(self) -> npt.NDArray[np.bool_]:
        """The rounds whose test loss is not finite, or far above the training loss, ``[R]``."""
        train, test = self.by_round["train_loss"], self.by_round["test_loss"]
        evaluated = np.isfinite(self.by_round["test_accuracy"])
        return (evaluated & ~np.isfinite(test)) | (test > GROWN * np.fmax(1.0, train))

    @property
    def population(self) -> int:
        """Number of all devices, including those that never took part."""
        samples = self.info.get("samples")
        return max(len(self.devices), len(samples) if isinstance(samples, list) else 0)

    @property
    def sampled(self) -> bool:
        """Whether only some of the devices of a round were recorded."""
        return bool(self.config.get("record_devices", "all") != "all")

    @property
    def virtual(self) -> bool:
        """Whether the run has a virtual clock, under which no deadline holds."""
        clock = self.config.get("clock")
        return isinstance(clock, dict) and clock.get("kind", "deadline") != "deadline"

    @cached_property
    def has_absences(self) -> bool:
        """Whether any device was absent from a round without being left out by the allocator."""
        return self.population > len(self.devices) or bool((self.words["status"] == "").any())

    @cached_property
    def has_radio(self) -> bool:
        """Whether any latency or energy was reported."""
        return any(bool(np.isfinite(self.by_device[key]).any()) for key in ("latency_s", "energy_j"))

    @property
    def traffic(self) -> Floats:
        """Bytes pushed and pulled in each round, ``[R]``."""
        return np.asarray(np.nan_to_num(self.by_round["push_bytes"]) + np.nan_to_num(self.by_round["pull_bytes"]))

    def spent(self, resource: str) -> Floats:
        """Return the ``"rounds"``, ``"bytes"``, ``"seconds"`` or ``"joules"`` spent by the end of each round, ``[R]``.

        NaN if the run has none, such as seconds without a radio.
        """
        if resource == "rounds":
            return self.rounds.astype(np.float64)
        per_round = self.traffic if resource == "bytes" else self.by_round[_COSTS[resource]]
        return np.asarray(np.cumsum(np.nan_to_num(per_round)) if np.isfinite(per_round).any() else per_round)

    def within(self, budget: Mapping[str, float]) -> Self:
        """Return the run up to the last round that is within one of these amounts, by resource."""
        limits = [self.spent(resource) <= amount * (1 + _ROUNDING) for resource, amount in budget.items()]
        count = int(np.any(limits, axis=0).sum()) if limits else len(self.rounds)
        cut = {key: getattr(self, key)[:count] for key in ("rounds", "suspicious")}
        for key in ("by_round", "by_device", "words", "metrics"):
            cut[key] = {name: values[:count] for name, values in getattr(self, key).items()}
        return replace(self, **cut, earlier=tuple(job for job in self.earlier if job.step < count))

    @cached_property
    def full_traffic(self) -> Floats:
        """Bytes that full float32 models would have cost in each round, ``[R]``; NaN if their size is unknown."""
        parameters = self.info.get("parameters")
        if parameters is None or self.sampled:
            return np.full(len(self.rounds), np.nan)
        sent = sum((self.by_device[key] > 0).sum(axis=1) for key in ("push_bytes", "pull_bytes"))
        return np.asarray(sent * float(parameters) * FULL_VALUE_BYTES)

    @cached_property
    def active(self) -> npt.NDArray[np.bool_]:
        """Which device took part in which round, ``[R, K]``: present and not left out."""
        status = self.words["status"]
        return np.asarray((status != "") & (status != "left out"))

    def values(self, field: str) -> Floats:
        """Return one of :data:`DEVICE_FIELDS` for the devices that took part, ``[R, K]``; NaN elsewhere."""
        return np.where(self.active, self.by_device[field], np.nan)

    def limit(self, field: str) -> Floats:
        """Return the limit of a field, ``[R, K]``: the deadline in force or the energy budget; NaN for no limit."""
        limits = {"latency_s": self.deadlines[:, None], "energy_j": self.budget_j}
        limit = limits.get(field.removeprefix("measured_"), np.asarray(np.nan))
        return np.broadcast_to(limit, (len(self.rounds), len(self.devices)))

    @property
    def deadlines(self) -> Floats:
        """The deadline in force in each round, ``[R]``: longer than configured where the policy extended it.

        NaN under a virtual clock, where rates are planned for a deadline, but the clock decides who is late.
        """
        if self.virtual:
            return np.full(len(self.rounds), np.nan)
        recorded = self.by_round["deadline_s"]
        return np.where(np.isfinite(recorded), recorded, self.deadline_s)

    def measured_over_formula(self, field: str) -> Floats:
        """Return the ratio of measured ``latency_s`` or ``energy_j`` to the paper's formula, ``[R, K]``; or NaN.

        The field holds the one that the run uses; the other has the prefix ``measured_`` or ``formula_``.
        """
        used, measured = self.by_device[field], self.by_device[f"measured_{field}"]
        return np.where(np.isfinite(measured), measured / used, used / self.by_device[f"formula_{field}"])

    @property
    def mean_rate(self) -> float:
        """Mean rate over all devices and rounds; NaN if no rate is known."""
        rates = self.values("rate")[np.isfinite(self.values("rate"))]
        return float(rates.mean()) if rates.size else float("nan")

    @property
    def kept_bytes(self) -> Floats:
        """Bytes sent to each device as a share of a frame with the full network, ``[R, K]``; NaN if unknown."""
        full, table = self.info.get("full_bytes"), self.config.get("execution")
        known = full.items() if isinstance(full, dict) else ()
        sizes = {name: float(size) for name, size in known if isinstance(size, int) and size > 0}
        usual = table.get("dtype") if isinstance(table, dict) else None
        used, sizes = self.words["dtype"], sizes or {"float32": np.nan}
        whole = np.where(used == "", sizes.get(str(usual or "float32"), np.nan), np.nan)
        for name, size in sizes.items():
            whole[used == name] = size
        sent = self.values("push_bytes")
        return np.where(sent > 0, sent / whole, np.nan)

    @property
    def saving(self) -> float:
        """Fraction of bytes saved compared with full float32 models; NaN if their size is unknown."""
        full = float(self.full_traffic.sum())
        return 1 - float(self.traffic.sum()) / full if full > 0 else float("nan")

    def last(self, key: str) -> float:
        """Return the last known value of a series; NaN if no value is known."""
        values = self.series(key)
        known = values[np.isfinite(values)]
        return float(known[-1]) if known.size else float("nan")

    @property
    def accuracy(self) -> tuple[float, float, int]:
        """Last and best test accuracy, and the round of the best; NaN and 0 if nothing was tested.

        With validation samples, the best round is the best on these.
        """
        values = self.by_round["test_accuracy"]
        tested = np.flatnonzero(np.isfinite(values))
        if not tested.size:
            return float("nan"), float("nan"), 0
        chosen = self.by_round["val_accuracy"]
        chosen = np.where(np.isfinite(values), chosen if np.isfinite(chosen).any() else values, np.nan)
        best = int(np.nanargmax(chosen))
        return float(values[tested[-1]]), float(values[best]), int(self.rounds[best])
