"""The memory of a node between rounds, in local files: only its name travels.

The name is a digest of the content. The server keeps the name and sends it with the next job, so a server that
returned to a checkpoint gets the memory of that round, and a node that lost its memory detects it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from feddrop.storage.files import digest, write_atomically

LEFT_S = 3600.0
"""Age after which an unfinished file counts as left behind by a killed process."""
KEPT = 8
"""Memories that a node keeps: more than the rounds that a server goes back."""
_STEP_S = 2.0
"""By how much the newest memory is newer than the others: the coarsest times of file systems (FAT)."""


class NodeMemory:
    """The newest memories of one device, in a folder that is created with the first one."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def put(self, memory: bytes) -> str:
        """Save a memory and return its name; an empty memory has an empty name."""
        if not memory:
            return ""
        name = _name(memory)
        path = self._folder / name
        newest = max(map(_modified, self._folder.glob("*.memory")), default=0.0)
        if self.get(name) is None:
            write_atomically(path, memory)
        with suppress(OSError):  # it was removed meanwhile; the next round reports that
            now = max(time.time(), newest + _STEP_S)  # the clock may have been set back
            os.utime(path, (now, now))
        for draft in self._folder.glob(".*.partial"):
            if time.time() - _modified(draft) > LEFT_S:
                draft.unlink(missing_ok=True)
        for old in sorted(self._folder.glob("*.memory"), key=_modified)[:-KEPT]:
            old.unlink(missing_ok=True)
        return name

    def get(self, name: str) -> bytes | None:
        """Return a memory by name; None if it is missing or damaged."""
        if not name:
            return b""
        try:
            memory = (self._folder / Path(name).name).read_bytes()
        except OSError:
            return None
        return memory if _name(memory) == name else None


def _name(memory: bytes) -> str:
    return f"{digest(memory)}.memory"


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
