"""The byte format of jobs and updates, specified in ``docs/frames.md``.

A frame consists of a 64-byte header, named payload sections for tensors that no seed can regenerate, one scale per
tensor for 8-bit values, and the kept values in the network's order. Both ends know the network; a digest proves that
they mean the same tensors, shapes and counts. A frame is accepted or refused as a whole, before any of it is used.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from feddrop.errors import FrameError, one_of
from feddrop.subnets.piece import Subnet
from feddrop.wire.sections import Section, pack_sections, read_sections

MAGIC = b"FDRP"
VERSION = 2
HEADER_BYTES = 64
KINDS = ("job", "update")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.int8}

# magic, version, kind and dtype, sections, round, device, seed, rate, digest, values, samples, loss, crc32
_LAYOUT = struct.Struct("<4sBBHIIQd8sQQfI")
_CRC_AT = 60
_CODES = {name: code for code, name in enumerate(DTYPES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The fields of a frame's header.

    Attributes:
        kind: ``"job"`` (server to device) or ``"update"`` (device to server).
        round: round, from 1.
        device: device number, from 0.
        seed: the device's seed for this round, which regenerates the mask.
        rate: dropout rate γ.
        dtype: how values are stored.
        num_samples: number of samples trained on (updates only).
        loss: mean training loss (updates only).
    """

    kind: str
    round: int
    device: int
    seed: int
    rate: float
    dtype: str = "float32"
    num_samples: int = 0
    loss: float = 0.0


def subnet_digest(subnet: Subnet) -> bytes:
    """Return an 8-byte digest of the names, shapes and kept counts of a subnet."""
    return _digest(tuple([(name, piece.shape, piece.size) for name, piece in subnet.items()]))


@lru_cache(maxsize=256)  # devices of one rate keep equally many values
def _digest(kept: tuple[tuple[str, tuple[int, ...], int], ...]) -> bytes:
    hashed = hashlib.blake2b(digest_size=8, person=b"feddrop/shape2")
    for name, shape, size in kept:
        text = name.encode()
        hashed.update(struct.pack("<IH", len(text), len(shape)) + text)
        hashed.update(struct.pack(f"<{len(shape) + 1}Q", *shape, size))
    return hashed.digest()


def frame_bytes(kept: Mapping[str, int], dtype: str) -> int:
    """Return the size in bytes of a frame without payload, given the number of kept values per tensor."""
    scales = 4 * len(kept) if dtype == "int8" else 0
    return HEADER_BYTES + scales + DTYPES[dtype].itemsize * sum(kept.values())


def encode(
    header: Header,
    subnet: Subnet,
    values: Mapping[str, Tensor] | Tensor,
    payload: Mapping[str, Tensor] | None = None,
    remembered: Collection[str] = (),
) -> bytes:
    """Encode a frame.

    Args:
        header: the header's fields.
        subnet: the pieces of all tensors, in order.
        values: the kept values of every piece, flat float32 ``[size]``, or those of all pieces in one vector.
        payload: additional named tensors.
        remembered: names in the payload that the receiver already has; only their digest is sent.
    """
    dtype = DTYPES[one_of("dtype", header.dtype, DTYPES)]
    payload = payload or {}
    if len(payload) >= 1 << 16:
        raise FrameError(f"{len(payload)} payload tensors; a frame holds at most {(1 << 16) - 1}. Join some of them.")
    sizes = [piece.size for piece in subnet.values()]
    flat = values if isinstance(values, Tensor) else _joined(subnet, values)
    if flat.numel() != sum(sizes) or not _largest(flat) <= _most(header.dtype):
        _raise_unsendable(subnet, flat, header.dtype)
    scales, body = _quantised(flat, sizes) if dtype == torch.int8 else (b"", flat.to("cpu", dtype))
    codes = KINDS.index(header.kind) << 4 | _CODES[header.dtype]
    numbers = (header.round, header.device, header.seed, header.rate, subnet_digest(subnet), flat.numel())
    head = _LAYOUT.pack(MAGIC, VERSION, codes, len(payload), *numbers, header.num_samples, header.loss, 0)[:_CRC_AT]
    sections, raw = pack_sections(payload, remembered), body.contiguous().view(torch.uint8).numpy().data
    crc = zlib.crc32(raw, zlib.crc32(scales, zlib.crc32(sections, zlib.crc32(head))))
    return b"".join((head, struct.pack("<I", crc), sections, scales, raw))


def _joined(subnet: Subnet, values: Mapping[str, Tensor]) -> Tensor:
    """Return the values of all pieces as one vector."""
    parts = [values[name].detach().reshape(-1) for name in subnet]
    for (name, piece), part in zip(subnet.items(), parts, strict=True):
        if part.numel() != piece.size:
            raise FrameError(f"{name} has {part.numel()} values for {piece.size} kept positions.")
    return torch.cat(parts) if parts else torch.empty(0)


def _quantised(flat: Tensor, sizes: Sequence[int]) -> tuple[bytes, Tensor]:
    """Return one scale per piece, as bytes, and the values divided by it, rounded to 8 bits."""
    scales, parts = np.zeros(len(sizes), "<f4"), []
    for row, part in enumerate(flat.split_with_sizes(list(sizes))):
        scales[row] = _largest(part) / 127.0
        parts.append((part / float(scales[row])).round_() if scales[row] > 0 else torch.zeros_like(part))
    return scales.tobytes(), (torch.cat(parts) if parts else flat).to("cpu", torch.int8)


