"""The networks of the package, and how their FLOPs are counted."""

from feddrop.models.images import alexnet as alexnet
from feddrop.models.images import lenet as lenet
from feddrop.models.images import resnet18 as resnet18
from feddrop.models.preprocessed import Preprocessed as Preprocessed
from feddrop.models.registry import MODELS as MODELS
from feddrop.models.registry import Shaped as Shaped
from feddrop.models.registry import Shapes as Shapes
from feddrop.models.registry import build_model as build_model
from feddrop.models.registry import copy_model as copy_model
from feddrop.models.sequences import lstm as lstm
from feddrop.models.sequences import transformer as transformer
from feddrop.models.tables import mlp as mlp
from feddrop.subnets.parameters import count_parameters as count_parameters
