"""Derive every random stream from one root seed.

There is no global or stored state: each stream is derived from the root seed and labels that name its purpose, e.g.
``derive(root, "mask", round, device)``. So a resumed run needs no generator state, and a device regenerates its mask
from a number.

Streams that must agree between machines use only integer arithmetic on the raw 64-bit words of Philox-4x64-10, a
counter-based generator whose stream NumPy documents as stable; golden vectors in the tests pin them.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from feddrop.errors import ConfigError

Label = int | str


def derive(root: int, *labels: Label) -> int:
    """Derive a 64-bit seed from a root seed and labels.

    Every label is hashed (BLAKE2b, 8 bytes) with its type and length, so ``("a", "bc")`` and ``("ab", "c")`` differ, as
    do ``1`` and ``"1"``.

    Args:
        root: any non-negative integer.
        *labels: the purpose of the stream: strings and non-negative integers.

    Example:
        >>> import feddrop
        >>> feddrop.derive(0, "mask", 1) == feddrop.derive(0, "mask", 1) != feddrop.derive(0, "mask", 2)
        True
    """
    parts: list[bytes] = []
    for label in (root, *labels):
        if isinstance(label, str):
            tag, body = b"s", label.encode()
        else:
            value = int(label)
            if value < 0:
                raise ConfigError(f"A seed or label is {value}; it must be at least 0.")
            tag, body = b"i", value.to_bytes(max(1, (value.bit_length() + 7) // 8), "little")
        parts += (tag, len(body).to_bytes(4, "little"), body)
    hashed = hashlib.blake2b(b"".join(parts), digest_size=8, person=b"feddrop/seed", usedforsecurity=False)
    return int.from_bytes(hashed.digest(), "little")


def philox_words(seed: int, count: int) -> npt.NDArray[np.uint32]:
    """Return the first ``count`` 32-bit words of the Philox stream with this key, low half of each raw word first."""
    return _words(_reused(seed), count)


def philox_chunks(seed: int, count: int, chunk: int) -> Iterator[npt.NDArray[np.uint32]]:
    """Yield the words of :func:`philox_words` in parts of ``chunk``, an even number; the last may be shorter."""
    bits = _philox(seed)
    for start in range(0, count, chunk):
        yield _words(bits, min(chunk, count - start))


def _words(bits: np.random.Philox, count: int) -> npt.NDArray[np.uint32]:
    raw = bits.random_raw((count + 1) // 2)
    return raw.astype("<u8", copy=False).view("<u4")[:count]


def permutation(seed: int, count: int) -> npt.NDArray[np.int64]:
    """Return a random permutation of ``range(count)``: positions sorted by their Philox words, ties by position."""
    return np.argsort(philox_words(seed, count), kind="stable")


def generator(seed: int) -> np.random.Generator:
    """Return a NumPy generator for draws that need not agree between machines (fading, Dirichlet)."""
    bits: Any = _philox(seed)
    return np.random.Generator(bits)


def _philox(seed: int) -> np.random.Philox:
    if not 0 <= seed < 1 << 128:
        raise ConfigError(f"seed is {seed}; it must be at least 0 and below 2**128.")
    return np.random.Philox(key=seed)


class _Reusable(threading.local):
    """A generator per thread and its state at the start of a stream: setting the key is cheaper than a new one."""

    def __init__(self) -> None:
        self.bits: Any = np.random.Philox(key=0)
        self.start: Any = self.bits.state


_reusable = _Reusable()


def _reused(seed: int) -> np.random.Philox:
    """Return the thread's generator at the start of the stream with this key; valid until the next call."""
    if not 0 <= seed < 1 << 64:
        return _philox(seed)
    _reusable.start["state"]["key"][0] = seed
    _reusable.bits.state = _reusable.start
    found: np.random.Philox = _reusable.bits
    return found
