"""What devices remember between rounds, as the bytes that executors move; in a simulation the server stores it."""

from __future__ import annotations

from typing import Protocol

import torch

from feddrop.storage.memories import Memories


class MemoryStore(Protocol):
    """Stores the memory of each device between rounds."""

    def get(self, device: int) -> bytes:
        """Return the memory of a device; empty if it has none."""
        ...

    def put(self, round_: int, device: int, memory: bytes) -> None:
        """Store the memory of a device after a round; empty to forget it."""
        ...


class Forgetful(dict[int, bytes]):
    """Memories that last as long as the process."""

    def get(self, device: int) -> bytes:  # type: ignore[override]
        """Return the memory of a device; empty if it has none."""
        return super().get(device, b"")

    def put(self, _: int, device: int, memory: bytes) -> None:
        """Store the memory of a device."""
        self[device] = memory


class SavedMemories:
    """Memories that are saved in the run folder.

    Args:
        files: the folder's memories.
    """

    def __init__(self, files: Memories) -> None:
        self._files = files

    def get(self, device: int) -> bytes:
        """Return the memory of a device; empty if it has none."""
        found = self._files.get(device)
        return found["memory"].numpy().tobytes() if found else b""

    def put(self, round_: int, device: int, memory: bytes) -> None:
        """Store the memory of a device after a round; empty to forget it."""
        if memory:
            self._files.put(round_, device, {"memory": torch.frombuffer(bytearray(memory), dtype=torch.uint8)})
        elif self._files.get(device):
            self._files.put(round_, device, {})
