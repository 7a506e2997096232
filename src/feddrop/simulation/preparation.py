"""From a configuration and what the user brings to all that a run needs: network, data, method, and who decides."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypedDict

import numpy.typing as npt
import torch
from torch import nn

from feddrop import data, models
from feddrop.config import RunConfig
from feddrop.data import Dataset
from feddrop.errors import ConfigError, one_of, shortened
from feddrop.executors import EXECUTORS, Executor, ExecutorFactory
from feddrop.learning.local import Loss
from feddrop.learning.losses import loss_named, measures_for
from feddrop.methods import checked_method, factory_of
from feddrop.methods.method import Method, MethodFactory, Setup
from feddrop.models import flops
from feddrop.models.flops import Flops
from feddrop.radio import Measured, gains_from
from feddrop.seeds import derive
from feddrop.simulation import preflight
from feddrop.simulation.device import Samples, Task, check_torch_device
from feddrop.simulation.participation import Roster
from feddrop.simulation.rates import GivenRates, RadioRates, Rates, Workload, read_rates
from feddrop.storage import RoundRecord
from feddrop.subnets import parameters

log = logging.getLogger("feddrop")


class Brought(TypedDict, total=False):
    """What a user may bring to a run.

    Attributes:
        model: a network in place of ``config.model``, or a function from a seed to one. It is copied.
        dataset: data in place of ``config.data.name``.
        parts: sample numbers of every device, in place of ``config.data.partition``.
        method: a factory ``setup -> Method`` in place of ``config.method``.
        executor: a function ``task -> Executor`` in place of ``config.execution.executor``.
        loss: ``(outputs, targets) -> mean loss`` in place of ``config.train.loss``.
        metrics: what is measured on the test set besides the loss: ``(outputs, targets) -> mean`` by name.
        gains: measured gains in place of those of ``config.radio``: power gains |h|², ``[rounds, devices]``, or what
            :func:`feddrop.gains_from` makes.
        samples: how many samples every device holds, where the data are the devices' own and not in ``dataset``.
        rates: a function ``(workload, participation) -> Rates`` in place of ``config.rate`` and ``config.radio``; where
            it takes the former into account, its ``Rates`` say so: ``takes = ("rate",)``.
    """

    model: nn.Module | Callable[[int], nn.Module] | None
    dataset: Dataset | None
    parts: Sequence[npt.ArrayLike] | None
    method: MethodFactory | None
    executor: ExecutorFactory | None
    loss: Loss | None
    metrics: Mapping[str, Loss] | None
    gains: Measured | npt.ArrayLike | None
    samples: Sequence[int] | None
    rates: Callable[[Workload, Roster], Rates] | None


NAMES = {name: name for name in Brought.__annotations__} | {"model": "network", "dataset": "data"}
"""What the things that a user brings are called in ``run.json``."""

REPLACED = {
    "model": ("model",),
    "dataset": ("data.name", "data.path", "data.train_limit"),
    "parts": ("data.devices", "data.partition", "data.alpha", "data.classes_per_device"),
    "method": ("method",),
    "executor": ("execution.executor", "execution.workers", "execution.timeout_s"),
    "loss": ("train.loss",),
    "rates": ("rate", "radio"),
}
"""Settings, or sections, that something which the user brings stands in for."""

_CALLED = {
    "method": ("a function of one argument, setup -> Method", 1, "method.name"),
    "executor": ("a function of one argument, task -> Executor", 1, "execution.executor"),
    "loss": ("a function (outputs, targets) -> mean loss", 2, "train.loss"),
    "rates": ("a function (workload, participation) -> Rates", 2, "rate"),
}
"""What must be a function, of how many arguments, and where in the configuration one of ours is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """All that a run needs, before its first round.

    Attributes:
        config: its configuration.
        own: what the user brought.
        dataset: the data.
        parts: sample numbers of every device; empty where the data are the devices' own.
        samples: how many samples every device holds.
        task: what the device side needs to know.
        method: the method, as the server has it.
        flops: what a sample costs.
        rates: who decides the rates.
        executor: the user's own, or None.
    """

    config: RunConfig
    own: tuple[str, ...]
    dataset: Dataset
    parts: Sequence[npt.NDArray[Any]]
    samples: Sequence[int]
    task: Task
    method: Method
    flops: Flops
    rates: Rates
    executor: ExecutorFactory | None

    @property
    def model(self) -> nn.Module:
        """The network, as a template: it is never trained itself."""
        return self.task.setup.model

    def start_executor(self) -> Executor:
        """Start what runs the devices."""
        if self.executor is not None:
            return self.executor(self.task)
        return EXECUTORS[self.config.execution.executor](self.task, self.config.execution)

    def facts(self, command: str) -> dict[str, Any]:
        """Return what ``run.json`` tells of network and data; on resume they must be those of the start."""
        dataset = self.dataset
        known = dataset.class_names and self.parts and not dataset.train_y.is_floating_point()
        counts = data.class_counts(dataset.train_y.numpy(), list(self.parts), dataset.num_classes) if known else None
        return {
            "command": command or ("" if self.own else "feddrop run config.toml"),
            "network": type(self.model).__name__ if "network" in self.own else self.config.model.name,
            "data": dataset.name,
            "own": list(self.own),
            "shapes": {
                "input_shapes": dataset.input_shapes,
                "target_shape": dataset.target_shape,
                "num_classes": dataset.num_classes,
                "vocabulary": dataset.vocabulary,
            },
            "parameters": parameters.count_parameters(self.model),
            "weights": sum(p.numel() for p in parameters.weights(self.model).values()),
            "forward_flops": int(self.flops.full.forward),
            "samples": list(self.samples),
            "class_names": list(dataset.class_names),
            "class_counts": None if counts is None else counts.tolist(),
            "budget_j": self.rates.budgets(),
            "rates": dict(getattr(self.rates, "kept_settings", {})),
            "gains_crc32": gains.crc32() if (gains := _measured(self.rates)) else None,
            "data_crc32": dataset.crc32(),
            "parts_crc32": reduce(lambda crc, part: zlib.crc32(part.tobytes(), crc), self.parts, 0),
        }


