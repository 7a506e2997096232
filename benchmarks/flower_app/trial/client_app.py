"""Nodes that do harm or are slow, by their configuration: ``harm="1:nan 2:kill"``, ``byte-s=1e-5``, ``pause-s=30``."""

from __future__ import annotations

import os
import signal
import time
import zlib
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from feddrop import wire
from feddrop.flower import client_app
from feddrop.flower.messages import pack, unpack

honest = client_app()
app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Introduce itself, as any device."""
    return honest(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train; then do the harm of the round, and be as slow as the node is."""
    told, frame = context.node_config, unpack(message.content)[0]
    harms = dict(entry.split(":") for entry in str(told.get("harm", "")).split())
    kind = harms.get(str(wire.parse(frame).header.round), "")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "late":
        time.sleep(float(told.get("pause-s", 0.0)))
    time.sleep(float(told.get("byte-s", 0.0)) * len(frame))
    reply = honest(message, context)
    answer, notes = unpack(reply.content)
    thinking = float(told.get("compute-byte-s", 0.0)) * len(frame)  # work falls with the subnet, as its size does
    time.sleep(thinking)
    notes["seconds"] = float(notes.get("seconds", 0.0)) + thinking
    time.sleep(float(told.get("byte-s", 0.0)) * len(answer))
    return Message(pack(harmed(answer, kind), **notes), reply_to=message)


def harmed(frame: bytes, kind: str) -> bytes:
    """Return a frame that is not what it should be, with a checksum that fits where the harm is deeper."""
    if kind == "corrupted":
        return frame[:-3] + bytes([frame[-3] ^ 8]) + frame[-2:]
    if kind == "nan":
        return sealed(frame[:-4] + np.float32(np.nan).tobytes())
    if kind == "shape":
        return sealed(frame + bytes(400))
    return frame


def sealed(frame: Any) -> bytes:
    """Give changed bytes the checksum that goes with them."""
    crc = zlib.crc32(frame[64:], zlib.crc32(frame[:60]))
    return frame[:60] + crc.to_bytes(4, "little") + frame[64:]
