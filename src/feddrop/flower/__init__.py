"""Federated dropout over Flower: real devices as SuperNodes, with the methods, frames and bits of a simulation.

``server_app()`` and ``client_app()`` are a complete Flower app. Its ``[tool.flwr.app.config]`` holds the settings, with
the same names as in TOML. Only this folder imports ``flwr``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from feddrop.errors import ConfigError

if TYPE_CHECKING:
    from feddrop.flower.client import client_app
    from feddrop.flower.config import FleetConfig
    from feddrop.flower.server import server_app, train

_HOMES = {"FleetConfig": "config", "client_app": "client", "server_app": "server", "train": "server"}

__all__ = ["FleetConfig", "client_app", "server_app", "train"]


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that a device's process never loads the server's code."""
    if name not in _HOMES:
        raise AttributeError(f"module 'feddrop.flower' has no attribute {name!r}")
    try:
        return getattr(import_module(f"feddrop.flower.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "flwr":
            raise
        raise ConfigError(
            "flwr is not installed, and feddrop.flower needs it: pip install 'feddrop[flower]'."
        ) from None
