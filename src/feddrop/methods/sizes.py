"""The sub-model that a device at a given rate holds: what it keeps of the network, and how to run it."""

from __future__ import annotations

import math
from collections.abc import Callable, Set

from torch import nn

from feddrop.errors import ConfigError
from feddrop.methods.method import Method, Setup, State
from feddrop.seeds import derive
from feddrop.subnets import parameters
from feddrop.subnets.cut import kept_units
from feddrop.subnets.masks import check_rate
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Subnet, scaled, to_device_shape, without
from feddrop.subnets.probe import structural_copy
from feddrop.subnets.units import shrink

Prepare = Callable[[nn.Module, dict[str, int]], None]
"""Changes a smaller network, given the number of units in each of its groups."""


def device_network(
    setup: Setup,
    method: Method,
    state: State,
    params: Params,
    round_: int,
    rate: float,
    seed: int,
    *,
    prepare: Prepare | None = None,
) -> nn.Module:
    """Return the network that a device at a given rate receives in a round, in evaluation mode.

    It is smaller and dense at the unit level, and of full shape with zeros at the weight level. A custom method whose
    devices run what they receive can use it as its ``at``::

        method = Method(init, plan, cut, local, merge)
        return method._replace(at=partial(device_network, setup, method))

    Args:
        setup: the setup of the method.
        method: the method.
        state: its state.
        params: the trained parameters.
        round_: round, from 1.
        rate: dropout rate γ.
        seed: root seed of random choices.
        prepare: called with a network that is smaller.
    """
    subnet = held_subnet(method, state, params, round_, rate, seed)
    if all(piece.sub_shape == piece.shape for piece in subnet.values()):
        network = structural_copy(setup.model, lambda _, tensor: tensor.detach().clone())
    else:
        graph = setup.blueprint().units
        sizes = kept_units(graph, subnet)
        network = shrink(setup.model, graph, sizes)
        if prepare is not None:
            prepare(network, sizes)
    values = {name: to_device_shape(scaled(params[name], piece), piece) for name, piece in subnet.items()}
    parameters.load_into(network, values)
    return network.eval()


def held_subnet(method: Method, state: State, params: Params, round_: int, rate: float, seed: int) -> Subnet:
    """Return the subnet of a device at a given rate in a round."""
    return method.cut(method.plan(state, params, round_, {0: check_rate(rate)}, seed)[0])


def kept_share(subnet: Subnet, frozen: Set[str] = frozenset()) -> float:
    """Return the share of the values that a subnet keeps, of those that are sent."""
    sent = without(subnet, frozen).values()
    return sum(piece.size for piece in sent) / max(1, sum(math.prod(piece.shape) for piece in sent))


def sub_model(
    method: Method, state: State, params: Params, round_: int, rate: float, seed: int, draw: int = 0
) -> nn.Module:
    """Return the sub-model of a device at a given rate; ``draw`` says which, for methods that draw them."""
    if method.at is None:
        raise ConfigError(NO_AT)
    return method.at(state, params, round_, check_rate(rate), derive(seed, "size", draw))


NO_AT = (
    "the custom method does not say which sub-model a device at a given rate holds. Give its Method an at=..., such as "
    "functools.partial(feddrop.device_network, setup, method), or ask for the full network only."
)
