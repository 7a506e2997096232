"""Safetensors files under a checksum, read without torch: their notes, single tensors, whether they are intact.

The metadata of a file holds short notes and a BLAKE2b digest over every byte of the file (with zeros in the digest's
own place), so that a single flipped bit is detected.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from feddrop.config.parsing import check_regular, load_json

DIGITS = 64
"""Hexadecimal digits of a digest."""

LAST_ROUND = 10**9
"""The largest round number; a file that claims a larger one is ignored."""

_LONGEST_HEADER = 10**8
_NAME = re.compile(r"round-(\d{6,10})\.safetensors")


class DamagedError(Exception):
    """A file is not what was written: truncated, altered, or another file."""


def notes_of(data: bytes) -> dict[str, str]:
    """Return the notes of a sealed file; DamagedError if it differs from what was written."""
    try:
        notes = dict(load_json(data[8 : _header_end(data)])["__metadata__"])
        digest = str(notes.pop("digest"))
        if digest_of(data, digest_position(data, digest)) != digest:
            raise DamagedError("its checksum does not match")
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"it is not a safetensors file with a checksum ({type(error).__name__})") from None
    return notes


def peek(path: Path, tensor: str) -> tuple[dict[str, Any], bytes]:
    """Read the notes of a file and one tensor as bytes, empty if absent, without reading or verifying the rest."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > _LONGEST_HEADER:
                raise DamagedError("it has no header")
            header = load_json(file.read(size))
            start, end = header.get(tensor, {}).get("data_offsets", (0, 0))
            file.seek(8 + size + int(start))
            return dict(header["__metadata__"]), file.read(max(0, int(end) - int(start)))
    except (OSError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DamagedError(f"it cannot be read ({type(error).__name__})") from None


def saved_rounds(folder: Path) -> list[int]:
    """Return the rounds that have a checkpoint, intact or not, in ascending order."""
    names = (_NAME.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    rounds = sorted(int(name[1]) for name in names if name)
    return [round_ for round_ in rounds if 1 <= round_ <= LAST_ROUND]


def checkpoint_path(folder: Path, round_: int) -> Path:
    """Return the path of the checkpoint of a round."""
    return folder / f"round-{round_:06d}.safetensors"


def digest_position(data: bytes, digest: str) -> int:
    """Return where the digest begins in the header. Raises ValueError if it is not there."""
    key = b'"digest":"'
    return data.index(key + f'{digest}"'.encode(), 8, _header_end(data)) + len(key)


def digest_of(data: bytes, at: int) -> str:
    """Return the digest of all bytes, with zeros in its own place."""
    view = memoryview(data)
    found = hashlib.blake2b(view[:at], digest_size=DIGITS // 2)
    found.update(b"0" * DIGITS)
    found.update(view[at + DIGITS :])
    return found.hexdigest()


def _header_end(data: bytes) -> int:
    return 8 + int.from_bytes(data[:8], "little")