def check_arguments(brought: Brought, allowed: Iterable[str]) -> None:
    """Raise an error for an argument that does not exist, has no effect here, or is no such thing."""
    given: Mapping[str, Any] = {name: value for name, value in brought.items() if value is not None}
    for name in brought:
        one_of("an argument", name, allowed)
    for name, (what, count, key) in _CALLED.items():
        if name in given and not _takes(given[name], count):
            raise ConfigError(
                f"{name} is {shortened(given[name])}; it must be {what}. One of ours is named in the configuration: "
                f"{key}."
            )
    if "dataset" in given and not isinstance(given["dataset"], Dataset):
        raise ConfigError(
            f"dataset is {shortened(given['dataset'])}; it must be a feddrop.Dataset, as feddrop.from_arrays and "
            "feddrop.from_dataset make them. One of ours is named in the configuration: data.name."
        )
    metrics = given.get("metrics", {})
    named = isinstance(metrics, Mapping) and all(isinstance(name, str) and callable(metrics[name]) for name in metrics)
    if not named:
        raise ConfigError(
            f"metrics is {shortened(metrics)}; it must be functions (outputs, targets) -> mean by name, as in "
            '{"top5": top5}.'
        )


def _takes(given: Any, count: int) -> bool:
    """Tell whether something can be called with so many arguments, as far as it says."""
    if not callable(given):
        return False
    try:
        inspect.signature(given).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # it does not say
        pass
    return True


def prepare(config: RunConfig, brought: Brought) -> Prepared:
    """Check and build everything; what cannot work is an error here, before anything is written."""
    if config.execution.executor != "ray":  # a cluster's workers say so themselves: its GPUs are not here
        check_torch_device(config.execution.torch_device)
    dataset = brought.get("dataset") or data.load_dataset(
        config.data.name, path=config.data.path or None, train_limit=config.data.train_limit or None
    )
    samples, parts = brought.get("samples"), list[npt.NDArray[Any]]()
    if samples is not None and (brought.get("parts") is not None or brought.get("executor") is None):
        raise ConfigError(
            "samples are given, which are for data that devices hold themselves: they go with an executor of your own, "
            "which reaches those, and without parts. Give parts alone for devices that are simulated."
        )
    if samples is None:
        seed = derive(config.seed, "partition")
        parts = data.partition_dataset(dataset, config.data, seed=seed, parts=brought.get("parts"))
        samples = [len(part) for part in parts]
    task = device_task(config, dataset, parts, brought, devices=len(samples))
    setup = task.setup
    method = checked_method(task.factory(setup), "method")
    counted = flops.count_flops(setup.model, dataset.example)
    ours = brought.get("method") is None and ":" not in config.method.name
    preflight.check(setup, dataset, brought.get("metrics") or {}, descends=ours)
    rates = _decider(config, setup, method, counted, samples, brought.get("rates"), _gains(config, brought))
    rates.decide(1)  # what cannot be decided is an error now
    notes = [
        *config.notices(),
        *_replaced(config, brought, getattr(rates, "takes", ())),
        gains.note(config.rounds) if (gains := _measured(rates)) else "",
        setup.blueprint().note(),
        preflight.note(setup, dataset, samples),
        counted.note() if config.radio else "",
    ]
    for line in filter(None, notes):
        log.warning(line)
    return Prepared(
        config=config,
        own=tuple(NAMES[name] for name, value in brought.items() if value is not None),
        dataset=dataset,
        parts=parts,
        samples=samples,
        task=task,
        method=method,
        flops=counted,
        rates=rates,
        executor=brought.get("executor"),
    )


