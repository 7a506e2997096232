"""Nodes that fail or are slow, as configured: ``harm="1:nan 2:kill"``, ``byte-s=1e-5``, ``pause-s=30``."""

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
    """Introduce the node like any other."""
    return honest(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train, pause as configured, and apply the fault of this round."""
    settings, frame = context.node_config, unpack(message.content)[0]
    harms = dict(entry.split(":") for entry in str(settings.get("harm", "")).split())
    kind = harms.get(str(wire.parse(frame).header.round), "")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "late":
        time.sleep(float(settings.get("pause-s", 0.0)))
    time.sleep(float(settings.get("byte-s", 0.0)) * len(frame))
    reply = honest(message, context)
    answer, notes = unpack(reply.content)
    computing = float(settings.get("compute-byte-s", 0.0)) * len(frame)  # smaller subnets compute faster
    time.sleep(computing)
    notes["seconds"] = float(notes.get("seconds", 0.0)) + computing
    time.sleep(float(settings.get("byte-s", 0.0)) * len(answer))
    return Message(pack(harmed(answer, kind), **notes), reply_to=message)


def harmed(frame: bytes, kind: str) -> bytes:
    """Damage a frame; faults other than ``"corrupted"`` get a matching checksum."""
    if kind == "corrupted":
        return frame[:-3] + bytes([frame[-3] ^ 8]) + frame[-2:]
    if kind == "nan":
        return sealed(frame[:-4] + np.float32(np.nan).tobytes())
    if kind == "shape":
        return sealed(frame + bytes(400))
    return frame


def sealed(frame: Any) -> bytes:
    """Return the frame with its checksum corrected."""
    crc = zlib.crc32(frame[64:], zlib.crc32(frame[:60]))
    return frame[:60] + crc.to_bytes(4, "little") + frame[64:]
