"""The objects that a user passes to a run in place of what the configuration names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy.typing as npt
import tomli_w
from torch import nn

from feddrop.allocation import Scheme
from feddrop.config import CustomMethod, Radio, RunConfig, SuppliedMethod
from feddrop.config.conversion import to_table
from feddrop.config.parsing import is_under
from feddrop.config.radio import CUSTOM
from feddrop.data import Dataset
from feddrop.errors import ConfigError, named_object
from feddrop.executors import ExecutorFactory
from feddrop.learning.local import Loss
from feddrop.learning.metrics import Metric
from feddrop.methods.method import MethodFactory
from feddrop.radio import MeasuredGains
from feddrop.radio.fading import Channel, Fading
from feddrop.radio.outcome import OutcomeFunction
from feddrop.radio.plan import SchemeFunction
from feddrop.simulation.fingerprints import qualified_name
from feddrop.simulation.schemes import PlannedBy

log = logging.getLogger("feddrop")

Network = nn.Module | Callable[[int], nn.Module]
"""A custom network, or a function from a seed to one."""
Gains = MeasuredGains | npt.ArrayLike
"""Measured gains, or an array of power gains |h|², ``[rounds, devices]``."""
CustomScheme = SchemeFunction | Scheme | PlannedBy
"""A function ``seen -> Plan``, or an object with ``solve`` such as ``Exact(objective)``."""
CustomChannel = Channel | Callable[[Fading], Channel]
"""A channel, or a function from the fading of the ``[radio]`` section to one."""


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
    scheme: CustomScheme | None = None
    channel: CustomChannel | None = None
    outcome: OutcomeFunction | None = None

    def given(self) -> dict[str, Any]:
        """Return the objects that were given, by argument."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    def notices(self, config: RunConfig, used: Sequence[str] = (), *, named: bool = False) -> Iterator[str]:
        """Yield one line per object that leaves changed settings without effect, except those that are ``used``.

        Args:
            config: the configuration.
            used: settings that have an effect.
            named: whether to look at the objects that :func:`with_custom_names` names, before it does, or the others.
        """
        given = [one for one in REPLACED if one in self.given() and named == (one in NAMED and not self._plans(one))]
        if not given:
            return
        settings, default = config.flat(), RunConfig().flat()
        if config.radio is not None and not any(map(self._plans, given)):
            default |= {f"radio.{key}": value for key, value in to_table(Radio(preset=config.radio.preset)).items()}
        changed = [key for key, value in settings.items() if value != default.get(key) and key not in used]
        for name in given:
            idle = [key for key in changed if is_under(key, self.replaced(name))]
            if idle:
                whole = "radio" in self.replaced(name)
                shown = dict.fromkeys("[radio]" if whole and key.startswith("radio.") else key for key in idle)
                have = "has" if len(shown) == 1 else "have"
                yield f"{', '.join(shown)} {have} no effect, because {name}=... is given."

    def replaced(self, name: str) -> tuple[str, ...]:
        """Return the settings and sections that an argument replaces."""
        return ("rate", "radio") if self._plans(name) else REPLACED.get(name, ())

    def _plans(self, name: str) -> bool:
        return isinstance(getattr(self, name), PlannedBy)


def with_custom_names(config: RunConfig, custom: CustomObjects, before: RunConfig | None = None) -> RunConfig:
    """Return a configuration that names the user's method, scheme, channel and outcome, not those that they replace.

    If the run is resumed, ``before`` is its configuration at the start, which has the names. Otherwise, log which
    changed settings the objects leave without effect; a configuration that has the names already has none.
    """
    named = _named(config, custom, before)
    for line in custom.notices(config, named=True) if before is None and named != config else ():
        log.warning(line)
    return named


def _named(config: RunConfig, custom: CustomObjects, before: RunConfig | None) -> RunConfig:
    config = with_method(config, custom.method, before)
    given = {name: one for name in RADIO_HOOKS if (one := getattr(custom, name)) is not None}
    if config.radio is None or not given or isinstance(custom.scheme, PlannedBy):
        return config
    found: dict[str, Any] = {}
    for name, one in given.items():
        named, settings = _name_of(one, f"radio.{name}")
        found |= {name: named or CUSTOM, f"{name}_settings": settings if named else {}}
        if before is not None and before.radio is not None:
            found |= {key: getattr(before.radio, key) for key in (name, f"{name}_settings")}
    return replace(config, radio=replace(config.radio, **found))


def with_method(config: RunConfig, method: MethodFactory | None, before: RunConfig | None = None) -> RunConfig:
    """Return a configuration that names a custom method, if there is one, not the method that it replaces.

    If the run is resumed, ``before`` is its configuration at the start, which names the method.
    """
    if method is None:
        return config
    if before is not None:
        return replace(config, method=before.method)
    name, settings = _name_of(method, "method")
    custom = CustomMethod(factory=name, settings=settings) if name else SuppliedMethod(factory=qualified_name(method))
    return replace(config, method=custom)


def _name_of(given: Any, what: str) -> tuple[str, dict[str, Any]]:
    """Return ``"module:name"`` of a function or class and its arguments; empty if it cannot be imported by name."""
    inner, settings, name = given, dict[str, Any](), qualified_name(given)
    if isinstance(given, partial):
        inner, settings = given.func, dict(given.keywords)
    try:
        if not name.startswith("__main__:") and not getattr(given, "args", ()):
            tomli_w.dumps(settings)
            if named_object(name, what) is inner:
                return name, settings
    except (ConfigError, TypeError):
        pass
    return "", {}


RADIO_HOOKS = ("scheme", "channel", "outcome")
"""Arguments that replace a setting of ``[radio]``."""
NAMED = ("method", *RADIO_HOOKS)
"""Arguments whose names ``config.toml`` has, in place of the setting that they replace."""

NAMES = {item.name: item.name for item in fields(CustomObjects)} | {"model": "network", "dataset": "data"}
"""What each argument is called in ``run.json``."""

REPLACED = {
    "model": ("model",),
    "dataset": ("data.name", "data.path", "data.train_limit"),
    "parts": ("data.devices", "data.partition", "data.alpha", "data.classes_per_device"),
    "method": ("method",),
    "executor": ("execution.executor", "execution.workers", "execution.timeout_s"),
    "loss": ("train.loss",),
    "gains": ("radio.kappa", "radio.path_loss", "radio.path_loss_exponent", "radio.reference_m", "radio.distances_m"),
    "scheme": ("radio.scheme", "radio.scheme_settings", "radio.objective"),
    "channel": ("radio.channel", "radio.channel_settings"),
    "outcome": ("radio.outcome", "radio.outcome_settings"),
}
"""Settings and sections that an argument replaces."""
