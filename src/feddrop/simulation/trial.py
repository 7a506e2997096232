"""A few samples through the network before a run, to find what would fail on devices or at the first test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from feddrop.data import Dataset
from feddrop.learning.local import call_model
from feddrop.learning.losses import LOSSES, check_custom_loss, check_fit
from feddrop.learning.metrics import Metric, check_metrics
from feddrop.methods.method import Setup
from feddrop.subnets import probe
from feddrop.subnets.probe import Example


def try_network(setup: Setup, dataset: Dataset, metrics: Mapping[str, Metric], *, descends: bool) -> None:
    """Raise if outputs do not fit the targets, or a custom loss or metric does not return a number.

    Args:
        setup: network and loss.
        dataset: the data.
        metrics: custom metrics.
        descends: whether devices descend the loss, which then needs a gradient; custom methods may not.
    """
    model = probe.twin(setup.model)
    with probe.random_state_kept(model):
        with torch.no_grad():
            outputs, targets = _outputs(model, setup.example, dataset, 1)
        classes = 1 + int(max(y.max() for y in (dataset.train_y, dataset.test_y)))
        check_fit(setup.loss, outputs, targets, classes)
        if setup.loss in LOSSES.values() and not metrics:
            return
        outputs, targets = _outputs(model, setup.example, dataset, 2)
        check_custom_loss(setup.loss, outputs, targets, learned=descends)
        total = sum(tensor.nbytes for tensor in probe.tensors_in(outputs)) * len(dataset.test_y) // 2
        with torch.no_grad():
            check_metrics(metrics, outputs, targets, total_bytes=total)


def try_outputs(setup: Setup, dataset: Dataset) -> tuple[Any, Tensor]:
    """Return the network's outputs for one sample, and its target; no outputs if the network fails."""
    model = probe.twin(setup.model)
    try:
        with torch.no_grad(), probe.random_state_kept(model):
            return _outputs(model, setup.example, dataset, 1)
    except Exception:  # the checks before the run say why
        return None, dataset.train_y[:1]


def single_sample_notice(setup: Setup, dataset: Dataset, samples: Sequence[int]) -> str:
    """Return one line if devices train on single samples and the network's norms cannot; otherwise nothing.

    Args:
        setup: network and training settings.
        dataset: the data.
        samples: samples per device.
    """
    failing = len(samples) if setup.train.batch_size == 1 else sum(count == 1 for count in samples)
    if not failing:
        return ""
    model = probe.twin(setup.model).train()
    try:
        with torch.no_grad(), probe.random_state_kept(model):
            _outputs(model, setup.example, dataset, 1)
    except Exception as error:  # norms raise errors of various types for one value per channel
        why = "train.batch_size is 1" if setup.train.batch_size == 1 else "they hold one sample"
        return (
            f"{failing} of {len(samples)} devices will fail in every round: {why}, and the network cannot train on "
            f"a single sample: {error}. Give them more, or use a norm without batch statistics, such as nn.GroupNorm."
        )
    return ""


def _outputs(model: nn.Module, example: Example, dataset: Dataset, count: int) -> tuple[Any, Tensor]:
    """Return the network's outputs for the first samples, and their targets."""
    targets = dataset.train_y[:count].to(next(model.parameters()).device)
    return call_model(model, probe.example_inputs(model, example, len(targets))), targets
