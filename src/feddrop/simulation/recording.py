"""What a run records: one record per round, and what ``run.json`` says about network and data."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import reduce
from typing import Any

import numpy as np

from feddrop import data
from feddrop.config import CustomMethod, RunConfig
from feddrop.config.execution import DTYPES
from feddrop.errors import named_object
from feddrop.learning.losses import LOSSES
from feddrop.radio import Cell
from feddrop.seeds import derive, permutation
from feddrop.simulation.custom import NAMES, RADIO_HOOKS
from feddrop.simulation.fingerprints import Fingerprint, data_crc32, fingerprint, network_fingerprint
from feddrop.simulation.preparation import Prepared
from feddrop.simulation.round import DeviceRound
from feddrop.simulation.schemes import PlannedBy, RoundPlan
from feddrop.storage import DeviceRecord, RoundRecord
from feddrop.storage.records import LATE, WORST
from feddrop.subnets import parameters
from feddrop.wire import frame_bytes

TOLERANCE = 1e-6
"""A latency exceeds the deadline from this relative excess on: rates are solved to the deadline."""
_FIELDS = ("loss", "accuracy", "val_loss", "val_accuracy")
"""What is measured and has a field in the record; everything else is a metric."""
_CONSTANTS = (
    *("cpu_hz", "tx_power_w", "cpu_constant", "circuit_j", "downlink_power_w", "flop_per_cycle", "samples"),
    *("bandwidth_hz", "noise", "noise_w_hz", "downlink_noise_w_hz", "bits_per_parameter"),
)
_DEVICE = "device/"
"""Prefix of the names of the accuracies of devices."""


def round_record(
    round_: int,
    plan: RoundPlan,
    devices: Sequence[DeviceRound],
    costs: Mapping[int, Mapping[str, Any]],
) -> RoundRecord:
    """Return the record of a round from its plan and from what each device did.

    ``costs`` are the scheme's, by device; if empty, the server's clock counts.
    """
    used = [device for device in devices if device.loss is not None]
    costs = costs or {d.device: {"latency_s": d.elapsed} for d in devices if d.elapsed}
    joules = [cost.get("energy_j") for cost in costs.values()]
    entries = [_device_record(plan, device, costs.get(device.device, {})) for device in devices]
    entries += [
        DeviceRecord(device=device, rate=1.0, share=0.0, status="left out", **_gains(plan, device))
        for device in plan.left_out
    ]
    rates, trained = [device.rate for device in devices], sum(d.num_samples for d in used)
    return RoundRecord(
        round=round_,
        train_loss=sum(d.num_samples * (d.loss or 0.0) for d in used) / trained if used else None,
        push_bytes=sum(device.push_bytes for device in devices),
        pull_bytes=sum(device.pull_bytes for device in devices),
        latency_s=max(_awaited(plan, device, cost["latency_s"]) for device, cost in costs.items()) if costs else None,
        energy_j=None if None in joules or not joules else sum(filter(None, joules)),
        deadline_s=plan.deadline_s,
        objective=plan.objective,
        charged_objective=plan.charged_objective,
        band_price=plan.band_price,
        gap=plan.gap,
        remark=plan.remark,
        counts=counted(entries),
        mean_rate=sum(rates) / len(rates) if rates else None,
        devices=tuple(entries),
    )


def counted(entries: Sequence[DeviceRecord]) -> dict[str, int]:
    """Return how many devices had each outcome, and how many updates were suspicious."""
    counts = Counter(entry.outcome for entry in entries)
    counts["suspicious"] = sum(1 for entry in entries if entry.suspicious)
    return {name: count for name, count in counts.items() if count}


def with_results(
    record: RoundRecord, measured: Mapping[str, float], notes: Mapping[str, float], wall_s: float
) -> RoundRecord:
    """Return a record with the results on the test set, none if it was not evaluated, and the method's numbers."""
    of_devices = [value for name, value in measured.items() if name.startswith(_DEVICE)]
    return replace(
        record,
        test_loss=measured.get("loss"),
        test_accuracy=measured.get("accuracy"),
        val_loss=measured.get("val_loss"),
        val_accuracy=measured.get("val_accuracy"),
        wall_s=round(wall_s, 4),
        metrics=_metrics(measured, of_devices) | dict(notes),
        device_accuracy=tuple(value if math.isfinite(value) else None for value in of_devices),
    )


def _awaited(plan: RoundPlan, device: int, latency_s: float) -> float:
    """Return how long the server waits for a device: for a lost update, at most until the deadline."""
    return min(latency_s, plan.deadline_s) if device in plan.lost and plan.deadline_s is not None else latency_s


