"""The one interface: what a method of federated training over subnets is.

A method is a small tuple of pure functions; its state is passed in and out. The server calls ``init``, ``plan`` and
``merge``, the device calls ``local``; both call ``cut``, and get the same subnet. Nothing in a method knows how devices
are run, and nothing outside knows a method by name.

What no seed regenerates (a mask that follows from the data, scores, statistics) is a named tensor in ``Job.payload``
or ``Update.payload``: it travels in a section of the frame, is checked, and its bytes are counted. What a device is to
know again in a later round goes into its memory, which ``local`` is given and gives back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from feddrop.config import Train
from feddrop.errors import ConfigError, RunError, shortened
from feddrop.learning.batches import Inputs
from feddrop.learning.local import Gradients, Loss, Objective, train_network
from feddrop.learning.means import Mean, MeanConfig
from feddrop.seeds import derive
from feddrop.subnets import parameters
from feddrop.subnets.blueprint import Blueprint
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Subnet, from_device_shape

State = dict[str, Tensor]
"""What a method remembers at the server between rounds: tensors by name, so that it can be saved safely."""

Memory = dict[str, Tensor]
"""What one device remembers between rounds, likewise."""

Payload = Mapping[str, Tensor]
"""Named tensors that travel beside the values."""


class Spec(NamedTuple):
    """What a payload tensor must be: its dtype, as the wire names it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one device is to do in one round.

    Attributes:
        round: round, from 1.
        device: device number, from 0.
        seed: the device's seed for this round: every random choice of this device in this round comes from it.
        rate: dropout rate γ.
        payload: what the device must know besides, and no seed regenerates.
        remembered: names in ``payload`` that the device has in its memory from an earlier round: a digest travels in
            their place, so that a device which remembers something else notices.
        asks: what the update must carry in its payload; known to the server, which refuses anything else.
    """

    round: int
    device: int
    seed: int
    rate: float
    payload: Payload = field(default_factory=dict)
    remembered: frozenset[str] = frozenset()
    asks: Mapping[str, Spec] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one device sends back.

    Attributes:
        device: device number.
        num_samples: samples trained on, |D_k|.
        loss: mean training loss.
        subnet: what the values belong to.
        values: change of every tensor of the subnet, flat kept values ``[size]``.
        payload: what the job asked for besides.
    """

    device: int
    num_samples: int
    loss: float
    subnet: Subnet
    values: Mapping[str, Tensor]
    payload: Payload = field(default_factory=dict)


