"""``run.json``: what was trained, by which versions, from which configuration; and whether it may go on."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import secrets
import tomllib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddrop.config.parsing import flat, json_value
from feddrop.errors import RunError, clean

if TYPE_CHECKING:
    from feddrop.config import RunConfig

log = logging.getLogger("feddrop")

SAME = {
    "parameters": "network",
    "data_crc32": "data",
    "samples": "partition",
    "class_counts": "partition",
    "parts_crc32": "partition",
    "gains_crc32": "table of gains",
    "state": "method",
}
"""Facts that must be those of the start, and what differs if they are not."""

FREE = (
    *("rounds", "data.path", "callbacks"),
    *(f"execution.{name}" for name in ("executor", "workers", "timeout_s", "address", "cpus", "gpus")),
)
"""Settings, or sections, that may change between two parts of a run: they do not alter what a round does. The number of
rounds is one of them only where nothing goes by it."""

VERSIONS = ("feddrop", "torch", "numpy", "python")


def describe(config: RunConfig, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``run.json`` says of a new run: the facts given, versions, machine, configuration and its digest."""
    return {
        "id": secrets.token_hex(8),
        **json_value(facts),
        "files_crc32": _contents(config),
        **versions(),
        "cpu": platform.processor() or platform.machine(),
        "config": config.to_toml(),
        "config_digest": digest(config),
        "resumed": [],
    }


def versions() -> dict[str, str]:
    """Return the versions that may alter a result."""
    from importlib.metadata import version

    import numpy
    import torch

    python = platform.python_version()
    return {
        "feddrop": version("feddrop"),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "python": python,
    }


def digest(config: RunConfig) -> str:
    """Return a digest of what decides the outcome: every setting but those that may change between parts of a run."""
    chosen = {key: value for key, value in flat(tomllib.loads(config.to_toml())).items() if not _free(key, config)}
    return hashlib.blake2b(json.dumps(chosen, sort_keys=True).encode(), digest_size=16).hexdigest()


def check(
    before: Mapping[str, Any], config: RunConfig, facts: Mapping[str, Any], *, folder: object, done: int
) -> dict[str, Any]:
    """Hold what is about to go on to what was started.

    Args:
        before: what ``run.json`` says.
        config: the configuration of now.
        facts: the facts of now.
        folder: the run folder, for messages.
        done: rounds that are done.

    Returns:
        What ``run.json`` says from now on: settings that were free to change, and another version of Python, torch,
        NumPy or feddrop, are added to its list ``resumed``, and a warning says so.

    Raises:
        RunError: network, data, partition, a setting or a file that it names differ, or more rounds are done than asked
            for; the message names it and what to do.
    """
    now, where = json_value(facts), clean(folder)
    changed = check_config(before, config, folder=folder, done=done)
    for key, what in SAME.items():
        if key in now and before.get(key, now[key]) != now[key]:  # a run of an older version has fewer facts
            raise RunError(f"{where} was started with another {what}. Give the same one to resume it.")
    resumed = before.get("resumed")
    history = [entry for entry in resumed if isinstance(entry, dict)] if isinstance(resumed, list) else []
    known = {key: value for entry in (before, *history) for key, value in entry.items() if key in VERSIONS}
    other = {key: value for key, value in versions().items() if known.get(key) != value}
    if other:
        told = ", ".join(f"{key} {clean(known.get(key), 40)} before, {value} now" for key, value in other.items())
        log.warning("%s goes on with other versions: %s. Results may differ in the last bits.", where, told)
    if not other and not changed:
        return dict(before)
    entry: dict[str, Any] = {"after_round": done, **other}
    if changed:
        entry["changed"] = {key: new for key, (_, new) in changed.items()}
    return {**before, "config": config.to_toml(), "config_digest": digest(config), "resumed": [*history, entry]}


def check_config(
    before: Mapping[str, Any], config: RunConfig, *, folder: object, done: int
) -> dict[str, tuple[Any, Any]]:
    """Hold a configuration to that of the start; return the settings that changed and may: what each was, and is."""
    changed = _changes(before, config, clean(folder))
    barred = {key: values for key, values in changed.items() if not _free(key, config)}
    refuse(barred, folder, f" ({_by_rounds(config)} goes by their number)" if "rounds" in barred else "")
    check_rounds(config, done, folder)
    check_files(before, config, folder)
    return changed


def refuse(changed: Mapping[str, tuple[Any, Any]], folder: object, why: str = "") -> None:
    """Raise where settings were changed that may not be, given by what each was, and is."""
    if changed:
        told = "; ".join(f"{key} was {clean(old, 40)}, is {clean(new, 40)}" for key, (old, new) in changed.items())
        raise RunError(
            f"the configuration of {clean(folder)} was changed since it was started: {told}{why}. Put back what was, "
            "or start a new run with it."
        )


def check_rounds(config: RunConfig, done: int, folder: object) -> None:
    """Raise where fewer rounds are asked for than are done."""
    if done > config.rounds:
        raise RunError(
            f"{clean(folder)} holds {done} rounds, and rounds is {config.rounds} now: a run does not go back. Ask for "
            "as many or more, name another folder, or delete it."
        )


def check_files(before: Mapping[str, Any], config: RunConfig, folder: object) -> None:
    """Raise where a file that the configuration names is not what it was when the run was started."""
    known, now = before.get("files_crc32"), _contents(config)
    for key, crc in known.items() if isinstance(known, dict) else ():
        if now.get(key, crc) != crc:
            raise RunError(
                f"{key} of {clean(folder)} names {clean(config.files()[key])}, which was changed since the run was "
                "started, or is gone. Put back what was, or start a new run with it."
            )


def _contents(config: RunConfig) -> dict[str, int | None]:
    """Return a checksum of every file that the configuration names, by setting; None where it cannot be read."""
    return {key: _crc32(path) for key, path in config.files().items() if not _free(key, config)}


def _crc32(path: Path) -> int | None:
    if not path.is_file():  # a pipe has no end, or no second time
        return None
    found = 0
    try:
        with path.open("rb") as file:
            while part := file.read(2**20):
                found = zlib.crc32(part, found)
    except OSError:
        return None
    return found


def _free(key: str, config: RunConfig) -> bool:
    if key == "rounds" and _by_rounds(config):
        return False
    return any(key == one or key.startswith(f"{one}.") for one in FREE)


def _by_rounds(config: RunConfig) -> str:
    """Name the setting through which the number of rounds decides what each of them does; empty where none does."""
    if config.train.schedule != "constant":
        return "train.schedule"
    return config.method.by_rounds


def _changes(before: Mapping[str, Any], config: RunConfig, where: str) -> dict[str, tuple[Any, Any]]:
    """Return the settings that changed: what each was, and is."""
    try:  # through the same reading, so that a key which is new since then counts as its default
        old = flat(tomllib.loads(type(config).from_toml(str(before["config"])).to_toml()))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise RunError(
            f"run.json of {where} does not tell the configuration that it was started with ({clean(error, 80)}). "
            "Restore it, or start a new run."
        ) from None
    new = flat(tomllib.loads(config.to_toml()))
    keys = sorted(old.keys() | new.keys())
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}
