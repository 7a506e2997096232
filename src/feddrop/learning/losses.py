"""Losses and measures by name, and the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from feddrop.errors import ConfigError, named_object, one_of
from feddrop.learning.local import Loss, accuracy


def _mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs, _like(outputs, targets))


def _l1(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.l1_loss(outputs, _like(outputs, targets))


def _bce(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(outputs, _like(outputs, targets).to(outputs.dtype))


def _like(outputs: Tensor, targets: Tensor) -> Tensor:
    """Let targets ``[N]`` meet outputs ``[N, 1]``, which would otherwise broadcast to ``[N, N]`` without a word.

    Sides of 1 may be missing, and what belongs to a sample may be flat; nothing else is the same in another shape.
    """
    if outputs.shape == targets.shape:
        return targets
    same = [side for side in outputs.shape if side > 1] == [side for side in targets.shape if side > 1]
    flat = min(outputs.ndim, targets.ndim) <= 2 and outputs.shape[:1] == targets.shape[:1]
    if outputs.numel() != targets.numel() or not (same or flat):
        raise ConfigError(
            f"the network gives {tuple(outputs.shape)} for targets {tuple(targets.shape)}; this loss needs the same "
            "shape. Change the network's last layer, or use another loss."
        )
    return targets.reshape(outputs.shape)


LOSSES: Mapping[str, Loss] = {"cross_entropy": nn.functional.cross_entropy, "mse": _mse, "l1": _l1, "bce": _bce}


def loss_named(name: str) -> Loss:
    """Return a loss by its name, or by ``"package.module:function"``."""
    if ":" in name:
        found: Loss = named_object(name, "train.loss")
        return found
    return LOSSES[one_of("train.loss", name, LOSSES)]


def check_fit(loss: Loss, outputs: Any, targets: Tensor, classes: int) -> None:
    """Raise where what a network gives does not fit the targets; a loss of the user's own is not looked at.

    Args:
        loss: of outputs and targets.
        outputs: what the network gives for some samples.
        targets: of these samples.
        classes: number of classes that there are targets of.
    """
    if loss not in LOSSES.values():
        return
    if not isinstance(outputs, Tensor):
        raise ConfigError(
            f"the network gives a {type(outputs).__name__}, and the loss takes a tensor. Let the network give one, or "
            "bring a loss of your own: feddrop.run(..., loss=...)."
        )
    if loss is not nn.functional.cross_entropy:
        loss(outputs, targets)
        return
    shares = targets.is_floating_point()
    sides = outputs.shape if shares else (*outputs.shape[:1], *outputs.shape[2:])
    if sides != targets.shape or outputs.ndim < 2 or outputs.shape[1] < (0 if shares else classes):
        raise ConfigError(
            f"the network gives {tuple(outputs.shape)} for targets {tuple(targets.shape)}"
            f"{'' if shares else f' of {classes} classes'}; cross-entropy takes [N, classes, ...] for classes "
            "[N, ...], or for shares of the same shape. Change the network's last layer, or the targets."
        )


def measures_for(loss: Loss) -> dict[str, Loss]:
    """Return what is measured on the test set by default: accuracy for classes, the absolute error for numbers."""
    if loss is nn.functional.cross_entropy:
        return {"accuracy": accuracy}
    return {"mae": _l1} if loss in (_mse, _l1) else {}