def _most(dtype: str) -> float:
    """Return the largest magnitude that can be sent; 8-bit values have a scale of 32 bits."""
    return float(torch.finfo(torch.float32 if dtype == "int8" else DTYPES[dtype]).max)


def _raise_unsendable(subnet: Subnet, flat: Tensor, dtype: str) -> None:
    """Raise a FrameError that names the first piece that cannot be sent."""
    sizes = [piece.size for piece in subnet.values()]
    if flat.numel() != sum(sizes):
        raise FrameError(f"{flat.numel()} values for {sum(sizes)} kept positions.")
    for name, part in zip(subnet, flat.split_with_sizes(sizes), strict=True):
        largest = _largest(part)
        if not math.isfinite(largest):
            raise FrameError(f"{name} holds a value that is not finite: training diverged. Lower the learning rate.")
        if largest > _most(dtype):
            raise FrameError(f"{name} holds {largest:.3g}, too large for {dtype}. Use bfloat16 or float32.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame whose header, checksum and sections are valid; :func:`decode` reads its values."""

    header: Header
    digest: bytes
    count: int
    sections: Mapping[str, Section]
    values_at: int
    data: bytes


def parse(data: bytes) -> Frame:
    """Validate a frame's header, checksum and sections; FrameError if it is damaged or of another format."""
    for problem in _header_problems(data):
        raise FrameError(problem)
    _, _, codes, sections, round_, device, seed, rate, digest, count, samples, loss, _ = _LAYOUT.unpack_from(data)
    found, values_at = read_sections(memoryview(data), HEADER_BYTES, sections)
    header = Header(
        kind=KINDS[codes >> 4],
        round=round_,
        device=device,
        seed=seed,
        rate=rate,
        dtype=list(DTYPES)[codes & 15],
        num_samples=samples,
        loss=loss,
    )
    return Frame(header=header, digest=digest, count=count, sections=found, values_at=values_at, data=data)


def _header_problems(data: bytes) -> Iterator[str]:
    """Find what is wrong with a header or its checksum."""
    if len(data) < HEADER_BYTES:
        yield f"frame has {len(data)} bytes; a header alone has {HEADER_BYTES}."
    magic, version, codes, _, _, _, _, rate, _, _, _, loss, crc = _LAYOUT.unpack_from(data)
    if magic != MAGIC:
        yield f"not a feddrop frame: it starts with {magic!r}, not {MAGIC!r}."
    if version != VERSION:
        yield f"frame has format {version}; this is format {VERSION}. Use the same version of feddrop at both ends."
    view = memoryview(data)
    if zlib.crc32(view[HEADER_BYTES:], zlib.crc32(view[:_CRC_AT])) != crc:
        yield "checksum mismatch: the frame was damaged or truncated in transit."
    if codes >> 4 >= len(KINDS) or codes & 15 >= len(DTYPES):
        yield f"unknown kind {codes >> 4} or dtype {codes & 15} in a frame header."
    if not 0.0 <= rate < 1.0 or not math.isfinite(loss):
        yield f"frame header has rate {rate!r} and loss {loss!r}; the rate must be in [0, 1) and the loss finite."


def decode(frame: Frame, subnet: Subnet) -> dict[str, Tensor]:
    """Return the kept values of a valid frame, flat float32 ``[size]`` per piece; see :func:`decode_flat`."""
    return split(decode_flat(frame, subnet)[0], subnet)


def split(flat: Tensor, subnet: Subnet) -> dict[str, Tensor]:
    """Return the values of every piece as views of one vector of all."""
    sizes = [piece.size for piece in subnet.values()]
    return dict(zip(subnet, flat.split_with_sizes(sizes), strict=True)) if sizes else {}


def decode_flat(frame: Frame, subnet: Subnet) -> tuple[Tensor, float]:
    """Return the kept values of a valid frame as one float32 vector, and their largest magnitude.

    FrameError if it holds another subnet than the receiver regenerated, has a wrong length, or a value is not finite.
    """
    if frame.digest != subnet_digest(subnet):
        differ = "the network, rate, seed or method settings of server and device differ"
        raise FrameError(f"frame holds another subnet than expected: {differ}.")
    dtype, sizes = DTYPES[frame.header.dtype], [piece.size for piece in subnet.values()]
    scale_count = len(subnet) if dtype == torch.int8 else 0
    values_at = frame.values_at + 4 * scale_count
    expected = values_at + frame.count * dtype.itemsize
    if frame.count != sum(sizes) or len(frame.data) != expected:
        raise FrameError(f"frame has {len(frame.data)} bytes for {frame.count} values; expected {expected}.")
    body = np.frombuffer(frame.data, np.uint8, offset=values_at).copy()
    flat = torch.from_numpy(body).view(dtype).float()
    if dtype == torch.int8:
        scales = np.frombuffer(frame.data, "<f4", scale_count, frame.values_at)
        if not np.isfinite(scales).all() or (scales < 0).any():
            raise FrameError("frame holds a scale that is negative or not finite.")
        flat *= torch.from_numpy(np.repeat(scales, sizes))
    largest = _largest(flat)
    if not math.isfinite(largest):
        name = next(name for name, part in split(flat, subnet).items() if not math.isfinite(_largest(part)))
        raise FrameError(f"{name} holds a value that is not finite.")
    return flat, largest


def _largest(values: Tensor) -> float:
    """Return the largest magnitude, or NaN if any value is NaN, in one pass without a temporary."""
    if not values.numel():
        return 0.0
    low, high = torch.aminmax(values)
    return float(torch.maximum(-low, high))
