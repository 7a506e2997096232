"""Losses and measures by name, and checks of custom ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from feddrop.errors import CUSTOM, ConfigError, named_object, not_one_of, shortened
from feddrop.learning.local import Loss, accuracy, binary_accuracy


def _mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs, _like(outputs, targets))


def _l1(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.l1_loss(outputs, _like(outputs, targets))


def _bce(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(outputs, _like(outputs, targets).to(outputs.dtype))


def _like(outputs: Tensor, targets: Tensor) -> Tensor:
    """Reshape targets ``[N]`` to outputs ``[N, 1]``; otherwise they would silently broadcast to ``[N, N]``.

    Dimensions of size 1 may be missing, and the targets of a sample may be flat; other shapes must agree.
    """
    if outputs.shape == targets.shape:
        return targets
    same = [side for side in outputs.shape if side > 1] == [side for side in targets.shape if side > 1]
    flat = min(outputs.ndim, targets.ndim) <= 2 and outputs.shape[:1] == targets.shape[:1]
    if outputs.numel() != targets.numel() or not (same or flat):
        raise ConfigError(
            f"the network returns {tuple(outputs.shape)} for targets {tuple(targets.shape)}; this loss needs equal "
            "shapes. If the targets are classes, pass them as integers, since floats are numbers to predict; "
            "otherwise, change the network's last layer."
        )
    return targets.reshape(outputs.shape)


LOSSES: Mapping[str, Loss] = {"cross_entropy": nn.functional.cross_entropy, "mse": _mse, "l1": _l1, "bce": _bce}


def loss_named(name: str) -> Loss:
    """Return a loss by its name, or import ``"package.module:function"``."""
    if name in LOSSES:
        return LOSSES[name]
    if ":" not in name:
        raise ConfigError(not_one_of("train.loss", name, LOSSES, CUSTOM))
    found: Loss = named_object(name, "train.loss")
    return found


def check_fit(loss: Loss, outputs: Any, targets: Tensor, classes: int) -> None:
    """Raise a ConfigError if a network's outputs do not fit the targets; custom losses are not checked.

    ``classes`` is the number of classes among all targets, of which these are some.
    """
    if loss not in LOSSES.values():
        return
    if not isinstance(outputs, Tensor):
        raise ConfigError(
            f"the network returns a {type(outputs).__name__}, but the loss needs a tensor. Return one, or use a custom "
            "loss: feddrop.run(..., loss=...)."
        )
    if loss is not nn.functional.cross_entropy:
        loss(outputs, targets)  # checks the shapes
        return
    shares = targets.is_floating_point()
    sides = outputs.shape if shares else (*outputs.shape[:1], *outputs.shape[2:])
    if sides != targets.shape or outputs.ndim < 2 or outputs.shape[1] < (0 if shares else classes):
        column = outputs.ndim == targets.ndim == 2 and targets.shape[1] == 1
        fix = "Give targets [N], such as y.ravel()" if column else "Change the network's last layer, or the targets"
        raise ConfigError(
            f"the network returns {tuple(outputs.shape)} for targets {tuple(targets.shape)} of {classes} classes; "
            "cross-entropy needs outputs [N, classes, ...] for classes [N, ...], or probabilities of the same shape. "
            f"{fix}."
        )


def check_custom_loss(loss: Loss, outputs: Any, targets: Tensor, *, learned: bool) -> None:
    """Raise a ConfigError if a custom loss fails on some samples, or does not return their mean loss.

    If it is ``learned``, that is, minimised by devices, it needs a gradient.
    """
    if loss in LOSSES.values():
        return
    try:
        found = loss(outputs, targets)
    except Exception as error:
        raise ConfigError(
            f"the loss fails on {described(outputs)} and targets of shape {tuple(targets.shape)}: "
            f"{type(error).__name__}: {error}. It must map outputs and targets to the mean loss."
        ) from error
    if not isinstance(found, Tensor) or found.numel() != 1:
        allowed = "it must return the mean over the samples, a tensor of one number"
        raise ConfigError(f"the loss returns {described(found)}; {allowed}.")
    if learned and not found.requires_grad:
        raise ConfigError(
            "the loss has no gradient: it does not depend on the network's outputs, or only through operations that "
            "torch cannot differentiate, such as argmax, detach() or NumPy. Compute it from the outputs with torch."
        )


def described(value: Any) -> str:
    """Describe a value in a message: the shape of a tensor, or the value and its type."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{shortened(value)}, a {type(value).__name__}"


def measures_for(loss: Loss, classes: int, trial: Callable[[], tuple[Any, Tensor]]) -> dict[str, Loss]:
    """Return the default measures on the test set: accuracy for classes, the mean absolute error for regression.

    Args:
        loss: the loss.
        classes: number of classes; 0 for regression.
        trial: returns the network's outputs for some samples and their targets; called for other losses than
            cross-entropy, whose outputs may not be class scores.
    """
    if loss is nn.functional.cross_entropy or isinstance(loss, nn.CrossEntropyLoss):
        return {"accuracy": accuracy}
    if loss in (_mse, _l1) or not classes:
        return {"mae": _l1} if loss in (_mse, _l1) else {}
    outputs, targets = trial()
    if not isinstance(outputs, Tensor):
        return {}
    if loss is _bce:  # one logit for two classes
        return {"accuracy": binary_accuracy} if classes == 2 and outputs.numel() == targets.numel() else {}
    sides = (*outputs.shape[:1], *outputs.shape[2:])
    scores = outputs.ndim >= 2 and sides == targets.shape and outputs.shape[1] >= max(2, classes)
    return {"accuracy": accuracy} if scores else {}
