"""The payload of a frame in NumPy alone: named tensors, and masks coded by their gaps. Written from docs/frames.md.

Federated dropout with uniform draws sends no payload; a client for importance draws, FedDST or FIARSE needs this.
"""

import math
import struct

import numpy as np

HEADER_BYTES = 64
DTYPES = ("bool", "u1", "<i4", "<i8", "<f4", "<f2")


def read_gaps(data, size):
    """Return the mask that is coded by the gaps between its marked entries."""
    count, _ = struct.unpack_from("<II", data)
    chunks = (count + 255) // 256
    low = np.repeat(np.frombuffer(data, "u1", chunks, 8), 256)[:count].astype(int)
    bits, at, gaps = np.unpackbits(np.frombuffer(data, "u1", offset=8 + chunks)), 0, np.zeros(count, int)
    for bit in range(low.max()):
        held = np.flatnonzero(low > bit)
        gaps[held] |= bits[at : at + len(held)].astype(int) << bit
        at += len(held)
    gaps += (np.diff(np.flatnonzero(bits[at:])[:count], prepend=-1) - 1) << low
    mask = np.zeros(size, bool)
    mask[np.cumsum(gaps + 1)[:-1] - 1] = True
    return mask


def read_sections(data, count):
    """Return the named tensors after a header, 8-byte digests for remembered ones, and where the values begin."""
    found, at = {}, HEADER_BYTES
    for _ in range(count):
        length, code, rank = struct.unpack_from("<HBB", data, at)
        shape = struct.unpack_from(f"<{rank}I", data, at + 4)
        at += 4 + 4 * rank
        name, at = data[at : at + length].decode(), at + (length + 3) // 4 * 4
        size, dtype = math.prod(shape), DTYPES[code & 0x1F]
        coded = code & 0x60
        held = 8 + struct.unpack_from("<I", data, at + 4)[0] if coded else (size + 7) // 8
        held = 8 if code & 0x80 else held if dtype == "bool" else size * np.dtype(dtype).itemsize
        raw, at = data[at : at + held], at + (held + 3) // 4 * 4
        if code & 0x80:
            found[name] = raw
        elif dtype == "bool":
            mask = read_gaps(raw, size) if coded else np.unpackbits(np.frombuffer(raw, "u1"), count=size).astype(bool)
            found[name] = (~mask if coded == 0x20 else mask).reshape(shape)
        else:
            found[name] = np.frombuffer(raw, dtype).reshape(shape)
    return found, at
