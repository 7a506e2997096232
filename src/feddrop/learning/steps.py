"""Steps of local optimizers, bit-identical to those of torch.optim.

Importing torch.optim would also import torch's compiler, which takes two seconds per process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from feddrop.config import Train

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class Sgd:
    """Gradient descent with momentum and weight decay."""

    def __init__(self, config: Train, lr: float) -> None:
        self._config, self._lr = config, lr
        self._velocity: dict[int, Tensor] = {}

    def __call__(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """Take one step, in place."""
        config = self._config
        for i, (w, g) in enumerate(zip(weights, gradients, strict=True)):
            if g is None:
                continue
            if config.weight_decay:
                g = g.add(w, alpha=config.weight_decay)
            if config.momentum:
                v = self._velocity.get(i)
                g = self._velocity[i] = g.clone() if v is None else v.mul_(config.momentum).add_(g)
            w.add_(g, alpha=-self._lr)


class Adam:
    """Adam and AdamW, whose weight decay is not part of the gradient."""

    def __init__(self, config: Train, lr: float) -> None:
        self._config, self._lr = config, lr
        self._moments: dict[int, tuple[Tensor, Tensor]] = {}
        self._steps: dict[int, int] = {}

    def __call__(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """Take one step, in place."""
        config, lr, (beta1, beta2) = self._config, self._lr, BETAS
        for i, (w, g) in enumerate(zip(weights, gradients, strict=True)):
            if g is None:
                continue
            if config.weight_decay:
                if config.optimizer == "adamw":
                    w.mul_(1.0 - lr * config.weight_decay)
                else:
                    g = g.add(w, alpha=config.weight_decay)
            if i not in self._moments:
                self._moments[i] = torch.zeros_like(w), torch.zeros_like(w)
            mean, square = self._moments[i]
            step = self._steps[i] = self._steps.get(i, 0) + 1
            mean.lerp_(g, 1.0 - beta1)
            square.mul_(beta2).addcmul_(g, g, value=1.0 - beta2)
            room = (square.sqrt() / math.sqrt(1.0 - beta2**step)).add_(EPSILON)
            w.addcdiv_(mean, room, value=-lr / (1.0 - beta1**step))


def clip(gradients: Sequence[Tensor | None], largest: float) -> list[Tensor | None]:
    """Scale all gradients by one factor so that their joint norm is at most ``largest``."""
    norms = [torch.linalg.vector_norm(g) for g in gradients if g is not None]
    if not norms:
        return list(gradients)
    factor = torch.clamp(largest / (torch.linalg.vector_norm(torch.stack(norms)) + 1e-6), max=1.0)
    return [None if g is None else g * factor for g in gradients]
