"""Local training on one device: minibatches and SGD on a subnet. Shared by every method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from feddrop import params
from feddrop.errors import ConfigError, one_of
from feddrop.method import Assignment, Batches, Update
from feddrop.params import Params
from feddrop.seeds import derive, permutation
from feddrop.subnets.piece import Piece, Subnet, from_device_shape, scatter

SCHEDULES = ("constant", "cosine", "linear")
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Local SGD.

    Attributes:
        lr: learning rate η in the first round.
        schedule: how the learning rate goes from ``lr`` to ``lr * lr_end`` over the rounds.
        lr_end: share of the learning rate left when the rounds are over (cosine, linear).
        momentum: momentum within a round; it starts anew in every round.
        weight_decay: L2 penalty.
        batch_size: samples a step.
        epochs: passes over the local data a round.
    """

    lr: float = 0.1
    schedule: str = "constant"
    lr_end: float = 0.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 32
    epochs: int = 1

    def __post_init__(self) -> None:
        one_of("train.schedule", self.schedule, SCHEDULES)
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ConfigError(f"train.lr is {self.lr!r}; it must be a number above 0.")
        for name, high in (("momentum", 1.0), ("weight_decay", math.inf), ("lr_end", math.inf)):
            if not 0.0 <= getattr(self, name) < high:
                raise ConfigError(f"train.{name} is {getattr(self, name)!r}; it must be a number in [0, {high:g}).")
        for name in ("batch_size", "epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"train.{name} is {getattr(self, name)!r}; it must be at least 1.")

    def lr_at(self, round_: int, rounds: int) -> float:
        """Return the learning rate of a round, from 1 to ``rounds``."""
        if self.schedule == "constant":
            return self.lr
        done = (round_ - 1) / rounds
        left = (1.0 + math.cos(math.pi * done)) / 2.0 if self.schedule == "cosine" else 1.0 - done
        return self.lr * (self.lr_end + (1.0 - self.lr_end) * left)


class LocalBatches:
    """The minibatches of one device in one round: each epoch in a new order, drawn from the device's seed."""

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        part: Tensor,
        config: TrainConfig,
        seed: int,
        device: torch.device | str = "cpu",
        *,
        lone: bool = True,
    ) -> None:
        """Take the samples ``x[part], y[part]``; nothing is copied but the batch under way.

        Batch norm cannot train on one sample: without ``lone``, one that is left over joins the minibatch before it.
        """
        self.samples = len(part)
        self._x, self._y, self._part, self._config, self._seed, self._device = x, y, part, config, seed, device
        self._lone = lone

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for epoch in range(self._config.epochs):
            order = permutation(derive(self._seed, "order", epoch), self.samples)
            batches = list(torch.split(self._part[torch.from_numpy(order)], self._config.batch_size))
            if not self._lone and len(batches) > 1 and len(batches[-1]) == 1:
                batches[-2:] = [torch.cat(batches[-2:])]
            for batch in batches:
                yield images_last(self._x[batch].to(self._device)), self._y[batch].to(self._device)


def images_last(x: Tensor) -> Tensor:
    """Lay images out with their channels last: the same numbers, and convolutions take up to a quarter less time."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def train(model: nn.Module, subnet: Subnet, batches: Batches, config: TrainConfig, *, lr: float, loss: Loss) -> float:
    """Train a network in place by SGD and return the mean loss over the samples seen.

    Where the subnet holds a tensor with zeros in between (weight level), gradients of dropped weights are zeroed before
    every step. A dropped weight starts at zero and gets no gradient, so neither momentum nor weight decay moves it.
    The step is torch.optim.SGD's, to the bit; importing that brings torch's compiler along, two seconds a process.
    """
    model.train()
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    weights = list(named.values())
    masks = [_mask(subnet[name], p.device) for name, p in named.items()]
    velocity: list[Tensor | None] = [None] * len(weights)
    total: Tensor | float = 0.0
    seen = 0
    for x, y in batches:
        value = loss(model(x), y)
        gradients: Sequence[Tensor | None] = torch.autograd.grad(value, weights, allow_unused=True)
        with torch.no_grad():
            for i, (w, g, mask) in enumerate(zip(weights, gradients, masks, strict=True)):
                if g is None:
                    continue
                if mask is not None:
                    g = g * mask  # not in place: autograd may give two weights one gradient
                if config.weight_decay:
                    g = g.add(w, alpha=config.weight_decay)
                if config.momentum:
                    g = velocity[i] = g.clone() if (v := velocity[i]) is None else v.mul_(config.momentum).add_(g)
                w.add_(g, alpha=-lr)
        total = total + value.detach() * len(y)
        seen += len(y)
    return float(total) / max(1, seen)


def _mask(piece: Piece, device: torch.device) -> Tensor | None:
    return None if piece.dense else scatter(torch.ones(piece.size), piece).to(device)


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor, *, loss: Loss, batch_size: int = 500) -> tuple[float, int]:
    """Return the summed loss and the number of right answers over these samples."""
    model.eval()
    where = next(model.parameters()).device
    total, right = 0.0, 0
    for xs, ys in zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True):
        outputs, targets = model(images_last(xs.to(where))), ys.to(where)
        total += float(loss(outputs, targets)) * len(ys)
        right += int((outputs.argmax(1) == targets).sum())
    return total, right


def trained(
    network: nn.Module,
    pieces: Subnet,
    values: Params,
    assignment: Assignment,
    batches: Batches,
    config: TrainConfig,
    *,
    lr: float,
    loss: Loss,
) -> Update:
    """Load a subnet's values into a network of its shapes, train it, and return how far it has moved."""
    params.load_into(network, values)
    mean_loss = train(network, pieces, batches, config, lr=lr, loss=loss)
    after = params.from_model(network)
    return Update(
        device=assignment.device,
        samples=batches.samples,
        loss=mean_loss,
        subnet=pieces,
        values={name: from_device_shape(after[name] - values[name], piece) for name, piece in pieces.items()},
    )
