"""The interface of executors: parcels go out to devices, replies come back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from feddrop.subnets.parameters import Params


class Parcel(NamedTuple):
    """What an executor sends to a device: the device's number, a frame, and the device's memory."""

    device: int
    frame: bytes
    memory: bytes = b""


class Reply(NamedTuple):
    """A device's reply.

    Attributes:
        frame: the update.
        memory: the device's new memory.
        error: why there is no update; empty if there is one.
        seconds: computation time, by the device's clock.
        elapsed: seconds from sending to receiving, by the server's clock; 0 if unknown.
        forgot: whether the device lost its memory.
    """

    frame: bytes = b""
    memory: bytes = b""
    error: str = ""
    seconds: float = 0.0
    elapsed: float = 0.0
    forgot: bool = False


class Executor(Protocol):
    """Runs devices: takes parcels and yields replies in the same order, holding only a few at a time."""

    def compute(self, parcels: Iterable[Parcel]) -> Iterator[Reply]:
        """Let devices process their frames."""

    def evaluate(self, params: Params) -> dict[str, float]:
        """Return the mean loss and every measure of the full network on the test set."""

    def close(self) -> None:
        """Stop, and release all resources."""


class DeviceSide(Protocol):
    """The device side of a run, as an executor sees it; see :class:`feddrop.Device`."""

    def handle(self, frame: bytes, memory: bytes = b"") -> Reply:
        """Process one frame."""

    def load(self, values: Params) -> None:
        """Load the parameters to evaluate."""

    def evaluate(self, start: int) -> tuple[dict[str, float], int]:
        """Return summed measures over the chunk of the test set that begins at ``start``, and its size."""


class DeviceTask(Protocol):
    """Everything a worker needs to start its device side; see :class:`feddrop.Task`."""

    @property
    def samples(self) -> Any:
        """The data of all devices: a named tuple of tensors, or of tuples of tensors."""

    @property
    def test_starts(self) -> range:
        """Where the chunks of the test set begin."""

    @property
    def network_bytes(self) -> int:
        """Size of the full network."""

    def with_samples(self, samples: Any) -> DeviceTask:
        """Return the same task over other data."""

    def start(self) -> DeviceSide:
        """Start the device side."""
