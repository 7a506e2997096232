"""What cutting needs to know of a network, read off once and shared."""

from __future__ import annotations

from functools import cached_property

from torch import nn

from feddrop.errors import ConfigError, one_of
from feddrop.subnets import parameters
from feddrop.subnets.probe import Example
from feddrop.subnets.trace import trace
from feddrop.subnets.units import UnitGraph


class Blueprint:
    """The tensors of a network, what may be dropped of them, and its units, which are found when first asked for.

    Weights are what :func:`feddrop.subnets.parameters.weights` says: matrices and more, also those of recurrent layers and
    embeddings. Norms are always kept, biases unless they are asked for.

    Attributes:
        shapes: shape of every parameter and float buffer, in the network's order.
        weights: the tensors that may be dropped, each once, with the name of the layer they belong to.
        biases: the vectors of those layers, likewise.
        linear: the names of the fully-connected layers.
        layers: names of the layers that may be dropped.
        tied: layers without weights of their own, and the one whose weights they share.
    """

    def __init__(self, model: nn.Module, example: Example) -> None:
        """Read a network; it is left as it was.

        Args:
            model: any network.
            example: what it takes: a batch ``[N, ...]``, a tuple of batches, or the shape of one sample.
        """
        self.shapes = parameters.shapes(model)
        own = parameters.weights(model)
        self.weights = {name: parameters.layer_of(name) for name in own}
        self.layers = list(dict.fromkeys(self.weights.values()))
        first = {id(weight): self.weights[name] for name, weight in own.items()}
        self.tied = {
            layer: first[id(p)]
            for layer, module in model.named_modules(remove_duplicate=False)
            for p in module.parameters(recurse=False)
            if id(p) in first and layer not in self.layers
        }
        rest = {
            name: parameters.layer_of(name) for name, p in model.named_parameters() if name not in own and p.numel()
        }
        self.biases = {name: self.tied.get(layer, layer) for name, layer in rest.items()}
        self.biases = {name: layer for name, layer in self.biases.items() if layer in self.layers}
        self.linear = frozenset(name for name in self.layers if isinstance(model.get_submodule(name), nn.Linear))
        self._model, self._example = model, example

    def named(self, layer: str, what: str) -> str:
        """Return the name of a layer that may be dropped, else raise a ConfigError; ``what`` is where it was given."""
        if layer in self.tied:
            raise ConfigError(f"{what} is {layer!r}, whose weights are those of {self.tied[layer]!r}. Name that one.")
        return one_of(what, layer, self.layers)

    @cached_property
    def units(self) -> UnitGraph:
        """The groups of coupled units."""
        return trace(self._model, self._example)

    def note(self) -> str:
        """Return a line that names what is kept whole at the unit level, and why; empty if units were not asked for."""
        return self.units.note() if "units" in vars(self) else ""
