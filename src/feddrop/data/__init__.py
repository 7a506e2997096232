"""Data sets, and how their samples are spread over the devices. Importing this does not load torch."""

from feddrop.data.dataset import Dataset, from_arrays
from feddrop.data.partitions import PARTITIONS, class_counts, partition
from feddrop.data.sources import DATASETS, load, locate

__all__ = ["DATASETS", "PARTITIONS", "Dataset", "class_counts", "from_arrays", "load", "locate", "partition"]
