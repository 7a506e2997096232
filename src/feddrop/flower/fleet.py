"""The server's view of its nodes: who is there, which device each is, and what it said of itself.

Flower gives nodes random numbers, in random order. A node is therefore asked once, by a query, which device it is and
how many samples it holds; the answer holds for the run.
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
"""How often a node is asked who it is, before it is taken for one that cannot say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that introduced itself.

    Attributes:
        node_id: Flower's number for it.
        said: its introduction.
        round_trip_s: seconds that the question and its answer were under way: what a message takes without a size.
    """

    node_id: int
    said: Introduction
    round_trip_s: float


class Fleet:
    """The nodes of a run.

    Attributes:
        grid: sends and receives.
        config: how nodes are treated.
        samples: sample count of every device, fixed when it first introduces itself; 0 until then.
        nodes: by device, those that are there.
        refused: replies that were left out, by device and reason.
    """

    def __init__(self, grid: Grid, config: FleetConfig, devices: int, samples: Iterable[int] = ()) -> None:
        self.grid, self.config = grid, config
        self.samples = [*samples] or [0] * devices
        self.nodes: dict[int, Node] = {}
        self.refused: Counter[tuple[int, str]] = Counter()
        self._least = config.min_nodes or devices
        self._known: dict[int, Node] = {}  # by Flower's number, also those that are away
        self._network = ""
        self._asked: dict[str, tuple[int, float]] = {}  # who and when, by the number of the question
        self._tries: Counter[int] = Counter()

    def gather(self, *, everyone: bool = False) -> None:
        """Wait until enough devices are there.

        Args:
            everyone: whether to wait for all as long as there is time, before a run.

        Raises:
            RunError: they were not within ``join_s``; it names those that are missing.
        """
        began = time.monotonic()
        self.look()
        while len(self.nodes) < (len(self.samples) if everyone else self._least):
            if time.monotonic() - began > self.config.join_s:
                if len(self.nodes) >= self._least:
                    break
                missing = [device for device in range(len(self.samples)) if device not in self.nodes]
                raise RunError(
                    f"{len(self.nodes)} of {len(self.samples)} devices were there after flower.join_s = "
                    f"{self.config.join_s:g} s; {self._least} are needed. Missing: {missing[:20]}. Start their "
                    "SuperNodes with --node-config 'partition-id=...', or lower flower.min_nodes."
                )
            time.sleep(self.config.poll_s)
            self.look()

    def look(self) -> None:
        """See who came and who went, ask newcomers who they are, and take their answers."""
        online = set(self.grid.get_node_ids())
        for device, node in list(self.nodes.items()):
            if node.node_id not in online:
                log.warning("device %d (node %d) is gone.", device, node.node_id)
                del self.nodes[device]
        for node_id in sorted(online & self._known.keys()):
            self._settle(self._known[node_id])
        under_way = {node_id for node_id, _ in self._asked.values()}
        for node_id in sorted(online - self._known.keys() - under_way):
            if self._tries[node_id] < TRIES:
                self._tries[node_id] += 1
                self._ask(node_id)
        if self._asked:
            for answer in self.grid.pull_messages(list(self._asked)):
                self._take(answer)

    def hold_to(self, network: str) -> None:
        """From now on, let only nodes in that train the server's network.

        Raises:
            RunError: without those that are there and do not, there are too few.
        """
        self._network, reason = network, ""
        for node in list(self._known.values()):
            if unfit := self._unfit(node):
                reason = f"device {node.said.device} (node {node.node_id}) cannot take part: {unfit}"
                log.warning(reason)
                del self._known[node.node_id]
                self._tries[node.node_id] = TRIES
                if self.nodes.get(node.said.device) is node:
                    del self.nodes[node.said.device]
        if reason and len(self.nodes) < self._least:
            raise RunError(f"{reason} Without such nodes {len(self.nodes)} are there, and {self._least} are needed.")

    def name(self, device: int) -> str:
        """Return how to call a device in a message."""
        node = self.nodes.get(device)
        return f"device {device} (node {node.node_id})" if node else f"device {device}"

    def _ask(self, node_id: int) -> None:
        question = Message(pack(b""), node_id, MessageType.QUERY, ttl=self.config.join_s)
        for number in self.grid.push_messages([question]):
            if number:
                self._asked[number] = node_id, time.monotonic()

    def _take(self, answer: Message) -> None:
        """Take an answer to "who are you"."""
        node_id, sent = self._asked.pop(answer.metadata.reply_to_message_id, (0, 0.0))
        if not node_id:
            return
        try:
            if answer.has_error():
                reason = clean(answer.error.reason or "no reason given", LONGEST)
                raise ConfigError(f"{reason} (error {answer.error.code})")
            notes = unpack(answer.content)[1]
            said = Introduction.read(notes)
        except FeddropError as error:
            log.warning("node %d did not introduce itself: %s", node_id, error)
            return
        elapsed, busy = time.monotonic() - sent, notes.get("seconds")
        busy = min(max(busy, 0.0), elapsed) if isinstance(busy, float) else 0.0  # also where it is NaN
        node = Node(node_id=node_id, said=said, round_trip_s=elapsed - busy)
        if reason := self._unfit(node):
            log.warning("node %d is refused as device %d: %s", node_id, said.device, reason)
            self._tries[node_id] = TRIES
            return
        self._known[node_id] = node
        self._settle(node)

    def _unfit(self, node: Node) -> str:
        """Return why a node cannot take part; empty if it can."""
        device, devices = node.said.device, len(self.samples)
        if device >= devices:
            return f"devices are 0 to {devices - 1} (data.devices)."
        if self._network and node.said.network != self._network:
            return "it trains another network, or has another feddrop, than the server. Install the same app on both."
        held = self.samples[device]
        if held and held != node.said.samples:
            return f"it says that it holds {node.said.samples} samples; device {device} began this run with {held}."
        return ""

    def _settle(self, node: Node) -> None:
        """Let a node be its device, unless another one is."""
        device = node.said.device
        other = self.nodes.get(device)
        if other is None:
            self.nodes[device] = node
            self.samples[device] = node.said.samples
            log.info("device %d is node %d, with %d samples.", device, node.node_id, node.said.samples)
        elif other.node_id != node.node_id and self._tries[node.node_id] <= TRIES:
            self._tries[node.node_id] = TRIES + 1  # said once
            log.warning(
                "node %d says that it is device %d, as node %d does, which was first: it is refused.",
                node.node_id,
                device,
                other.node_id,
            )
