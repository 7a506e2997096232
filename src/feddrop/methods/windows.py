"""HeteroFL and FedRolex: a device trains a window of the units of every hidden layer.

HeteroFL's window always starts at the first unit; FedRolex's moves by one unit per round and wraps around. Devices of
the same rate have the same window. ``docs/windows.md`` lists the differences from the papers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import starmap
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from feddrop.config import Windows
from feddrop.errors import SubnetError
from feddrop.methods.method import Batches, Job, Memory, Method, Setup, Sizes, State, Update, plan_jobs, train_subnet
from feddrop.methods.sizes import device_network
from feddrop.subnets.coupling import place
from feddrop.subnets.cut import kept_sizes, kept_units, shrinker, unit_cutter
from feddrop.subnets.masks import kept_count
from feddrop.subnets.modules import CutAttention
from feddrop.subnets.parameters import Params, is_statistic
from feddrop.subnets.piece import Index, Subnet
from feddrop.subnets.probe import example_inputs, random_state_kept, tensors_in, twin
from feddrop.subnets.units import UnitGraph


def build_heterofl(setup: Setup, config: Windows) -> Method:
    """Build HeteroFL. With rate 0 for every device it is federated averaging."""
    return _windows(setup, config, moves=False)


def build_fedrolex(setup: Setup, config: Windows) -> Method:
    """Build FedRolex. With rate 0 for every device it is federated averaging."""
    return _windows(setup, config, moves=True)


def _windows(setup: Setup, config: Windows, *, moves: bool) -> Method:
    """Build a method whose window starts at the first unit and may move by one unit per round."""
    blueprint, subnet = setup.blueprint(), config.subnets()
    cut_at, sizes_at = unit_cutter(blueprint, subnet), partial(kept_sizes, blueprint, subnet)
    graph = blueprint.units
    scale = _scaler(setup, moves=moves)
    network_for = shrinker(setup.model, blueprint, scale)

    def init(_: Params) -> State:
        return {}

    def plan(_: State, __: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
        return plan_jobs(round_, rates, seed)

    def cut(job: Job) -> Subnet:
        pieces = cut_at(job.rate, partial(window, job.round - 1 if moves else 0))
        return {tensor: replace(piece, scale=1.0) for tensor, piece in pieces.items()}

    def local(pieces: Subnet, values: Params, job: Job, batches: Batches, memory: Memory) -> tuple[Update, Memory]:
        return train_subnet(setup, network_for(pieces), pieces, values, job, batches), memory

    def sizes(rate: float) -> Sizes:
        return Sizes(kept=sizes_at(rate))

    def merge(state: State, params: Params, updates: Iterable[tuple[Job, Update]]) -> tuple[Params, State]:
        return setup.average(params, updates), state

    lines: tuple[str, ...] = ()
    if setup.rates is not None:
        widest = kept_units(graph, cut_at(min(setup.rates), partial(window, 0)))
        lines = tuple(_untrained_units(graph, widest, setup.rounds - 1 if moves else 0))
    sized = None if config.layer_rates else sizes
    method = Method(init, plan, cut, local, merge, sizes=sized, linear=merge, notices=lines)
    return method._replace(at=partial(device_network, setup, method, prepare=scale))


def _scaler(setup: Setup, *, moves: bool) -> Callable[[nn.Module, Mapping[str, int]], None]:
    """Return the function that makes a smaller network divide by the share of units kept, as in both papers.

    The output of a hidden layer is divided. A depthwise or grouped convolution reads the units that it produces, which
    are divided already, so its input is multiplied back. Before a norm with running statistics, division has no effect
    on the output but falsifies the statistics: there a moving window divides in the layers that read the units, and a
    fixed window not at all. The units of a recurrent layer are divided in the layers that read them, itself included.
    """
    model, graph = setup.model, setup.blueprint().units
    normed = {axis.group for name, axes in graph.axes.items() if is_statistic(name) for axis in axes}
    recurrent = {group for user, group in _uses(graph, "out") if isinstance(model.get_submodule(user[1]), nn.RNNBase)}
    makers = _users(model, graph, "out", lambda group: group not in normed | recurrent)
    readers = _users(model, graph, "in", lambda group: moves if group in normed else group in recurrent)
    _check_calls(setup, {layer for layer, _ in (*makers, *readers)})

    def scale_up(network: nn.Module, sizes: Mapping[str, int]) -> None:
        for layer, group in makers:
            factor, module = graph.groups[group] / sizes[group], network.get_submodule(layer)
            full = model.get_submodule(layer)
            if isinstance(module, CutAttention) and graph.heads[layer][1] == group:
                module.factor = factor
                continue
            if isinstance(full, _ConvNd) and full.groups > 1:
                module.register_forward_pre_hook(partial(_read, 1.0 / factor), with_kwargs=True)
            module.register_forward_hook(partial(_given, factor))
        for layer, group in readers:
            factor, module = graph.groups[group] / sizes[group], network.get_submodule(layer)
            if isinstance(module, nn.RNNBase):
                names = {
                    name.rpartition(".")[2]
                    for (name, user), read in _uses(graph, "in")
                    if (user, read) == (layer, group)
                }
                module.register_forward_pre_hook(partial(_scale_weights, factor, names))
                module.register_forward_hook(_own_weights)
            else:
                module.register_forward_pre_hook(partial(_read, factor), with_kwargs=True)

    return scale_up


def _users(model: nn.Module, graph: UnitGraph, role: str, chosen: Callable[[str], bool]) -> list[tuple[str, str]]:
    """Return the modules that produce ("out") or read ("in") units of the chosen groups, with the group.

    Tied weights have several. A weight used outside the module that owns it has no place for a hook.
    """
    uses = [use for use in _uses(graph, role) if chosen(use[1])]
    for (name, user), _ in uses:
        weight, module = model.get_parameter(name), model.get_submodule(user)
        owned = any(p is weight for p in module.parameters())
        if not (owned and isinstance(module, nn.Linear | _ConvNd | nn.RNNBase | nn.MultiheadAttention)):
            raise SubnetError(
                f"the weight {name!r} is used in {place([user])} ({type(module).__name__}), but windows can only scale "
                "calls of nn.Linear, convolutions, recurrent layers and nn.MultiheadAttention. Call a module, as in "
                "self.layer(x), or use 'feddrop'."
            )
    return list(dict.fromkeys((user, group) for (_, user), group in uses))


def _uses(graph: UnitGraph, role: str) -> list[tuple[tuple[str, str], str]]:
    """Return (weight, module that uses it) and group, for every group that a weight produces or reads."""
    return [
        ((name, user), axis.group)
        for name, users in graph.users.items()
        for user in users
        for axis in graph.axes[name]
        if axis.role == role
    ]


def _check_calls(setup: Setup, layers: Collection[str]) -> None:
    """Raise a SubnetError if a custom layer takes or returns anything but one tensor, which could not be divided."""
    copy = twin(setup.model)

    def check(layer: str, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not isinstance(output, Tensor) or len(list(tensors_in((args, kwargs)))) != 1:
            raise SubnetError(
                f"layer {layer!r} takes several tensors or returns a {type(output).__name__}; windows scale layers "
                "that take and return one tensor. Change it, or use the method 'feddrop'."
            )

    custom = [layer for layer in layers if not type(copy.get_submodule(layer)).__module__.startswith("torch.nn.")]
    for layer in custom:
        copy.get_submodule(layer).register_forward_hook(partial(check, layer), with_kwargs=True)
    if custom:
        with torch.no_grad(), random_state_kept(copy):
            copy(*example_inputs(copy, setup.example, 2))


def _untrained_units(graph: UnitGraph, widest: Mapping[str, int], moved: int) -> Iterator[str]:
    """Report units outside all windows, given the units of the widest window and how far it moves in all rounds."""
    unheld = sum(max(0, units - widest[group] - moved) for group, units in graph.groups.items())
    if unheld:
        yield (
            f"{unheld} of {sum(graph.groups.values())} hidden units are in no device's window in any round: they keep "
            "their initial values, but the full network is tested. A device with rate 0 and no layer_rates trains all."
        )


def window(start: int, _: str, units: int, share: float) -> Index | None:
    """Return the sorted units of a window that starts at ``start`` and wraps around; None for all units."""
    kept = kept_count(units, share)
    return None if kept == units else np.sort((start + np.arange(kept)) % units)


def _given(factor: float, _: nn.Module, __: Any, output: Any) -> Any:
    return output * factor if isinstance(output, Tensor) else (output[0] * factor, *output[1:])


def _read(factor: float, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    masks = range(3, len(args)) if isinstance(module, nn.MultiheadAttention) else ()

    def scaled(name: int | str, given: Any) -> Any:
        return given * factor if isinstance(given, Tensor) and name not in masks and "mask" not in str(name) else given

    return tuple(starmap(scaled, enumerate(args))), {name: scaled(name, given) for name, given in kwargs.items()}


def _scale_weights(factor: float, names: Collection[str], module: nn.RNNBase, _: Any) -> None:
    """Let a recurrent layer read units times a factor: its next call uses scaled weights."""
    module._update_flat_weights()
    weights = zip(module._flat_weights_names, module._flat_weights, strict=True)
    module._flat_weights = [w * factor if w is not None and name in names else w for name, w in weights]


def _own_weights(module: nn.RNNBase, *_: Any) -> None:
    module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]
