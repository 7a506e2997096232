"""HeteroFL and FedRolex: a device trains a window of the units of every hidden layer.

HeteroFL's window is always the first units; FedRolex's moves on by one unit a round, and wraps around. Devices of one
rate have the same window. ``docs/windows.md`` tells what is theirs and what is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from feddrop.errors import SubnetError
from feddrop.methods.method import Batches, Job, Memory, Method, Setup, Sizes, State, Update, jobs, trained
from feddrop.params import Params
from feddrop.subnets.cut import SubnetConfig, shrinker, sizer, unit_cutter
from feddrop.subnets.masks import kept_count
from feddrop.subnets.piece import Index, Subnet


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowConfig:
    """HeteroFL and FedRolex.

    Attributes:
        layers: ``"all"``, ``"linear"`` (fully-connected layers only), or the names of the layers that are dropped.
        layer_rates: rates of single layers, by name, in place of the device's own rate.
    """

    layers: str | tuple[str, ...] = "all"
    layer_rates: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.subnet()

    def subnet(self) -> SubnetConfig:
        """Return what is dropped, as the unit level takes it."""
        return SubnetConfig(level="unit", layers=self.layers, layer_rates=self.layer_rates)


def heterofl(setup: Setup, config: WindowConfig) -> Method:
    """Build HeteroFL. With rate 0 for every device it is federated averaging."""
    return _windows(setup, config, lambda _: 0)


def fedrolex(setup: Setup, config: WindowConfig) -> Method:
    """Build FedRolex. With rate 0 for every device it is federated averaging."""
    return _windows(setup, config, lambda round_: round_ - 1)


def _windows(setup: Setup, config: WindowConfig, start_of: Callable[[int], int]) -> Method:
    """Build a method whose window starts, in every round, where ``start_of`` says."""
    plan_of, subnet = setup.blueprint(), config.subnet()
    cut_at, sizes_at = unit_cutter(plan_of, subnet), sizer(plan_of, subnet)
    graph = plan_of.units
    for layer in (layer for layers in graph.layers.values() for layer in layers):
        if not isinstance(setup.model.get_submodule(layer), nn.Linear | _ConvNd):
            raise SubnetError(
                f"the weights of layer {layer!r} are used by a {type(setup.model.get_submodule(layer)).__name__}, and "
                "windows scale what nn.Linear and convolution modules give. Use those modules, or the method 'feddrop'."
            )

    def scale_up(network: nn.Module, sizes: Mapping[str, int]) -> None:
        """Divide what the hidden layers give by the share of their units that is left, as theirs do in training."""
        for group, layers in graph.layers.items():
            for layer in layers:
                factor = graph.groups[group] / sizes[group]
                network.get_submodule(layer).register_forward_hook(partial(_times, factor))

    network_for = shrinker(setup.model, plan_of, scale_up)

    def init(_: Params) -> State:
        return {}

    def plan(_: State, __: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
        return jobs(round_, rates, seed)

    def cut(job: Job) -> Subnet:
        pieces = cut_at(job.rate, partial(window, start_of(job.round)))
        return {tensor: replace(piece, scale=1.0) for tensor, piece in pieces.items()}

    def local(pieces: Subnet, values: Params, job: Job, batches: Batches, memory: Memory) -> tuple[Update, Memory]:
        return trained(setup, network_for(pieces), pieces, values, job, batches), memory

    def sizes(rate: float) -> Sizes:
        return Sizes(kept=sizes_at(rate))

    def merge(state: State, params: Params, updates: Iterable[tuple[Job, Update]]) -> tuple[Params, State]:
        return over_holders(setup, params, updates), state

    return Method(init, plan, cut, local, merge, sizes=None if config.layer_rates else sizes)


def over_holders(setup: Setup, params: Params, updates: Iterable[tuple[Job, Update]]) -> Params:
    """Average each entry over the devices that held it; what nobody held stays as it is."""
    mean = setup.mean_of(params, over="holders")
    for _, update in updates:
        for tensor, piece in update.subnet.items():
            mean.add(tensor, update.values[tensor], piece, update.num_samples)
    return {name: params[name] + step for name, step in mean.mean().items()}


def window(start: int, _: str, units: int, share: float) -> Index | None:
    """Return the units of a window that begins at ``start`` and wraps around, sorted; None if it is all of them."""
    kept = kept_count(units, share)
    return None if kept == units else np.sort((start + np.arange(kept)) % units)


def _times(factor: float, _: nn.Module, __: Any, output: Tensor) -> Tensor:
    return output * factor
