"""The byte format of a subnet going down and of an update coming up. ``docs/frames.md`` specifies it.

A frame is a 64-byte header, the bits of a mask only where no seed can regenerate it, one scale a tensor for 8-bit
values, and the kept values in the network's order. Both ends know the network; a digest proves that they mean
the same tensors, shapes and counts. Everything is checked before anything is used: taken whole or refused whole.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from feddrop.errors import FrameError, one_of
from feddrop.subnets.piece import Subnet

MAGIC = b"FDRP"
VERSION = 1
HEADER_BYTES = 64
KINDS = ("subnet", "update")
LEVELS = ("weight", "unit")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.int8}

_LAYOUT = struct.Struct("<4sBBBBIIQd8sQQfI")  # ... values, samples, loss, crc32: 60 bytes
_CRC_AT = 60
_CODES = {name: code for code, name in enumerate(DTYPES)}
_MASKED = 0x80  # set in the level byte when mask bits follow the header

Masks = Mapping[str, npt.NDArray[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a frame says of itself.

    Attributes:
        kind: ``"subnet"`` (server to device) or ``"update"`` (device to server).
        round: round, from 1.
        device: device number, from 0.
        seed: the device's seed for this round: regenerates the mask.
        rate: dropout rate γ.
        level: ``"weight"`` or ``"unit"``.
        dtype: how values are stored.
        masked: whether mask bits travel in this frame.
        samples: samples trained on (updates).
        loss: mean training loss (updates).
    """

    kind: str
    round: int
    device: int
    seed: int
    rate: float
    level: str = "weight"
    dtype: str = "float32"
    masked: bool = False
    samples: int = 0
    loss: float = 0.0


def digest(subnet: Subnet) -> bytes:
    """Return 8 bytes that stand for the names, shapes and kept counts of a subnet."""
    text = ";".join(f"{name}:{'x'.join(map(str, piece.shape))}:{piece.size}" for name, piece in subnet.items())
    return hashlib.blake2b(text.encode(), digest_size=8, person=b"feddrop/shape").digest()


