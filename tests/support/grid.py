"""A grid in this process: nodes are ClientApps whose replies arrive at once, late, never, or altered."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from types import SimpleNamespace

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity


class FakeGrid:
    """The part of a Grid that a ServerApp uses, with hooks for faults.

    Attributes:
        online: connected nodes, by Flower's number.
        names: the names that nodes were registered by.
        altered: (node, message, reply) -> the replies to send instead, each (delay in seconds, message).
        frames: bytes of arrays down and up, as Flower counts them.
    """

    def __init__(self, app, run_config: dict, node_configs: list[dict], *, seed: int = 7) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as in a ServerApp's process
        self.app, self.run_config = app, dict(run_config)
        self.contexts: dict[int, Context] = {}
        self.online: set[int] = set()
        self.altered: Callable | None = None
        self.names: dict[int, str] = {}
        self.frames = [0, 0]
        self.pushed: list[tuple[int, str]] = []
        self._numbers, self._ids = itertools.count(1), itertools.count(seed * 1000, -13)
        self._replies: list[tuple[float, Message]] = []
        for config in node_configs:
            self.join(config)

    def join(self, node_config: dict) -> int:
        node_id = next(self._ids)
        self.contexts[node_id] = Context(
            run_id=1, node_id=node_id, node_config=dict(node_config), state=RecordDict(), run_config=self.run_config
        )
        self.online.add(node_id)
        return node_id

    def get_node_ids(self):
        return list(self.online)

    def get_nodes(self):
        """As Flower's grids: the key of every node and, if it has one, the name that it was registered by."""
        names = {number: self.names.get(number, "") for number in self.online}
        return [SimpleNamespace(node_id=n, public_key=b"key %d" % n, name=name) for n, name in names.items()]

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            number = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = number
            self.frames[0] += sum(record.count_bytes() for record in message.content.array_records.values())
            self.pushed.append((message.metadata.dst_node_id, message.metadata.message_type))
            numbers.append(number)
            self._answer(message)
        return numbers

    def _answer(self, message: Message) -> None:
        node_id = message.metadata.dst_node_id
        if node_id not in self.online:
            return
        try:
            reply = self.app(message, self.contexts[node_id])
        except Exception as error:
            reply = Message(Error(code=4, reason=str(error)), reply_to=message)
        sent = [(0.0, reply)] if self.altered is None else self.altered(node_id, message, reply)
        self._replies += [(time.monotonic() + delay, one) for delay, one in sent]

    def pull_messages(self, message_ids):
        wanted, now = set(message_ids), time.monotonic()
        ready = [one for at, one in self._replies if at <= now and one.metadata.reply_to_message_id in wanted | {"any"}]
        self._replies = [(at, one) for at, one in self._replies if all(one is not other for other in ready)]
        for one in ready:
            if one.has_content():
                self.frames[1] += sum(record.count_bytes() for record in one.content.array_records.values())
        return ready
