"""The device side: a ClientApp that turns data and a network into a federated-dropout device.

All that a device does stands in ``device.py`` and is the same here; this file fetches frame, memory and data.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from feddrop import data
from feddrop.config import RunConfig
from feddrop.data import Dataset
from feddrop.errors import ConfigError, FeddropError
from feddrop.flower.config import read_settings
from feddrop.flower.memory import NodeMemory
from feddrop.flower.messages import DECLARED, Introduction, network_digest, pack, unpack
from feddrop.seeds import derive
from feddrop.simulation.device import Device
from feddrop.simulation.preparation import Brought, check_arguments, device_task

Own = Callable[[Context], Dataset | tuple[Any, Any]]
"""A node's own data: inputs and targets, or a whole data set, of which the training half is used."""

_BROUGHT = ("loss", "method", "model")
"""What a device is told by its user: the rest is the server's."""
_NODES = 4
"""Nodes that a process holds ready: a SuperNode's has one, an actor of the simulation plays several."""


def client_app(data: Own | None = None, *, mods: Sequence[Any] = (), **brought: Unpack[Brought]) -> ClientApp:
    """Return a ClientApp for any method.

    Args:
        data: ``context -> (inputs, targets)``, what this node holds; without it, its part of ``data.name``.
        mods: Flower's own modifiers.
        **brought: model, method, loss: the same as the server's, where they are not named in the app's configuration.

    Example:
        >>> import feddrop.flower, torch
        >>> app = feddrop.flower.client_app(
        ...     lambda context: (torch.randn(60, 8), torch.randint(3, (60,))),
        ...     model=lambda seed: torch.nn.Linear(8, 3),
        ... )
    """
    check_arguments(brought, _BROUGHT)
    app = ClientApp(mods=list(mods))
    ready: dict[tuple[Any, ...], Node] = {}

    def node_of(context: Context) -> Node:
        key = (*sorted(context.run_config.items()), None, *sorted(context.node_config.items()))
        if key not in ready:
            while len(ready) >= _NODES:
                del ready[next(iter(ready))]
            ready[key] = Node(context, data, brought)
        return ready[key]

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        began = time.monotonic()
        try:
            notes = node_of(context).introduction.notes()
        except FeddropError as error:
            notes = {"error": str(error)}
        return Message(pack(b"", seconds=time.monotonic() - began, **notes), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(node_of(context).handle(message.content), reply_to=message)

    return app


class Node:
    """A device, and where its memory lies.

    Attributes:
        introduction: what it says of itself.
    """

    def __init__(self, context: Context, own: Own | None, brought: Brought) -> None:
        config, fleet = read_settings(context.run_config)
        self._number = _number(context.node_config, config.data.devices)
        if fleet.planning != "given":
            brought = {**brought, "rates": _decided}
        if own is None:
            dataset, parts = _shared(replace(config, rounds=1).to_toml(), config.data.path)
        else:
            dataset, parts = _alone(own(context), self._number)
        self._device = Device(device_task(config, dataset, parts, brought, devices=config.data.devices), self._number)
        home = context.node_config.get("memory") or _home() / "feddrop"
        self._memory = NodeMemory(Path(str(home)) / f"device-{self._number}")
        told = {name: context.node_config.get(name.replace("_", "-"), 0.0) for name in DECLARED}
        self.introduction = Introduction(
            device=self._number,
            samples=len(parts[self._number]),
            network=network_digest(self._device.model),
            **told,  # type: ignore[arg-type]
        )

    def handle(self, content: RecordDict) -> RecordDict:
        """Do what a message asks for. The memory stays here; its name goes back."""
        try:
            frame, notes = unpack(content)
        except FeddropError as error:
            return pack(b"", error=str(error))
        memory = self._memory.get(str(notes.get("memory", "")))
        if memory is None:
            return pack(b"", error="it no longer has its memory, and begins anew in the next round.", forgot=True)
        reply = self._device.handle(frame, memory)
        try:
            name = self._memory.put(reply.memory)
        except FeddropError as error:  # a full disk, or a folder that is closed to us
            return pack(b"", error=str(error))
        return pack(reply.frame, error=reply.error, seconds=reply.seconds, memory=name)


def _number(node_config: Mapping[str, Any], devices: int) -> int:
    number = node_config.get("partition-id")
    if type(number) is not int or not 0 <= number < devices:
        raise ConfigError(
            f"the node's configuration says partition-id {number!r}; it must be the device's number, from 0 to "
            f"{devices - 1}: flower-supernode --node-config 'partition-id=0'."
        )
    return number


@lru_cache(maxsize=1)
def _shared(config_text: str, path: str) -> tuple[Dataset, list[Any]]:
    """Return the data that the configuration names, and everyone's part of them."""
    config = RunConfig.from_toml(config_text)
    dataset = data.load_dataset(config.data.name, path=path or None, train_limit=config.data.train_limit or None)
    return dataset, data.partition_dataset(dataset, config.data, seed=derive(config.seed, "partition"))


def _alone(given: Dataset | tuple[Any, Any], number: int) -> tuple[Dataset, list[Any]]:
    """Return a node's own data, as those of its number."""
    if not isinstance(given, Dataset):
        x, y = given
        first = tuple(one[:1] for one in x) if isinstance(x, tuple) else x[:1]
        given = data.from_arrays(x, y, first, y[:1], normalise=False)  # as the node gives them
    none = np.empty(0, np.int64)
    return given, [none] * number + [np.arange(len(given.train_y))]


def _decided(*_: Any) -> Any:
    """Stand for the server's planning: on a device, nothing is decided."""
    raise AssertionError


def _home() -> Path:
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
