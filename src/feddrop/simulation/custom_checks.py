"""Can the user's objects be used? Checks of what is given to ``run``; ``preflight.py`` calls them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from feddrop.data import Dataset
from feddrop.errors import ConfigError, RunError, shortened
from feddrop.learning.metrics import Accumulator
from feddrop.radio.named import takes
from feddrop.simulation.custom import NAMES, CustomObjects
from feddrop.simulation.schemes import PlannedBy
from feddrop.storage import RoundRecord
from feddrop.storage.records import WORST

_CALLED = {
    "method": ("a function of one argument, setup -> Method", 1, "method.name"),
    "executor": ("a function of one argument, task -> Executor", 1, "execution.executor"),
    "loss": ("a function (outputs, targets) -> mean loss", 2, "train.loss"),
    "outcome": ("a function (plan, truth, costs, state) -> (lost, state)", 4, "radio.outcome"),
}
"""Arguments that must be functions: what they are, their number of arguments, and the setting they replace."""


def functions_can_be_called(custom: CustomObjects) -> Iterator[str]:
    """Functions take the arguments that they are called with."""
    for name, (what, count, key) in _CALLED.items():
        given = getattr(custom, name)
        if given is not None and not takes(given, count):
            yield f"{name} is {shortened(given)}; it must be {what}. For a built-in one, set {key}."


def dataset_is_a_dataset(custom: CustomObjects) -> Iterator[str]:
    """The data are a Dataset."""
    given: Any = custom.dataset
    if given is not None and not isinstance(given, Dataset):
        yield (
            f"dataset is {shortened(given)}; it must be a feddrop.Dataset, as feddrop.from_arrays and "
            "feddrop.from_dataset return. For a built-in one, set data.name."
        )


def metrics_are_functions(custom: CustomObjects) -> Iterator[str]:
    """Metrics are functions by name, and the names are free."""
    metrics: Any = custom.metrics or {}

    def usable(metric: Any) -> bool:
        return callable(metric) or isinstance(metric, Accumulator)

    if not isinstance(metrics, Mapping) or not all(isinstance(name, str) and usable(metrics[name]) for name in metrics):
        yield (
            f"metrics is {shortened(metrics)}; it must map names to functions (outputs, targets) -> number, or to "
            "objects with update(outputs, targets), compute() and reset()."
        )
        return
    taken = {"loss", "mean_rate", WORST, *(item.name for item in fields(RoundRecord))}
    for name in metrics:
        if not name.strip():
            yield f"metrics has the name {name!r}; metric names must not be blank."
        if name in taken:
            yield f"metrics has {name!r}, which is a field of every record. Use another name."


def objects_go_together(custom: CustomObjects) -> Iterator[str]:
    """No argument makes another one useless."""
    if custom.samples is not None and (custom.parts is not None or custom.executor is None):
        yield (
            "samples is given, which is for devices that hold their own data: it needs an executor that reaches them, "
            "and no parts. For simulated devices, give parts only."
        )
    if custom.gains is not None and isinstance(custom.scheme, PlannedBy):
        yield "gains are given, which have no effect if a planner decides. Remove them."


def schemes_and_channels_fit(custom: CustomObjects) -> Iterator[str]:
    """A scheme is a function of what it sees or has ``solve``; a channel has ``draw`` or is a function to one."""
    scheme, channel = custom.scheme, custom.channel
    if scheme is not None and not (isinstance(scheme, PlannedBy) or hasattr(scheme, "solve") or takes(scheme, 1)):
        yield (
            f"scheme is {shortened(scheme)}; it must be a function seen -> Plan, or an allocation scheme such as "
            "feddrop.Exact(). For a built-in one, set radio.scheme."
        )
    if channel is not None and not (hasattr(channel, "draw") or takes(channel, 1)):
        yield (
            f"channel is {shortened(channel)}; it must have draw(devices, round, seed) -> gains, or be a function from "
            "the cell's fading to such an object. For a built-in one, set radio.channel."
        )


CUSTOM_CHECKS = (
    functions_can_be_called,
    dataset_is_a_dataset,
    metrics_are_functions,
    objects_go_together,
    schemes_and_channels_fit,
)
"""Checks that need the user's objects alone."""


def check_custom(custom: CustomObjects) -> None:
    """Raise a ConfigError if an object is of the wrong type, or has no effect."""
    for check in CUSTOM_CHECKS:
        for problem in check(custom):
            raise ConfigError(problem)


def check_resumed(custom: CustomObjects, before: Mapping[str, Any]) -> None:
    """Raise a RunError unless the same kinds of objects are given as ``run.json`` lists; the executor may differ."""
    if not isinstance(names := before.get("custom"), list):
        raise RunError(
            "run.json does not list the custom objects of the run; feddrop before 0.3 wrote it. Start a new run."
        )
    given = custom.given()
    changed = [one for one in NAMES if one != "executor" and (one in given) != (NAMES[one] in names)]
    missing = [argument for argument in changed if argument not in given]
    if more := [argument for argument in changed if argument in given]:
        raise RunError(
            f"the run was started without a custom {' and '.join(more)}. Resume it without one, or start a new run."
        )
    if missing:
        call = f"feddrop.resume(folder, {', '.join(f'{argument}=...' for argument in missing)})"
        objects = " and ".join(missing)
        raise RunError(f"the run has a custom {objects}, which is not saved. To resume, pass the same: {call}.")
