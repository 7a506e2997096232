"""feddrop: federated dropout over wireless edge devices, with the radio in the loop.

Names are loaded when they are first used, so that ``import feddrop`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feddrop.callbacks import CallbacksConfig, MLflow, TensorBoard, WandB
    from feddrop.config import AggregationConfig, DataConfig, ExecutionConfig, ModelConfig, RunConfig
    from feddrop.data import Dataset, from_arrays, load, partition
    from feddrop.errors import FeddropError
    from feddrop.method import Assignment, Method, Update
    from feddrop.methods.feddrop import feddrop
    from feddrop.methods.feddst import FeddstConfig, feddst
    from feddrop.methods.windows import windows
    from feddrop.models import alexnet, lenet
    from feddrop.radio import Cell, RadioConfig
    from feddrop.records import DeviceRecord, LoadedRun, RoundRecord, export, load_model, load_run
    from feddrop.runs import Run, resume, run
    from feddrop.seeds import derive
    from feddrop.subnets.cut import SubnetConfig
    from feddrop.training import TrainConfig

_HOMES = {
    "AggregationConfig": "config",
    "Assignment": "method",
    "CallbacksConfig": "callbacks",
    "Cell": "radio",
    "DataConfig": "config",
    "Dataset": "data",
    "DeviceRecord": "records",
    "ExecutionConfig": "config",
    "FeddropError": "errors",
    "FeddstConfig": "methods.feddst",
    "LoadedRun": "records",
    "MLflow": "callbacks",
    "Method": "method",
    "ModelConfig": "config",
    "RadioConfig": "radio",
    "RoundRecord": "records",
    "Run": "runs",
    "RunConfig": "config",
    "SubnetConfig": "subnets.cut",
    "TensorBoard": "callbacks",
    "TrainConfig": "training",
    "Update": "method",
    "WandB": "callbacks",
    "alexnet": "models",
    "derive": "seeds",
    "export": "records",
    "feddrop": "methods.feddrop",
    "feddst": "methods.feddst",
    "from_arrays": "data",
    "lenet": "models",
    "load": "data",
    "load_model": "records",
    "load_run": "records",
    "partition": "data",
    "resume": "runs",
    "run": "runs",
    "windows": "methods.windows",
}

__all__ = [
    "AggregationConfig",
    "Assignment",
    "CallbacksConfig",
    "Cell",
    "DataConfig",
    "Dataset",
    "DeviceRecord",
    "ExecutionConfig",
    "FeddropError",
    "FeddstConfig",
    "LoadedRun",
    "MLflow",
    "Method",
    "ModelConfig",
    "RadioConfig",
    "RoundRecord",
    "Run",
    "RunConfig",
    "SubnetConfig",
    "TensorBoard",
    "TrainConfig",
    "Update",
    "WandB",
    "alexnet",
    "derive",
    "export",
    "feddrop",
    "feddst",
    "from_arrays",
    "lenet",
    "load",
    "load_model",
    "load_run",
    "partition",
    "resume",
    "run",
    "windows",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'feddrop' has no attribute {name!r}")
    return getattr(import_module(f"feddrop.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
