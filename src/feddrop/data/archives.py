"""Read the files of a data set, including hostile or damaged ones.

Files are parsed, never unpickled or unpacked to disk. Sizes are checked before reading, so no archive can exhaust the
memory.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Self

import numpy as np
import numpy.typing as npt

from feddrop.data.download import progress_bar
from feddrop.errors import DataError

Bytes = npt.NDArray[np.uint8]

_CHUNK = 1 << 22
_SPARE = 1 << 18  # bytes of all headers and padding: 20 times those of the official archives
_HEADER = 1 << 13  # bytes of one header
# The last three are raised by tarfile for bad headers.
_DAMAGED = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, IndexError, RecursionError)


class _Bounded(gzip.GzipFile):
    """A forward-only stream with ``left`` bytes to read, so that no archive can exhaust the memory or never end."""

    left, at = _SPARE, 0

    def read(self, size: int | None = -1) -> bytes:
        """Read at most ``size`` bytes."""
        data = super().read(size)
        self.left, self.at = self.left - len(data), self.at + len(data)
        if self.left < 0:
            raise OSError("its headers or files are far too large")
        return data

    def tell(self) -> int:
        """Return how many bytes were read."""
        return self.at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:  # noqa: ARG002 -- tarfile counts from the start
        """Read on, up to ``offset``."""
        while self.at < offset and self.read(min(offset - self.at, _CHUNK)):
            pass
        if self.at != offset:
            raise OSError("a header points back, or beyond the end")
        return offset


class _Member(tarfile.TarInfo):
    """A member with a short header; tarfile keeps headers in memory and searches them slowly."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read the first block of a header and check the size of the rest."""
        member = super().frombuf(buf, encoding, errors)
        if not member.isreg() and member.size > _HEADER:
            raise tarfile.ReadError(f"a header has {member.size} bytes; at most {_HEADER} are allowed")
        return member


def read_archive(place: Path, folder: str, sizes: dict[str, int], names: str, *, progress: bool) -> dict[str, Bytes]:
    """Read known members of a .tar.gz, and the rest of it to verify gzip's checksum."""
    found: dict[str, Bytes] = {}
    try:
        with (
            _Bounded(place) as stream,
            tarfile.open(fileobj=stream, mode="r:", tarinfo=_Member) as archive,
            progress_bar(f"Reading {place.name}", sum(sizes.values()), show=progress) as advance,
        ):
            room = 2 * sum(sizes.values())
            for member in archive:
                file = archive.extractfile(member) if member.isreg() and not member.issparse() else None
                if file is None:
                    continue
                spare, stream.left = stream.left, room  # two budgets: one for headers, one for file contents
                top, _, name = member.name.removeprefix("./").partition("/")
                if top == folder and (name in sizes or name == names):
                    found[name] = _read_sized(place, name, file, member.size, sizes.get(name), advance)
                while file.read(_CHUNK):
                    pass
                room, stream.left = stream.left, spare
            while stream.read(_CHUNK):
                pass
    except _DAMAGED as error:
        raise damaged(place, error) from error
    if missing := [f"{folder}/{name}" for name in (*sizes, names) if name not in found]:
        raise DataError(f"{place} is incomplete: it has no {', '.join(missing)}.")
    return found


def read_folder(place: Path, folder: str, sizes: dict[str, int], names: str, *, progress: bool) -> dict[str, Bytes]:  # noqa: ARG001
    """Read the known files of an extracted archive."""
    if missing := [name for name in (*sizes, names) if not (place / name).is_file()]:
        raise DataError(f"{place} is incomplete: it has no {', '.join(missing)}.")
    found = {}
    try:
        for name in (*sizes, names):
            with (place / name).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                found[name] = _read_sized(place, name, file, size, sizes.get(name), lambda _: None)
    except OSError as error:
        raise damaged(place, error) from error
    return found


def damaged(place: Path, why: object) -> DataError:
    """Return the error for a file that cannot be read, or does not hold what it should."""
    return DataError(f"{place} cannot be read ({why}); it is damaged, incomplete or another file. Download it again.")


def _read_sized(
    place: Path, name: str, file: IO[bytes], size: int, expected: int | None, advance: Callable[[int], None]
) -> Bytes:
    """Read a file of the expected size, or up to 64 KiB if none is given (a list of names)."""
    if size != expected if expected is not None else size > 1 << 16:
        raise DataError(
            f"{place}: {name} has {size} bytes instead of {expected or 'a few hundred'}; download it again."
        )
    data = bytearray()
    while chunk := file.read(_CHUNK):
        data += chunk
        advance(len(chunk))
    return np.frombuffer(data, np.uint8)


def read_idx(place: Path, shape: tuple[int, ...]) -> Bytes:
    """Read a gzipped IDX file of bytes of this shape."""
    header = bytes((0, 0, 8, len(shape))) + b"".join(side.to_bytes(4, "big") for side in shape)
    size = len(header) + int(np.prod(shape))
    try:
        with gzip.open(place) as file:
            data = file.read(size + 1)
    except _DAMAGED as error:
        raise damaged(place, error) from error
    if len(data) != size or not data.startswith(header):
        raise damaged(place, f"not an IDX file of bytes with shape {shape}")
    return np.frombuffer(data, np.uint8, offset=len(header)).reshape(shape)
