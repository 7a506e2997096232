"""A few samples through the network before a run: what would fail on devices, or at the first test, is said now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from feddrop.config import Server
from feddrop.data import Dataset
from feddrop.errors import ConfigError
from feddrop.learning.local import Loss, call_model
from feddrop.learning.losses import LOSSES, check_fit, check_metrics, check_custom_loss
from feddrop.methods.method import Setup
from feddrop.subnets import probe


def check(setup: Setup, dataset: Dataset, metrics: Mapping[str, Loss], *, descends: bool) -> None:
    """Raise where outputs do not fit the targets, or a loss or a metric of the user's own does not give a number.

    Args:
        setup: network and loss.
        dataset: the data.
        metrics: of the user's own.
        descends: whether devices descend the loss, which needs a gradient; a method from outside may not.
    """
    model = probe.twin(setup.model)
    with probe.random_state_kept(model):
        with torch.no_grad():
            outputs, targets = _tried(model, dataset, 1)
        classes = 1 + int(max(y.max() for y in (dataset.train_y, dataset.test_y)))
        check_fit(setup.loss, outputs, targets, classes)
        if setup.loss in LOSSES.values() and not metrics:
            return
        outputs, targets = _tried(model, dataset, 2)
        check_custom_loss(setup.loss, outputs, targets, learned=descends)
        with torch.no_grad():
            check_metrics(metrics, outputs, targets)


def note(setup: Setup, dataset: Dataset, samples: Sequence[int]) -> str:
    """Return a line if devices train on single samples, and the network's norms cannot: those fail in every round.

    Args:
        setup: network and settings of training.
        dataset: the data.
        samples: how many samples every device holds.
    """
    failing = len(samples) if setup.train.batch_size == 1 else sum(count == 1 for count in samples)
    if not failing:
        return ""
    model = probe.twin(setup.model).train()
    try:
        with torch.no_grad(), probe.random_state_kept(model):
            _tried(model, dataset, 1)
    except Exception as error:  # as torch's norms raise for one value a channel
        why = "train.batch_size is 1" if setup.train.batch_size == 1 else "they have one sample"
        return (
            f"{failing} of {len(samples)} devices will fail in every round: {why}, and the network cannot train on "
            f"one: {error}. Give them more, or use a norm that needs no batch, as nn.GroupNorm."
        )
    return ""


def _tried(model: nn.Module, dataset: Dataset, count: int) -> tuple[Any, Tensor]:
    """Return what a network gives for the first samples, and their targets."""
    targets = dataset.train_y[:count].to(next(model.parameters()).device)
    return call_model(model, probe.example_inputs(model, dataset.example, len(targets))), targets


def check_server(server: Server, devices: int) -> None:
    """Raise if a round of at most this many devices can never satisfy the server's settings."""
    if server.min_devices > devices:
        raise ConfigError(
            f"server.min_devices is {server.min_devices}, but at most {devices} devices take part in a round."
        )
    if server.krum and devices < 2 * server.krum + 3:
        raise ConfigError(
            f"server.krum is {server.krum}, which needs at least {2 * server.krum + 3} updates per round, but at most "
            f"{devices} devices take part. Lower it, or let more take part."
        )
