"""What devices remember between rounds, as the bytes that executors move; in a simulation the server stores it."""

from __future__ import annotations

from typing import Protocol


class MemoryStore(Protocol):
    """Stores the memory of each device between rounds; a run uses :class:`feddrop.storage.memories.Memories`."""

    def get(self, device: int) -> bytes:
        """Return the memory of a device; empty if it has none."""

    def put(self, round_: int, device: int, memory: bytes) -> None:
        """Store the memory of a device after a round; empty to forget it."""


class Forgetful(dict[int, bytes]):
    """Memories that last as long as the process."""

    def get(self, device: int) -> bytes:  # type: ignore[override]
        """Return the memory of a device; empty if it has none."""
        return super().get(device, b"")

    def put(self, _: int, device: int, memory: bytes) -> None:
        """Store the memory of a device."""
        self[device] = memory
