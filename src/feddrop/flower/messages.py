"""The content of a Flower message: one frame, and a few notes beside it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from importlib.metadata import version

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import nn

from feddrop.config.fields import Settings, setting
from feddrop.data import Dataset
from feddrop.errors import ConfigError, FrameError, clean, shortened
from feddrop.subnets import parameters
from feddrop.wire.frame import VERSION

Note = str | int | float | bool
STYPE = "feddrop.frame"
_NAME = ""  # Flower counts the bytes of an array's name too; an empty name leaves only those of the frame
LONGEST = 500
"""Characters of a node's text that are shown."""


def pack(frame: bytes, **notes: Note) -> RecordDict:
    """Return the content of a message. The array bytes that Flower counts equal the size of the frame."""
    array = Array(dtype="uint8", shape=(len(frame),), stype=STYPE, data=frame)
    return RecordDict({"frame": ArrayRecord({_NAME: array}), "notes": ConfigRecord(dict(notes))})


def unpack(content: RecordDict, most: float = math.inf) -> tuple[bytes, dict[str, Note]]:
    """Return the frame and the notes of an untrusted message; FrameError unless :func:`pack` wrote it.

    The frame may have at most ``most`` bytes.
    """
    arrays, notes = content.array_records.get("frame"), content.config_records.get("notes")
    if set(content) != {"frame", "notes"} or arrays is None or notes is None or set(arrays) != {_NAME}:
        raise FrameError(f"malformed: the message holds {shortened(sorted(content))}; it must hold frame and notes.")
    data = arrays[_NAME].data
    if len(data) > most:
        raise FrameError(f"oversized: {len(data)} bytes; a frame of this network has at most {most:.0f}.")
    return data, {name: value for name, value in notes.items() if isinstance(value, str | int | float | bool)}


def network_digest(model: nn.Module) -> str:
    """Return a digest of a network's names and shapes, of its frozen parameters, and of the frame format."""
    found = hashlib.blake2b(json.dumps([VERSION, parameters.shapes(model)]).encode(), digest_size=8)
    frozen = parameters.frozen(model)
    for name, tensor in parameters.from_model(model).items() if frozen else ():
        if name in frozen:  # not sent, so server and node must start with the same
            found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


def own_versions() -> dict[str, str]:
    """Return the versions that a node reports of itself, and with which the server compares them."""
    return {"software": f"feddrop {version('feddrop')}", "torch": str(torch.__version__)}


def treatment(dataset: Dataset) -> str:
    """Return whether the inputs of a data set are ``"normalised"`` or ``"as given"``; empty if that is unknown."""
    known = [step for step in dataset.preprocessing if step is not None]
    return "" if not known else "normalised" if any(step.mean for step in known) else "as given"


def largest_frame(model: nn.Module) -> int:
    """Return an upper bound on the bytes of a network's frames: all values, and as much again for payload."""
    return (1 << 16) + 8 * sum(math.prod(shape) for shape in parameters.shapes(model).values())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Introduction(Settings):
    """A node's description of itself, sent once; undeclared speeds and energies are 0.

    Attributes:
        device: device number.
        samples: number of training samples.
        network: :func:`network_digest` of its network.
        inputs: :func:`treatment` of its data.
        software: name and version of the program that trains, such as ``"feddrop 0.3.0"``.
        torch: version of torch; empty without torch.
        flops_per_s: computing speed in FLOP/s.
        down_bps: download speed in bit/s.
        up_bps: upload speed in bit/s.
        compute_w: power drawn while computing, in watts.
        send_w: power drawn while sending, in watts.
        budget_j: energy budget per round in joules.
    """

    device: int = setting(MISSING, ge=0, lt=2**31)
    samples: int = setting(MISSING, ge=1, lt=2**31)
    network: str = setting(MISSING)
    inputs: str = setting("")
    software: str = setting("")
    torch: str = setting("")
    flops_per_s: float = setting(0.0, ge=0)
    down_bps: float = setting(0.0, ge=0)
    up_bps: float = setting(0.0, ge=0)
    compute_w: float = setting(0.0, ge=0)
    send_w: float = setting(0.0, ge=0)
    budget_j: float = setting(0.0, ge=0)

    def notes(self) -> dict[str, Note]:
        """Return the notes of a message."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def read(cls, notes: Mapping[str, Note]) -> Introduction:
        """Read the notes of a message; ConfigError if they are not an introduction."""
        if error := str(notes.get("error", "")):
            raise ConfigError(clean(error, LONGEST))
        try:
            return cls(**{field.name: notes[field.name] for field in fields(cls) if field.name in notes})  # type: ignore[arg-type]
        except TypeError:
            raise ConfigError(f"its introduction is incomplete: {shortened(dict(notes))}.") from None


DECLARED = ("flops_per_s", "down_bps", "up_bps", "compute_w", "send_w", "budget_j")
"""What a node may declare: keys of its configuration, with hyphens for underscores."""
