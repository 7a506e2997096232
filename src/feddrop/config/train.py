"""``[train]``: local training on a device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import Settings, setting

SCHEDULES = ("constant", "cosine", "linear")
OPTIMIZERS = ("sgd", "adam", "adamw")
LOSSES = ("cross_entropy", "mse", "l1", "bce")
GROWN = 1000.0
"""A loss has diverged if it grows to this many times its previous value and is not small."""
LARGEST = 1e30
"""The largest factor of a step: products with weights must fit into float32."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Train(Settings):
    """Local training on a device.

    Attributes:
        optimizer: the local optimizer; its state is reset every round. Adam uses β = (0.9, 0.999).
        lr: learning rate η in the first round.
        schedule: how the learning rate decreases from ``lr`` to ``lr * lr_end`` over the rounds: not at all
            (``"constant"``), as a ``"cosine"`` or ``"linear"``.
        lr_end: fraction of the learning rate left after the last round (cosine, linear).
        momentum: momentum within a round (sgd).
        weight_decay: L2 penalty; decoupled from the gradient for adamw.
        clip_norm: largest gradient norm of a step, over all weights; 0 for no limit.
        proximal: μ of FedProx: adds μ/2·‖w - w₀‖² to the loss, where w₀ are the weights at the start of the round.
        batch_size: samples per step.
        epochs: passes over the local data per round.
        compress: fraction of its weight changes that a device sends, the largest ones of every tensor; the device
            remembers the others and adds them to its next update (top-k with error feedback). 1 sends all.
        loss: the loss; if empty, cross-entropy for classes and mean squared error for numbers.
    """

    section: ClassVar[str] = "train"

    optimizer: str = setting("sgd", choices=OPTIMIZERS)
    lr: float = setting(0.1, gt=0, le=LARGEST)
    schedule: str = setting("constant", choices=SCHEDULES)
    lr_end: float = setting(0.0, ge=0, only_with={"schedule": ("cosine", "linear")})
    momentum: float = setting(0.0, ge=0, lt=1, only_with={"optimizer": ("sgd",)})
    weight_decay: float = setting(0.0, ge=0, le=LARGEST)
    clip_norm: float = setting(0.0, ge=0)
    proximal: float = setting(0.0, ge=0, le=LARGEST)
    batch_size: int = setting(32, ge=1)
    epochs: int = setting(1, ge=1)
    compress: float = setting(1.0, gt=0, le=1)
    loss: str = setting("", choices=("", *LOSSES), custom=True)

    def lr_at(self, round_: int, rounds: int) -> float:
        """Return the learning rate of a round, from 1 to ``rounds``."""
        if self.schedule == "constant":
            return self.lr
        done = (round_ - 1) / rounds
        left = (1.0 + math.cos(math.pi * done)) / 2.0 if self.schedule == "cosine" else 1.0 - done
        return self.lr * (self.lr_end + (1.0 - self.lr_end) * left)
