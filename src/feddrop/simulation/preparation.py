"""Build everything a run needs from its configuration and the user's objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from feddrop import data, models
from feddrop.config import RunConfig
from feddrop.config.radio import IMPORTANCE
from feddrop.data import Dataset
from feddrop.executors import EXECUTORS, Executor
from feddrop.learning.losses import loss_named, measures_for
from feddrop.learning.metrics import copied
from feddrop.methods import build_method, build_run_method
from feddrop.methods.method import Method, Setup, Sizes, State, checked_state
from feddrop.models import flops
from feddrop.models.flops import Flops
from feddrop.radio import MeasuredGains, gains_from
from feddrop.seeds import derive
from feddrop.simulation import preflight
from feddrop.simulation.cell_hooks import CellHooks
from feddrop.simulation.cell_rates import CellRates
from feddrop.simulation.custom import CustomObjects
from feddrop.simulation.device import Samples, Task
from feddrop.simulation.importance import importance_of
from feddrop.simulation.participation import Roster
from feddrop.simulation.schemes import GivenRates, PlannedBy, RateScheme, Workload, read_rates
from feddrop.simulation.trial import try_outputs
from feddrop.subnets import parameters
from feddrop.subnets.parameters import Params

_NONE = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """Everything a run needs before its first round."""

    config: RunConfig  # the configuration
    custom: CustomObjects  # the user's objects
    dataset: Dataset  # the data
    parts: Sequence[npt.NDArray[Any]]  # indices of the samples of every device; empty if devices hold their own data
    samples: Sequence[int]  # samples per device
    task: Task  # what the device side needs
    method: Method  # the method, as the server uses it
    flops: Flops  # FLOPs per sample
    work: Workload  # what the scheme knows about the training
    roster: Roster  # chooses the devices of a round
    scheme: RateScheme  # chooses their rates
    params: Params  # the initial network
    frozen: frozenset[str]  # names of the parameters that are not trained
    state: State  # the method's initial state
    gains: MeasuredGains | None  # the measured gains of the cell, if it has any
    warnings: tuple[str, ...] = ()  # what was logged: what works but is probably not intended

    @property
    def model(self) -> nn.Module:
        """The network, as a template: it is never trained itself."""
        return self.task.setup.model

    def start_executor(self) -> Executor:
        """Start the executor, which runs the devices."""
        if self.custom.executor is not None:
            return self.custom.executor(self.task)
        return EXECUTORS[self.config.execution.executor](self.task, self.config.execution)


def prepare(config: RunConfig, custom: CustomObjects) -> Prepared:
    """Build everything and check it, before anything is written."""
    dataset = custom.dataset or data.configured_dataset(config.data)
    parts, samples = list[npt.NDArray[Any]](), custom.samples
    if samples is None:
        parts = data.partition_dataset(dataset, config.data, seed=derive(config.seed, "partition"), parts=custom.parts)
        samples = [len(part) for part in parts]
    task = device_task(config, dataset, parts, custom, devices=len(samples))
    method = task.factory(task.setup)
    counted = flops.count_flops(task.setup.model, task.setup.example)
    roster = Roster(config.participation, len(samples), config.seed)
    frozen = parameters.frozen(task.setup.model)
    work = workload(task, method, counted, samples, config.execution.dtype, frozen)
    scheme = build_scheme(config, custom, work, roster, task.setup)
    if config.method.one_mask and isinstance(scheme, CellRates) and config.radio is not None:
        scheme, rates = one_rate(config, custom, scheme, work, roster)
        task = replace(task, setup=replace(task.setup, rates=rates))
        method = task.factory(task.setup)
    fading = None
    if isinstance(scheme, CellRates) and config.radio is not None:
        fading = getattr(scheme.cell.fading, "base", scheme.cell.fading)
        if config.radio.noise != scheme.cell.noise:  # custom gains or a table of distances decided it
            config = replace(config, radio=replace(config.radio, noise=scheme.cell.noise))
    params = parameters.from_model(task.setup.model)
    run = Prepared(
        config=config,
        custom=custom,
        dataset=dataset,
        parts=parts,
        samples=samples,
        task=task,
        method=method,
        flops=counted,
        work=work,
        roster=roster,
        scheme=scheme,
        params=params,
        frozen=frozen,
        state=checked_state(method.init(params), "init"),
        gains=fading if isinstance(fading, MeasuredGains) else None,
    )
    lines = preflight.check(run)
    if isinstance(scheme, CellRates):  # the cell has warned of its own
        lines += scheme.cell.notes
    return replace(run, warnings=tuple(lines))


def device_task(
    config: RunConfig, dataset: Dataset, parts: Sequence[npt.NDArray[Any]], custom: CustomObjects, *, devices: int
) -> Task:
    """Return what the device side needs; a real device builds its own, from its own data and part."""
    loss = custom.loss or loss_named(config.train.loss or dataset.loss)
    chosen = config.radio is not None or custom.scheme is not None
    if custom.model is None:
        network = models.build_model(config.model, dataset, config.seed)
    else:
        network = models.copy_model(custom.model, config.seed)
        parameters.check_learnable(network)
    setup = Setup(
        model=network,
        example=dataset.example,
        rounds=config.rounds,
        train=config.train,
        loss=loss,
        rates=None if chosen else read_rates(config.given_rate, devices),
        server=config.server,
        seed=config.seed,
    )
    numbers, metrics = dataset.train_y.is_floating_point(), custom.metrics or {}
    classes = 0 if numbers else dataset.num_classes or 1 + int(dataset.train_y.max())
    measures = measures_for(loss, classes, partial(try_outputs, setup, dataset))
    held = _NONE
    if config.data.validation:
        held = torch.from_numpy(data.validation_samples(dataset, config.data, seed=derive(config.seed, "partition")))
    return Task(
        setup=setup,
        factory=partial(build_run_method, custom.method or partial(build_method, config.method)),
        samples=Samples(dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y),
        parts=[torch.from_numpy(part) for part in parts],
        validation=held,
        class_shares=_class_shares(dataset, parts, classes) if config.eval_devices else torch.empty(0, 0),
        measures={name: one for name, one in measures.items() if name not in metrics},
        metrics=copied(metrics) if metrics else {},
        outputs=bool(metrics),
        threads=config.execution.threads,
        torch_device=config.execution.torch_device,
    )


def _class_shares(dataset: Dataset, parts: Sequence[npt.NDArray[Any]], classes: int) -> torch.Tensor:
    """Return the share of every class in the training samples of every device, ``[devices, classes]``."""
    if not parts or not classes:
        return torch.empty(0, 0)
    counts = torch.from_numpy(data.class_counts(dataset.train_y.numpy(), list(parts), classes)).double()
    return counts / counts.sum(1, keepdim=True)


def workload(
    task: Task, method: Method, counted: Flops, samples: Sequence[int], dtype: str, frozen: frozenset[str]
) -> Workload:
    """Return what a scheme knows about the training."""

    def flops_of(kept: Mapping[str, int] | None) -> tuple[float, float]:
        found = counted.of(kept or {})
        return found.forward, found.charged

    return Workload(
        samples=[count * task.setup.train.epochs for count in samples],
        parameters=sum(p.numel() for p in task.setup.model.parameters() if p.requires_grad),
        flops=flops_of,
        sizes=method.sizes and partial(_sent_sizes, method.sizes, frozen),
        dtype=dtype,
    )


def _sent_sizes(sizes: Callable[[float], Sizes], frozen: frozenset[str], rate: float) -> Sizes:
    """Return what a subnet holds at a rate, without frozen parameters, which are not sent."""
    found = sizes(rate)
    if not frozen:
        return found
    kept, answered = (
        side and {name: count for name, count in side.items() if name not in frozen}
        for side in (found.kept, found.answered)
    )
    return replace(found, kept=kept or {}, answered=answered)


def one_rate(
    config: RunConfig, custom: CustomObjects, scheme: CellRates, work: Workload, roster: Roster
) -> tuple[CellRates, Sequence[float]]:
    """Return a cell with the same rates in every round, and these rates; the method refuses rates that differ.

    With the scheme ``"fixed"``, they are given. With ``"common"``, it is one for all, the lowest that always suffices.
    """
    radio, devices = config.radio, len(work.samples)
    if radio is None or radio.scheme == "fixed":
        return scheme, read_rates(config.given_rate, devices)
    rates, fixed = [scheme.common_rate(config.rounds)] * devices, replace(radio, scheme="fixed")
    hooks = CellHooks(fixed, custom)
    return CellRates(fixed, work, roster, config.seed, rates, _gains(custom), hooks), rates


def _gains(custom: CustomObjects) -> MeasuredGains | None:
    gains = custom.gains
    return gains if gains is None or isinstance(gains, MeasuredGains) else gains_from(gains)


def build_scheme(config: RunConfig, custom: CustomObjects, work: Workload, roster: Roster, setup: Setup) -> RateScheme:
    """Return what plans the rounds: a custom planner, the cell if there is a radio, or else the given ``rates``."""
    if isinstance(custom.scheme, PlannedBy):
        return custom.scheme.build(work, roster)
    if config.radio is None:
        return GivenRates(setup.rates or (), roster)
    fixed = read_rates(config.given_rate, len(work.samples)) if config.radio.scheme == "fixed" else None
    read = importance_of(setup, config.method, config.radio.max_rate) if config.radio.objective == IMPORTANCE else None
    hooks = CellHooks(config.radio, custom, read)
    return CellRates(config.radio, work, roster, config.seed, fixed, _gains(custom), hooks)