def recorded(record: RoundRecord, config: RunConfig) -> RoundRecord:
    """Return a record with the devices that are saved: all, or a random sample of them."""
    count = config.record_devices
    if not isinstance(count, int) or count >= len(record.devices):
        return record
    order = permutation(derive(config.seed, "recorded", record.round), len(record.devices))
    return replace(record, devices=tuple(record.devices[n] for n in sorted(order[:count].tolist())))


def _metrics(measured: Mapping[str, float], of_devices: Sequence[float]) -> dict[str, float]:
    """Return what has no field in the record, and the mean accuracy of the worst tenth of the devices."""
    found = {name: value for name, value in measured.items() if name not in _FIELDS and not name.startswith(_DEVICE)}
    known = sorted(value for value in of_devices if math.isfinite(value))
    if known:
        worst = known[: math.ceil(len(known) / 10)]
        found[WORST] = sum(worst) / len(worst)
    return found


def _device_record(plan: RoundPlan, done: DeviceRound, cost: Mapping[str, Any]) -> DeviceRecord:
    chosen = {"tx_power_w": plan.powers.get(done.device), "cpu_hz": plan.clocks.get(done.device)}
    return DeviceRecord(
        device=done.device,
        rate=done.rate,
        share=plan.shares.get(done.device),
        samples=done.num_samples,
        push_bytes=done.push_bytes,
        pull_bytes=done.pull_bytes,
        binding=plan.binding.get(done.device),
        dtype=plan.dtypes.get(done.device),
        loss=done.loss,
        status=LATE if is_late(plan, done, cost) else done.status,
        suspicious=done.suspicious or None,
        update_size=done.size,
        **(chosen | _gains(plan, done.device) | dict(cost)),
    )


def _gains(plan: RoundPlan, device: int) -> dict[str, Any]:
    """Return the channel gains of a device; empty without a radio."""
    if plan.channels is None:
        return {}
    return {"uplink_gain": float(plan.channels.uplink[device]), "downlink_gain": float(plan.channels.downlink[device])}


def is_late(plan: RoundPlan, done: DeviceRound, cost: Mapping[str, Any]) -> bool:
    """Return whether a usable update took longer than the deadline; the executor decides on those of real devices."""
    if plan.deadline_s is None or done.loss is None or done.elapsed or cost.get("latency_s") is None:
        return False
    return bool(cost["latency_s"] > plan.deadline_s * (1 + TOLERANCE))


def blame(records: Sequence[RoundRecord], *, simulated: bool) -> str:
    """Return what to do if a round failed after one with suspicious updates that were used; otherwise nothing."""
    marked = [d for d in records[-1].devices if d.suspicious and "left out" not in d.suspicious] if records else []
    if not marked:
        return ""
    who = ", ".join(f"device {one.device} ({one.suspicious})" for one in marked[:3])
    found = f" In round {records[-1].round}, suspicious updates were used: {who}."
    if simulated:  # the same devices would attack again
        return f"{found} To leave such updates out, start again with server.filter = true."
    return (
        f"{found} To repeat that round without these devices, resume with back=1; to withstand them, start again with "
        "server.filter = true."
    )


def facts(run: Prepared, command: str, label: str = "", warned: Iterable[str] = ()) -> dict[str, Any]:
    """Return what ``run.json`` says about network and data, which a resumed run must share, and what was warned of."""
    dataset, given, model, gains = run.dataset, run.custom.given(), run.task.setup.model, run.gains
    custom = [NAMES[argument] for argument in given]
    classes = dataset.num_classes
    known = dataset.class_names and run.parts and not dataset.train_y.is_floating_point()
    counts = data.class_counts(dataset.train_y.numpy(), list(run.parts), classes) if known else None
    identity = supplied(run, given)
    return {
        "label": label,
        "identity": identity,
        "command": command or ("" if custom else "feddrop run config.toml"),
        "network": type(model).__name__ if "network" in custom else run.config.model.name,
        "data": dataset.name,
        "custom": custom,
        "shapes": {
            "input_shapes": dataset.input_shapes,
            "target_shape": dataset.target_shape,
            "num_classes": classes,
            "vocabulary": dataset.vocabulary,
        },
        "preprocessing": [step and asdict(step) for step in dataset.preprocessing],
        "parameters": parameters.count_parameters(model),
        "full_bytes": _full_bytes(run),
        "forward_flops": int(run.flops.full.forward),
        "samples": list(run.samples),
        "validation_samples": len(run.task.validation),
        "test_targets": dataset.test_y.numel(),
        "class_names": list(dataset.class_names),
        "class_counts": None if counts is None else counts.tolist(),
        "budget_j": run.scheme.budgets(),
        "cell": _cell_constants(getattr(run.scheme, "cell", None)),
        "rates": dict(getattr(run.scheme, "kept_settings", {})),
        "gains_crc32": gains.crc32() if gains else None,
        "data_crc32": identity["objects"]["data"]["crc32"],
        "parts_crc32": reduce(lambda crc, part: zlib.crc32(part.tobytes(), crc), run.parts, 0),
        "warnings": [*warned, *run.warnings],
        "state": {name: f"{tensor.dtype} {list(tensor.shape)}" for name, tensor in run.state.items()},
    }


