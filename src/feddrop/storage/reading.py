"""Read the text files of a run folder. Nothing in them is trusted: a RunError says which file is wrong, and how."""

from __future__ import annotations

import tomllib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddrop.config.parsing import load_json
from feddrop.errors import RunError, clean
from feddrop.storage.files import os_errors, read_whole
from feddrop.storage.manifest import FORMAT
from feddrop.storage.records import RoundRecord

if TYPE_CHECKING:
    from feddrop.config import RunConfig

CONFIG, MANIFEST, METRICS, REPORT = "config.toml", "run.json", "metrics.jsonl", "report.html"
OVERWRITING = "overwriting"
"""The only key of ``run.json`` while a run is being overwritten."""


def read_bytes(folder: Path, name: str, default: bytes | None = None) -> bytes:
    """Read a file of a run folder; ``default`` if it does not exist."""
    with os_errors("read", folder / name):
        try:
            return read_whole(folder / name)
        except (FileNotFoundError, NotADirectoryError):
            if default is not None:
                return default
    raise RunError(f"{clean(folder)} has no {name}: not a run folder. Give one that `feddrop run --out DIR` wrote.")


def read_config(folder: Path) -> RunConfig:
    """Read and validate the configuration."""
    from feddrop.config import RunConfig

    read_manifest(folder)  # first: a folder of another version is refused as such, not for the keys it has
    text, path = _config_text(folder), folder / CONFIG
    return RunConfig.from_file(path) if path.exists() else RunConfig.from_toml(text)


def read_settings(folder: Path) -> dict[str, Any]:
    """Read the configuration as written, section by section, without validating the settings."""
    text = _config_text(folder)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError
        raise RunError(f"{clean(folder / CONFIG)} is not valid TOML: {clean(error, 120)}. Restore it.") from None


def read_json(folder: Path) -> dict[str, Any]:
    """Read ``run.json`` whatever it says; empty if there is no such file."""
    found, why = None, "it does not hold a JSON object"
    try:
        found = load_json(read_bytes(folder, MANIFEST, b"{}"))
    except ValueError as error:
        why = f"it is not valid JSON: {clean(error, 120)}"
    if not isinstance(found, dict):
        path = clean(folder / MANIFEST)
        raise RunError(f"{path} cannot be read: {why}. Restore it; to read the run without it, delete it.")
    return found


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read ``run.json`` of a run that this version can read; empty if there is no such file.

    Raises:
        RunError: it cannot be read, another version wrote it, or the run was being overwritten.
    """
    found, problem = read_json(folder), ""
    if OVERWRITING in found:
        problem = "it was being overwritten. Start the new run again with overwrite=True, or delete the folder"
    elif "feddrop" in found and found.get("format") != FORMAT:
        version = f"feddrop {clean(found['feddrop'], 40)}"
        problem = f"it was written by {version}, in a format that this version does not support. Use {version}"
    if problem:
        raise RunError(f"cannot read the run in {clean(folder)}: {problem}.")
    return found


def read_records(folder: Path) -> list[RoundRecord]:
    """Read the finished rounds; a last line that was cut off in the middle is skipped.

    Raises:
        RunError: a line is malformed; the message says which and why.
    """
    found: list[RoundRecord] = []
    rows = read_bytes(folder, METRICS, b"").decode("utf-8", errors="replace").split("\n")
    for number, row in enumerate(rows, 1):
        if not row.strip():
            continue
        place, problem = f"{clean(folder / METRICS)} line {number}", ""
        try:
            record = RoundRecord.from_json(load_json(row), place)
        except ValueError as error:
            if number == len(rows):  # no newline after it: cut off while writing
                break
            problem = f" is not valid JSON: {clean(error, 120)}. Restore the line, or resume the run."
        else:
            if found and record.round <= found[-1].round:
                problem = f": round {record.round} follows round {found[-1].round}. Did two runs write to this folder?"
            found.append(record)
        if problem:
            raise RunError(f"{place}{problem}")
    return found


def _config_text(folder: Path) -> str:
    """Return the configuration; if a kill came before its file was written, the copy in ``run.json``."""
    copy = None
    with suppress(OSError):  # no permission: reading the file reports it
        copy = None if (folder / CONFIG).exists() else read_manifest(folder).get("config")
    return copy if isinstance(copy, str) else read_bytes(folder, CONFIG).decode("utf-8", errors="replace")
