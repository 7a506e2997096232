"""The run folder: its only reader and writer.

    config.toml        the full configuration
    run.json           what was trained, from which configuration, with which versions
    metrics.jsonl      one line per round
    devices/           one row per device per round, in Parquet files
    checkpoints/       the last two rounds and the best one
    memories/          what devices remember, if the method uses memories
    report.html        the report

A run starts by writing run.json, which also holds the configuration: a folder without it holds no run. A round is saved
in the order memories, devices, line, checkpoint. A kill in between costs that round, which is repeated bit by bit.
"""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddrop.errors import FeddropWarning, RunError, clean
from feddrop.storage import manifest, recovery
from feddrop.storage.devices import DEVICES, DeviceWriter, remove
from feddrop.storage.files import append_line, digest, is_empty, locked, os_errors, sync_folder, write_atomically
from feddrop.storage.lines import METRICS, Line, blocks_of, parse_lines, to_line
from feddrop.storage.reading import CONFIG, MANIFEST, OVERWRITING, REPORT, RunReader
from feddrop.storage.records import RoundRecord
from feddrop.storage.sealed import DamagedError, checkpoint_path, saved_rounds
from feddrop.storage.verification import CHECKPOINTS, MEMORIES

if TYPE_CHECKING:
    from torch import Tensor

    from feddrop.config import RunConfig
    from feddrop.storage.checkpoints import Checkpoint
    from feddrop.storage.memories import Memories

log = logging.getLogger("feddrop")


