"""The server's view of its nodes: which are connected, which device each one is, and how it described itself.

Flower numbers nodes at random. The server therefore queries each node once for its device number and sample count; the
answer holds for the run.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from feddrop import wire
from feddrop.errors import ConfigError, FeddropError, FrameError, RunError, clean
from feddrop.flower.config import FleetConfig
from feddrop.flower.messages import LONGEST, Introduction, own_versions, pack, unpack

log = logging.getLogger("feddrop")

TRIES = 3
"""Queries to a node before the server ignores it."""
_BOUND = "device-"
"""Prefix of the name of a node whose key is bound to a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNode:
    """A node that introduced itself."""

    node_id: int  # Flower's number
    introduction: Introduction  # how it described itself
    round_trip_s: float  # seconds that an empty message takes
    key: str = ""  # fingerprint of its public key; empty if the grid does not know it
    registered_as: str = ""  # the name that its key was registered by, such as ``"device-3"``


class Fleet:
    """The nodes of a run.

    Attributes:
        grid: sends and receives.
        config: how nodes are treated.
        samples: samples per device, fixed when the device first introduces itself; 0 until then.
        nodes: connected nodes by device.
        rejected: why the last node that claimed a device cannot take part, by device.
        refused: number of dropped replies by device and reason.
    """

    def __init__(self, grid: Grid, config: FleetConfig, devices: int, samples: Iterable[int] = ()) -> None:
        self.grid, self.config = grid, config
        self.samples = [*samples] or [0] * devices
        self.nodes: dict[int, FleetNode] = {}
        self.rejected: dict[int, str] = {}
        self.refused: Counter[tuple[int, str]] = Counter()
        self._versions = own_versions()
        self._accepted = {self._versions["software"], *(name.strip() for name in config.accept.split(",") if name)}
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
        """From now on, accept only nodes with the server's network and the server's treatment of inputs.

        RunError if too few connected ones do.
        """
        self._network, self._inputs, reason = network, inputs, ""
        for node in list(self._known.values()):
            if unfit := self._unfit(node):
                reason = f"device {node.introduction.device} (node {node.node_id}) cannot take part: {unfit}"
                self._reject(node, unfit)
        if reason and len(self.nodes) < self._least:
            raise RunError(f"{reason} {len(self.nodes)} other devices are connected; {self._least} are needed.")

    def name(self, device: int) -> str:
        """Return the name of a device for messages."""
        node = self.nodes.get(device)
        return f"device {device} (node {node.node_id})" if node else f"device {device}"

    def _ask(self, node_id: int) -> None:
        question = Message(pack(b"", **self._versions), node_id, MessageType.QUERY, ttl=self.config.join_s)
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
        key, name = self._registered(node_id)
        node = FleetNode(
            node_id=node_id, introduction=introduction, round_trip_s=elapsed - busy, key=key, registered_as=name
        )
        if reason := self._unfit(node):
            self._reject(node, reason)
            return
        if introduction.torch and introduction.torch != self._versions["torch"]:
            log.warning(
                "device %d (node %d) runs torch %s, the server %s: results may differ in the last bits.",
                *(introduction.device, node_id, clean(introduction.torch, 40), self._versions["torch"]),
            )
        self._known[node_id] = node
        self._settle(node)

    def _registered(self, node_id: int) -> tuple[str, str]:
        """Return the fingerprint of a node's public key and the name that it was registered by; empty if unknown."""
        nodes: Iterable[Any] = getattr(self.grid, "get_nodes", tuple)()  # not every grid knows more than numbers
        for one in nodes:
            if one.node_id == node_id and one.public_key:
                digest = base64.b64encode(hashlib.sha256(one.public_key).digest()).decode().rstrip("=")
                return f"SHA256:{digest}", clean(one.name, 60)
        return "", ""

    def _reject(self, node: FleetNode, reason: str) -> None:
        """Ignore a node from now on, and say why once."""
        device = node.introduction.device
        log.warning("node %d is rejected as device %d: %s", node.node_id, device, reason)
        self._known.pop(node.node_id, None)
        self._tries[node.node_id] = TRIES
        if self.nodes.get(device) is node:
            del self.nodes[device]
        if device not in self.nodes and device < len(self.samples):
            self.rejected[device] = reason

    def _unfit(self, node: FleetNode) -> str:
        """Return why a node cannot take part; empty if it can."""
        device, devices = node.introduction.device, len(self.samples)
        if device >= devices:
            return f"device numbers are 0 to {devices - 1} (data.devices)."
        if reason := self._misnamed(node):
            return reason
        if node.introduction.software not in self._accepted:
            theirs, ours = clean(node.introduction.software, 60) or "an unknown version", self._versions["software"]
            return f"it runs {theirs}, the server {ours}. Install the same, or add it to flower.accept."
        if self._network and node.introduction.network != self._network:
            return "its network or frame format differs from the server's. Install the same app on both."
        theirs = node.introduction.inputs
        if self._inputs and theirs and theirs != self._inputs:
            return (
                f"its inputs are {theirs}, the server's {self._inputs}, so the test accuracy would be wrong. Scale "
                "both in the same way and pass normalise=False to from_arrays, or let from_arrays normalise both."
            )
        held, found = self.samples[device], node.introduction.samples
        if held and held != found and not (self.config.growing and found > held):
            more = " Set flower.growing = true if its data grow." if found > held and not self.config.growing else ""
            return f"it reports {found} samples; device {device} started this run with {held}.{more}"
        return ""

    def _misnamed(self, node: FleetNode) -> str:
        """Return how a node's number contradicts the name that its key was registered by; empty if it does not."""
        name, device = node.registered_as, node.introduction.device
        if name.startswith(_BOUND) and name != f"{_BOUND}{device}":
            return f"its key was registered as {name}, so it cannot be device {device}."
        if self.config.named and not name.startswith(_BOUND):
            wanted = f"flwr supernode register KEY.pub --name {_BOUND}{device}"
            return f"its key was not registered for a device, which flower.named requires: {wanted}."
        return ""

    def grow(self, device: int, frame: bytes) -> None:
        """Accept a larger number of samples from an update; everything else is checked as usual."""
        try:
            found = wire.parse(frame).header.num_samples
        except FrameError:
            return
        if self.samples[device] < found < 2**31:
            log.info("%s has %d samples; it had %d.", self.name(device), found, self.samples[device])
            self.samples[device] = found

    def to_json(self) -> dict[str, Any]:
        """Return what is known about the nodes of all devices, for ``fleet.json``."""
        described = {}
        for device, node in sorted(self.nodes.items()):
            identity = {"node": node.node_id, "key": node.key, "name": node.registered_as}
            described[str(device)] = identity | node.introduction.notes()
        return {"server": self._versions, "nodes": described, "rejected": {str(k): v for k, v in self.rejected.items()}}

    def _settle(self, node: FleetNode) -> None:
        """Assign a node to its device; a node registered by the device's name takes precedence over others."""
        device = node.introduction.device
        other = self.nodes.get(device)
        bound = f"{_BOUND}{device}"
        if other is not None and node.registered_as == bound != other.registered_as:
            self._reject(other, f"node {node.node_id} is registered as {bound}.")
            other = None
        if other is None:
            self.nodes[device] = node
            self.rejected.pop(device, None)
            self.samples[device] = node.introduction.samples
            log.info("device %d is node %d, with %d samples.", device, node.node_id, node.introduction.samples)
        elif other.node_id != node.node_id and self._tries[node.node_id] <= TRIES:
            self._tries[node.node_id] = TRIES + 1  # log it once
            text = "node %d claims to be device %d, which is node %d already: rejected."
            log.warning(text, node.node_id, device, other.node_id)
