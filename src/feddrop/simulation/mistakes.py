"""Likely mistakes that would not stop a run: each check yields one line, before the first round.

Network, loss and metrics are tried on a few samples; nothing is trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from feddrop.data.dataset import as_tuple
from feddrop.data.values import outlier
from feddrop.learning.local import Loss, call_model
from feddrop.learning.metrics import Accumulator
from feddrop.subnets import probe

if TYPE_CHECKING:
    from feddrop.data import Dataset
    from feddrop.simulation.preparation import Prepared

_SAMPLES = 8


def loss_is_a_mean(run: Prepared) -> Iterator[str]:
    """A custom loss is the mean over the samples: it does not grow with the batch."""
    loss = run.task.setup.loss
    outputs, targets = _trial(run)
    once, twice = (_number(loss, outputs, targets), _number(loss, _repeated(outputs), _repeated(targets)))
    if once and math.isclose(twice, 2 * once, rel_tol=1e-3):
        yield (
            f"the loss of a batch is {once:.4g}, that of the same batch twice {twice:.4g}: it sums over the samples. "
            'It must be their mean; use reduction="mean", or divide by the number of samples.'
        )


def accuracy_is_a_share(run: Prepared) -> Iterator[str]:
    """A metric called ``accuracy`` is a share: of perfect outputs at most 1."""
    metric = (run.custom.metrics or {}).get("accuracy")
    if metric is None or isinstance(metric, Accumulator):
        return
    outputs, targets = _trial(run)
    found = max(_number(metric, perfect, targets) for perfect in (outputs, _perfect(outputs, targets)))
    if found > 1 + 1e-6:
        yield (
            f"the metric 'accuracy' returns {found:g} for {len(targets)} samples; it must be a share from 0 to 1. "
            "Divide it, or give it another name."
        )


def notices(run: Prepared) -> Iterator[str]:
    """Yield one line per thing about network and data that is probably not intended."""
    if run.custom.dataset is not None:
        yield from _outliers(run.custom.dataset)
    outputs, targets = _trial(run)
    if _classifies(outputs, targets):
        yield from _surplus_outputs(outputs, run.dataset)
        yield from _double_softmax(run.task.setup.loss, outputs, targets)
    elif not targets.is_floating_point() and not {"accuracy", "mae"} & {*run.task.measures, *run.task.metrics}:
        yield (
            "accuracy is not measured: targets are classes, but the network does not return one score per class. "
            'Pass metrics={"accuracy": function} to measure it.'
        )


def _surplus_outputs(outputs: Tensor, dataset: Dataset) -> Iterator[str]:
    found = 1 + int(max(y.max() for y in (dataset.train_y, dataset.test_y)))
    classes = max(dataset.num_classes, dataset.vocabulary, found)
    if outputs.shape[1] > classes:
        yield (
            f"the network has {outputs.shape[1]} outputs for {classes} classes: the others are never right. Give its "
            f"last layer {classes} outputs, or name all classes in class_names."
        )


def _double_softmax(loss: Loss, outputs: Tensor, targets: Tensor) -> Iterator[str]:
    """Find outputs that are probabilities already, before a loss that applies a softmax."""
    first = _number(loss, outputs, targets)
    if outputs.shape[1] < 2 or not math.isclose(_number(loss, outputs + 1.0, targets), first, rel_tol=1e-4):
        return  # a softmax ignores a constant that is added to all outputs; this loss does not
    if bool((outputs >= 0).all()) and _is_one(outputs.sum(1)):
        yield (
            "the network ends with a softmax, and the loss applies another: gradients become small, and training slow. "
            "Remove the network's softmax."
        )
    elif bool((outputs <= 0).all()) and _is_one(outputs.exp().sum(1)):
        yield (
            "the network ends with a log_softmax, and the loss applies another, which has no effect. Remove the "
            "network's, or use torch.nn.functional.nll_loss as the loss."
        )


def _outliers(dataset: Dataset) -> Iterator[str]:
    """Find samples that are far larger than the others; before they are normalised, ``from_arrays`` does."""
    for side, inputs in (("train_x", dataset.train_x), ("test_x", dataset.test_x)):
        for x in as_tuple(inputs):
            if not x.is_floating_point():
                continue
            if note := outlier(x.numpy()):
                yield f"{side}: {note}"


def _trial(run: Prepared) -> tuple[Any, Tensor]:
    """Return the network's outputs for a few training samples, and their targets."""
    model = probe.twin(run.task.setup.model).eval()
    count = min(_SAMPLES, len(run.dataset.train_y))
    torch_device = next(model.parameters()).device
    inputs = tuple(x[:count].clone().to(torch_device) for x in as_tuple(run.dataset.train_x))  # may be changed in place
    try:
        with torch.no_grad(), probe.random_state_kept(model):
            outputs: Any = call_model(model, inputs if len(inputs) > 1 else inputs[0])
    except Exception:  # the first round reports it
        outputs = None
    return outputs, run.dataset.train_y[:count].to(torch_device)


def _classifies(outputs: Any, targets: Tensor) -> bool:
    if not isinstance(outputs, Tensor) or targets.is_floating_point() or outputs.ndim < 2:
        return False
    return (*outputs.shape[:1], *outputs.shape[2:]) == tuple(targets.shape)


def _perfect(outputs: Any, targets: Tensor) -> Any:
    """Return outputs that are right for all targets, if these are classes."""
    if not _classifies(outputs, targets) or int(targets.max()) >= outputs.shape[1]:
        return outputs
    return nn.functional.one_hot(targets, outputs.shape[1]).movedim(-1, 1).to(outputs.dtype)


def _is_one(sums: Tensor) -> bool:
    return bool(torch.allclose(sums.float(), torch.ones_like(sums, dtype=torch.float32), atol=1e-4))


def _repeated(value: Any) -> Any:
    """Return a batch twice in a row."""
    if isinstance(value, Tensor):
        return torch.cat([value, value]) if value.ndim else value
    if isinstance(value, Mapping):
        return {key: _repeated(entry) for key, entry in value.items()}
    return type(value)(map(_repeated, value)) if isinstance(value, list | tuple) else value


def _number(function: Loss, outputs: Any, targets: Tensor) -> float:
    """Return what a loss or metric says; NaN if it fails, as other checks report."""
    try:
        with torch.no_grad():
            return float(function(outputs, targets))
    except Exception:  # it may need other shapes, more samples or a gradient
        return math.nan