def device_task(
    config: RunConfig, dataset: Dataset, parts: Sequence[npt.NDArray[Any]], brought: Brought, *, devices: int
) -> Task:
    """Return all that the device side needs to know; a real device builds its own, from its own data.

    Args:
        config: the configuration, the same as the server's.
        dataset: the data of all devices, or of one.
        parts: sample numbers of every device.
        brought: what the user brings.
        devices: devices in all.
    """
    loss = brought.get("loss") or loss_named(config.train.loss or dataset.loss)
    own, decided = brought.get("model"), config.radio is not None or brought.get("rates") is not None
    network = (
        models.build_model(config.model, dataset, config.seed) if own is None else models.copy_model(own, config.seed)
    )
    parameters.check_learnable(network)
    setup = Setup(
        model=network,
        example=dataset.example,
        rounds=config.rounds,
        train=config.train,
        loss=loss,
        rates=None if decided else read_rates(config.given_rate, devices),
        server=config.server,
        seed=config.seed,
    )
    return Task(
        setup=setup,
        factory=brought.get("method") or factory_of(config.method),
        samples=Samples(dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y),
        parts=[torch.from_numpy(part) for part in parts],
        measures={**measures_for(loss), **_metrics(brought)},
        threads=config.execution.threads,
        torch_device=config.execution.torch_device,
    )


def _metrics(brought: Brought) -> Mapping[str, Loss]:
    """Return the user's own metrics; one that has the name of something in the record would stand in its place."""
    given = brought.get("metrics") or {}
    for name in given:
        if not name.strip():
            raise ConfigError(f"metrics has the name {name!r}; give it one that can be read.")
        if name in ("loss", "mean_rate", *(one.name for one in dataclasses.fields(RoundRecord))):
            raise ConfigError(f"metrics has {name!r}, which a record holds already. Give it another name.")
    return given


def _replaced(config: RunConfig, brought: Brought, taken: Sequence[str]) -> list[str]:
    """Return a line for everything brought that leaves settings which were made, and not taken, without effect."""
    given, default = config.flat(), RunConfig().flat()
    changed = [key for key, value in given.items() if value != default.get(key) and key not in taken]
    lines = []
    for name, places in REPLACED.items():
        idle = [key for key in changed if any(key == place or key.startswith(f"{place}.") for place in places)]
        if brought.get(name) is not None and idle:
            shown = dict.fromkeys("[radio]" if key.startswith("radio.") else key for key in idle)
            lines.append(f"{', '.join(shown)}: without effect, since {name}=... was given.")
    return lines


def _gains(config: RunConfig, brought: Brought) -> Measured | None:
    """Return the gains that a user brought; without a radio they are an error."""
    given = brought.get("gains")
    if given is None:
        return None
    if config.radio is None:
        raise ConfigError("gains are given, which have no effect without a radio. Add a [radio] section.")
    if brought.get("rates") is not None:
        raise ConfigError("gains and rates are both given; gains have no effect where rates= decides. Remove one.")
    return given if isinstance(given, Measured) else gains_from(given)


def _measured(rates: Rates) -> Measured | None:
    """Return the measured gains that a cell takes its channels from, if it does."""
    return rates.cell.fading if isinstance(rates, RadioRates) and isinstance(rates.cell.fading, Measured) else None


def _decider(
    config: RunConfig,
    setup: Setup,
    method: Method,
    counted: Flops,
    samples: Sequence[int],
    own: Callable[[Workload, Roster], Rates] | None,
    gains: Measured | None,
) -> Rates:
    """Return who decides the rates: the user's own decider, or the cell where there is a radio, else the user."""
    chosen = Roster(config.participation, len(samples), config.seed)
    chosen.check(config.rounds)
    preflight.check_server(config.server, chosen.most)

    def flops_of(kept: Mapping[str, int] | None) -> tuple[float, float]:
        """Return forward and training FLOPs: the paper's 3 x forward, or what was counted if that is more."""
        found = counted.of(kept or {})
        return found.forward, max(3.0 * found.forward, found.training)

    work = Workload(
        samples=[count * config.train.epochs for count in samples],
        parameters=parameters.count_parameters(setup.model),
        flops=flops_of,
        sizes=method.sizes,
        dtype=config.execution.dtype,
    )
    if own is not None:
        return own(work, chosen)
    if config.radio is None:
        return GivenRates(setup.rates or (), chosen)
    fixed = read_rates(config.given_rate, len(samples)) if config.radio.scheme == "fixed" else None
    rates = RadioRates(config.radio, work, chosen, config.seed, fixed, gains)
    rates.check(config.rounds)
    return rates
