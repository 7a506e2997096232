"""``[model]``: the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import Settings, setting

MODELS = ("lenet", "alexnet", "resnet18", "mlp", "lstm", "transformer")
INITS = ("torch", "he")
NORMS = ("batch", "group", "static")
MAX_WIDTH = 1e5
"""Sizes above this width do not fit into 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Model(Settings):
    """The network.

    Attributes:
        name: the network: ``"lenet"``, ``"alexnet"`` and ``"resnet18"`` are for images, ``"mlp"`` for tables,
            ``"lstm"`` and ``"transformer"`` for tokens.
        width: factor on all hidden widths, which are rounded to at least 1.
        init: initial weights: PyTorch's defaults, or ``"he"`` for He initialisation in all layers but the last, which
            deep ReLU networks need. Not for tokens.
        norm: norm layers of ``"resnet18"``; ``"static"`` keeps no running statistics.
        layers: hidden layers of ``"mlp"`` (2 by default), layers of ``"lstm"`` (1), blocks of ``"transformer"`` (2);
            0 for the default.
    """

    section: ClassVar[str] = "model"

    name: str = setting("lenet", choices=MODELS, kw_only=False)
    width: float = setting(1.0, gt=0, le=MAX_WIDTH)
    init: str = setting("torch", choices=INITS, only_with={"name": ("lenet", "alexnet", "resnet18", "mlp")})
    norm: str = setting("batch", choices=NORMS, only_with={"name": ("resnet18",)})
    layers: int = setting(0, ge=0, le=100, only_with={"name": ("mlp", "lstm", "transformer")})