def encode(header: Header, subnet: Subnet, values: Mapping[str, Tensor], masks: Masks | None = None) -> bytes:
    """Write a frame.

    Args:
        header: what the frame says of itself; ``masked`` follows from ``masks``.
        subnet: what is kept of every tensor, in order.
        values: for every name of the subnet its kept values, flat float32 ``[size]``.
        masks: boolean arrays to send as bits, for methods whose mask no seed regenerates.

    Raises:
        FrameError: a value is not finite, or does not fit the dtype.
    """
    one_of("wire dtype", header.dtype, DTYPES)
    dtype = DTYPES[header.dtype]
    count = sum(piece.size for piece in subnet.values())
    bits = np.packbits(np.concatenate([m.reshape(-1) for m in masks.values()])) if masks else np.empty(0, np.uint8)
    scales_at = HEADER_BYTES + _padded(len(bits))
    values_at = scales_at + (4 * len(subnet) if dtype == torch.int8 else 0)
    data = np.empty(values_at + count * dtype.itemsize, np.uint8)
    data[HEADER_BYTES:scales_at] = 0
    data[HEADER_BYTES : HEADER_BYTES + len(bits)] = bits
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
    head = replace(header, masked=masks is not None)
    _pack(data, head, digest(subnet), count, crc=0)
    crc = zlib.crc32(data[HEADER_BYTES:].data, zlib.crc32(data[:_CRC_AT].data))
    _pack(data, head, digest(subnet), count, crc)
    return data.tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame whose header and checksum have been verified; its values are read with :func:`decode`."""

    header: Header
    digest: bytes
    count: int
    data: bytes


def parse(data: bytes) -> Frame:
    """Verify a frame's header and checksum.

    Raises:
        FrameError: too short, another format or version, damaged, or an unknown field value.
    """
    if len(data) < HEADER_BYTES:
        raise FrameError(f"frame has {len(data)} bytes; a header alone has {HEADER_BYTES}.")
    fields = _LAYOUT.unpack_from(data)
    magic, version, kind, level, code, round_, device, seed, rate, stated, count, samples, loss, crc = fields
    if magic != MAGIC:
        raise FrameError(f"not a feddrop frame: it starts with {magic!r}, not {MAGIC!r}.")
    if version != VERSION:
        raise FrameError(f"frame format {version}; this is format {VERSION}. Use the same feddrop at both ends.")
    view = memoryview(data)
    if zlib.crc32(view[HEADER_BYTES:], zlib.crc32(view[:_CRC_AT])) != crc:
        raise FrameError("checksum mismatch: the frame was damaged or cut on its way.")
    if kind >= len(KINDS) or (level & ~_MASKED) >= len(LEVELS) or code >= len(DTYPES):
        raise FrameError(f"unknown kind {kind}, level {level} or dtype {code} in a frame header.")
    if not 0.0 <= rate < 1.0 or not math.isfinite(loss):
        raise FrameError(f"frame header says rate {rate!r} and loss {loss!r}: not a rate in [0, 1) and a finite loss.")
    header = Header(
        kind=KINDS[kind],
        round=round_,
        device=device,
        seed=seed,
        rate=rate,
        level=LEVELS[level & ~_MASKED],
        dtype=list(DTYPES)[code],
        masked=bool(level & _MASKED),
        samples=samples,
        loss=loss,
    )
    return Frame(header=header, digest=stated, count=count, data=data)


def decode_masks(frame: Frame, shapes: Mapping[str, tuple[int, ...]]) -> Masks | None:
    """Read the mask bits of a frame for tensors of these shapes, or None where none travel.

    Raises:
        FrameError: the frame is too short for them.
    """
    if not frame.header.masked:
        return None
    bits = sum(math.prod(shape) for shape in shapes.values())
    length = (bits + 7) // 8
    if len(frame.data) < HEADER_BYTES + length:
        raise FrameError(f"frame of {len(frame.data)} bytes is too short for {bits} mask bits.")
    raw = np.frombuffer(frame.data, np.uint8, length, HEADER_BYTES)
    flat = np.unpackbits(raw, count=bits).astype(bool)
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    return {
        name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), np.split(flat, ends[:-1]), strict=True)
    }


def decode(frame: Frame, subnet: Subnet, mask_bits: int = 0) -> dict[str, Tensor]:
    """Read the kept values of a frame.

    Args:
        frame: a verified frame.
        subnet: what it must hold, as regenerated by the receiver.
        mask_bits: how many mask bits it carries, where it carries any.

    Returns:
        For every name, flat float32 values ``[size]``.

    Raises:
        FrameError: another subnet, a wrong length, or a value that is not finite.
    """
    if frame.digest != digest(subnet):
        raise FrameError(
            "frame holds another subnet than expected: the network, the rate, the seed or the subnet settings differ "
            "between server and device."
        )
    dtype = DTYPES[frame.header.dtype]
    start = HEADER_BYTES + (_padded((mask_bits + 7) // 8) if frame.header.masked else 0)
    scale_count = len(subnet) if dtype == torch.int8 else 0
    values_at = start + 4 * scale_count
    expected = values_at + frame.count * dtype.itemsize
    if frame.count != sum(piece.size for piece in subnet.values()) or len(frame.data) != expected:
        raise FrameError(f"frame has {len(frame.data)} bytes for {frame.count} values; {expected} were expected.")
    scales = np.frombuffer(frame.data, "<f4", scale_count, start)
    if not np.isfinite(scales).all():
        raise FrameError("frame holds a scale that is not finite.")
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


def _padded(length: int) -> int:
    """Round up to whole 4-byte words, so that values stay aligned."""
    return (length + 3) // 4 * 4


def _largest(values: Tensor) -> float:
    """Return the largest magnitude: NaN if any is NaN. One pass, no temporary."""
    if not values.numel():
        return 0.0
    low, high = torch.aminmax(values)
    return float(torch.maximum(-low, high))


def _pack(data: npt.NDArray[np.uint8], header: Header, stated: bytes, count: int, crc: int) -> None:
    _LAYOUT.pack_into(
        data.data,
        0,
        MAGIC,
        VERSION,
        KINDS.index(header.kind),
        LEVELS.index(header.level) | (_MASKED if header.masked else 0),
        _CODES[header.dtype],
        header.round,
        header.device,
        header.seed,
        header.rate,
        stated,
        count,
        header.samples,
        header.loss,
        crc,
    )
