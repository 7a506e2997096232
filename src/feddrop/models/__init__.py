"""The networks that come with the package, and what a network costs."""

from feddrop.models.counts import count_parameters, forward_flops, layer_flops
from feddrop.models.images import NORMS, alexnet, lenet, resnet18
from feddrop.models.named import INITS, MODELS, ModelConfig, Shaped, Shapes, build
from feddrop.models.sequences import lstm, transformer
from feddrop.models.tables import mlp

__all__ = [
    "INITS",
    "MODELS",
    "NORMS",
    "ModelConfig",
    "Shaped",
    "Shapes",
    "alexnet",
    "build",
    "count_parameters",
    "forward_flops",
    "layer_flops",
    "lenet",
    "lstm",
    "mlp",
    "resnet18",
    "transformer",
]
