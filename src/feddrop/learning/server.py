"""Server optimizers: use the mean of the updates unchanged, or as the gradient of a server step.

The optimizers are those of adaptive federated optimisation: with Δ the change made by the method's merge,

    fedavgm      v = momentum·v + Δ,                                   w = w + lr·v
    fedadagrad   m = β₁m + (1-β₁)Δ,  v = v + Δ²,                       w = w + lr·m/(√v + τ)
    fedadam      m = β₁m + (1-β₁)Δ,  v = β₂v + (1-β₂)Δ²,               w = w + lr·m/(√v + τ)
    fedyogi      m = β₁m + (1-β₁)Δ,  v = v - (1-β₂)Δ²·sign(v - Δ²),    w = w + lr·m/(√v + τ)

Norm statistics are not weights: they are used as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from feddrop.config import Server
from feddrop.config.server import ADAPTIVE
from feddrop.subnets.parameters import Params


def first_state(config: Server, params: Params) -> Params:
    """Return the initial state of the server's optimizer: one or two moments of every weight.

    They are at least float32, since τ² and squares of small changes underflow in float16.
    """
    if config.optimizer == "average":
        return {}
    zeros = {name: torch.zeros_like(w, dtype=torch.promote_types(w.dtype, torch.float32)) for name, w in params.items()}
    moments = {f"moment/{name}": zero for name, zero in zeros.items()}
    if config.optimizer in ADAPTIVE:
        moments |= {f"square/{name}": torch.full_like(zero, config.tau**2) for name, zero in zeros.items()}
    return moments


def server_step(
    config: Server, state: Params, before: Params, after: Params, weights: Collection[str]
) -> tuple[Params, Params]:
    """Take a server step from the parameters before the round to those after the method's merge.

    Only the trained parameters, ``weights``, take it; the others are taken from ``after``. Returns the new parameters
    and the optimizer's new state.
    """
    if config.optimizer == "average":
        return after, state
    params, kept = dict(after), dict(state)
    for name in weights:
        old = before[name].to(state[f"moment/{name}"].dtype)
        change = after[name] - old
        moment = state[f"moment/{name}"]
        if config.optimizer == "fedavgm":
            moment = config.momentum * moment + change
            step = moment
        else:
            moment = config.momentum * moment + (1.0 - config.momentum) * change
            square = _SQUARES[config.optimizer](state[f"square/{name}"], change * change, config.beta2)
            kept[f"square/{name}"] = square
            step = moment / (square.sqrt() + config.tau)
        kept[f"moment/{name}"] = moment
        params[name] = (old + config.lr * step).to(before[name].dtype)
    return params, kept


_SQUARES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "fedadagrad": lambda v, d2, _: v + d2,
    "fedadam": lambda v, d2, beta: beta * v + (1.0 - beta) * d2,
    "fedyogi": lambda v, d2, beta: v - (1.0 - beta) * d2 * torch.sign(v - d2),
}
