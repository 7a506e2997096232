"""What a node remembers between rounds, in files of its own: nothing of it travels but a name.

A memory's name is a digest of it. The server keeps the name and sends it with the next job, so that a server which went
back to a checkpoint finds the memory of that time, and a node that lost its memory knows.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

from feddrop.storage.files import write_atomically

LEFT_S = 3600.0
"""Nobody writes for so long: what is half-written and older was left by a process that was killed."""
KEPT = 8
"""Memories that a node keeps: more than rounds that a server goes back."""


class NodeMemory:
    """The memories of one device, newest kept.

    Args:
        folder: where the files are; made when the first is written.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def put(self, memory: bytes) -> str:
        """Keep a memory and return its name; the empty memory's is empty."""
        if not memory:
            return ""
        name = _name(memory)
        path = self._folder / name
        if self.get(name) is None:
            write_atomically(path, memory)
        else:
            with suppress(OSError):  # removed meanwhile: it will be said to be forgotten
                os.utime(path)  # in use: among the newest
        for draft in self._folder.glob(".*.partial"):
            if time.time() - _age(draft) > LEFT_S:
                draft.unlink(missing_ok=True)
        for old in sorted(self._folder.glob("*.memory"), key=_age)[:-KEPT]:
            old.unlink(missing_ok=True)
        return name

    def get(self, name: str) -> bytes | None:
        """Return a memory by its name; None where it is not there, or not whole."""
        if not name:
            return b""
        try:
            memory = (self._folder / Path(name).name).read_bytes()
        except OSError:
            return None
        return memory if _name(memory) == name else None


def _name(memory: bytes) -> str:
    return hashlib.blake2b(memory, digest_size=16).hexdigest() + ".memory"


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
