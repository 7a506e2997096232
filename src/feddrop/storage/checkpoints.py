"""Tensors on disk under a checksum (see ``sealed.py``), and the checkpoints of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from feddrop.errors import RunError
from feddrop.storage.files import os_errors, read_whole, write_atomically
from feddrop.storage.sealed import (
    DIGITS,
    LAST_ROUND,
    DamagedError,
    checkpoint_path,
    digest_of,
    digest_position,
    notes_of,
    saved_rounds,
)

KEPT = 2
"""How many of the last checkpoints are kept: the newest may be incomplete after a kill, or damaged later."""


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
    data = save(copies, {**notes, "digest": "0" * DIGITS})
    at = digest_position(data, "0" * DIGITS)
    return b"".join((data[:at], digest_of(data, at).encode(), data[at + DIGITS :]))


def unseal(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and notes of a sealed file; DamagedError if it differs from what was written."""
    notes = notes_of(data)
    try:
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

    Keeps this round, the one before it and the ``best``, if not 0.
    """
    if not 1 <= round_ <= LAST_ROUND:
        raise RunError(f"cannot save round {round_}; rounds go from 1 to {LAST_ROUND}.")
    tensors = {f"{group}/{name}": tensor for group, members in groups.items() for name, tensor in members.items()}
    write_atomically(checkpoint_path(folder, round_), seal(tensors, {**(notes or {}), "round": str(round_)}))
    return prune(folder, round_, best)


def prune(folder: Path, round_: int, best: int) -> set[int]:
    """Of the checkpoints up to a round, keep the last :data:`KEPT` and the best; return their rounds.

    Later ones, from before the run went back, are removed, too.
    """
    saved = saved_rounds(folder)
    rounds = [other for other in saved if other <= round_]
    kept = {*rounds[-KEPT:], best} & set(rounds)
    _remove(folder, set(saved) - kept)
    return kept


def read_checkpoint(folder: Path, round_: int) -> Checkpoint:
    """Read the checkpoint of a round. Raises DamagedError if it is damaged or of another round."""
    tensors, notes = read_sealed(checkpoint_path(folder, round_), {"round": str(round_)})
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


def _remove(folder: Path, rounds: Collection[int]) -> None:
    for round_ in rounds:
        with suppress(OSError):  # a superfluous file does no harm
            checkpoint_path(folder, round_).unlink()
