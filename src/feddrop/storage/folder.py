"""The run folder: its only reader and writer.

    config.toml        the full configuration
    run.json           what was trained, from which configuration, with which versions
    metrics.jsonl      one line per round
    checkpoints/       the last two rounds and the best one
    memories/          what devices remember, if the method uses memories
    report.html        the report

A run starts by writing run.json, which also holds the configuration: a folder without it holds no run. A round is saved
in the order memories, line, checkpoint. A kill in between costs that round, which is repeated to the same bits.
"""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddrop.config.parsing import json_line
from feddrop.errors import FeddropWarning, RunError, clean
from feddrop.storage import manifest, reading, recovery
from feddrop.storage.files import append_line, is_folder, locked, os_errors, sweep, sync_folder, write_atomically
from feddrop.storage.reading import CONFIG, MANIFEST, METRICS, OVERWRITING, REPORT
from feddrop.storage.records import RoundRecord

if TYPE_CHECKING:
    from torch import Tensor

    from feddrop.config import RunConfig
    from feddrop.storage.checkpoints import Checkpoint
    from feddrop.storage.memories import Memories

CHECKPOINTS, MEMORIES = "checkpoints", "memories"

log = logging.getLogger("feddrop")


class RunFolder:
    """A run folder. Reading needs no lock; every method that writes must run inside :meth:`locked`.

    Args:
        path: the folder; it need not exist yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._size = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._best: tuple[float, int] | None = None
        self._inode: tuple[int, int] | None = None
        self._memories: Memories | None = None

    # --- reading -----------------------------------------------------------------------------------------------------

    def config(self) -> RunConfig:
        """Read and validate the configuration."""
        return reading.read_config(self.path)

    def settings(self) -> dict[str, Any]:
        """Read the configuration as written, section by section, without validating the settings."""
        return reading.read_settings(self.path)

    def about(self) -> dict[str, Any]:
        """Read ``run.json``; empty if there is no such file.

        Raises:
            RunError: it cannot be read, another version wrote it, or the run was being overwritten.
        """
        return reading.read_manifest(self.path)

    def begun(self) -> dict[str, Any]:
        """Read ``run.json``, which must exist to resume a run."""
        if found := self.about():
            return found
        raise RunError(f"{clean(self.path)} has no {MANIFEST}, so it holds no run. Restore it, or start a new run.")

    def records(self) -> list[RoundRecord]:
        """Read the finished rounds; a last line that was cut off in the middle is skipped.

        Raises:
            RunError: a line is malformed; the message says which and why.
        """
        return reading.read_records(self.path)

    def checkpoint(self, *, best: bool = False, strict: bool = False) -> Checkpoint:
        """Read the newest intact checkpoint, or with ``best`` that of the round with the best test result.

        If the checkpoint of the last round is damaged or missing, an earlier one is a FeddropWarning; with ``strict``,
        a RunError.
        """
        from feddrop.storage.checkpoints import DamagedError, load_checkpoint, read_checkpoint

        found, problem = None, "holds no checkpoint that can be read. Let it finish a round"
        if not best:
            found = load_checkpoint(self.path / CHECKPOINTS)
            self._compare_with_last(found, strict=strict)
        elif wanted := recovery.best_round(self.records()):
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
        from feddrop.storage.checkpoints import DamagedError, read_checkpoint, saved_rounds

        saved, lines = saved_rounds(self.path / CHECKPOINTS), self.records()
        last = max([*saved[-1:], *(record.round for record in lines[-1:])], default=0)
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
        """Return the round that the run would resume after: the newest intact one; 0 for the start.

        Raises:
            RunError: rounds were finished, but no state to resume from is intact.
        """
        found, _ = recovery.newest_pair(self.path / CHECKPOINTS, self._metrics(), self.memories)
        return found.round if found else 0

    # --- writing -----------------------------------------------------------------------------------------------------

    @property
    def memories(self) -> Memories:
        """The memories of the run's devices."""
        from feddrop.storage.memories import Memories

        if self._memories is None:
            self._memories = Memories(self.path / MEMORIES)
        return self._memories

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other writers."""
        is_folder(self.path)
        with locked(self.path):
            self._inode = self._current_inode()
            for folder in (self.path, self.path / CHECKPOINTS, self.path / MEMORIES):
                sweep(folder)
            yield

    def check_free(self, *, overwrite: bool = False) -> None:
        """Raise unless a new run may be written here: the folder is new, empty, or a run that may be overwritten."""
        with os_errors("list", self.path):
            if not is_folder(self.path) or all(path.name.startswith(".") for path in self.path.iterdir()):
                return
        found: dict[str, Any] = {}
        with suppress(RunError):
            found = reading.read_json(self.path)
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

    def begin(self, config: RunConfig, facts: Mapping[str, Any], *, overwrite: bool = False) -> dict[str, Any]:
        """Start a run in a free folder: write its configuration and its ``run.json``, which is returned."""
        self.check_free(overwrite=overwrite)
        if overwrite:
            self._clear()
        about = manifest.describe(config, facts)
        self._write(MANIFEST, json.dumps(about, indent=1).encode())
        self._write(CONFIG, str(about["config"]).encode())
        return about

    def check_unchanged(self, about: Mapping[str, Any], rounds: int) -> None:
        """Raise unless the folder still holds this run, with so many rounds."""
        if self.about().get("id") != about.get("id"):
            raise RunError(f"{clean(self.path)} now holds another run. Start this one in another folder.")
        if len(self.records()) != rounds:
            raise RunError(f"{clean(self.path)} was modified by another process. Resume it again.")

    def check_config(self, config: RunConfig) -> None:
        """Raise if the run cannot be resumed with this configuration."""
        manifest.check_config(self.begun(), config, folder=self.path, done=len(recovery.line_ends(self._metrics())))

    def reopen(self, config: RunConfig, facts: Mapping[str, Any]) -> Checkpoint | None:
        """Prepare to resume a run: compare it with its start, and go back to the newest intact checkpoint.

        The metrics are cut to that checkpoint; the rounds after it are repeated.

        Returns:
            The checkpoint; None if no round was finished.

        Raises:
            RunError: the run was started from something else, or no state to resume from is intact.
        """
        before, data = self.begun(), self._metrics()
        now = manifest.resumed(before, config, facts, folder=self.path, done=len(recovery.line_ends(data)))
        found, size = recovery.newest_pair(self.path / CHECKPOINTS, data, self.memories)
        self._go_back(data[:size], found)
        if now["config"] != before.get("config") or not (self.path / CONFIG).exists():
            self._write(CONFIG, config.to_toml().encode())
        if now != before:
            self._write(MANIFEST, json.dumps(now, indent=1).encode())
        return found

    def save(self, record: RoundRecord, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Save a round: its line of metrics, then the tensors to resume from, by group (``params``, ``state``)."""
        from feddrop.storage.checkpoints import save_checkpoint

        self._check_inode()
        line = json_line(record.to_json())
        append_line(self.path / METRICS, line, self._size)
        self._size += len(line)
        self._digest.update(line)
        if record.score is not None and (self._best is None or record.score > self._best[0]):
            self._best = (record.score, record.round)
        index = self.memories.commit(record.round)
        kept = save_checkpoint(
            self.path / CHECKPOINTS,
            record.round,
            {**groups, recovery.INDEX: {"rounds": index}} if len(index) else groups,
            notes={"metrics": self._digest.hexdigest()},
            best=self._best[1] if self._best else 0,
        )
        self.memories.keep(kept)

    def _go_back(self, data: bytes, found: Checkpoint | None) -> None:
        """Cut the metrics to these lines, and restore the memories of a checkpoint."""
        from feddrop.storage.checkpoints import prune

        if data != self._metrics():
            self._write(METRICS, data)
        self._size, self._digest = len(data), hashlib.blake2b(data, digest_size=16)
        if found and not recovery.written_before(found, data):
            log.warning("%s was changed since it was written.", clean(self.path / METRICS))
        self._best = recovery.best_round(self.records())
        if found:
            prune(self.path / CHECKPOINTS, found.round, self._best[1] if self._best else 0)
        if (self.path / MEMORIES).is_dir():
            round_ = found.round if found else 0
            self.memories.restore(round_, recovery.memory_indices(self.path / CHECKPOINTS, round_))

    # --- files -------------------------------------------------------------------------------------------------------

    def _metrics(self) -> bytes:
        return reading.read_bytes(self.path, METRICS, b"")

    def _write(self, name: str, data: bytes) -> None:
        self._check_inode()
        write_atomically(self.path / name, data)

    def _current_inode(self) -> tuple[int, int] | None:
        with suppress(OSError):
            found = self.path.stat()
            return found.st_dev, found.st_ino
        return None

    def _check_inode(self) -> None:
        """Raise if this is not the folder that was locked: writing would create it anew, with half a run in it."""
        if self._inode is None or self._current_inode() != self._inode:
            name = clean(self.path)
            raise RunError(f"{name} was removed or replaced during the run. Put it back and resume, or start again.")

    def _clear(self) -> None:
        """Remove the files of a run, and nothing else; ``run.json`` says so until the new run replaces it."""
        if (self.path / MANIFEST).exists():
            self._write(MANIFEST, json.dumps({OVERWRITING: True}).encode())
        with os_errors("overwrite", self.path):
            for name in (METRICS, CONFIG, REPORT):
                (self.path / name).unlink(missing_ok=True)
            for name, files in ((CHECKPOINTS, "round-*.safetensors"), (MEMORIES, "device-*.safetensors")):
                folder = self.path / name
                if folder.is_dir() and not folder.is_symlink():
                    for path in folder.glob(files):
                        path.unlink()
                    sync_folder(folder)
                    with suppress(OSError):  # other files are in it
                        folder.rmdir()
