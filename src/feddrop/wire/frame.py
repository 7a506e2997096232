"""The byte format of a job going down and of an update coming up. ``docs/frames.md`` specifies it.

A frame is a 64-byte header, named payload sections for what no seed can regenerate, one scale a tensor for 8-bit
values, and the kept values in the network's order. Both ends know the network; a digest proves that they mean
the same tensors, shapes and counts. Everything is checked before anything is used: taken whole or refused whole.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from feddrop.errors import FrameError, one_of
from feddrop.subnets.piece import Subnet
from feddrop.wire.sections import Section, pack_sections, read_sections, sections_bytes

MAGIC = b"FDRP"
VERSION = 2
HEADER_BYTES = 64
KINDS = ("job", "update")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.int8}

_LAYOUT = struct.Struct(
    "<4sBBHIIQd8sQQfI"
)  # magic, version, kind and dtype, sections, ..., values, samples, loss, crc32
_CRC_AT = 60
_CODES = {name: code for code, name in enumerate(DTYPES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a frame says of itself.

    Attributes:
        kind: ``"job"`` (server to device) or ``"update"`` (device to server).
        round: round, from 1.
        device: device number, from 0.
        seed: the device's seed for this round: regenerates the mask.
        rate: dropout rate γ.
        dtype: how values are stored.
        num_samples: samples trained on (updates).
        loss: mean training loss (updates).
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
    """Return 8 bytes that stand for the names, shapes and kept counts of a subnet."""
    hashed = hashlib.blake2b(digest_size=8, person=b"feddrop/shape2")
    for name, piece in subnet.items():
        text = name.encode()
        hashed.update(struct.pack("<IH", len(text), len(piece.shape)) + text)
        hashed.update(struct.pack(f"<{len(piece.shape) + 1}Q", *piece.shape, piece.size))
    return hashed.digest()


def frame_bytes(kept: Mapping[str, int], dtype: str) -> int:
    """Return the size of a frame without payload that holds so many values of every tensor."""
    scales = 4 * len(kept) if dtype == "int8" else 0
    return HEADER_BYTES + scales + DTYPES[dtype].itemsize * sum(kept.values())


def encode(
    header: Header,
    subnet: Subnet,
    values: Mapping[str, Tensor],
    payload: Mapping[str, Tensor] | None = None,
    remembered: Collection[str] = (),
) -> bytes:
    """Write a frame.

    Args:
        header: what the frame says of itself.
        subnet: what is kept of every tensor, in order.
        values: for every name of the subnet its kept values, flat float32 ``[size]``.
        payload: named tensors that travel besides.
        remembered: names in the payload that the other side has: only a digest of them travels.

    Raises:
        FrameError: a value is not finite, or does not fit the dtype.
    """
    one_of("wire dtype", header.dtype, DTYPES)
    dtype = DTYPES[header.dtype]
    payload = payload or {}
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
        if part.numel() != piece.size:
            raise FrameError(f"{name} has {part.numel()} values for {piece.size} kept positions.")
        largest = _largest(part)
        if not math.isfinite(largest):
            raise FrameError(f"{name} holds a value that is not finite: training diverged. Lower the learning rate.")
        if dtype == torch.int8:
            scales[row] = largest / 127.0
            part = (part / float(scales[row])).round_() if scales[row] > 0 else torch.zeros_like(part)
        elif largest > torch.finfo(dtype).max:
            raise FrameError(f"{name} holds {largest:.3g}, too large for {header.dtype}. Use bfloat16 or float32.")
        body[at : at + piece.size] = part
        at += piece.size
    _pack(data, header, len(payload), subnet_digest(subnet), count, crc=0)
    crc = zlib.crc32(data[HEADER_BYTES:].data, zlib.crc32(data[:_CRC_AT].data))
    struct.pack_into("<I", data.data, _CRC_AT, crc)
    return data.tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame whose header, checksum and sections have been verified; its values are read with :func:`decode`."""

    header: Header
    digest: bytes
    count: int
    sections: Mapping[str, Section]
    values_at: int
    data: bytes


