"""The server side: a ServerApp that is one run, with Flower's nodes for its devices.

It is the same run as anywhere: saved after every round, resumed to the same bits, reported.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from feddrop.config.parsing import load_json
from feddrop.data import Dataset
from feddrop.errors import ConfigError, RunError, shortened
from feddrop.flower.config import FleetConfig, read_settings
from feddrop.flower.executor import Messenger
from feddrop.flower.fleet import Fleet
from feddrop.flower.messages import network_digest
from feddrop.flower.planning import NodeRates
from feddrop.learning.local import Loss
from feddrop.methods.method import MethodFactory
from feddrop.report import write_report
from feddrop.simulation import preflight
from feddrop.simulation.custom import CustomObjects, Gains, Network, SchemeFactory
from feddrop.simulation.participation import Roster
from feddrop.simulation.run import Run
from feddrop.simulation.schemes import RateScheme, Workload, read_rates
from feddrop.storage import RoundRecord, RunFolder
from feddrop.storage.files import read_whole, write_atomically
from feddrop.storage.manifest import refuse

log = logging.getLogger("feddrop")

FLEET = "fleet.json"
"""What was measured of the nodes, beside the run's own files."""
_COMMAND = "flwr run"


def server_app(
    *,
    model: Network | None = None,
    dataset: Dataset | None = None,
    method: MethodFactory | None = None,
    loss: Loss | None = None,
    metrics: Mapping[str, Loss] | None = None,
    gains: Gains | None = None,
    rates: SchemeFactory | None = None,
    callbacks: Sequence[Any] = (),
) -> ServerApp:
    """Return a ServerApp that trains what the app's configuration says.

    Args:
        model: a custom network, as :func:`feddrop.run` takes it.
        dataset: custom data: an example and the server's test set.
        method: a custom method.
        loss: a custom loss.
        metrics: custom metrics by name.
        gains: measured gains of the cell.
        rates: a custom scheme.
        callbacks: objects called after every round.

    Example:
        >>> import feddrop.flower
        >>> app = feddrop.flower.server_app()
    """
    custom = CustomObjects(
        model=model, dataset=dataset, method=method, loss=loss, metrics=metrics, gains=gains, rates=rates
    )
    preflight.check_custom(custom)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _speak()
        train(grid, context.run_config, callbacks=callbacks, **custom.given())

    return app


def train(
    grid: Grid,
    settings: Mapping[str, str | int | float | bool],
    *,
    model: Network | None = None,
    dataset: Dataset | None = None,
    method: MethodFactory | None = None,
    loss: Loss | None = None,
    metrics: Mapping[str, Loss] | None = None,
    gains: Gains | None = None,
    rates: SchemeFactory | None = None,
    callbacks: Sequence[Any] = (),
) -> Run:
    """Train over the nodes of a grid, and write the report. A folder that holds an unfinished run is gone on with.

    Args:
        grid: Flower's, or anything with its functions.
        settings: the app's configuration; see :class:`feddrop.flower.FleetConfig`.
        model: a custom network, as :func:`feddrop.run` takes it.
        dataset: custom data: an example and the server's test set.
        method: a custom method.
        loss: a custom loss.
        metrics: custom metrics by name.
        gains: measured gains of the cell.
        rates: a custom scheme.
        callbacks: objects called after every round.
    """
    config, treated = read_settings(settings)
    if treated.planning != "given" and rates is not None:  # now, before nodes are waited for
        raise ConfigError(f'rates=... has no effect with flower.planning = "{treated.planning}". Remove one.')
    folder = Path(treated.out)
    disk = RunFolder(folder)
    about, counts = disk.about(), list[int]()
    if about:
        _check_start(about, treated, folder)
        disk.check_config(config.located())
        counts = _counts(about, config.data.devices, folder)
    else:  # now, before nodes are waited for
        disk.check_free()
    fleet = Fleet(grid, treated, config.data.devices, counts)
    if not counts or disk.saved_round() < config.rounds:
        fleet.gather(everyone=True)
    samples = counts or list(fleet.samples)  # a run is resumed with those that it was started with
    planners: list[NodeRates] = []

    def planner(work: Workload, participation: Roster) -> RateScheme:
        first = read_rates(0.0 if config.rate is None else config.rate, config.data.devices)
        planners.append(NodeRates(fleet, work, participation, first=first, epochs=config.train.epochs))
        return planners[-1]

    run = Run(
        config,
        folder,
        resume=bool(about),
        model=model,
        dataset=dataset,
        method=method,
        executor=lambda task: Messenger(task, fleet),
        loss=loss,
        metrics=metrics,
        gains=gains,
        samples=samples,
        rates=rates if treated.planning == "given" else planner,
        callbacks=callbacks,
        command=_COMMAND,
    )
    samples[:] = fleet.samples  # who came later counts from now on
    fleet.samples = samples
    fleet.hold_to(network_digest(run.prepared.model))
    if about:
        log.info("%s goes on after round %d of %d.", folder, run.round, config.rounds)
        for one in planners:
            one.restore(_read(folder / FLEET), run.round)
    for record in run:
        _tell(record, fleet)
        for one in planners:
            write_atomically(folder / FLEET, json.dumps({"measured": one.to_json()}).encode())
    write_report(folder)
    _sum_up(run, fleet)
    return run


