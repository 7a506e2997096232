"""Tensors on disk under a checksum, and the checkpoints of a run made of them.

A file is plain safetensors. Its metadata holds what the file is of, and a BLAKE2b digest over every byte of it (the
place of the digest itself counted as zeros), so that one flipped bit anywhere is found and the file is not used.
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
from feddrop.storage.files import read_whole, trouble, write_atomically

KEPT = 2
"""The last checkpoints that are kept: one may be under way when the process is killed, or be damaged later."""

LAST_ROUND = 10**9
"""No run goes on for longer: a file that says so is not ours."""

_DIGITS = 64
_NAME = re.compile(r"round-(\d{6,10})\.safetensors")


class DamagedError(Exception):
    """A file that is not what was written: cut off, altered, or another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What is needed to go on after a round.

    Attributes:
        round: the round, from 1.
        groups: tensors by group (``params``, ``state``, ...) and name.
        notes: short texts that go with them.
    """

    round: int
    groups: Mapping[str, Mapping[str, Tensor]]
    notes: Mapping[str, str] = field(default_factory=dict)


def seal(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> bytes:
    """Return tensors and notes as a safetensors file with a digest over every byte."""
    # Copies: safetensors refuses views, and two names of one tensor.
    whole = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    data = save(whole, {**notes, "digest": "0" * _DIGITS})
    at = _place(data, "0" * _DIGITS)
    return b"".join((data[:at], _digest(data, at).encode(), data[at + _DIGITS :]))


def unseal(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and notes of a file.

    Raises:
        DamagedError: not a bit is used of a file that differs from what was written.
    """
    try:
        notes = dict(load_json(data[8 : 8 + _header(data)])["__metadata__"])
        digest = str(notes.pop("digest"))
        if len(digest) != _DIGITS or _digest(data, _place(data, digest)) != digest:
            raise DamagedError("its checksum does not fit")
        return load(data), notes
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"it is not a file of tensors with a checksum ({type(error).__name__})") from None


def read_sealed(path: Path, notes: Mapping[str, str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a file that must have these notes.

    Raises:
        DamagedError: the file is not there, not whole, or the file of something else.
        RunError: the system does not let us read it.
    """
    try:
        tensors, found = unseal(read_whole(path))
    except PermissionError as error:
        raise trouble("read", path, error) from None
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
    """Save groups of tensors after a round, and remove what is not needed any more.

    This round, the one before it and the best one are kept; rounds after this one, of a past that was cut off, are not.

    Args:
        folder: the folder of the checkpoints.
        round_: the round that is done.
        groups: tensors by group and name.
        notes: short texts to go with them.
        best: the round with the best test result so far; 0 for none.

    Returns:
        The rounds whose checkpoints are in the folder now.
    """
    if not 1 <= round_ <= LAST_ROUND:
        raise RunError(f"round {round_} cannot be saved; rounds go from 1 to {LAST_ROUND}.")
    tensors = {f"{group}/{name}": tensor for group, members in groups.items() for name, tensor in members.items()}
    write_atomically(_path(folder, round_), seal(tensors, {**(notes or {}), "round": str(round_)}))
    _remove(folder, [other for other in saved_rounds(folder) if other > round_])
    return prune(folder, round_, best)


def prune(folder: Path, round_: int, best: int) -> set[int]:
    """Remove the checkpoints before a round that are neither the one just before it nor the best; return the others."""
    rounds = [other for other in saved_rounds(folder) if other <= round_]
    kept = {*rounds[-KEPT:], best} & set(rounds)
    _remove(folder, set(rounds) - kept)
    return kept


def saved_rounds(folder: Path) -> list[int]:
    """Return the rounds that have a checkpoint, whole or not, rising by number."""
    names = (_NAME.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    rounds = sorted(int(name[1]) for name in names if name)
    return [round_ for round_ in rounds if 1 <= round_ <= LAST_ROUND]


def read_checkpoint(folder: Path, round_: int) -> Checkpoint:
    """Read the checkpoint of a round. Raises DamagedError where it is not whole, or of another round."""
    tensors, notes = read_sealed(_path(folder, round_), {"round": str(round_)})
    groups: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        group, _, name = key.partition("/")
        groups.setdefault(group, {})[name] = tensor
    return Checkpoint(round=round_, groups=groups, notes=notes)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """Load the newest checkpoint that is whole, or None where there is none."""
    for round_ in reversed(saved_rounds(folder)):
        with suppress(DamagedError):
            return read_checkpoint(folder, round_)
    return None


def content(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of names, types, shapes and values, whatever their order."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _path(folder: Path, round_: int) -> Path:
    return folder / f"round-{round_:06d}.safetensors"


def _remove(folder: Path, rounds: Collection[int]) -> None:
    for round_ in rounds:
        with suppress(OSError):  # one file too many harms nobody
            _path(folder, round_).unlink()


def _header(data: bytes) -> int:
    size = int.from_bytes(data[:8], "little")
    if size > len(data) - 8:
        raise ValueError("cut off")
    return size


def _place(data: bytes, digest: str) -> int:
    """Return where the digest stands, which must be one place."""
    words, end = f'"digest":"{digest}"'.encode(), 8 + _header(data)
    if data.count(words, 8, end) != 1:
        raise ValueError("no place for a digest")
    return data.index(words, 8, end) + len(b'"digest":"')


def _digest(data: bytes, at: int) -> str:
    """Return the digest of all bytes, with zeros where the digest stands."""
    view = memoryview(data)
    found = hashlib.blake2b(view[:at], digest_size=_DIGITS // 2)
    found.update(b"0" * _DIGITS)
    found.update(view[at + _DIGITS :])
    return found.hexdigest()
