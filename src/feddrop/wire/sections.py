"""Named tensors as bytes: the payload sections of a frame and a device's memory, specified in ``docs/frames.md``.

A section consists of a head (name length, dtype, number of dimensions), the dimensions, the name and the data, each
padded with zeros to a multiple of 4 bytes. Booleans are packed eight per byte or coded as the gaps between true or
between false entries, whichever is shortest. For a tensor that the receiver remembers, a section holds a digest instead
of the data.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from feddrop.errors import FrameError, shortened
from feddrop.wire import gaps

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
_DTYPE, _REMEMBERED, _TRUE_GAPS, _FALSE_GAPS = 0x1F, 0x80, 0x40, 0x20
_FORMS = (0, _REMEMBERED, _TRUE_GAPS, _FALSE_GAPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A complete section, whose data have not been read yet.

    Attributes:
        dtype: name of the tensor's dtype.
        shape: shape of the tensor.
        data: the tensor's bytes, or their digest if ``remembered``.
        form: how the data are stored: as they are, as a digest, or as gaps between true or false entries.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview
    form: int = 0

    @property
    def remembered(self) -> bool:
        """Whether the receiver has the tensor in its memory."""
        return self.form == _REMEMBERED

    def tensor(self, known: Tensor | None = None) -> Tensor:
        """Return the tensor, checked; ``known`` is the tensor of this name in the receiver's memory."""
        if self.remembered:
            if known is None or _spec(known) != (self.dtype, self.shape) or _digest(_raw(known)) != bytes(self.data):
                raise FrameError("the device remembers another tensor than the server expects. Send it again.")
            return known
        count = math.prod(self.shape)
        if self.form:
            mask = gaps.read_gaps(self.data, count)
            return torch.from_numpy(mask if self.form == _TRUE_GAPS else ~mask).reshape(self.shape)
        if self.dtype == "bool":
            raw = np.frombuffer(self.data, np.uint8)
            if count % 8 and raw[-1] & ((1 << (8 - count % 8)) - 1):
                raise FrameError("padding bits of a section are set.")
            return torch.from_numpy(np.unpackbits(raw, count=count).astype(bool)).reshape(self.shape)
        tensor = torch.frombuffer(bytearray(self.data), dtype=DTYPES[self.dtype]) if count else torch.empty(0)
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise FrameError("a section holds a value that is not finite.")
        return tensor.to(DTYPES[self.dtype]).reshape(self.shape)


def sections_bytes(specs: Mapping[str, tuple[str, tuple[int, ...]]], marked: Mapping[str, int] | None = None) -> int:
    """Return the size in bytes of sections with these names, dtypes and shapes; booleans may turn out shorter.

    Args:
        specs: dtype and shape by name.
        marked: number of true entries, or more, of boolean tensors for which it is known; lowers the bound.
    """
    total = 0
    for name, (dtype, shape) in specs.items():
        most = _length(dtype, shape)
        if marked and name in marked:
            most = gaps.most_bytes(math.prod(shape), marked[name])
        total += _HEAD.size + 4 * len(shape) + _padded(len(name.encode())) + _padded(most)
    return total


def pack_sections(tensors: Mapping[str, Tensor], remembered: Collection[str] = ()) -> bytes:
    """Encode tensors as sections, in order."""
    parts = []
    for name, tensor in tensors.items():
        for problem in _tensor_problems(name, tensor):
            raise FrameError(f"payload {shortened(name)} {problem}")
        dtype, shape = _spec(tensor)
        data, text = _raw(tensor), name.encode()
        form = 0
        if name in remembered:
            data, form = _digest(data), _REMEMBERED
        elif dtype == "bool":
            data, form = _shortest(tensor, data)
        code = _CODES[dtype] | form
        parts += [_HEAD.pack(len(text), code, len(shape)), struct.pack(f"<{len(shape)}I", *shape)]
        parts += [text.ljust(_padded(len(text)), b"\0"), data.ljust(_padded(len(data)), b"\0")]
    return b"".join(parts)


