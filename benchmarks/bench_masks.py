"""Size and speed of coded masks, beside their entropy and ``np.packbits``.

``--small`` runs quickly; its times are meaningless.
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from feddrop.wire.sections import pack_sections, unpack_sections

SMALL = "--small" in sys.argv
REPEATS = 1 if SMALL else 15
SIZES = (2_000,) if SMALL else (61_706, 1_000_000)
SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9)


def main() -> None:
    """Print a table per size; contenders alternate, and the best time of each counts."""
    for size in SIZES:
        table = Table(title=f"Random masks of {size:,} entries: bits per entry, time")
        for column in ("kept", "entropy", "sent", "encode ms", "/ packbits", "decode ms", "/ unpackbits"):
            table.add_column(column, justify="right")
        for share in SHARES:
            mask = np.random.default_rng(0).permutation(size) < round(share * size)
            table.add_row(f"{share}", f"{entropy(share):.3f}", *measured(mask))
        Console().print(table)


def entropy(share: float) -> float:
    """Return the entropy of an entry in bits."""
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)


def measured(mask: np.ndarray) -> list[str]:
    """Return the bits per entry, and milliseconds of encoding and decoding with their ratios to NumPy's."""
    tensor = torch.from_numpy(mask)
    sent, packed = pack_sections({"mask": tensor}), np.packbits(mask)
    steps = (
        lambda: pack_sections({"mask": tensor}),
        lambda: np.packbits(mask).tobytes(),
        lambda: unpack_sections(sent),
        lambda: np.unpackbits(packed, count=mask.size).astype(bool),
    )
    times = [[seconds(step) for step in steps] for _ in range(REPEATS)]
    encode, pack, decode, unpack = (1e3 * min(column) for column in zip(*times, strict=True))
    speeds = [f"{encode:.2f}", f"{encode / pack:.0f}", f"{decode:.2f}", f"{decode / unpack:.0f}"]
    return [f"{8 * len(sent) / mask.size:.3f}", *speeds]


def seconds(step) -> float:
    """Time a call."""
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
