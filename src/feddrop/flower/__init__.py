"""Federated dropout over Flower: real devices as SuperNodes, the same methods, frames and bits as in a simulation.

``server_app()`` and ``client_app()`` are a whole Flower app; what is trained, and how, stands in its
``[tool.flwr.app.config]``, with the same names as in TOML. This room is the only one that imports ``flwr``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from feddrop.errors import ConfigError

if TYPE_CHECKING:
    from feddrop.flower.client import client_app
    from feddrop.flower.config import FleetConfig
    from feddrop.flower.server import server_app, train

_HOMES = {"FleetConfig": "config", "client_app": "client", "server_app": "server", "train": "server"}

__all__ = ["FleetConfig", "client_app", "server_app", "train"]


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: a device's process does without the server's half."""
    if name not in _HOMES:
        raise AttributeError(f"module 'feddrop.flower' has no attribute {name!r}")
    if not _installed():
        raise ConfigError("flwr is not installed, and feddrop.flower needs it: pip install 'feddrop[flower]'.")
    return getattr(import_module(f"feddrop.flower.{_HOMES[name]}"), name)


def _installed() -> bool:
    try:
        return find_spec("flwr") is not None
    except ValueError:  # barred by None in sys.modules
        return False
