"""The networks that come with the package."""

from feddrop.models.images import NORMS, alexnet, lenet, resnet18
from feddrop.models.named import INITS, MODELS, ModelConfig, Shaped, Shapes, build, copied
from feddrop.models.sequences import lstm, transformer
from feddrop.models.tables import mlp
from feddrop.subnets.parameters import count_parameters

__all__ = [
    "INITS",
    "MODELS",
    "NORMS",
    "ModelConfig",
    "Shaped",
    "Shapes",
    "alexnet",
    "build",
    "copied",
    "count_parameters",
    "lenet",
    "lstm",
    "mlp",
    "resnet18",
    "transformer",
]
