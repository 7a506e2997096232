"""Coded masks as docs/frames.md describes them, one gap and one character at a time: the slow twin of wire/gaps.py."""

from __future__ import annotations

import math
import struct


def slow_code(mask) -> bytes:
    gaps, run = [], 0
    for marked in mask:
        if marked:
            gaps.append(run)
        run = 0 if marked else run + 1
    gaps.append(run)
    chunks = [gaps[at : at + 256] for at in range(0, len(gaps), 256)]
    parameters = [rice_parameter(sum(chunk) // len(chunk)) for chunk in chunks]
    pairs = [(gap, low) for chunk, low in zip(chunks, parameters, strict=True) for gap in chunk]
    bits = "".join(str(gap >> bit & 1) for bit in range(6) for gap, low in pairs if low > bit)
    bits += "".join("0" * (gap >> low) + "1" for gap, low in pairs)
    bits += "0" * (-len(bits) % 8)
    body = bytes(parameters) + bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))
    return struct.pack("<II", len(gaps), len(body)) + body


def slow_read(data: bytes, size: int) -> list[bool] | None:
    """Return the mask, or None if the data are no code of such a mask."""
    count, length = struct.unpack_from("<II", data)
    chunks = math.ceil(count / 256)
    parameters, stream = data[8 : 8 + chunks], data[8 + chunks :]
    if not count or length != len(data) - 8 or len(parameters) < chunks or max(parameters) > 6 or count > 8 * length:
        return None
    bits = iter("".join(f"{byte:08b}" for byte in stream))
    gaps = [0] * count
    for bit in range(6):
        for at in range(count):
            if parameters[at // 256] > bit:
                gaps[at] |= int(next(bits, "2")) << bit
    mask: list[bool] = []
    for at, gap in enumerate(gaps):
        while (digit := next(bits, "")) == "0":
            gap += 1 << parameters[at // 256]
        if digit != "1":
            return None
        mask += [False] * gap + [True]
        if len(mask) > size + 1:
            return None
    rest = "".join(bits)
    return mask[:-1] if len(mask) == size + 1 and len(rest) < 8 and "1" not in rest else None


def rice_parameter(mean: int) -> int:
    low = 0
    while low < 6 and 2 ** (low + 1) <= mean:
        low += 1
    return low


def mask_data_bytes(mask) -> int:
    """Return the bytes of the shortest form of a mask, before padding."""
    mask = [bool(entry) for entry in mask]
    return min(math.ceil(len(mask) / 8), len(slow_code(mask)), len(slow_code([not entry for entry in mask])))


def payload_bytes(payload, remembered=()) -> int:
    """Return the bytes of the sections of a payload, by the formula of docs/frames.md."""
    total = 0
    for name, tensor in payload.items():
        data = tensor.numel() * tensor.element_size()
        if name in remembered:
            data = 8
        elif str(tensor.dtype) == "torch.bool":
            data = mask_data_bytes(tensor.flatten().tolist())
        total += 4 + 4 * tensor.ndim + math.ceil(len(name.encode()) / 4) * 4 + math.ceil(data / 4) * 4
    return total
