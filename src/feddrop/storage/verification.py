"""The one verification that every reader of a run folder uses; ``feddrop check`` prints its findings.

A checkpoint holds the digest of all lines of metrics before it and the rows of devices that are in no file yet; the
lines hold the digests of the files of devices; ``run.json`` holds the configuration. Reading needs no lock and no
torch: beside a writer, it sees the rounds up to a recent one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from feddrop.errors import FeddropError, RunError, clean
from feddrop.storage import manifest
from feddrop.storage.devices import DEVICES, DeviceTable, RoundDevices
from feddrop.storage.files import digest, is_folder, os_errors, read_whole
from feddrop.storage.lines import METRICS, Line, blocks_of, parse_lines
from feddrop.storage.records import RoundRecord
from feddrop.storage.sealed import DamagedError, checkpoint_path, notes_of, peek, saved_rounds

if TYPE_CHECKING:
    from feddrop.storage.reading import RunReader

ROWS = f"{DEVICES}/rows"
"""The tensor of a checkpoint that holds the rows of the open block."""
CHECKPOINTS, MEMORIES = "checkpoints", "memories"
_TRIES = 3
"""Attempts to read a run beside a writer that replaces its checkpoints."""
_ADVICE = "Restore it from a backup, or read the run as it is: load_run and load_model take verify=False."
_MISSING, _REPEAT = "it is missing.", "Resume the run to repeat rounds from an earlier checkpoint."


class Saved(NamedTuple):
    """The saved rounds of a run, and their devices."""

    records: list[RoundRecord]
    devices: DeviceTable


class Finding(NamedTuple):
    """What ``feddrop check`` says about a file; ``problem`` is empty if it is intact."""

    name: str
    problem: str
    note: str = ""


class Mark(NamedTuple):
    """What a checkpoint says about the lines and rows before it."""

    round: int
    metrics: str
    rows: bytes


def read_saved(reader: RunReader, *, verify: bool = True) -> Saved:
    """Read all saved rounds of a run; RunError if anything differs from what was written.

    Without ``verify``, only unreadable files are an error. A last round that has no checkpoint yet is skipped: its
    devices are not saved, and a resumed run repeats it.
    """
    saved, problem, changed = _read_lines(reader)
    if verify:
        problem = problem or changed or manifest_problem(reader)
    if problem:
        raise RunError(problem)
    if verify:
        saved.devices.check()
    return saved


def manifest_problem(reader: RunReader) -> str:
    """Return that ``run.json`` is not what was written; empty if it is."""
    if not manifest.changed(reader.about()):
        return ""
    return f"{clean(reader.path / 'run.json')} is not what was written: its digest does not match. {_ADVICE}"


def _read_lines(reader: RunReader) -> tuple[Saved, str, str]:
    """Return the saved rounds, why a line cannot be read, and how the lines differ from what was written."""
    for _ in range(_TRIES):
        marks = list(_marks(reader.path / CHECKPOINTS))  # before the lines: a writer appends a line first
        data = reader.read(METRICS, b"")
        where = clean(reader.path / METRICS)
        lines, problem = parse_lines(data, where)
        mark, changed = _matching(reader.path / CHECKPOINTS, marks, lines, data)
        if changed:
            changed = f"{where} is not what was written: {changed}. {_ADVICE}"
        blocks = blocks_of(lines)
        closed = blocks[-1].last if blocks else 0
        known = max(mark.round if mark else 0, closed)
        if len(lines) > known + 1 and not changed:
            changed = (
                f"the devices of rounds {known + 1} to {len(lines)} in {clean(reader.path)} are lost: the checkpoints "
                f"that held them are damaged or missing. Resume the run to repeat the rounds. {_ADVICE}"
            )
        elif len(lines) == known + 1:
            lines = lines[:-1]
        if not problem and not changed:
            break
    table = DeviceTable(reader.path / DEVICES, blocks, mark.rows if mark and mark.round > closed else b"")
    records = [replace(one.record, devices=RoundDevices(table, one.record.round)) for one in lines]
    return Saved(records, table), problem, changed


def _marks(folder: Path) -> Iterator[Mark]:
    """Yield what the checkpoints say, newest first; those that cannot be read are left out."""
    for round_ in reversed(saved_rounds(folder)):
        try:
            notes, rows = peek(checkpoint_path(folder, round_), ROWS)
        except DamagedError:
            continue
        if notes.get("round") == str(round_) and notes.get(DEVICES) == digest(rows):
            yield Mark(round_, str(notes.get("metrics")), rows)


def _matching(folder: Path, marks: list[Mark], lines: Sequence[Line], data: bytes) -> tuple[Mark | None, str]:
    """Return the newest checkpoint that fits the lines, and what is wrong with the lines if an intact one does not."""
    for mark in marks:
        if mark.round <= len(lines):
            if digest(data[: lines[mark.round - 1].end]) == mark.metrics:
                return mark, ""
            why = f"a line of rounds 1 to {mark.round} was changed"
        else:
            why = f"it ends after round {len(lines)}, and round {mark.round} was saved"
        if not sealed_problem(checkpoint_path(folder, mark.round)):
            return mark, why
    return None, ""


def sealed_problem(path: Path) -> str:
    """Return what is wrong with a checkpoint or memory; empty if it is intact and named after what it holds."""
    try:
        with os_errors("read", path):
            notes = notes_of(read_whole(path))
    except (DamagedError, RunError) as error:
        return str(error)
    holds = "-".join(f"{key}-{notes[key]:>06}" for key in ("device", "round") if key in notes)
    return "" if f"{holds}.safetensors" == path.name else f"it holds {clean(holds, 60)}"


def inspect(reader: RunReader) -> Iterator[Finding]:
    """Yield a finding about every file of a run, and about those that are missing."""
    if not is_folder(reader.path):
        raise RunError(f"{clean(reader.path)} does not exist. Give a run folder.")
    if not any((reader.path / name).exists() for name in ("run.json", "config.toml", METRICS)):
        raise RunError(f"{clean(reader.path)} holds no run. Give a folder that `feddrop run --out DIR` wrote.")
    for name, read in (("run.json", reader.about), ("config.toml", reader.settings)):
        problem = _error(read) if (reader.path / name).exists() else _MISSING
        yield Finding(name, problem or (manifest_problem(reader) if read == reader.about else ""))
    done = 0
    try:
        saved, *problems = _read_lines(reader)
    except RunError as error:
        yield Finding(METRICS, str(error))
    else:
        done = len(saved.records)
        yield Finding(METRICS, " ".join(filter(None, problems)), f"{done} rounds")
        for block in saved.devices.blocks:
            yield Finding(f"{DEVICES}/{block.name}", _error(partial(block.read, reader.path / DEVICES)))
    needed = {checkpoint_path(reader.path / CHECKPOINTS, done)} if done else set()
    for name in (CHECKPOINTS, MEMORIES):
        for path in sorted(needed | {*(reader.path / name).glob("*.safetensors")}):
            there = path.exists() or path.is_symlink()
            yield Finding(f"{name}/{path.name}", sealed_problem(path) if there else f"{_MISSING} {_REPEAT}")
        needed = _memories(reader.path)


def _memories(folder: Path) -> set[Path]:
    """Return the files of memories that the checkpoints of a run refer to."""
    found = set()
    for round_ in saved_rounds(folder / CHECKPOINTS):
        with suppress(DamagedError):
            _, written = peek(checkpoint_path(folder / CHECKPOINTS, round_), f"{MEMORIES}/rounds")
            for device, (last,) in enumerate(struct.iter_unpack("<i", written[: len(written) // 4 * 4])):
                if last:
                    found.add(folder / MEMORIES / f"device-{device:06d}-round-{last:06d}.safetensors")
    return found


def _error(read: Callable[[], object]) -> str:
    try:
        read()
    except FeddropError as error:
        return str(error)
    return ""
