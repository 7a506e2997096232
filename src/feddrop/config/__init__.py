"""The configuration of a run, from Python, TOML or the command line. Imports neither torch nor NumPy."""

from feddrop.config.callbacks import Callbacks
from feddrop.config.conversion import from_table, to_table
from feddrop.config.data import Data
from feddrop.config.execution import Execution
from feddrop.config.methods import (
    FIARSE,
    METHODS,
    CustomMethod,
    FedAvg,
    FedDrop,
    FedDST,
    FedRolex,
    FjORD,
    HeteroFL,
    MethodSettings,
    PruneFL,
    Subnets,
    SuppliedMethod,
    Windows,
    method_named,
)
from feddrop.config.model import Model
from feddrop.config.participation import Participation
from feddrop.config.radio import Radio
from feddrop.config.run import RATE, RunConfig, locate
from feddrop.config.server import Server
from feddrop.config.train import Train

__all__ = [
    "FIARSE",
    "METHODS",
    "RATE",
    "Callbacks",
    "CustomMethod",
    "Data",
    "Execution",
    "FedAvg",
    "FedDST",
    "FedDrop",
    "FedRolex",
    "FjORD",
    "HeteroFL",
    "MethodSettings",
    "Model",
    "Participation",
    "PruneFL",
    "Radio",
    "RunConfig",
    "Server",
    "Subnets",
    "SuppliedMethod",
    "Train",
    "Windows",
    "from_table",
    "locate",
    "method_named",
    "to_table",
]
