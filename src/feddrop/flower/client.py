"""The device side: a ClientApp that turns data and a network into a federated-dropout device.

``simulation/device.py`` does the work, as in a simulation; this module supplies frame, memory and data.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from feddrop import data
from feddrop.config import RunConfig
from feddrop.data import Dataset
from feddrop.errors import ConfigError, FeddropError
from feddrop.flower.config import read_settings
from feddrop.flower.memory import NodeMemory
from feddrop.flower.messages import DECLARED, Introduction, network_digest, own_versions, pack, treatment, unpack
from feddrop.learning.local import Loss
from feddrop.methods.method import MethodFactory
from feddrop.seeds import derive
from feddrop.simulation.custom import CustomObjects, Network
from feddrop.simulation.custom_checks import check_custom
from feddrop.simulation.device import Device
from feddrop.simulation.preparation import device_task
from feddrop.simulation.schemes import PlannedBy

NodeData = Callable[[Context], Dataset | tuple[Any, Any]]
"""Returns a node's data: inputs and targets, or a data set, of which only the training part is used."""

_NODES = 4
"""Nodes cached per process: a SuperNode's process is one node, an actor of Flower's simulation several."""


def client_app(
    data: NodeData | None = None,
    *,
    mods: Sequence[Any] = (),
    model: Network | None = None,
    method: MethodFactory | None = None,
    loss: Loss | None = None,
) -> ClientApp:
    """Return a ClientApp for any method.

    Args:
        data: ``context -> (inputs, targets)`` of this node; by default, its part of ``data.name``.
        mods: Flower's modifiers.
        model: a custom network, or a function from a seed to one; the same as the server's.
        method: a function ``setup -> Method``; the same as the server's.
        loss: a function ``(outputs, targets) -> mean loss``; the same as the server's.

    Example:
        >>> import feddrop.flower, torch
        >>> app = feddrop.flower.client_app(
        ...     lambda context: (torch.randn(60, 8), torch.randint(3, (60,))),
        ...     model=lambda seed: torch.nn.Linear(8, 3),
        ... )
    """
    custom = CustomObjects(model=model, method=method, loss=loss)
    check_custom(custom)
    app = ClientApp(mods=list(mods))
    ready: dict[tuple[Any, ...], ClientNode] = {}

    def node_of(context: Context) -> ClientNode:
        key = (*sorted(context.run_config.items()), None, *sorted(context.node_config.items()))
        if key not in ready:
            while len(ready) >= _NODES:
                del ready[next(iter(ready))]
            ready[key] = ClientNode(context, data, custom)
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


class ClientNode:
    """A device, its memory, and its introduction to the server."""

    def __init__(self, context: Context, node_data: NodeData | None, custom: CustomObjects) -> None:
        config, fleet = read_settings(context.run_config)
        self._number = _number(context.node_config, config.data.devices)
        if fleet.planning != "given":
            custom = replace(custom, scheme=PlannedBy(_planned_by_server))
        if node_data is None:
            dataset, parts = _named_data(replace(config, rounds=1).to_toml())
        else:
            dataset, parts = _as_device(node_data(context), self._number)
        self._device = Device(device_task(config, dataset, parts, custom, devices=config.data.devices), self._number)
        flower_home = os.environ.get("FLWR_HOME") or Path.home() / ".flwr"
        home = context.node_config.get("memory") or Path(flower_home) / "feddrop"
        self._memory = NodeMemory(Path(str(home)) / f"device-{self._number}")
        declared = {name: context.node_config.get(name.replace("_", "-"), 0.0) for name in DECLARED}
        self.introduction = Introduction(
            device=self._number,
            samples=len(parts[self._number]),
            network=network_digest(self._device.model),
            inputs=treatment(dataset),
            **own_versions(),  # type: ignore[arg-type]
            **declared,  # type: ignore[arg-type]
        )

    def handle(self, content: RecordDict) -> RecordDict:
        """Process a message. The memory stays here; its name is sent back."""
        try:
            frame, notes = unpack(content)
        except FeddropError as error:
            return pack(b"", error=str(error))
        memory = self._memory.get(str(notes.get("memory", "")))
        if memory is None:
            return pack(b"", error="it lost its memory and starts without one in the next round.", forgot=True)
        reply = self._device.handle(frame, memory)
        try:
            name = self._memory.put(reply.memory)
        except FeddropError as error:  # a full disk, or no permission
            return pack(b"", error=str(error))
        return pack(reply.frame, error=reply.error, seconds=reply.seconds, memory=name)


def _number(node_config: Mapping[str, Any], devices: int) -> int:
    number = node_config.get("partition-id")
    if type(number) is not int or not 0 <= number < devices:
        wanted = f"it must be the device's number, 0 to {devices - 1}: flower-supernode --node-config 'partition-id=0'."
        raise ConfigError(f"the node's configuration has partition-id = {number!r}; {wanted}")
    return number


@lru_cache(maxsize=1)
def _named_data(config_text: str) -> tuple[Dataset, list[Any]]:
    """Return the data set that the configuration names, and every device's part of it."""
    config = RunConfig.from_toml(config_text)
    dataset = data.configured_dataset(config.data)
    return dataset, data.partition_dataset(dataset, config.data, seed=derive(config.seed, "partition"))


def _as_device(given: Dataset | tuple[Any, Any], number: int) -> tuple[Dataset, list[Any]]:
    """Return a node's data as the part of one device."""
    if not isinstance(given, Dataset):
        x, y = given
        first = tuple(one[:1] for one in x) if isinstance(x, tuple) else x[:1]
        given = data.from_arrays(x, y, first, y[:1], normalise=False)  # values stay as given
    none = np.empty(0, np.int64)
    return given, [none] * number + [np.arange(len(given.train_y))]


def _planned_by_server(*_: Any) -> Any:
    """Mark that the server plans the rates; devices never call it."""
    raise NotImplementedError
