"""What a run folder holds on disk, written so that a kill at any moment loses at most the round under way."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from feddrop.errors import RunError

KEPT = 2  # the last two: one may be under way when the process is killed


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder, so that no other process writes into it. A process lets go of it however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise RunError(f"cannot use {folder} as a run folder: {error.strerror}.") from None
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"another process is at work in {folder}. Wait for it, or stop it.") from None
        yield
    finally:
        os.close(held)


def save_checkpoint(folder: Path, round_: int, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Save groups of tensors (``params``, ``state``) after a round, and remove all but the newest checkpoints."""
    tensors = {f"{group}/{name}": tensor for group, members in groups.items() for name, tensor in members.items()}
    write_atomically(folder / f"round-{round_:06d}.safetensors", save(tensors, {"round": str(round_)}))
    for old in sorted(folder.glob("round-*.safetensors"))[:-KEPT]:
        old.unlink()


def load_checkpoint(folder: Path) -> tuple[int, dict[str, dict[str, Tensor]]] | None:
    """Load the newest checkpoint that is whole: its round and its groups; None where there is none."""
    for path in sorted(folder.glob("round-*.safetensors"), reverse=True):
        try:
            with safe_open(path, framework="pt") as file:
                round_ = int(file.metadata()["round"])
                groups: dict[str, dict[str, Tensor]] = {}
                for key in file.keys():  # noqa: SIM118 -- not a dict
                    group, _, name = key.partition("/")
                    groups.setdefault(group, {})[name] = file.get_tensor(key)
        except OSError as error:
            raise RunError(f"cannot read the checkpoint {path}: {error.strerror}.") from None
        except (SafetensorError, KeyError, TypeError, ValueError):
            continue
        return round_, groups
    return None


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one JSON line and put it on disk."""
    with path.open("a") as file:
        file.write(json.dumps(record, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the records, a JSON line each, up to the first damaged one; a kill may have cut the last."""
    records: list[dict[str, Any]] = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break
        if not isinstance(record, dict) or not isinstance(record.get("round"), int):
            break
        records.append(record)
    return records


def cut_lines(path: Path, last_round: int) -> None:
    """Keep the records up to a round: what came after its checkpoint is computed again."""
    kept = [record for record in read_lines(path) if record["round"] <= last_round]
    if [record["round"] for record in kept] != list(range(1, last_round + 1)):
        raise RunError(f"{path.name} does not hold rounds 1 to {last_round}: it was edited. Start a new run.")
    write_atomically(path, "".join(json.dumps(record, allow_nan=False) + "\n" for record in kept).encode())
