"""What simulated devices remember between rounds: one file per device, rewritten only when it changes.

A checkpoint stores one array that says which files were current after its round. A file is removed once no kept
checkpoint refers to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from feddrop.errors import RunError
from feddrop.storage.checkpoints import read_sealed, seal
from feddrop.storage.files import digest, sync_folder, write_atomically
from feddrop.storage.sealed import DamagedError

Index = npt.NDArray[np.int32]
"""The round that wrote each device's current memory, ``[devices]``; 0 for none."""

_NAME = re.compile(r"device-(\d{6,10})-round-(\d{6,10})\.safetensors")
_LAST_DEVICE = 2**31 - 2


class Memories:
    """The memories of all devices of a run: bytes per device, empty for none.

    A round reads with :meth:`get` and writes with :meth:`put`. What was put takes effect with :meth:`commit`, so that a
    round which fails half-way starts again from the same memories. The cost of a round grows with the devices that take
    part, plus one array pass over all devices.

    Args:
        folder: the folder of the files; created with the first one.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._current: Index = np.zeros(0, np.int32)
        self._kept: dict[int, Index] = {}
        self._pending: dict[int, tuple[int, str]] = {}  # round and digest
        self._digests: dict[int, str] = {}  # of the current memories seen so far

    def get(self, device: int) -> bytes:
        """Return what a device remembers after the last committed round."""
        round_ = self._written(device)
        if not round_:
            return b""
        try:
            memory = self._read(device, round_)
        except DamagedError as error:
            raise RunError(
                f"the memory of device {device} ({self._path(device, round_).name}) was damaged during the run: "
                f"{error}. Resume the run from its last intact checkpoint."
            ) from None
        self._digests[device] = digest(memory)
        return memory

    def put(self, round_: int, device: int, memory: bytes) -> None:
        """Set what a device remembers after a round; empty to forget. An unchanged memory is not written."""
        if not 0 <= device <= _LAST_DEVICE:
            raise RunError(f"device {device} cannot have a memory; devices go from 0 to {_LAST_DEVICE}.")
        known, found = self._written(device), digest(memory)
        if (known and self._digests.get(device) == found) or not (known or memory):
            self._pending.pop(device, None)
            return
        if memory:
            tensors = {"memory": torch.frombuffer(bytearray(memory), dtype=torch.uint8)}
            notes = {"device": str(device), "round": str(round_)}
            write_atomically(self._path(device, round_), seal(tensors, notes), sync=False)
        self._pending[device] = (round_ if memory else 0, found)

    def commit(self, round_: int) -> Tensor:
        """Apply what was put in a round, and return the array for its checkpoint, int32 ``[devices]``."""
        if self._pending:
            grown = np.zeros(max(len(self._current), max(self._pending) + 1), np.int32)
            grown[: len(self._current)] = self._current
            for device, (written, found) in self._pending.items():
                grown[device], self._digests[device] = written, found
            self._current, self._pending = grown, {}
            if self.folder.is_dir():
                sync_folder(self.folder)
        self._kept[round_] = self._current
        return torch.from_numpy(self._current.copy())

    def keep(self, rounds: set[int]) -> None:
        """Keep the files that the checkpoints of these rounds refer to, and remove the others."""
        kept = {round_: index for round_, index in self._kept.items() if round_ in rounds}
        for round_ in self._kept.keys() - kept.keys():
            index = self._kept[round_]
            free = index > 0
            for other in kept.values():
                size = min(len(index), len(other))
                free[:size] &= index[:size] != other[:size]
            for device in np.flatnonzero(free).tolist():
                with suppress(OSError):
                    self._path(device, int(index[device])).unlink()
        self._kept = kept

    def damaged(self, index: Tensor) -> str:
        """Return which memory of a checkpoint's array is damaged, and how; empty if all are intact."""
        if index.dtype != torch.int32 or index.dim() != 1:
            return "its list of memories is malformed"
        for device in np.flatnonzero(index.numpy()).tolist():
            try:
                self._read(device, int(index[device]))
            except DamagedError as error:
                return f"the memory of device {device}: {error}"
        return ""

    def restore(self, round_: int, kept: Mapping[int, Tensor]) -> None:
        """Go back to the memories after a round (0: none), given the arrays of the kept checkpoints by round.

        Files that no kept checkpoint refers to are removed.
        """
        self._kept = {number: index.numpy().copy() for number, index in kept.items()}
        self._current = self._kept.get(round_, np.zeros(0, np.int32))
        self._pending, self._digests = {}, {}
        for device, written, path in self._files():
            if not any(device < len(index) and index[device] == written for index in self._kept.values()):
                with suppress(OSError):
                    path.unlink()

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        for path in list(self.folder.iterdir()) if self.folder.is_dir() else ():
            if name := _NAME.fullmatch(path.name):
                yield int(name[1]), int(name[2]), path

    def _written(self, device: int) -> int:
        """Return the round that wrote a device's current memory; 0 for none."""
        return int(self._current[device]) if 0 <= device < len(self._current) else 0

    def _read(self, device: int, round_: int) -> bytes:
        tensors, _ = read_sealed(self._path(device, round_), {"device": str(device), "round": str(round_)})
        if "memory" not in tensors:
            raise DamagedError("it holds no memory")
        return tensors["memory"].numpy().tobytes()

    def _path(self, device: int, round_: int) -> Path:
        return self.folder / f"device-{device:06d}-round-{round_:06d}.safetensors"
