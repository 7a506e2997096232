"""Settings of local training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from feddrop.errors import ConfigError, one_of

SCHEDULES = ("constant", "cosine", "linear")
OPTIMIZERS = ("sgd", "adam", "adamw")
GROWN = 1000.0
"""A loss that grows to this many times what it was, and is not small, has diverged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Local training on a device.

    Attributes:
        optimizer: ``"sgd"``, ``"adam"`` or ``"adamw"``; its state starts anew in every round.
        lr: learning rate η in the first round.
        schedule: ``"constant"``, or how the learning rate goes from ``lr`` to ``lr * lr_end`` over the rounds:
            ``"cosine"`` or ``"linear"``.
        lr_end: share of the learning rate left when the rounds are over (cosine, linear).
        momentum: momentum within a round (sgd).
        weight_decay: L2 penalty; decoupled from the gradient for adamw.
        clip_norm: largest norm of a step's gradient over all weights; 0 for no limit.
        proximal: FedProx's μ: a pull of μ/2·‖w - w₀‖² back to the weights that the round began with.
        batch_size: samples a step.
        epochs: passes over the local data a round.
        loss: ``"cross_entropy"``, ``"mse"``, ``"l1"``, ``"bce"`` or ``"package.module:function"``; empty takes the one
            that the data call for.
    """

    optimizer: str = "sgd"
    lr: float = 0.1
    schedule: str = "constant"
    lr_end: float = 0.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    proximal: float = 0.0
    batch_size: int = 32
    epochs: int = 1
    loss: str = ""

    def __post_init__(self) -> None:
        one_of("train.optimizer", self.optimizer, OPTIMIZERS)
        one_of("train.schedule", self.schedule, SCHEDULES)
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ConfigError(f"train.lr is {self.lr!r}; it must be a number above 0.")
        for name in ("momentum", "weight_decay", "lr_end", "clip_norm", "proximal"):
            high = 1.0 if name == "momentum" else math.inf
            if not 0.0 <= getattr(self, name) < high:
                raise ConfigError(f"train.{name} is {getattr(self, name)!r}; it must be a number in [0, {high:g}).")
        for name in ("batch_size", "epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"train.{name} is {getattr(self, name)!r}; it must be at least 1.")
        if self.lr_end and self.schedule == "constant":
            raise ConfigError(
                f'train.lr_end is {self.lr_end}, which has no effect under train.schedule = "constant". Remove it, or '
                'use "cosine" or "linear".'
            )
        if self.momentum and self.optimizer != "sgd":
            raise ConfigError(
                f"train.momentum is {self.momentum}, which has no effect under train.optimizer = {self.optimizer!r}. "
                'Remove it, or use "sgd".'
            )

    def lr_at(self, round_: int, rounds: int) -> float:
        """Return the learning rate of a round, from 1 to ``rounds``."""
        if self.schedule == "constant":
            return self.lr
        done = (round_ - 1) / rounds
        left = (1.0 + math.cos(math.pi * done)) / 2.0 if self.schedule == "cosine" else 1.0 - done
        return self.lr * (self.lr_end + (1.0 - self.lr_end) * left)
