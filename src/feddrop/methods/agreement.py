"""Gradient masked averaging: a server step that damps entries on whose direction the devices disagree.

With Δ_kj the change of entry j by device k, over the n_j devices that hold it,

    A_j = |Σ_k sign(Δ_kj)| / n_j,     M_j = 1 if A_j ≥ τ else A_j,     w_j = w_j + M_j · (the method's step)_j.

The method's own mean is inside, so this works around every method. ``docs/around.md`` says which parts are the paper's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from feddrop.methods.method import Job, Method, Setup, State, Update
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import scatter

AGREEMENT = "agreement"
"""The name in state and record of the mean of A over the entries that at least two devices hold."""


def with_agreement(method: Method, setup: Setup) -> Method:
    """Return a method whose merge is masked by the agreement of the devices, with τ = ``server.agreement``."""
    learned = [name for name, p in setup.model.named_parameters() if p.requires_grad]
    settle, notes, at = method.settle, method.notes, method.at

    def init(params: Params) -> State:
        return {**method.init(params), AGREEMENT: torch.ones(1)}

    def merge(state: State, params: Params, updates: Iterable[tuple[Job, Update]]) -> tuple[Params, State]:
        votes = Votes({name: params[name] for name in learned})
        after, new = method.merge(_inner(state), params, votes.counted(updates))
        before = settle(new, params) if settle else params
        masked = dict(after)
        for name in learned:
            mask = votes.mask(name, setup.server.agreement)
            damped = before[name].float() + mask * (after[name].float() - before[name].float())
            masked[name] = torch.where(mask == 1, after[name], damped.to(after[name].dtype))
        return masked, {**new, AGREEMENT: torch.tensor([votes.mean()])}

    return method._replace(
        init=init,
        plan=lambda state, *given: method.plan(_inner(state), *given),
        merge=merge,
        settle=settle and (lambda state, params: settle(_inner(state), params)),
        notes=lambda state: {**(notes(_inner(state)) if notes else {}), AGREEMENT: float(state[AGREEMENT])},
        at=at and (lambda state, *given: at(_inner(state), *given)),
    )


def _inner(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if name != AGREEMENT}


class Votes:
    """Counts the signs of the devices' changes while updates arrive; two integers per entry."""

    def __init__(self, like: Params) -> None:
        self._signs = {name: torch.zeros(tensor.shape, dtype=torch.int32) for name, tensor in like.items()}
        self._holders = {name: torch.zeros(tensor.shape, dtype=torch.int32) for name, tensor in like.items()}

    def counted(self, updates: Iterable[tuple[Job, Update]]) -> Iterator[tuple[Job, Update]]:
        """Count the signs of every update and pass it on."""
        for job, update in updates:
            for name, piece in update.subnet.items():
                if name in self._signs:
                    signs = update.values[name].sign().int()
                    self._signs[name] += scatter(signs, piece)
                    self._holders[name] += scatter(torch.ones_like(signs), piece)
            yield job, update

    def agreement(self, name: str) -> torch.Tensor:
        """Return A of every entry, 1 where at most one device holds it."""
        holders = self._holders[name]
        return torch.where(holders > 1, self._signs[name].abs().double() / holders.clamp(min=1), 1.0)

    def mask(self, name: str, threshold: float) -> torch.Tensor:
        """Return M of every entry."""
        found = self.agreement(name)
        return torch.where(found >= threshold - 1e-9, 1.0, found).float()

    def mean(self) -> float:
        """Return the mean of A over the entries that at least two devices hold; 1 if there are none."""
        shared = {name: (holders > 1).numpy() for name, holders in self._holders.items()}
        count = sum(int(np.count_nonzero(one)) for one in shared.values())
        total = sum(float(self.agreement(name).numpy()[one].sum()) for name, one in shared.items())
        return total / count if count else 1.0
