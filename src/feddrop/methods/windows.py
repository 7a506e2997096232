"""HeteroFL and FedRolex: a device trains a window of the units of every hidden layer.

HeteroFL's window is always the first units; FedRolex's moves on by one unit a round, and wraps around. Devices of one
rate have the same window. ``docs/windows.md`` tells what is theirs and what is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from feddrop.aggregation import HoldersMean
from feddrop.errors import ConfigError, SubnetError, one_of
from feddrop.method import Assignment, Batches, Method, State, Update
from feddrop.params import Params
from feddrop.seeds import derive
from feddrop.subnets.cut import SubnetConfig, blueprint, shrinker, unit_cutter
from feddrop.subnets.masks import kept_count
from feddrop.subnets.piece import Index, Subnet
from feddrop.training import Loss, TrainConfig, trained

NAMES = ("heterofl", "fedrolex")


def windows(
    model: nn.Module,
    input_shape: tuple[int, ...],
    *,
    name: str,
    subnet: SubnetConfig,
    train_config: TrainConfig,
    rounds: int,
    loss: Loss = nn.functional.cross_entropy,
) -> Method:
    """Build HeteroFL or FedRolex for a network. With rate 0 for every device both are federated averaging.

    Args:
        model: the network; used as a template, and as the place where whole subnets are trained.
        input_shape: shape of one sample.
        name: ``"heterofl"`` or ``"fedrolex"``.
        subnet: what is dropped; its level must be ``"unit"``, its count ``"exact"``.
        train_config: local SGD.
        rounds: rounds in all, for the learning-rate schedule.
        loss: ``(outputs, targets) -> mean loss``.
    """
    one_of("name", name, NAMES)
    if (subnet.level, subnet.count) != ("unit", "exact"):
        raise ConfigError(
            f"subnet.level is {subnet.level!r} and subnet.count {subnet.count!r}, but {name} keeps a window of units. "
            'Use subnet.level = "unit" and subnet.count = "exact".'
        )
    plan_of = blueprint(model, input_shape, level="unit")
    cut_at = unit_cutter(plan_of, subnet)
    graph = plan_of.units
    assert graph is not None  # noqa: S101 -- so it is at the unit level
    for layer in (layer for layers in graph.layers.values() for layer in layers):
        if not isinstance(model.get_submodule(layer), nn.Linear | _ConvNd):
            raise SubnetError(
                f"the weights of layer {layer!r} are used by a {type(model.get_submodule(layer)).__name__}, and {name} "
                "scales what nn.Linear and convolution modules give. Use those modules, or the method 'feddrop'."
            )

    def scale_up(network: nn.Module, sizes: Mapping[str, int]) -> None:
        """Divide what the hidden layers give by the share of their units that is left, as theirs do in training."""
        for group, layers in graph.layers.items():
            for layer in layers:
                factor = graph.groups[group] / sizes[group]
                network.get_submodule(layer).register_forward_hook(partial(_times, factor))

    network_for = shrinker(model, plan_of, scale_up)

    def init(_: Params) -> State:
        return {}

    def plan(_: State, __: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Assignment]:
        return [
            Assignment(
                round=round_, device=device, seed=derive(seed, "device", round_, device), rate=rate, level="unit"
            )
            for device, rate in sorted(rates.items())
        ]

    def cut(assignment: Assignment) -> Subnet:
        start = assignment.round - 1 if name == "fedrolex" else 0
        pieces = cut_at(assignment.rate, partial(window, start))
        return {tensor: replace(piece, scale=1.0) for tensor, piece in pieces.items()}

    def local(pieces: Subnet, values: Params, assignment: Assignment, batches: Batches) -> Update:
        lr = train_config.lr_at(assignment.round, rounds)
        return trained(network_for(pieces), pieces, values, assignment, batches, train_config, lr=lr, loss=loss)

    def merge(state: State, whole: Params, updates: Iterable[Update]) -> tuple[Params, State]:
        mean = HoldersMean(whole)
        for update in updates:
            for tensor, piece in update.subnet.items():
                mean.add(tensor, update.values[tensor], piece, update.samples)
        return mean.added_to(whole), state

    return Method(init=init, plan=plan, cut=cut, local=local, merge=merge)


def window(start: int, _: str, units: int, share: float) -> Index | None:
    """Return the units of a window that begins at ``start`` and wraps around, sorted; None if it is all of them."""
    kept = kept_count(units, share)
    return None if kept == units else np.sort((start + np.arange(kept)) % units)


def _times(factor: float, _: nn.Module, __: Any, output: Tensor) -> Tensor:
    return output * factor
