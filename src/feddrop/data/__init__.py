"""Data sets and their partition over the devices. Importing this package does not load torch."""

from feddrop.config.data import PARTITIONS
from feddrop.data.adapters import from_dataset
from feddrop.data.arrays import from_arrays
from feddrop.data.dataset import Dataset
from feddrop.data.partitions import class_counts, partition, partition_dataset, validation_samples
from feddrop.data.preprocessing import Preprocessing
from feddrop.data.sources import DATASETS, load_dataset, locate_dataset

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "Dataset",
    "Preprocessing",
    "class_counts",
    "from_arrays",
    "from_dataset",
    "load_dataset",
    "locate_dataset",
    "partition",
    "partition_dataset",
    "validation_samples",
]
