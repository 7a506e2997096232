"""Named tensors as bytes: the payload sections of a frame, and a device's memory. ``docs/frames.md`` specifies them.

A section is a head (name length, dtype, number of dimensions), the dimensions, the name, and the data; each part is
padded with zeros to whole words of 4 bytes. Booleans are packed eight to a byte. In place of the data, a section that
the other side remembers holds their digest.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from feddrop.errors import FrameError, shortened

DTYPES = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
    "float32": torch.float32,
    "float16": torch.float16,
}
DIGEST_BYTES = 8
MOST_DIMENSIONS = 16
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_CODES = {name: code for code, name in enumerate(DTYPES)}
_HEAD = struct.Struct("<HBB")
_REMEMBERED = 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section that has been found whole: where its data begin, and what they are.

    Attributes:
        dtype: its name on the wire.
        shape: shape of the tensor.
        data: its bytes; the digest of them where ``remembered``.
        remembered: whether the receiver is to find the tensor in its memory.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview
    remembered: bool

    def tensor(self, known: Tensor | None = None) -> Tensor:
        """Return the tensor; ``known`` is what the receiver remembers under this name.

        Raises:
            FrameError: a value that is not finite, a bit where padding should be, or other data than those remembered.
        """
        if self.remembered:
            if known is None or _spec(known) != (self.dtype, self.shape) or _digest(_raw(known)) != bytes(self.data):
                raise FrameError("the device remembers something else than it was asked to use. Send it anew.")
            return known
        count = math.prod(self.shape)
        if self.dtype == "bool":
            raw = np.frombuffer(self.data, np.uint8)
            if count % 8 and raw[-1] & ((1 << (8 - count % 8)) - 1):
                raise FrameError("bits are set behind the last one of a section.")
            return torch.from_numpy(np.unpackbits(raw, count=count).astype(bool)).reshape(self.shape)
        tensor = torch.frombuffer(bytearray(self.data), dtype=DTYPES[self.dtype]) if count else torch.empty(0)
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise FrameError("a section holds a value that is not finite.")
        return tensor.to(DTYPES[self.dtype]).reshape(self.shape)


def sections_bytes(specs: Mapping[str, tuple[str, tuple[int, ...]]]) -> int:
    """Return how many bytes sections of these names, dtypes and shapes take."""
    return sum(
        _HEAD.size + 4 * len(shape) + _padded(len(name.encode())) + _padded(_length(dtype, shape))
        for name, (dtype, shape) in specs.items()
    )


def pack_sections(tensors: Mapping[str, Tensor], remembered: Collection[str] = ()) -> bytes:
    """Write tensors as sections, in order."""
    parts = []
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise FrameError(f"payload {name!r} is {tensor.dtype}; it must be one of {', '.join(DTYPES)}.")
        dtype, shape = _spec(tensor)
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise FrameError(f"payload {name!r} holds a value that is not finite.")
        data, text = _raw(tensor), name.encode()
        code = _CODES[dtype]
        if name in remembered:
            data, code = _digest(data), code | _REMEMBERED
        if len(text) >= 1 << 16 or max(shape, default=0) >= 1 << 32:
            raise FrameError(f"payload {name[:80]!r} has too long a name or too large a shape, {shape}.")
        _check_shape(shape)
        parts += [_HEAD.pack(len(text), code, len(shape)), struct.pack(f"<{len(shape)}I", *shape)]
        parts += [text.ljust(_padded(len(text)), b"\0"), data.ljust(_padded(len(data)), b"\0")]
    return b"".join(parts)


def unpack_sections(data: bytes) -> dict[str, Tensor]:
    """Read tensors that :func:`pack_sections` wrote, and nothing but them."""
    found: dict[str, Tensor] = {}
    at, view = 0, memoryview(data)
    while at < len(data):
        one, at = read_sections(view, at, 1)
        ((name, section),) = one.items()
        if name in found:
            raise FrameError(f"two sections are named {shortened(name)}.")
        found[name] = section.tensor()
    return found


def read_sections(view: memoryview, at: int, count: int) -> tuple[dict[str, Section], int]:
    """Find ``count`` sections from a position on; return them by name, and where they end."""
    found: dict[str, Section] = {}
    for _ in range(count):
        head, at = _take(view, at, _HEAD.size)
        length, code, rank = _HEAD.unpack(head)
        dims, at = _take(view, at, 4 * rank)
        shape = struct.unpack(f"<{rank}I", dims)
        text, at = _take(view, at, length)
        remembered, code = bool(code & _REMEMBERED), code & ~_REMEMBERED
        if code >= len(DTYPES):
            raise FrameError(f"unknown dtype {code} of a section.")
        dtype = list(DTYPES)[code]
        _check_shape(shape)
        data, at = _take(view, at, DIGEST_BYTES if remembered else _length(dtype, shape))
        try:
            name = bytes(text).decode()
        except UnicodeDecodeError:
            raise FrameError("the name of a section is not UTF-8.") from None
        if name in found:
            raise FrameError(f"two sections are named {shortened(name)}.")
        found[name] = Section(dtype=dtype, shape=shape, data=data, remembered=remembered)
    return found, at


def _take(view: memoryview, at: int, length: int) -> tuple[memoryview, int]:
    """Take bytes and the zeros that pad them."""
    end = at + _padded(length)
    if end > len(view):
        raise FrameError(f"a section ends {end - len(view)} bytes behind the end of the frame.")
    if any(view[at + length : end]):
        raise FrameError("padding of a section is not zero.")
    return view[at : at + length], end


def _check_shape(shape: tuple[int, ...]) -> None:
    """Raise unless torch can hold such a shape; dimensions beside one of 0 must not be absurd either."""
    if len(shape) > MOST_DIMENSIONS or math.prod(max(1, size) for size in shape) >= 1 << 48:
        raise FrameError(
            f"a section has {len(shape)} dimensions, {shape[:MOST_DIMENSIONS]}; at most {MOST_DIMENSIONS} are allowed, "
            "and 2^48 entries."
        )


def _spec(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    return _NAMES[tensor.dtype], tuple(tensor.shape)


def _raw(tensor: Tensor) -> bytes:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return np.packbits(flat.numpy()).tobytes() if flat.dtype == torch.bool else flat.numpy().tobytes()


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES, person=b"feddrop/section").digest()


def _length(dtype: str, shape: tuple[int, ...]) -> int:
    count = math.prod(shape)
    return (count + 7) // 8 if dtype == "bool" else count * DTYPES[dtype].itemsize


def _padded(length: int) -> int:
    """Round up to whole 4-byte words, so that values stay aligned."""
    return (length + 3) // 4 * 4
