"""Methods of federated training over subnets: the one table of them, and how one is named.

A method inside the package is one module and one line here. One from outside is ``"package.module:factory"``, where
``factory(setup, **settings)`` returns a :class:`~feddrop.methods.method.Method`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from feddrop.errors import ConfigError, named_object, one_of
from feddrop.methods import fedavg, feddrop, feddst, fiarse, fjord, prunefl, windows
from feddrop.methods.method import Method, MethodFactory, Setup

Builder = Callable[[Setup, Any], Method]

METHODS: Mapping[str, tuple[type[Any], Builder]] = {
    "fedavg": (fedavg.FedavgConfig, fedavg.fedavg),
    "feddrop": (feddrop.FeddropConfig, feddrop.feddrop),
    "feddst": (feddst.FeddstConfig, feddst.feddst),
    "fedrolex": (windows.WindowConfig, windows.fedrolex),
    "fiarse": (fiarse.FiarseConfig, fiarse.fiarse),
    "fjord": (fjord.FjordConfig, fjord.fjord),
    "heterofl": (windows.WindowConfig, windows.heterofl),
    "prunefl": (prunefl.PruneflConfig, prunefl.prunefl),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodConfig:
    """Which method, and its settings.

    Attributes:
        name: ``"feddrop"``, ``"fedavg"``, ``"heterofl"``, ``"fedrolex"``, ``"fiarse"``, ``"fjord"``, ``"feddst"``,
            ``"prunefl"``, or ``"package.module:factory"``.
        settings: the method's own configuration dataclass; for a method from outside, keyword arguments by name.
    """

    name: str = "feddrop"
    settings: Any = field(default_factory=feddrop.FeddropConfig)

    def __post_init__(self) -> None:
        if ":" in self.name:
            factory = named_object(self.name, "method.name")
            _check_settings(factory, self.name, self.settings)
        elif not isinstance(self.settings, METHODS[one_of("method", self.name, METHODS)][0]):
            raise ConfigError(
                f"the settings of method {self.name!r} are {self.settings!r}; they must be a "
                f"{METHODS[self.name][0].__name__}."
            )

    def factory(self) -> MethodFactory:
        """Return what builds the method; picklable."""
        return partial(build, self)


def named(name: str, **settings: Any) -> MethodConfig:
    """Return the configuration of a method by name.

    Example:
        >>> from feddrop.methods import named
        >>> named("feddst", alpha=0.2).settings.alpha
        0.2
    """
    if ":" in name:
        return MethodConfig(name=name, settings=settings)
    return MethodConfig(name=name, settings=METHODS[one_of("method", name, METHODS)][0](**settings))


def build(config: MethodConfig, setup: Setup) -> Method:
    """Build a method."""
    if ":" not in config.name:
        return METHODS[config.name][1](setup, config.settings)
    made: Any = named_object(config.name, "method.name")(setup, **config.settings)
    return checked(made, config.name)


def checked(made: Any, what: str) -> Method:
    """Return what a factory made if it is a method."""
    if not isinstance(made, Method):
        raise ConfigError(f"{what} gives a {type(made).__name__}; a factory must return a feddrop.Method.")
    return made


def _check_settings(factory: Any, name: str, settings: Mapping[str, Any]) -> None:
    """Raise unless a factory from outside takes these settings."""
    if not callable(factory):
        raise ConfigError(
            f"method.name is {name!r}, which is no function. Name a factory (setup, **settings) -> Method."
        )
    try:
        inspect.signature(factory).bind(None, **settings)
    except TypeError as error:
        raise ConfigError(f"method {name!r} does not take the settings {dict(settings)}: {error}.") from None
