"""Data for the clients of examples/tiny_client."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from feddrop.data import load_dataset, partition_dataset
from feddrop.flower.config import read_settings
from feddrop.seeds import derive


def write_part(path: Path, settings, number: int) -> str:
    """Write the samples that a device has in a run as the file that a tiny client reads, and return its name."""
    config, _ = read_settings(settings)
    dataset = load_dataset(config.data.name, train_limit=config.data.train_limit)
    part = partition_dataset(dataset, config.data, seed=derive(config.seed, "partition"))[number]
    np.savez(path, x=dataset.train_x[part].flatten(1).numpy(), y=dataset.train_y[part].numpy())
    return str(path)
