"""``feddrop run`` and ``feddrop resume``."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from feddrop.cli.output import SET, Json, Screen, note, say
from feddrop.errors import ConfigError, RunError

if TYPE_CHECKING:
    from feddrop.config import RunConfig
    from feddrop.simulation.run import Run


def run(
    config: Path | None = None,
    *,
    set_: Annotated[list[str], SET] = [],  # noqa: B006 -- cyclopts copies it
    method: str | None = None,
    rate: str | None = None,
    rounds: str | None = None,
    seed: str | None = None,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Train a network by federated dropout and write a report.

    Parameters
    ----------
    config:
        TOML configuration. Default: ten devices learn the built-in digits at rate 0.3.
    set_:
        Change a setting, e.g. --set train.lr=0.05 --set data.devices=20; may be repeated. `feddrop config` lists all
        settings.
    method:
        Short for --set method=...
    rate:
        Short for --set rate=...: a number, or a file with one rate per device.
    rounds:
        Short for --set rounds=...
    seed:
        Short for --set seed=...
    out:
        Run folder, new or empty. Default: runs/DATA-MODEL-TIME.
    json_:
        Print one JSON line per round and nothing else.
    """
    changes = [*set_, *_shorthands(set_, method=method, rate=rate, rounds=rounds, seed=seed)]
    from feddrop.config import RunConfig
    from feddrop.simulation.run import Run

    settings = RunConfig.from_file(config, changes) if config else RunConfig.from_toml("", changes)
    folder = out or Path("runs") / f"{settings.data.name}-{settings.model.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    command = shlex.join(["feddrop", *sys.argv[1:]])
    _check(settings)
    _drive(lambda: Run(settings, folder, command=command, report=False), folder, json_)


def resume(
    folder: Path,
    *,
    back: int = 0,
    rounds: str | None = None,
    set_: Annotated[list[str], SET] = [],  # noqa: B006 -- cyclopts copies it
    json_: Json = False,
) -> None:
    """Continue a stopped run; the result is bit-identical to that of an uninterrupted run.

    Parameters
    ----------
    folder:
        Run folder.
    back:
        Number of last rounds to repeat, for example after a hostile update; the last two checkpoints are kept.
    rounds:
        Short for --set rounds=...
    set_:
        Change a setting that does not affect the result of a round, e.g. --set execution.workers=4 or --set rounds=200;
        may be repeated. The change is saved.
    json_:
        Print one JSON line per round and nothing else.
    """
    from feddrop.config import RunConfig
    from feddrop.simulation.run import Run, read_config

    settings = read_config(folder)
    _require_python(folder)
    if changes := [*set_, *_shorthands(set_, rounds=rounds)]:
        settings = RunConfig.from_toml(settings.to_toml(), changes)
    _check(settings)
    _drive(lambda: Run(settings, folder, resume=True, back=back, report=False), folder, json_)


def _check(settings: RunConfig) -> None:
    """Raise a ConfigError for all mistakes that can be found before the data are read."""
    from feddrop.simulation.custom import CustomObjects
    from feddrop.simulation.preflight import check_start

    check_start(settings.located(), CustomObjects())


def _shorthands(changes: list[str], **given: str | None) -> list[str]:
    """Turn ``--rate 0.9`` into ``rate=0.9``; a setting that is given twice is an error."""
    said = {change.partition("=")[0].strip() for change in changes}
    for key, value in given.items():
        if value is not None and key in said:
            raise ConfigError(f"{key} is given twice, by --{key} and by --set {key}=... Remove one of them.")
    return [f"{key}={value}" for key, value in given.items() if value is not None]


def _require_python(folder: Path) -> None:
    """Raise a RunError if a run with custom objects must be resumed from Python."""
    from feddrop.simulation.finish import resume_call
    from feddrop.storage import RunFolder

    about = RunFolder(folder).about()
    own = about.get("custom")
    if about.get("command") == "flwr run":
        raise RunError(f"{folder} is a run on Flower nodes. Continue it with the same `flwr run`.")
    if isinstance(own, list) and own:
        raise RunError(
            f"{folder} was started from Python with a custom {' and '.join(map(str, own))}, which is not saved. Resume "
            f"it from Python: {resume_call(folder, about)}."
        )


def _drive(start: Callable[[], Run], folder: Path, as_json: bool) -> None:
    """Run until the end, Ctrl-C or SIGTERM, show every round, and write the report.

    A signal lets the round finish; a second one stops at once. The exit code is that of the signal.
    """
    from feddrop.report.warned import divergence_advice
    from feddrop.simulation.live import show_run

    tell = note if as_json else say
    if not as_json:
        say("Preparing data and network ...")
    job = start()
    if job.finished:
        tell(f"{folder} is finished: {job.end}.")
    stop: list[int] = []
    record = None

    def on_signal(number: int, _: Any) -> None:
        if stop:
            raise SystemExit(128 + number)
        stop.append(number)
        note(f"\n{signal.Signals(number).name}: stopping after this round; Ctrl-C or SIGTERM again stops now ...")

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for record in job if as_json else show_run(job, Screen()):
            if as_json:
                print(json.dumps(record.to_json()), flush=True)
            if stop:
                break
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if job.round:
        _finish(job, folder, as_json)
    if stop:
        raise SystemExit(128 + stop[0])
    if record is not None and record.diverged:
        advice = divergence_advice(job.suspects, job.config.server)
        raise RunError(f"training diverged: the test loss after round {job.round} is {record.test_loss:.3g}. {advice}")


def _finish(job: Run, folder: Path, as_json: bool) -> None:
    """Write the report of a run that ended or was stopped, and say how to continue it."""
    from feddrop.report import write_report
    from feddrop.report.warned import suspects

    page = write_report(folder)
    if not as_json:
        if not job.finished:
            say(f"Stopped after round {job.round} of {job.config.rounds}. Continue with: feddrop resume {folder}")
        elif job.round < job.config.rounds:
            say(f"Finished after round {job.round}: {job.end}.")
        elif job.config.target_accuracy and "target_accuracy" not in job.end:
            say(f"Finished: {job.end}; target_accuracy = {job.config.target_accuracy:g} was not reached.")
        if line := suspects(job.suspects, job.config.server):
            say(line)
        say(f"Report: {page}")
