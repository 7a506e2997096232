"""Federated dropout over Flower: real devices as SuperNodes, the same methods, frames and bits as in a simulation.

``server_app()`` and ``client_app()`` are a whole Flower app; what is trained, and how, stands in its
``[tool.flwr.app.config]``, with the same names as in TOML. This room is the only one that imports ``flwr``.
"""

from __future__ import annotations

from importlib.util import find_spec

from feddrop.errors import ConfigError

if find_spec("flwr") is None:
    raise ConfigError("flwr is not installed, and feddrop.flower needs it: pip install 'feddrop[flower]'.")

from feddrop.flower.client import client_app
from feddrop.flower.config import FleetConfig
from feddrop.flower.server import server_app, train

__all__ = ["FleetConfig", "client_app", "server_app", "train"]
