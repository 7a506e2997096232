"""Reading the files of a data set, hostile or damaged ones included.

Files are only ever parsed, never unpickled or unpacked to disk; every size is known before anything is read, and no
archive can fill the memory.
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

from feddrop.data.download import bar
from feddrop.errors import DataError

Bytes = npt.NDArray[np.uint8]

_CHUNK = 1 << 22
_SPARE = 1 << 18  # bytes of all headers and padding: 20 times the official
_HEADER = 1 << 13  # bytes of one header
# The last three are what tarfile itself trips over in bad headers.
_DAMAGED = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, IndexError, RecursionError)


class _Bounded(gzip.GzipFile):
    """A stream of which ``left`` bytes may be read, forwards: no archive can fill the memory, or go on for ever."""

    left, at = _SPARE, 0

    def read(self, size: int | None = -1) -> bytes:
        """Read at most ``size`` bytes."""
        data = super().read(size)
        self.left, self.at = self.left - len(data), self.at + len(data)
        if self.left < 0:
            raise OSError("its headers or its files are far too large")
        return data

    def tell(self) -> int:
        """How many bytes were read."""
        return self.at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:  # noqa: ARG002 -- tarfile counts from the start
        """Read on, up to ``offset``."""
        while self.at < offset and self.read(min(offset - self.at, _CHUNK)):
            pass
        if self.at != offset:
            raise OSError("a header points back, or beyond the end")
        return offset


class _Member(tarfile.TarInfo):
    """A member whose header is short: tarfile holds headers in memory and is slow to search them."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read the first block of a header, and check how much more there is."""
        member = super().frombuf(buf, encoding, errors)
        if not member.isreg() and member.size > _HEADER:
            raise tarfile.ReadError(f"a header takes {member.size} bytes instead of at most {_HEADER}")
        return member


def read_archive(place: Path, folder: str, sizes: dict[str, int], names: str, *, progress: bool) -> dict[str, Bytes]:
    """Read known members of a .tar.gz, to the end, so that gzip's own checksum is checked too."""
    found: dict[str, Bytes] = {}
    try:
        with (
            _Bounded(place) as stream,
            tarfile.open(fileobj=stream, mode="r:", tarinfo=_Member) as archive,
            bar(f"Reading {place.name}", sum(sizes.values()), show=progress) as advance,
        ):
            room = 2 * sum(sizes.values())
            for member in archive:
                file = archive.extractfile(member) if member.isreg() and not member.issparse() else None
                if file is None:
                    continue
                spare, stream.left = stream.left, room  # two accounts: one of headers, one of what the files hold
                top, _, name = member.name.removeprefix("./").partition("/")
                if top == folder and (name in sizes or name == names):
                    found[name] = _read_sized(place, name, file, member.size, sizes.get(name), advance)
                while file.read(_CHUNK):
                    pass
                room, stream.left = stream.left, spare
            while stream.read(_CHUNK):
                pass
    except _DAMAGED as error:
        raise DataError(f"{place} cannot be read ({error}); it is damaged or incomplete: get it again.") from error
    _check_complete(place, [f"{folder}/{name}" for name in (*sizes, names) if name not in found])
    return found


def read_folder(place: Path, folder: str, sizes: dict[str, int], names: str, *, progress: bool) -> dict[str, Bytes]:  # noqa: ARG001
    """Read the known files of an extracted archive."""
    _check_complete(place, [name for name in (*sizes, names) if not (place / name).is_file()])
    found = {}
    try:
        for name in (*sizes, names):
            with (place / name).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                found[name] = _read_sized(place, name, file, size, sizes.get(name), lambda _: None)
    except OSError as error:
        raise DataError(f"{place} cannot be read: {error}.") from error
    return found


def _read_sized(
    place: Path, name: str, file: IO[bytes], size: int, expected: int | None, advance: Callable[[int], None]
) -> Bytes:
    """Read a file of a known size; without one (a list of names) up to 64 KiB. The size is checked before reading."""
    if size != expected if expected is not None else size > 1 << 16:
        raise DataError(f"{place}: {name} has {size} bytes instead of {expected or 'a few hundred'}; get it again.")
    data = bytearray()
    while chunk := file.read(_CHUNK):
        data += chunk
        advance(len(chunk))
    return np.frombuffer(data, np.uint8)


def read_idx(place: Path, shape: tuple[int, ...]) -> Bytes:
    """Read a gzipped IDX file of bytes with this very shape."""
    header = bytes((0, 0, 8, len(shape))) + b"".join(side.to_bytes(4, "big") for side in shape)
    size = len(header) + int(np.prod(shape))
    try:
        with gzip.open(place) as file:
            data = file.read(size + 1)
    except _DAMAGED as error:
        raise DataError(f"{place} cannot be read ({error}); it is damaged or incomplete: get it again.") from error
    if len(data) != size or not data.startswith(header):
        raise DataError(f"{place} is not an IDX file of bytes with shape {shape}; get it again.")
    return np.frombuffer(data, np.uint8, offset=len(header)).reshape(shape)


def _check_complete(place: Path, missing: list[str]) -> None:
    if missing:
        raise DataError(f"{place} is incomplete: it has no {', '.join(missing)}.")
