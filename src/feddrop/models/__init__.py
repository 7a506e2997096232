"""The networks of the package, and how their FLOPs are counted."""

from feddrop.models.images import alexnet, lenet, resnet18
from feddrop.models.preprocessed import Preprocessed
from feddrop.models.registry import MODELS, Shaped, Shapes, build_model, copy_model
from feddrop.models.sequences import lstm, transformer
from feddrop.models.tables import mlp
from feddrop.subnets.parameters import count_parameters

__all__ = [
    "MODELS",
    "Preprocessed",
    "Shaped",
    "Shapes",
    "alexnet",
    "build_model",
    "copy_model",
    "count_parameters",
    "lenet",
    "lstm",
    "mlp",
    "resnet18",
    "transformer",
]
