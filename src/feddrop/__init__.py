"""feddrop: federated dropout over wireless edge devices, with the radio in the loop.

Names are loaded when they are first used, so that ``import feddrop`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feddrop.allocation import PowerProblem, Problem, allocate
    from feddrop.simulation.callbacks import CallbacksConfig, MLflow, TensorBoard, WandB
    from feddrop.config import RunConfig
    from feddrop.data import DataConfig, Dataset, from_arrays, from_dataset, load, partition
    from feddrop.simulation.device import Device, Reply, Task
    from feddrop.errors import (
        ConfigError,
        DataError,
        FeddropError,
        FeddropWarning,
        FrameError,
        InfeasibleError,
        RunError,
        SubnetError,
        TrainingError,
    )
    from feddrop.executors import ExecutionConfig, Executor, Processes, Ray, Serial
    from feddrop.learning.config import TrainConfig
    from feddrop.learning.server import ServerConfig
    from feddrop.methods import MethodConfig, named
    from feddrop.methods.fedavg import FedavgConfig, fedavg
    from feddrop.methods.feddrop import FeddropConfig, feddrop
    from feddrop.methods.feddst import FeddstConfig, feddst
    from feddrop.methods.fiarse import FiarseConfig, at_rate, fiarse
    from feddrop.methods.fjord import FjordConfig, at_width, fjord
    from feddrop.methods.method import Job, Method, Setup, Sizes, Spec, Update, jobs, trained
    from feddrop.methods.prunefl import PruneflConfig, prunefl
    from feddrop.methods.windows import WindowConfig, fedrolex, heterofl
    from feddrop.models import ModelConfig, alexnet, lenet, lstm, mlp, resnet18, transformer
    from feddrop.simulation.participation import ParticipationConfig
    from feddrop.radio import Cell, RadioConfig, gains_from
    from feddrop.storage import DeviceRecord, LoadedRun, RoundRecord, export, load_model, load_run
    from feddrop.report import write_report
    from feddrop.simulation.round import Parcel
    from feddrop.simulation.run import Run, resume, run
    from feddrop.seeds import derive
    from feddrop.subnets.blueprint import Blueprint
    from feddrop.subnets.coupling import register_rule
    from feddrop.sweeps import sweep
    from feddrop.cli.live import show

_HOMES = {
    "Blueprint": "subnets.blueprint",
    "CallbacksConfig": "callbacks",
    "Cell": "radio",
    "ConfigError": "errors",
    "DataConfig": "data",
    "DataError": "errors",
    "Dataset": "data",
    "Device": "device",
    "DeviceRecord": "records",
    "ExecutionConfig": "executors",
    "Executor": "executors",
    "FedavgConfig": "methods.fedavg",
    "FeddropConfig": "methods.feddrop",
    "FeddropError": "errors",
    "FeddropWarning": "errors",
    "FeddstConfig": "methods.feddst",
    "FiarseConfig": "methods.fiarse",
    "FjordConfig": "methods.fjord",
    "FrameError": "errors",
    "InfeasibleError": "errors",
    "Job": "methods.method",
    "LoadedRun": "records",
    "MLflow": "callbacks",
    "Method": "methods.method",
    "MethodConfig": "methods",
    "ModelConfig": "models",
    "Parcel": "rounds",
    "ParticipationConfig": "participation",
    "PowerProblem": "allocation",
    "Problem": "allocation",
    "Processes": "executors",
    "PruneflConfig": "methods.prunefl",
    "RadioConfig": "radio",
    "Ray": "executors",
    "Reply": "device",
    "RoundRecord": "records",
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
    "TensorBoard": "callbacks",
    "TrainConfig": "learning.config",
    "TrainingError": "errors",
    "Update": "methods.method",
    "WandB": "callbacks",
    "WindowConfig": "methods.windows",
    "alexnet": "models",
    "allocate": "allocation",
    "at_rate": "methods.fiarse",
    "at_width": "methods.fjord",
    "derive": "seeds",
    "export": "records",
    "fedavg": "methods.fedavg",
    "feddrop": "methods.feddrop",
    "feddst": "methods.feddst",
    "fedrolex": "methods.windows",
    "fiarse": "methods.fiarse",
    "fjord": "methods.fjord",
    "from_arrays": "data",
    "from_dataset": "data",
    "gains_from": "radio",
    "heterofl": "methods.windows",
    "jobs": "methods.method",
    "lenet": "models",
    "load": "data",
    "load_model": "records",
    "load_run": "records",
    "lstm": "models",
    "mlp": "models",
    "named": "methods",
    "partition": "data",
    "prunefl": "methods.prunefl",
    "register_rule": "subnets.coupling",
    "resnet18": "models",
    "resume": "runs",
    "run": "runs",
    "show": "terminal.live",
    "sweep": "sweeps",
    "trained": "methods.method",
    "transformer": "models",
    "write_report": "report",
}

__all__ = [
    "Blueprint",
    "CallbacksConfig",
    "Cell",
    "ConfigError",
    "DataConfig",
    "DataError",
    "Dataset",
    "Device",
    "DeviceRecord",
    "ExecutionConfig",
    "Executor",
    "FedavgConfig",
    "FeddropConfig",
    "FeddropError",
    "FeddropWarning",
    "FeddstConfig",
    "FiarseConfig",
    "FjordConfig",
    "FrameError",
    "InfeasibleError",
    "Job",
    "LoadedRun",
    "MLflow",
    "Method",
    "MethodConfig",
    "ModelConfig",
    "Parcel",
    "ParticipationConfig",
    "PowerProblem",
    "Problem",
    "Processes",
    "PruneflConfig",
    "RadioConfig",
    "Ray",
    "Reply",
    "RoundRecord",
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
    "TensorBoard",
    "TrainConfig",
    "TrainingError",
    "Update",
    "WandB",
    "WindowConfig",
    "alexnet",
    "allocate",
    "at_rate",
    "at_width",
    "derive",
    "export",
    "fedavg",
    "feddrop",
    "feddst",
    "fedrolex",
    "fiarse",
    "fjord",
    "from_arrays",
    "from_dataset",
    "gains_from",
    "heterofl",
    "jobs",
    "lenet",
    "load",
    "load_model",
    "load_run",
    "lstm",
    "mlp",
    "named",
    "partition",
    "prunefl",
    "register_rule",
    "resnet18",
    "resume",
    "run",
    "show",
    "sweep",
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
