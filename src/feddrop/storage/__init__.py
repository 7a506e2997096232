"""Run folders: records, checkpoints, device memories. Torch, pyarrow and pandas are imported only when needed."""

from feddrop.storage.folder import RunFolder
from feddrop.storage.load import LoadedRun, export, load_model, load_run
from feddrop.storage.records import DeviceRecord, RoundRecord

__all__ = ["DeviceRecord", "LoadedRun", "RoundRecord", "RunFolder", "export", "load_model", "load_run"]
