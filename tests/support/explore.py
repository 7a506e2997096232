"""Small runs for the tests of the explorer."""

from __future__ import annotations

from pathlib import Path

import feddrop


def make_run(folder: Path, *, seed: int, rounds: int, rate: float = 0.3, label: str = "") -> None:
    """Train a small run; two devices, and 60 digits."""
    data = feddrop.Data(devices=2, train_limit=60)
    config = feddrop.RunConfig(seed=seed, rounds=rounds, rate=rate, data=data)
    for _ in feddrop.Run(config, folder, **({"label": label} if label else {})):
        pass
