"""feddrop: federated dropout over wireless edge devices, with the radio in the loop.

Names are loaded when they are first used, so that ``import feddrop`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feddrop.allocation import Problem, allocate
    from feddrop.config import RunConfig
    from feddrop.data import DataConfig, Dataset, from_arrays, from_dataset, load, partition
    from feddrop.device import Device, Reply, Task
    from feddrop.errors import (
        ConfigError,
        DataError,
        FeddropError,
        FrameError,
        InfeasibleError,
        RunError,
        SubnetError,
        TrainingError,
    )
    from feddrop.executors import ExecutionConfig, Executor, Processes, Serial
    from feddrop.learning.config import TrainConfig
    from feddrop.learning.server import ServerConfig
    from feddrop.methods import MethodConfig, named
    from feddrop.methods.fedavg import FedavgConfig, fedavg
    from feddrop.methods.feddrop import FeddropConfig, feddrop
    from feddrop.methods.feddst import FeddstConfig, feddst
    from feddrop.methods.method import Job, Method, Setup, Sizes, Spec, Update, jobs, trained
    from feddrop.methods.windows import WindowConfig, fedrolex, heterofl
    from feddrop.models import ModelConfig, alexnet, lenet, lstm, mlp, resnet18, transformer
    from feddrop.participation import ParticipationConfig
    from feddrop.radio import Cell, RadioConfig
    from feddrop.report import write_report
    from feddrop.rounds import Parcel
    from feddrop.runs import Run, resume, run
    from feddrop.seeds import derive
    from feddrop.terminal.live import show

_HOMES = {
    "Cell": "radio",
    "ConfigError": "errors",
    "DataConfig": "data",
    "DataError": "errors",
    "Dataset": "data",
    "Device": "device",
    "ExecutionConfig": "executors",
    "Executor": "executors",
    "FedavgConfig": "methods.fedavg",
    "FeddropConfig": "methods.feddrop",
    "FeddropError": "errors",
    "FeddstConfig": "methods.feddst",
    "FrameError": "errors",
    "InfeasibleError": "errors",
    "Job": "methods.method",
    "Method": "methods.method",
    "MethodConfig": "methods",
    "ModelConfig": "models",
    "Parcel": "rounds",
    "ParticipationConfig": "participation",
    "Problem": "allocation",
    "Processes": "executors",
    "RadioConfig": "radio",
    "Reply": "device",
    "Run": "runs",
    "RunConfig": "config",
    "RunError": "errors",
    "Serial": "executors",
    "ServerConfig": "learning.server",
    "Setup": "methods.method",
    "Sizes": "methods.method",
    "Spec": "methods.method",
    "SubnetError": "errors",
    "Task": "device",
    "TrainConfig": "learning.config",
    "TrainingError": "errors",
    "Update": "methods.method",
    "WindowConfig": "methods.windows",
    "alexnet": "models",
    "allocate": "allocation",
    "derive": "seeds",
    "fedavg": "methods.fedavg",
    "feddrop": "methods.feddrop",
    "feddst": "methods.feddst",
    "fedrolex": "methods.windows",
    "from_arrays": "data",
    "from_dataset": "data",
    "heterofl": "methods.windows",
    "jobs": "methods.method",
    "lenet": "models",
    "load": "data",
    "lstm": "models",
    "mlp": "models",
    "named": "methods",
    "partition": "data",
    "resnet18": "models",
    "resume": "runs",
    "run": "runs",
    "show": "terminal.live",
    "trained": "methods.method",
    "transformer": "models",
    "write_report": "report",
}

__all__ = [
    "Cell",
    "ConfigError",
    "DataConfig",
    "DataError",
    "Dataset",
    "Device",
    "ExecutionConfig",
    "Executor",
    "FedavgConfig",
    "FeddropConfig",
    "FeddropError",
    "FeddstConfig",
    "FrameError",
    "InfeasibleError",
    "Job",
    "Method",
    "MethodConfig",
    "ModelConfig",
    "Parcel",
    "ParticipationConfig",
    "Problem",
    "Processes",
    "RadioConfig",
    "Reply",
    "Run",
    "RunConfig",
    "RunError",
    "Serial",
    "ServerConfig",
    "Setup",
    "Sizes",
    "Spec",
    "SubnetError",
    "Task",
    "TrainConfig",
    "TrainingError",
    "Update",
    "WindowConfig",
    "alexnet",
    "allocate",
    "derive",
    "fedavg",
    "feddrop",
    "feddst",
    "fedrolex",
    "from_arrays",
    "from_dataset",
    "heterofl",
    "jobs",
    "lenet",
    "load",
    "lstm",
    "mlp",
    "named",
    "partition",
    "resnet18",
    "resume",
    "run",
    "show",
    "trained",
    "transformer",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'feddrop' has no attribute {name!r}")
    return getattr(import_module(f"feddrop.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
