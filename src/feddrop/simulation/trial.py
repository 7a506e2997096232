"""A few samples through the network before a run, to find what would fail on devices or at the first test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from feddrop.config import Server
from feddrop.data import Dataset
from feddrop.errors import ConfigError
from feddrop.learning.local import call_model
from feddrop.learning.losses import LOSSES, check_custom_loss, check_fit
from feddrop.learning.metrics import Metric, check_metrics
from feddrop.methods.method import Job, Method, Setup, State, Update
from feddrop.subnets import probe
from feddrop.subnets.parameters import Params


def try_network(setup: Setup, dataset: Dataset, metrics: Mapping[str, Metric], *, descends: bool) -> None:
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
        total = sum(tensor.nbytes for tensor in probe.tensors_in(outputs)) * len(dataset.test_y) // 2
        with torch.no_grad():
            check_metrics(metrics, outputs, targets, total_bytes=total)


def try_outputs(setup: Setup, dataset: Dataset) -> tuple[Any, Tensor]:
    """Return the network's outputs for one sample, and its target; no outputs if the network fails."""
    try:
        with torch.no_grad(), probe.running(setup.model, setup.example, 1) as (model, inputs):
            return call_model(model, inputs), dataset.train_y[:1]
    except Exception:  # the checks before the run say why
        return None, dataset.train_y[:1]


def try_torch_device(name: str) -> None:
    """Raise a ConfigError unless torch can compute on a device of this name."""
    try:
        torch.zeros(1, device=name).add_(1).item()  # read back: the device "meta" computes nothing
    except Exception as error:  # backends raise errors of various types
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(
            f"execution.torch_device is {name!r}, which torch cannot compute on here: {reason}. Use 'cpu', or a device "
            "of this machine."
        ) from None


def uses_server_mean(setup: Setup, method: Method, state: State, params: Params, rates: Mapping[int, float]) -> bool:
    """Return whether a method merges with ``setup.mean_of``; True also if it cannot be tried on updates of zeros."""
    before = setup.means.count
    state, params = ({name: tensor.clone() for name, tensor in tensors.items()} for tensors in (state, params))
    try:
        updates = [(job, _zero_update(method, job)) for job in method.plan(state, params, 1, rates, setup.seed)]
        method.merge(state, params, iter(updates))
    except Exception:  # the method refuses such updates; the first round will report an unused mean
        return True
    return setup.means.count > before


def unused_mean(server: Server) -> str:
    """Return the message for a method that ignores ``server.mean`` and the weights of updates."""
    given = f"mean is {server.mean!r}" if server.mean != "mean" else "max_samples is set"
    default = 'mean = "mean"' if server.mean != "mean" else "max_samples = 0"
    return (
        f"server.{given}, which has no effect: the method's merge averages by itself. Average with "
        f"setup.average(params, updates) or setup.mean_of(params, over=...), or set server.{default}."
    )


def _zero_update(method: Method, job: Job) -> Update:
    payload = {name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) for name, spec in job.asks.items()}
    subnet = method.answer(job, payload) if method.answer else method.cut(job)
    values = {name: torch.zeros(piece.size) for name, piece in subnet.items()}
    return Update(device=job.device, num_samples=1, loss=1.0, subnet=subnet, values=values, payload=payload)


def single_sample_notice(setup: Setup, samples: Sequence[int]) -> str:
    """Return one line if devices train on single samples and the network's norms cannot; otherwise nothing."""
    failing = len(samples) if setup.train.batch_size == 1 else sum(count == 1 for count in samples)
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
