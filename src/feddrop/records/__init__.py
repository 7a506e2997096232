"""What a round leaves behind, and the run folder it is left in. Torch and pandas are loaded when they are needed."""

from feddrop.records.folder import RunFolder
from feddrop.records.load import LoadedRun, export, load_model, load_run
from feddrop.records.types import DeviceRecord, RoundRecord

__all__ = ["DeviceRecord", "LoadedRun", "RoundRecord", "RunFolder", "export", "load_model", "load_run"]
