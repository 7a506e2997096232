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
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

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
    hashed = hashlib.blake2b(digest_size=8, person=b"feddrop/shape2")
    for name, piece in subnet.items():
        text = name.encode()
        hashed.update(struct.pack("<IH", len(text), len(piece.shape)) + text)
        hashed.update(struct.pack(f"<{len(piece.shape) + 1}Q", *piece.shape, piece.size))
    return hashed.digest()


def frame_bytes(kept: Mapping[str, int], dtype: str) -> int:
    """Return the size in bytes of a frame without payload, given the number of kept values per tensor."""
    scales = 4 * len(kept) if dtype == "int8" else 0
    return HEADER_BYTES + scales + DTYPES[dtype].itemsize * sum(kept.values())


def encode(
    header: Header,
    subnet: Subnet,
    values: Mapping[str, Tensor],
    payload: Mapping[str, Tensor] | None = None,
    remembered: Collection[str] = (),
) -> bytes:
    """Encode a frame.

    Args:
        header: the header's fields.
        subnet: the pieces of all tensors, in order.
        values: the kept values of every piece, flat float32 ``[size]``.
        payload: additional named tensors.
        remembered: names in the payload that the receiver already has; only their digest is sent.
    """
    dtype = DTYPES[one_of("dtype", header.dtype, DTYPES)]
    payload = payload or {}
    if len(payload) >= 1 << 16:
        raise FrameError(f"{len(payload)} payload tensors; a frame holds at most {(1 << 16) - 1}. Join some of them.")
    count = sum(piece.size for piece in subnet.values())
    sections = pack_sections(payload, remembered)
    scales_at = HEADER_BYTES + len(sections)
    values_at = scales_at + (4 * len(subnet) if dtype == torch.int8 else 0)
    data = np.empty(values_at + count * dtype.itemsize, np.uint8)
    data[HEADER_BYTES:scales_at] = np.frombuffer(sections, np.uint8)
    scales = data[scales_at:values_at].view("<f4")
    body = torch.from_numpy(data[values_at:]).view(dtype)
    at = 0
    for row, (name, piece) in enumerate(subnet.items()):
        part = values[name].reshape(-1)
        largest = _largest(part)
        for problem in _value_problems(part.numel(), piece.size, largest, header.dtype):
            raise FrameError(f"{name} {problem}")
        if dtype == torch.int8:
            scales[row] = largest / 127.0
            part = (part / float(scales[row])).round_() if scales[row] > 0 else torch.zeros_like(part)
        body[at : at + piece.size] = part
        at += piece.size
    codes = KINDS.index(header.kind) << 4 | _CODES[header.dtype]
    numbers = (header.round, header.device, header.seed, header.rate, subnet_digest(subnet), count)
    _LAYOUT.pack_into(data.data, 0, MAGIC, VERSION, codes, len(payload), *numbers, header.num_samples, header.loss, 0)
    crc = zlib.crc32(data[HEADER_BYTES:].data, zlib.crc32(data[:_CRC_AT].data))
    struct.pack_into("<I", data.data, _CRC_AT, crc)
    return data.tobytes()


def _value_problems(count: int, size: int, largest: float, dtype: str) -> Iterator[str]:
    if count != size:
        yield f"has {count} values for {size} kept positions."
    if not math.isfinite(largest):
        yield "holds a value that is not finite: training diverged. Lower the learning rate."
    if dtype != "int8" and largest > torch.finfo(DTYPES[dtype]).max:
        yield f"holds {largest:.3g}, too large for {dtype}. Use bfloat16 or float32."


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
    """Return the kept values of a valid frame, flat float32 ``[size]`` per piece.

    FrameError if it holds another subnet than the receiver regenerated, has a wrong length, or a value is not finite.
    """
    if frame.digest != subnet_digest(subnet):
        differ = "the network, rate, seed or method settings of server and device differ"
        raise FrameError(f"frame holds another subnet than expected: {differ}.")
    dtype = DTYPES[frame.header.dtype]
    scale_count = len(subnet) if dtype == torch.int8 else 0
    values_at = frame.values_at + 4 * scale_count
    expected = values_at + frame.count * dtype.itemsize
    if frame.count != sum(piece.size for piece in subnet.values()) or len(frame.data) != expected:
        raise FrameError(f"frame has {len(frame.data)} bytes for {frame.count} values; expected {expected}.")
    scales = np.frombuffer(frame.data, "<f4", scale_count, frame.values_at)
    if not np.isfinite(scales).all() or (scales < 0).any():
        raise FrameError("frame holds a scale that is negative or not finite.")
    body = torch.empty(0)
    if frame.count:
        body = torch.frombuffer(bytearray(memoryview(frame.data)[values_at:]), dtype=dtype)
    values: dict[str, Tensor] = {}
    at = 0
    for row, (name, piece) in enumerate(subnet.items()):
        part = body[at : at + piece.size].float()
        if dtype == torch.int8:
            part = part * float(scales[row])
        if not math.isfinite(_largest(part)):
            raise FrameError(f"{name} holds a value that is not finite.")
        values[name] = part
        at += piece.size
    return values


def _largest(values: Tensor) -> float:
    """Return the largest magnitude, or NaN if any value is NaN, in one pass without a temporary."""
    if not values.numel():
        return 0.0
    low, high = torch.aminmax(values)
    return float(torch.maximum(-low, high))
