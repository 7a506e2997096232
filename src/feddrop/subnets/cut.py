"""Cut a subnet out of a network: which layers are dropped from, at which level, and what is kept of every tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial

from torch import nn

from feddrop.config import Subnets
from feddrop.errors import ConfigError
from feddrop.subnets import parameters
from feddrop.subnets.blueprint import Blueprint
from feddrop.subnets.masks import check_rate, kept_count, kept_positions
from feddrop.subnets.piece import Index, Piece, Subnet
from feddrop.subnets.units import UnitGraph, shrink, unit_pieces

Choose = Callable[[str, int, float], Index | None]
"""Maps a group of units, their number and the share to keep to the sorted units kept; None for all."""


def cutter(blueprint: Blueprint, config: Subnets) -> Callable[[int, float], Subnet]:
    """Return the function ``(seed, rate) -> Subnet``, which is the same at server and device."""
    if config.level == "unit":
        cut_units = unit_cutter(blueprint, config)
        return lambda seed, rate: cut_units(rate, partial(_random_units, seed, config.count))
    rate_of, droppable = layer_rates(blueprint, config), _droppable(blueprint, config)

    @lru_cache(maxsize=256)
    def at_rate(rate: float) -> dict[str, Piece]:
        """Return the pieces of a rate without their positions; those that keep everything are complete."""
        check_rate(rate)
        keep = {name: 1.0 - rate_of(layer, rate) for name, layer in droppable.items()}
        return {
            name: Piece(shape=shape, sub_shape=shape, scale=1.0 / keep.get(name, 1.0))
            for name, shape in blueprint.shapes.items()
        }

    def cut_weights(seed: int, rate: float) -> Subnet:
        subnet = dict(at_rate(rate))
        for name, layer in droppable.items():
            piece, keep = subnet[name], 1.0 - rate_of(layer, rate)
            index = kept_positions(seed, name, piece.size, keep, config.count)
            if index is not None:
                subnet[name] = Piece(shape=piece.shape, index=index, sub_shape=piece.shape, scale=piece.scale)
        return subnet

    return cut_weights


def unit_cutter(blueprint: Blueprint, config: Subnets) -> Callable[[float, Choose], Subnet]:
    """Return the function ``(rate, choose) -> Subnet`` at the unit level."""
    rate_of, graph = layer_rates(blueprint, config), blueprint.units

    def cut_units(rate: float, choose: Choose) -> Subnet:
        check_rate(rate)
        kept = {}
        for group, share in shares_at(rate).items():
            index = choose(group, graph.groups[group], share)
            if index is not None:
                kept[group] = index
        return unit_pieces(graph, blueprint.shapes, kept)

    @lru_cache(maxsize=256)
    def shares_at(rate: float) -> dict[str, float]:
        return unit_shares(blueprint, graph, {layer: rate_of(layer, rate) for layer in blueprint.layers})

    return cut_units


def _random_units(seed: int, count: str, group: str, units: int, share: float) -> Index | None:
    return kept_positions(seed, group, units, share, count)


def unit_shares(blueprint: Blueprint, graph: UnitGraph, rates: Mapping[str, float]) -> dict[str, float]:
    """Return the share of units kept in every group for which the subnet has the size that the rates demand.

    Keeping a share sqrt(1-γ) of the units keeps 1-γ of the weights between two cut layers (the paper's x² = 1-γ), but
    sqrt(1-γ) of those in the first and last layer, whose outer side is not cut. All shares are therefore multiplied by
    one factor, slightly below 1, at which the subnet has Σ (1-γ)·weights + biases values, as at the weight level.
    Weights outside all groups (tables) are kept whole and do not count towards this target.
    """
    wanted = {
        group: math.sqrt(1.0 - max(rates.get(layer, 0.0) for layer in graph.layers[group])) for group in graph.groups
    }
    target = sum(
        math.prod(shape)
        * (1.0 - rates[blueprint.weights[name]] if name in blueprint.weights and graph.axes.get(name) else 1.0)
        for name, shape in blueprint.shapes.items()
    )

    def shares(factor: float) -> dict[str, float]:
        # Rounded, so that groups whose counts change at the same share (5 and 25 units at 0.9) change together at every
        # rate, and a higher rate never keeps more.
        return {group: round(share * factor, 9) if share < 1.0 else 1.0 for group, share in wanted.items()}

    def size(factor: float) -> int:
        return sum(_unit_sizes(blueprint, graph, shares(factor)).values())

    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2.0
        low, high = (middle, high) if size(middle) <= target else (low, middle)
    return shares(min((low, high), key=lambda factor: abs(size(factor) - target)))


def kept_sizes(blueprint: Blueprint, config: Subnets, rate: float) -> dict[str, int]:
    """Return the number of values kept of every tensor at a rate; with ``count="bernoulli"``, the expected, rounded."""
    rate_of, droppable = layer_rates(blueprint, config), _droppable(blueprint, config)
    if config.level == "unit":
        rates = {layer: rate_of(layer, rate) for layer in blueprint.layers}
        return _unit_sizes(blueprint, blueprint.units, unit_shares(blueprint, blueprint.units, rates))
    return {
        name: kept_count(math.prod(shape), 1.0 - rate_of(droppable[name], rate))
        if name in droppable
        else math.prod(shape)
        for name, shape in blueprint.shapes.items()
    }


def _unit_sizes(blueprint: Blueprint, graph: UnitGraph, shares: Mapping[str, float]) -> dict[str, int]:
    kept = {group: kept_count(graph.groups[group], share) for group, share in shares.items()}
    sizes = {}
    for name, shape in blueprint.shapes.items():
        sides = list(shape)
        for axis in graph.axes.get(name, ()):
            sides[axis.dim] = axis.size(kept[axis.group])
        sizes[name] = math.prod(sides)
    return sizes


def _droppable(blueprint: Blueprint, config: Subnets) -> dict[str, str]:
    return blueprint.weights | blueprint.biases if config.biases else blueprint.weights


def layer_rates(blueprint: Blueprint, config: Subnets) -> Callable[[str, float], float]:
    """Return the function from a layer and a device's rate to the rate of that layer."""
    named = () if isinstance(config.layers, str) else config.layers
    for name in (*config.layer_rates, *named):
        blueprint.droppable_layer(name, "a layer of method.layers or method.layer_rates")
    chosen = {"all": frozenset(blueprint.layers), "linear": blueprint.linear}.get(str(config.layers), frozenset(named))

    def rate_of(layer: str, rate: float) -> float:
        return config.layer_rates.get(layer, rate if layer in chosen else 0.0)

    if config.layers != "all" or config.layer_rates:
        _check_effect(blueprint, config, rate_of)
    return rate_of


def _check_effect(blueprint: Blueprint, config: Subnets, rate_of: Callable[[str, float], float]) -> None:
    """Raise a ConfigError if no rate would drop anything."""
    able = blueprint.layers
    if config.level == "unit":
        able = [layer for layers in blueprint.units.layers.values() for layer in layers]
    if not any(rate_of(layer, 0.5) for layer in able):
        raise ConfigError(
            f"method.layers is {config.layers!r} and method.layer_rates is {dict(config.layer_rates)}, which drops "
            f"nothing from this network at any rate. Name some of {able}, or use 'all'."
        )


def shrinker(
    model: nn.Module, blueprint: Blueprint, prepare: Callable[[nn.Module, dict[str, int]], None] | None = None
) -> Callable[[Subnet], nn.Module]:
    """Return the function from a subnet to a network of its shapes: the model itself if nothing is smaller.

    The last network is cached, since a device's rate often stays the same. ``prepare`` is called with every new network
    and the number of units in each of its groups.
    """
    last: dict[tuple[tuple[int, ...], ...], nn.Module] = {}

    def network_for(subnet: Subnet) -> nn.Module:
        if all(piece.sub_shape == piece.shape for piece in subnet.values()):
            return model
        shapes = tuple(piece.sub_shape for piece in subnet.values())
        if shapes not in last:
            last.clear()
            sizes = kept_units(blueprint.units, subnet)
            last[shapes] = shrink(model, blueprint.units, sizes)
            if prepare is not None:
                prepare(last[shapes], sizes)
        parameters.load_into(last[shapes], parameters.counters(model))
        return last[shapes]

    return network_for


def kept_units(graph: UnitGraph, subnet: Subnet) -> dict[str, int]:
    """Return the number of units that a subnet keeps in every group."""
    return {
        axis.group: subnet[name].sub_shape[axis.dim] // axis.size(1)
        for name, axes in graph.axes.items()
        for axis in axes
    }
