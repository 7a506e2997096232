"""The objects that a user passes to a run in place of what the configuration names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy.typing as npt
import tomli_w
from torch import nn

from feddrop.config import CustomMethod, MethodSettings, RunConfig, SuppliedMethod
from feddrop.data import Dataset
from feddrop.errors import ConfigError, named_object
from feddrop.executors import ExecutorFactory
from feddrop.learning.local import Loss
from feddrop.learning.metrics import Metric
from feddrop.methods.method import MethodFactory
from feddrop.radio import MeasuredGains
from feddrop.simulation.fingerprints import qualified_name
from feddrop.simulation.participation import Roster
from feddrop.simulation.schemes import RateScheme, Workload

Network = nn.Module | Callable[[int], nn.Module]
"""A custom network, or a function from a seed to one."""
Gains = MeasuredGains | npt.ArrayLike
"""MeasuredGains gains, or power gains |h|² as an array ``[rounds, devices]``."""
SchemeFactory = Callable[[Workload, Roster], RateScheme]
"""Builds a custom scheme."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CustomObjects:
    """The user's objects; :class:`feddrop.Run` describes each. None leaves the choice to the configuration."""

    model: Network | None = None
    dataset: Dataset | None = None
    parts: Sequence[npt.ArrayLike] | None = None
    method: MethodFactory | None = None
    executor: ExecutorFactory | None = None
    loss: Loss | None = None
    metrics: Mapping[str, Metric] | None = None
    gains: Gains | None = None
    samples: Sequence[int] | None = None
    rates: SchemeFactory | None = None

    def given(self) -> dict[str, Any]:
        """Return the objects that were given, by argument."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    def notices(self, config: RunConfig, used: Sequence[str]) -> Iterator[str]:
        """Yield one line per object that leaves changed settings without effect, except those that are ``used``."""
        given = self.given().keys() & REPLACED
        if not given:
            return
        settings, default = config.flat(), RunConfig().flat()
        if isinstance(config.method, CustomMethod | SuppliedMethod):  # the method that was given
            settings = {key: value for key, value in settings.items() if not key.startswith("method.")}
        changed = [key for key, value in settings.items() if value != default.get(key) and key not in used]
        for name in (name for name in REPLACED if name in given):
            idle = [key for key in changed if any(f"{key}.".startswith(f"{place}.") for place in REPLACED[name])]
            if idle:
                shown = dict.fromkeys("[radio]" if key.startswith("radio.") else key for key in idle)
                yield f"{', '.join(shown)}: no effect, because {name}=... was given."


def with_method(config: RunConfig, method: MethodFactory | None, before: RunConfig | None = None) -> RunConfig:
    """Return a configuration that names a custom method, not the one that it replaces.

    Args:
        config: the configuration.
        method: the custom method; None for the configured one.
        before: the configuration at the start, if the run is resumed: it names the method.
    """
    if method is None:
        return config
    return replace(config, method=before.method if before is not None else _method_settings(method))


def _method_settings(method: MethodFactory) -> MethodSettings:
    """Return ``"module:factory"`` and its arguments if they can be written and imported, else ``"custom"``."""
    factory, settings, name = method, dict[str, Any](), qualified_name(method)
    if isinstance(method, partial):
        factory, settings = method.func, dict(method.keywords)
    try:
        if not name.startswith("__main__:") and not getattr(method, "args", ()):
            tomli_w.dumps(settings)
            if named_object(name, "method") is factory:
                return CustomMethod(factory=name, settings=settings)
    except (ConfigError, TypeError):
        pass
    return SuppliedMethod(factory=name)


NAMES = {item.name: item.name for item in fields(CustomObjects)} | {"model": "network", "dataset": "data"}
"""What each argument is called in ``run.json``."""

REPLACED = {
    "model": ("model",),
    "dataset": ("data.name", "data.path", "data.train_limit"),
    "parts": ("data.devices", "data.partition", "data.alpha", "data.classes_per_device"),
    "method": ("method",),
    "executor": ("execution.executor", "execution.workers", "execution.timeout_s"),
    "loss": ("train.loss",),
    "rates": ("rate", "radio"),
}
"""Settings and sections that an argument replaces."""