class RunFolder(RunReader):
    """A run folder, which need not exist yet. Every method that writes must run inside :meth:`locked`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._size = 0  # of the metrics
        self._digest = hashlib.blake2b(digest_size=16)
        self._best: tuple[float, int] | None = None
        self._inode: tuple[int, int] | None = None
        self._manifest: tuple[int, int] | None = None

    @cached_property
    def _devices(self) -> DeviceWriter:
        return DeviceWriter(self.path / DEVICES)

    @cached_property
    def memories(self) -> Memories:
        """The memories of the run's devices."""
        from feddrop.storage.memories import Memories

        return Memories(self.path / MEMORIES)

    def checkpoint(self, *, best: bool = False, strict: bool = False) -> Checkpoint:
        """Read the newest intact checkpoint, or with ``best`` that of the round with the best test result.

        If the checkpoint of the last round is damaged or missing, an earlier one is a FeddropWarning; with ``strict``,
        a RunError.
        """
        from feddrop.storage.checkpoints import load_checkpoint, read_checkpoint

        found, problem = None, "holds no checkpoint that can be read. Let it finish a round"
        if not best:
            found = load_checkpoint(self.path / CHECKPOINTS)
            self._compare_with_last(found, strict=strict)
        elif wanted := recovery.best_round(self.saved(verify=False).records):
            try:
                found = read_checkpoint(self.path / CHECKPOINTS, wanted[1])
            except DamagedError as error:
                problem = f"has a damaged best checkpoint, of round {wanted[1]}: {error}. Use the last one instead"
        else:
            problem = "has no round with a test result. Use the last checkpoint instead"
        if found is None:
            raise RunError(f"{clean(self.path)} {problem}.")
        return found

    def _compare_with_last(self, found: Checkpoint | None, *, strict: bool) -> None:
        """Warn, or raise, if a checkpoint is not of the last round."""
        from feddrop.storage.checkpoints import read_checkpoint

        last = max([len(self._lines()[1]), *saved_rounds(self.path / CHECKPOINTS)[-1:]])
        if found is None or found.round >= last:
            return
        why = ""
        try:
            read_checkpoint(self.path / CHECKPOINTS, last)
        except DamagedError as error:
            why = f": {error}"
        begin = f"the checkpoint of round {last}, the last of {clean(self.path)}, is damaged or missing{why}"
        if strict:
            raise RunError(
                f"{begin}. Resume the run to repeat the round, or use round {found.round} with strict=False."
            )
        text = f"{begin}. Using round {found.round} instead; resume the run to repeat the rounds after it."
        warnings.warn(text, FeddropWarning, stacklevel=4)

    def saved_round(self) -> int:
        """Return the round that the run would resume after: the newest intact one; 0 for the start."""
        found, _ = recovery.newest_pair(self.path / CHECKPOINTS, *self._lines(), self.memories)
        return found.round if found else 0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other writers."""
        with locked(self.path, CHECKPOINTS, MEMORIES, DEVICES):
            self._inode = self._identity("")
            yield

    def check_free(self, *, overwrite: bool = False) -> None:
        """Raise unless a new run may be written here: the folder is new, empty, or a run that may be overwritten."""
        if is_empty(self.path):
            return
        found: dict[str, Any] = {}
        with suppress(RunError):
            found = self.manifest()
        name, is_run, problem = clean(self.path), "config_digest" in found or OVERWRITING in found, ""
        if overwrite and not is_run:
            problem = f"{name} is not empty and holds no run; only a run is overwritten. Choose a new folder."
        elif not overwrite and OVERWRITING in found:
            self.about()  # says so
        elif not overwrite:
            more = f", run `feddrop resume {name}`, or in Python pass overwrite=True" if is_run else ""
            problem = f"{name} is not empty. Choose a new folder{more}."
        if problem:
            raise RunError(problem)

    def begin(self, config: RunConfig, facts: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Start a run in a free folder: write its ``run.json`` and its configuration."""
        self.check_free(overwrite=overwrite)
        if overwrite:
            self._clear()
        about = manifest.describe(config, facts)
        self._write(MANIFEST, manifest.to_file(about))
        self._write(CONFIG, str(about["config"]).encode())
        self._manifest = self._identity(MANIFEST)

    def check_unchanged(self) -> None:
        """Raise if another process wrote to the folder since :meth:`begin` or :meth:`reopen`."""
        metrics = self.path / METRICS
        size = metrics.stat().st_size if metrics.exists() else 0
        if self._identity(MANIFEST) != self._manifest or size != self._size:
            advice = "Resume the run, or start it in another folder."
            raise RunError(f"{clean(self.path)} was modified by another process. {advice}")

    def check_config(self, config: RunConfig) -> None:
        """Raise if the run cannot be resumed with this configuration."""
        manifest.check_config(self.begun(), config, folder=self.path, done=len(self._lines()[1]))

    def reopen(self, config: RunConfig, facts: Mapping[str, Any]) -> Checkpoint | None:
        """Prepare to resume a run: compare it with its start, and return to the newest intact checkpoint, if any.

        The metrics are cut to that checkpoint; the rounds after it are repeated.
        """
        before, (data, lines) = self.begun(), self._lines()
        now = manifest.resumed(before, config, facts, folder=self.path, done=len(lines))
        found, lines = recovery.newest_pair(self.path / CHECKPOINTS, data, lines, self.memories)
        self._go_back(data, lines, found)
        if now["config"] != before.get("config") or not (self.path / CONFIG).exists():
            self._write(CONFIG, config.to_toml().encode())
        if now != before:
            self._write(MANIFEST, manifest.to_file(now))
        self._manifest = self._identity(MANIFEST)
        return found

    def drop_rounds(self, count: int) -> None:
        """Delete the checkpoints of the last rounds, so that the run resumes from the round before them."""
        rounds = saved_rounds(self.path / CHECKPOINTS)
        last = self.saved_round()
        choices = [last - round_ for round_ in reversed(rounds) if round_ < last]
        if count not in choices:
            known = " or ".join(map(str, choices))
            advice = f"it can go back by {known}" if choices else "it cannot go back: start it again"
            raise RunError(f"back is {count}, but {clean(self.path)} is at round {last}; {advice}.")
        for round_ in rounds:
            if round_ > last - count:
                checkpoint_path(self.path / CHECKPOINTS, round_).unlink()

    def save(self, record: RoundRecord, groups: Mapping[str, Mapping[str, Tensor]], *, last: bool = False) -> None:
        """Save a round: its line and devices, then the tensors to resume from, by group (``params``, ``state``).

        With the ``last`` round, all devices are written to files.
        """
        import torch

        from feddrop.storage.checkpoints import save_checkpoint

        self._check_inode()
        rows, block = self._devices.add(record, last=last)
        line = to_line(record, block)
        append_line(self.path / METRICS, line, self._size)
        self._size += len(line)
        self._digest.update(line)
        if record.score is not None and (self._best is None or record.score > self._best[0]):
            self._best = (record.score, record.round)
        index = self.memories.commit(record.round)
        more = {recovery.INDEX: {"rounds": index}} if len(index) else {}
        if rows:
            more[DEVICES] = {"rows": torch.frombuffer(bytearray(rows), dtype=torch.uint8)}
        kept = save_checkpoint(
            self.path / CHECKPOINTS,
            record.round,
            {**groups, **more},
            notes={"metrics": self._digest.hexdigest(), DEVICES: digest(rows)},
            best=self._best[1] if self._best else 0,
        )
        self._devices.commit()
        self.memories.keep(kept)

    def _lines(self) -> tuple[bytes, Sequence[Line]]:
        """Read the metrics: their bytes, and their lines up to the first that is missing or damaged."""
        data = self.read(METRICS, b"")
        return data, parse_lines(data, clean(self.path / METRICS))[0]

    def _go_back(self, before: bytes, lines: Sequence[Line], found: Checkpoint | None) -> None:
        """Cut the metrics to these lines, and restore the devices and memories of a checkpoint."""
        from feddrop.storage.checkpoints import prune

        data = before[: lines[-1].end if lines else 0]
        if data != before:
            self._write(METRICS, data)
        self._size, self._digest = len(data), hashlib.blake2b(data, digest_size=16)
        self._best = recovery.best_round([line.record for line in lines])
        rows = found.groups.get(DEVICES, {}).get("rows") if found else None
        for block in blocks_of(lines):
            try:
                block.read(self.path / DEVICES)
            except RunError as error:  # a record, which no later round needs
                log.warning("%s", error)
        self._devices.restore(blocks_of(lines), b"" if rows is None else rows.numpy().tobytes())
        if found:
            prune(self.path / CHECKPOINTS, found.round, self._best[1] if self._best else 0)
        if (self.path / MEMORIES).is_dir():
            round_ = found.round if found else 0
            self.memories.restore(round_, recovery.memory_indices(self.path / CHECKPOINTS, round_))

    def _write(self, name: str, data: bytes) -> None:
        self._check_inode()
        write_atomically(self.path / name, data)

    def _identity(self, name: str) -> tuple[int, int] | None:
        """Return what identifies a file or folder apart from its name: its inode and, for a file, its time."""
        with suppress(OSError):
            found = (self.path / name).stat()
            return found.st_ino, found.st_mtime_ns if name else found.st_dev
        return None

    def _check_inode(self) -> None:
        """Raise if this is not the folder that was locked: writing would create it again, with half a run in it."""
        if self._inode is None or self._identity("") != self._inode:
            name = clean(self.path)
            raise RunError(f"{name} was removed or replaced during the run. Put it back and resume, or start again.")

    def _clear(self) -> None:
        """Remove the files of a run, and nothing else; ``run.json`` says so until the new run replaces it."""
        if (self.path / MANIFEST).exists():
            self._write(MANIFEST, json.dumps({OVERWRITING: True}).encode())
        with os_errors("overwrite", self.path):
            for name in (METRICS, CONFIG, REPORT):
                (self.path / name).unlink(missing_ok=True)
            remove(self.path / DEVICES, set())
            for name, files in ((CHECKPOINTS, "round-*.safetensors"), (MEMORIES, "device-*.safetensors")):
                folder = self.path / name
                if folder.is_dir() and not folder.is_symlink():
                    for path in folder.glob(files):
                        path.unlink()
                    sync_folder(folder)
                    with suppress(OSError):  # other files are in it
                        folder.rmdir()