class Batches(Protocol):
    """The minibatches of one device in one round, all local epochs one after another."""

    num_samples: int

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield (inputs, targets)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a subnet of some rate costs, so that the radio can promise a deadline.

    Attributes:
        kept: values of every tensor that travel down, and up where nothing else is said.
        push_bytes: bytes of payload sections down, at most.
        pull_bytes: bytes of payload sections up, at most.
        work: what a device computes, at most, as a multiple of training these values once; more than 1 for methods that
            run a minibatch more than once.
        answered: values of every tensor that travel up, at most, where they are others than those that travel down.
    """

    kept: Mapping[str, int]
    push_bytes: int = 0
    pull_bytes: int = 0
    work: float = 1.0
    answered: Mapping[str, int] | None = None


class Method(NamedTuple):
    """The functions that make a method; the last four may be left out.

    Attributes:
        init: ``params -> state``.
        plan: ``(state, params, round, rates, seed) -> jobs``; rates by device number, only of devices that take part;
            seed is the run's root seed.
        cut: ``job -> subnet``, the same at server and device.
        local: ``(subnet, values, job, batches, memory) -> (update, memory)``; values in the device's shapes.
        merge: ``(state, params, jobs and updates) -> (params, state)``; they arrive one by one and are never all held.
        sizes: ``rate -> Sizes``, which must not grow with the rate; None where the method takes no rates from a radio.
        answer: ``(job, payload) -> subnet``: checks what a device sent besides its values and says which subnet the
            values belong to; raises FrameError. Without it, they belong to the subnet of the job.
        settle: ``(state, params) -> params``: what the method holds of these parameters, for methods whose network is
            itself sparse; called after a server step.
        notes: ``state -> numbers`` for the record of the round.
    """

    init: Callable[[Params], State]
    plan: Callable[[State, Params, int, Mapping[int, float], int], list[Job]]
    cut: Callable[[Job], Subnet]
    local: Callable[[Subnet, Params, Job, Batches, Memory], tuple[Update, Memory]]
    merge: Callable[[State, Params, Iterable[tuple[Job, Update]]], tuple[Params, State]]
    sizes: Callable[[float], Sizes] | None = None
    answer: Callable[[Job, Payload], Subnet] | None = None
    settle: Callable[[State, Params], Params] | None = None
    notes: Callable[[State], Mapping[str, float]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a method is built for; a factory is ``(setup, settings) -> Method``.

    Attributes:
        model: the network; a template, and the place where whole subnets are trained.
        example: inputs of one sample, ``[1, ...]``: what tracing and counting run through the network.
        rounds: rounds in all.
        train: local training.
        loss: ``(outputs, targets) -> mean loss``.
        rates: the rates that the user gave, one a device; None where a radio decides them.
        mean: how updates are averaged.
        seed: the run's root seed, for what is drawn outside of ``plan``: ``derive(setup.seed, "my draws", round)``.
    """

    model: nn.Module
    example: Inputs
    rounds: int
    train: Train = field(default_factory=Train)
    loss: Loss = nn.functional.cross_entropy
    rates: Sequence[float] | None = None
    mean: MeanConfig = field(default_factory=MeanConfig)
    seed: int = 0
    _known: list[Blueprint] = field(default_factory=list, repr=False, compare=False)

    def blueprint(self) -> Blueprint:
        """Return what cutting needs to know of the network; read off once, also for copies of this setup."""
        if not self._known:
            self._known.append(Blueprint(self.model, self.example))
        return self._known[0]

    def lr(self, round_: int) -> float:
        """Return the learning rate of a round."""
        return self.train.lr_at(round_, self.rounds)

    def mean_of(self, like: Params, *, over: str) -> Mean:
        """Return an empty mean of updates, ``over`` ``"all"`` devices or the ``"holders"`` of each entry."""
        return Mean(like, self.mean, over=over)

    def one_rate(self, method: str) -> float:
        """Return the one rate that all devices were given, for methods that know only one."""
        if self.rates is None:
            raise ConfigError(
                f"[radio] decides a rate for every device, and {method!r} has one for all. Remove [radio]."
            )
        if len(set(self.rates)) != 1:
            raise ConfigError(f"rate differs between devices, and {method!r} has one for all. Give one number.")
        return self.rates[0]


def plan_jobs(round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
    """Return the plain jobs of a round, in device order, each with a seed of its own."""
    return [
        Job(round=round_, device=device, seed=derive(seed, "device", round_, device), rate=rate)
        for device, rate in sorted(rates.items())
    ]


def checked_state(state: State, what: str) -> State:
    """Return what a method's function ``what`` gave as its state if it can be saved, else raise a RunError."""
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise RunError(f"the method's {what} gives the state {shortened(state)}; it must be a dictionary of tensors.")
    return state


def train_subnet(
    setup: Setup,
    network: nn.Module,
    subnet: Subnet,
    values: Params,
    job: Job,
    batches: Batches,
    loss: Loss | None = None,
    *,
    objective: Objective | None = None,
    watch: Callable[[Gradients], None] | None = None,
) -> Update:
    """Load a subnet's values into a network of its shapes, train it, and return how far it has moved.

    ``loss`` stands in place of the setup's; ``objective`` and ``watch`` are those of
    :func:`feddrop.learning.local.train_network`. What no value travels of (norm statistics of another width) stays as the
    network has it.
    """
    parameters.load_into(network, {name: value for name, value in values.items() if value.numel()})
    mean = train_network(
        network,
        subnet,
        batches,
        setup.train,
        lr=setup.lr(job.round),
        loss=loss or setup.loss,
        objective=objective,
        watch=watch,
    )
    after = parameters.from_model(network)
    moved = {
        name: from_device_shape(tensor_change(values[name], after[name]), piece) if values[name].numel() else torch.empty(0)
        for name, piece in subnet.items()
    }
    return Update(device=job.device, num_samples=batches.num_samples, loss=mean, subnet=subnet, values=moved)


def tensor_change(sent: Tensor, after: Tensor) -> Tensor:
    """Return how far a tensor moved from what was sent, as the network holds it: float16 may round what int8 sent."""
    return after - sent.to(after.dtype).to(sent.dtype)


MethodFactory = Callable[[Setup], Method]
"""Builds a method; picklable, so that worker processes can build their own."""
