"""The reference implementation of federated dropout at the weight level: dense masks and plain loops, as in the paper.

Slow and obvious: no frames, no pieces, no executors. ``tests/simulation/test_reference.py`` requires a run to equal it
bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from feddrop.config import Train
from feddrop.learning.batches import channels_last
from feddrop.seeds import derive, permutation
from feddrop.subnets.masks import kept_positions
from feddrop.subnets.parameters import Params, from_model, load_into


def train_reference(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    parts: Sequence[Tensor],
    rates: Sequence[float],
    *,
    rounds: int,
    seed: int,
    train: Train,
    rule: str = "delta",
    factor: bool = True,
    count: str = "exact",
) -> Params:
    """Train a network by federated dropout over the weights of all layers, and return its parameters."""
    w = from_model(model)
    for t in range(1, rounds + 1):
        total = {name: torch.zeros_like(value) for name, value in w.items()}
        holders = {name: torch.zeros_like(value) for name, value in w.items()}
        samples = 0
        for k, (part, gamma) in enumerate(zip(parts, rates, strict=True)):
            device_seed = derive(seed, "device", t, k)
            m = {name: mask(device_seed, name, value, gamma, count) for name, value in w.items()}  # eq. Eq:DropoutMask
            w_hat = {name: value * m[name] for name, value in w.items()}
            moved = update(model, w_hat, m, x[part], y[part], train, device_seed, train.lr_at(t, rounds))
            for name in w:
                kept = (m[name] != 0).float()
                if rule == "model":
                    term = w_hat[name] + moved[name]
                elif rule == "holders":
                    term = torch.where(kept > 0, moved[name] / m[name], 0.0) if factor else moved[name]
                else:
                    term = moved[name] * m[name] if factor else moved[name]
                total[name].add_(term, alpha=len(part))
                holders[name].add_(kept, alpha=len(part))
            samples += len(part)
        for name in w:
            if rule == "model":
                w[name] = total[name] / samples
            elif rule == "holders":
                w[name] = w[name] + total[name] / holders[name].clamp(min=1.0)
            else:
                w[name] = w[name] + total[name] / samples  # eq. basic1
    return w


def mask(device_seed: int, name: str, w: Tensor, gamma: float, count: str) -> Tensor:
    """Return m: 1/(1-γ) where a weight is kept, 0 where it is dropped; biases and norms are all kept."""
    if w.ndim < 2 or gamma == 0.0:
        return torch.ones_like(w)
    kept = kept_positions(derive(device_seed, "mask"), name, w.numel(), 1.0 - gamma, count)
    flat = np.zeros(w.numel(), np.float32)
    flat[slice(None) if kept is None else kept] = 1.0 / (1.0 - gamma)
    return torch.from_numpy(flat).reshape(w.shape)


def update(
    model: nn.Module, w_hat: Params, m: Params, x: Tensor, y: Tensor, train: Train, device_seed: int, lr: float
) -> Params:
    """Train a subnet by SGD on local data and return how far it moved."""
    load_into(model, w_hat)
    model.train()
    velocity: Params = {}
    for epoch in range(train.epochs):
        order = torch.from_numpy(permutation(derive(device_seed, "order", epoch), len(y)))
        for batch in torch.split(order, train.batch_size):
            loss = nn.functional.cross_entropy(model(channels_last(x[batch])), y[batch])
            model.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for name, p in model.named_parameters():
                    if p.grad is None:
                        continue
                    g = torch.where(m[name] != 0, p.grad, 0.0)
                    g = g.add(p, alpha=train.weight_decay) if train.weight_decay else g
                    if train.momentum:
                        velocity[name] = velocity[name].mul(train.momentum).add(g) if name in velocity else g
                        g = velocity[name]
                    p.add_(g, alpha=-lr)
    return {name: value - w_hat[name] for name, value in from_model(model).items()}
