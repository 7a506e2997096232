"""feddrop: federated dropout over wireless edge devices, with the radio in the loop.

Names are loaded when they are first used, so that ``import feddrop`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feddrop.allocation import PowerProblem, Problem, allocate
    from feddrop.config import AggregationConfig, DataConfig, ExecutionConfig, ModelConfig, RunConfig
    from feddrop.data import Dataset, from_arrays, load, partition
    from feddrop.errors import FeddropError
    from feddrop.method import Assignment, Method, Update
    from feddrop.methods.feddrop import feddrop
    from feddrop.methods.feddst import FeddstConfig, feddst
    from feddrop.methods.windows import windows
    from feddrop.models import alexnet, lenet
    from feddrop.radio import Cell, RadioConfig
    from feddrop.runs import Run, resume, run
    from feddrop.seeds import derive
    from feddrop.subnets.cut import SubnetConfig
    from feddrop.training import TrainConfig

_HOMES = {
    "AggregationConfig": "config",
    "Assignment": "method",
    "Cell": "radio",
    "DataConfig": "config",
    "Dataset": "data",
    "ExecutionConfig": "config",
    "FeddropError": "errors",
    "FeddstConfig": "methods.feddst",
    "Method": "method",
    "ModelConfig": "config",
    "PowerProblem": "allocation",
    "Problem": "allocation",
    "RadioConfig": "radio",
    "Run": "runs",
    "RunConfig": "config",
    "SubnetConfig": "subnets.cut",
    "TrainConfig": "training",
    "Update": "method",
    "alexnet": "models",
    "allocate": "allocation",
    "derive": "seeds",
    "feddrop": "methods.feddrop",
    "feddst": "methods.feddst",
    "from_arrays": "data",
    "lenet": "models",
    "load": "data",
    "partition": "data",
    "resume": "runs",
    "run": "runs",
    "windows": "methods.windows",
}

__all__ = [
    "AggregationConfig",
    "Assignment",
    "Cell",
    "DataConfig",
    "Dataset",
    "ExecutionConfig",
    "FeddropError",
    "FeddstConfig",
    "Method",
    "ModelConfig",
    "PowerProblem",
    "Problem",
    "RadioConfig",
    "Run",
    "RunConfig",
    "SubnetConfig",
    "TrainConfig",
    "Update",
    "alexnet",
    "allocate",
    "derive",
    "feddrop",
    "feddst",
    "from_arrays",
    "lenet",
    "load",
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
