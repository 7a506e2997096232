"""Find the hidden units of any network.

The network runs once on two samples while :mod:`feddrop.subnets.coupling` joins the dimensions that must be cut
together. Units that reach the network's input or output are kept whole; those that meet an operation which cannot be
cut are an error, never a guess. docs/units.md says why this and not torch.fx or torch-pruning.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from feddrop.errors import SubnetError
from feddrop.subnets.coupling import Coupling, Dims, Kind, Units, place
from feddrop.subnets.probe import Example, described, random_state_kept, samples, tensors_in, twin
from feddrop.subnets.units import Axis, UnitGraph, shrink


def trace(model: nn.Module, example: Example) -> UnitGraph:
    """Find the hidden groups of a network.

    A copy that shares its parameters is run in evaluation mode; the network itself is left untouched.

    Args:
        model: any network of convolution, linear, norm, pooling and element-wise operations.
        example: what it takes: a batch, a tuple of batches, or the shape of one sample, without the batch.

    Raises:
        SubnetError: the network has no hidden layer, or one that cannot be cut; the message names it.
    """
    copy = twin(model)
    path = _follow(copy)
    coupling = Coupling(copy, path)
    out = _run(copy, example, path, f"The network fails on {described(example)}", coupling)
    outs = list(tensors_in(out))
    if not outs:
        raise SubnetError(
            f"The network returns {type(out).__name__}; it must return tensors, alone or in dicts or tuples."
        )
    for units in (units for tensor in outs for units in coupling.dims(tensor) if units):
        units.root().whole = "its units are the network's output"
    graph = _graph(coupling)
    _check(model, example, graph, [tuple(tensor.shape) for tensor in outs])
    return graph


def _check(model: nn.Module, example: Example, graph: UnitGraph, shapes: list[tuple[int, ...]]) -> None:
    """Run a small subnet, which shows what no rule can see: sizes written as numbers in the network's code."""
    small = shrink(model, graph, {group: min(2, units - 1) for group, units in graph.groups.items()})
    complaint = (
        "The network does not work with fewer units. Let its code take sizes from x.shape, as in x.flatten(1), or use "
        "level='weight'"
    )
    out = _run(small, example, _follow(small), complaint)
    if [tuple(tensor.shape) for tensor in tensors_in(out)] != shapes:
        raise SubnetError(f"{complaint}: its output changes shape.")


def _run(model: nn.Module, example: Example, path: list[str], complaint: str, coupling: Coupling | None = None) -> Any:
    """Run two samples through a network; two, since a batch of one would look like a dimension of size one."""
    if not any(p.is_floating_point() for p in model.parameters()):
        raise SubnetError("The network has no parameters, so there are no units to drop.")
    inputs = samples(model, example, 2)
    try:
        with torch.enable_grad(), random_state_kept(model), coupling or nullcontext():
            return model(*inputs)
    except Exception as error:
        raise SubnetError(f"{complaint}: in {place(path)}: {error}") from error


def _follow(model: nn.Module) -> list[str]:
    """Return a list that always ends with the name of the module being run."""
    path = [""]

    def leave(*_: Any) -> None:
        path.pop()

    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda _, __, name=name: path.append(name))
        module.register_forward_hook(leave)
    return path


def _graph(coupling: Coupling) -> UnitGraph:
    named: dict[Units, str] = {}
    groups: dict[str, int] = {}
    layers: dict[str, tuple[str, ...]] = {}
    kinds: dict[str, Kind] = {}
    whole: dict[str, str] = {}
    owners = [weight.rpartition(".")[0] for weight in coupling.made]
    for layer, (weight, (kind, made)) in zip(owners, coupling.made.items(), strict=True):
        kinds[layer] = kind
        name = layer if layer and owners.count(layer) == 1 else weight  # a module may hold several weights
        units = made.root() if made else None
        if units is None or units.whole:
            whole[name] = units.whole if units else "it has one unit"
        elif units.fault:
            raise _refusal(f"of layer {name!r}", units)
        elif units.count == 1:
            whole[name] = "an operation keeps its units together"
        else:
            group = named.setdefault(units, name)
            groups[group] = units.count
            layers[group] = (*layers.get(group, ()), layer)
    for name, (_, dims) in coupling.tensors.items():
        for units in dims:
            if units and units.role == "in" and units.root().fault and not units.root().whole:
                raise _refusal(f"that {name!r} reads", units.root())
    if not groups:
        reasons = "".join(f" {layer!r}: {reason}." for layer, reason in whole.items())
        raise SubnetError(f"The network has no hidden units to drop; use level='weight'.{reasons}")

    def axes(shape: tuple[int, ...], dims: Dims) -> tuple[Axis, ...]:
        return tuple(
            Axis(dim=dim, group=named[root], block=shape[dim] // root.count, role=units.role or "out")
            for dim, units in enumerate(dims)
            if units and (root := units.root()) in named
        )

    return UnitGraph(
        groups=groups,
        axes={name: axes(*tensor) for name, tensor in coupling.tensors.items()},
        layers=layers,
        kinds=kinds,
        norms={name: axes(*norm) for name, norm in coupling.norms.items()},
        whole=whole,
    )


def _refusal(whose: str, units: Units) -> SubnetError:
    return SubnetError(
        f"The units {whose} cannot be dropped: {units.fault} works across them, or is unknown. Change it, or "
        f"use level='weight'."
    )
