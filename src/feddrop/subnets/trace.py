"""Find the hidden units of any network.

The network runs once on two samples while :mod:`feddrop.subnets.coupling` joins the dimensions that must be cut
together. Units of the network's input or output are kept whole, and so are those used by an operation that cannot be
cut; nothing is guessed. Finally a network of other sizes is built and traced too, which reveals sizes written as
numbers in the network's code. docs/units.md explains why neither torch.fx nor torch-pruning is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from feddrop.errors import SubnetError
from feddrop.subnets import modules, parameters, rules  # noqa: F401 -- importing registers them
from feddrop.subnets.coupling import OUTPUT, SINGLE, Coupling, Dims, Kind, Units, View, place
from feddrop.subnets.probe import Example, describe_example, example_inputs, random_state_kept, tensors_in, twin
from feddrop.subnets.units import Axis, UnitGraph, resized

# Attributes in which modules store their number of heads.
_HEADS = ("heads", "n_head", "n_heads", "nhead", "num_attention_heads", "num_heads")


def trace(model: nn.Module, example: Example) -> UnitGraph:
    """Find the hidden groups of a network.

    A copy that shares the network's parameters runs in evaluation mode; the network itself does not change.

    Args:
        model: any network.
        example: its input: a batch, a tuple of batches, or the shape of one sample, without the batch.

    Raises:
        SubnetError: nothing can be dropped, or the network does not run; the message gives the reason per layer.
    """
    if not any(p.is_floating_point() for p in model.parameters()):
        raise SubnetError("The network has no parameters, so there are no units to drop.")
    inputs = example_inputs(model, example, 2)
    coupling, outs, failure = _watch(model, inputs)
    if failure or not outs:
        failure = failure or "it returns no tensors; return tensors, alone or in dicts, lists or tuples"
        raise SubnetError(f"The network fails on {describe_example(example)}: {failure}")
    shapes = [tuple(out.shape) for out in outs]
    named, graph = _read(model, coupling)
    failure = _trial(model, inputs, graph, graph.groups, shapes)
    if failure:  # find the groups that cause it
        alone = {group: _trial(model, inputs, graph, [group], shapes) for group in graph.groups}
        for units, group in named.items():
            if alone[group] or not any(alone.values()):
                units.whole = f"the network does not work with fewer units: {alone[group] or failure}"
        named, graph = _read(model, coupling)
        failure = _trial(model, inputs, graph, graph.groups, shapes)
    if failure or not graph.groups:
        reasons = "".join(f" {layer!r}: {reason}." for layer, reason in graph.whole.items()) or f" {failure}"
        raise SubnetError(f"The network has no hidden units to drop; use level='weight'.{reasons}")
    return graph


def _watch(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Coupling, list[Tensor], str]:
    """Run a twin of a network on two samples, and return the coupling, its outputs and the failure, if any.

    With one sample, the batch would look like a dimension of size one. Only the use of a view shows that it unpacks a
    projection; then the network runs once more.
    """
    packed = frozenset[View]()
    while True:
        copy = twin(model)
        path = _follow(copy)
        coupling = Coupling(copy, path, packed)
        with coupling:
            outs, failure = _run(copy, inputs, path)
        if coupling.unpacked <= packed:
            break
        packed |= coupling.unpacked
    coupling.returned = {units.root() for out in outs for units in coupling.dims(out) if units}
    coupling.keep(coupling.returned, OUTPUT)
    return coupling, outs, failure


def _run(model: nn.Module, inputs: tuple[Tensor, ...], path: list[str]) -> tuple[list[Tensor], str]:
    try:
        with torch.enable_grad(), random_state_kept(model):
            return list(tensors_in(model(*inputs))), ""
    except Exception as error:
        return [], f"in {place(path)}: {error}"


def _trial(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    graph: UnitGraph,
    groups: Collection[str],
    shapes: list[tuple[int, ...]],
) -> str:
    """Build a network with other sizes of these groups, trace it too, and return what goes wrong.

    It has two units per group, or three where there are two already. A network in training mode runs in that mode too,
    so that branches for training are tried.
    """
    sizes = {group: 2 if graph.groups[group] > 2 else 3 for group in groups}
    hint = "take sizes from x.shape in its code, as in x.flatten(1)"
    other = resized(model, graph, sizes)
    failure = _run(other, inputs, _follow(other))[1] if model.training else ""
    coupling, outs, worse = _watch(other, inputs)
    if failure := failure or worse:
        return f"{failure}; {hint}"
    if [tuple(out.shape) for out in outs] != shapes:
        return f"its output changes shape; {hint}"
    _, seen = _read(other, coupling)
    for group, size in sizes.items():
        if seen.groups.get(group) != size or _following(seen, group) != _following(graph, group):
            return f"its code fixes how many units {group!r} has; {hint}"
    return ""


def _following(graph: UnitGraph, group: str) -> set[tuple[str, Axis]]:
    return {(name, axis) for name, axes in graph.axes.items() for axis in axes if axis.group == group}


def _follow(model: nn.Module) -> list[str]:
    """Return a list whose last entry is always the name of the module being run."""
    path = [""]

    def leave(*_: Any) -> None:
        path.pop()

    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda _, __, name=name: path.append(name))
        module.register_forward_hook(leave)
    return path


def _read(model: nn.Module, coupling: Coupling) -> tuple[dict[Units, str], UnitGraph]:
    """Return the names of the groups of units, and the graph that was found."""
    named: dict[Units, str] = {}
    groups: dict[str, int] = {}
    layers: dict[str, tuple[str, ...]] = {}
    kinds: dict[str, Kind] = {}
    whole: dict[str, str] = {}
    last: set[str] = set()
    final = next(reversed(coupling.made), "")
    owners = [parameters.layer_of(weight) for weight in coupling.made]
    for layer, (weight, (kind, made)) in zip(owners, coupling.made.items(), strict=True):
        kinds[layer] = kind
        name = layer if layer and owners.count(layer) == 1 else weight  # a module may hold several weights
        units = made.root() if made else None
        if units in coupling.returned or weight == final:
            last.add(name)
        if units is None or units.whole:
            whole[name] = units.whole if units else SINGLE
        elif units.count == 1:
            whole[name] = "an operation keeps its units together"
        else:
            group = named.setdefault(units, name)
            groups[group] = units.count
            layers[group] = tuple(dict.fromkeys((*layers.get(group, ()), layer)))

    def axes(shape: tuple[int, ...], dims: Dims) -> tuple[Axis, ...]:
        return tuple(
            Axis(
                dim=dim,
                group=named[root],
                block=shape[dim] // (root.count * units.repeats()),
                role=units.role or "out",
                repeats=units.repeats(),
            )
            for dim, units in enumerate(dims)
            if units and (root := units.root()) in named
        )

    followed = {name: axes(*tensor) for name, tensor in coupling.tensors.items()}
    for name in parameters.weights(model):
        if name not in coupling.made and not followed[name]:
            whole.setdefault(parameters.layer_of(name) or name, _why(coupling.tensors[name][1]))
    return named, UnitGraph(
        groups=groups,
        axes=followed,
        layers=layers,
        kinds=kinds,
        norms={name: axes(*norm) for name, norm in coupling.norms.items()},
        whole=whole,
        heads=_heads(model, groups, followed),
        users=coupling.users,
        last=frozenset(last),
    )


def _why(dims: Iterable[Units | None]) -> str:
    """Return why a weight without a known product is kept."""
    return next((units.root().whole for units in dims if units and units.root().whole), "it is not used")


def _heads(
    model: nn.Module, groups: dict[str, int], followed: dict[str, tuple[Axis, ...]]
) -> dict[str, tuple[str, str]]:
    """Find the modules that store a group's number of units in an attribute, as heads."""
    found = {}
    for name, module in model.named_modules():
        inside = {
            axis.group
            for tensor, axes in followed.items()
            for axis in axes
            if axis.block > 1 and axis.role == "out" and tensor.startswith(f"{name}." if name else "")
        }
        for attribute in _HEADS:
            fitting = [group for group in groups if group in inside and vars(module).get(attribute) == groups[group]]
            if len(fitting) == 1:
                found[name] = attribute, fitting[0]
    return found
