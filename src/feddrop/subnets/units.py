"""The unit level: a subnet that is a smaller dense network.

Dropping a unit of a hidden layer removes a row of the weights that produce it, a column of the weights that read it,
and its entry in every bias and norm in between. Layers tied by a residual connection must drop the same units. A
:class:`UnitGraph`, found by :func:`feddrop.subnets.trace.trace`, describes which positions of which tensors belong
together; this module cuts along it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from feddrop.errors import SubnetError
from feddrop.subnets.coupling import EMBEDDING, OUTPUT, SINGLE
from feddrop.subnets.modules import CutAttention
from feddrop.subnets.piece import Index, Piece, Subnet
from feddrop.subnets.probe import structural_copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One dimension of a tensor that follows the units of a group.

    Attributes:
        dim: the dimension.
        group: the group it follows.
        block: consecutive positions per unit (H·W after a flatten of C × H × W).
        role: "in" if the dimension is summed over (the fan-in of a weight), else "out".
        repeats: how often all units follow each other: 4 for the gates of an LSTM, 3 for packed queries, keys and
            values.
    """

    dim: int
    group: str
    block: int
    role: Literal["in", "out"]
    repeats: int = 1

    def size(self, units: int) -> int:
        """Return the size of the dimension with this many units."""
        return self.repeats * units * self.block

    def positions(self, index: Index, units: int) -> Index:
        """Return the positions of some of the units, sorted."""
        found = _spread(index, self.block)
        if self.repeats == 1:
            return found
        return (np.arange(self.repeats)[:, None] * units * self.block + found).reshape(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitGraph:
    """The hidden units of a network and the tensor dimensions that follow them.

    Attributes:
        groups: units in each hidden group, named after the first layer that produces it, in forward order.
        axes: hidden dimensions of every parameter and floating-point buffer.
        layers: the layers that produce each group; more than one where layers are coupled.
        kinds: kind of every layer that has units: "conv" or "linear".
        norms: hidden dimensions of the shape that each norm module normalises over.
        whole: why each remaining layer keeps all its units.
        heads: by module, the attribute that stores the number of units of a group, and the group.
        users: by weight, the modules whose forward uses it, usually only the one that owns it.
        last: the layers whose units are the network's output, and the last layer that runs.
    """

    groups: Mapping[str, int]
    axes: Mapping[str, tuple[Axis, ...]]
    layers: Mapping[str, tuple[str, ...]]
    kinds: Mapping[str, Literal["conv", "linear"]]
    norms: Mapping[str, tuple[Axis, ...]]
    whole: Mapping[str, str]
    heads: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    last: frozenset[str] = frozenset()

    def note(self) -> str:
        """Return one line that lists the layers whose units are all kept, and why; empty if that is natural for all.

        It is natural for output layers. For a layer that is cut on the side that it reads, it is natural too if it
        has one unit or writes to the width of an embedding, which is listed itself.
        """
        reasons: dict[str, list[str]] = {}
        for layer, why in self.whole.items():
            cut = any(axes for name, axes in self.axes.items() if name == layer or name.startswith(f"{layer}."))
            natural = why == OUTPUT or (cut and (layer in self.last or why in (EMBEDDING, SINGLE)))
            if not natural:
                reasons.setdefault(why, []).append(repr(layer))
        kept = "; ".join(f"{', '.join(layers)} ({why})" for why, layers in reasons.items())
        return f"Kept whole at the unit level: {kept}." if kept else ""


def unit_pieces(graph: UnitGraph, shapes: Mapping[str, tuple[int, ...]], kept: Mapping[str, Index]) -> Subnet:
    """Return the pieces of a subnet with these units: sorted, by group; groups not named are kept whole.

    A weight is scaled by units/kept of the group it reads, so that the mean input of a kept unit over random subnets
    does not change; biases, norms and buffers are not scaled. ``shapes`` are those of all tensors at the server.
    """
    _check_groups(graph, kept)
    for group, index in kept.items():
        units = graph.groups[group]
        if index.ndim != 1 or not len(index) or index[0] < 0 or index[-1] >= units or (np.diff(index) <= 0).any():
            raise SubnetError(f"Kept units of {group!r} must be sorted, distinct and from 0 to {units - 1}.")
    cut = {group: index for group, index in kept.items() if len(index) < graph.groups[group]}
    sizes = {**graph.groups, **{group: len(index) for group, index in cut.items()}}
    return {name: _piece(shape, graph.axes.get(name, ()), graph.groups, sizes, cut) for name, shape in shapes.items()}


def shrink(model: nn.Module, graph: UnitGraph, sizes: Mapping[str, int]) -> nn.Module:
    """Return a smaller dense copy of a network, with the given number of units in each group.

    Groups not named keep their size. Parameters and cut buffers are zero, to be loaded; other buffers are copied. No
    parameter is copied in full, and ``model`` does not change.
    """
    _check_groups(graph, sizes)
    for group, size in sizes.items():
        if not 1 <= size <= graph.groups[group]:
            raise SubnetError(f"{group!r} cannot have {size} units; it must have 1 to {graph.groups[group]}.")
    return resized(model, graph, sizes)


def resized(model: nn.Module, graph: UnitGraph, sizes: Mapping[str, int]) -> nn.Module:
    """Do the same as :func:`shrink`, but allow sizes above those of the graph."""
    sizes = {**graph.groups, **sizes}

    def cut(name: str, tensor: Tensor) -> Tensor:
        axes = graph.axes.get(name, ())
        if not axes and not isinstance(tensor, nn.Parameter):
            return tensor.detach().clone()
        return torch.zeros(_cut_shape(tuple(tensor.shape), axes, sizes), dtype=tensor.dtype, device=tensor.device)

    other = structural_copy(model, cut)
    for name, module in other.named_modules():
        _correct(module, graph.norms.get(name, ()), sizes)
        if name in graph.heads:
            attribute, group = graph.heads[name]
            setattr(module, attribute, sizes[group])
            if isinstance(module, nn.MultiheadAttention):
                module.__class__ = CutAttention
                module._qkv_same_embed_dim = False  # so that transformer layers call it, not a fused kernel
    return other


def _check_groups(graph: UnitGraph, given: Mapping[str, object]) -> None:
    if unknown := [group for group in given if group not in graph.groups]:
        raise SubnetError(f"No hidden group is called {unknown[0]!r}; there are {', '.join(map(repr, graph.groups))}.")


def _cut_shape(shape: tuple[int, ...], axes: tuple[Axis, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    cut = list(shape)
    for axis in axes:
        cut[axis.dim] = axis.size(sizes[axis.group])
    return tuple(cut)


def _piece(
    shape: tuple[int, ...],
    axes: tuple[Axis, ...],
    units: Mapping[str, int],
    sizes: Mapping[str, int],
    cut: Mapping[str, Index],
) -> Piece:
    positions: list[Index | None] = [None] * len(shape)
    scale = 1.0
    for axis in axes:
        if axis.group in cut:
            positions[axis.dim] = axis.positions(cut[axis.group], units[axis.group])
            if axis.role == "in":
                scale *= units[axis.group] / sizes[axis.group]
    return Piece(shape=shape, index=_flat(shape, positions), sub_shape=_cut_shape(shape, axes, sizes), scale=scale)


def _spread(index: Index, block: int) -> Index:
    """Replace every entry i by i·block, ..., i·block + block - 1."""
    if block == 1:
        return index.astype(np.int64, copy=False)
    return (index[:, None] * block + np.arange(block)).reshape(-1)


def _flat(shape: tuple[int, ...], positions: list[Index | None]) -> Index | None:
    """Return the sorted flat positions of the product of per-dimension positions (None: all), or None if all are."""
    flat: Index | None = None
    span = 1  # flat length of the dimensions walked so far, innermost first
    for size, kept in zip(reversed(shape), reversed(positions), strict=True):
        if flat is not None:
            rows = np.arange(size) if kept is None else kept
            flat = (rows[:, None] * span + flat).reshape(-1)
        elif kept is not None:
            flat = _spread(kept, span)
        span *= size
    return flat


def _correct(module: nn.Module, norm: tuple[Axis, ...], sizes: Mapping[str, int]) -> None:
    """Make a module's attributes agree with its cut tensors."""
    weight = module._parameters.get("weight")
    if isinstance(module, _ConvNd) and weight is not None:
        if module.transposed:  # a grouped one is never cut
            module.in_channels, module.out_channels = weight.shape[0], weight.shape[1] * module.groups
        else:
            if module.groups > 1:  # convolution groups are kept or dropped as a whole
                module.groups = module.groups * weight.shape[0] // module.out_channels
            module.in_channels, module.out_channels = weight.shape[1] * module.groups, weight.shape[0]
    elif isinstance(module, nn.Linear) and weight is not None:
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, nn.RNNBase) and not module.proj_size:
        sides = [module.get_parameter(name).shape[1] for name in ("weight_ih_l0", "weight_hh_l0")]
        module.input_size, module.hidden_size = sides
    elif isinstance(module, nn.TransformerEncoder):
        module.use_nested_tensor = False  # its attention may have fewer heads than torch's kernel for these can take
    elif isinstance(module, nn.PReLU):
        module.num_parameters = module.weight.numel()
    elif isinstance(module, _NormBase) and norm:
        (module.num_features,) = _cut_shape((module.num_features,), norm, sizes)
    elif isinstance(module, nn.GroupNorm) and norm:
        (channels,) = _cut_shape((module.num_channels,), norm, sizes)
        if module.num_groups > 1:
            module.num_groups = module.num_groups * channels // module.num_channels
        module.num_channels = channels
    elif isinstance(module, nn.LayerNorm) and norm:
        module.normalized_shape = _cut_shape(tuple(module.normalized_shape), norm, sizes)
