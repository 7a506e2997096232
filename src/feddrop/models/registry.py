"""Networks by name: what each is for, and how it is built for a data set and a seed."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from feddrop.config import Model
from feddrop.errors import ConfigError, shortened
from feddrop.models.images import ALEXNET, LENET, RESNET18, alexnet, lenet, resnet18
from feddrop.models.sequences import lstm, transformer
from feddrop.models.tables import MLP, mlp
from feddrop.seeds import derive
from feddrop.subnets.parameters import count_parameters

_HEADS = 4
_MOST = 1 << 31  # parameters
_BYTES = 16  # a parameter in training: itself, its gradient, its momentum and its update
_WIDEST = 1e5  # beyond it, sizes would no longer fit into 64 bits


class Shaped(Protocol):
    """What a network must know of its data; a :class:`feddrop.Dataset` knows it."""

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of every input of one sample."""

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of one target."""

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 where numbers are learned."""

    @property
    def vocabulary(self) -> int:
        """Number of different tokens; 0 where inputs are not tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """What a network must know of its data, written out: for 100 classes of images ``Shapes.of((3, 32, 32), 100)``."""

    input_shapes: tuple[tuple[int, ...], ...]
    target_shape: tuple[int, ...] = ()
    num_classes: int = 0
    vocabulary: int = 0

    @classmethod
    def of(cls, input_shape: Sequence[int], num_classes: int) -> Shapes:
        """Shapes of samples with one input and one class."""
        return cls(input_shapes=(tuple(input_shape),), num_classes=num_classes)


def build_model(config: Model | str, dataset: Shaped, seed: int) -> nn.Module:
    """Build a network by name, its first parameters drawn from the seed; torch's own random state is left alone.

    >>> sum(p.numel() for p in build_model("lenet", Shapes.of((3, 32, 32), 100), seed=0).parameters())
    69656

    Args:
        config: which network; a bare name for its defaults.
        dataset: what it is for.
        seed: the run's root seed.
    """
    config = Model(name=config) if isinstance(config, str) else config
    kind = MODELS[config.name]
    _check(config.name, kind.inputs, dataset)
    with torch.random.fork_rng(devices=[]):
        _check_size(config, dataset)
        with torch.device("cpu"):
            # torch.manual_seed would also reseed the accelerators, which fork_rng(devices=[]) does not restore.
            torch.default_generator.manual_seed(derive(seed, "init"))
            model = kind.make(config, dataset)
            if config.init == "he":
                _he(model)
        return model


@dataclass(frozen=True, slots=True)
class NetworkKind:
    """A network of the table: what it is for, the settings it takes beside its width, and how it is made."""

    inputs: str
    takes: tuple[str, ...]
    make: Callable[[Model, Shaped], nn.Module]


def _lenet(config: Model, data: Shaped) -> nn.Module:
    channels, hidden = (config.scaled(*counts) for counts in LENET)
    return lenet(num_classes=_outputs(data), input_shape=data.input_shapes[0], channels=channels, hidden=hidden)


def _alexnet(config: Model, data: Shaped) -> nn.Module:
    channels, hidden = (config.scaled(*counts) for counts in ALEXNET)
    return alexnet(num_classes=_outputs(data), input_shape=data.input_shapes[0], channels=channels, hidden=hidden)


def _resnet18(config: Model, data: Shaped) -> nn.Module:
    channels = config.scaled(*RESNET18)
    return resnet18(num_classes=_outputs(data), input_shape=data.input_shapes[0], channels=channels, norm=config.norm)


def _mlp(config: Model, data: Shaped) -> nn.Module:
    hidden = config.scaled(*[MLP] * (config.layers or 2))
    return mlp(num_classes=_outputs(data), input_shape=data.input_shapes[0], hidden=hidden)


def _lstm(config: Model, data: Shaped) -> nn.Module:
    embedding, hidden = config.scaled(64, 256)
    return lstm(
        vocabulary=data.vocabulary,
        num_classes=_outputs(data),
        embedding=embedding,
        hidden=hidden,
        layers=config.layers or 1,
        every=_every(data),
    )


def _transformer(config: Model, data: Shaped) -> nn.Module:
    head, feed = config.scaled(128 // _HEADS, 512)
    return transformer(
        vocabulary=data.vocabulary,
        num_classes=_outputs(data),
        length=data.input_shapes[0][0],
        width=_HEADS * head,
        heads=_HEADS,
        feed=feed,
        layers=config.layers or 2,
        every=_every(data),
    )


MODELS = {
    "lenet": NetworkKind("images", ("init",), _lenet),
    "alexnet": NetworkKind("images", ("init",), _alexnet),
    "resnet18": NetworkKind("images", ("init", "norm"), _resnet18),
    "mlp": NetworkKind("tables", ("init", "layers"), _mlp),
    "lstm": NetworkKind("tokens", ("layers",), _lstm),
    "transformer": NetworkKind("tokens", ("layers",), _transformer),
}


def _outputs(data: Shaped) -> int:
    return data.num_classes or data.target_shape[0]


def _every(data: Shaped) -> bool:
    """Whether there is a target for every position."""
    return bool(data.num_classes) and len(data.target_shape) == 1


def _check(name: str, inputs: str, data: Shaped) -> None:
    """Refuse data that a network is not for, and say what is."""
    own = "give a network of your own: feddrop.run(..., model=net)"
    if len(data.input_shapes) != 1:
        raise ConfigError(f"{name} takes one input, but a sample has {len(data.input_shapes)}; {own}.")
    shape, target = data.input_shapes[0], data.target_shape
    if (inputs == "tokens") != (data.vocabulary > 0):
        given = "tokens" if data.vocabulary else f"numbers of shape {shape}"
        fit = [other for other, kind in MODELS.items() if (kind.inputs == "tokens") == (data.vocabulary > 0)]
        raise ConfigError(f"{name} takes {inputs}, but a sample is {given}. Use {' or '.join(fit)}, or {own}.")
    if inputs == "images" and len(shape) != 3:
        raise ConfigError(f"{name} takes images, but a sample is numbers of shape {shape}. Use mlp, or {own}.")
    fits = len(target) == 1 if not data.num_classes else target == () or (inputs == "tokens" and target == shape)
    if not fits:
        what = f"a class for each of {target}" if data.num_classes else f"numbers of shape {target}"
        raise ConfigError(
            f"{name} gives one class a sample{' or position' if inputs == 'tokens' else ''}, or numbers of shape (k,), "
            f"but a target is {what}; reshape the targets, or {own}."
        )


def _check_size(config: Model, data: Shaped) -> None:
    """Refuse a network that does not fit into memory, and name a width that does."""
    free = _free_bytes()
    most = min(_MOST, free // _BYTES if free else _MOST)

    def fits(width: float) -> bool:
        if width > _WIDEST:
            return False
        with torch.device("meta"):  # shapes without memory
            return count_parameters(MODELS[config.name].make(dataclasses.replace(config, width=width), data)) <= most

    if fits(config.width):
        return
    low, high = 0.0, min(config.width, _WIDEST)
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    hint = f"model.width up to {math.floor(low * 100) / 100:g} fits" if low >= 0.01 else "use another network"
    raise ConfigError(
        f"model.width is {config.width:g}: {config.name} would have more than {most:,} parameters, which is all that "
        f"{'the free memory' if most < _MOST else 'a run'} takes; {hint}."
    )


def copy_model(given: nn.Module | Callable[[int], nn.Module], seed: int) -> nn.Module:
    """Return a copy of a user's own network, or what their function from a seed makes; the caller's stays as it is."""
    if isinstance(given, nn.Module):
        return copy.deepcopy(given)
    try:
        inspect.signature(given).bind(seed)
    except (TypeError, ValueError):
        what = f"the class {given.__name__}" if isinstance(given, type) else shortened(given)
        raise ConfigError(
            f"model is {what}; it must be a torch.nn.Module that is built, or a function from a seed to one. A network "
            "of ours is named in the configuration: model.name."
        ) from None
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "init"))
        made = given(seed)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"model is a function that gives a {type(made).__name__}; it must give a torch.nn.Module.")
    return copy.deepcopy(made)


def _free_bytes() -> int:
    """Memory that is free, in bytes; 0 where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return 0


def _he(model: nn.Module) -> None:
    """He's first weights in all layers but the last, which keep the signal's size through a deep stack of ReLUs."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
