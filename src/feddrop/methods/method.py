"""The interface of a method for federated training over subnets.

A method is a small tuple of pure functions; its state is passed in and out. The server calls ``init``, ``plan`` and
``merge``, the device calls ``local``; both call ``cut`` and get the same subnet. A method does not know how devices are
executed, and no other code depends on a particular method.

Tensors that no seed can regenerate (masks that depend on data, scores, statistics) go into ``Job.payload`` or
``Update.payload``: they are sent as sections of the frame, checked, and their bytes are counted. What a device must
remember for later rounds goes into its memory, which ``local`` receives and returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from feddrop.config import Server, Train
from feddrop.errors import ConfigError, RunError, shortened
from feddrop.learning.batches import Inputs
from feddrop.learning.local import Gradients, Loss, Objective, train_network
from feddrop.learning.means import Mean, Means
from feddrop.seeds import derive
from feddrop.subnets import parameters
from feddrop.subnets.blueprint import Blueprint
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Piece, Subnet, from_device_shape

State = dict[str, Tensor]
"""The state of a method at the server between rounds: tensors by name, so that it can be saved safely."""

Memory = dict[str, Tensor]
"""The memory of one device between rounds, likewise."""

Payload = Mapping[str, Tensor]
"""Named tensors that are sent along with the values."""


class Spec(NamedTuple):
    """The required dtype (by name) and shape of a payload tensor."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The task of one device in one round.

    Attributes:
        round: round, from 1.
        device: device number, from 0.
        seed: the device's seed for this round, from which all its random choices are derived.
        rate: dropout rate γ.
        payload: tensors that the device needs and no seed can regenerate.
        remembered: names in ``payload`` that the device has in its memory; a digest is sent instead, so that a device
            with another tensor notices.
        asks: the payload that the update must have; the server refuses any other.
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
    """The reply of one device.

    Attributes:
        device: device number.
        num_samples: number of samples trained on, |D_k|.
        loss: mean training loss.
        subnet: the subnet that the values belong to.
        values: change of every tensor of the subnet, flat kept values ``[size]``.
        payload: the tensors that the job asked for.
        weight: the update's weight in the mean: its samples, unless ``[server]`` limits or replaces them.
    """

    device: int
    num_samples: int
    loss: float
    subnet: Subnet
    values: Mapping[str, Tensor]
    payload: Payload = field(default_factory=dict)
    weight: float = math.nan

    def __post_init__(self) -> None:
        if math.isnan(self.weight):
            object.__setattr__(self, "weight", float(self.num_samples))


class Batches(Protocol):
    """The minibatches of one device in one round, over all local epochs."""

    num_samples: int

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield (inputs, targets)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Upper bounds on the cost of a subnet at some rate, from which the radio computes deadlines.

    Attributes:
        kept: number of values of every tensor sent to the device, and back unless ``answered`` is given.
        push_bytes: bytes of payload sections sent to the device.
        pull_bytes: bytes of payload sections sent back.
        work: computation as a multiple of training these values once; above 1 for methods that run a minibatch more
            than once.
        answered: number of values of every tensor sent back, if different.
    """

    kept: Mapping[str, int]
    push_bytes: int = 0
    pull_bytes: int = 0
    work: float = 1.0
    answered: Mapping[str, int] | None = None


class Method(NamedTuple):
    """The functions of a method; the others are optional.

    Attributes:
        init: ``params -> state``.
        plan: ``(state, params, round, rates, seed) -> jobs``; rates by number of the devices that take part; seed is
            the run's root seed.
        cut: ``job -> subnet``, the same at server and device.
        local: ``(subnet, values, job, batches, memory) -> (update, memory)``; values in the device's shapes,
            on ``execution.torch_device``.
        merge: ``(state, params, jobs and updates) -> (params, state)``; updates arrive one by one and are never all
            held.
        sizes: ``rate -> Sizes``, which must not grow with the rate; None if the method cannot take rates from a radio.
        answer: ``(job, payload) -> subnet``: checks the payload of an update and returns the subnet of its values;
            raises FrameError. Without it, this is the subnet of the job.
        settle: ``(state, params) -> params``: masks the parameters after a server step, for methods whose network is
            sparse itself.
        notes: ``state -> numbers`` for the record of the round.
        at: ``(state, params, round, rate, seed) -> network``: the sub-model of a device at a given rate, in evaluation
            mode, for ``eval_rates`` and ``load_model(folder, rate=...)``; methods of the package have it.
        returns_weights: whether devices return weights, because they train weights that the server does not know; the
            server subtracts its own, so that guard and ``merge`` get changes.
        linear: ``merge`` again if it uses updates only by adding them to the means of :meth:`Setup.mean_of`, and
            returns its state unchanged; ``execution.merge_block`` needs this. It says nothing of another ``merge`` that
            replaces this one.
        notices: one line per thing that works but is probably not intended; the run logs and records them.
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
    at: Callable[[State, Params, int, float, int], nn.Module] | None = None
    returns_weights: bool = False
    linear: Callable[[State, Params, Iterable[tuple[Job, Update]]], tuple[Params, State]] | None = None
    notices: tuple[str, ...] = ()

    @property
    def is_linear(self) -> bool:
        """Whether ``merge`` is the function that ``linear`` names."""
        return self.linear == self.merge


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a method is built from; a factory is ``(setup, settings) -> Method``.

    Attributes:
        model: the network: a template, in which subnets of full shape are trained.
        example: inputs of one sample, ``[1, ...]``, for tracing and counting.
        rounds: total number of rounds.
        train: settings of local training.
        loss: ``(outputs, targets) -> mean loss``.
        rates: the user's rates, one per device; None if the radio decides them.
        server: settings of the server, such as the kind of mean.
        seed: the run's root seed, for draws outside ``plan``: ``derive(setup.seed, "my draws", round)``.
    """

    model: nn.Module
    example: Inputs
    rounds: int
    train: Train = field(default_factory=Train)
    loss: Loss = nn.functional.cross_entropy
    rates: Sequence[float] | None = None
    server: Server = field(default_factory=Server)
    seed: int = 0
    _known: list[Blueprint] = field(default_factory=list, repr=False, compare=False)
    _means: list[Means] = field(default_factory=list, repr=False, compare=False)

    def blueprint(self) -> Blueprint:
        """Return the network's blueprint, which is read once, also for copies of this setup."""
        if not self._known:
            self._known.append(Blueprint(self.model, self.example))
        return self._known[0]

    @property
    def means(self) -> Means:
        """The means that :meth:`mean_of` has returned, also for copies of this setup."""
        if not self._means:
            self._means.append(Means())
        return self._means[0]

    def lr(self, round_: int) -> float:
        """Return the learning rate of a round."""
        return self.train.lr_at(round_, self.rounds)

    def mean_of(self, like: Params, *, over: str) -> Mean:
        """Return an empty mean of the kind ``server.mean``, ``over`` ``"all"`` devices or each entry's ``"holders"``.

        Add every update with ``mean.add(name, values, piece, weight)`` and ``mean.count(weight)``; ``mean.mean()`` is
        the result.
        """
        return self.means.open(Mean(like, self.server, over=over))

    def average(self, params: Params, updates: Iterable[tuple[Job, Update]], *, over: str = "holders") -> Params:
        """Return the parameters plus the mean of the updates, of the kind ``server.mean``.

        Args:
            params: the full network.
            updates: jobs and updates, as ``merge`` gets them.
            over: ``"holders"`` averages each entry over the devices that hold it; with ``"all"``, a device that does
                not hold an entry counts as no change. Entries without holders do not change.
        """
        mean = self.mean_of(params, over=over)
        for _, update in updates:
            for name, piece in update.subnet.items():
                mean.add(name, update.values[name], piece, update.weight)
            mean.count(update.weight)
        return mean.applied_to(params)

    def one_rate(self, method: str) -> float:
        """Return the rate of all devices, for methods that need it to be the same."""
        if self.rates is None or len(set(self.rates)) != 1:
            source = "a scheme sets one rate per device" if self.rates is None else "rate differs between devices"
            raise ConfigError(
                f"{source}, but {method!r} needs the same for all. Give rate as one number; in a cell, with "
                'radio.scheme = "fixed", or set radio.scheme = "common".'
            )
        return self.rates[0]