def _check_start(about: Mapping[str, Any], treated: FleetConfig, folder: Path) -> None:
    """Raise where a run was not started by Flower, or other settings decide its rates than when it was."""
    if about.get("command") != _COMMAND:
        raise RunError(f"{folder} holds a run that was not started by `flwr run`. Name another folder by flower.out.")
    if not isinstance(told := about.get("rates"), dict):  # a run of an older version has fewer facts
        return
    before = told or FleetConfig().deciding()
    now = treated.deciding()
    refuse({key: (before.get(key), now[key]) for key in now if before.get(key) != now[key]}, folder)


def _counts(about: Mapping[str, Any], devices: int, folder: Path) -> list[int]:
    """Return how many samples every device began a run with; 0 for one that had not come."""
    counts = about.get("samples")
    if not isinstance(counts, list) or len(counts) != devices or not all(type(n) is int and n >= 0 for n in counts):
        raise RunError(
            f"run.json of {folder} has samples = {shortened(counts)}; it must be the sample counts of {devices} "
            "devices. Restore it, or name another folder by flower.out."
        )
    return counts


def _tell(record: RoundRecord, fleet: Fleet) -> None:
    """Log a round, and by name whoever was left out of it, and why."""
    accuracy = "" if record.test_accuracy is None else f", test accuracy {record.test_accuracy:.4f}"
    seconds = "" if record.latency_s is None else f", slowest node {record.latency_s:.1f} s"
    log.info(
        "round %d: train loss %.4f%s, %d bytes down, %d up%s",
        *(record.round, record.train_loss or 0.0, accuracy, record.push_bytes, record.pull_bytes, seconds),
    )
    for device in record.devices:
        if device.status != "ok":
            log.warning("round %d: %s is left out: %s", record.round, fleet.name(device.device), device.status)
        if device.suspicious:
            log.warning("round %d: %s: %s", record.round, fleet.name(device.device), device.suspicious)


def _sum_up(run: Run, fleet: Fleet) -> None:
    """Log how many updates of each device were used, and what was left out."""
    entries = [one for record in run.records for one in record.devices]
    out = Counter(one.device for one in entries if one.status != "ok")
    told = ", ".join(f"device {device}: {count}" for device, count in sorted(out.items())) or "none"
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(_kinds(fleet).items()))
    told += f" ({kinds})" if kinds else ""
    log.info("done: %d rounds, %d updates; left out: %s", run.round, len(entries), told)


def _kinds(fleet: Fleet) -> dict[str, int]:
    found: dict[str, int] = {}
    for (_, kind), count in fleet.refused.items():
        found[kind] = found.get(kind, 0) + count
    return found


def _read(path: Path) -> dict[str, Any]:
    """Read what was measured; what is missing or damaged is measured anew."""
    try:
        found = load_json(read_whole(path))
        return dict(found["measured"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _speak() -> None:
    """Let the log of a ServerApp's process be heard: Flower streams what it prints."""
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("feddrop: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
