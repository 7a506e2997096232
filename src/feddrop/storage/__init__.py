"""What a round leaves behind, and the run folder it is left in. Torch and pandas are loaded when they are needed."""

from feddrop.storage.folder import RunFolder
from feddrop.storage.load import LoadedRun, export, load_model, load_run
from feddrop.storage.records import DeviceRecord, RoundRecord

__all__ = ["DeviceRecord", "LoadedRun", "RoundRecord", "RunFolder", "export", "load_model", "load_run"]
