"""The server side: a ServerApp that executes one run with Flower nodes as its devices.

Like every run, it is saved after each round, resumes to the same bits and writes a report.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from feddrop.config import RunConfig
from feddrop.config.parsing import load_json
from feddrop.data import Dataset
from feddrop.errors import ConfigError, FeddropError, RunError, shortened
from feddrop.flower.config import FleetConfig, read_settings
from feddrop.flower.executor import Messenger
from feddrop.flower.fleet import Fleet
from feddrop.flower.messages import network_digest, treatment
from feddrop.flower.planning import NodeRates
from feddrop.learning.local import Loss
from feddrop.learning.metrics import Metric
from feddrop.methods.method import MethodFactory
from feddrop.radio.outcome import OutcomeFunction
from feddrop.report import write_report
from feddrop.simulation.custom import CustomChannel, CustomObjects, CustomScheme, Gains, Network, with_custom_names
from feddrop.simulation.custom_checks import check_custom
from feddrop.simulation.device import Task
from feddrop.simulation.participation import Roster
from feddrop.simulation.run import Run
from feddrop.simulation.schemes import PlannedBy, Workload, read_rates
from feddrop.storage import RoundRecord, RunFolder
from feddrop.storage.files import read_whole, write_atomically
from feddrop.storage.manifest import refuse

log = logging.getLogger("feddrop")

FLEET = "fleet.json"
"""Measurements of the nodes, in the run folder."""
_COMMAND = "flwr run"


def server_app(
    *,
    model: Network | None = None,
    dataset: Dataset | Callable[[Context], Dataset] | None = None,
    method: MethodFactory | None = None,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    gains: Gains | None = None,
    scheme: CustomScheme | None = None,
    channel: CustomChannel | None = None,
    outcome: OutcomeFunction | None = None,
    callbacks: Sequence[Any] = (),
) -> ServerApp:
    """Return a ServerApp that trains what the app's configuration says; :func:`train` explains the arguments.

    ``dataset`` may be a function ``context -> Dataset``, as the data of :func:`client_app` are; Flower's context holds
    the configuration of the run.

    Example:
        >>> import feddrop.flower
        >>> app = feddrop.flower.server_app()
    """
    later = dataset if callable(dataset) else None
    custom = CustomObjects(
        model=model,
        dataset=None if callable(dataset) else dataset,
        method=method,
        loss=loss,
        metrics=metrics,
        gains=gains,
        scheme=scheme,
        channel=channel,
        outcome=outcome,
    )
    check_custom(custom)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _log_to_stderr()
        try:
            given = custom.given() | ({"dataset": later(context)} if later else {})
            train(grid, context.run_config, callbacks=callbacks, **given)
        except FeddropError:
            sys.tracebacklimit = 0  # Flower logs the error; its message says what to do
            raise

    return app


def train(
    grid: Grid,
    settings: Mapping[str, str | int | float | bool],
    *,
    model: Network | None = None,
    dataset: Dataset | None = None,
    method: MethodFactory | None = None,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    gains: Gains | None = None,
    scheme: CustomScheme | None = None,
    channel: CustomChannel | None = None,
    outcome: OutcomeFunction | None = None,
    callbacks: Sequence[Any] = (),
) -> Run:
    """Train on the nodes of a grid and write the report. An unfinished run in the folder is resumed.

    The ``grid`` is Flower's, or an object with the same methods. The ``settings`` are the app's configuration, see
    :class:`feddrop.flower.FleetConfig`. A custom ``dataset`` holds an example and the server's test set. The other
    arguments are those of :func:`feddrop.run`.
    """
    given = {name: one for name, one in locals().items() if name not in ("grid", "settings")}
    config, nodes = read_settings(settings)
    if nodes.planning != "given" and scheme is not None:
        raise ConfigError(f"scheme=... has no effect with flower.planning = {nodes.planning!r}. Remove one.")
    disk = RunFolder(nodes.out)
    custom = CustomObjects(method=method, scheme=scheme, channel=channel, outcome=outcome)
    config = with_custom_names(config, custom, disk.config() if disk.about() else None)
    counts = _check_folder(disk, config, nodes)
    fleet = Fleet(grid, nodes, config.data.devices, counts)
    if not counts or disk.saved_round() < config.rounds:
        fleet.gather(everyone=True)
    samples = counts or list(fleet.samples)  # a resumed run keeps its sample counts
    if nodes.planning != "given":
        given["scheme"] = PlannedBy(partial(_planner, config, fleet))
    given["executor"] = lambda task: Messenger(cast(Task, task), fleet)
    # the report is written below, also if the run was stopped
    run = Run(config, nodes.out, resume=bool(counts), samples=samples, command=_COMMAND, report=False, **given)
    samples[:] = fleet.samples  # devices that joined later count from now on
    fleet.samples = samples
    fleet.hold_to(network_digest(run.prepared.model), treatment(run.prepared.dataset))
    _train_rounds(run, fleet)
    write_report(run.folder)
    _log_summary(run, fleet)
    return run


def _planner(config: RunConfig, fleet: Fleet, work: Workload, participation: Roster) -> NodeRates:
    """Build what plans the rounds by the speeds of the nodes."""
    first = read_rates(0.0 if config.rate is None else config.rate, config.data.devices)
    return NodeRates(fleet, work, participation, first=first, epochs=config.train.epochs)


def _check_folder(disk: RunFolder, config: RunConfig, nodes: FleetConfig) -> list[int]:
    """Check, before any node is waited for, that a run can be started or resumed in a folder.

    Returns samples per device of the run to resume, 0 for devices that never joined; nothing for a new run.
    """
    about, devices = disk.about(), config.data.devices
    if not about:
        disk.check_free()
        return []
    if about.get("command") != _COMMAND:
        raise RunError(f"{nodes.out} holds a run that was not started by `flwr run`. Set flower.out to another folder.")
    started, now = about.get("rates"), nodes.planning_settings()
    before = started if isinstance(started, dict) and started else FleetConfig().planning_settings()
    refuse({key: (before.get(key), now[key]) for key in now if before.get(key) != now[key]}, disk.path)
    disk.check_config(config.located())
    counts = about.get("samples")
    if not isinstance(counts, list) or len(counts) != devices or not all(type(n) is int and n >= 0 for n in counts):
        raise RunError(
            f"run.json of {nodes.out} has samples = {shortened(counts)}; it must be the sample counts of {devices} "
            "devices. Restore it, or set flower.out to another folder."
        )
    return counts


def _train_rounds(run: Run, fleet: Fleet) -> None:
    """Train the rounds that are left, and save the measurements after each."""
    path, planner = run.folder / FLEET, run.prepared.scheme
    if run.round:
        log.info("%s continues after round %d of %d.", run.folder, run.round, run.config.rounds)
        if isinstance(planner, NodeRates):
            planner.restore(_read(path), run.round)
    for record in run:
        _log_round(record, fleet)
        measured = {"measured": planner.to_json()} if isinstance(planner, NodeRates) else {}
        write_atomically(path, json.dumps({**fleet.to_json(), **measured}, indent=1).encode())


def _log_round(record: RoundRecord, fleet: Fleet) -> None:
    """Log a round, and each device that was left out with the reason."""
    accuracy = "" if record.test_accuracy is None else f", test accuracy {record.test_accuracy:.4f}"
    seconds = "" if record.latency_s is None else f", slowest node {record.latency_s:.1f} s"
    if record.deadline_s is not None:
        seconds += f" of {record.deadline_s:.3g} s"
    rates = [device.rate for device in record.devices if device.took_part and device.rate is not None]
    shown = f", rates {min(rates):.2f} to {max(rates):.2f}" if rates and max(rates) > min(rates) else ""
    log.info(
        "round %d: train loss %.4f%s, %d bytes down, %d up%s%s",
        *(record.round, record.train_loss or 0.0, accuracy, record.push_bytes, record.pull_bytes, shown, seconds),
    )
    if record.remark:
        log.info("round %d: %s.", record.round, record.remark)
    for device in record.devices:
        if device.status != "ok":
            log.warning("round %d: %s is left out: %s", record.round, fleet.name(device.device), device.status)
        if device.suspicious:
            log.warning("round %d: %s: %s", record.round, fleet.name(device.device), device.suspicious)


def _log_summary(run: Run, fleet: Fleet) -> None:
    """Log the number of updates, and how many of each device were left out."""
    entries = [one for record in run.records for one in record.devices]
    out = Counter(one.device for one in entries if one.status != "ok")
    left_out = ", ".join(f"device {device}: {count}" for device, count in sorted(out.items())) or "none"
    reasons: Counter[str] = Counter()
    for (_, reason), count in fleet.refused.items():
        reasons[reason] += count
    counted = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
    left_out += f" ({counted})" if counted else ""
    log.info("done: %d rounds, %d updates; left out: %s", run.round, len(entries) - out.total(), left_out)


def _read(path: Path) -> dict[str, Any]:
    """Read saved measurements; empty if they are missing or damaged."""
    try:
        return dict(load_json(read_whole(path))["measured"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _log_to_stderr() -> None:
    """Print the log of a ServerApp's process; Flower streams the output."""
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s feddrop: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
