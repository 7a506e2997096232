"""Losses and measures by name, and the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from feddrop.errors import ConfigError, named_object, one_of, shortened
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
    """Raise where what a network gives does not fit the targets; for a loss of the user's own see :func:`check_custom_loss`.

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


def check_custom_loss(loss: Loss, outputs: Any, targets: Tensor, *, learned: bool) -> None:
    """Raise where a loss of the user's own fails on some samples, or gives something else than their mean loss.

    Args:
        loss: of outputs and targets; one of ours is not looked at.
        outputs: what the network gives for some samples, with its graph.
        targets: of these samples.
        learned: whether it is what devices descend: then it must have a gradient.
    """
    if loss in LOSSES.values():
        return
    try:
        found = loss(outputs, targets)
    except Exception as error:
        raise ConfigError(
            f"the loss fails on {_described(outputs)} and targets of shape {tuple(targets.shape)}: "
            f"{type(error).__name__}: {error}. It must take what the network gives, and give the mean loss."
        ) from error
    if not isinstance(found, Tensor) or found.numel() != 1:
        raise ConfigError(
            f"the loss gives {_described(found)}; it must give the mean over the samples, a tensor of one number."
        )
    if learned and not found.requires_grad:
        raise ConfigError(
            "the loss has no gradient: it does not depend on what the network gives, or only by steps that torch "
            "cannot differentiate, such as argmax, detach() or NumPy. Compute it from the outputs by torch alone."
        )


def check_metrics(metrics: Mapping[str, Loss], outputs: Any, targets: Tensor) -> None:
    """Raise where a metric gives something else than a number; one that fails on few samples may do well on many."""
    for name, metric in metrics.items():
        try:
            found = metric(outputs, targets)
        except Exception:  # noqa: S112 -- the test set may be what it wants
            continue
        try:
            float(found)
        except (TypeError, ValueError, RuntimeError):
            raise ConfigError(
                f"the metric {name!r} gives {_described(found)}; it must give one number, the mean over the samples."
            ) from None


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{shortened(value)}, a {type(value).__name__}"


def measures_for(loss: Loss) -> dict[str, Loss]:
    """Return what is measured on the test set by default: accuracy for classes, the absolute error for numbers."""
    if loss is nn.functional.cross_entropy:
        return {"accuracy": accuracy}
    return {"mae": _l1} if loss in (_mse, _l1) else {}
