"""Local training of a subnet, shared by all methods, and evaluation of a network on samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from feddrop.config import Train
from feddrop.config.train import GROWN
from feddrop.errors import TrainingError
from feddrop.learning.batches import Inputs
from feddrop.learning.steps import Adam, Sgd, clip
from feddrop.subnets.piece import Piece, Subnet, scatter

Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps outputs and targets to the mean loss."""

Objective = Callable[[nn.Module, Inputs, Tensor], Tensor]
"""Maps a network and the inputs and targets of a minibatch to its loss, for methods that run a part of the network."""

Gradients = Mapping[str, Tensor]
"""The gradient of a minibatch's loss by parameter, dropped entries included; parameters without gradient are absent."""


_NARROW = 16
"""The largest number of channels that a vector register holds."""


def call_model(model: nn.Module, x: Inputs) -> Tensor:
    """Call a network with a batch; several inputs are separate arguments."""
    x = safe_layout(model, x)
    out: Tensor = model(*x) if isinstance(x, tuple) else model(x)
    return out


def safe_layout(model: nn.Module, x: Inputs) -> Inputs:
    """Return inputs in a layout in which the network can be trained on a CPU.

    With channels last, oneDNN writes out of bounds in the gradient of a strided 1 x 1 convolution with fewer input
    channels than a vector register holds (its issue 6035): narrow ResNets crash or learn nonsense. A network that may
    have such a layer, judging by the shapes of its weights, gets its channels first.
    """
    if not any(p.ndim == 4 and p.shape[2:] == (1, 1) and p.shape[1] < _NARROW for p in model.parameters()):
        return x
    return tuple(one.contiguous() for one in x) if isinstance(x, tuple) else x.contiguous()


def train_network(
    model: nn.Module,
    subnet: Subnet,
    batches: Iterable[tuple[Inputs, Tensor]],
    config: Train,
    *,
    lr: float,
    loss: Loss,
    objective: Objective | None = None,
    watch: Callable[[Gradients], None] | None = None,
) -> float:
    """Train a network in place and return the mean loss over the samples seen.

    At the weight level, gradients of dropped weights are zeroed before every step. A dropped weight starts at zero and
    gets no gradient, so neither momentum nor weight decay moves it.

    Args:
        model: the network.
        subnet: the piece of every tensor that is trained.
        batches: (inputs, targets).
        config: settings of local training.
        lr: learning rate.
        loss: maps outputs and targets to the mean loss; TrainingError if it grows a thousandfold or is not finite.
        objective: minimised instead of the loss of the network's outputs.
        watch: called with the gradients of every minibatch, before they are changed.
    """
    model.train()
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    weights = list(named.values())
    masks = [_mask(subnet[name], p.device) for name, p in named.items()]
    starts = [w.detach().clone() for w in weights] if config.proximal else []
    step = (Sgd if config.optimizer == "sgd" else Adam)(config, lr)
    total: Tensor | float = 0.0
    first: Tensor | None = None
    seen = 0
    for x, y in batches:
        value = objective(model, x, y) if objective else loss(call_model(model, x), y)
        gradients: Sequence[Tensor | None] = torch.autograd.grad(value, weights, allow_unused=True)
        with torch.no_grad():
            if watch:
                watch({name: g for name, g in zip(named, gradients, strict=True) if g is not None})
            if starts:
                gradients = [
                    g if g is None else g.add(w - w0, alpha=config.proximal)
                    for g, w, w0 in zip(gradients, weights, starts, strict=True)
                ]
            # Not in place: two weights may share a gradient tensor.
            gradients = [g if g is None or mask is None else g * mask for g, mask in zip(gradients, masks, strict=True)]
            step(weights, clip(gradients, config.clip_norm) if config.clip_norm else gradients)
        first = value.detach() if first is None else first
        total = total + value.detach() * len(y)
        seen += len(y)
    mean = float(total) / max(1, seen)
    if first is not None and not math.isfinite(float(first)):
        text = "before the first step: the network diverged in an earlier round. Lower server.lr or train.lr."
        raise TrainingError(f"the training loss is {float(first):.3g} {text}")
    if not math.isfinite(mean) or (first is not None and mean > GROWN * max(1.0, float(first))):
        raise TrainingError(f"the training loss is {mean:.3g}: training diverged. Lower train.lr.")
    return mean


def _mask(piece: Piece, torch_device: torch.device) -> Tensor | None:
    return None if piece.dense else scatter(torch.ones(piece.size, device=torch_device), piece)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of correct predictions: scores ``[N, classes, ...]``, classes ``[N, ...]`` or probabilities."""
    right = targets.argmax(1) if targets.is_floating_point() else targets
    return (outputs.argmax(1) == right).double().mean()


def right_by_class(outputs: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Count the correct predictions of every class, ``[classes]``; outputs and targets as for :func:`accuracy`."""
    return torch.bincount(targets[outputs.argmax(1) == targets].cpu(), minlength=classes)


def binary_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of correct predictions of two classes from one logit each, which is positive for class 1."""
    return ((outputs > 0).reshape(targets.shape) == targets.bool()).double().mean()


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Inputs, Tensor]],
    measures: Mapping[str, Loss],
    keep: Callable[[Any, Tensor], None] | None = None,
) -> tuple[dict[str, float], int]:
    """Return the sum of every measure over the samples, and their number; batches are weighted by size.

    Args:
        model: the network.
        batches: (inputs, targets).
        measures: ``(outputs, targets) -> mean`` by name.
        keep: called with the outputs and targets of every batch.
    """
    model.eval()
    totals, seen = dict.fromkeys(measures, 0.0), 0
    for x, y in batches:
        outputs = call_model(model, x)
        if keep:
            keep(outputs, y)
        for name, measure in measures.items():
            totals[name] += float(measure(outputs, y)) * len(y)
        seen += len(y)
    return totals, seen
