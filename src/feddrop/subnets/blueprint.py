"""What cutting needs to know of a network, read off once and shared."""

from __future__ import annotations

from functools import cached_property

from torch import nn

from feddrop import params
from feddrop.subnets.probe import Example
from feddrop.subnets.trace import trace
from feddrop.subnets.units import UnitGraph


class Blueprint:
    """The tensors of a network, what may be dropped of them, and its units, which are found when first asked for.

    Weights are what :func:`feddrop.params.is_weight` says: matrices and more, also those of recurrent layers and
    embeddings. Vectors are kept: norms always, biases unless they are asked for.

    Attributes:
        shapes: shape of every parameter and float buffer, in the network's order.
        weights: the tensors that may be dropped, with the name of the layer they belong to.
        biases: the vectors of those layers, likewise.
        linear: the names of the fully-connected layers.
        layers: names of the layers that may be dropped.
    """

    def __init__(self, model: nn.Module, example: Example) -> None:
        """Read a network; it is left as it was.

        Args:
            model: any network.
            example: what it takes: a batch ``[N, ...]``, a tuple of batches, or the shape of one sample.
        """
        self.shapes = params.shapes(model)
        self.weights: dict[str, str] = {}
        self.biases: dict[str, str] = {}
        for layer, module in model.named_modules():
            own = {f"{layer}.{name}" if layer else name: p for name, p in module.named_parameters(recurse=False)}
            if any(map(params.is_weight, own.values())):  # norms hold vectors only, and are kept
                for name, p in own.items():
                    (self.weights if params.is_weight(p) else self.biases)[name] = layer
        self.linear = frozenset(name for name, module in model.named_modules() if isinstance(module, nn.Linear))
        self.layers = list(dict.fromkeys(self.weights.values()))
        self._model, self._example = model, example

    @cached_property
    def units(self) -> UnitGraph:
        """The groups of coupled units."""
        return trace(self._model, self._example)

    def note(self) -> str:
        """Return a line that names what is kept whole at the unit level, and why; empty if units were not asked for."""
        return self.units.note() if "units" in vars(self) else ""
