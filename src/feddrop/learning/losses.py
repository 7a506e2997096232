"""Losses and measures by name, and the user's own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from feddrop.errors import ConfigError, named_object, one_of
from feddrop.learning.local import Loss, accuracy, mean_absolute_error


def _mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs, _like(outputs, targets))


def _l1(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.l1_loss(outputs, _like(outputs, targets))


def _bce(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(outputs, _like(outputs, targets).to(outputs.dtype))


def _like(outputs: Tensor, targets: Tensor) -> Tensor:
    """Let targets ``[N]`` meet outputs ``[N, 1]``, which would otherwise broadcast to ``[N, N]`` without a word."""
    if outputs.shape != targets.shape and outputs.numel() == targets.numel():
        return targets.reshape(outputs.shape)
    if outputs.shape != targets.shape:
        raise ConfigError(
            f"the network gives {tuple(outputs.shape)} for targets {tuple(targets.shape)}; this loss needs the same "
            "shape. Change the network's last layer, or use another loss."
        )
    return targets


LOSSES: Mapping[str, Loss] = {"cross_entropy": nn.functional.cross_entropy, "mse": _mse, "l1": _l1, "bce": _bce}


def loss_named(name: str) -> Loss:
    """Return a loss by its name, or by ``"package.module:function"``."""
    if ":" in name:
        found: Loss = named_object(name, "train.loss")
        return found
    return LOSSES[one_of("train.loss", name, LOSSES)]


def measures_for(loss: Loss) -> dict[str, Loss]:
    """Return what is measured on the test set by default: accuracy for classes, the absolute error for numbers."""
    if loss is nn.functional.cross_entropy:
        return {"accuracy": accuracy}
    return {"mae": mean_absolute_error} if loss in (_mse, _l1) else {}
