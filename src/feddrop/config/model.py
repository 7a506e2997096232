"""``[model]``: which network is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import Section, setting

MODELS = ("lenet", "alexnet", "resnet18", "mlp", "lstm", "transformer")
INITS = ("torch", "he")
NORMS = ("batch", "group", "static")
MAX_WIDTH = 1e5
"""Beyond this width, sizes no longer fit into 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(Section):
    """The network.

    Attributes:
        name: ``"lenet"``, ``"alexnet"`` or ``"resnet18"`` for images, ``"mlp"`` for tables, ``"lstm"`` or
            ``"transformer"`` for tokens.
        width: factor on the hidden widths.
        init: initial weights: ``"torch"`` for PyTorch's defaults, or ``"he"``.
        norm: norm layers of ``"resnet18"``: ``"batch"``, ``"group"``, or ``"static"``, which keeps no statistics.
        layers: hidden layers of ``"mlp"``, layers of ``"lstm"``, blocks of ``"transformer"``; 0 for the default.
    """

    section: ClassVar[str] = "model"

    name: str = setting("lenet", choices=MODELS, kw_only=False)
    width: float = setting(1.0, gt=0, le=MAX_WIDTH)
    init: str = setting("torch", choices=INITS, only_with={"name": ("lenet", "alexnet", "resnet18", "mlp")})
    norm: str = setting("batch", choices=NORMS, only_with={"name": ("resnet18",)})
    layers: int = setting(0, ge=0, le=100, only_with={"name": ("mlp", "lstm", "transformer")})

    def scaled(self, *counts: int) -> list[int]:
        """Return hidden widths times the factor, rounded, at least 1."""
        return [max(1, round(self.width * count)) for count in counts]
