"""``run.json``: what was trained, from which configuration, with which versions; and whether a run may be resumed."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import secrets
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddrop.config.parsing import flat, is_under, json_value
from feddrop.errors import RunError, clean

if TYPE_CHECKING:
    from feddrop.config import RunConfig

log = logging.getLogger("feddrop")

FORMAT = 3
"""Format of run folders. A folder in another format is refused; feddrop 0.1 and 0.2 wrote no format number."""

FIXED = {
    "parameters": "network",
    "data_crc32": "data",
    "samples": "partition",
    "class_counts": "partition",
    "parts_crc32": "partition",
    "gains_crc32": "table of gains",
    "state": "method",
}
"""Facts that must be the same on resume, and what was exchanged if they are not."""

FREE = (
    *("rounds", "seconds", "joules", "target_accuracy", "record_devices", "data.path", "callbacks"),
    *(f"execution.{name}" for name in ("executor", "workers", "timeout_s", "address", "cpus", "gpus")),
)
"""Settings and sections that may change on resume, because they do not alter what a round computes. ``rounds`` is free
only if no other setting depends on it."""

VERSIONS = ("feddrop", "torch", "numpy", "python")
MACHINE = ("cpu", "cpu_capability", "mkl_cbwr")


DIGEST = "digest"
"""The key of ``run.json`` that holds the digest of everything else in it."""


def describe(config: RunConfig, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``run.json`` of a new run: the given facts, versions, machine, configuration and its digest."""
    text = config.to_toml()
    return {
        "format": FORMAT,
        "id": secrets.token_hex(8),
        **json_value(facts),
        "files_crc32": _files_crc32(config),
        **versions(),
        **machine(),
        "config": text,
        "config_digest": digest(config, text),
        "resumed": [],
    }


def to_file(about: Mapping[str, Any]) -> bytes:
    """Return the contents of ``run.json``, with a digest by which a reader notices a change."""
    facts = {key: value for key, value in about.items() if key != DIGEST}
    return json.dumps({**facts, DIGEST: _facts_digest(facts)}, indent=1).encode()


def changed(about: Mapping[str, Any]) -> bool:
    """Return whether ``run.json`` differs from what was written; one without a digest is not known to."""
    facts = {key: value for key, value in about.items() if key != DIGEST}
    return DIGEST in about and about[DIGEST] != _facts_digest(facts)


def _facts_digest(facts: Mapping[str, Any]) -> str:
    return _json_digest(json.loads(json.dumps(facts)))  # as a reader sees it: keys are strings, tuples are lists


