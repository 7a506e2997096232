"""When do fewer bits per value pay? Four cells, four dtypes, three seeds; prints a Markdown table.

python examples/compare_dtypes.py [--rounds 10] [--seeds 3] [--out dtypes.md]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import feddrop

CELLS = {
    "radio binds: urban-micro, 0.3 s": ["radio.preset=urban-micro"],
    "radio binds hard: urban-micro, 0.1 s": ["radio.preset=urban-micro", "radio.deadline_s=0.1"],
    "compute binds: indoor, ESP32, 1 s": ["radio.preset=indoor", "radio.devices=esp32", "radio.deadline_s=1.0"],
    "hardly anything binds: urban-micro, 5 s": ["radio.preset=urban-micro", "radio.deadline_s=5.0"],
}
DTYPES = ("float32", "float16", "int8", "auto")
SMALL = ["data.train_limit=600", "train.batch_size=8"]


def outcome(cell: str, dtype: str, seed: int, rounds: int) -> tuple[float, float, float, float]:
    """Return test accuracy, mean rate, fraction of devices left out, and megabytes up of one run."""
    settings = [
        *CELLS[cell],
        *SMALL,
        f"execution.dtype={dtype}",
        f"seed={seed}",
        f"rounds={rounds}",
        f"eval_every={rounds}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        records = list(feddrop.Run(feddrop.RunConfig.from_toml("", settings), Path(folder) / "run"))
    devices = [device for record in records for device in record.devices]
    rates = [device.rate for device in devices if device.took_part]
    return (
        records[-1].test_accuracy,
        statistics.mean(rates),
        1 - len(rates) / len(devices),
        sum(record.pull_bytes for record in records) / 1e6,
    )


def rows(rounds: int, seeds: int) -> Iterator[str]:
    """Yield the rows of the table."""
    yield "| cell | dtype | test accuracy | mean rate | left out | up, MB |"
    yield "|---|---|---|---|---|---|"
    for cell in CELLS:
        for dtype in DTYPES:
            accuracy, rate, left_out, up = zip(*(outcome(cell, dtype, s, rounds) for s in range(seeds)), strict=True)
            spread = statistics.stdev(accuracy) if seeds > 1 else 0.0
            yield (
                f"| {cell} | {dtype} | {statistics.mean(accuracy):.1%} ± {spread:.1%} | {statistics.mean(rate):.3f} "
                f"| {statistics.mean(left_out):.1%} | {statistics.mean(up):.1f} |"
            )


def main() -> None:
    """Run all combinations and print each row when it is done."""
    parser = argparse.ArgumentParser(description="When do fewer bits per value pay?")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    given = parser.parse_args()
    lines = []
    for row in rows(given.rounds, given.seeds):
        print(row, flush=True)
        lines.append(row)
        if given.out:
            given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