def _full_bytes(run: Prepared) -> dict[str, int]:
    """Return the size of a frame with the full network, without frozen parameters, by dtype."""
    sizes = {name: tensor.numel() for name, tensor in run.params.items() if name not in run.frozen}
    return {dtype: frame_bytes(sizes, dtype) for dtype in DTYPES}


def _cell_constants(cell: Cell | None) -> dict[str, Any] | None:
    """Return the constants of a cell, one value per device where they differ; None without a radio.

    With them and the records, a reader can recompute the latency and the energy of every device.
    """
    if cell is None:
        return None
    found = {name: _compact(getattr(cell, name)) for name in _CONSTANTS}
    return found | {"downlink_noise_w_hz": cell.noise_w_hz} if cell.downlink_noise_w_hz is None else found


def _compact(values: Any) -> Any:
    """Return one number if all are equal, otherwise the list."""
    known = np.asarray(values)
    return values if known.dtype.kind == "U" else known.flat[0] if np.all(known == known.flat[0]) else known


def supplied(run: Prepared, given: Iterable[str]) -> dict[str, Any]:
    """Return what identifies a run besides its configuration: fingerprints of data and of the objects ``given``.

    ``replaced`` lists the settings that custom objects replace; :mod:`feddrop.comparison` ignores them.
    """
    custom, dataset = run.custom, run.dataset
    objects: dict[str, Fingerprint] = {
        "data": {"crc32": dataset.crc32(), "inputs": dataset.input_shapes, "targets": dataset.target_shape},
    }
    if custom.model is not None:
        objects["network"] = network_fingerprint(run.model)
    if custom.parts is not None:
        objects["parts"] = {"devices": len(run.parts), "crc32": data_crc32(run.parts)}
    if custom.samples is not None:
        objects["samples"] = {"devices": len(run.samples), "crc32": data_crc32([run.samples])}
    if custom.method is not None:
        objects["method"] = fingerprint(custom.method)
    elif isinstance(run.config.method, CustomMethod):
        objects["method"] = fingerprint(named_object(run.config.method.factory, "method.name"))
    if run.task.setup.loss not in LOSSES.values():
        objects["loss"] = fingerprint(run.task.setup.loss)
    if custom.metrics:
        objects["metrics"] = _by_name({name: fingerprint(metric) for name, metric in sorted(custom.metrics.items())})
    objects |= _radio_objects(run)
    if run.gains is not None:
        objects["gains"] = {"rounds": len(run.gains.uplink), "crc32": run.gains.crc32()}
    used = getattr(run.scheme, "takes", ())
    replaced = [key for argument in given for key in custom.replaced(argument) if key not in used]
    return {"replaced": replaced, "objects": objects}


def _radio_objects(run: Prepared) -> dict[str, Fingerprint]:
    """Return the fingerprints of the user's scheme, channel, outcome and objective, given in Python or in TOML."""
    custom, radio, found = run.custom, run.config.radio, dict[str, Fingerprint]()
    kept = getattr(run.scheme, "kept_settings", None)  # a planner that lists its settings is identified by them
    for name in (*RADIO_HOOKS, "objective"):
        given, named = getattr(custom, name, None), getattr(radio, name, "")
        if isinstance(given, PlannedBy):
            found[name] = fingerprint(given.build if kept is None else type(run.scheme)) | dict(kept or {})
        elif given is not None:
            found[name] = fingerprint(given)
        elif ":" in named:
            found[name] = fingerprint(named_object(named, f"radio.{name}"))
    return found


def _by_name(parts: Mapping[str, Fingerprint]) -> Fingerprint:
    """Return several fingerprints as one, which is stable if all of them are."""
    reasons = [str(part["why"]) for part in parts.values() if not part.get("stable", True)]
    return dict(parts) | ({"stable": False, "why": reasons[0]} if reasons else {})