def parse(data: bytes) -> Frame:
    """Verify a frame's header, checksum and sections.

    Raises:
        FrameError: too short, another format or version, damaged, or an unknown field value.
    """
    if len(data) < HEADER_BYTES:
        raise FrameError(f"frame has {len(data)} bytes; a header alone has {HEADER_BYTES}.")
    magic, version, codes, sections, round_, device, seed, rate, stated, count, samples, loss, crc = (
        _LAYOUT.unpack_from(data)
    )
    if magic != MAGIC:
        raise FrameError(f"not a feddrop frame: it starts with {magic!r}, not {MAGIC!r}.")
    if version != VERSION:
        raise FrameError(f"frame format {version}; this is format {VERSION}. Use the same feddrop at both ends.")
    view = memoryview(data)
    if zlib.crc32(view[HEADER_BYTES:], zlib.crc32(view[:_CRC_AT])) != crc:
        raise FrameError("checksum mismatch: the frame was damaged or cut on its way.")
    kind, code = codes >> 4, codes & 15
    if kind >= len(KINDS) or code >= len(DTYPES):
        raise FrameError(f"unknown kind {kind} or dtype {code} in a frame header.")
    if not 0.0 <= rate < 1.0 or not math.isfinite(loss):
        raise FrameError(f"frame header says rate {rate!r} and loss {loss!r}: not a rate in [0, 1) and a finite loss.")
    found, values_at = read_sections(view, HEADER_BYTES, sections)
    header = Header(
        kind=KINDS[kind],
        round=round_,
        device=device,
        seed=seed,
        rate=rate,
        dtype=list(DTYPES)[code],
        num_samples=samples,
        loss=loss,
    )
    return Frame(header=header, digest=stated, count=count, sections=found, values_at=values_at, data=data)


def decode(frame: Frame, subnet: Subnet) -> dict[str, Tensor]:
    """Read the kept values of a frame.

    Args:
        frame: a verified frame.
        subnet: what it must hold, as regenerated by the receiver.

    Returns:
        For every name, flat float32 values ``[size]``.

    Raises:
        FrameError: another subnet, a wrong length, or a value that is not finite.
    """
    if frame.digest != subnet_digest(subnet):
        raise FrameError(
            "frame holds another subnet than expected: the network, the rate, the seed or the method's settings differ "
            "between server and device."
        )
    dtype = DTYPES[frame.header.dtype]
    scale_count = len(subnet) if dtype == torch.int8 else 0
    values_at = frame.values_at + 4 * scale_count
    expected = values_at + frame.count * dtype.itemsize
    if frame.count != sum(piece.size for piece in subnet.values()) or len(frame.data) != expected:
        raise FrameError(f"frame has {len(frame.data)} bytes for {frame.count} values; {expected} were expected.")
    scales = np.frombuffer(frame.data, "<f4", scale_count, frame.values_at)
    if not np.isfinite(scales).all() or (scales < 0).any():
        raise FrameError("frame holds a scale that is negative or not finite.")
    body = torch.frombuffer(bytearray(memoryview(frame.data)[values_at:]), dtype=dtype) if frame.count else _NOTHING
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


_NOTHING = torch.empty(0)


def _largest(values: Tensor) -> float:
    """Return the largest magnitude: NaN if any is NaN. One pass, no temporary."""
    if not values.numel():
        return 0.0
    low, high = torch.aminmax(values)
    return float(torch.maximum(-low, high))


def _pack(data: npt.NDArray[np.uint8], header: Header, sections: int, stated: bytes, count: int, crc: int) -> None:
    if sections >= 1 << 16:
        raise FrameError(f"{sections} payload tensors; a frame holds at most {(1 << 16) - 1}. Join some.")
    codes = KINDS.index(header.kind) << 4 | _CODES[header.dtype]
    numbers = (header.round, header.device, header.seed, header.rate, stated, count, header.num_samples, header.loss)
    _LAYOUT.pack_into(data.data, 0, MAGIC, VERSION, codes, sections, *numbers, crc)


__all__ = [
    "DTYPES",
    "HEADER_BYTES",
    "Frame",
    "Header",
    "Section",
    "decode",
    "subnet_digest",
    "encode",
    "frame_bytes",
    "parse",
    "sections_bytes",
]
