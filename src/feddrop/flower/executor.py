"""Flower as an executor: frames go out as messages, replies come back in device order.

No node can stop a round: a reply that is late, missing, duplicate, from the wrong node, too large or not a frame is
counted, logged and dropped. The content of a frame is checked where all frames are, in ``simulation/round.py``.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from flwr.app import Message, MessageType
from flwr.common.constant import ErrorCode

from feddrop.errors import FrameError, clean
from feddrop.executors import Parcel, Reply
from feddrop.executors.serial import Serial
from feddrop.flower.fleet import Fleet
from feddrop.flower.messages import LONGEST, largest_frame, pack, unpack
from feddrop.simulation.device import Task
from feddrop.subnets.parameters import Params

log = logging.getLogger("feddrop")

LATER = 4.0
"""Timeouts after which the server stops looking for a dropped reply; until then it logs how late the reply was."""
_NOT_REACHED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
"""Errors of the SuperLink that mean that a message did not reach its node."""
WINDOW = 64
"""Replies requested at a time, in turn; the others stay with the SuperLink meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message in transit: its receiver, when it was sent, and the name of the memory to use."""

    device: int
    node_id: int
    at: float
    memory: bytes


class Messenger:
    """Runs devices that are Flower nodes; the server evaluates the test set itself."""

    def __init__(self, task: Task, fleet: Fleet) -> None:
        self._fleet, self._grid, self._config = fleet, fleet.grid, fleet.config
        self._local = Serial(task)
        self._most = largest_frame(task.setup.model)
        self._overdue: dict[str, Sent] = {}

    def compute(self, parcels: Iterable[Parcel]) -> Iterator[Reply]:
        """Send every device its frame, then yield the replies in order; missing and late devices yield an error."""
        self._fleet.gather()
        order: list[int] = []
        waiting: dict[str, Sent] = {}
        replies: dict[int, Reply] = {}
        for parcel in parcels:
            order.append(parcel.device)
            self._send(parcel, waiting, replies)
        last = time.monotonic()
        for device in order:
            while device not in replies:
                self._receive(waiting, replies)
                if device not in replies and time.monotonic() - last > self._config.timeout_s:
                    self._give_up(waiting, replies)
                elif device not in replies:
                    time.sleep(self._config.poll_s)
            reply = replies.pop(device)
            if reply.error:
                self._fleet.refused[device, reply.error.partition(":")[0]] += 1
            yield reply

    def evaluate(self, params: Params) -> dict[str, float]:
        """Return the mean loss and every measure on the server's test set."""
        return self._local.evaluate(params)

    def close(self) -> None:
        """Release local resources; nodes and SuperLink keep running."""
        self._local.close()

    def _send(self, parcel: Parcel, waiting: dict[str, Sent], replies: dict[int, Reply]) -> None:
        node = self._fleet.nodes.get(parcel.device)
        if node is None:
            why = self._fleet.rejected.get(parcel.device)
            error = f"rejected: {why}" if why else "dead: no node is connected for it"
            replies[parcel.device] = Reply(memory=parcel.memory, error=error, sent=False)
            return
        content = pack(parcel.frame, memory=parcel.memory.decode())
        message = Message(content, node.node_id, MessageType.TRAIN, ttl=LATER * self._config.timeout_s)
        number = next(iter(self._grid.push_messages([message])), None)
        if not number:
            error = "dead: the SuperLink did not accept its message"
            replies[parcel.device] = Reply(memory=parcel.memory, error=error, sent=False)
            return
        sent = Sent(device=parcel.device, node_id=node.node_id, at=time.monotonic(), memory=parcel.memory)
        waiting[number] = sent

    def _receive(self, waiting: dict[str, Sent], replies: dict[int, Reply]) -> None:
        """Receive replies, answers of new nodes, and late replies."""
        window = list(islice(waiting, WINDOW))
        for number in window:  # silent nodes move to the end of the queue, so that they do not block others
            waiting[number] = waiting.pop(number)
        for message in self._grid.pull_messages([*window, *self._overdue]):
            asked = message.metadata.reply_to_message_id
            if asked in waiting:
                sent = waiting.pop(asked)
                replies[sent.device] = self._read(message, sent)
            elif asked in self._overdue:
                sent = self._overdue.pop(asked)
                if not message.has_error():
                    late = time.monotonic() - sent.at - self._config.timeout_s
                    log.warning("%s replied %.1f s too late: dropped.", self._fleet.name(sent.device), late)
            else:
                log.warning("node %d sent an unexpected reply: dropped.", message.metadata.src_node_id)
                self._fleet.refused[-1, "duplicate"] += 1
        self._fleet.look()

    def _read(self, message: Message, sent: Sent) -> Reply:
        """Return the reply that a message holds, or why it is dropped."""
        if message.has_error():
            reason = clean(message.error.reason or "no reason given", LONGEST)
            reached = message.error.code not in _NOT_REACHED
            return Reply(memory=sent.memory, error=f"dead: {reason} (error {message.error.code})", sent=reached)
        if message.metadata.src_node_id != sent.node_id:
            other = message.metadata.src_node_id
            return Reply(memory=sent.memory, error=f"malformed: node {other} replied instead of node {sent.node_id}")
        elapsed = time.monotonic() - sent.at
        try:
            frame, notes = unpack(message.content, self._most)
        except FrameError as error:
            return Reply(memory=sent.memory, error=str(error))
        seconds = notes.get("seconds", 0.0)
        known = isinstance(seconds, float) and math.isfinite(seconds)
        if message_error := notes.get("error"):
            forgot = notes.get("forgot") is True
            return Reply(memory=sent.memory, error=f"failed: {clean(message_error, LONGEST)}", forgot=forgot)
        if self._config.growing:
            self._fleet.grow(sent.device, frame)
        return Reply(
            frame=frame,
            memory=str(notes.get("memory", ""))[:100].encode(),
            seconds=min(max(float(seconds), 0.0), elapsed) if known else 0.0,
            elapsed=elapsed,
        )

    def _give_up(self, waiting: dict[str, Sent], replies: dict[int, Reply]) -> None:
        """Give up on devices that have not replied in time."""
        for _ in range(0, len(waiting), WINDOW):  # check all of them once more
            self._receive(waiting, replies)
        now = time.monotonic()
        self._overdue = {n: s for n, s in self._overdue.items() if now - s.at < LATER * self._config.timeout_s}
        for number, sent in waiting.items():
            error = f"late: no reply within flower.timeout_s = {self._config.timeout_s:g} s"
            replies[sent.device] = Reply(memory=sent.memory, error=error, elapsed=now - sent.at)
            self._overdue[number] = sent
        waiting.clear()
