"""The table of networks by name, and how one is built for a data set and a seed."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from feddrop.config import Model
from feddrop.errors import ConfigError, shortened
from feddrop.models.images import ALEXNET, LENET, RESNET18, alexnet, lenet, resnet18
from feddrop.models.sequences import lstm, transformer
from feddrop.models.tables import MLP, mlp
from feddrop.seeds import derive

_HEADS = 4
_MOST = 1 << 31  # parameters; training takes about 16 bytes for each


class Shaped(Protocol):
    """The shapes that a network is built for; a :class:`feddrop.Dataset` has them."""

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of every input of one sample."""

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of one target."""

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 for regression."""

    @property
    def vocabulary(self) -> int:
        """Number of distinct tokens; 0 if the inputs are not tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Shapes without a data set: ``Shapes.of((3, 32, 32), 100)`` for images of 100 classes."""

    input_shapes: tuple[tuple[int, ...], ...]
    target_shape: tuple[int, ...] = ()
    num_classes: int = 0
    vocabulary: int = 0

    @classmethod
    def of(cls, input_shape: Sequence[int], num_classes: int) -> Shapes:
        """Return the shapes of samples with one input and one class each."""
        return cls(input_shapes=(tuple(input_shape),), num_classes=num_classes)


def build_model(config: Model | str, dataset: Shaped, seed: int) -> nn.Module:
    """Build a network by name, with initial parameters drawn from the seed; torch's random state does not change.

    >>> sum(p.numel() for p in build_model("lenet", Shapes.of((3, 32, 32), 100), seed=0).parameters())
    69656

    Args:
        config: the network; a name alone for its defaults.
        dataset: the data set, or its shapes.
        seed: the run's root seed.
    """
    config = Model(name=config) if isinstance(config, str) else config
    kind = MODELS[config.name]
    for problem in _misfits(config.name, kind.inputs, dataset):
        raise ConfigError(f"{problem} with a custom network: feddrop.run(..., model=net).")
    make, first = kind.builder(config, dataset), derive(seed, "init")
    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):  # shapes without memory
            count = sum(parameter.numel() for parameter in make().parameters())
        if count > _MOST:
            raise ConfigError(
                f"model.width is {config.width:g}, which gives {config.name} {count:,} parameters; at most {_MOST:,} "
                "are allowed. Lower model.width."
            )
        with torch.device("cpu"):
            # torch.manual_seed would also seed the accelerators, which fork_rng(devices=[]) does not restore.
            torch.default_generator.manual_seed(first)
            model = make()
            if config.init == "he":
                _he(model)
        return model


Builder = Callable[[], nn.Module]


@dataclass(frozen=True, slots=True)
class NetworkKind:
    """An entry of the table: the kind of inputs (images, tables or tokens), and what prepares a builder."""

    inputs: str
    builder: Callable[[Model, Shaped], Builder]


def _scaled(config: Model, *counts: int) -> list[int]:
    """Return hidden widths times ``model.width``, rounded, at least 1."""
    return [max(1, round(config.width * count)) for count in counts]


def _lenet(config: Model, data: Shaped) -> Builder:
    channels, hidden = (_scaled(config, *counts) for counts in LENET)
    return partial(lenet, **_dense_sizes(data), channels=channels, hidden=hidden)


def _alexnet(config: Model, data: Shaped) -> Builder:
    channels, hidden = (_scaled(config, *counts) for counts in ALEXNET)
    return partial(alexnet, **_dense_sizes(data), channels=channels, hidden=hidden)


def _resnet18(config: Model, data: Shaped) -> Builder:
    return partial(resnet18, **_dense_sizes(data), channels=_scaled(config, *RESNET18), norm=config.norm)


def _mlp(config: Model, data: Shaped) -> Builder:
    return partial(mlp, **_dense_sizes(data), hidden=_scaled(config, *[MLP] * (config.layers or 2)))


def _lstm(config: Model, data: Shaped) -> Builder:
    embedding, hidden = _scaled(config, 64, 256)
    return partial(lstm, **_token_sizes(data), embedding=embedding, hidden=hidden, layers=config.layers or 1)


def _transformer(config: Model, data: Shaped) -> Builder:
    head, feed = _scaled(config, 128 // _HEADS, 512)
    sizes = _token_sizes(data) | {"length": data.input_shapes[0][0], "layers": config.layers or 2}
    return partial(transformer, **sizes, width=_HEADS * head, heads=_HEADS, feed=feed)


MODELS = {
    "lenet": NetworkKind("images", _lenet),
    "alexnet": NetworkKind("images", _alexnet),
    "resnet18": NetworkKind("images", _resnet18),
    "mlp": NetworkKind("tables", _mlp),
    "lstm": NetworkKind("tokens", _lstm),
    "transformer": NetworkKind("tokens", _transformer),
}


def _dense_sizes(data: Shaped) -> dict[str, Any]:
    return {"num_classes": data.num_classes or data.target_shape[0], "input_shape": data.input_shapes[0]}


def _token_sizes(data: Shaped) -> dict[str, Any]:
    every = bool(data.num_classes) and len(data.target_shape) == 1  # one target per position
    return {
        "vocabulary": data.vocabulary,
        "num_classes": data.num_classes or data.target_shape[0],
        "every": every,
    }


def _misfits(name: str, inputs: str, data: Shaped) -> Iterator[str]:
    """Find why a network does not fit the data."""
    if len(data.input_shapes) != 1:
        yield f"{name} takes one input, but a sample has {len(data.input_shapes)}; run"
    shape, target = data.input_shapes[0], data.target_shape
    given = "tokens" if data.vocabulary else f"numbers of shape {shape}"
    if (inputs == "tokens") != (data.vocabulary > 0) or (inputs == "images" and len(shape) != 3):
        fit = [other for other, kind in MODELS.items() if (kind.inputs == "tokens") == (data.vocabulary > 0)]
        fit = fit if inputs != "images" or data.vocabulary else ["mlp"]
        yield f"{name} takes {inputs}, but a sample is {given}. Use {' or '.join(fit)}, or run"
    fits = len(target) == 1 if not data.num_classes else target == () or (inputs == "tokens" and target == shape)
    if not fits:
        where = "sample or position" if inputs == "tokens" else "sample"
        what = f"a class for each of {target}" if data.num_classes else f"numbers of shape {target}"
        yield (
            f"{name} predicts one class per {where}, or numbers of shape (k,), but a target is {what}. Reshape the "
            "targets, or run"
        )


def copy_model(given: nn.Module | Callable[[int], nn.Module], seed: int) -> nn.Module:
    """Return a copy of a custom network, or of the one that a custom function builds from the seed."""
    if isinstance(given, nn.Module):
        return copy.deepcopy(given)
    allowed = "a torch.nn.Module or a function from a seed to one (networks of the package are set with model.name)"
    try:
        inspect.signature(given).bind(seed)
    except (TypeError, ValueError):
        what = f"the class {given.__name__}" if isinstance(given, type) else shortened(given)
        raise ConfigError(f"model is {what}; it must be {allowed}.") from None
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "init"))
        made = given(seed)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"model is a function that returns a {type(made).__name__}; it must be {allowed}.")
    return copy.deepcopy(made)


def _he(model: nn.Module) -> None:
    """Draw He's initial weights for all layers but the last; they preserve the signal through many ReLUs."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
