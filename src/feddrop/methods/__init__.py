"""Learning methods: the table of builders, and how a method is built from its settings.

A method of the package is a settings class in ``config/methods.py``, a module here, and one line in ``BUILDERS``. A
custom method is ``"package.module:factory"``, where ``factory(setup, **settings)`` returns a
:class:`~feddrop.methods.method.Method`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from feddrop.config import CustomMethod, MethodSettings, SuppliedMethod
from feddrop.errors import ConfigError, FeddropError, clean, named_object, shortened
from feddrop.methods import (
    fedavg,
    feddd,
    feddrop,
    feddst,
    fedrts,
    fiarse,
    fjord,
    perfedmask,
    prunefl,
    pruning,
    random_units,
    windows,
)
from feddrop.methods.agreement import with_agreement
from feddrop.methods.compression import with_compression
from feddrop.methods.method import Method, MethodFactory, Setup
from feddrop.methods.sizes import device_network

BUILDERS: Mapping[str, Callable[[Setup, Any], Method]] = {
    "caldas": random_units.build_caldas,
    "fedavg": fedavg.build_fedavg,
    "feddd": feddd.build_feddd,
    "feddrop": feddrop.build_feddrop,
    "feddst": feddst.build_feddst,
    "fedrts": fedrts.build_fedrts,
    "fedrolex": windows.build_fedrolex,
    "fiarse": fiarse.build_fiarse,
    "fjord": fjord.build_fjord,
    "heterofl": windows.build_heterofl,
    "perfedmask": perfedmask.build_perfedmask,
    "prunefl": prunefl.build_prunefl,
    "pruning": pruning.build_pruning,
    "wen": random_units.build_wen,
}


def build_method(settings: MethodSettings, setup: Setup) -> Method:
    """Build a method from its settings.

    Example:
        >>> from torch import nn, zeros
        >>> import feddrop
        >>> setup = feddrop.Setup(model=nn.Linear(8, 4), example=zeros(1, 8), rounds=3)
        >>> method = feddrop.build_method(feddrop.FedDrop(), setup)
        >>> {name: piece.size for name, piece in method.cut(feddrop.Job(round=1, device=0, seed=7, rate=0.5)).items()}
        {'weight': 16, 'bias': 4}
    """
    if not isinstance(settings, MethodSettings):
        raise ConfigError(
            f"settings is {shortened(settings)}; it must be those of a method, such as feddrop.FedDrop()."
        )
    if not isinstance(setup, Setup):
        raise ConfigError(
            f"setup is {shortened(setup)}; it must be a feddrop.Setup, as in Setup(model=net, example=x, rounds=30)."
        )
    if isinstance(settings, SuppliedMethod):
        raise ConfigError(
            f"method.name is 'custom': the method {settings.factory!r} was passed in Python. Pass it again, as in "
            "feddrop.resume(folder, method=...), or name another method."
        )
    if not isinstance(settings, CustomMethod):
        method = BUILDERS[settings.name](setup, settings)
        return method if method.at else method._replace(at=partial(device_network, setup, method))
    factory = _custom_factory(settings)
    try:
        made = factory(setup, **settings.settings)
    except (FeddropError, OSError, MemoryError):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {clean(error)}"
        raise ConfigError(f"method {settings.factory!r} cannot be built: its factory raised {why}.") from error
    return checked_method(made, settings.factory)


def build_run_method(factory: MethodFactory, setup: Setup) -> Method:
    """Build the method of a run: what a factory makes, with the steps of ``[train]`` and ``[server]`` around it."""
    method = checked_method(factory(setup), "method")
    if setup.train.compress < 1.0:
        if method.returns_weights:
            raise ConfigError(
                f"train.compress is {setup.train.compress:g}, but the devices of this method choose what they send, "
                "and send weights. Set it to 1, or use another method."
            )
        method = with_compression(method, setup)
    return with_agreement(method, setup) if setup.server.agreement else method


def checked_method(made: Any, what: str) -> Method:
    """Return the result of a factory if it is a method; otherwise raise a ConfigError."""
    if not isinstance(made, Method):
        raise ConfigError(f"{what} returns a {type(made).__name__}; a factory must return a feddrop.Method.")
    return made


def _custom_factory(settings: CustomMethod) -> Callable[..., Any]:
    """Import a custom factory and check that it accepts its settings."""
    factory: Any = named_object(settings.factory, "method.name")
    try:
        inspect.signature(factory).bind(None, **settings.settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"method.name is {settings.factory!r}, which does not take the settings {dict(settings.settings)}: "
            f"{error}. Name a factory (setup, **settings) -> Method."
        ) from None
    return factory  # type: ignore[no-any-return]
