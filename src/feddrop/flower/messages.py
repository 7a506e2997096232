"""What travels in a Flower message: one frame, and a few plain notes beside it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import nn

from feddrop import wire
from feddrop.errors import ConfigError, FrameError, clean, shortened
from feddrop.subnets import parameters

Note = str | int | float | bool
STYPE = "feddrop.frame"
_NAME = ""  # Flower counts the bytes of a name, too: without one it counts those of the frame
LONGEST = 500
"""Letters of what a node says that are shown."""


def pack(frame: bytes, **notes: Note) -> RecordDict:
    """Return the content of a message. What Flower counts of its arrays is the size of the frame."""
    array = Array(dtype="uint8", shape=(len(frame),), stype=STYPE, data=frame)
    return RecordDict({"frame": ArrayRecord({_NAME: array}), "notes": ConfigRecord(dict(notes))})


def unpack(content: RecordDict, most: float = math.inf) -> tuple[bytes, dict[str, Note]]:
    """Return the frame and the notes of a message that may hold anything.

    Args:
        content: what came.
        most: bytes that a frame can have.

    Raises:
        FrameError: it is nothing that :func:`pack` wrote, or larger than it can be.
    """
    arrays, notes = content.array_records.get("frame"), content.config_records.get("notes")
    if set(content) != {"frame", "notes"} or arrays is None or notes is None or set(arrays) != {_NAME}:
        raise FrameError(f"malformed: a message with {shortened(sorted(content))}; it must hold one frame and notes.")
    data = arrays[_NAME].data
    if len(data) > most:
        raise FrameError(f"oversized: {len(data)} bytes; no frame of this network has more than {most:.0f}.")
    return data, {name: value for name, value in notes.items() if isinstance(value, str | int | float | bool)}


def network_digest(model: nn.Module) -> str:
    """Return a text that stands for names and shapes of a network and for the format of frames."""
    told = json.dumps([wire.VERSION, parameters.shapes(model)])
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()


def largest_frame(model: nn.Module) -> int:
    """Return the bytes that no frame of a network exceeds: all values, and as many again for what travels besides."""
    return (1 << 16) + 8 * sum(math.prod(shape) for shape in parameters.shapes(model).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """What a node says of itself, once; speeds and energies are 0 where it does not say.

    Attributes:
        device: its device number.
        samples: training samples that it holds.
        network: :func:`network_digest` of the network that it trains.
        flops_per_s: floating-point operations that it computes in a second.
        down_bps: bits a second that it receives.
        up_bps: bits a second that it sends.
        compute_w: watts that computing takes.
        send_w: watts that sending takes.
        budget_j: joules that it may spend in a round.
    """

    device: int
    samples: int
    network: str
    flops_per_s: float = 0.0
    down_bps: float = 0.0
    up_bps: float = 0.0
    compute_w: float = 0.0
    send_w: float = 0.0
    budget_j: float = 0.0

    def __post_init__(self) -> None:
        for name in ("device", "samples"):
            value = getattr(self, name)
            if type(value) is not int or not (name == "samples") <= value < 2**31:
                raise ConfigError(
                    f"{name} is {shortened(value)}; it must be a whole number from {int(name != 'device')}."
                )
        for name in DECLARED:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ConfigError(
                    f"{name} is {shortened(value)}; it must be a number above 0, or 0 if it is not known."
                )

    def notes(self) -> dict[str, Note]:
        """Return it as notes of a message."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def read(cls, notes: Mapping[str, Note]) -> Introduction:
        """Read the notes of a message.

        Raises:
            ConfigError: they are not an introduction.
        """
        if error := str(notes.get("error", "")):
            raise ConfigError(clean(error, LONGEST))
        try:
            return cls(**{one.name: notes[one.name] for one in fields(cls) if one.name in notes})  # type: ignore[arg-type]
        except TypeError:
            raise ConfigError(f"its introduction is {shortened(dict(notes))}.") from None


DECLARED = ("flops_per_s", "down_bps", "up_bps", "compute_w", "send_w", "budget_j")
"""What a node may declare: keys of its configuration, with hyphens for underscores."""