def _json_digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def versions() -> dict[str, str]:
    """Return the versions that may change a result."""
    from importlib.metadata import version

    import numpy
    import torch

    return {
        "feddrop": version("feddrop"),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def machine() -> dict[str, str]:
    """Return what decides the order of float sums on a CPU, and so the last bits of a result.

    These are the processor, the instructions that torch uses (which ``ATEN_CPU_CAPABILITY`` can change) and the
    reproducibility mode of MKL. Threads are a setting, ``execution.threads``.
    """
    import torch

    return {
        "cpu": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkl_cbwr": os.environ.get("MKL_CBWR", ""),
    }


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def digest(config: RunConfig, text: str = "") -> str:
    """Return a digest of the settings that may not change on resume; ``text`` is their TOML, if it is known."""
    settings = flat(tomllib.loads(text or config.to_toml()))
    chosen = {key: value for key, value in settings.items() if not _is_free(key, config)}
    return _json_digest(chosen)


def resumed(
    before: Mapping[str, Any], config: RunConfig, facts: Mapping[str, Any], *, folder: object, done: int
) -> dict[str, Any]:
    """Compare a run that is about to be resumed with its start, and return its new ``run.json``.

    Changed settings and versions are appended to its list ``resumed``; changed versions are also logged. Another
    network, partition, setting or file is a RunError, and so are more finished rounds (``done``) than asked for.
    """
    changed = check_config(before, config, folder=folder, done=done)
    now, where = json_value(facts), clean(folder)
    if other := [what for key, what in FIXED.items() if key in now and before.get(key) != now[key]]:
        raise RunError(f"{where} was started with another {other[0]}. Use the same one to resume it.")
    for name, why in _changed_objects(before, now).items():
        raise RunError(f"{where} was started with another {name}: {why}. Use the same one to resume it.")
    entries = before.get("resumed")
    history = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    known = {key: value for entry in (before, *history) for key, value in entry.items() if key in VERSIONS + MACHINE}
    new = {key: value for key, value in (versions() | machine()).items() if known.get(key) != value}
    if new:
        log.warning("%s resumes with %s", where, _other_versions(known, new))
    if not new and not changed:
        return dict(before)
    entry: dict[str, Any] = {"after_round": done, **new}
    if changed:
        entry["changed"] = json_value({key: value for key, (_, value) in changed.items()})  # JSON has no infinity
    return {**before, "config": config.to_toml(), "config_digest": digest(config), "resumed": [*history, entry]}


def resumptions(about: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line per time that a run was resumed under other versions or on another machine."""
    entries, known = about.get("resumed"), dict(about)
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict):
            continue
        if new := {key: entry[key] for key in VERSIONS + MACHINE if key in entry}:
            yield f"resumed after round {clean(entry.get('after_round'), 20)} with {_other_versions(known, new)}"
            known |= new


def _other_versions(known: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return what differs, as the end of a sentence."""
    pairs = {key: (clean(known.get(key) or "unset", 60), clean(value or "unset", 60)) for key, value in new.items()}
    listed = ", ".join(f"{key} {old} before, {value} now" for key, (old, value) in pairs.items())
    what = "other versions" if set(new) & set(VERSIONS) else "another machine or mode of arithmetic"
    return f"{what}: {listed}. Results may differ in the last bits."


def comparable(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return what counts of an object's fingerprint: no name if its code is known, nothing if it is not stable."""
    if part.get("stable") is False:
        return {}
    return {
        key: comparable(value) if isinstance(value, Mapping) else value
        for key, value in part.items()
        if key != "name" or "code" not in part
    }


def _changed_objects(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Return the custom objects that changed since the start, and how; those that cannot be compared are left out."""
    old, new = (about.get("identity") or {} for about in (before, now))
    known, found = old.get("objects") if isinstance(old, dict) else None, {}
    other_python = str(before.get("python")).split(".")[:2] != platform.python_version().split(".")[:2]
    for name, part in (new.get("objects") or {}).items():
        first = known.get(name) if isinstance(known, dict) else None
        if not isinstance(first, dict) or False in (first.get("stable"), part.get("stable")):
            continue
        if other_python and "code" in part:  # another version compiles to other bytecode
            continue
        was, is_ = flat(comparable(first)), flat(comparable(part))
        if keys := [key for key in dict.fromkeys((*was, *is_)) if was.get(key) != is_.get(key)]:
            pairs = [f"{key} was {clean(was.get(key), 60)}, is {clean(is_.get(key), 60)}" for key in keys[:2]]
            found[name] = "; ".join(pairs)
    return found


def check_config(
    before: Mapping[str, Any], config: RunConfig, *, folder: object, done: int
) -> dict[str, tuple[Any, Any]]:
    """Raise if a run cannot be resumed with a configuration; return the changed settings as (old, new) pairs."""
    changed = _changes(before, config, clean(folder))
    barred = {key: values for key, values in changed.items() if not _is_free(key, config)}
    refuse(barred, folder, f" ({depends_on_rounds(config)} depends on it)" if "rounds" in barred else "")
    check_rounds(config, done, folder)
    check_files(before, config, folder)
    return changed


def check_text(text: str, before: str, folder: object) -> None:
    """Raise if ``config.toml`` differs from the copy in ``run.json`` in a setting that shapes the run."""
    try:
        same = text == before or flat(tomllib.loads(text)) == flat(tomllib.loads(before))
    except (ValueError, RecursionError):  # the parser reports it
        return
    if not same:
        from feddrop.config import RunConfig

        config = RunConfig.from_toml(text)
        changed = _changes({"config": before}, config, clean(folder))
        refuse({key: pair for key, pair in changed.items() if not _is_free(key, config) and key != "rounds"}, folder)


def refuse(changed: Mapping[str, tuple[Any, Any]], folder: object, why: str = "") -> None:
    """Raise if any setting was changed that may not change on resume; settings are given as (old, new) pairs."""
    if changed:
        pairs = "; ".join(f"{key} was {clean(old, 40)}, is {clean(new, 40)}" for key, (old, new) in changed.items())
        begin = f"the configuration of {clean(folder)} was changed since the run started: {pairs}{why}"
        raise RunError(f"{begin}. Resume without this change, or start a new run.")


def check_rounds(config: RunConfig, done: int, folder: object) -> None:
    """Raise if more rounds are finished than the configuration asks for."""
    if done > config.rounds:
        begin = f"{clean(folder)} holds {done} rounds, but rounds is {config.rounds}"
        raise RunError(f"{begin}. Set rounds to at least {done}, or choose another folder.")


def check_files(before: Mapping[str, Any], config: RunConfig, folder: object) -> None:
    """Raise if a file that the configuration names has changed since the run started."""
    known = before.get("files_crc32")
    for key, crc in _files_crc32(config).items():
        if isinstance(known, dict) and known.get(key) != crc:
            name = f"{clean(config.files()[key])} ({key} of {clean(folder)})"
            raise RunError(f"{name} was changed or removed since the run started. Restore it, or start a new run.")


def _files_crc32(config: RunConfig) -> dict[str, int | None]:
    """Return a checksum of every file that the configuration names, by setting; None if it cannot be read."""
    return {key: _crc32(path) for key, path in config.files().items() if not _is_free(key, config)}


def _crc32(path: Path) -> int | None:
    if not path.is_file():  # a pipe may never end, and cannot be read twice
        return None
    found = 0
    try:
        with path.open("rb") as file:
            while part := file.read(2**20):
                found = zlib.crc32(part, found)
    except OSError:
        return None
    return found


def _is_free(key: str, config: RunConfig) -> bool:
    if key == "rounds" and depends_on_rounds(config):
        return False
    return is_under(key, FREE)


def depends_on_rounds(config: RunConfig) -> str:
    """Return the setting through which the total number of rounds shapes each of them; empty if no setting does."""
    return "train.schedule" if config.train.schedule != "constant" else config.method.by_rounds


def _changes(before: Mapping[str, Any], config: RunConfig, where: str) -> dict[str, tuple[Any, Any]]:
    """Return the settings that changed since the start, as (old, new) pairs."""
    try:  # read as a configuration, so that a missing key has its default
        old = flat(tomllib.loads(type(config).from_toml(str(before["config"])).to_toml()))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        why = clean(error, 80)
        raise RunError(
            f"run.json of {where} has no valid configuration ({why}). Restore it, or start a new run."
        ) from None
    new = flat(tomllib.loads(config.to_toml()))
    keys = sorted(old.keys() | new.keys())
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}
