"""A few samples through the network before a run, to find what would fail on devices or at the first test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from feddrop.data import Dataset
from feddrop.learning.local import Loss, call_model
from feddrop.learning.losses import LOSSES, check_custom_loss, check_fit, check_metrics
from feddrop.methods.method import Setup
from feddrop.subnets import probe


def try_network(setup: Setup, dataset: Dataset, metrics: Mapping[str, Loss], *, descends: bool) -> None:
    """Raise if outputs do not fit the targets, or a custom loss or metric does not return a number.

    ``descends`` says whether devices descend the loss, which then needs a gradient; custom methods may not.
    """
    with probe.running(setup.model, setup.example, min(2, len(dataset.train_y))) as (model, inputs):
        targets = dataset.train_y[:2].to(inputs[0].device)
        with torch.no_grad():
            outputs = call_model(model, tuple(x[:1] for x in inputs))
        classes = 1 + int(max(y.max() for y in (dataset.train_y, dataset.test_y)))
        check_fit(setup.loss, outputs, targets[:1], classes)
        if setup.loss in LOSSES.values() and not metrics:
            return
        outputs = call_model(model, inputs)
        check_custom_loss(setup.loss, outputs, targets, learned=descends)
        with torch.no_grad():
            check_metrics(metrics, outputs, targets)


def single_sample_notice(setup: Setup, samples: Sequence[int]) -> str:
    """Return one line if devices train on single samples and the network's norms cannot; otherwise nothing."""
    failing = len(samples) if setup.train.batch_size == 1 else sum(count == 1 for count in samples)
    if not failing:
        return ""
    try:
        with torch.no_grad(), probe.running(setup.model, setup.example, 1) as (model, inputs):
            call_model(model.train(), inputs)
    except Exception as error:  # norms raise errors of various types for one value per channel
        why = "train.batch_size is 1" if setup.train.batch_size == 1 else "they hold one sample"
        return (
            f"{failing} of {len(samples)} devices will fail in every round: {why}, and the network cannot train on "
            f"a single sample: {error}. Give them more, or use a norm without batch statistics, such as nn.GroupNorm."
        )
    return ""
