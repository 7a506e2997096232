"""Faults of Flower nodes for ``soak.py``: other versions, forged introductions and clocks that jump.

The nodes answer in this process, over the grid that the tests use; messages, checks and bits are those of real ones.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flwr.app import Message

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from faults import Line
from feddrop.errors import FeddropError
from feddrop.flower import client_app, memory, server, train
from feddrop.flower.messages import pack, unpack
from support.grid import FakeGrid

DEVICES, ODD = 4, 2
SETTINGS = {
    "rounds": 4,
    "seed": 5,
    "rate": 0.5,
    "model.name": "mlp",
    "model.width": 0.2,
    "data.devices": DEVICES,
    "data.train_limit": 120,
    "method.name": "feddst",
    "method.alpha": 0.4,
    "method.readjust_every": 2,
    "method.readjust_until": 1.0,
    "flower.poll_s": 0.01,
    "flower.join_s": 0.2,
    "flower.min_nodes": DEVICES - 1,
}


def strike_nodes(folder: Path, times: int, dice: random.Random) -> Iterator[Line]:
    """Let one of four nodes misreport itself, then let all nodes' clocks jump."""
    logging.getLogger("feddrop").setLevel(logging.CRITICAL)
    server.write_report = lambda run: run  # type: ignore[assignment]  # drawing takes longer than training
    without = _trained(folder / "without", [device for device in range(DEVICES) if device != ODD])
    survived = 0
    for number in range(times):
        found = _trained(folder / f"other-{number}", range(DEVICES), lambda notes: _forged(notes, dice))
        survived += found == without
    yield Line("a node of another version, or a forged introduction", times, survived, "that node, refused")
    everyone, survived = _trained(folder / "everyone", range(DEVICES)), 0
    for number in range(times):
        with _jumping(dice):
            survived += _trained(folder / f"clock-{number}", range(DEVICES)) == everyone
    yield Line("the clocks of nodes jump back and forth", times, survived, "nothing")


def _trained(folder: Path, present: Any, forge: Callable[[dict[str, Any]], dict[str, Any]] | None = None) -> Any:
    """Return the parameters of a run over these registered nodes, of which one may introduce itself in another way.

    Nodes that are not registered by their number may claim another's, if they come first; these may not.
    """
    nodes = [{"partition-id": device, "memory": str(folder / f"node-{device}")} for device in present]
    settings = {**SETTINGS, "flower.out": str(folder / "run")}
    app = client_app()

    def answer(message: Any, context: Any) -> Any:
        reply = app(message, context)
        if forge is None or message.metadata.message_type != "query" or context.node_config["partition-id"] != ODD:
            return reply
        frame, notes = unpack(reply.content)
        return Message(pack(frame, **forge(notes)), reply_to=message)

    grid = FakeGrid(answer, settings, nodes)
    grid.names = {n: f"device-{context.node_config['partition-id']}" for n, context in grid.contexts.items()}
    try:
        run = train(grid, settings)
    except FeddropError as error:
        return str(error)
    return {name: tensor.numpy().tobytes() for name, tensor in run.params.items()}


def _forged(notes: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """Return an introduction that no node of this version and network would send."""
    odd = [*(0, -1, 2**31, 2**63, 1e308, float("nan"), True, "", "x" * 10_000, "\x1b[31m\n", "feddrop 0.2.0"), "NaN"]
    lies = {
        "software": ["feddrop 0.2.0", "feddrop", "", "x" * 10_000, "feddrop 0.3.0\nok", 3, 0.3],
        "network": ["", "0" * 16, "é" * 16, 5],
        "device": [-1, DEVICES, 2**31, 2**63 - 1, 0.5, "2", float("nan"), 0],
        "samples": [0, -1, 2**31, 0.5, float("inf"), "30"],
        "flops_per_s": [-1.0, float("nan"), "fast"],
        "error": ["no\ndata", "x" * 10_000],
    }
    key = dice.choice(list(lies))
    forged = {**notes, key: dice.choice(lies[key])}
    if not dice.randrange(4):
        forged.pop(key)
        forged["software"] = dice.choice(["feddrop 0.2.0", "tiny-client 0.9"])
    return {**forged, **{f"more-{n}": dice.choice(odd) for n in range(dice.randrange(3))}}


@contextlib.contextmanager
def _jumping(dice: random.Random) -> Iterator[None]:
    """Let the clock that nodes read jump, and with it the times of the files that they write."""
    write, clock = memory.write_atomically, memory.time

    class Jumping:
        @staticmethod
        def time() -> float:
            return time.time() + dice.uniform(-1e9, 1e9)

    def written(path: Path, data: bytes) -> None:
        write(path, data)
        now = Jumping.time()
        os.utime(path, (now, now))

    memory.write_atomically, memory.time = written, Jumping  # type: ignore[assignment]
    try:
        yield
    finally:
        memory.write_atomically, memory.time = write, clock
