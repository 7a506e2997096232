"""FjORD, ordered dropout: nested widths of one network, of which every minibatch trains one.

A device holds the first units of every hidden layer, up to the largest share p_max that its rate allows. Each of its
minibatches draws one width p ≤ p_max, the same in all layers, and trains the first p of the units; so the trained
network can be cut to any of the widths. Activations have different statistics at every width, so
norm statistics are stored per width. ``docs/fjord.md`` lists the differences from the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from itertools import count

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from feddrop.config import FjORD
from feddrop.errors import FrameError, TrainingError
from feddrop.learning.batches import Inputs
from feddrop.learning.guard import LARGEST
from feddrop.learning.local import call_model, safe_layout
from feddrop.methods.method import (
    Batches,
    Job,
    Memory,
    Method,
    Payload,
    Setup,
    Sizes,
    Spec,
    State,
    Update,
    plan_jobs,
    train_subnet,
)
from feddrop.methods.windows import window
from feddrop.seeds import derive, philox_words
from feddrop.subnets import parameters
from feddrop.subnets.blueprint import Blueprint
from feddrop.subnets.masks import check_rate, kept_count
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Piece, Subnet, full_piece, gather
from feddrop.subnets.units import shrink, unit_pieces
from feddrop.wire.sections import sections_bytes


def build_fjord(setup: Setup, config: FjORD) -> Method:
    """Build FjORD. With the single width 1 it is federated averaging.

    Example:
        >>> from torch import nn, zeros
        >>> import feddrop
        >>> net = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 3))
        >>> setup = feddrop.Setup(model=net, example=zeros(1, 8), rounds=3)
        >>> method = feddrop.build_method(feddrop.FjORD(widths=(0.2, 0.6, 1.0)), setup)
        >>> {rate: method.sizes(rate).kept["0.weight"] for rate in (0.0, 0.5, 0.64, 0.99)}
        {0.0: 80, 0.5: 48, 0.64: 48, 0.99: 16}
    """
    it = _Fjord(setup, config)

    def at(state: State, params: Params, _: int, rate: float, __: int) -> nn.Module:
        return network_at(setup, config, params, state, config.widest(check_rate(rate)))

    lines = tuple(it.untrained_units())
    return Method(
        it.init, it.plan, it.cut, it.local, it.merge, it.sizes, it.answer, notes=it.notes, at=at, notices=lines
    )


def network_at(setup: Setup, config: FjORD, params_: Params, state: State, number: int) -> nn.Module:
    """Return the network at the width of this number, with the norm statistics of that width."""
    level = _Level(setup.model, setup.blueprint(), config.widths[number])
    values = {name: gather(params_[name], piece).reshape(piece.sub_shape) for name, piece in level.pieces.items()}
    if _key(number) in state:
        values |= level.split(state[_key(number)])
    network = shrink(setup.model, setup.blueprint().units, level.units)
    parameters.load_into(network, values)
    return network.eval()


class _Fjord:
    """The functions of FjORD; its attributes never change."""

    def __init__(self, setup: Setup, config: FjORD) -> None:
        self.setup, self.config = setup, config
        self.levels = [_Level(setup.model, setup.blueprint(), width) for width in config.widths]

    def init(self, start: Params) -> State:
        kept = {
            _key(number): _joined([gather(start[name], level.pieces[name]) for name in level.statistics])
            for number, level in enumerate(self.levels[:-1])
            if level.statistics
        }
        return {**kept, "steps": torch.zeros(len(self.levels), dtype=torch.int64)}

    def plan(self, state: State, _: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
        return [self._job(job, state) for job in plan_jobs(round_, rates, seed)]

    def _job(self, job: Job, state: State) -> Job:
        top = self.config.widest(job.rate)
        sent = {_key(number): state[_key(number)] for number in self._apart(top)}
        return replace(job, payload=sent, asks=self._asks(top))

    def cut(self, job: Job) -> Subnet:
        level, top = self.levels[self.config.widest(job.rate)], self.config.widest(job.rate)
        if top == len(self.levels) - 1:
            return level.pieces
        nothing = np.empty(0, np.int64)  # the parameters hold the statistics of the full width
        return {
            name: Piece(shape=piece.shape, index=nothing, sub_shape=(0,)) if name in level.statistics else piece
            for name, piece in level.pieces.items()
        }

    def local(
        self, pieces: Subnet, values: Params, job: Job, batches: Batches, memory: Memory
    ) -> tuple[Update, Memory]:
        top = self.config.widest(job.rate)
        for level in self.levels[: top + 1]:
            level.network.train()
            parameters.load_into(level.network, parameters.counters(self.setup.model))
        for number in self._apart(top):
            parameters.load_into(self.levels[number].network, self.levels[number].split(job.payload[_key(number)]))
        draws = _Draws(job.seed, self.config, top)
        network = self.levels[top].network
        update = train_subnet(
            self.setup, network, pieces, values, job, batches, objective=partial(self._objective, draws)
        )
        payload = {"steps": torch.tensor(draws.steps, dtype=torch.int32)}
        for number in self._apart(top):
            now = parameters.from_model(self.levels[number].network)
            payload[_key(number)] = _joined([now[name] for name in self.levels[number].statistics])
        return replace(update, payload=payload), memory

    def _objective(self, draws: _Draws, network: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        """Return the loss of a minibatch at a drawn width; with distillation, that of p_max and of a smaller width."""
        number = draws.next()
        if not self.config.distill or draws.top == 0:
            return self.setup.loss(self._outputs(network, number, draws.top, x), y)
        if y.is_floating_point():
            raise TrainingError("method.distill needs classes as targets, but they are floats. Remove it.")
        wide = call_model(network, x)
        narrow = self._outputs(network, number, draws.top, x)
        return self.setup.loss(wide, y) + nn.functional.cross_entropy(narrow, wide.detach().softmax(1))

    def _outputs(self, network: nn.Module, number: int, top: int, x: Inputs) -> Tensor:
        """Run the first units of a network on views of its tensors, so that gradients reach them."""
        if number == top:
            return call_model(network, x)
        level = self.levels[number]
        named = [*network.named_parameters(), *network.named_buffers()]
        cut = {name: level.first_units(name, tensor) for name, tensor in named if name not in level.statistics}
        out: Tensor = functional_call(level.network, cut, safe_layout(level.network, x))
        return out

    def answer(self, job: Job, payload: Payload) -> Subnet:
        steps = payload["steps"]
        if int(steps.min()) < 0:
            raise FrameError(
                f"device {job.device} reports {steps.tolist()} steps at its widths; they must not be negative."
            )
        for number in self._apart(len(steps) - 1):
            self._check_statistics(job, number, payload[_key(number)])
        return self.cut(job)

    def _check_statistics(self, job: Job, number: int, new: Tensor) -> None:
        """Raise a FrameError if norm statistics have a negative variance, or change by more than weights may."""
        change = float((new - job.payload[_key(number)]).abs().max())
        parts = self.levels[number].split(new).items()
        least = min((float(part.min()) for name, part in parts if parameters.is_variance(name)), default=0.0)
        if not change <= LARGEST or least < 0:
            raise FrameError(
                f"device {job.device} sent norm statistics at width {self.config.widths[number]:g} that change by "
                f"{change:.3g}, with a smallest variance of {least:.3g}: training diverged. Lower the learning rate."
            )

    def merge(self, state: State, before: Params, updates: Iterable[tuple[Job, Update]]) -> tuple[Params, State]:
        """Average every entry over the devices that hold it: those with p_max ≥ p, for what width p adds."""
        apart = {key: tensor for key, tensor in state.items() if key != "steps"}
        mean = self.setup.mean_of({**before, **apart}, over="holders")
        steps = torch.zeros(len(self.levels), dtype=torch.int64)
        for _, update in updates:
            for name, piece in update.subnet.items():
                mean.add(name, update.values[name], piece, update.weight)
            taken = update.payload["steps"]
            steps[: len(taken)] += taken
            for number in self._apart(len(taken) - 1):
                if taken[number]:  # the statistics of a width without minibatches did not change
                    old = state[_key(number)]
                    change = update.payload[_key(number)] - old
                    mean.add(_key(number), change, full_piece(tuple(old.shape)), update.weight)
        changes = mean.mean()
        after = {name: before[name] + changes[name] for name in before}
        kept = {_key(n): self.levels[n].moved(state[_key(n)], changes[_key(n)]) for n in self._apart(len(self.levels))}
        return after, {**kept, "steps": steps}

    def sizes(self, rate: float) -> Sizes:
        top = self.config.widest(rate)
        kept = {name: piece.size for name, piece in self.cut(Job(round=1, device=0, seed=0, rate=rate)).items()}
        asked = self._asks(top)
        down = {name: spec for name, spec in asked.items() if name != "steps"}
        return Sizes(
            kept=kept,
            push_bytes=sections_bytes(down),
            pull_bytes=sections_bytes(asked),
            work=2.0 if self.config.distill and top else 1.0,
        )

    def notes(self, state: State) -> dict[str, float]:
        steps = state["steps"].tolist()
        mean = sum(width * taken for width, taken in zip(self.config.widths, steps, strict=True)) / max(1, sum(steps))
        by_width = {f"steps_{width:g}": float(n) for width, n in zip(self.config.widths, steps, strict=True)}
        return {"width": mean, **by_width}

    def _apart(self, top: int) -> list[int]:
        """Return the indices of the widths up to ``top`` whose norm statistics are sent in the payload."""
        return [n for n, level in enumerate(self.levels[:-1]) if n <= top and level.statistics]

    def _asks(self, top: int) -> dict[str, Spec]:
        sizes = {_key(n): Spec("float32", (self.levels[n].statistics_size,)) for n in self._apart(top)}
        return {"steps": Spec("int32", (top + 1,)), **sizes}

    def untrained_units(self) -> Iterator[str]:
        """Report units that no device trains."""
        if self.setup.rates is None:
            return
        widest = self.config.widths[max(map(self.config.widest, self.setup.rates))]
        if widest < 1.0:
            yield (
                f"no device trains more than width {widest:g}: the other units keep their initial values, but the full "
                "network is tested. Give a device rate 0."
            )


class _Level:
    """One width of the network.

    Attributes:
        units: number of units in every group.
        pieces: the piece of every tensor.
        statistics: names and sizes of the norm statistics.
    """

    def __init__(self, model: nn.Module, blueprint: Blueprint, width: float) -> None:
        self._model, self._graph, self._width = model, blueprint.units, width
        self.units = {group: kept_count(units, width) for group, units in self._graph.groups.items()}
        kept = {group: window(0, group, units, width) for group, units in self._graph.groups.items()}
        self.pieces: Subnet = {
            name: Piece(shape=piece.shape, index=piece.index, sub_shape=piece.sub_shape)  # unscaled
            for name, piece in unit_pieces(
                self._graph, blueprint.shapes, {group: index for group, index in kept.items() if index is not None}
            ).items()
        }
        self.statistics = {name: piece.size for name, piece in self.pieces.items() if parameters.is_statistic(name)}
        self.statistics_size = sum(self.statistics.values())

    @cached_property
    def network(self) -> nn.Module:
        """A network of this width, created on first use; at full width the model itself."""
        return self._model if self._width == 1.0 else shrink(self._model, self._graph, self.units)

    def first_units(self, name: str, tensor: Tensor) -> Tensor:
        """Return the part of a tensor of a wider network that this width holds; a view unless its units repeat."""
        for axis in self._graph.axes.get(name, ()):
            dim, size = axis.dim, axis.block * self.units[axis.group]
            if axis.repeats == 1:
                tensor = tensor.narrow(dim, 0, size)
            else:
                parts = tensor.unflatten(dim, (axis.repeats, -1))  # type: ignore[no-untyped-call]
                tensor = parts.narrow(dim + 1, 0, size).flatten(dim, dim + 1)
        return tensor

    def split(self, flat: Tensor) -> Params:
        """Split concatenated norm statistics by name."""
        parts = torch.split(flat, list(self.statistics.values()))
        return dict(zip(self.statistics, parts, strict=True))

    def moved(self, flat: Tensor, change: Tensor) -> Tensor:
        """Return concatenated norm statistics after a change; variances that rounding made negative are reset."""
        return torch.cat(
            list(parameters.without_negative_variances(self.split(flat), self.split(flat + change)).values())
        )


class _Draws:
    """The widths of a device's minibatches in a round, drawn from its seed, and how often each was drawn."""

    def __init__(self, seed: int, config: FjORD, top: int) -> None:
        self.top, self.steps = top, [0] * (top + 1)
        self._distill = config.distill and top > 0
        self._choices = top if self._distill else top + 1  # with distillation, a width below p_max learns from p_max
        self._seed, self._count = derive(seed, "width"), count()

    def next(self) -> int:
        (word,) = philox_words(derive(self._seed, next(self._count)), 1).tolist()
        number = word * self._choices >> 32
        self.steps[number] += 1
        self.steps[self.top] += self._distill
        return int(number)


def _joined(statistics: list[Tensor]) -> Tensor:
    """Concatenate norm statistics; they are sent as float32, whatever the network's dtype."""
    return torch.cat(statistics).float()


def _key(number: int) -> str:
    return f"statistics/{number}"
