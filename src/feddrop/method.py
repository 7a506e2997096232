"""The one interface: what a method of federated training over subnets is.

A method is five pure functions; its state is passed in and out. The server calls ``init``, ``plan`` and ``merge``; the
device calls ``local``; both call ``cut``, and get the same subnet. Nothing in a method knows how devices are run.

How other methods fit: where a mask follows from the data (FedDST, PruneFL) it stands in ``Assignment.masks`` and
travels as bits, unless the device remembers it; a device that changes its mask or chooses what to upload after training
(FedDST, FedDD) says so in ``Update.masks``; width per minibatch (FjORD) is a matter of ``local`` alone; what is not a
weight (PruneFL's scores) travels in a frame of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from feddrop.params import Params
from feddrop.subnets.frames import Masks
from feddrop.subnets.piece import Subnet

State = dict[str, Tensor]
"""What a method remembers between rounds: tensors by name, so that it can be saved safely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one device is to do in one round.

    Attributes:
        round: round, from 1.
        device: device number, from 0.
        seed: the device's seed for this round: every random choice of this device in this round comes from it.
        rate: dropout rate γ.
        level: ``"weight"`` or ``"unit"``.
        masks: for methods whose masks no seed regenerates: what is kept, by tensor.
        remembered: whether the device has these masks from an earlier round, so that they need not travel again.
        readjusts: whether the device is to answer with masks of its own.
    """

    round: int
    device: int
    seed: int
    rate: float
    level: str = "weight"
    masks: Masks | None = None
    remembered: bool = False
    readjusts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one device sends back.

    Attributes:
        device: device number.
        samples: samples trained on, |D_k|.
        loss: mean training loss.
        subnet: what the values belong to.
        values: change of every tensor of the subnet, flat kept values ``[size]``.
        masks: a new mask that the device asks for, by tensor.
    """

    device: int
    samples: int
    loss: float
    subnet: Subnet
    values: Mapping[str, Tensor]
    masks: Masks | None = None


class Batches(Protocol):
    """The minibatches of one device in one round, all local epochs one after another."""

    samples: int

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (inputs, targets)."""
        ...


class Method(NamedTuple):
    """Five functions that make a method.

    Attributes:
        init: ``params -> state``.
        plan: ``(state, params, round, rates, seed) -> assignments``; rates by device number, only of devices that take
            part; seed is the run's root seed.
        cut: ``assignment -> subnet``, the same at server and device.
        local: ``(subnet, values, assignment, batches) -> update``; values in the device's shapes.
        merge: ``(state, params, updates) -> (params, state)``; updates arrive one by one and are never all held.
    """

    init: Callable[[Params], State]
    plan: Callable[[State, Params, int, Mapping[int, float], int], list[Assignment]]
    cut: Callable[[Assignment], Subnet]
    local: Callable[[Subnet, Params, Assignment, Batches], Update]
    merge: Callable[[State, Params, Iterable[Update]], tuple[Params, State]]


MethodFactory = Callable[[nn.Module, tuple[int, ...]], Method]
"""Builds a method for a network and its input shape; picklable, so that worker processes can build their own."""