def _tensor_problems(name: str, tensor: Tensor) -> Iterator[str]:
    """Find why a tensor cannot be sent as a section."""
    if tensor.dtype not in _NAMES:
        yield f"is {tensor.dtype}; it must be one of {', '.join(DTYPES)}."
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        yield "holds a value that is not finite."
    if len(name.encode()) >= 1 << 16:
        yield f"has a name of {len(name.encode())} bytes; at most {(1 << 16) - 1} are allowed."
    if not _storable(tuple(tensor.shape)):
        yield f"has shape {tuple(tensor.shape)}; {_SHAPE_LIMIT}."


def unpack_sections(data: bytes) -> dict[str, Tensor]:
    """Decode the output of :func:`pack_sections`."""
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
    """Find ``count`` sections, starting at a position; return them by name, and the position of their end."""
    found: dict[str, Section] = {}
    for _ in range(count):
        head, at = _take(view, at, _HEAD.size)
        length, code, rank = _HEAD.unpack(head)
        dims, at = _take(view, at, 4 * rank)
        shape = struct.unpack(f"<{rank}I", dims)
        text, at = _take(view, at, length)
        form, code = code & ~_DTYPE, code & _DTYPE
        if (
            code >= len(DTYPES)
            or form not in (_FORMS if code == _CODES["bool"] else _FORMS[:2])
            or not _storable(shape)
        ):
            wrong = f"dtype {code}, form {form:#x} and shape {shape[:MOST_DIMENSIONS]}"
            raise FrameError(f"a section has {wrong}; {_SHAPE_LIMIT}.")
        dtype = list(DTYPES)[code]
        length = DIGEST_BYTES if form == _REMEMBERED else _length(dtype, shape)
        if form in (_TRUE_GAPS, _FALSE_GAPS):
            length = gaps.HEAD.size + gaps.HEAD.unpack(_take(view, at, gaps.HEAD.size)[0])[1]
        data, at = _take(view, at, length)
        try:
            name = bytes(text).decode()
        except UnicodeDecodeError:
            raise FrameError("the name of a section is not UTF-8.") from None
        if name in found:
            raise FrameError(f"two sections are named {shortened(name)}.")
        found[name] = Section(dtype=dtype, shape=shape, data=data, form=form)
    return found, at


def _take(view: memoryview, at: int, length: int) -> tuple[memoryview, int]:
    """Return the next bytes and the position after their padding."""
    end = at + _padded(length)
    if end > len(view):
        raise FrameError(f"a section ends {end - len(view)} bytes after the end of the frame.")
    if any(view[at + length : end]):
        raise FrameError("padding of a section is not zero.")
    return view[at : at + length], end


_SHAPE_LIMIT = f"at most {MOST_DIMENSIONS} dimensions below 2^32 and 2^48 entries of a known dtype are allowed"


def _storable(shape: tuple[int, ...]) -> bool:
    """Return whether torch can hold such a shape; the limit also applies to dimensions next to one of size 0."""
    entries = math.prod(max(1, size) for size in shape)
    return len(shape) <= MOST_DIMENSIONS and max(shape, default=0) < 1 << 32 and entries < 1 << 48


def _spec(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    return _NAMES[tensor.dtype], tuple(tensor.shape)


def _raw(tensor: Tensor) -> bytes:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return np.packbits(flat.numpy()).tobytes() if flat.dtype == torch.bool else flat.numpy().tobytes()


def _shortest(mask: Tensor, bits: bytes) -> tuple[bytes, int]:
    """Return the shortest form of a mask: bits, or the gaps of the rarer or else of the other value."""
    flat, best = mask.detach().to("cpu").reshape(-1).numpy(), (bits, 0)
    forms = [(flat, _TRUE_GAPS), (~flat, _FALSE_GAPS)]
    for marked, form in forms if 2 * int(np.count_nonzero(flat)) <= flat.size else reversed(forms):
        data = gaps.code_gaps(marked, shorter_than=len(best[0]))
        best = best if data is None else (data, form)
    return best


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES, person=b"feddrop/section").digest()


def _length(dtype: str, shape: tuple[int, ...]) -> int:
    count = math.prod(shape)
    return (count + 7) // 8 if dtype == "bool" else count * DTYPES[dtype].itemsize


def _padded(length: int) -> int:
    """Round up to a multiple of 4, so that values stay aligned."""
    return (length + 3) // 4 * 4
