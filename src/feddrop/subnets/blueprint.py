"""The structure of a network that cutting needs, read once and shared."""

from __future__ import annotations

from functools import cached_property

from torch import nn

from feddrop.errors import ConfigError, one_of
from feddrop.subnets import parameters
from feddrop.subnets.probe import Example
from feddrop.subnets.trace import trace
from feddrop.subnets.units import UnitGraph


class Blueprint:
    """The tensors of a network, which of them can be dropped, and its units, which are traced on first use.

    Weights are those of :func:`feddrop.subnets.parameters.weights`: tensors of two or more dimensions, including those
    of recurrent layers and embeddings. Norms and frozen parameters are never dropped, biases only on request.

    Args:
        model: the network; it is not changed.
        example: its input: a batch, a tuple of batches, or the shape of one sample, without the batch.

    Attributes:
        shapes: shape of every parameter and float buffer, in the network's order.
        weights: layer of every droppable weight, by tensor name; shared weights appear once.
        biases: layer of every vector of those layers, likewise.
        linear: names of the fully-connected layers.
        layers: names of the droppable layers.
        tied: for layers that share all their weights, the layer that owns them.
    """

    def __init__(self, model: nn.Module, example: Example) -> None:
        self.shapes = parameters.shapes(model)
        weights = {name: p for name, p in parameters.weights(model).items() if p.requires_grad}
        self.weights = {name: parameters.layer_of(name) for name in weights}
        self.layers = list(dict.fromkeys(self.weights.values()))
        first = {id(weight): self.weights[name] for name, weight in weights.items()}
        self.tied = {
            layer: first[id(p)]
            for layer, module in model.named_modules(remove_duplicate=False)
            for p in module.parameters(recurse=False)
            if id(p) in first and layer not in self.layers
        }
        rest = {
            name: parameters.layer_of(name)
            for name, p in model.named_parameters()
            if name not in weights and p.numel() and p.requires_grad
        }
        self.biases = {name: self.tied.get(layer, layer) for name, layer in rest.items()}
        self.biases = {name: layer for name, layer in self.biases.items() if layer in self.layers}
        self.linear = frozenset(name for name in self.layers if isinstance(model.get_submodule(name), nn.Linear))
        self._model, self._example = model, example

    def droppable_layer(self, layer: str, what: str) -> str:
        """Return the name of a droppable layer; otherwise raise a ConfigError that names the setting ``what``."""
        if layer in self.tied:
            raise ConfigError(
                f"{what} is {layer!r}, which shares the weights of {self.tied[layer]!r}. Name that layer."
            )
        return one_of(what, layer, self.layers)

    @cached_property
    def units(self) -> UnitGraph:
        """The groups of coupled units."""
        return trace(self._model, self._example)

    @property
    def traced(self) -> bool:
        """Whether the units were traced, which the weight level does not need."""
        return "units" in vars(self)

    def note(self) -> str:
        """Return one line that lists what is kept whole at the unit level, and why; empty if all units can be cut.

        It traces the network, unless that was done before.

        Raises:
            SubnetError: no unit can be cut; the message gives the reason per layer.
        """
        return self.units.note()
