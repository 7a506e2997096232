"""The interface of executors: parcels go out to devices, replies come back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
        sent: whether the frame was sent to the device.
    """

    frame: bytes = b""
    memory: bytes = b""
    error: str = ""
    seconds: float = 0.0
    elapsed: float = 0.0
    forgot: bool = False
    sent: bool = True


class Measured(NamedTuple):
    """What a device side measured on one chunk of samples.

    Attributes:
        sums: loss and measures, summed over the samples.
        size: number of samples.
        outputs: the network's outputs, if the run has metrics that need them.
    """

    sums: dict[str, float]
    size: int
    outputs: Any = None


class Computes(Protocol):
    """Takes parcels and yields replies in the same order, holding only a few at a time."""

    def compute(self, parcels: Iterable[Parcel]) -> Iterator[Reply]:
        """Let devices process their frames."""


class Executor(Computes, Protocol):
    """Runs devices and evaluates networks.

    With a method ``merge(shared, blocks)``, as the executors of the package have it, it can also run rounds in blocks
    (``execution.merge_block``): it lets device sides merge every block and yields their answers in order, or why a
    block was given up.
    """

    def evaluate(self, params: Params) -> dict[str, float]:
        """Return the mean loss and every measure of the full network on the test set."""

    def close(self) -> None:
        """Stop, and release all resources."""


class DeviceSide(Protocol):
    """The device side of a run, as an executor sees it; see :class:`feddrop.Device`."""

    def handle(self, frame: bytes, memory: bytes = b"") -> Reply:
        """Process one frame."""

    def merge(self, block: Any, shared: Any) -> Any:
        """Let the devices of a block train, and merge their updates; ``shared`` may be None if it has not changed."""

    def load(self, values: Params) -> None:
        """Load the parameters to evaluate."""

    def evaluate(self, chunk: Any) -> Measured:
        """Measure the loaded parameters on one of the task's ``chunks``."""


class DeviceTask(Protocol):
    """Everything a worker needs to start its device side; see :class:`feddrop.Task`."""

    @property
    def samples(self) -> Any:
        """The data of all devices: a named tuple of tensors, or of tuples of tensors."""

    @property
    def chunks(self) -> Sequence[Any]:
        """The chunks of samples on which a network is measured; each is an argument of ``DeviceSide.evaluate``."""

    @property
    def network_bytes(self) -> int:
        """Size of the full network."""

    @property
    def parallel(self) -> int:
        """The most workers that can be busy at once: devices, or chunks."""

    def combine(self, measured: Iterable[Measured]) -> dict[str, float]:
        """Return the mean loss, every measure and every metric from what was measured on ``chunks``, in order."""

    def for_worker(self, samples: Any) -> DeviceTask:
        """Return the same task for a worker: over its copy of the data, and without what only the server needs."""

    def start(self) -> DeviceSide:
        """Start the device side."""
