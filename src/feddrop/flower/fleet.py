"""The server's view of its nodes: which are connected, which device each one is, and how it described itself.

Flower numbers nodes at random. The server therefore queries each node once for its device number and sample count; the
answer holds for the run.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from feddrop.errors import ConfigError, FeddropError, RunError, clean
from feddrop.flower.config import FleetConfig
from feddrop.flower.messages import LONGEST, Introduction, pack, unpack

log = logging.getLogger("feddrop")

TRIES = 3
"""Queries to a node before the server ignores it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNode:
    """A node that introduced itself: Flower's number, its introduction, and the seconds an empty message takes."""

    node_id: int
    introduction: Introduction
    round_trip_s: float


class Fleet:
    """The nodes of a run.

    Attributes:
        grid: sends and receives.
        config: how nodes are treated.
        samples: samples per device, fixed when the device first introduces itself; 0 until then.
        nodes: connected nodes by device.
        refused: number of dropped replies by device and reason.
    """

    def __init__(self, grid: Grid, config: FleetConfig, devices: int, samples: Iterable[int] = ()) -> None:
        self.grid, self.config = grid, config
        self.samples = [*samples] or [0] * devices
        self.nodes: dict[int, FleetNode] = {}
        self.refused: Counter[tuple[int, str]] = Counter()
        self._least = config.min_nodes or devices
        self._known: dict[int, FleetNode] = {}  # by Flower's number, including disconnected nodes
        self._network = self._inputs = ""
        self._asked: dict[str, tuple[int, float]] = {}  # node and time, by message number
        self._tries: Counter[int] = Counter()

    def gather(self, *, everyone: bool = False) -> None:
        """Wait until enough devices are connected, or ``everyone`` if time allows; RunError after ``join_s``."""
        began = time.monotonic()
        self.look()
        while len(self.nodes) < (len(self.samples) if everyone else self._least):
            if time.monotonic() - began > self.config.join_s:
                if len(self.nodes) >= self._least:
                    break
                missing = [device for device in range(len(self.samples)) if device not in self.nodes]
                raise RunError(
                    f"{len(self.nodes)} of {len(self.samples)} devices were connected after flower.join_s = "
                    f"{self.config.join_s:g} s; {self._least} are needed. Missing: {missing[:20]}. Start their "
                    "SuperNodes with --node-config 'partition-id=...', or lower flower.min_nodes."
                )
            time.sleep(self.config.poll_s)
            self.look()

    def look(self) -> None:
        """Update which nodes are connected, query new ones, and read their answers."""
        online = set(self.grid.get_node_ids())
        for device, node in list(self.nodes.items()):
            if node.node_id not in online:
                log.warning("device %d (node %d) disconnected.", device, node.node_id)
                del self.nodes[device]
        for node_id in sorted(online & self._known.keys()):
            self._settle(self._known[node_id])
        pending = {node_id for node_id, _ in self._asked.values()}
        for node_id in sorted(online - self._known.keys() - pending):
            if self._tries[node_id] < TRIES:
                self._tries[node_id] += 1
                self._ask(node_id)
        if self._asked:
            for answer in self.grid.pull_messages(list(self._asked)):
                self._take(answer)

    def hold_to(self, network: str, inputs: str = "") -> None:
        """From now on, accept only nodes that train the server's network on inputs treated as the server's are.

        RunError if too few connected ones do.
        """
        self._network, self._inputs, reason = network, inputs, ""
        for node in list(self._known.values()):
            if unfit := self._unfit(node):
                reason = f"device {node.introduction.device} (node {node.node_id}) cannot take part: {unfit}"
                log.warning(reason)
                del self._known[node.node_id]
                self._tries[node.node_id] = TRIES
                if self.nodes.get(node.introduction.device) is node:
                    del self.nodes[node.introduction.device]
        if reason and len(self.nodes) < self._least:
            raise RunError(f"{reason} {len(self.nodes)} other devices are connected; {self._least} are needed.")

    def name(self, device: int) -> str:
        """Return the name of a device for messages."""
        node = self.nodes.get(device)
        return f"device {device} (node {node.node_id})" if node else f"device {device}"

    def _ask(self, node_id: int) -> None:
        question = Message(pack(b""), node_id, MessageType.QUERY, ttl=self.config.join_s)
        for number in self.grid.push_messages([question]):
            if number:
                self._asked[number] = node_id, time.monotonic()

    def _take(self, answer: Message) -> None:
        """Read the answer to a query."""
        node_id, sent = self._asked.pop(answer.metadata.reply_to_message_id, (0, 0.0))
        if not node_id:
            return
        try:
            if answer.has_error():
                reason = clean(answer.error.reason or "no reason given", LONGEST)
                raise ConfigError(f"{reason} (error {answer.error.code})")
            notes = unpack(answer.content)[1]
            introduction = Introduction.read(notes)
        except FeddropError as error:
            log.warning("node %d did not introduce itself: %s", node_id, error)
            return
        elapsed, busy = time.monotonic() - sent, notes.get("seconds")
        busy = min(max(busy, 0.0), elapsed) if isinstance(busy, float) else 0.0  # NaN becomes 0
        node = FleetNode(node_id=node_id, introduction=introduction, round_trip_s=elapsed - busy)
        if reason := self._unfit(node):
            log.warning("node %d is rejected as device %d: %s", node_id, introduction.device, reason)
            self._tries[node_id] = TRIES
            return
        self._known[node_id] = node
        self._settle(node)

    def _unfit(self, node: FleetNode) -> str:
        """Return why a node cannot take part; empty if it can."""
        device, devices = node.introduction.device, len(self.samples)
        if device >= devices:
            return f"device numbers are 0 to {devices - 1} (data.devices)."
        if self._network and node.introduction.network != self._network:
            return "its network or version of feddrop differs from the server's. Install the same app on both."
        theirs = node.introduction.inputs
        if self._inputs and theirs and theirs != self._inputs:
            return (
                f"its inputs are {theirs}, the server's {self._inputs}, so the test accuracy would be wrong. Scale "
                "both in the same way and pass normalise=False to from_arrays, or let from_arrays normalise both."
            )
        held = self.samples[device]
        if held and held != node.introduction.samples:
            return f"it reports {node.introduction.samples} samples; device {device} started this run with {held}."
        return ""

    def _settle(self, node: FleetNode) -> None:
        """Assign a node to its device, unless another node has it."""
        device = node.introduction.device
        other = self.nodes.get(device)
        if other is None:
            self.nodes[device] = node
            self.samples[device] = node.introduction.samples
            log.info("device %d is node %d, with %d samples.", device, node.node_id, node.introduction.samples)
        elif other.node_id != node.node_id and self._tries[node.node_id] <= TRIES:
            self._tries[node.node_id] = TRIES + 1  # log it once
            text = "node %d claims to be device %d, which is node %d already: rejected."
            log.warning(text, node.node_id, device, other.node_id)