def plan_jobs(round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
    """Return the jobs of a round without payload, in device order, each with its derived seed.

    Args:
        round_: round, from 1.
        rates: dropout rate of every device that takes part, by device number.
        seed: the run's root seed.
    """
    return [
        Job(round=round_, device=device, seed=derive(seed, "device", round_, device), rate=rate)
        for device, rate in sorted(rates.items())
    ]


def checked_state(state: State, what: str) -> State:
    """Return the state that a method's function ``what`` returned if it can be saved; otherwise raise a RunError."""
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise RunError(f"the method's {what} returns the state {shortened(state)}; it must be a dictionary of tensors.")
    return state


def checked_subnet(subnet: Any) -> Subnet:
    """Return the subnet that a method's ``cut`` returned if it is one; otherwise raise a RunError."""
    if not isinstance(subnet, dict) or not all(isinstance(piece, Piece) for piece in subnet.values()):
        raise RunError(
            f"the method's cut returns {shortened(subnet)}; it must return a subnet: a Piece for each tensor, by name."
        )
    return subnet


def checked_reply(reply: Any) -> tuple[Update, Memory]:
    """Return the update and memory that a method's ``local`` returned if they are; otherwise raise a RunError."""
    update, memory = reply if isinstance(reply, tuple) and len(reply) == 2 else (None, None)
    if not isinstance(update, Update) or not isinstance(memory, dict):
        raise RunError(
            f"the method's local returns {shortened(reply)}; it must return (update, memory): a feddrop.Update and a "
            "dictionary of tensors."
        )
    return update, memory


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
    """Load a subnet's values into a network of its shapes, train it, and return the change.

    Tensors without values (norm statistics of another width) keep those of the network.

    Args:
        setup: what the method was built from.
        network: a network with the shapes of the subnet.
        subnet: the subnet to train.
        values: its values, in the device's shapes.
        job: the device's job.
        batches: the device's minibatches.
        loss: minimised instead of the loss of the setup.
        objective: minimised instead of the loss of the network's outputs.
        watch: called with the gradients of every minibatch, before they are changed.
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
    after = parameters.live(network)
    moved = {
        name: from_device_shape(tensor_change(values[name], after[name]), piece).to("cpu")
        if values[name].numel()
        else torch.empty(0)
        for name, piece in subnet.items()
    }
    return Update(device=job.device, num_samples=batches.num_samples, loss=mean, subnet=subnet, values=moved)


def tensor_change(sent: Tensor, after: Tensor) -> Tensor:
    """Return the change of a tensor from the value sent, rounded to the network's dtype as the network was.

    It is on the device of the tensor; the value sent may be on another.
    """
    return after - sent.to(after.device, after.dtype).to(sent.dtype)


MethodFactory = Callable[[Setup], Method]
"""Builds a method; it can be pickled, so that worker processes can build the method too."""
