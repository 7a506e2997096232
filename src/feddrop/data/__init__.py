"""Data sets and their partition over the devices. Importing this package does not load torch."""

from feddrop.config.data import PARTITIONS as PARTITIONS
from feddrop.data.adapters import from_dataset as from_dataset
from feddrop.data.arrays import from_arrays as from_arrays
from feddrop.data.dataset import Dataset as Dataset
from feddrop.data.partitions import class_counts as class_counts
from feddrop.data.partitions import partition as partition
from feddrop.data.partitions import partition_dataset as partition_dataset
from feddrop.data.partitions import validation_samples as validation_samples
from feddrop.data.preprocessing import Preprocessing as Preprocessing
from feddrop.data.sources import DATASETS as DATASETS
from feddrop.data.sources import configured_dataset as configured_dataset
from feddrop.data.sources import load_dataset as load_dataset
from feddrop.data.sources import locate_dataset as locate_dataset
