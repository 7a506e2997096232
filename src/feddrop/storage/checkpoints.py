"""Tensors on disk under a checksum, and the checkpoints of a run.

A file is plain safetensors. Its metadata holds short notes and a BLAKE2b digest over every byte of the file (with zeros
in the digest's own place), so that a single flipped bit is detected and the file is not used.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from feddrop.config.parsing import load_json
from feddrop.errors import RunError
from feddrop.storage.files import os_errors, read_whole, write_atomically

KEPT = 2
"""How many of the last checkpoints are kept: the newest may be incomplete after a kill, or damaged later."""

LAST_ROUND = 10**9
"""The largest round number; a file that claims a larger one is ignored."""

_DIGITS = 64
_NAME = re.compile(r"round-(\d{6,10})\.safetensors")


class DamagedError(Exception):
    """A file is not what was written: truncated, altered, or another file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a run needs to resume after a round: tensors by group (``params``, ``state``, ...) and name, and notes."""

    round: int
    groups: Mapping[str, Mapping[str, Tensor]]
    notes: Mapping[str, str] = field(default_factory=dict)


def seal(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> bytes:
    """Return tensors and notes as a safetensors file with a digest over every byte."""
    # Copies, because safetensors refuses views and tensors under two names.
    copies = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    data = save(copies, {**notes, "digest": "0" * _DIGITS})
    at = _digest_position(data, "0" * _DIGITS)
    return b"".join((data[:at], _digest(data, at).encode(), data[at + _DIGITS :]))


def unseal(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and notes of a sealed file; DamagedError if it differs from what was written."""
    try:
        notes = dict(load_json(data[8 : _header_end(data)])["__metadata__"])
        digest = str(notes.pop("digest"))
        if _digest(data, _digest_position(data, digest)) != digest:
            raise DamagedError("its checksum does not match")
        return load(data), notes
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"it is not a safetensors file with a checksum ({type(error).__name__})") from None


def read_sealed(path: Path, notes: Mapping[str, str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a sealed file; DamagedError if it is missing, damaged or has other notes, RunError without permission."""
    with os_errors("read", path):
        try:
            tensors, found = unseal(read_whole(path))
        except PermissionError:  # not damaged: its owner can read it
            raise
        except OSError as error:
            raise DamagedError(f"it cannot be read: {error.strerror}") from None
    for key, value in notes.items():
        if found.get(key) != value:
            raise DamagedError(f"it says {key} {found.get(key)!r:.40}, its name says {value}")
    return tensors, found


def save_checkpoint(
    folder: Path,
    round_: int,
    groups: Mapping[str, Mapping[str, Tensor]],
    *,
    notes: Mapping[str, str] | None = None,
    best: int = 0,
) -> set[int]:
    """Save groups of tensors and short notes after a round, and return the rounds that have a checkpoint now.

    Keeps this round, the one before it and the ``best``, if not 0. Later rounds, from before the run went back, are
    removed.
    """
    if not 1 <= round_ <= LAST_ROUND:
        raise RunError(f"cannot save round {round_}; rounds go from 1 to {LAST_ROUND}.")
    tensors = {f"{group}/{name}": tensor for group, members in groups.items() for name, tensor in members.items()}
    write_atomically(_path(folder, round_), seal(tensors, {**(notes or {}), "round": str(round_)}))
    remove(folder, [other for other in saved_rounds(folder) if other > round_])
    return prune(folder, round_, best)


def prune(folder: Path, round_: int, best: int) -> set[int]:
    """Of the checkpoints up to a round, keep the last :data:`KEPT` and the best; return their rounds."""
    rounds = [other for other in saved_rounds(folder) if other <= round_]
    kept = {*rounds[-KEPT:], best} & set(rounds)
    remove(folder, set(rounds) - kept)
    return kept


def saved_rounds(folder: Path) -> list[int]:
    """Return the rounds that have a checkpoint, intact or not, in ascending order."""
    names = (_NAME.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    rounds = sorted(int(name[1]) for name in names if name)
    return [round_ for round_ in rounds if 1 <= round_ <= LAST_ROUND]


def read_checkpoint(folder: Path, round_: int) -> Checkpoint:
    """Read the checkpoint of a round. Raises DamagedError if it is damaged or of another round."""
    tensors, notes = read_sealed(_path(folder, round_), {"round": str(round_)})
    groups: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        group, _, name = key.partition("/")
        groups.setdefault(group, {})[name] = tensor
    return Checkpoint(round=round_, groups=groups, notes=notes)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """Load the newest intact checkpoint; None if no checkpoint is intact."""
    for round_ in reversed(saved_rounds(folder)):
        with suppress(DamagedError):
            return read_checkpoint(folder, round_)
    return None


def _path(folder: Path, round_: int) -> Path:
    return folder / f"round-{round_:06d}.safetensors"


def remove(folder: Path, rounds: Collection[int]) -> None:
    """Delete the checkpoints of these rounds."""
    for round_ in rounds:
        with suppress(OSError):  # a superfluous file does no harm
            _path(folder, round_).unlink()


def _header_end(data: bytes) -> int:
    return 8 + int.from_bytes(data[:8], "little")


def _digest_position(data: bytes, digest: str) -> int:
    """Return where the digest begins in the header. Raises ValueError if it is not there."""
    key = b'"digest":"'
    return data.index(key + f'{digest}"'.encode(), 8, _header_end(data)) + len(key)


def _digest(data: bytes, at: int) -> str:
    """Return the digest of all bytes, with zeros in its own place."""
    view = memoryview(data)
    found = hashlib.blake2b(view[:at], digest_size=_DIGITS // 2)
    found.update(b"0" * _DIGITS)
    found.update(view[at + _DIGITS :])
    return found.hexdigest()
