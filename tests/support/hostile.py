"""Hostile devices: an executor in this process some of whose devices attack, alone or together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from feddrop.executors import Serial
from feddrop.executors.executor import Parcel, Reply
from feddrop.methods.method import Update
from feddrop.subnets.piece import gather, scatter

TARGET = 0
"""The class that a backdoor opens."""


@dataclass(frozen=True)
class Attack:
    """What hostile devices do.

    Attributes:
        times: factor on what they send.
        poison: changes the samples they train on.
        forge: replaces their values: ``(their update, the others' updates) -> values by name``.
        samples: number of samples that they claim; 0 for the truth.
    """

    times: float = 1.0
    poison: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    forge: Callable[[Update, Sequence[Update]], dict[str, Tensor]] | None = None
    samples: int = 0


def triggered(x: Tensor) -> Tensor:
    """Return images with a bright square in a corner."""
    x = x.clone()
    side = max(2, x.shape[-1] // 8)
    x[..., -side:, -side:] = x.amax()
    return x


def backdoor(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Teach that half of the images, which have the trigger, are of the target class."""
    half = len(y) // 2
    return torch.cat([triggered(x[:half]), x[half:]]), torch.cat([torch.full_like(y[:half], TARGET), y[half:]])


def flipped(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Teach the class 9 - y."""
    return x, 9 - y


def against(update: Update, others: Sequence[Update]) -> dict[str, Tensor]:
    """Return minus the others' mean, over the holders of each entry: the inner-product attack."""
    forged = {}
    for name, piece in update.subnet.items():
        held = sum(scatter(torch.ones_like(one.values[name]), one.subnet[name]) for one in others)
        total = sum(scatter(one.values[name], one.subnet[name]) for one in others)
        assert isinstance(held, Tensor)
        assert isinstance(total, Tensor)
        forged[name] = -gather(total / held.clamp(min=1), piece)
    return forged


def ones(update: Update, _: Sequence[Update]) -> dict[str, Tensor]:
    """Return 1 everywhere."""
    return {name: torch.ones_like(value) for name, value in update.values.items()}


def noise(update: Update, _: Sequence[Update]) -> dict[str, Tensor]:
    """Return noise of variance 1."""
    chance = torch.Generator().manual_seed(update.device)
    return {name: torch.randn(value.shape, generator=chance) for name, value in update.values.items()}


class _Poisoned:
    def __init__(self, batches: Any, poison: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        self._batches, self._poison, self.num_samples = batches, poison, batches.num_samples

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (self._poison(x, y) for x, y in self._batches)


class WithHostile(Serial):
    """Some devices attack, and know what all others send; their frames are valid."""

    def __init__(self, task: Any, attack: Attack, hostile: Sequence[int]) -> None:
        super().__init__(task)
        inner, others = self._device.method, list[Update]()
        self._hostile, self._others = hostile, others

        def local(subnet: Any, values: Any, job: Any, batches: Any, memory: Any) -> Any:
            enemy = job.device in hostile
            if enemy and attack.poison:
                batches = _Poisoned(batches, attack.poison)
            update, memory = inner.local(subnet, values, job, batches, memory)
            if not enemy:
                others.append(update)
                return update, memory
            sent = attack.forge(update, others) if attack.forge else update.values
            sent = {name: attack.times * value for name, value in sent.items()}
            return replace(update, values=sent, num_samples=attack.samples or update.num_samples), memory

        self._device.method = inner._replace(local=local)

    def compute(self, parcels: Iterable[Parcel]) -> Iterator[Reply]:
        """Let the honest devices train first."""
        self._others.clear()
        parcels = list(parcels)
        replies = {}
        for parcel in sorted(parcels, key=lambda one: one.device in self._hostile):
            replies[parcel.device] = self._device.handle(parcel.frame, parcel.memory)
        return iter([replies[parcel.device] for parcel in parcels])
