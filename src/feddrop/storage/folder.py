"""The run folder: its only reader and writer.

    config.toml        the configuration, every key of it
    run.json           what was trained, from which configuration, by which versions
    metrics.jsonl      a line a round
    checkpoints/       the last two rounds and the best one
    memories/          what devices remember, where a method has them do so
    report.html        the report

A run begins with its run.json, which holds the configuration, too: a folder without one holds no run. A round is saved
in this order: memories, line, checkpoint. A kill in between costs that round, which is then computed again to the same
bits.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddrop.config.parsing import json_line, load_json
from feddrop.errors import RunError, clean
from feddrop.storage import manifest, recovery
from feddrop.storage.files import (
    append_line,
    is_folder,
    locked,
    read_whole,
    sweep,
    sync_folder,
    trouble,
    write_atomically,
)
from feddrop.storage.records import RoundRecord

if TYPE_CHECKING:
    from torch import Tensor

    from feddrop.config import RunConfig
    from feddrop.storage.checkpoints import Checkpoint
    from feddrop.storage.memories import Memories

CONFIG, ABOUT, METRICS, REPORT = "config.toml", "run.json", "metrics.jsonl", "report.html"
CHECKPOINTS, MEMORIES = "checkpoints", "memories"
_CLEARING = "overwriting"
"""All that run.json says while the run that it was of is removed."""
_GIVE = "Give the folder that `feddrop run --out DIR` wrote."

log = logging.getLogger("feddrop")


class RunFolder:
    """A run folder. Reading needs nothing; whatever writes needs :meth:`locked`.

    Args:
        path: the folder; it need not be there yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._size = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._best: tuple[float, int] | None = None
        self._place: tuple[int, int] | None = None
        self._memories: Memories | None = None

    # --- reading -----------------------------------------------------------------------------------------------------

    def config(self) -> RunConfig:
        """Read the configuration."""
        from feddrop.config import RunConfig

        text, path = self._config_text(f"It is not a run folder. {_GIVE}"), self.path / CONFIG
        return RunConfig.from_file(path) if path.exists() else RunConfig.from_toml(text)

    def settings(self) -> dict[str, Any]:
        """Read the configuration as it is written, section by section; the settings themselves are not judged."""
        text = self._config_text(_GIVE)
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError
            raise RunError(f"{clean(self.path / CONFIG)} is not valid TOML: {clean(error, 120)}. Restore it.") from None

    def about(self) -> dict[str, Any]:
        """Read ``run.json``; empty where there is none.

        Raises:
            RunError: it cannot be read, or what the folder held was being overwritten when that was cut short.
        """
        found = self._told()
        if _CLEARING in found:
            raise self._cut_short()
        return found

    def begun(self) -> dict[str, Any]:
        """Read ``run.json``, which whatever is resumed must have."""
        if found := self.about():
            return found
        raise RunError(f"{clean(self.path)} has no {ABOUT}, which a run begins with. Restore it, or start a new run.")

    def _told(self) -> dict[str, Any]:
        path = self.path / ABOUT
        try:
            found = load_json(self._text(ABOUT, default="{}"))
        except ValueError as error:
            raise RunError(
                f"{clean(path)} cannot be read: {ABOUT} is not valid JSON: {clean(error, 120)}. Delete it to read the "
                "run without; to resume it, restore it."
            ) from None
        if not isinstance(found, dict):
            raise RunError(f"{clean(path)} cannot be read: it must hold a JSON object. Delete it to read without.")
        return found

    def records(self) -> list[RoundRecord]:
        """Read the rounds done so far; a last line that was cut off in the middle is left out.

        Raises:
            RunError: a line is not what a run writes; the message says which and why.
        """
        where, found = self.path / METRICS, list[RoundRecord]()
        rows = self._text(METRICS, default="").split("\n")
        for number, row in enumerate(rows, 1):
            if not row.strip():
                continue
            place = f"{clean(where)} line {number}"
            try:
                record = RoundRecord.from_json(load_json(row), place)
            except ValueError as error:
                if number == len(rows):  # no newline behind it: cut off while writing
                    break
                raise RunError(
                    f"{place} is not valid JSON: {clean(error, 120)}. Restore the line, or resume the run."
                ) from None
            if found and record.round <= found[-1].round:
                raise RunError(
                    f"{place}: round {record.round} comes after round {found[-1].round}; rounds must increase. "
                    "Did two runs write into this folder?"
                )
            found.append(record)
        return found

    def checkpoint(self, *, best: bool = False) -> Checkpoint:
        """Read the newest checkpoint that is whole, or that of the round with the best test result."""
        from feddrop.storage.checkpoints import DamagedError, load_checkpoint, read_checkpoint

        if not best:
            found = load_checkpoint(self.path / CHECKPOINTS)
            if found is None:
                raise RunError(f"{clean(self.path)} holds no checkpoint that can be read. Let it finish a round.")
            return found
        wanted = recovery.best_round(self.records())
        if wanted is None:
            raise RunError(f"{clean(self.path)} has no round with a test result. Ask for the last network instead.")
        try:
            return read_checkpoint(self.path / CHECKPOINTS, wanted[1])
        except DamagedError as error:
            raise RunError(f"the best checkpoint, of round {wanted[1]}, is of no use: {error}.") from None

    def saved_round(self) -> int:
        """Return the round that the run would go on after: the newest that is whole; 0 for the start.

        Raises:
            RunError: rounds were finished, but nothing is whole enough to go on from.
        """
        found, _ = recovery.newest_pair(self.path / CHECKPOINTS, self._bytes(), self.memories)
        return found.round if found else 0

    # --- writing -----------------------------------------------------------------------------------------------------

    @property
    def memories(self) -> Memories:
        """What the run's devices remember."""
        from feddrop.storage.memories import Memories

        if self._memories is None:
            self._memories = Memories(self.path / MEMORIES)
        return self._memories

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder, so that no other process writes into it."""
        is_folder(self.path)
        with locked(self.path):
            self._place = self._stat()
            for folder in (self.path, self.path / CHECKPOINTS, self.path / MEMORIES):
                sweep(folder)
            yield

    def check_free(self, *, overwrite: bool = False) -> None:
        """Raise unless a new run may be written here: the folder is new, empty, or a run that may be overwritten."""
        try:
            if not is_folder(self.path) or all(path.name.startswith(".") for path in self.path.iterdir()):
                return
        except OSError as error:
            raise trouble("look into", self.path, error) from None
        told = self._told_or_nothing()
        is_run = "config_digest" in told or _CLEARING in told
        if not is_run and overwrite:
            raise RunError(
                f"{clean(self.path)} is not empty, and holds no run: only a run is overwritten. Name a new folder."
            )
        if not overwrite and _CLEARING in told:
            raise self._cut_short()
        if not overwrite:
            more = f", `feddrop resume {clean(self.path)}`, or in Python say overwrite=True" if is_run else ""
            raise RunError(f"{clean(self.path)} is not empty. Name a new folder{more}.")

    def begin(self, config: RunConfig, facts: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Start a run: what it is of is written before its first round. Whether the folder is free is checked here."""
        self.check_free(overwrite=overwrite)
        if overwrite:
            self._clear()
        self._write(ABOUT, json.dumps(manifest.describe(config, facts), indent=1).encode())
        self._write(CONFIG, config.to_toml().encode())

    def check_config(self, config: RunConfig) -> None:
        """Raise where the run cannot go on with this configuration."""
        manifest.check_config(self.begun(), config, folder=self.path, done=len(recovery.line_ends(self._bytes())))

    def reopen(self, config: RunConfig, facts: Mapping[str, Any]) -> Checkpoint | None:
        """Go on with a run: hold it to how it was started, and return the newest checkpoint that is whole.

        Returns:
            None where no round was finished yet. The metrics are cut to the checkpoint: what came after it is computed
            again. Where a checkpoint, a line or a memory is damaged, it is the newest one before.

        Raises:
            RunError: it was started from something else, or nothing in it is whole enough to go on.
        """
        before, data = self.begun(), self._bytes()
        now = manifest.check(before, config, facts, folder=self.path, done=len(recovery.line_ends(data)))
        found, size = recovery.newest_pair(self.path / CHECKPOINTS, data, self.memories)
        self._cut(data[:size], found)
        if now["config"] != before.get("config") or not (self.path / CONFIG).exists():
            self._write(CONFIG, config.to_toml().encode())
        if now != before:
            self._write(ABOUT, json.dumps(now, indent=1).encode())
        return found

    def save(self, record: RoundRecord, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Save a round: its line, then groups of tensors (``params``, ``state``) to go on from."""
        from feddrop.storage.checkpoints import save_checkpoint

        self._check_place()
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

    def _cut(self, data: bytes, found: Checkpoint | None) -> None:
        """Go back to the lines given and to the memories of a checkpoint."""
        from feddrop.storage.checkpoints import prune

        if data != self._bytes():
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

    def _cut_short(self) -> RunError:
        return RunError(
            f"{clean(self.path)} holds no run any more: it was being overwritten, and that was cut short. Start the "
            "new run again with overwrite=True, or delete the folder."
        )

    # --- files -------------------------------------------------------------------------------------------------------

    def _text(self, name: str, remedy: str = "", *, default: str | None = None) -> str:
        try:
            return read_whole(self.path / name).decode("utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            if default is not None:
                return default
            raise RunError(f"{clean(self.path)} has no {name}. {remedy}") from None
        except OSError as error:
            raise RunError(f"{clean(self.path / name)} cannot be read: {error.strerror}.") from None

    def _config_text(self, remedy: str) -> str:
        """Return the configuration; where a kill came before its file was written, as ``run.json`` has it."""
        told = None
        with suppress(OSError):  # closed to us: reading says so
            told = None if (self.path / CONFIG).exists() else self.about().get("config")
        return told if isinstance(told, str) else self._text(CONFIG, remedy)

    def _bytes(self) -> bytes:
        try:
            return read_whole(self.path / METRICS)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise trouble("read", self.path / METRICS, error) from None

    def _told_or_nothing(self) -> dict[str, Any]:
        try:
            return self._told()
        except RunError:
            return {}

    def _write(self, name: str, data: bytes) -> None:
        self._check_place()
        write_atomically(self.path / name, data)

    def _stat(self) -> tuple[int, int] | None:
        with suppress(OSError):
            found = self.path.stat()
            return found.st_dev, found.st_ino
        return None

    def _check_place(self) -> None:
        """Raise where the folder is not the one that was locked: it would be made anew, and hold half a run."""
        if self._place is None or self._stat() != self._place:
            raise RunError(
                f"{clean(self.path)} was removed or replaced while the run was at work. Put it back and resume, or "
                "start a new run."
            )

    def _clear(self) -> None:
        """Remove the files of a run, and nothing else; ``run.json`` says so until another run has its place."""
        if (self.path / ABOUT).exists():
            self._write(ABOUT, json.dumps({_CLEARING: True}).encode())
        try:
            for name in (METRICS, CONFIG, REPORT):
                (self.path / name).unlink(missing_ok=True)
            for name, files in ((CHECKPOINTS, "round-*.safetensors"), (MEMORIES, "device-*.safetensors")):
                folder = self.path / name
                if folder.is_dir() and not folder.is_symlink():
                    for path in folder.glob(files):
                        path.unlink()
                    sync_folder(folder)
                    with suppress(OSError):  # something else is in it
                        folder.rmdir()
        except OSError as error:
            raise trouble("overwrite", self.path, error) from None
