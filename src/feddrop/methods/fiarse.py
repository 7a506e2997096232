"""FIARSE: a device trains the largest weights of the network, as many as its rate allows.

A weight takes part in a minibatch only while its magnitude is at least the threshold θ of the round's start, so that
importance is learned with the weights: weights below θ are inactive, and those just above it move faster. The trained
network can be cut to any size. ``docs/fiarse.md`` lists the differences from the paper. With rate 0
for every device it is federated averaging.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from feddrop.config import FIARSE
from feddrop.learning.batches import Inputs
from feddrop.learning.local import safe_layout
from feddrop.methods.masking import LargestWeights
from feddrop.methods.method import Batches, Job, Memory, Method, Setup, State, Update, plan_jobs, train_subnet
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Subnet, from_device_shape

_NEXT_TO_NOTHING = 1e-18
"""The smallest θ used; its square does not underflow in float32, and smaller weights do not matter."""


def build_fiarse(setup: Setup, config: FIARSE) -> Method:
    """Build FIARSE.

    Example:
        >>> from torch import nn, zeros
        >>> import feddrop
        >>> setup = feddrop.Setup(model=nn.Linear(8, 4), example=zeros(1, 8), rounds=3)
        >>> method = feddrop.build_method(feddrop.FIARSE(threshold="layer"), setup)
        >>> method.sizes(0.75).kept, method.sizes(0.75).push_bytes
        ({'weight': 8, 'bias': 4}, 16)
    """
    layout = _Layout(setup.model, by_layer=config.threshold == "layer")

    def init(_: Params) -> State:
        return {}

    def plan(_: State, held: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
        return layout.jobs(held, plan_jobs(round_, rates, seed))

    def local(pieces: Subnet, values: Params, job: Job, batches: Batches, memory: Memory) -> tuple[Update, Memory]:
        floors = layout.thresholds(pieces, values)

        def objective(network: nn.Module, x: Inputs, y: Tensor) -> Tensor:
            named = dict(network.named_parameters())
            large = {name: _large(named[name], floor) for name, floor in floors.items()}
            return setup.loss(functional_call(network, large, safe_layout(network, x)), y)

        return train_subnet(setup, setup.model, pieces, values, job, batches, objective=objective), memory

    def merge(state: State, before: Params, updates: Iterable[tuple[Job, Update]]) -> tuple[Params, State]:
        return setup.average(before, updates), state

    sizes = layout.sizes if layout.by_layer else None
    return Method(init, plan, layout.cut, local, merge, sizes=sizes, linear=merge, notices=(*_small_weights(setup),))


def _small_weights(setup: Setup) -> Iterator[str]:
    """Report weights that no device trains."""
    if setup.rates is not None and min(setup.rates, default=0.0) > 0.0:
        yield (
            f"no device trains more than {1.0 - min(setup.rates):.0%} of the weights: the smallest weights are "
            "hardly trained, but the full network is tested. Give a device rate 0, or set eval_rates to test what "
            "devices hold."
        )


class _Layout(LargestWeights):
    """Finds the largest weights at any rate, and their thresholds."""

    def thresholds(self, pieces: Subnet, values: Params) -> dict[str, float]:
        """Return θ of every cut weight tensor: the smallest magnitude that the device holds."""
        cut = [name for name in self.weights if pieces[name].index is not None]
        among = self.weights if cut and not self.by_layer else cut
        held = {name: from_device_shape(values[name], pieces[name]) for name in among if pieces[name].size}
        floors = {name: float(kept.abs().min()) for name, kept in held.items()}
        if floors and not self.by_layer:
            floors = dict.fromkeys(self.weights, min(floors.values()))
        return {name: floor for name, floor in floors.items() if floor > _NEXT_TO_NOTHING}


def _large(weight: Tensor, threshold: float) -> Tensor:
    large: Tensor = _Large.apply(weight, threshold)  # type: ignore[no-untyped-call]
    return large


class _Large(torch.autograd.Function):
    """Replaces weights of magnitude below θ by zeros.

    The gradient of the others is multiplied by 1 + 2θ|w|/(|w|+θ)², which is 1.5 at θ and falls towards 1; zeroed
    weights have no gradient.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, threshold: float) -> Tensor:
        size = weight.abs().to(torch.promote_types(weight.dtype, torch.float32))  # squares underflow in float16
        active = size >= threshold
        factor = active * (1.0 + 2.0 * threshold * size / (size + threshold).square())
        ctx.save_for_backward(factor.to(weight.dtype))
        return weight * active

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        return slopes[0] * factor, None
